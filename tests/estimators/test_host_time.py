"""What the host adds to a layer: never less than nothing, never less than its own."""

import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.chain import build_layer_table
from estimators.collectives.transports import find_transport, overhead, transfer_time
from estimators.constants import load_constants
from estimators.layers.sharding import layer_work
from estimators.layers.work import CollectiveWork, Degrees, LayerWork, OperatorWork
from estimators.models.library import load_model
from estimators.operators.roofline import GRAPH_LAUNCH_TIME, LAUNCH_TIME
from estimators.platform import (
    BACKWARD_LAUNCHES,
    SHARPNESS,
    Platform,
    host_times,
    is_captured,
)
from estimators.software import IDEAL, Software
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from tests import failures
from topologies.accelerators import load_accelerator

KNOWN = load_constants()
A100 = load_accelerator("a100-80gb")
IDEAL_CONSTANTS = KNOWN.software("ideal")
EAGER = Software(name="eager", library=False)
LIBRARY = Software(name="eager")

seconds = st.floats(0.0, 1.0, allow_subnormal=False)
counts = st.integers(0, 60)


def layer(num_operators, collectives=()):
    operator = OperatorWork("x", "memory", *([0.0] * 6), 1.0, 2.0)
    nothing = {field.name: 0.0 for field in fields(LayerWork)}
    given = {"operators": (operator,) * num_operators, "collectives": collectives}
    return LayerWork(**(nothing | given))


def platform(software=EAGER, **changes):
    """Return an A100 under software that is ideal but for some constants."""
    values = {
        name: getattr(IDEAL_CONSTANTS, name) for name in IDEAL_CONSTANTS.__slots__
    }
    named = {f"software.{software.name}.{k}": v for k, v in (values | changes).items()}
    return Platform(
        accelerator=A100, software=software, constants=KNOWN.replaced(named)
    )


def passes(work, compute, tp=1, software=EAGER, **changes):
    """Return the time of both passes with what is added, but for the wire [s]."""
    work = layer(work) if isinstance(work, int) else work
    more = host_times(work, compute, Degrees(tp=tp), platform(software, **changes))
    return compute[0] + more.forward, compute[1] + more.backward


@given(counts, st.tuples(seconds, seconds), st.sampled_from([1, 2, 4, 8]))
def test_an_ideal_host_adds_nothing_at_all(count, device, tp):
    assert passes(count, device, tp) == device
    assert passes(count, device, tp, kernel_time_per_tp_doubling=0.5) == device


@given(
    counts,
    st.tuples(seconds, seconds),
    st.floats(0.0, 1e-3, allow_subnormal=False),
    st.floats(0.0, 1e-2, allow_subnormal=False),
)
def test_a_pass_is_never_shorter_than_the_device_or_the_host_nor_than_their_sum(
    count, device, kernel, gap
):
    found = passes(count, device, kernel_time=kernel, layer_gap=gap)
    host = (count * kernel, BACKWARD_LAUNCHES * count * kernel)
    gaps = (0.25 * gap, 0.75 * gap)
    for time, own, launches, idle in zip(found, device, host, gaps, strict=True):
        assert time >= (max(own, launches) + idle) * (1.0 - 1e-12)
        assert time <= (own + launches + idle) * (1.0 + 1e-12)
        # A norm of two numbers: at most 2^(1/q) times the larger one.
        most = 2 ** (1 / SHARPNESS) * max(own, launches) + idle
        assert time <= most * (1.0 + 1e-12)


@given(
    counts,
    st.tuples(seconds, seconds),
    st.tuples(seconds, seconds),
    st.floats(1e-6, 1e-2),
    st.floats(1.0, 100.0),
)
def test_slower_devices_hosts_and_more_operators_are_never_faster(
    count, device, more, kernel, factor
):
    base = passes(count, device, kernel_time=kernel)
    slower = (device[0] + more[0], device[1] + more[1])
    for other in (
        passes(count, slower, kernel_time=kernel),
        passes(count, device, kernel_time=factor * kernel),
        passes(count + 1, device, kernel_time=kernel),
        passes(count, device, 2, kernel_time=kernel, kernel_time_per_tp_doubling=0.1),
        passes(count, device, kernel_time=kernel, layer_gap=1e-3),
    ):
        assert all(
            after >= before * (1.0 - 1e-12)
            for before, after in zip(base, other, strict=True)
        )


