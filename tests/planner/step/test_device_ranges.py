"""Device numbers as ranges and back."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from estimators.training import ParallelismConfig
from planner.plans.written import read_plan
from planner.step.plan import MOST_DEVICES, Plan, Stage, from_ranges, to_ranges
from tests import failures
from topologies.errors import InputError


@given(st.lists(st.integers(0, 30), max_size=30))
def test_what_is_written_is_read_back_in_its_order(devices):
    assert from_ranges(to_ranges(devices)) == devices


@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(3, 10_000))
@example(0, 1, 102_400)
def test_devices_at_one_distance_are_one_range(first, step, count):
    devices = range(first, first + step * count, step)
    (text,) = to_ranges(devices)
    assert from_ranges([text]) == list(devices)


def test_each_replica_of_a_strided_stage_is_a_range():
    devices = [128 * row + lane for row in range(3) for lane in range(8)]
    assert to_ranges(devices) == ["0-7", "128-135", "256-263"]


@failures.over(
    ("texts", "problem"),
    [
        (["0-7", "8-"], "is not a range"),
        (["-1"], "is not a range"),
        ([" 0"], "is not a range"),
        (["0-7", 8], "is not a range"),
        (["0-7", [8]], "is not a range"),
        (["٣"], "is not a range"),
        (["7-0"], "does not reach its end"),
        (["0-7:0"], "does not reach its end"),
        (["0-7:2"], "does not reach its end"),
        (["0", f"1-{MOST_DEVICES}"], "names more than"),
    ],
)
def test_what_is_no_range_is_refused_at_its_place(texts, problem):
    with pytest.raises(InputError, match=problem) as caught:
        from_ranges(texts)
    assert caught.value.where == f"[{len(texts) - 1}]"
    assert "0-62:2" in caught.value.expected


STAGES = tuple(
    Stage(
        chunks=((stage, stage),),
        devices=((4 * stage, 4 * stage + 1), (4 * stage + 2, 4 * stage + 3)),
        recompute="none",
        zero_stage=0,
        sharding_group_size=1,
    )
    for stage in range(2)
)
PLAN = Plan(
    parallel=ParallelismConfig(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        data_parallel_size=2,
    ),
    virtual_pipeline_model_parallel_size=1,
    micro_batch_size=1,
    num_microbatches=4,
    schedule="1f1b",
    placement="tp2 dp2 pp2",
    gradient_algorithm="ring",
    tensor_algorithm="ring",
    stages=STAGES,
)


def plan_file(folder, *devices):
    written = PLAN.to_json()
    for stage, form in zip(written["stages"], devices, strict=True):
        stage["devices"] = form
    path = folder / "plan.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    return path


def test_plans_are_written_with_ranges_and_lists_are_still_read(tmp_path):
    assert [one["devices"] for one in PLAN.to_json()["stages"]] == [["0-3"], ["4-7"]]
    lists = [[0, 1], [2, 3]], [[4, 5], [6, 7]]
    assert read_plan(plan_file(tmp_path, *lists)) == PLAN
    assert read_plan(plan_file(tmp_path, ["0", "1-2", "3"], ["4-7"])) == PLAN
    short = read_plan(plan_file(tmp_path, ["0-2"], ["4-7"]))
    assert short.stages[0].devices == ((0, 1), (2,))
    other = replace(STAGES[0], devices=((3, 2), (1, 0)))
    assert read_plan(plan_file(tmp_path, ["3", "2", "1", "0"], ["4-7"])) == replace(
        PLAN, stages=(other, STAGES[1])
    )


def test_ranges_of_a_plan_name_a_bounded_number_of_devices(tmp_path):
    half = [f"0-{MOST_DEVICES // 2}"]
    with pytest.raises(InputError, match="stages: names too many devices"):
        read_plan(plan_file(tmp_path, half, half))


def test_what_is_no_range_in_a_plan_is_refused_with_its_place(tmp_path):
    with pytest.raises(InputError) as caught:
        read_plan(plan_file(tmp_path, ["0-3"], ["4-7", "x" * 1000]))
    assert "plan.json: stages[1].devices[1]: is not a range" in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
    with pytest.raises(InputError, match=r"stages\[0\].devices\[1\]: has the wrong"):
        read_plan(plan_file(tmp_path, [[0, 1], "2-3"], ["4-7"]))
