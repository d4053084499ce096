"""Devices that differ: their kinds, and the layer tables of groups of them.

A kind of device is an accelerator and a factor: a slow device computes as its healthy
neighbour does, everything so many times as long. What it sends is not slower. Ranks of
a stage that share layers work in lockstep: each pass takes as long as it takes the
slowest of them. What layers hold and send does not depend on the kind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from estimators.layers.work import LayerTable
from topologies.accelerators import Accelerator
from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices that compute alike."""

    accelerator: Accelerator
    """What the devices are."""

    factor: float = 1.0
    """Factor on all compute times of the devices; 1 if they are healthy."""

    def __post_init__(self) -> None:
        assert self.factor >= 1.0


class KindSets(NamedTuple):
    """Which kinds work together in each of some groups of devices."""

    sets: tuple[tuple[int, ...], ...]
    """Distinct sets of kinds, each rising: of the kinds of one accelerator that which
    the group waits for. One empty set where devices do not differ."""

    which: IntArray
    """Number of the set of each group, in the shape of the groups."""


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Which kind each device of a cluster is of."""

    kinds: tuple[DeviceKind, ...]
    """Distinct kinds of devices."""

    of_device: IntArray
    """Number of the kind of each device, shape ``(N,)``."""

    def __post_init__(self) -> None:
        assert all(kind not in self.kinds[:i] for i, kind in enumerate(self.kinds))
        assert self.of_device.min() >= 0
        assert self.of_device.max() < len(self.kinds)

    @classmethod
    def of_devices(
        cls, accelerators: Sequence[Accelerator], group: IntArray, factors: FloatArray
    ) -> "Fleet":
        """Return a fleet whose kinds are numbered as devices first show them.

        Parameters
        ----------
        accelerators
            What there is.
        group
            Number of each device's accelerator, shape ``(N,)``.
        factors
            What each device's compute times are multiplied by, shape ``(N,)``.
        """
        same = [accelerators.index(accelerator) for accelerator in accelerators]
        pairs = np.stack([np.array(same)[group], factors], axis=1)
        rows, first, which = np.unique(
            pairs, axis=0, return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        kinds = tuple(
            DeviceKind(accelerators[int(number)], float(factor))
            for number, factor in rows[order]
        )
        return cls(kinds, np.argsort(order)[which.ravel()])

    def selected(self, devices: IntArray) -> "Fleet":
        """Return the fleet of some devices, numbered from 0 in their order."""
        accelerators = [kind.accelerator for kind in self.kinds]
        return Fleet.of_devices(
            accelerators, self.of_device[devices], self.factors()[devices]
        )

    def slowed(self, factors: FloatArray) -> "Fleet":
        """Return the same devices, each slower by another factor, shape ``(N,)``."""
        accelerators = [kind.accelerator for kind in self.kinds]
        return Fleet.of_devices(accelerators, self.of_device, self.factors() * factors)

    @property
    def num_devices(self) -> int:
        """Number of devices ``N``."""
        return len(self.of_device)

    @property
    def is_uniform(self) -> bool:
        """Whether all devices are of one kind."""
        return bool((self.of_device == self.of_device[0]).all())

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """Distinct accelerators, in the order of their kinds."""
        distinct: list[Accelerator] = []
        for kind in self.kinds:
            if kind.accelerator not in distinct:
                distinct.append(kind.accelerator)
        return tuple(distinct)

    def factors(self) -> FloatArray:
        """Return the factor of each device, shape ``(N,)``."""
        return np.array([kind.factor for kind in self.kinds])[self.of_device]

    def kinds_of(self, devices: ArrayLike) -> tuple[int, ...]:
        """Return the distinct kinds of some devices, rising."""
        chosen = self.of_device[np.asarray(devices, dtype=np.int64)]
        return tuple(np.unique(chosen).tolist())

    def binding(self, kinds: Sequence[int]) -> tuple[int, ...]:
        """Return the kinds that set the pace of a group: the slowest by accelerator."""
        kept: dict[int, int] = {}
        accelerators = self.accelerators
        for number in sorted(kinds):
            kind = self.kinds[number]
            what = accelerators.index(kind.accelerator)
            if what not in kept or kind.factor > self.kinds[kept[what]].factor:
                kept[what] = number
        return tuple(sorted(kept.values()))

    def kind_sets(self, groups: IntArray) -> KindSets:
        """Return which kinds set the pace of each group of devices.

        Parameters
        ----------
        groups
            Device numbers, members of a group along the last axis.
        """
        of_member = self.of_device[groups]
        present = np.stack(
            [(of_member == kind).any(axis=-1) for kind in range(len(self.kinds))],
            axis=-1,
        )
        rows, which = np.unique(
            present.reshape(-1, len(self.kinds)), axis=0, return_inverse=True
        )
        binding = [self.binding(np.flatnonzero(row).tolist()) for row in rows]
        sets = tuple(sorted(set(binding)))
        numbers = np.array([sets.index(kinds) for kinds in binding])
        return KindSets(sets, numbers[which.ravel()].reshape(groups.shape[:-1]))


class ActorKinds(NamedTuple):
    """Which kinds of devices each stage of each replica works on."""

    sets: tuple[tuple[tuple[int, ...], ...], ...]
    """Distinct sets of kinds that replicas of each stage have, as of `KindSets`."""

    kind: IntArray
    """Number of each actor's set among those of its stage, shape ``(p, d)``."""

    def pipelines(self, others: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the replicas that differ, once each.

        Parameters
        ----------
        others
            What else tells replicas apart, shape ``(p, d, ...)``.

        Returns
        -------
        tuple[IntArray, FloatArray]
            Numbers of sets, shape ``(D, p)``, and ``others``, shape ``(D, p, ...)``.
        """
        num_stages, num_replicas = self.kind.shape
        flat = np.swapaxes(others, 0, 1).reshape(num_replicas, -1)
        rows: FloatArray = np.unique(
            np.concatenate((self.kind.T.astype(np.float64), flat), axis=1), axis=0
        )
        apart = rows[:, num_stages:].reshape(-1, num_stages, *others.shape[2:])
        return rows[:, :num_stages].astype(np.int64), apart


def actor_kinds(fleet: Fleet | None, devices: IntArray) -> ActorKinds:
    """Return the kinds of each actor of a plan.

    Parameters
    ----------
    fleet
        Kinds of devices; None for one.
    devices
        Of each stage of each replica, shape ``(p, d, ranks)``.
    """
    found = kind_sets(fleet, devices)
    sets, kind = [], np.zeros_like(found.which)
    for stage, which in enumerate(found.which):
        numbers, kind[stage] = np.unique(which, return_inverse=True)
        sets.append(tuple(found.sets[number] for number in numbers))
    return ActorKinds(tuple(sets), kind)


def kind_sets(fleet: Fleet | None, groups: IntArray) -> KindSets:
    """Return which kinds set the pace of each group, one empty set without a fleet."""
    if fleet is None:
        return KindSets(((),), np.zeros(groups.shape[:-1], dtype=np.int64))
    return fleet.kind_sets(groups)


def stretched_table(table: LayerTable, factor: float) -> LayerTable:
    """Return the table of a device whose compute takes ``factor`` times as long."""
    if factor == 1.0:
        return table
    return replace(
        table,
        forward_time=factor * table.forward_time,
        backward_time=factor * table.backward_time,
        weight_gradient_time=factor * table.weight_gradient_time,
        recompute_time={
            mode: factor * time for mode, time in table.recompute_time.items()
        },
        host_time={name: factor * time for name, time in table.host_time.items()},
    )


def lockstep_table(tables: Sequence[LayerTable]) -> LayerTable:
    """Return the table of ranks that wait for each other in every pass of a layer.

    Parameters
    ----------
    tables
        Of the kinds of the ranks, under the same degrees.
    """
    return _combined(tables, np.maximum)


def least_table(tables: Sequence[LayerTable]) -> LayerTable:
    """Return a table whose every pass is as fast as any of some tables has it."""
    return _combined(tables, np.minimum)


def _combined(
    tables: Sequence[LayerTable], better: Callable[[FloatArray, FloatArray], FloatArray]
) -> LayerTable:
    """Return a table with one of the times of each pass.

    Weight gradients and the rest of a backward pass are passes of their own: schedules
    that split them must not see a rest that none of the tables has.
    """
    first = tables[0]
    if len(tables) == 1:
        return first
    assert all(table.kinds.shape == first.kinds.shape for table in tables)
    forward, backward = first.forward_time, first.backward_time
    weight = first.weight_gradient_time
    rest = backward - weight
    repeated: Mapping[str, FloatArray] = first.recompute_time
    host: Mapping[str, FloatArray] = first.host_time
    for table in tables[1:]:
        now = {"forward": forward, "backward": backward, **repeated}
        pass_times = _pass_times(table)
        # Who sets the time of a pass says what of it the host is.
        host = {
            name: np.where(
                better(now[name], pass_times[name]) == now[name],
                time,
                table.waited(name),
            )
            for name, time in host.items()
        }
        forward = better(forward, table.forward_time)
        most = better(backward, table.backward_time)
        other = table.backward_time - table.weight_gradient_time
        joined_weight = better(weight, table.weight_gradient_time)
        joined_rest = better(rest, other)
        # One table that sets both passes sets their sum to the last bit.
        is_one = ((joined_weight == weight) & (joined_rest == rest)) | (
            (joined_weight == table.weight_gradient_time) & (joined_rest == other)
        )
        backward = np.where(is_one, most, joined_weight + joined_rest)
        weight, rest = joined_weight, joined_rest
        repeated = {
            mode: better(time, table.recompute_time[mode])
            for mode, time in repeated.items()
        }
    return replace(
        first,
        forward_time=forward,
        backward_time=backward,
        weight_gradient_time=weight,
        recompute_time=repeated,
        host_time=host,
    )


def _pass_times(table: LayerTable) -> Mapping[str, FloatArray]:
    """Return the times whose part `LayerTable.host_time` tells, by the same names."""
    return {
        "forward": table.forward_time,
        "backward": table.backward_time,
        **table.recompute_time,
    }
