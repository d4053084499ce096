"""Which pools a step can have, and the fastest of them, by enumeration with bounds.

A choice is the number of devices of the rollout, 0 where it shares the trainer's, and
the devices of one engine. Sizes are whole nodes, at most `MOST_SIZES` of them:
multiples of the fewest nodes that keep to that; on a single node, powers of two.
Engines have powers of two of devices that divide the pool and the attention heads.
The trainer has the first nodes. Where racks have less bandwidth between them than
their nodes have, its nodes may lie evenly among all as well: then it has a part of
more racks' uplinks, which the rollout hardly uses.

The search halves the sizes that are left: it takes the middle one, with the engine
whose guess is least, until no step that is left can be faster by more than `TOLERANCE`.
Whose bound is not below that is excluded. A bound has the broadcast of new weights as
it is. For the trainer it has the floating-point operations of its phases at the
devices' peak rate, and what a trainer of more devices was found to take: devices may
stand idle in a plan, so that a larger pool is no slower. The rollout is made for every
choice that this leaves, before its trainer is planned: it costs little, and nothing is
taken for granted of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topologies.arrays import IntArray
from topologies.errors import InputError

MOST_SIZES = 16
"""Sizes of the rollout's pool that are looked at, at most."""

TOLERANCE = 0.01
"""Steps that differ by less count as equally fast, as replays under contention do."""

MOST_ENGINE = 64
"""Most devices of a tensor-parallel group of an engine."""


