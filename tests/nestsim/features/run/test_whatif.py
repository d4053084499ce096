"""Candidates of a page: the closed form in Python and in the page's own script."""

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nestsim
from nestsim.cli import main
from nestsim.document.html import page_html
from nestsim.evaluate.job import run_job
from nestsim.features.run.whatif import (
    CANDIDATES,
    CandidatesRecord,
    candidates_section,
    estimated_times,
)
from planner.cost.levels import FACTORS, linked_levels, with_level_bandwidth
from planner.cost.pricing import price_plan
from planner.search.replayed.shortlist import shortlist
from planner.search.replayed.trail import ProofTrail
from tests.nestsim.features.compare.small import write

NODE = shutil.which("node")

WRONG_INPUT = 2

COST = '\n[cost]\ndevice_hour = "2.5 USD/h"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of results of a run, with its page."""
    place = tmp_path_factory.mktemp("what-if")
    job = write(place)
    job.write_text(job.read_text("utf-8") + COST, encoding="utf-8")
    main(
        ["run", str(job), "--html", "--no-figures", "-q", "-o", str(place / "run")],
    )
    return place / "run"


@pytest.fixture(scope="module")
def candidates(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / CANDIDATES).read_text("utf-8"))
    return data


@pytest.fixture(scope="module")
def record(candidates: dict[str, Any]) -> CandidatesRecord:
    return CandidatesRecord.read(candidates)


def test_times_as_built_are_the_planned_ones(record: CandidatesRecord) -> None:
    assert len(record.tp) > 10
    times = estimated_times(record, [1.0] * len(record.levels))
    assert times.tolist() == [*record.planned_s]
    sums = np.array(record.terms_s).sum(axis=1)
    np.testing.assert_allclose(sums, record.planned_s, rtol=1e-10)


def test_the_reported_plan_is_there_with_its_times(
    record: CandidatesRecord, folder: Path
) -> None:
    result = json.loads((folder / "result.json").read_text("utf-8"))
    place = record.reported
    assert place is not None
    assert record.planned_s[place] == result["planned"]["iteration_time_s"]
    assert record.replayed_s[place] == result["simulated"]["iteration_time_s"]
    assert record.memory_bytes[place] == result["planned"]["peak_memory_bytes"]
    assert record.tp[place] == result["plan"]["parallel"]["tensor_model_parallel_size"]
    assert record.device_hour == pytest.approx(2.5)
    assert record.currency == "USD"
    for bound, time in zip(record.bound_s, record.replayed_s, strict=True):
        assert bound is None or time is None or bound <= time * (1.0 + 1e-9)


def test_estimates_at_other_bandwidths_are_the_planners_prices(
    record: CandidatesRecord, tmp_path: Path
) -> None:
    """Rounding of the page's changes aside: they have six digits."""
    trail = ProofTrail()
    run_job(nestsim.Scenario.from_file(write(tmp_path)), trail=trail)
    assert trail.candidates is not None
    network, workload = trail.candidates.network, trail.candidates.workload
    plans = [candidate.plan for candidate in shortlist(trail, 500)]
    assert len(plans) == len(record.tp)
    for place, level in enumerate(linked_levels(network)):
        for factor in FACTORS:
            factors = [1.0] * len(record.levels)
            factors[place] = factor
            there = with_level_bandwidth(network, level, factor)
            times = [price_plan(there, workload, plan).iteration_time for plan in plans]
            np.testing.assert_allclose(
                estimated_times(record, factors), times, rtol=1e-5
            )
            assert times != [*record.planned_s]


def in_the_page(expression: str, **values: object) -> Any:
    """Return what an expression over the page's closed form gives in JavaScript."""
    if NODE is None:
        pytest.skip("node is not installed")
    script = files("nestsim.document").joinpath("assets", "explorer.js")
    program = "".join(
        (
            script.read_text(encoding="utf-8"),
            *(f"\nconst {name} = {json.dumps(v)};" for name, v in values.items()),
            f"\nprocess.stdout.write(JSON.stringify({expression}));",
        )
    )
    done = subprocess.run(
        [NODE, "-"], input=program, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_pages_script_has_the_same_closed_form(
    candidates: dict[str, Any], record: CandidatesRecord
) -> None:
    rng = np.random.default_rng(3)
    asked = [[1.0] * len(record.levels)]
    asked += np.exp2(rng.uniform(-2, 2, (20, len(record.levels)))).tolist()
    found = in_the_page(
        "asked.map((factors) => columns.tp.map("
        "(_, row) => closedForm.time(columns, row, factors)))",
        columns=candidates,
        asked=asked,
    )
    assert found[0] == [*record.planned_s]
    for times, factors in zip(found, asked, strict=True):
        np.testing.assert_allclose(times, estimated_times(record, factors), rtol=1e-12)


def test_ratios_change_what_leads_to_the_level_above() -> None:
    levels = [
        {"oversubscription": None},
        {"oversubscription": 2.0},
        {"oversubscription": None},
    ]
    found = in_the_page(
        "closedForm.factors(levels, [1, 3, 1], [null, 4, null])", levels=levels
    )
    assert found == [1, 3, 0.5]


def test_the_front_has_what_no_other_is_better_than() -> None:
    points = [[3, 1], [1, 3], [2, 2], [2, 3], [3, 2], [1, 4], [4, 1]]
    found = in_the_page(
        "closedForm.front(points.map((_, row) => row), "
        "(row) => points[row][0], (row) => points[row][1])",
        points=points,
    )
    assert found == [1, 2, 0]


def test_a_page_without_candidates_has_no_section(folder: Path, tmp_path: Path) -> None:
    assert candidates_section(None).blocks == ()
    report = nestsim.simulate(write(tmp_path, plan=True))
    report.save_page(tmp_path / "page.html")
    assert 'id="what-if"' not in (tmp_path / "page.html").read_text("utf-8")
    assert 'id="what-if"' in (folder / "page.html").read_text("utf-8")


def test_a_folder_of_a_run_without_a_page_has_no_candidates(tmp_path: Path) -> None:
    job = write(tmp_path)
    common = ["run", str(job), "--no-figures", "-q", "-o", str(tmp_path / "run")]
    main([*common, "--html"])
    assert (tmp_path / "run" / CANDIDATES).exists()
    main(common)
    assert not (tmp_path / "run" / CANDIDATES).exists()
    page = page_html(nestsim.report_page(tmp_path / "run").page)
    assert 'id="what-if"' not in page


def test_changed_candidates_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    file = copy / CANDIDATES
    file.write_text(file.read_text("utf-8").replace('"tp"', '"tq"'), encoding="utf-8")
    assert main(["report", str(copy), "-q", "--force"]) == WRONG_INPUT
    assert CANDIDATES in capsys.readouterr().err
