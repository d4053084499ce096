"""Planners of users: files, functions and installed ones, and what becomes of them."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.cli import main
from nestsim.features.compare.own import PlanningProblem, own_planners
from nestsim.features.compare.results import PlannerEntry
from tests import failures
from tests.nestsim.features.compare.small import load, write
from topologies.errors import InputError

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "own_planner.md").read_text("utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
"""The planner that the page shows."""


def entry(folder: Path, planner: Any, **more: Any) -> PlannerEntry:
    """Return what becomes of a planner beside manual."""
    report = nestsim.compare(load(folder), planners=["manual", planner], **more)
    (group,) = report.result.groups
    return group.entries[1]


def test_the_planner_of_the_page_runs_and_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(CODE)
    scenario = write(tmp_path)
    names = f"nest,manual,{mine}"
    line = ["compare", str(scenario), "--planners", names, "--json", "-q"]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert '"planner": "mine"' in out
    found = entry(tmp_path, str(mine))
    assert found.planner == "mine"
    assert found.found is not None
    assert found.evaluations >= 1
    # Two processes find the same as one.
    again = entry(tmp_path, str(mine), workers=2)
    assert again.found is not None
    assert again.found.simulated == found.found.simulated


def test_a_function_is_a_planner_and_its_plan_is_the_one_that_it_says(
    tmp_path: Path,
) -> None:
    seen: list[PlanningProblem] = []

    def halves(problem: PlanningProblem) -> Iterator[dict[str, Any]]:
        seen.append(problem)
        good = {"pipeline_model_parallel_size": 2, "micro_batch_size": 1}
        assert math.isfinite(problem.time(good))
        assert problem.why_not(good) == ""
        bad = {**good, "tensor_model_parallel_size": 3}
        assert problem.time(bad) == math.inf
        assert "plan.tensor_model_parallel_size" in problem.why_not(bad)
        yield bad
        yield good

    found = entry(tmp_path, halves)
    assert found.found is not None
    assert found.found.plan.parallel.pipeline_model_parallel_size == 2
    assert found.belief == pytest.approx(found.found.planned.iteration_time, rel=0.5)
    assert any("Plan 1 is not taken" in note for note in found.notes)
    (problem,) = seen
    assert problem.num_devices == load(tmp_path).network_spec.num_devices
    assert problem.num_devices % problem.devices_per_node == 0
    assert problem.num_layers == load(tmp_path).spec.num_layers


def raises(problem: PlanningProblem) -> list[dict[str, Any]]:
    raise ValueError(f"no idea for {problem.num_devices}")


WRONG = {
    "raises": (raises, "failed: ValueError: no idea for"),
    "nothing": (lambda _: [], "proposes no plan"),
    "no plan": (lambda _: [8], "something else than a plan"),
    "unknown setting": (lambda _: {"tensor": 8}, "Plan 1 is not taken: plan.tensor"),
    "too large": (
        lambda _: {"pipeline_model_parallel_size": 64, "micro_batch_size": 1},
        "Plan 1 is not taken: plan",
    ),
    "does nothing": (lambda _: None, "it returns nothing, in place of plans"),
    "exits": (lambda _: sys.exit(3), "failed: SystemExit: 3"),
    "outside": (
        lambda _: {"micro_batch_size": 4, "pipeline_model_parallel_size": 2},
        "search.micro_batch_sizes does not list 4",
    ),
}


@failures.over("name", WRONG)
def test_what_a_planner_does_wrong_is_its_row(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    function, words = WRONG[name]
    found = entry(tmp_path_factory.mktemp("wrong"), function)
    assert found.found is None
    assert words in found.why_not


@failures.over(
    ("planner", "words"),
    [
        ("{}/none.py", "no such file"),
        ("{}/fails.py", "it fails: ZeroDivisionError"),
        ("{}/exits.py", "it fails: SystemExit"),
        ("{}/mine.py:other", "there is no such function"),
        ("{}/mine.py:NAME", "is no function"),
        ("{}/nest.py", "has the name of a planner of nestsim"),
        ("other", "is not a planner"),
    ],
)
def test_a_planner_that_is_not_there_ends_in_a_sentence(
    planner: str, words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    (folder / "mine.py").write_text(f"NAME = 1\n{CODE}")
    (folder / "nest.py").write_text(CODE)
    (folder / "fails.py").write_text("1 / 0\n")
    (folder / "exits.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(InputError, match=words):
        nestsim.compare(load(folder), planners=["manual", planner.format(folder)])


def test_what_was_proposed_before_a_failure_stays_and_the_failure_is_told(
    tmp_path: Path,
) -> None:
    def breaks(_: PlanningProblem) -> Iterator[dict[str, Any]]:
        yield {"pipeline_model_parallel_size": 2, "micro_batch_size": 1}
        raise ValueError("no more")

    found = entry(tmp_path, breaks)
    assert found.found is not None
    assert "failed: ValueError: no more" in found.notes[0]


def test_what_a_planner_prints_is_no_result_and_its_neighbours_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside_mine.py").write_text("SETTINGS = {'micro_batch_size': 1}\n")
    loud = "import beside_mine\nprint('begun')\n\n\ndef other(problem):\n"
    loud += "    print('asked')\n    return beside_mine.SETTINGS\n"
    (tmp_path / "mine.py").write_text(f"{loud}\n\nplan = other\n")
    names = f"{tmp_path}/mine.py,{tmp_path}/mine.py:other"
    line = ["compare", str(write(tmp_path)), "--planners", names, "--json", "-q"]
    assert main(line) == 0
    out = capsys.readouterr().out
    planners = json.loads(out)["planners"]
    assert planners == ["mine", "mine:other"]


def test_kept_results_of_a_function_are_not_taken_for_another(tmp_path: Path) -> None:
    def of_stages(_: PlanningProblem) -> dict[str, Any]:
        return {"pipeline_model_parallel_size": 2, "micro_batch_size": 1}

    (_, first), (_, again) = own_planners([of_stages]), own_planners([of_stages])
    assert first["of_stages"].digest() == first["of_stages"].digest()
    assert first["of_stages"].digest() != again["of_stages"].digest()


def test_a_planner_of_a_file_is_compared_on_one_network(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="compared on one network"):
        nestsim.compare_networks(
            load(tmp_path), ["dgx-a100", "hgx-a100-200gbe"], planners=["mine.py"]
        )


def test_a_changed_file_is_another_planner(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(CODE)
    first = own_planners([str(mine)])[1]["mine"].digest()
    assert own_planners([str(mine)])[1]["mine"].digest() == first
    mine.write_text(CODE + "\n# another\n")
    assert own_planners([str(mine)])[1]["mine"].digest() != first


def test_an_installed_planner_is_known_by_its_name(tmp_path: Path) -> None:
    """An entry point of a distribution that Python finds, as pip would leave it."""
    site = tmp_path / "site"
    about = site / "mine-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "my_package.py").write_text(CODE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    points = "[nestsim.planners]\nmine = my_package:plan\n"
    (about / "entry_points.txt").write_text(points)
    scenario = write(tmp_path)
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from nestsim.cli import main\n"
        f"sys.exit(main(['compare', {str(scenario)!r}, '--planners', 'manual,mine', "
        "'--json', '-q']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert '"planner": "mine"' in done.stdout
