"""Devices that differ, as searches see them: where which kinds work, and how fast.

The ranks of a stage of a replica work in lockstep, at the pace of the slowest kind
among them. A search knows on each placement which kinds those are; before it looks at
placements, only what the best devices could do at most:

    ``n = p d g`` devices are taken for ``p`` stages of ``d`` replicas of ``g`` ranks
    each. Sorted by speed and grouped in that order, the groups' least speeds add up to
    as much as those of any grouping. Some replica has at most the mean of the replicas'
    sums, and no more than the slowest group with the ``p - 1`` fastest.

The order of devices is the launcher's: nodes may stand in any order in a list of hosts.
Searches try a few (`device_orders`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.step.execution import Workload
from planner.step.fleet import Fleet
from topologies import Network
from topologies.arrays import FloatArray, IntArray

Kinds = tuple[int, ...]
"""Kinds of devices that set the pace of a group, none for the healthy accelerator of
the workload (`planner.step.fleet.KindSets`)."""

MOST_REPLICAS = 8
"""Most replicas of other kinds whose paths are bounded on a placement."""


class PlacedKinds(NamedTuple):
    """The kinds of devices that work on a placement."""

    replicas: tuple[tuple[Kinds, ...], ...]
    """Kinds of each stage, for each of the replicas that differ in them; of many the
    first `MOST_REPLICAS`."""

    which: IntArray
    """Number of each replica in `replicas`, shape ``(d,)``; -1 if it is left out."""

    stages: tuple[tuple[Kinds, ...], ...]
    """Distinct kinds of the groups of each stage, over all replicas."""

    scarcity: FloatArray
    """Factor by which the most memory of any device that plans may use exceeds that of
    the devices of each stage, shape ``(p,)``; infinite where they have none."""

    @property
    def key(self) -> bytes:
        """Bytes that are equal where bounds see the same."""
        return repr((self.replicas, self.stages)).encode()

    @property
    def are_alike(self) -> bool:
        """Whether all stages have devices of the same kinds."""
        return len(set(self.stages)) == 1


def placed_kinds(workload: Workload, devices: IntArray, reserve: float) -> PlacedKinds:
    """Return the kinds that work on a placement.

    Parameters
    ----------
    workload
        The job.
    devices
        Device numbers, shape ``(p, d, ranks)``.
    reserve
        Memory that plans must leave free [byte].
    """
    num_stages, num_replicas = devices.shape[:2]
    sets, which = workload.kind_sets(devices)
    if len(sets) == 1:
        row = (sets[0],) * num_stages
        stages = ((sets[0],),) * num_stages
        return PlacedKinds(
            (row,),
            np.zeros(num_replicas, dtype=np.int64),
            stages,
            _scarcity(workload, stages, reserve),
        )
    rows, number = np.unique(which.T, axis=0, return_inverse=True)
    number = number.ravel()
    present = [np.unique(row).tolist() for row in which]
    stages = tuple(tuple(sets[kind] for kind in row) for row in present)
    return PlacedKinds(
        tuple(
            tuple(sets[kind] for kind in row) for row in rows[:MOST_REPLICAS].tolist()
        ),
        np.where(number < MOST_REPLICAS, number, -1),
        stages,
        _scarcity(workload, stages, reserve),
    )


def _scarcity(
    workload: Workload, stages: tuple[tuple[Kinds, ...], ...], reserve: float
) -> FloatArray:
    """Return by which factor the most memory exceeds that of each stage's devices."""
    most = most_memory(workload, reserve)
    least = [
        min(workload.tensor_memory(reserve, kinds) for kinds in groups)
        for groups in stages
    ]
    return np.array(
        [
            1.0 if room == most else most / room if room > 0.0 else np.inf
            for room in least
        ]
    )


def most_memory(workload: Workload, reserve: float) -> float:
    """Return the most memory that any device has for plans [byte]."""
    if workload.fleet is None:
        return workload.tensor_memory(reserve)
    every = range(len(workload.fleet.kinds))
    return max(workload.tensor_memory(reserve, (kind,)) for kind in every)


def least_memory(workload: Workload, reserve: float) -> float:
    """Return the least memory that any device has for plans [byte]."""
    if workload.fleet is None:
        return workload.tensor_memory(reserve)
    return workload.tensor_memory(reserve, tuple(range(len(workload.fleet.kinds))))


