"""The folder of results: complete, replaceable, careful with other people's files."""

import csv
import hashlib
import json
from functools import partial
from pathlib import Path

import pytest

from nestsim.commands.report import Parts
from nestsim.document.dumps import dump_json
from nestsim.document.folder import claimed_folder
from nestsim.features.run.command import FILES as NAMES
from nestsim.features.run.command import PICTURES, run_writers
from nestsim.features.run.document import run_document
from nestsim.features.run.figures import hottest_link_use
from nestsim.features.run.record import (
    reported_candidate,
    result_facts,
    result_json,
)
from planner.step.plan import Plan
from tests import failures
from tests.nestsim.features.run.examples import (
    FOUR_STAGES,
    Shape,
    make_job,
    nothing_fits,
)
from topologies import InputError

SCENARIO = "name = 'four'  # \u00fc\r\n".encode()
JOB = make_job(*FOUR_STAGES)
SMALL = make_job(Shape(p=1, d=1, t=8, m=2))
FILES = {
    "scenario.toml",
    "plan.json",
    "result.json",
    "summary.csv",
    "report.txt",
    "trace.json",
    "manifest.json",
    *(f"figures/{n}.png" for n in ("timeline", "memory", "links", "gap", "topology")),
}


def write_results(result, scenario, directory, *, force=False, progress=None):
    """Write a folder of results as the commands do; return it, links resolved."""
    with claimed_folder(directory, NAMES, force=force) as folder:
        parts = Parts(
            record={},
            document=partial(run_document, result),
            files=run_writers(result, result_json(result), scenario),
            pictures=PICTURES,
            has_page=False,
            has_report=True,
        )
        facts = result_facts(result, scenario)
        folder.write(parts.writers(), facts, progress=progress)
    return folder.path


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(JOB, SCENARIO, tmp_path_factory.mktemp("a") / "deep" / "run")


def test_the_folder_is_complete_and_nothing_is_left_beside_it(written: Path) -> None:
    assert set(files_of(written)) == FILES
    assert list(written.parent.iterdir()) == [written]


def test_the_trace_counts_the_use_of_the_hottest_links(written: Path) -> None:
    events = json.loads((written / "trace.json").read_text(encoding="utf-8"))
    best = reported_candidate(JOB)
    assert best is not None
    expected = hottest_link_use(best.replay, JOB.network)
    counted: dict[str, float] = {}
    for event in events["traceEvents"]:
        if event["ph"] == "C" and event["name"] != "memory":
            highest = max(counted.get(event["name"], 0.0), event["args"]["percent"])
            counted[event["name"]] = highest
    assert 0 < len(expected) <= 8
    assert counted == pytest.approx(
        {name: 100 * shares.max() for name, shares in expected.items()}, abs=1e-3
    )


def test_the_scenario_is_copied_byte_for_byte(written: Path) -> None:
    assert (written / "scenario.toml").read_bytes() == SCENARIO


def test_the_manifest_has_the_hash_of_every_file(written: Path) -> None:
    files = files_of(written)
    manifest = json.loads(files.pop("manifest.json"))
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert manifest["files"] == hashes
    assert manifest["scenario_sha256"] == hashes["scenario.toml"]
    assert manifest["nestsim"]


def test_the_files_agree_with_the_result(written: Path) -> None:
    assert (written / "result.json").read_text() == dump_json(result_json(JOB))
    chosen = JOB.candidates[JOB.chosen or 0]
    plan = Plan.from_json(json.loads((written / "plan.json").read_text()))
    assert plan == chosen.priced.plan
    rows = list(csv.DictReader((written / "summary.csv").read_text().splitlines()))
    times = [float(row["simulated_iteration_time_s"]) for row in rows]
    assert times == [c.simulated.iteration_time for c in JOB.candidates]
    assert {row["virtual_pipeline_model_parallel_size"] for row in rows} == {"1"}
    assert json.loads((written / "trace.json").read_text())["traceEvents"]
    assert (written / "report.txt").read_text().startswith("CONFIRMED")


def test_the_same_result_gives_the_same_folder(written: Path, tmp_path: Path) -> None:
    assert files_of(write_results(JOB, SCENARIO, tmp_path / "b")) == files_of(written)


def test_an_earlier_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_results(SMALL, SCENARIO, folder)
    again = write_results(nothing_fits(), b"other", folder)
    assert set(files_of(again)) == FILES - {
        "plan.json",
        "trace.json",
        *(f"figures/{n}.png" for n in ("timeline", "memory", "links", "gap")),
    }
    assert (again / "scenario.toml").read_bytes() == b"other"
    assert "NO PLAN FITS" in (again / "report.txt").read_text()
    assert list(tmp_path.iterdir()) == [folder]


def test_foreign_files_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="did not write") as caught:
        write_results(SMALL, SCENARIO, tmp_path)
    assert "thesis.tex" in str(caught.value)
    assert set(files_of(tmp_path)) == {"thesis.tex"}


@failures.over(
    "manifest",
    ['{"name": "a web app"}', "[]", "{", '{"nestsim": "1", "files": {"../x": ""}}'],
)
def test_a_manifest_of_another_tool_is_foreign(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match="did not write"):
        write_results(SMALL, SCENARIO, tmp_path)


def test_force_writes_beside_foreign_files_and_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mine.png").write_bytes(b"mine")
    write_results(SMALL, SCENARIO, tmp_path, force=True)
    small = FILES - {"figures/links.png"}  # nothing was sent
    assert set(files_of(tmp_path)) == small | {"thesis.tex", "figures/mine.png"}
    # Notes beside earlier results are kept too; what is out of date goes.
    write_results(nothing_fits(), SCENARIO, tmp_path)
    left = set(files_of(tmp_path))
    assert {"thesis.tex", "figures/mine.png", "result.json"} <= left
    assert "plan.json" not in left


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(InputError, match="not a folder"):
        write_results(SMALL, SCENARIO, tmp_path / "run", force=True)


def test_a_failure_leaves_the_earlier_results_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_results(nothing_fits(), SCENARIO, tmp_path / "run")
    before = files_of(folder)

    def interrupted(doing: str, share: float | None) -> None:
        if "memory" in doing:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_results(SMALL, SCENARIO, folder, progress=interrupted)
    assert files_of(folder) == before
    assert list(tmp_path.iterdir()) == [folder]


def test_the_current_folder_can_hold_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_results(nothing_fits(), SCENARIO, Path())
    write_results(nothing_fits(), SCENARIO, Path())
    assert "result.json" in {path.name for path in Path().iterdir()}


def test_progress_names_every_file(tmp_path: Path) -> None:
    told: list[tuple[str, float | None]] = []
    write_results(
        SMALL,
        SCENARIO,
        tmp_path / "run",
        progress=lambda doing, share: told.append((doing, share)),
    )
    assert {doing.removeprefix("report: ") for doing, _ in told} == FILES - {
        "manifest.json",
        "figures/links.png",  # nothing was sent
    }
    shares = [share for _, share in told if share is not None]
    assert shares == sorted(shares)
    assert 0.0 <= shares[0] <= shares[-1] < 1.0
