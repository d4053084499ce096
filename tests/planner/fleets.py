"""Fleets to try: slow devices and a second accelerator, also for tables made up."""

from dataclasses import replace

import numpy as np

from planner.step.execution import Workload
from planner.step.fleet import Fleet
from topologies.arrays import IntArray

FACTORS = (1.0, 1.0, 1.25, 1.5, 2.0)


def executed_on(job: Workload, fleet: Fleet | None) -> Workload:
    """Return a job on a fleet; the tables of its own accelerator are kept."""
    other = replace(job, fleet=fleet)
    other._tables.update(job._tables)
    return other


def slow_fleet(job: Workload, factors) -> Fleet:
    """Return devices of the job's accelerator that are so many times as slow."""
    factors = np.asarray(factors, dtype=np.float64)
    group = np.zeros(factors.size, dtype=np.int64)
    return Fleet.of_devices((job.accelerator,), group, factors)


def on_random_fleet(job: Workload, num_devices: int, rng, *, kinds: int = 2):
    """Return a job whose devices are drawn: accelerators and factors.

    Further accelerators have tables of their own, each time of each kind of layer
    another, slower or faster; another memory, and another bandwidth of it.
    """
    own = job.accelerator
    accelerators = [own]
    accelerators += [
        replace(
            own,
            name=f"other-{number}",
            measured_as=own.constants_name,
            memory_bytes=own.memory_bytes * float(rng.choice([0.8, 2.0])),
            memory_bandwidth=own.memory_bandwidth * float(rng.choice([0.5, 2.0])),
        )
        for number in range(1, kinds)
    ]
    block = int(rng.choice([1, 2, 4]))
    group = np.repeat(rng.integers(0, kinds, size=num_devices), block)[:num_devices]
    factors = rng.choice(FACTORS, size=num_devices)
    fleet = Fleet.of_devices(accelerators, group, factors)
    other = executed_on(job, fleet)
    for number, kind in enumerate(fleet.kinds):
        if kind.accelerator == job.accelerator:
            continue
        seed = accelerators.index(kind.accelerator)
        for degrees, table in job._tables.items():
            made = rescaled(table, seed)
            other._kind_tables[number, degrees] = made
    return other


def rescaled(table, seed: int):
    """Return a table of another accelerator: layers of a kind are still alike."""
    rng = np.random.default_rng(seed)
    forward, weight, rest = rng.choice([0.5, 1.5, 2.0], size=(3, table.kinds.max() + 1))
    own = np.maximum(table.backward_time - table.weight_gradient_time, 0.0)
    less = np.minimum(table.weight_gradient_time, table.backward_time)
    return replace(
        table,
        forward_time=table.forward_time * forward[table.kinds],
        weight_gradient_time=less * weight[table.kinds],
        backward_time=less * weight[table.kinds] + own * rest[table.kinds],
        recompute_time={
            mode: time * forward[table.kinds]
            for mode, time in table.recompute_time.items()
        },
    )


def all_alike(job: Workload, number: int) -> Workload:
    """Return the job on as many devices of one of its fleet's kinds."""
    assert job.fleet is not None
    fleet = Fleet(job.fleet.kinds, np.full_like(job.fleet.of_device, number))
    other = executed_on(job, fleet)
    other._kind_tables.update(job._kind_tables)
    return other


def kinds_along(job: Workload, devices: IntArray) -> list[tuple[int, ...]]:
    """Return the kinds of some groups of devices, one by one in plain Python."""
    assert job.fleet is not None
    return [
        tuple(sorted({int(job.fleet.of_device[device]) for device in group}))
        for group in devices.tolist()
    ]