def test_each_doubling_of_tp_makes_a_kernel_cost_the_same_part_more():
    found = [
        passes(10, (0.0, 0.0), tp, kernel_time=1e-3, kernel_time_per_tp_doubling=0.5)[0]
        for tp in (1, 2, 4, 8)
    ]
    assert found == pytest.approx([10e-3, 15e-3, 20e-3, 25e-3])


def test_device_and_host_of_equal_length_take_the_root_of_two():
    forward, _ = passes(10, (10e-3, 0.0), kernel_time=1e-3)
    assert forward == pytest.approx(10e-3 * 2 ** (1 / SHARPNESS))


def test_what_is_launched_as_one_graph_costs_its_gap_alone():
    compiled = Software(name="graphs", compiled=True, library=False)
    device = (2e-3, 4e-3)
    found = passes(30, device, software=compiled, kernel_time=1.0, layer_gap=4e-3)
    assert found == pytest.approx((3e-3, 7e-3))


ALL_REDUCES = CollectiveWork("all_reduce", "tensor", 2, 4e8, 3, 6e8)


def priced(tp, part):
    """Return what the two all-reduces of the forward pass take [s]."""
    transport = find_transport("a100-80gb", inside_node=True)
    return 2 * part(transport, "all_reduce", tp, 2e8, A100.interconnect_bandwidth)


@failures.over("tp", [2, 8])
def test_a_library_adds_its_launches_and_its_ramp_and_not_the_wire(tp):
    work = layer(0, [ALL_REDUCES])
    forward, backward = passes(work, (1.0, 2.0), tp, LIBRARY)
    assert forward - 1.0 == pytest.approx(priced(tp, overhead))
    assert backward - 2.0 == pytest.approx(1.5 * priced(tp, overhead))
    assert passes(work, (1.0, 2.0), tp) == (1.0, 2.0)


def test_a_host_that_is_faster_than_collectives_is_not_waited_for():
    work = layer(1, [ALL_REDUCES])
    kernel = priced(8, transfer_time)
    forward, _ = passes(work, (0.0, 0.0), 8, LIBRARY, kernel_time=kernel)
    device = kernel + priced(8, overhead)
    together = (device**SHARPNESS + kernel**SHARPNESS) ** (1 / SHARPNESS)
    assert forward + kernel == pytest.approx(together)
    without, _ = passes(work, (0.0, 0.0), 8, LIBRARY)
    assert forward < without + kernel


def chain(software, constants=KNOWN):
    return build_layer_table(
        trace_model(replace(load_model("gpt3-1.3b"), num_layers=2)),
        degrees=Degrees(tp=2),
        training=TrainingSpec(global_batch_size=8),
        platform=Platform(
            accelerator=A100,
            software=software,
            constants=constants,
        ),
    )


def test_only_blocks_wait_for_the_host_and_all_of_them_alike():
    named = {
        f"software.mine.{name}": getattr(IDEAL_CONSTANTS, name)
        for name in IDEAL_CONSTANTS.__slots__
    }
    added = KNOWN.replaced(
        named | {"software.mine.kernel_time": 1.0, "software.mine.layer_gap": 8.0}
    )
    ideal, mine = chain(IDEAL), chain(Software(name="mine", library=False), added)
    is_block = ideal.is_block > 0
    longer = mine.forward_time - ideal.forward_time
    assert (longer[~is_block] == 0).all()
    assert (mine.backward_time[~is_block] == ideal.backward_time[~is_block]).all()
    assert (longer[is_block] > 2.0).all()
    assert math.isclose(longer[is_block].min(), longer[is_block].max())
    # What is put off is work of the device: the host has no part in it.
    assert (mine.weight_gradient_time == ideal.weight_gradient_time).all()


