"""A schedule whose chunks go down the stages and come back is one file."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.evaluate.verdict import contention_by_level
from nestsim.lowering.lower import lower_plan
from nestsim.simulator.flows import build_flows
from nestsim.simulator.replay import replay
from nestsim.simulator.system import TRANSFER_KINDS, ReplaySettings
from nestsim.simulator.trace import write_chrome_trace
from planner.cost.pricing import plan_degrees
from planner.step.instructions import BACKWARD, FORWARD, Instructions, Schedule
from planner.step.memory import stage_share
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.nestsim.lowering.test_lower import real
from tests.nestsim.simulator.cases import full_mesh, pipeline
from tests.nestsim.simulator.test_replay import (
    in_ticks,
    passes,
    recurrence,
    wires_of_pairs,
)


def write(_stage, sizes):
    """Forward passes of both chunks, then backward passes from the chain's end on."""
    m = sizes.m
    chunk = np.repeat([0, 1, 1, 0], m)
    kind = np.repeat([FORWARD, FORWARD, BACKWARD, BACKWARD], m)
    return Instructions(kind, np.tile(np.arange(m), 4), chunk)


V_SHAPED = Schedule(
    name="v-shaped",
    interleaves=True,
    splits_backward=False,
    write=write,
    count=lambda _stage, sizes: 2 * sizes.m,
    stage_of=lambda virtual, p: min(virtual, 2 * p - 1 - virtual),
)


@pytest.fixture(scope="module", autouse=True)
def _registered():
    """Add the schedule as a file of its own would: to the one table."""
    table = SCHEDULES._listed
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(table, V_SHAPED.name, V_SHAPED)
        yield


def test_chunks_are_numbered_in_the_order_of_the_chain():
    virtual = V_SHAPED.virtual_stages(3, 2)
    assert virtual.stage.tolist() == [0, 1, 2, 2, 1, 0]
    assert virtual.chunk.tolist() == [0, 0, 0, 1, 1, 1]
    assert virtual.number.tolist() == [[0, 5], [1, 4], [2, 3]]


def test_boundaries_are_crossed_both_ways_and_not_inside_a_stage():
    rates = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    crossed = V_SHAPED.virtual_stages(3, 2).after_each(rates)
    assert crossed.tolist() == [[1, 2], [3, 4], [0, 0], [4, 3], [2, 1]]


@st.composite
def lone_pipelines(draw):
    p = draw(st.integers(2, 5))
    m = p * draw(st.integers(1, 3))

    def numbers(count, low, high):
        values = st.lists(st.floats(low, high), min_size=count, max_size=count)
        return np.array(draw(values))

    speed = numbers(p * p, 1e8, 1e10).reshape(p, p)
    delay = numbers(p * p, 0.0, 1e-4).reshape(p, p)
    net = full_mesh(p, lambda a, b: speed[a, b], lambda a, b: delay[a, b])
    np.fill_diagonal(speed, np.inf)
    np.fill_diagonal(delay, 0.0)
    work = pipeline(
        np.arange(p).reshape(p, 1, 1),
        m,
        num_chunks=2,
        schedule="v-shaped",
        forward_time=numbers(2 * p, 0.0, 0.02),
        backward_time=numbers(2 * p, 0.0, 0.02),
        boundary_bytes=numbers(2 * p - 1, 0.0, 1e7),
    )
    return net, work, speed, delay


@settings(max_examples=25)
@given(lone_pipelines())
def test_the_replay_is_exactly_the_recurrence(case):
    net, work, speed, delay = case
    expected = recurrence(work, delay, wires_of_pairs(work, speed), in_ticks)
    assert passes(replay(net, work).spans) == expected


@failures.over("engine", ["simpy", "compiled"])
def test_messages_follow_the_chain(engine, tmp_path):
    net = full_mesh(3, bandwidth=4.0, latency=0.5)
    work = pipeline(
        np.arange(3).reshape(3, 1, 1),
        3,
        num_chunks=2,
        schedule="v-shaped",
        boundary_bytes=np.full(5, 4.0),
    )
    flows = build_flows(net, work)
    sent = flows.kind == TRANSFER_KINDS.index("activation")
    assert flows.stage[sent].tolist() == [0, 1, 2, 2, 1]
    assert flows.chunk[sent].tolist() == [0, 0, 0, 1, 1]
    result = replay(net, work, ReplaySettings(engine=engine))
    # Down and back once: six passes of 1 s, and four messages of 1 s on the wire and
    # 0.5 s of latency; the turn costs nothing.
    spans = result.spans
    head = (spans.stage == 0) & (spans.chunk == 1) & (spans.kind == FORWARD)
    assert spans.end[head].min() == pytest.approx(3 + 3 + 4 * 1.5 + 2, abs=1e-9)
    path = tmp_path / "trace.json"
    write_chrome_trace(result, path)
    events = json.loads(path.read_text())["traceEvents"]
    begins = {e["id"]: e["pid"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["pid"] for e in events if e["ph"] == "f"}
    # Slices too short to be seen, as of the turn, have no arrows.
    pairs = {(begins[one], ends[one]) for one in ends}
    assert pairs == {(0, 1), (1, 2), (2, 1), (1, 0)}


def test_a_plan_is_built_priced_and_replayed_along_the_chain():
    net, job, priced = real(
        "tensor", schedule="v-shaped", virtual_pipeline_model_parallel_size=2
    )
    outer, inner = (stage.chunks for stage in priced.plan.stages)
    chain = [*outer[0], *inner[0], *inner[1], *outer[1]]
    assert chain == sorted(chain)
    work = lower_plan(net, job, priced)
    even = contention_by_level(net, work, ReplaySettings(), 0.0).alone
    assert even.pipeline == pytest.approx(priced.pipeline_time, rel=1e-8)


@failures.over("schedule", ["zb-v", "dualpipe-v"])
def test_the_first_stage_of_a_v_has_a_tied_embedding_once(schedule):
    _, job, apart = real("tensor", virtual_pipeline_model_parallel_size=2)
    net, _, joined = real(
        "tensor", schedule=schedule, virtual_pipeline_model_parallel_size=2
    )
    table = job.table(plan_degrees(joined.plan))
    assert table.tied_parameters > 0
    held = [stage_share(table, one, joined.plan).dense for one in joined.plan.stages]
    assert sum(held) == table.parameters.sum() - table.tied_parameters
    assert [stage.tied_time for stage in joined.stages] == [0.0, 0.0]
    assert min(stage.tied_time for stage in apart.stages) > 0.0
    work = lower_plan(net, job, joined)
    assert work.tied_phases == ()
    assert replay(net, work).iteration_time == pytest.approx(
        joined.iteration_time, rel=0.05
    )
