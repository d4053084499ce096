"""``nestsim diff``: the plan, its numbers, and what is in one only."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.cli import main
from nestsim.features.run.diff import compare_reports
from planner.step.plan import from_ranges
from tests import failures

SCENARIOS = Path(__file__).parents[4] / "scenarios"
SHIPPED = (SCENARIOS / "gpt3_1.3b_8_a100.toml").read_text(encoding="utf-8")
EIGHT = SHIPPED[: SHIPPED.index("[search]")]
PLAN = """
[plan]
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
micro_batch_size = 4
zero_stage = 1
"""
EQUAL, DIFFERENT, WRONG_INPUT = 0, 1, 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two folders of results and two reports."""
    folder = tmp_path_factory.mktemp("diff")
    changed = PLAN.replace("= 4", "= 2").replace(
        "zero_stage = 1", "zero_stage = [1, 0]"
    )
    for name, plan in (("a", PLAN), ("b", changed)):
        scenario = folder / f"{name}.toml"
        scenario.write_text(EIGHT + plan, encoding="utf-8")
        output = ["-o", str(folder / name), "--quiet", "--json"]
        main(["simulate", str(scenario), *output])
    return folder


def compared(
    capsys: pytest.CaptureFixture[str], before: Path, after: Path
) -> tuple[int, Any]:
    status = main(["diff", str(before), str(after), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_result_equals_itself(results: Path, capsys) -> None:
    status, data = compared(capsys, results / "a", results / "a" / "result.json")
    assert (status, data["equal"]) == (EQUAL, True)
    assert main(["diff", str(results / "a"), str(results / "a")]) == EQUAL
    assert capsys.readouterr().out.startswith("EQUAL")


def test_devices_in_lists_are_those_in_ranges(results: Path, capsys) -> None:
    """Earlier versions wrote a list of numbers for each replica."""
    report = json.loads((results / "a" / "result.json").read_text(encoding="utf-8"))
    lanes = report["plan"]["parallel"]["tensor_model_parallel_size"]
    for stage in report["plan"]["stages"]:
        numbers = from_ranges(stage["devices"])
        stage["devices"] = [
            numbers[first : first + lanes] for first in range(0, len(numbers), lanes)
        ]
    earlier = results / "earlier.json"
    earlier.write_text(json.dumps(report), encoding="utf-8")
    status, data = compared(capsys, earlier, results / "a")
    assert (status, data["equal"]) == (EQUAL, True)


def test_settings_of_the_plan_and_of_its_stages_are_named(results, capsys) -> None:
    status, data = compared(capsys, results / "a", results / "b")
    assert status == DIFFERENT
    found = {one["path"]: (one["before"], one["after"]) for one in data["settings"]}
    assert found["plan.micro_batch_size"] == (4, 2)
    assert found["plan.stages[1].zero_stage"] == (1, 0)
    assert "plan.stages[0].zero_stage" not in found
    assert not any(path.startswith("plan.parallel") for path in found)


def test_numbers_come_with_absolute_and_relative_change(results, capsys) -> None:
    _, data = compared(capsys, results / "a", results / "b")
    reports = [
        json.loads((results / name / "result.json").read_text()) for name in "ab"
    ]
    old, new = (report["simulated"]["iteration_time_s"] for report in reports)
    found = {one["path"]: one for one in data["numbers"]}
    one = found["simulated.iteration_time_s"]
    assert (one["before"], one["after"]) == (old, new)
    assert one["absolute"] == new - old
    assert one["relative"] == (new - old) / old


def test_the_text_begins_with_what_matters(results, capsys) -> None:
    assert main(["diff", str(results / "a"), str(results / "b")]) == DIFFERENT
    out = capsys.readouterr().out
    assert out.startswith("DIFFERENT: ")
    _, _, numbers = out.partition("\nNumbers\n")
    assert numbers.splitlines()[2].split()[0] == "planned.iteration_time_s"
    assert "plan.micro_batch_size" in out


def test_the_best_plan_of_a_search_is_compared(results, tmp_path, capsys) -> None:
    search = "\n[search]\ntensor_model_parallel_sizes = [2]\nmicro_batch_sizes = [4]\n"
    scenario = tmp_path / "job.toml"
    scenario.write_text(EIGHT + search, encoding="utf-8")
    assert main(["plan", str(scenario), "--json", "--quiet"]) == 0
    planned = tmp_path / "planned.json"
    planned.write_text(capsys.readouterr().out, encoding="utf-8")
    status, data = compared(capsys, results / "a", planned)
    assert status == DIFFERENT
    assert "simulated.iteration_time_s" in data["only_before"]
    assert "planned.iteration_time_s" in {one["path"] for one in data["numbers"]}


@failures.over(
    ("content", "problem"),
    [
        (None, "no such file"),
        ("{", "not JSON"),
        ("[]", "is not a report of run, plan or simulate"),
        ('{"points": []}', "is not a report of run, plan or simulate"),
    ],
)
def test_what_is_no_result_is_told(tmp_path, content, problem, capsys) -> None:
    file = tmp_path / "report.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert main(["diff", str(file), str(file)]) == WRONG_INPUT
    assert f"{file}: {problem}" in capsys.readouterr().err


leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text("ab", max_size=2),
)
tree = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
reports = st.dictionaries(st.text("abc", min_size=1, max_size=2), tree, max_size=4)


@given(reports)
def test_every_report_equals_itself(report) -> None:
    assert compare_reports(report, json.loads(json.dumps(report))).is_empty


@given(reports, reports)
def test_turned_round_the_difference_is_turned_round(first, second) -> None:
    there, back = compare_reports(first, second), compare_reports(second, first)
    assert there.is_empty == back.is_empty
    assert set(there.only_before) == set(back.only_after)
    assert {(one.path, one.absolute) for one in there.numbers} == {
        (one.path, -one.absolute) for one in back.numbers
    }
    assert {one.path for one in there.settings} == {one.path for one in back.settings}


@failures.over(
    "devices",
    [[0, "a"], [[0], 1, None], [[[0]]], [{"a": 1}], [True, 1], ["\x1b[31m"], []],
)
def test_devices_that_are_none_are_shown_as_they_are(tmp_path, capsys, devices) -> None:
    for name, value in (("a", devices), ("b", [[0, 1]])):
        report = {"lower_bound_s": 1, "plan": {"stages": [{"devices": value}]}}
        (tmp_path / name).write_text(json.dumps(report))
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == DIFFERENT
    out, err = capsys.readouterr()
    assert "plan.stages[0].devices" in out
    assert (err, "\x1b[31m" in out) == ("", False)


def test_names_and_numbers_of_any_report_can_be_printed(tmp_path, capsys) -> None:
    values = [
        {"\x1b[31mred": 1e-320, "b": 10**299, "c": "\x1b[2J"},
        {"\x1b[31mred": 1e308, "b": -1e308, "c": 1},
    ]
    for name, value in zip("ab", values, strict=True):
        (tmp_path / name).write_text(json.dumps({"lower_bound_s": 1, "plan": value}))
        (tmp_path / f"{name}2").write_text(
            json.dumps({"lower_bound_s": 1, "plan": 1, **value})
        )
    for pair in ("ab", ("a2", "b2")):
        assert main(["diff", *(str(tmp_path / one) for one in pair)]) == DIFFERENT
        assert "\x1b[2J" not in capsys.readouterr().out


def test_a_report_of_very_many_values_is_refused(tmp_path, capsys, monkeypatch) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"lower_bound_s": 1, "plan": [{}] * 50}))
    assert main(["diff", str(file), str(file)]) == EQUAL
    monkeypatch.setattr("nestsim.features.run.diff.MOST_VALUES", 50)
    assert main(["diff", str(file), str(file)]) == WRONG_INPUT
    assert f"{file}: has too many values" in capsys.readouterr().err
