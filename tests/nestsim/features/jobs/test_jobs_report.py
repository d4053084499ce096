"""What users get of jobs on one fabric: text, JSON, table, figure, page, command."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli

import nestsim
from nestsim.cli import main
from nestsim.document.html import page_html
from nestsim.document.sheet import draw_document
from nestsim.document.wording import percent
from nestsim.features.jobs.command import TenancyReport
from nestsim.features.jobs.document import jobs_document, shifts_in_words
from nestsim.features.jobs.orbits import Basin, Orbit, ShiftedStart, Shifts
from nestsim.features.jobs.replay import lost_devices
from nestsim.features.jobs.scenario import JobsScenario
from nestsim.features.run.pages import stored_document
from nestsim.scenario.editing import toml_text
from tests import failures
from tests.nestsim.document.pictures import draw
from tests.nestsim.features.jobs.jobs_files import NETWORK, document, job

SCENARIOS = Path(__file__).parents[4] / "scenarios" / "jobs"


def three_jobs() -> dict[str, Any]:
    """Return three jobs below leaves with little bandwidth up, one to be placed."""
    network = {**NETWORK, "nic_bandwidth": "10 GB/s", "oversubscription": 4.0}
    return document(
        job("a job with quite a long name", "0-1, 4-5"),
        job("second", "8-9, 12-13", start="100 us"),
        job("third", 4, placement="best"),
        cluster={"accelerator": "h100-sxm", "network": network},
        shared={"ecmp_seeds": [0, 1]},
    )


def without_a_plan() -> dict[str, Any]:
    """Return two jobs on devices whose memory is kept free."""
    data = document(job("a", 8), job("b", 8))
    del data["plan"]
    data["cluster"]["memory_reserve"] = "79.999 GiB"
    return data


@pytest.fixture(scope="module")
def report() -> TenancyReport:
    return nestsim.jobs(three_jobs())


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda p: p.stem)
def test_every_shipped_file_is_read(path: Path) -> None:
    file = JobsScenario.from_file(path)
    assert file.name == tomli.loads(path.read_text(encoding="utf-8"))["name"]
    assert path.name.startswith(("two", "three")[len(file.tenants) - 2])


def test_the_text_has_every_job_and_what_was_tried(report: TenancyReport) -> None:
    text = str(report)
    worst = max(report.slowdowns.values())
    assert f"takes {100 * (worst - 1):.1f} % longer beside the others" in text
    for name, slowdown in report.slowdowns.items():
        assert any(
            name in line and f"{slowdown:.3f}x" in line for line in text.split("\n")
        )
    assert 'Where "third" hurts least' in text
    assert "all that differ" in text
    assert "Slow-down over the ECMP seeds 0, 1: thin lines from the least" in text
    assert "100 us" in text
    assert " -> spine 0 " in text


def test_what_is_lost_is_the_sum_over_the_jobs(report: TenancyReport) -> None:
    rows = report.to_frame().to_dict("records")
    lost = sum(row["num_devices"] * (1 - 1 / row["slowdown"]) for row in rows)
    assert report.to_dict()["lost_devices"] == pytest.approx(lost, rel=1e-12)
    assert lost_devices([8], [2.0]) == 4.0
    for row in rows:
        throughput = row["tokens_per_s_together"]
        assert throughput * row["step_together_s"] == pytest.approx(8 * 128)
        assert row["slowdown"] == pytest.approx(
            row["tokens_per_s_alone"] / throughput, rel=1e-12
        )


def test_a_dictionary_and_its_file_give_the_same_bytes(
    report: TenancyReport, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(toml_text(three_jobs()), encoding="utf-8")
    assert nestsim.jobs(file).to_json() == report.to_json()


@failures.over("seeds", [[-1], [2**63], [0, 1.5], ["0"], "01", [None]])
def test_seeds_of_the_call_are_checked(seeds: Any) -> None:
    with pytest.raises(nestsim.InputError, match="ecmp_seeds"):
        nestsim.jobs(three_jobs(), ecmp_seeds=seeds)


def test_a_job_may_be_called_like_a_fact() -> None:
    data = document(job("scenario", "0-3"), job("lost_devices", "4-7"))
    assert nestsim.jobs(data).facts() == {
        "scenario": "small",
        '"scenario"': 1.0,
        '"lost_devices"': 1.0,
        "lost_devices": 0.0,
    }


def test_seeds_of_the_call_replace_those_of_the_file(report: TenancyReport) -> None:
    found = nestsim.jobs(three_jobs(), ecmp_seeds=[1])
    assert found.result.seeds == (1,)
    for one, other in zip(found.result.outcomes, report.result.outcomes, strict=True):
        assert one.by_seed == other.by_seed[1:]


def test_the_figure_can_be_read_and_shows_the_numbers(
    report: TenancyReport, tmp_path: Path
) -> None:
    result = report.result
    drawn = draw(lambda path: draw_document(report.document(), path), tmp_path)
    assert not drawn.cut_off
    assert not drawn.overlapping
    left, right, *_ = drawn.figure.axes
    widths = [bar.get_width() for bar in left.patches]  # type: ignore[attr-defined]
    longer = [100 * (one.slowdown - 1) for one in result.outcomes]
    assert widths == pytest.approx(longer)
    lines = [sorted({*line.get_xdata()}) for line in left.lines]
    for outcome in result.outcomes:
        low, middle, high = (100 * (one - 1) for one in outcome.seed_range)
        assert [middle] in [pytest.approx(line) for line in lines]
        assert sorted({low, high}) in [pytest.approx(line) for line in lines]
    shown = [one.get_text() for one in right.texts]
    columns = [[*level.busiest, level.total] for level in result.levels]
    rows = zip(*columns, strict=True)
    assert shown == [percent(share) for row in rows for share in row]


def test_the_command_writes_what_the_face_has(
    report: TenancyReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "jobs.toml", tmp_path / "results"
    file.write_text(toml_text(three_jobs()), encoding="utf-8")
    words = ["jobs", str(file), "-o", str(folder), "--html", "--json", "-q"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed == report.to_json()
    assert (folder / "jobs.json").read_text(encoding="utf-8") == printed
    names = {"jobs.json", "jobs.csv", "jobs.png", "page.html", "manifest.json"}
    assert {one.name for one in folder.iterdir()} == names
    with (folder / "jobs.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["job"]: float(row["slowdown"]) for row in rows} == report.slowdowns
    page = stored_document(folder)
    assert page is not None
    html = (folder / "page.html").read_bytes()
    assert page_html(page).encode() == html
    assert page_html(report.document()).encode() == html


def test_other_starts_are_a_table_a_figure_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "jobs.toml", tmp_path / "results"
    data = document(
        job("a", "0-1, 4-5"),
        job("b", "2-3, 6-7", start="10 us"),
        training={"global_batch_size": 4},
    )
    file.write_text(toml_text(data), encoding="utf-8")
    words = ["jobs", str(file), "-o", str(folder), "--shifts", "4", "-q"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    report = nestsim.jobs(file, shifts=4)
    (shifts,) = report.result.shifts
    assert "Other starts" in printed
    assert shifts_in_words(shifts).split(".")[0][:60] in printed
    with (folder / "shifts.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["slowdown"]) for row in rows] == [
        slowdown for start in shifts.starts for slowdown in start.slowdowns
    ]
    (record,) = json.loads((folder / "jobs.json").read_text("utf-8"))["shifts"]
    assert record["starts"][1]["later_s"] == shifts.span / 4
    figures = [figure.name for figure in report.document().figures]
    assert "shifts of b" in figures
    drawn = draw(lambda path: draw_document(report.document(), path), tmp_path)
    assert not drawn.cut_off
    assert not drawn.overlapping
    for wrong in ("-1", "1001"):
        assert main(["jobs", str(file), "--shifts", wrong]) == 2
        assert "shifts" in capsys.readouterr().err


def test_what_the_best_start_does_is_said() -> None:
    alike = Orbit(3.0, (np.array([1.0]), np.array([0.5])))

    def said(lost: list[float], best: int, holds: str | None, pushed: float) -> str:
        starts = tuple(
            ShiftedStart(
                float(at), (1.0, 1.0), of_start, None if holds is None else 0, True
            )
            for at, of_start in enumerate(lost)
        )
        basin = Basin(alike, (1.0, 1.0), (0,), holds or "", pushed)
        return shifts_in_words(
            Shifts(
                job="b",
                beside=("a", "b"),
                span=3.0,
                starts=starts,
                basins=(basin,),
                best=best,
                worst=lost.index(max(lost)),
                nearly=0.01,
            )
        )

    assert said([1.0, 1.005], 0, "stays", 1.0) == (
        'When "b" begins makes no difference.'
    )
    assert said([4.0, 1.0], 1, "returns", 1.0) == (
        "Begun as today all lose 4.00 devices, at worst 4.00 (0 s later), at best "
        '1.00: begun 1 s later, "b" saves 3.00 devices. The phases hold there by '
        "themselves: pushed, the jobs come back."
    )
    assert "no start is better than today's." in said([1.0, 4.0], 0, "stays", 2.0)
    assert said([4.0, 1.0], 1, "stays", 1.5).endswith(
        "pushed by 0.2 % of the step, the jobs stay shifted, and lose 1.50 devices."
    )
    assert "drift or go elsewhere" in said([4.0, 1.0], 1, "leaves", 2.0)
    assert said([4.0, 1.0], 1, None, 0.0).endswith("nothing repeats.")


def test_a_page_is_made_of_a_result_without_a_plan() -> None:
    failed = nestsim.jobs(without_a_plan())
    assert not failed.succeeded
    assert failed.result.shortfall.startswith('Job "a": ')
    assert "NO PLAN" in str(failed)
    assert failed.figures == ()
    page = jobs_document(json.loads(failed.to_json()))
    assert page.headline.tone == "bad"
    assert [one.name for one in page.sections] == []


def test_wrong_seeds_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(toml_text(three_jobs()), encoding="utf-8")
    for wrong in ("", "1,", "a", "-1", "9" * 30):
        assert main(["jobs", str(file), "--ecmp-seeds", wrong]) == 2
        assert "--ecmp-seeds: is not a list of seeds" in capsys.readouterr().err


def test_commands_say_which_of_them_a_file_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several, single = tmp_path / "several.toml", tmp_path / "single.toml"
    data = three_jobs()
    several.write_text(toml_text(data), encoding="utf-8")
    alone = {key: one for key, one in data.items() if key not in {"jobs", "shared"}}
    single.write_text(toml_text(alone), encoding="utf-8")
    assert main(["run", str(several)]) == 2
    assert "nestsim jobs FILE" in capsys.readouterr().err
    assert main(["jobs", str(single)]) == 2
    assert "nestsim run FILE" in capsys.readouterr().err