def least_step_time(workload: Workload) -> float:
    """Return the least time in which any device updates a parameter [s]."""
    if workload.fleet is None:
        return workload.step_time()
    every = range(len(workload.fleet.kinds))
    return min(workload.step_time((kind,)) for kind in every)


class GroupSpeeds(NamedTuple):
    """The best that groups of devices can do, relative to the fastest kind."""

    speed: FloatArray
    """Speed of each group, devices grouped from the fastest on, falling."""

    total: FloatArray
    """Sum of the first so many of them, one entry more."""

    def stages(self, num_stages: IntArray, num_replicas: IntArray) -> FloatArray:
        """Return as how many of the fastest stages those of some replica count at most.

        For each of the numbers of stages and of replicas, in step.
        """
        groups = num_stages * num_replicas
        mean = self.total[groups] / num_replicas
        slowest = self.speed[groups - 1] + self.total[num_stages - 1]
        return np.asarray(np.minimum(mean, slowest))


def group_speeds(fleet: Fleet, speeds: FloatArray, size: int) -> GroupSpeeds:
    """Return what groups of a size can do at most.

    Parameters
    ----------
    fleet
        The devices.
    speeds
        Speed of each kind, the fastest 1.
    size
        Devices of each group.
    """
    falling = -np.sort(-speeds[fleet.of_device])
    slowest = falling[size - 1 :: size]
    return GroupSpeeds(slowest, np.concatenate([np.zeros(1), np.cumsum(slowest)]))


def kind_speeds(least: FloatArray, times: list[FloatArray]) -> FloatArray:
    """Return as how fast as the fastest kind each kind is at most.

    Parameters
    ----------
    least
        Least time of each layer on any kind, shape ``(L,)`` [s].
    times
        Time of each layer on each kind [s].
    """
    speeds = []
    for time in times:
        works = time > 0.0
        ratios = least[works] / time[works]
        speeds.append(float(ratios.max(initial=0.0)) if works.any() else 1.0)
    return np.array(speeds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceOrder:
    """An order of the devices of a cluster, whole nodes in another place."""

    name: str
    """What the order is called in a placement's name."""

    devices: IntArray
    """Number of the device in each place, shape ``(N,)``."""


FAST_FIRST = "fast first"
SLOW_FIRST = "slow first"


def device_orders(
    network: Network, workload: Workload, group: int
) -> tuple[DeviceOrder | None, ...]:
    """Return the orders of devices that placements are tried in, None for as they are.

    Nodes sorted by what their slowest device computes, fast ones first or slow ones
    first, others as they are. Only where nodes are all that matters: in trees, and for
    groups of consecutive ranks that no two nodes share.

    Parameters
    ----------
    network, workload
        The job.
    group
        Consecutive ranks that must stay together.
    """
    fleet = workload.fleet
    if fleet is None or fleet.is_uniform or not network.is_tree:
        return (None,)
    node = network.levels[0].block_size
    if node % group or network.num_devices % node:
        return (None,)
    pace = _node_paces(workload, fleet, node)
    orders: dict[bytes, DeviceOrder | None] = {}
    whole = np.arange(network.num_devices).reshape(-1, node)
    orders[whole.tobytes()] = None
    for name, key in ((FAST_FIRST, pace), (SLOW_FIRST, -pace)):
        devices = whole[np.argsort(key, kind="stable")].ravel()
        order = DeviceOrder(name=name, devices=devices)
        orders.setdefault(devices.tobytes(), order)
    return tuple(orders.values())


def _node_paces(workload: Workload, fleet: Fleet, node: int) -> FloatArray:
    """Return how long the slowest device of each node takes for a product [s].

    Of nodes whose slowest devices are alike, the sum over all devices decides.
    """
    precision = workload.training.precision
    per_device = np.array(
        [kind.factor / kind.accelerator.peak_flops[precision] for kind in fleet.kinds]
    )[fleet.of_device].reshape(-1, node)
    per_device = np.sort(per_device, axis=1)
    slowest, all_of_them = per_device[:, -1], per_device.sum(axis=1)
    order = np.lexsort((all_of_them, slowest))
    ranks = np.zeros(len(order))
    paces = np.stack([slowest, all_of_them], axis=1)[order]
    ranks[order] = np.cumsum([0, *(paces[1:] != paces[:-1]).any(axis=1)])
    return ranks
