"""Lower bounds of replays by all waits of their schedules: the third bound of a plan.

The instructions of every stage wait for each other as in the replay, passes and
transfers take no longer than in any replay, and the step ends as the replay's does:
buckets of gradients leave when the passes that complete them begin at the earliest, one
after another. A replay adds waits (of transfers for each other, of stages that stop for
them), so it ends no earlier (max-plus [1]_).

Letters: ``p`` stages, ``v`` chunks, ``C = p v`` virtual stages, ``R`` replicas that
differ.

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity: An Algebra
   for Discrete Event Systems", Wiley 1992, section 2.5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from planner.cost.choices import choice_columns
from planner.cost.rates import StageRates
from planner.kernels import stage_terms as kernel
from planner.kernels.replay_memory import PlanFamily, Variants
from planner.kernels.timeline import (
    BoundaryTimes,
    InstructionLists,
    instruction_timeline,
)
from planner.search.replayed.bounds import Placed, ReplayBounds, Shape
from planner.search.replayed.listing import Leaf
from planner.search.replayed.prices import PlacementPrices, place_of
from planner.step.instructions import (
    BACKWARD,
    FORWARD,
    PAIRED,
    WEIGHT,
    VirtualStages,
)
from planner.step.plan import Plan
from planner.step.schedules import SCHEDULES
from planner.work import PRICED, PRICED_DEVICES
from topologies.arrays import BoolArray, FloatArray, IntArray

MOST_REPLICAS = 8
"""Replicas of a kind whose timelines are worked out: those whose transfers take the
longest."""

TIMELINE = 4_000
"""Units of work of a timeline, before its passes are counted."""

TIMELINE_PASSES = 8
"""Passes of a timeline for which it takes one unit of work more."""

MOST_TRANSFERS = 256
"""Placements whose transfers in lockstep are kept at a time."""

_SAFE = 1.0 - 1e-10
"""Factor for the rounding of sums over all passes of a step."""


class _Order(NamedTuple):
    """The instructions of a schedule, and where some of them are."""

    lists: InstructionLists
    """Instructions of all stages."""
    virtual: VirtualStages
    """Where virtual stages are."""
    first: IntArray
    """First forward pass of each chunk, shape ``(p, v)``."""
    completing: IntArray
    """Pass that completes the gradients of each chunk, shape ``(p, v)``."""
    is_paired: BoolArray
    """Whether each instruction goes on beside another one."""


@lru_cache(maxsize=64)
def _order(schedule: str, p: int, m: int, v: int) -> _Order:
    """Return the instructions of a schedule."""
    rules = SCHEDULES[schedule]
    program, virtual = rules.program(p, m, v), rules.virtual_stages(p, v)
    places = np.arange(program.kind.size)
    first, last = np.full(p * v, places.size), np.zeros(p * v, dtype=np.int64)
    completing = WEIGHT if rules.splits_backward else BACKWARD
    for kind, function, place in (
        (FORWARD, np.minimum, first),
        (completing, np.maximum, last),
    ):
        chosen = program.kind == kind
        function.at(place, program.virtual_stage[chosen], places[chosen])
    return _Order(
        InstructionLists(*program),
        virtual,
        first[virtual.number],
        last[virtual.number],
        np.isin(
            rules.written_kinds(program.kind, program.virtual_stage, program.indptr),
            list(PAIRED),
        ),
    )


class _PassEnds(NamedTuple):
    """How far passes bring the stages of replicas of a kind."""

    ends: FloatArray
    """End of each stage's last pass, shape ``(p,)`` [s]."""
    begins: FloatArray
    """Begin of the pass that completes each chunk's gradients, shape ``(p, v)`` [s]."""


def timeline_bound(
    shape: Shape,
    families: Sequence[PlanFamily],
    alone: Sequence[PlanFamily],
    boundaries: Sequence[FloatArray],
    variants: Variants,
    num_blocks: int,
) -> float:
    """Bound the replay of one plan by its exact timeline [s].

    Parameters
    ----------
    shape
        Of the pipeline.
    families
        What the plan has in common with others, for each kind of replicas.
    alone
        The same with passes as they are beside no other one.
    boundaries
        Latency [s] and inverse bandwidth [s/byte] of activations and of gradients over
        the boundary after each stage, no more than in any replay, for each kind of
        replicas, shape ``(R, p, 2, 2)``.
    variants
        The plan.
    num_blocks
        Blocks of each chunk that are repeated where they are counted, else 0.
    """
    order = _order(shape.schedule_name, shape.p, shape.m, shape.v)
    terms = [kernel.stage_terms(family, variants, num_blocks) for family in families]
    single = terms
    if alone is not families:
        single = [kernel.stage_terms(family, variants, num_blocks) for family in alone]
    durations = [_durations(order, *both) for both in zip(terms, single, strict=True)]
    reached = [
        _reached(order, family, own, (times, rates))
        for family, own, times, rates in zip(
            families, terms, durations, boundaries, strict=True
        )
    ]
    both = _PassEnds(*(np.max(times, axis=0) for times in zip(*reached, strict=True)))
    reduced, released = _reduced(families[0], terms[0], both)
    end = max(
        float((np.where(reduced > both.ends, reduced, own.ends) + term.updates).max())
        for own, term in zip(reached, terms, strict=True)
    )
    exits = families[0].sent.exits
    if exits.shares.shape[0]:
        leaving = kernel.exit_bound(families[0], variants, terms[0].sizes, released)
        end = max(end, float(leaving))
    return end * _SAFE


