"""What goes to hosts and back in replays: flows over host links beside everything."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import replay
from nestsim.simulator.system import TRANSFER_KINDS, ReplaySettings
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from tests import failures
from tests.planner.examples import eight_devices, tiny_job
from topologies.accelerators import Host

HOST = Host(to_device=2e9, to_host=1e9, latency=0.0, memory=1e15, adam_rate=1e8)

EVERYTHING = {
    "offload_weights": 0.5,
    "offload_gradients": 0.25,
    "offload_optimizer": 1.0,
    "offload_activations": 0.75,
}


def replayed(host=HOST, *, cpu_adam=True, family="gpt", **sizes):
    """Return a plan of a real model, its price and its replay."""
    network, job = eight_devices().with_host(host), tiny_job(2.0**40, family=family)
    job = replace(job, execution=replace(job.execution, cpu_adam=cpu_adam))
    spec = PlanSpec(**{"micro_batch_size": 1, "data_parallel_size": 1, **sizes})
    priced = price_plan(network, job, build_plan(network, job, spec))
    done = replay(network, lower_plan(network, job, priced), ReplaySettings())
    return network, priced, done


SIZES = {
    "one stage": {},
    "stages": {"pipeline_model_parallel_size": 2},
    "replicas": {"data_parallel_size": 4, "zero_stage": 1},
    "ZeRO-3": {"data_parallel_size": 4, "zero_stage": 3},
    "tensor": {"tensor_model_parallel_size": 4, "sequence_parallel": True},
    "recompute": {
        "pipeline_model_parallel_size": 2,
        "recompute": "full",
        "recompute_num_layers": 1,
    },
}


@failures.over("cpu_adam", [True, False])
@failures.over("name", SIZES)
def test_a_replay_in_which_nothing_meets_is_as_planned(name, cpu_adam):
    _, priced, done = replayed(cpu_adam=cpu_adam, **SIZES[name], **EVERYTHING)
    assert done.iteration_time == pytest.approx(priced.iteration_time, rel=1e-6)
    for timeline, stage in zip(done.memory, priced.stages, strict=True):
        assert timeline.peak <= stage.peak_memory * (1 + 1e-9)
        assert timeline.peak_parts["staging"] == stage.memory["staging"]


def test_every_byte_crosses_a_host_link():
    network, priced, done = replayed(**EVERYTHING)
    carried = done.links.num_bytes[-2 * network.num_hosts :]
    to_host, to_device = carried[: network.num_hosts], carried[network.num_hosts :]
    table = tiny_job(2.0**40).table(priced.plan.degrees)
    # An embedding that is tied to the head comes twice, 2 bytes a weight and 4 a
    # gradient.
    weights = 0.5 * 2 * table.parameters.sum()
    gradients = 0.25 * 4 * table.parameters.sum()
    # Those of the ends of the chain stay.
    activations = 0.75 * (table.saved_bytes["none"] * table.is_block).sum()
    m = priced.plan.num_microbatches
    out = m * (activations + gradients)
    sent = priced.stages[0].step_transfers
    assert to_host[0] == pytest.approx(out + sent.before_to_host, rel=1e-9)
    back = m * (activations + 2 * weights + gradients)
    assert to_device[0] == pytest.approx(back + sent.after_to_device, rel=1e-9)
    assert not to_host[1:].any()
    kinds = {TRANSFER_KINDS[kind] for kind in done.transfers.kind}
    assert {"to host", "to device"} <= kinds


def test_devices_below_one_link_take_turns_in_the_replay_as_in_the_price():
    times = []
    for shared in (1, 2, 4):
        host = replace(HOST, devices_per_link=shared)
        _, priced, done = replayed(host, data_parallel_size=4, **EVERYTHING)
        assert done.iteration_time == pytest.approx(priced.iteration_time, rel=1e-6)
        times.append(done.iteration_time)
    assert times == sorted(times)
    assert times[-1] > 1.2 * times[0]


@given(
    st.sampled_from(sorted(SIZES)),
    st.floats(1e8, 1e11),
    st.floats(1e8, 1e11),
    st.floats(1.0, 10.0),
    st.sampled_from([1, 2]),
)
@settings(max_examples=25)
def test_faster_hosts_are_never_slower(name, to_device, to_host, factor, shared):
    slow = Host(
        to_device=to_device,
        to_host=to_host,
        memory=1e15,
        adam_rate=1e8,
        devices_per_link=shared,
    )
    fast = replace(
        slow,
        to_device=to_device * factor,
        to_host=to_host * factor,
        adam_rate=1e8 * factor,
    )
    (_, planned, done), (_, sooner, done_sooner) = (
        replayed(host, **SIZES[name], **EVERYTHING) for host in (slow, fast)
    )
    assert sooner.iteration_time <= planned.iteration_time * (1 + 1e-12)
    assert done_sooner.iteration_time <= done.iteration_time * (1 + 1e-9)
