"""What bounds of a replay read of a schedule's lists, and what blocks of a tree send.

A block holds ``u`` tensor groups. Of a group of ``n`` ranks that reduce gradients of
``S`` bytes, with ``k`` in the block, at least ``(1 - k / n) S`` leave it in a
reduce-scatter, as much enters it in an all-gather, and both do in an all-reduce.

Where nothing is known of a placement, a block with ``a`` different stages holds
``u / a`` tensor groups of each in the mean, and at least ``u / a`` runs of consecutive
stages, each of which sends activations to the next one and gradients to the one before;
per block ``u / p`` runs begin or end a pipeline. The first shrinks as ``a`` grows, the
second grows; blocks may differ in ``a``, but the one is convex and the other linear, so
that some real ``a`` does no better than all of them together.

The planner prices all groups of a kind as communicating at the same time. In a replay
stages reduce their gradients one after another, and transfers of different replicas
meet or do not: a bound must take each with nothing else under way (`alone_rates`). The
groups of one stage move in lock-step there, and so do the ranks of a replica: those are
priced together.

Stages repeat themselves in the middle of a step: nothing here changes beyond some
microbatches for each stage, so that short lists say it all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from estimators.collectives.cost import rates_by_algorithm
from estimators.collectives.messages import slowest_edges
from estimators.layers.work import LayerTable
from planner.cost.groups import StageGroups
from planner.cost.rates import PlacementRates
from planner.kernels import tables as columns
from planner.kernels.placement_loads import leaving_shares
from planner.kernels.replay_memory import PassOrder
from planner.search.placements import PlacementBounds
from planner.search.space import Configuration
from planner.step.instructions import BACKWARD, FORWARD, PAIRED, WEIGHT, Schedule
from planner.step.schedules import SCHEDULES
from topologies import Network
from topologies.arrays import FloatArray, IntArray

GRID = 4
"""Numbers of stages in a block that are looked at between two whole ones."""


class Exits(NamedTuple):
    """What leaves blocks, as `planner.kernels.replay_bound` reads it."""

    shares: FloatArray
    """Ranks of each boundary's replicas that leave a block, forth and back, and shares
    of the dense and expert gradients of each stage that do, shape ``(rows, 4, p)``."""

    across: FloatArray
    """Shards of gradients that leave a block in what goes across sharding groups, by
    option, shape ``(rows, options, p)``."""

    inside: FloatArray
    """Shares of dense gradients that leave a block in what sharding groups reduce, by
    option but the first, shape ``(rows, options, p)``."""

    inverses: FloatArray
    """Inverse bandwidth of all ways out of a block together, shape ``(rows,)``
    [s/byte]."""

    is_choice: bool
    """Whether rows are what placements choose from, instead of blocks of one."""


def placed_exits(
    bounds: PlacementBounds, groups: StageGroups, group_sizes: tuple[int, ...]
) -> Exits:
    """Return what leaves each block of a placement, alike ones once.

    Parameters
    ----------
    bounds
        Tiers of the network.
    groups
        Devices, and the groups that they form.
    group_sizes
        Ranks of each sharding option, the whole group first.
    """
    pp = len(groups.grid)
    ranks = groups.grid.reshape(pp, -1)
    dense, experts = np.ascontiguousarray(groups.dense()), None
    if groups.spreads_experts:
        experts = np.ascontiguousarray(groups.expert_data())
    parts = []
    for size, inverse in zip(bounds.tiers[0], bounds.tiers[1], strict=True):
        count = -(-bounds.num_devices // int(size))
        block = ranks // size
        following = np.roll(block, -1, axis=0)
        stage = np.broadcast_to(np.arange(pp)[:, None], block.shape)
        leaves = (block != following).ravel()
        shares = np.zeros((count, 4 + 2 * len(group_sizes), pp))
        for row, ends in enumerate((block, following)):
            place = (ends * pp + stage).ravel()[leaves]
            shares[:, row] = np.bincount(place, minlength=count * pp).reshape(count, pp)
        shares[:, 2] = leaving_shares(dense, int(size), count)
        if experts is not None:
            shares[:, 3] = leaving_shares(experts, int(size), count)
        for option, part in enumerate(group_sizes):
            if option > 0:
                split = np.sort(dense, axis=2).reshape(pp, dense.shape[1], -1, part)
                across = np.swapaxes(split, 2, 3).reshape(pp, -1, split.shape[2])
                inside = split.reshape(pp, -1, part)
                for row, members in ((4, across), (4 + len(group_sizes), inside)):
                    shares[:, row + option] = leaving_shares(
                        np.ascontiguousarray(members), int(size), count
                    )
        distinct = {row.tobytes(): row for row in shares}
        rows = np.array(list(distinct.values()))
        parts.append((rows, np.full(len(rows), inverse)))
    return _join_exits(parts, len(group_sizes), pp, is_choice=False)


def relaxed_exits(
    bounds: PlacementBounds, configuration: Configuration, num_options: int
) -> tuple[Exits, ...]:
    """Return what leaves the blocks of each tier at least, whatever the placement.

    Nothing is known of tiers whose blocks tensor groups straddle, nor where devices
    are left idle.
    """
    tp, cp, p, dp = (getattr(configuration, name) for name in ("tp", "cp", "pp", "dp"))
    found = []
    if configuration.devices < bounds.num_devices:
        return ()
    n = dp * cp
    for size, inverse in zip(bounds.tiers[0], bounds.tiers[1], strict=True):
        if size % tp:
            continue
        groups = int(size) // tp
        most = min(groups, p)
        stages = np.linspace(1.0, most, GRID * (most - 1) + 1)
        later = np.append(stages[1:], stages[-1])
        shares = np.zeros((len(stages), 4 + 2 * num_options, p))
        if p > 1:
            runs = np.maximum(groups / later - groups / p, 0.0) * tp / (p - 1)
            shares[:, :2, :-1] = runs[:, None, None]
        for row, ranks in ((2, n), (3, configuration.expert_data_size)):
            leaving = np.maximum(stages - groups / ranks, 0.0) * tp / p
            shares[:, row] = leaving[:, None]
        if configuration.ep == 1 or configuration.grouping.etp:
            # Of experts on parts of tensor groups, too, nothing is known.
            shares[:, 3] = 0.0
        part = shares, np.full(len(stages), inverse)
        found.append(_join_exits([part], num_options, p, is_choice=True))
    return tuple(found)


def no_exits(num_options: int, num_stages: int) -> Exits:
    """Return what leaves blocks of a network that has none."""
    return _join_exits([], num_options, num_stages, is_choice=False)


def _join_exits(
    parts: list[tuple[FloatArray, FloatArray]],
    num_options: int,
    num_stages: int,
    *,
    is_choice: bool,
) -> Exits:
    shares = np.zeros((0, 4 + 2 * num_options, num_stages))
    whole = np.concatenate([shares, *(part for part, _ in parts)])
    inverses = np.concatenate([np.zeros(0), *(inverse for _, inverse in parts)])
    return Exits(
        np.ascontiguousarray(whole[:, :4]),
        np.ascontiguousarray(whole[:, 4 : 4 + num_options]),
        np.ascontiguousarray(whole[:, 4 + num_options :]),
        inverses,
        is_choice,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AloneRates:
    """Latency [s] and inverse bandwidth [s/byte] of what a stage sends alone."""

    ends: FloatArray
    """Rates of the step's end, columns as in `planner.kernels.tables`, shape ``(p,
    rates)``."""

    boundaries: tuple[FloatArray, ...]
    """Rates of transfers over the boundary after each stage, for each set of replicas:
    distinct replicas, stages, activation or gradient, latency [s] or inverse bandwidth
    [s/byte], shape ``(R, p, 2, 2)``."""


def alone_rates(
    network: Network, groups: StageGroups, placed: PlacementRates, which: IntArray
) -> AloneRates:
    """Price a placement under the algorithms, and for the shardings, of its prices.

    Parameters
    ----------
    network
        The cluster.
    groups
        Devices, and the groups that they form.
    placed
        The prices of all groups at the same time.
    which
        Number of the set of each replica, from 0; below it for none.
    """
    return AloneRates(
        ends=_ends(network, groups, placed),
        boundaries=_boundaries(network, groups.grid, which),
    )


def _ends(network: Network, groups: StageGroups, placed: PlacementRates) -> FloatArray:
    """Price the collectives of the step's end."""
    pp = len(groups.grid)
    options = len(placed.shardings)
    found = np.zeros((pp, columns.NUM_FIXED_RATES + 4 * options))
    name = placed.gradient_algorithm
    dense = groups.dense()
    reduced, passed = _reduce_and_pass_rates(network, dense, name)
    experts = reduced, passed
    if groups.spreads_experts:
        experts = _reduce_and_pass_rates(network, groups.expert_data(), name)
    found[:, columns.DENSE_REDUCE : columns.DENSE_REDUCE + 2] = reduced
    found[:, columns.EXPERT_REDUCE : columns.EXPERT_REDUCE + 2] = experts[0]
    found[:, columns.EXPERT_PASS : columns.EXPERT_PASS + 2] = experts[1]
    for option, sharding in enumerate(placed.shardings):
        inside = columns.SHARD_PASS + 4 * option
        if option == 0:
            found[:, inside : inside + 2] = passed
            continue
        part, size = sharding.group_size, dense.shape[2]
        parts = np.sort(dense, axis=2).reshape(pp, dense.shape[1], -1, part)
        _, within = _reduce_and_pass_rates(network, parts.reshape(pp, -1, part), name)
        across = np.swapaxes(parts, 2, 3).reshape(pp, -1, size // part)
        found[:, inside : inside + 2] = within
        found[:, inside + 2 : inside + 4] = _reduce_and_pass_rates(
            network, across, name
        )[0]
    return found


def _reduce_and_pass_rates(
    network: Network, groups: IntArray, algorithm: str
) -> tuple[FloatArray, FloatArray]:
    """Return the rates of an all-reduce, and of the cheaper of its halves."""
    if groups.shape[2] == 1:
        free = np.zeros((len(groups), 2))
        return free, free
    rates = rates_by_algorithm(network, groups, (algorithm,), together=False)
    found = rates[algorithm]
    halves = np.minimum(found["all_gather"], found["reduce_scatter"])
    return found["all_reduce"], halves


def _boundaries(
    network: Network, grid: IntArray, which: IntArray
) -> tuple[FloatArray, ...]:
    """Price the transfers of each replica over each boundary, by set of replicas."""
    pp, dp, ep, cp, tp = grid.shape
    ranks = grid.reshape(pp, dp * ep, cp * tp)
    sets = range(int(which.max()) + 1)
    if pp == 1:
        return tuple(np.zeros((1, 1, 2, 2)) for _ in sets)
    following = np.roll(ranks, -1, axis=0)
    shape = (pp * dp * ep, 1, cp * tp)
    found = np.stack(
        [
            slowest_edges(
                network, senders.reshape(shape), receivers.reshape(shape)
            ).reshape(pp, dp * ep, 2)
            for senders, receivers in ((ranks, following), (following, ranks))
        ],
        axis=2,
    )
    by_replica = np.swapaxes(found, 0, 1)
    return tuple(np.unique(by_replica[which == one], axis=0) for one in sets)


ENOUGH = 2
"""Microbatches for each stage after which 1F1B repeats itself, interleaved or not."""

ENOUGH_LISTED = 4
"""Microbatches for each stage after which the schedules that are read list by list
repeat themselves."""


class _PipelineSizes(Protocol):
    """Sizes of a pipeline."""

    @property
    def p(self) -> int:
        """Stages."""

    @property
    def v(self) -> int:
        """Chunks of each stage."""

    @property
    def m(self) -> int:
        """Microbatches."""


class _Lists(NamedTuple):
    """What is read off the lists of a schedule; see `PassOrder`."""

    waiting: IntArray
    waiting_starts: IntArray
    first_backward: IntArray
    last_backward: IntArray
    done: IntArray
    after: IntArray
    behind: IntArray


@lru_cache(maxsize=8192)
def passes_in_flight(schedule: str, p: int, m: int, v: int) -> IntArray:
    """Return the most passes that each stage keeps at once, shape ``(p,)``.

    It does not grow beyond `ENOUGH` rounds of microbatches, or `ENOUGH_LISTED` of them
    for each stage of listed ones, but where all forward passes come first.
    """
    rules = SCHEDULES[schedule]
    bubbles = rules.bubbles_kept(p) if rules.forward_first else 0
    m = _enough(rules, p, m)
    return np.array([rules.in_flight(i, p, m, v) + bubbles for i in range(p)])


@lru_cache(maxsize=8192)
def pass_counts(schedule: str, p: int, m: int, v: int) -> tuple[IntArray, IntArray]:
    """Return `passes_in_flight`, and forward passes before the first backward one."""
    rules = SCHEDULES[schedule]
    in_flight = passes_in_flight(schedule, p, m, v)
    if rules.forward_first:
        return in_flight, np.full(p, m * v)
    program = rules.program(p, _enough(rules, p, m), v)
    first = np.zeros(p, dtype=np.int64)
    for i in range(p):
        kinds = program.kind[program.indptr[i] : program.indptr[i + 1]]
        first[i] = np.argmax(kinds == BACKWARD)
    return in_flight, first


def _enough(schedule: Schedule, p: int, m: int) -> int:
    """Return as many microbatches as tell what a schedule does with more of them."""
    if schedule.forward_first:
        return m
    listed = schedule.splits_backward
    return min(m, ENOUGH_LISTED * p if listed else ENOUGH * schedule.round_length(p, m))


@lru_cache(maxsize=8192)
def alone_passes(schedule: str, p: int, m: int, v: int) -> IntArray:
    """Return `PassOrder.alone` of a schedule: what fills and empties its pipeline.

    No more than with `ENOUGH` rounds of microbatches, and the last round of them.
    """
    rules = SCHEDULES[schedule]
    length = rules.round_length(p, m)
    program = rules.program(p, min(m, ENOUGH * length + m % length), v)
    kind, virtual = program.kind, program.virtual_stage
    written = rules.written_kinds(kind, virtual, program.indptr)
    chunk = rules.virtual_stages(p, v).chunk[virtual]
    alone = np.zeros((p, 2, v), dtype=np.int64)
    for i in range(p):
        here = slice(*program.indptr[i : i + 2])
        kind, part = program.kind[here], chunk[here]
        pairs = np.flatnonzero(np.isin(written[here], list(PAIRED)))
        begin, end = (pairs[0], pairs[-1] + 1) if pairs.size else (kind.size, 0)
        forward, backward = part[:begin][kind[:begin] == FORWARD], part[end:]
        alone[i, 0] = np.bincount(forward, minlength=v)
        alone[i, 1] = np.bincount(backward[kind[end:] == BACKWARD], minlength=v)
    return alone


def is_listed(schedule: str) -> bool:
    """Tell whether bounds read a schedule's lists, as they do where it splits."""
    return SCHEDULES[schedule].splits_backward


def pass_order(
    schedule: str,
    sizes: _PipelineSizes,
    tables: Sequence[LayerTable],
    wires: FloatArray,
    *,
    pairs: bool = False,
) -> PassOrder:
    """Return the order of the passes of a schedule.

    Parameters
    ----------
    schedule
        Its name.
    sizes
        Of the pipeline.
    tables
        Its layers, for each row of the times of passes; one for all if all are alike.
    wires
        Transfers over the boundary after each stage, activations (0) and gradients (1),
        by replica, shape ``(R, p, 2)`` [s].
    pairs
        Whether passes beside each other take less than alone.
    """
    p, v, m = sizes.p, sizes.v, sizes.m
    fixed = _fixed_order(schedule, p, min(m, ENOUGH_LISTED * p), v)
    if not fixed.is_listed:
        alone = alone_passes(schedule, p, m, v) if pairs else fixed.alone
        return fixed._replace(alone=alone)
    virtual = SCHEDULES[schedule].virtual_stages(p, v)
    crossed = virtual.after_each(np.swapaxes(wires, 0, 1))
    weight = np.zeros((len(tables), tables[0].num_layers + 1))
    for row, table in zip(weight, tables, strict=True):
        np.cumsum(table.weight_gradient_time, out=row[1:])
    return fixed._replace(
        weight=weight,
        kept=np.array(tables[0].weight_gradient_bytes, dtype=np.float64),
        crossed=np.ascontiguousarray(np.swapaxes(crossed, 0, 1)),
    )


@lru_cache(maxsize=8192)
def _fixed_order(schedule: str, p: int, m: int, v: int) -> PassOrder:
    """Return what neither layers nor links have a say in."""
    virtual = SCHEDULES[schedule].virtual_stages(p, v)
    listed = is_listed(schedule)
    lists = read_lists(schedule, p, m, v) if listed else _unread(p, v)
    crossed = virtual.boundary[~virtual.stays]
    return PassOrder(
        number=virtual.number.copy(),
        stage=virtual.stage.copy(),
        crossings=np.bincount(crossed, minlength=p).astype(np.int64),
        is_listed=listed,
        alone=np.zeros((p, 2, v), dtype=np.int64),
        weight=np.zeros((0, 0)),
        kept=np.zeros(0),
        crossed=np.zeros((0, 0, 2)),
        **lists._asdict(),
    )


@lru_cache(maxsize=8192)
def read_lists(schedule: str, p: int, m: int, v: int) -> _Lists:
    """Read the lists of all stages of a schedule that splits the backward pass."""
    found, number = SCHEDULES[schedule], SCHEDULES[schedule].virtual_stages(p, v).number
    lists = _unread(p, v)
    waiting = [found.waiting(i, p, m, v) for i in range(p)]
    for i in range(p):
        kind, microbatch, chunk = found.instructions(i, p, m, v)
        backward = np.flatnonzero(kind == BACKWARD)
        lists.first_backward[i] = number[i, chunk[backward[0]]]
        lists.last_backward[i] = number[i, chunk[backward[-1]]]
        completes = np.flatnonzero((kind == WEIGHT) & (microbatch == m - 1))[0]
        for c in range(v):
            here = chunk == c
            lists.done[i, c] = (here & (kind == FORWARD))[: backward[0]].sum()
            lists.after[i, c] = here[backward[-1] + 1 :].sum()
            for one in (FORWARD, BACKWARD, WEIGHT):
                lists.behind[i, one, c] = (here & (kind == one))[completes:].sum()
    sizes = [0, *(len(rows) for rows in waiting)]
    return lists._replace(
        waiting=np.concatenate(waiting), waiting_starts=np.cumsum(sizes)
    )


def _unread(p: int, v: int) -> _Lists:
    """Return lists that say nothing."""
    return _Lists(
        waiting=np.zeros((0, 2, v), dtype=np.int64),
        waiting_starts=np.zeros(p + 1, dtype=np.int64),
        first_backward=np.zeros(p, dtype=np.int64),
        last_backward=np.zeros(p, dtype=np.int64),
        done=np.zeros((p, v), dtype=np.int64),
        after=np.zeros((p, v), dtype=np.int64),
        behind=np.zeros((p, 3, v), dtype=np.int64),
    )