def _durations(
    order: _Order, terms: kernel.StageTerms, alone: kernel.StageTerms
) -> FloatArray:
    """Return what each instruction takes, beside another one or alone [s]."""
    place = order.lists.kind, order.lists.virtual_stage
    return np.where(order.is_paired, terms.durations[place], alone.durations[place])


def _reached(
    order: _Order,
    family: PlanFamily,
    terms: kernel.StageTerms,
    times: tuple[FloatArray, FloatArray],
) -> _PassEnds:
    """Return how far passes bring the stages of replicas of a kind, the latest.

    ``times`` are the durations of instructions [s], and the rates of boundaries.
    """
    lists, (durations, rates) = order.lists, times
    floors = np.zeros(durations.size)
    if terms.gathers.any():
        # Chunks gather one after another; a V may begin with either.
        before = np.cumsum(terms.gathers, axis=1)
        floors[order.first] = terms.gathers if family.order.is_listed else before
    num_bytes = family.job.boundary_bytes
    if len(rates) > MOST_REPLICAS:
        taken = (rates[..., 0] + num_bytes * rates[..., 1]).sum(axis=(1, 2))
        rates = rates[np.argsort(-taken, kind="stable")[:MOST_REPLICAS]]
    reached = []
    for rate in rates:
        laid = order.virtual.after_each(np.swapaxes(rate, 1, 2))
        wire, latency = laid[:, 1] * num_bytes, laid[:, 0]
        status, starts, _, ends = instruction_timeline(
            lists,
            family.pipeline.m,
            durations,
            floors,
            BoundaryTimes(
                forward_wire=np.ascontiguousarray(wire[:, 0]),
                backward_wire=np.ascontiguousarray(wire[:, 1]),
                forward_latency=np.ascontiguousarray(latency[:, 0]),
                backward_latency=np.ascontiguousarray(latency[:, 1]),
            ),
        )
        assert status == 0, "a schedule's instructions wait for each other"
        reached.append((ends, starts[order.completing]))
    return _PassEnds(*(np.max(times, axis=0) for times in zip(*reached, strict=True)))


