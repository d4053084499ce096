"""Phaze's dynamic program against plain Python, and what it is blind to."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner.kernels.rivals import phaze_tables
from planner.rivals.manual import propose as propose_manual
from planner.rivals.phaze import Phaze, PhazeProgram
from planner.rivals.protocol import PlannerSettings
from planner.search.space import SearchSpec
from tests.planner.instances import instances
from tests.planner.rivals.examples import small_job, tree

relaxed = settings(max_examples=25, suppress_health_check=list(HealthCheck))


def naive_tables(class_of, passes, again, most, transfer, max_stages):
    """Return ``bottleneck`` and ``leading`` by trying every split of every suffix."""
    length = len(class_of) - 1

    def load(i, j, s):
        row = 0 if s == 1 else 1
        k = class_of[i][j]
        if s > most[row][k]:
            return math.inf
        entering = transfer if i > 0 else 0.0
        leaving = transfer if j < length else 0.0
        return entering + passes[row][k] + max(again[row][k], leaving)

    bottleneck = np.full((max_stages + 1, length + 1), np.inf)
    bottleneck[0, length] = 0.0
    leading = np.full((max_stages + 1, length + 1), np.inf)
    for s in range(1, max_stages + 1):
        for i in range(length - s + 1):
            for cuts in combinations(range(i + 1, length), s - 1):
                bounds = (i, *cuts, length)
                loads = [load(bounds[n], bounds[n + 1], s - n) for n in range(s)]
                bottleneck[s, i] = min(bottleneck[s, i], max(loads))
                if i == 0:
                    leading[s, bounds[1]] = loads[0]
    return bottleneck, leading


@st.composite
def chains(draw):
    """Return the kernel's arguments with whole numbers, whose sums are exact."""
    length = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    class_of = np.full((length + 1, length + 1), -1, dtype=np.int64)
    first, last = np.triu_indices(length + 1, k=1)
    class_of[first, last] = np.arange(len(first))
    shape = 2, len(first)
    return (
        class_of,
        rng.integers(0, 20, shape).astype(float),
        rng.integers(0, 5, shape).astype(float),
        rng.integers(0, length + 2, shape),
        float(rng.integers(0, 5)),
        int(rng.integers(1, length + 1)),
    )


@given(chains())
@relaxed
def test_the_kernel_finds_what_trying_everything_finds(chain):
    bottleneck, following, leading = phaze_tables(*chain)
    expected, first = naive_tables(*chain)
    assert (bottleneck == expected).all()
    assert (leading == first).all()
    assert (following[np.isinf(bottleneck)] == 0).all()


@given(chains())
@relaxed
def test_the_kernel_is_its_own_plain_python(chain):
    for compiled, plain in zip(
        phaze_tables(*chain), phaze_tables.py_func(*chain), strict=True
    ):
        assert (compiled == plain).all()


@given(chains())
@relaxed
def test_cuts_lead_to_the_bottleneck(chain):
    class_of, passes, again, _, transfer, max_stages = chain
    bottleneck, following, _ = phaze_tables(*chain)
    length = len(class_of) - 1
    for s in range(1, max_stages + 1):
        if np.isinf(bottleneck[s, 0]):
            continue
        start, loads = 0, []
        for left in range(s, 0, -1):
            end = int(following[left, start])
            row, k = int(left > 1), class_of[start, end]
            loads.append(
                (transfer if start else 0.0)
                + passes[row, k]
                + max(again[row, k], transfer if end < length else 0.0)
            )
            start = end
        assert start == length
        assert max(loads) == bottleneck[s, 0]


@given(instances(most_devices=12, blocks=range(1, 6)))
@relaxed
def test_its_belief_is_the_least_price_of_any_split(instance):
    program = PhazeProgram.of(*instance)
    workload = instance.workload
    believed = sorted(program.plans())
    assume(believed)
    for one in believed[:3]:
        pp, dp = one.configuration.pp, one.configuration.dp
        inputs = program.inputs(one.configuration, one.recompute)
        table = program.candidates.splitter.interleaved_chain(one.configuration).table
        class_of = table.classes.class_of
        length = len(class_of) - 1
        _, leading = naive_tables(class_of, *inputs, pp)
        rest, _ = naive_tables(class_of, *inputs, max(pp - 1, 1))
        microbatches = math.ceil(
            workload.training.global_batch_size / one.configuration.b
        )
        ticks = math.ceil(microbatches / dp) + pp - 1
        degrees = program.candidates.splitter.degrees(one.configuration)
        parameters = workload.table(degrees).parameters
        inverse = 1.0 / instance.network.levels[0].bandwidth
        prices = []
        for end in range(1, length + 1):
            slowest = leading[pp, end]
            if pp > 1:
                slowest = max(slowest, rest[pp - 1, end])
            elif end < length:
                continue
            held = parameters[:end].sum()
            if end == length:
                held -= workload.table(degrees).tied_parameters
            sent = held * workload.parameter_bytes.reduce * 2 * (dp - 1) / dp
            prices.append(ticks * slowest + sent * inverse)
        assert one.price == pytest.approx(min(prices))


def test_it_does_not_see_what_lies_above_the_node():
    _, workload = small_job()
    told, spec = PlannerSettings(), SearchSpec(pipeline_model_parallel_sizes=(1, 2))
    fast, slow = (
        Phaze().find(tree(bandwidth), workload, spec, told)
        for bandwidth in (2.5e11, 2.5e8)
    )
    assert fast.belief == slow.belief
    assert fast.plans[0].plan.parallel == slow.plans[0].plan.parallel
    assert [s.chunks for s in fast.plans[0].plan.stages] == [
        s.chunks for s in slow.plans[0].plan.stages
    ]
    assert fast.plans[0].iteration_time < slow.plans[0].iteration_time


def test_it_splits_what_no_number_of_stages_divides():
    network, workload = small_job(num_layers=9)
    spec = SearchSpec(pipeline_model_parallel_sizes=(4,))
    assert not propose_manual(network, workload, spec).plans
    plan = Phaze().find(network, workload, spec, PlannerSettings()).plans[0].plan
    blocks = np.array([name.startswith("block") for name in workload.graph.names])
    counts = {int(blocks[first : last + 1].sum()) for first, last in _layers(plan)}
    assert counts > {2, 3}


def _layers(plan):
    return [stage.layers for stage in plan.stages]


def test_it_says_that_it_knows_no_virtual_stages():
    spec = SearchSpec(virtual_pipeline_model_parallel_sizes=(2,))
    outcome = Phaze().find(*small_job(), spec, PlannerSettings())
    assert outcome.why_not.startswith("Schedule")
    assert math.isnan(outcome.belief)


def test_it_says_that_memory_stopped_it():
    network, workload = small_job()
    spec = SearchSpec(memory_reserve=workload.accelerator.memory_bytes - 1e4)
    outcome = Phaze().find(network, workload, spec, PlannerSettings())
    assert outcome.why_not.startswith("Memory")
