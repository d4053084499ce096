"""What hosts keep of a stage: memory, transfers and times, against closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.objective import HOST_TRANSFERS
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.offload import STAGING, host_rates, step_transfers
from planner.step.plan import Offload
from planner.step.recompute import repeated_layers
from tests import failures
from tests.planner.examples import eight_devices, tiny_job
from topologies import InputError
from topologies.accelerators import Host

HOST = Host(to_device=2e9, to_host=1e9, latency=1e-6, memory=1e15, adam_rate=1e8)


def priced(host=HOST, *, cpu_adam=True, **settings_):
    """Price a plan of one stage of a real model on two nodes of four."""
    network, job = eight_devices().with_host(host), tiny_job(2.0**40)
    job = replace(job, execution=replace(job.execution, cpu_adam=cpu_adam))
    spec = PlanSpec(**{"micro_batch_size": 1, "data_parallel_size": 1, **settings_})
    return job, price_plan(network, job, build_plan(network, job, spec))


def table_of(job, found):
    return job.table(found.plan.degrees)


def test_a_layer_lasts_as_long_as_its_work_or_its_transfers():
    slow = replace(HOST, to_host=1e8, to_device=2e8)
    job, found = priced(slow, offload_weights=0.5, offload_activations=0.75)
    table, each = table_of(job, found), job.parameter_bytes
    weights = 0.5 * each.weights * table.parameters
    away = 0.75 * table.saved_bytes["none"] * table.is_block
    # Activations of the ends of the chain stay.
    left = np.where(away > 0.0, 1e-6 + away / 1e8, 0.0)
    there = np.maximum(1e-6 + weights / 2e8, left)
    back = 1e-6 + (weights + away) / 2e8
    stage = found.stages[0]
    assert stage.forward_time == pytest.approx(
        np.maximum(table.forward_time, there).sum(), rel=1e-12
    )
    assert stage.backward_time == pytest.approx(
        np.maximum(table.backward_time, back).sum(), rel=1e-12
    )
    exposed = np.maximum(there - table.forward_time, 0).sum()
    exposed += np.maximum(back - table.backward_time, 0).sum()
    assert exposed > 0
    assert stage.parts[HOST_TRANSFERS] == pytest.approx(exposed, rel=1e-12)
    assert found.terms[HOST_TRANSFERS] > 0


def test_gradients_come_and_go_in_the_backward_pass():
    job, found = priced(offload_gradients=1.0)
    table = table_of(job, found)
    sent = job.parameter_bytes.gradients * table.parameters
    # The slower direction decides.
    expected = np.maximum(table.backward_time, 1e-6 + sent / 1e9).sum()
    assert found.stages[0].backward_time == pytest.approx(expected, rel=1e-12)
    assert found.stages[0].forward_time == pytest.approx(table.forward_time.sum())


def test_the_host_updates_its_part_and_sends_the_weights_back():
    job, found = priced(offload_optimizer=0.5)
    _, bare = priced()
    each, stage, plain = job.parameter_bytes, found.stages[0], bare.stages[0]
    count = plain.memory["weights"] / each.weights
    away = 0.5 * count
    transfers = 2e-6 + away * (each.gradients / 1e9 + each.weights / 2e9)
    assert stage.host_time == pytest.approx(transfers, rel=1e-12)
    once = job.iteration_time
    expected = 0.5 * (plain.optimizer_time - once) + once + away / 1e8
    assert stage.optimizer_time == pytest.approx(expected, rel=1e-9)
    longer = stage.host_time + stage.optimizer_time - plain.optimizer_time
    difference = found.iteration_time - bare.iteration_time
    assert difference == pytest.approx(longer, rel=1e-6)


def test_states_come_to_the_device_both_ways_at_once():
    job, found = priced(offload_optimizer=1.0, cpu_adam=False)
    _, bare = priced()
    states = bare.stages[0].memory["optimizer"]
    assert found.stages[0].host_time == pytest.approx(1e-6 + states / 1e9, rel=1e-12)
    assert found.stages[0].optimizer_time == bare.stages[0].optimizer_time
    assert job.execution.cpu_adam is False


def test_what_the_host_has_already_is_not_sent():
    job, _ = priced()
    away = Offload(weights=1.0, gradients=0.25, optimizer=1.0)
    sent = step_transfers(away, 100.0, job.parameter_bytes, cpu_adam=True)
    assert sent.before_to_host == pytest.approx(75.0 * job.parameter_bytes.gradients)
    assert (sent.before_to_device, sent.after_to_device) == (0.0, 0.0)
    assert sent.on_host == 100.0


@given(*[st.floats(0, 1)] * 4, st.integers(0, 3))
@settings(max_examples=30)
def test_device_and_host_together_hold_what_the_device_held(w, g, o, a, zero):
    saving = {"data_parallel_size": 4, "zero_stage": zero, "recompute": "full"}
    job, found = priced(
        **saving,
        offload_weights=w,
        offload_gradients=g,
        offload_optimizer=o,
        offload_activations=a,
    )
    _, bare = priced(**saving)
    device, host, whole = (
        found.stages[0].memory,
        found.stages[0].host_memory,
        bare.stages[0].memory,
    )
    fractions = {"weights": w, "gradients": g, "optimizer": o, "activations": a}
    for name, part in fractions.items():
        kept = host.get(name, 0.0)
        assert kept == pytest.approx(part * whole[name], rel=1e-9, abs=1e-6)
        assert device[name] + kept == pytest.approx(whole[name], rel=1e-9)
    table = table_of(job, found)
    each, shared = job.parameter_bytes, 4.0
    largest = table.largest_parameters.max()
    layer = w * each.weights * largest / (shared if zero == 3 else 1.0)
    layer += g * each.gradients * largest / (shared if zero >= 2 else 1.0)
    blocks, saved = table.is_block > 0, table.saved_bytes["full"]
    # A block is there twice, an end of the chain once.
    layer += a * max(saved[blocks].max(), saved[~blocks].max() / 2)
    assert device.get(STAGING, 0.0) == pytest.approx(2 * layer, rel=1e-9, abs=1e-6)


def test_devices_of_one_link_share_it():
    alone = host_rates(HOST)
    shared = host_rates(replace(HOST, devices_per_link=2))
    assert shared.to_device == 2 * alone.to_device
    one, two = (
        priced(offload_activations=1.0),
        priced(replace(HOST, devices_per_link=2), offload_activations=1.0),
    )
    assert two[1].iteration_time > one[1].iteration_time


def test_some_blocks_are_recomputed_and_others_not():
    count = 1
    job, found = priced(recompute="full", recompute_num_layers=count)
    table = table_of(job, found)
    blocks = np.flatnonzero(table.is_block)
    again = table.recompute_time["full"][blocks[:count]].sum()
    stage = found.stages[0]
    assert stage.parts["recompute"] == pytest.approx(again, rel=1e-12)
    saved = table.saved_bytes["none"].copy()
    saved[blocks[:count]] = table.saved_bytes["full"][blocks[:count]]
    assert stage.memory["activations"] == pytest.approx(saved.sum(), rel=1e-12)
    marks = repeated_layers(table, found.plan.stages[0])
    assert np.flatnonzero(marks).tolist() == blocks[:count].tolist()


def test_as_many_as_there_are_is_all_of_them():
    job, _ = priced()
    blocks = int(job.chain[1])
    for mode in ("full", "selective"):
        _, counted = priced(recompute=mode, recompute_num_layers=blocks)
        _, whole = priced(recompute=mode)
        _, none = priced(recompute=mode, recompute_num_layers=0)
        _, bare = priced()
        assert counted.iteration_time == pytest.approx(whole.iteration_time, rel=1e-12)
        assert counted.stages[0].memory == whole.stages[0].memory
        assert none.iteration_time == pytest.approx(bare.iteration_time, rel=1e-12)


@failures.over(
    ("settings_", "where"),
    [
        ({"offload_weights": 1.5}, "offload.weights"),
        ({"offload_activations": 0.5, "recompute": "stage"}, "recompute"),
        ({"offload_gradients": 0.5, "schedule": "zb-h1"}, "schedule"),
        ({"recompute_num_layers": 1}, "recompute_num_layers"),
        ({"recompute": "full", "recompute_num_layers": -1}, "recompute_num_layers"),
        ({"offload_optimizer": (0.5, 0.5)}, "offload_optimizer"),
    ],
)
def test_what_does_not_go_together_is_refused(settings_, where):
    with pytest.raises(InputError) as caught:
        priced(**settings_)
    assert caught.value.where == where