def test_an_ideal_chain_takes_what_its_operators_take():
    free = Software(name="ideal", compiled=True, library=False)
    assert (chain(IDEAL).forward_time == chain(free).forward_time).all()
    eager = chain(Software(name="some framework"))
    assert (eager.forward_time[1:3] > chain(IDEAL).forward_time[1:3]).all()


def test_a_graph_waits_neither_for_launches_nor_for_more_than_its_gap():
    """A layer that takes the device no time at all."""
    compute, constants = (0.0, 0.0), {"kernel_time": 1e-3, "layer_gap": 1e-2}
    eager = passes(10, compute, **constants)
    graph = replace(EAGER, cuda_graphs="full_iteration")
    assert passes(10, compute, software=graph, **constants) == (0.0, 0.0)
    gap = {"graph_gap": 4e-4}
    found = passes(10, compute, software=graph, **constants, **gap)
    assert found == pytest.approx((1e-4, 3e-4))
    assert eager[0] > 10e-3


def block(kind):
    """Return the work of a kind of block of DeepSeek-V3 on a device, and its names."""
    graph = trace_model(load_model("deepseek-v3"))
    number = graph.kinds[graph.names.index("block 0") + (3 if kind == "experts" else 0)]
    return layer_work(graph, number, Degrees(ep=32), 2)


@failures.over(
    ("kind", "left"),
    [
        ("dense", set()),
        (
            "experts",
            {"linear_fc1", "activation", "mul", "linear_fc2", "combine", "add_1"},
        ),
    ],
)
def test_graphs_of_layers_hold_all_but_what_experts_do(kind, left):
    """Dispatch, experts and combination: Megatron Core, cuda_graph.md."""
    work = block(kind)
    held = is_captured(work, replace(EAGER, cuda_graphs="layers"))
    outside = [
        op.name for op, is_in in zip(work.operators, held, strict=True) if not is_in
    ]
    assert {name.removeprefix("mlp.") for name in outside} - {"add_2"} == left
    attention = replace(EAGER, cuda_graphs="layers", cuda_graph_modules=("attn",))
    first = [op.name for op in work.operators].index("pre_mlp_norm")
    assert is_captured(work, attention) == [n < first for n in range(len(held))]


def test_a_graph_of_a_layer_costs_one_launch_and_what_is_outside_costs_its_own():
    work, nothing = block("dense"), (0.0, 0.0)
    constants = {"kernel_time": 1e-3, "layer_gap": 8e-3, "graph_gap": 4e-3}
    layers = replace(EAGER, cuda_graphs="layers")
    forward, backward = passes(work, nothing, software=layers, **constants)
    assert forward == pytest.approx(1e-3 + 0.25 * 4e-3)
    assert backward == pytest.approx(BACKWARD_LAUNCHES * 1e-3 + 0.75 * 4e-3)
    times = [
        passes(work, nothing, software=software, **constants)[0]
        for work in (block("dense"), block("experts"))
        for software in (
            replace(EAGER, cuda_graphs="full_iteration"),
            layers,
            replace(layers, cuda_graph_modules=("attn",)),
            EAGER,
        )
    ]
    assert times[:4] == sorted(times[:4])
    assert times[4:] == sorted(times[4:])
    # 24 kernels and two products of 8 experts; attention is 11 of these 40.
    assert times[7] - times[6] == pytest.approx(10e-3 + 0.25 * 4e-3 * 11 / 40)


def test_collectives_of_a_graph_leave_without_the_host():
    work = layer(1, (CollectiveWork("all_reduce", "tensor", 2, 2e6, 2, 2e6),))
    graph = replace(LIBRARY, cuda_graphs="full_iteration")
    eager, captured = (
        passes(work, (1e-3, 1e-3), tp=8, software=software)
        for software in (LIBRARY, graph)
    )
    saved = 2 * (LAUNCH_TIME - GRAPH_LAUNCH_TIME)
    assert eager[0] - captured[0] == pytest.approx(saved)
