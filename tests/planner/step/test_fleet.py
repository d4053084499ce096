"""Kinds of devices, and the tables of groups of them."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.layers.work import Degrees
from planner.step.execution import DISPATCHED
from planner.step.fleet import DeviceKind, Fleet, least_table, lockstep_table
from tests.planner.examples import tiny_job
from topologies.accelerators import load_accelerator

A100, H100 = load_accelerator("a100-80gb"), load_accelerator("h100-sxm")
DEGREES = Degrees(tp=2, micro_batch_size=2)
TIMES = ("forward_time", "backward_time", "weight_gradient_time")


def fleet_of(*kinds, of_device):
    return Fleet(kinds, np.array(of_device, dtype=np.int64))


def job(*kinds, training=None):
    """Return a tiny job on A100s and a fleet of eight devices, kinds in turn."""
    plain = replace(tiny_job(80e9), accelerator=A100)
    if training is not None:
        plain = replace(plain, training=replace(plain.training, **training))
    of_device = np.arange(8) % len(kinds)
    return plain, replace(plain, fleet=Fleet(tuple(kinds), of_device))


def assert_equal_tables(table, other):
    for field in fields(table):
        value, expected = getattr(table, field.name), getattr(other, field.name)
        if field.name == "traffic":
            assert len(value) == len(expected)
            for item, like in zip(value, expected, strict=True):
                for part in fields(item):
                    assert np.array_equal(
                        getattr(item, part.name), getattr(like, part.name)
                    )
        elif hasattr(value, "keys"):
            assert {mode: array.tolist() for mode, array in value.items()} == {
                mode: array.tolist() for mode, array in expected.items()
            }
        else:
            assert np.array_equal(value, expected), field.name


def test_kinds_are_numbered_as_devices_first_show_them():
    factors = np.array([1.0, 1.0, 1.5, 1.0, 1.0, 1.5])
    group = np.array([1, 1, 1, 0, 0, 0])
    fleet = Fleet.of_devices((A100, H100), group, factors)
    assert fleet.kinds == (
        DeviceKind(H100),
        DeviceKind(H100, 1.5),
        DeviceKind(A100),
        DeviceKind(A100, 1.5),
    )
    assert fleet.of_device.tolist() == [0, 0, 1, 2, 2, 3]
    assert fleet.factors().tolist() == factors.tolist()
    assert fleet.kinds_of([5, 3, 4]) == (2, 3)
    assert fleet.accelerators == (H100, A100)
    assert not fleet.is_uniform


def test_equal_accelerators_of_two_groups_are_one_kind():
    fleet = Fleet.of_devices((A100, A100), np.array([0, 1]), np.ones(2))
    assert fleet.kinds == (DeviceKind(A100),)
    assert fleet.is_uniform


def test_a_group_waits_for_the_slowest_kind_of_each_accelerator():
    fleet = fleet_of(
        DeviceKind(A100),
        DeviceKind(A100, 2.0),
        DeviceKind(H100),
        DeviceKind(H100, 1.5),
        of_device=[0, 1, 2, 3],
    )
    found = fleet.kind_sets(np.array([[0, 0], [0, 1], [2, 3], [0, 3], [1, 3]]))
    assert [found.sets[number] for number in found.which] == [
        (0,),
        (1,),
        (3,),
        (0, 3),
        (1, 3),
    ]


def test_without_a_fleet_there_is_one_set_of_no_kinds():
    plain, _ = job(DeviceKind(A100))
    found = plain.kind_sets(np.zeros((2, 3, 4), dtype=np.int64))
    assert found.sets == ((),)
    assert found.which.shape == (2, 3)


def test_a_fleet_of_one_healthy_kind_has_the_tables_of_no_fleet():
    plain, same = job(DeviceKind(A100))
    assert same.table(DEGREES, (0,)) is same.table(DEGREES)
    assert_equal_tables(same.table(DEGREES, (0,)), plain.table(DEGREES))
    assert_equal_tables(same.fastest_table(DEGREES), plain.table(DEGREES))
    assert same.step_time((0,)) == plain.step_time()
    assert same.memory_rate((0,)) == plain.memory_rate()
    assert same.tensor_memory(1e9, (0,)) == plain.tensor_memory(1e9)
    parts = [
        job.part_times(DISPATCHED, DEGREES, (0,) * (job is same))
        for job in (plain, same)
    ]
    assert (parts[0] == parts[1]).all()


def test_a_factor_stretches_compute_and_nothing_that_is_sent_or_held():
    plain, slow = job(DeviceKind(A100), DeviceKind(A100, 1.5))
    healthy, table = plain.table(DEGREES), slow.table(DEGREES, (1,))
    for name in TIMES:
        assert (getattr(table, name) == 1.5 * getattr(healthy, name)).all()
    for mode, time in table.recompute_time.items():
        assert (time == 1.5 * healthy.recompute_time[mode]).all()
    same = {name: getattr(healthy, name) for name in (*TIMES, "recompute_time")}
    assert_equal_tables(replace(table, **same), healthy)
    assert slow.step_time((1,)) == pytest.approx(1.5 * plain.step_time(), rel=1e-15)
    assert slow.tensor_memory(0.0, (0, 1)) == plain.tensor_memory()


def test_a_factor_is_an_accelerator_with_lower_rates():
    plain, slow = job(DeviceKind(A100), DeviceKind(A100, 2.0), training=MUON)
    rate, flops = plain.memory_rate(), plain.orthogonalisation_time()
    assert flops > 0.0
    assert slow.memory_rate((0, 1)) == rate / 2.0
    assert slow.orthogonalisation_time((0, 1)) == 2.0 * flops


MUON = {"optimizer": "muon"}


def test_ranks_of_two_accelerators_wait_for_the_slower_in_every_pass():
    plain, mixed = job(DeviceKind(A100), DeviceKind(H100))
    on_h100 = replace(plain, accelerator=H100).table(DEGREES)
    assert_equal_tables(mixed.table(DEGREES, (1,)), on_h100)
    both = mixed.table(DEGREES, (0, 1))
    for own in (plain.table(DEGREES), on_h100):
        assert (both.forward_time >= own.forward_time).all()
        assert (both.backward_time >= own.backward_time).all()
    assert_equal_tables(replace(both, **_times(on_h100)), on_h100)
    h100 = replace(plain, accelerator=H100)
    assert mixed.memory_rate((0, 1)) == min(plain.memory_rate(), h100.memory_rate())
    assert mixed.step_time((0, 1)) == max(plain.step_time(), h100.step_time())


def _times(table):
    return {name: getattr(table, name) for name in (*TIMES, "recompute_time")}


def test_memory_is_the_least_of_the_kinds():
    small = replace(H100, memory_bytes=40e9)
    plain, mixed = job(DeviceKind(A100), DeviceKind(small))
    alone = replace(plain, accelerator=small).tensor_memory(1e9)
    assert mixed.tensor_memory(1e9, (0, 1)) == mixed.tensor_memory(1e9, (1,)) == alone
    assert mixed.tensor_memory(1e9, (0,)) == plain.tensor_memory(1e9)


@given(st.lists(st.floats(1.0, 3.0), min_size=6, max_size=6))
def test_no_pass_is_faster_than_the_least_or_slower_in_lockstep(factors):
    plain, _ = job(DeviceKind(A100))
    base = plain.table(DEGREES)
    tables = []
    for forward, weight, rest in (factors[:3], factors[3:]):
        own = base.backward_time - base.weight_gradient_time
        tables.append(
            replace(
                base,
                forward_time=forward * base.forward_time,
                weight_gradient_time=weight * base.weight_gradient_time,
                backward_time=weight * base.weight_gradient_time + rest * own,
            )
        )
    least, most = least_table(tables), lockstep_table(tables)
    for table in tables:
        for passes in (
            lambda of: of.forward_time,
            lambda of: of.backward_time,
            lambda of: of.weight_gradient_time,
            lambda of: of.backward_time - of.weight_gradient_time,
        ):
            slack = 1e-12 * passes(table)
            assert (passes(least) <= passes(table) + slack).all()
            assert (passes(most) >= passes(table) - slack).all()