def _reduced(
    family: PlanFamily, terms: kernel.StageTerms, reached: _PassEnds
) -> tuple[FloatArray, FloatArray]:
    """Return when gradients are reduced, and begin to be, shape ``(p,)`` each [s].

    A stage reduces what some chunks hold after the first of the passes that complete
    them begins; all of it after the last pass if nothing is reduced behind passes.
    """
    behind = family.job.reduces_behind
    begins = reached.begins if behind else reached.ends[:, None] + 0.0 * reached.begins
    order = np.argsort(-begins, axis=1, kind="stable")
    since = np.take_along_axis(begins, order, axis=1)
    time = np.zeros(since.shape)
    for kind in range(2):
        held = np.take_along_axis(terms.sizes[kind], order, axis=1).cumsum(axis=1)
        once, more = (
            terms.reduction[:, 2 * kind, None],
            terms.reduction[:, 2 * kind + 1],
        )
        time += np.where(held > 0.0, once, 0.0) + held * more[:, None]
    reduced = np.maximum(reached.ends, (since + time).max(axis=1))
    number = family.order.number
    joins = number[0, -1] == number.size - 1
    if family.job.tied_time > 0.0 and not joins:
        reduced[[0, -1]] = reduced[[0, -1]].max() + family.job.tied_time
    return reduced, np.ascontiguousarray(since[:, -1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimelineBounds:
    """Bounds single plans of a search by their timelines."""

    bounds: ReplayBounds
    """Passes and ends of stages."""
    prices: PlacementPrices
    """Prices of placements."""
    transfers: Callable[[Plan], FloatArray | None]
    """As of `planner.search.replayed.replays.Replays`."""
    _known: dict[object, tuple[FloatArray, ...] | None] = field(default_factory=dict)
    """What transfers depend on -> these."""

    def bound(self, leaf: Leaf, relaxed: StageRates, enough: float = np.inf) -> float:
        """Bound the replay of a plan, 0 if it has no pipeline [s].

        Parameters
        ----------
        leaf
            The plan.
        relaxed
            Rates that no placement can beat.
        enough
            Where the bound reaches that with each transfer alone on its links, it is
            not asked what transfers share [s].
        """
        sizes = leaf.configuration
        if sizes.pp == 1:
            return 0.0
        shapes = self.prices.listing.shapes(sizes)
        shape = next(shape for shape in shapes if shape.schedule == leaf.schedule)
        placed = self.prices.placed(sizes, leaf.placement)
        modules = self.prices.listing.space.module_sets
        choices = choice_columns((leaf.choice,), self.bounds.hosts, modules)
        variants = Variants(np.array([leaf.layout]), choices)
        families = alone = self.bounds.families(shape, relaxed, placed, choices)
        if shape.pairs:
            unpaired = shape._replace(schedule=shape.schedule_name, pairs=False)
            alone = self.bounds.families(unpaired, relaxed, placed, choices)
        plan = families, alone, variants, leaf.num_layers or 0
        if enough < np.inf:
            unshared = self._timeline(shape, plan, placed.alone.boundaries)
            if unshared >= enough:
                return unshared
        return self._timeline(shape, plan, self._boundaries(leaf, shape, placed))

    def _timeline(
        self,
        shape: Shape,
        plan: tuple[Sequence[PlanFamily], Sequence[PlanFamily], Variants, int],
        boundaries: tuple[FloatArray, ...],
    ) -> float:
        """Bound the replay of a plan, and count that [s]."""
        passes = 2 * shape.p * shape.v * shape.m
        number = sum(min(len(rates), MOST_REPLICAS) for rates in boundaries)
        self.prices.work.spend(TIMELINE + number * passes // TIMELINE_PASSES)
        families, alone, variants, num_blocks = plan
        return timeline_bound(shape, families, alone, boundaries, variants, num_blocks)

    def _boundaries(
        self, leaf: Leaf, shape: Shape, placed: Placed
    ) -> tuple[FloatArray, ...]:
        """Return what transfers take at least, for each kind of replicas."""
        alone = placed.alone.boundaries
        rates = self._lockstep(leaf, shape, placed)
        if rates is None:
            return alone
        return rates

    def _lockstep(
        self, leaf: Leaf, shape: Shape, placed: Placed
    ) -> tuple[FloatArray, ...] | None:
        """Return what transfers take that share their links with those like them.

        Of each kind of replicas, those that are alike once.
        """
        sizes, choice = leaf.configuration, leaf.choice
        table = self.bounds.workload.table(shape.degrees)
        virtual = SCHEDULES[shape.schedule_name].virtual_stages(shape.p, shape.v)
        spread = np.flatnonzero(table.expert_parameters)
        held = np.diff(np.searchsorted(spread, leaf.layout)) > 0
        crossed = np.unique(virtual.boundary[~virtual.stays])
        rates = self.prices.rates(sizes, leaf.placement)
        # Of chunks there matters which boundaries they cross, and who has experts.
        key = (
            *(place_of(sizes, leaf.placement), rates.gradient_algorithm),
            *(choice.zero_stage, choice.sharding, choice.offload),
            *(shape.schedule_name, int(virtual.stage[-1])),
            *(crossed.tobytes(), np.unique(virtual.stage[held]).tobytes()),
        )
        if key not in self._known:
            if len(self._known) >= MOST_TRANSFERS:
                self._known.clear()
            self.prices.work.spend(2 * PRICED + 4 * sizes.devices // PRICED_DEVICES)
            slowest = self.transfers(self.prices.listing.plan(leaf, rates))
            self._known[key] = None
            if slowest is not None:
                which = placed.kinds.which
                self._known[key] = tuple(
                    distinct_rows(slowest[which == number])
                    for number in range(len(placed.alone.boundaries))
                )
        return self._known[key]


def distinct_rows(values: FloatArray) -> FloatArray:
    """Return what `numpy.unique` does along the first axis.

    Rows of equal bits are found by a sum of their bits times odd numbers first, and
    compared: tens of thousands of replicas have few rates.
    """
    bits = np.ascontiguousarray(values).view(np.uint64).reshape(len(values), -1)
    factors = np.uint64(0x9E3779B97F4A7C15) * np.arange(
        1, 2 * bits.shape[1], 2, dtype=np.uint64
    )
    _, first, like = np.unique(bits @ factors, return_index=True, return_inverse=True)
    if not np.array_equal(bits[first][like], bits):
        return np.asarray(np.unique(values, axis=0))
    return np.asarray(np.unique(values[first], axis=0))