class PoolChoice(NamedTuple):
    """Pools of a step."""

    rollout_devices: int
    """Devices of the rollout alone; 0 where it shares the trainer's."""

    engine: int
    """Tensor-parallel size of an engine."""

    spread: bool = False
    """Whether the trainer's nodes lie evenly among all; else they are the first."""

    def devices(self, total: int, node_size: int) -> tuple[IntArray, IntArray]:
        """Return the devices of the trainer, and those of a rollout of its own.

        Parameters
        ----------
        total
            Devices of the cluster.
        node_size
            Devices of a node.
        """
        training = total - self.rollout_devices
        trains = np.arange(total) < training
        if self.spread:
            num_nodes, nodes = total // node_size, training // node_size
            of_trainer = np.zeros(num_nodes, dtype=np.bool_)
            of_trainer[np.arange(nodes) * num_nodes // nodes] = True
            trains = np.repeat(of_trainer, node_size)
        return np.flatnonzero(trains), np.flatnonzero(~trains)


class Explored(NamedTuple):
    """A choice that was looked at."""

    choice: PoolChoice
    """The choice."""

    time: float | None
    """Time of a step with it; None where it was excluded [s]."""

    reason: str
    """Why it was excluded; empty for one that was evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSearch:
    """What was looked at, in order, and the best of it."""

    explored: tuple[Explored, ...]
    """All choices."""

    best: PoolChoice | None
    """The fastest one, the first of equals; None if none is possible."""

    @property
    def num_evaluated(self) -> int:
        """Choices that were evaluated."""
        return sum(entry.time is not None for entry in self.explored)

    def proof(self) -> str:
        """Say what the search has looked at, in a sentence."""
        total, evaluated = len(self.explored), self.num_evaluated
        if evaluated == total == 1:
            return "The only choice of pools was evaluated."
        if evaluated == total:
            return f"All {total:,} choices of pools were evaluated."
        cannot = sum(entry.reason != BEHIND for entry in self.explored if entry.reason)
        behind = total - evaluated - cannot
        words = [f"{evaluated:,} of {total:,} choices of pools were evaluated"]
        if behind:
            words.append(
                f"{behind:,} excluded: none is faster by more than "
                f"{100.0 * TOLERANCE:.0f} % if a larger trainer is never slower"
            )
        if cannot:
            words.append(f"{cannot:,} cannot run")
        return ", ".join(words) + "."


BEHIND = "bound"
"""Reason of a choice whose bound is not below the best step, less `TOLERANCE`."""


def pool_sizes(num_devices: int, node_size: int, given: int | None) -> tuple[int, ...]:
    """Return the sizes of the rollout's pool that are looked at, rising.

    Parameters
    ----------
    num_devices
        Of the cluster.
    node_size
        Devices of a node.
    given
        The only size, if there is one.

    Raises
    ------
    InputError
        If it leaves nothing to the trainer.
    """
    if given is not None:
        if given >= num_devices:
            raise InputError(
                "leaves no device to the trainer",
                where="rl.rollout_devices",
                got=given,
                expected=f"fewer than {num_devices:,}",
            )
        return (given,)
    if num_devices < 2:
        raise InputError(
            "needs devices for the rollout, and others for the trainer",
            where="rl.placement",
            got="split, on 1 device",
            expected='"colocated", or more devices',
        )
    if num_devices <= node_size:
        powers = (2**power for power in range(num_devices.bit_length()))
        return tuple(size for size in powers if size < num_devices)
    num_nodes = num_devices // node_size
    step = -(-(num_nodes - 1) // MOST_SIZES)
    return tuple(node_size * nodes for nodes in range(step, num_nodes, step))


def engine_sizes(
    pool: int, num_heads: int, expert_ranks: int, given: int | None
) -> tuple[int, ...]:
    """Return the tensor-parallel sizes of an engine that are looked at, rising.

    Parameters
    ----------
    pool
        Devices of the rollout.
    num_heads
        Attention heads of the model.
    expert_ranks
        Expert-parallel size of an engine.
    given
        The only size, if there is one.

    Raises
    ------
    InputError
        If there is none, or it does not divide the devices.
    """
    known = [given] if given is not None else [2**power for power in range(7)]
    sizes = tuple(
        size
        for size in known
        if pool % (size * expert_ranks) == 0
        and (given is not None or (num_heads % size == 0 and size <= MOST_ENGINE))
    )
    if not sizes:
        raise InputError(
            "does not divide the devices of the rollout into engines",
            where="rl.engine.tensor_parallel_size"
            if given is not None
            else "rl.engine.expert_parallel_size",
            got=given if given is not None else expert_ranks,
            expected=f"a divisor of {pool:,}",
        )
    return sizes


def search_pools(
    choices: Sequence[PoolChoice],
    bound: Callable[[PoolChoice], float],
    evaluate: Callable[[PoolChoice, float], float | str],
    guess: Callable[[PoolChoice], float] | None = None,
) -> PoolSearch:
    """Return the fastest choice, and what was looked at to find it.

    Parameters
    ----------
    choices
        All that there are.
    bound
        Time that a step with a choice takes at least; it may rise as others are
        evaluated [s].
    evaluate
        Of a choice and a time that it must be below: time of a step with it, `BEHIND`
        if it is found not to be below, or why it cannot run [s].
    guess
        About what a step with a choice takes: what is least of a size is looked at
        first. The bound if None [s].
    """
    explored: list[Explored] = []
    left = list(choices)
    best: PoolChoice | None = None
    best_time = float("inf")
    while left:
        limit = (1.0 - TOLERANCE) * best_time
        bounds = {choice: bound(choice) for choice in left}
        behind = [entry for entry in left if bounds[entry] >= limit]
        explored += [Explored(entry, None, BEHIND) for entry in behind]
        left = [entry for entry in left if bounds[entry] < limit]
        if not left:
            break
        sizes = sorted({entry.rollout_devices for entry in left})
        middle = sizes[len(sizes) // 2]
        choice = min(
            (entry for entry in left if entry.rollout_devices == middle),
            key=lambda entry: ((guess or bound)(entry), entry),
        )
        left.remove(choice)
        time = evaluate(choice, limit)
        if isinstance(time, str):
            explored.append(Explored(choice, None, time))
            continue
        explored.append(Explored(choice, time, ""))
        if time < best_time:
            best, best_time = choice, time
    explored.sort(key=lambda entry: entry.choice)
    return PoolSearch(explored=tuple(explored), best=best)
