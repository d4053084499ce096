"""Which of two plans is simpler, and the simplest plan that is nearly the fastest.

A plan is as complex as many things of `Complexity` it has beside its sizes: an option
each that somebody sets, checks and debugs. Of plans that have as many of them, the
first thing that they differ in decides.

The simplest plan is looked for after the proof: what the search has left within some
share of the best replay, simplest first (`simpler_leaves`).
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from planner.frameworks.rules import LaunchRules
from planner.search.launchable import rank_order
from planner.search.launchable_sizes import orders_of
from planner.search.placements import Placement, extents_of, whole_dimensions
from planner.search.replayed.candidates import LaunchableCandidates, Leaves
from planner.search.replayed.listing import Leaf
from planner.search.replayed.replays import ReplayedPlan
from planner.search.space import Configuration, configuration_of
from planner.step.execution import Workload
from planner.step.plan import NO_OFFLOAD, Plan
from planner.step.schedules import SCHEDULES, schedule_name
from planner.step.virtual import block_span
from topologies.arrays import BoolArray, IntArray

MOST_OPENED = 12
"""Most configurations whose plans are listed to find a simpler one."""

MOST_SIMPLER = 8
"""Most plans that are replayed because they are simpler."""

MOST_LEFT = 2000
"""Most configurations that were not looked at that are weighed, least bounds first."""


class Complexity(NamedTuple):
    """What makes a plan less simple; 0 where it does not. First things decide ties."""

    chunks: int = 0
    """Chunks of each stage, if there are several."""
    rank_order: int = 0
    """Whether ranks have another order than the framework's first, or nodes another
    than that of their numbers."""
    layout: int = 0
    """Whether virtual stages hold unequal numbers of blocks."""
    schedule: int = 0
    """Whether weight gradients are passes of their own."""
    expert_overlap: int = 0
    """Whether all-to-alls of experts go on beside another microbatch."""
    context_parallel: int = 0
    """Ranks that share a sequence, if there are several."""
    context_kind: int = 0
    """Whether they share attention in another way than the framework's first."""
    expert_tensor: int = 0
    """Ranks that share an expert, if those are not the tensor-parallel ones."""
    partial_sharding: int = 0
    """Whether a part of the replicas shares shards of ZeRO, or second copies."""
    host_offload: int = 0
    """Whether hosts keep anything."""
    counted_recompute: int = 0
    """Whether some blocks are recomputed, and others are not."""

    @property
    def key(self) -> tuple[int, ...]:
        """What orders plans, the simplest first."""
        return (sum(map(bool, self)), *self)

    def beyond(self, other: "Complexity") -> tuple[str, ...]:
        """Say what makes a plan less simple than another one, thing by thing."""
        every = zip(self._fields, self, other, strict=True)
        return tuple(WORDS[name].format(a) for name, a, b in every if a > b)


WORDS: Mapping[str, str] = MappingProxyType(
    {
        "chunks": "{} chunks per stage",
        "rank_order": "ranks in another order than the default",
        "layout": "stages of unequal numbers of blocks",
        "schedule": "weight gradients as passes of their own",
        "expert_overlap": "all-to-alls beside another microbatch",
        "context_parallel": "context parallelism over {} ranks",
        "context_kind": "another kind of context parallelism than the default",
        "expert_tensor": "an expert tensor parallelism of its own, {}",
        "partial_sharding": "shards of ZeRO in a part of the replicas",
        "host_offload": "offload to hosts",
        "counted_recompute": "recompute of some blocks only",
    }
)
"""Thing that makes a plan less simple -> what reports call it."""


def complexity_of(plan: Plan, workload: Workload, rules: LaunchRules) -> Complexity:
    """Return what makes a plan less simple, by a framework's rules."""
    sizes = configuration_of(plan)
    chunks = sorted(chunk for stage in plan.stages for chunk in stage.chunks)
    cuts = np.array([*(first for first, _ in chunks), chunks[-1][1] + 1])
    usual = orders_of(rules, sizes)[:1]
    return _of_sizes(sizes, plan.schedule, rules)._replace(
        rank_order=int(rank_order(plan, usual) is None),
        layout=int(_are_uneven(cuts, _blocks(workload))),
        partial_sharding=int(
            any(
                (stage.zero_stage and stage.sharding_group_size < sizes.dp * sizes.cp)
                or stage.zero_hpz_partition_size > 1
                for stage in plan.stages
            )
        ),
        host_offload=int(any(stage.offload != NO_OFFLOAD for stage in plan.stages)),
        counted_recompute=int(
            any(stage.recompute_num_layers is not None for stage in plan.stages)
        ),
    )


def _of_sizes(sizes: Configuration, schedule: str, rules: LaunchRules) -> Complexity:
    """Return what sizes and schedule say: no plan of them is simpler."""
    tables, grouping = SCHEDULES[schedule], sizes.grouping
    overlaps = tables.pairs_passes and (sizes.ep > 1 or not tables.pairs_chunks)
    usual = rules.context_parallel[:1] or (grouping.cp_comm_type,)
    return Complexity(
        chunks=sizes.v if sizes.v > 1 else 0,
        schedule=int(tables.splits_backward),
        expert_overlap=int(overlaps),
        context_parallel=sizes.cp if sizes.cp > 1 else 0,
        context_kind=int(sizes.cp > 1 and grouping.cp_comm_type not in usual),
        expert_tensor=grouping.etp,
    )


def _blocks(workload: Workload) -> tuple[int, int]:
    """Return the first block of the chain and the one after the last."""
    names = workload.graph.names
    return block_span(np.array([float(name.startswith("block")) for name in names]))


def _are_uneven(cuts: IntArray, blocks: tuple[int, int]) -> BoolArray:
    """Tell of layouts, by first layers, whether virtual stages hold unequal blocks."""
    return np.asarray(np.ptp(np.diff(np.clip(cuts, *blocks)), axis=-1) > 0)


@dataclass(slots=True, kw_only=True)
class SimplestReplayed:
    """Replayed plans of which no other is as simple and as fast."""

    workload: Workload
    """Job that the plans are of."""
    rules: LaunchRules
    """Rules of the framework that launches them."""
    within: float
    """How much slower than the best they may be, relative; 0 keeps none."""
    plans: list[tuple[Complexity, ReplayedPlan]] = field(default_factory=list)
    """Complexities and plans, in no order."""

    def limit(self, best: float) -> float:
        """Return how long they may take beside a best replay [s]."""
        return best * (1.0 + self.within)

    def add(self, done: ReplayedPlan, best: float) -> None:
        """Keep a plan if no other is as simple and as fast."""
        if not self.within or not done.time <= self.limit(min(best, done.time)):
            return
        complexity = complexity_of(done.priced.plan, self.workload, self.rules)
        worth = complexity.key, done.time
        if any(k.key <= worth[0] and p.time <= worth[1] for k, p in self.plans):
            return
        self.plans = [
            (k, p) for k, p in self.plans if k.key < worth[0] or p.time < worth[1]
        ]
        self.plans.append((complexity, done))

    def least(self, best: float) -> tuple[Complexity, ReplayedPlan] | None:
        """Return the simplest that is fast enough beside a best replay, if any is."""
        near = [item for item in self.plans if item[1].time <= self.limit(best)]
        return min(near, key=lambda item: (item[0].key, item[1].time), default=None)


Left = tuple[float, Configuration | Leaves, int]
"""What a search has left: a bound [s], a configuration or the plans of a placement, and
the position of the first of those."""


class _Weighed(NamedTuple):
    """What may hold a simple plan."""

    key: tuple[int, ...]
    """No plan of it is simpler."""
    bound: float
    """No plan of it is faster [s]."""
    number: int
    """Number in the order of arrival, which decides between equals."""
    item: Configuration | Leaf
    """Configuration, or plan."""


def simpler_leaves(
    candidates: LaunchableCandidates, left: Iterable[Left], limit: float
) -> Iterator[tuple[tuple[int, ...], Leaf]]:
    """Yield plans whose bounds are within a limit, simplest first, with their keys.

    Parameters
    ----------
    candidates
        Where configurations are opened; at most `MOST_OPENED` of them.
    left
        What a search has left. It is not changed.
    limit
        Time of the slowest plan that is of interest [s].
    """
    numbers, opened = count(), 0
    waiting = list(_weighed(candidates, left, limit, numbers))
    heapq.heapify(waiting)
    while waiting:
        key, _, _, item = heapq.heappop(waiting)
        if isinstance(item, Leaf):
            yield key, item
        elif opened < MOST_OPENED:
            opened += 1
            if candidates.relaxed_bound(item, limit) <= limit:
                listed = ((0.0, leaves, 0) for leaves in candidates.leaves(item, limit))
                for entry in _weighed(candidates, listed, limit, numbers):
                    heapq.heappush(waiting, entry)


def _weighed(
    candidates: LaunchableCandidates,
    left: Iterable[Left],
    limit: float,
    numbers: Iterator[int],
) -> Iterator[_Weighed]:
    """Yield what is within a limit, by how simple it can be."""
    for bound, item, place in left:
        if isinstance(item, Leaves):
            for key, least, leaf in _near(candidates, item, place, limit):
                yield _Weighed(key, max(least, bound), next(numbers), leaf)
        elif bound <= limit:
            schedule = schedule_name(item.v, pairs=item.pairs)
            key = _of_sizes(item, schedule, candidates.rules).key
            yield _Weighed(key, bound, next(numbers), item)


def _near(
    candidates: LaunchableCandidates, leaves: Leaves, place: int, limit: float
) -> Iterator[tuple[tuple[int, ...], float, Leaf]]:
    """Yield keys, bounds and plans from one place on, as far as a limit allows."""
    end = int(np.searchsorted(leaves.bounds, limit, side="right"))
    if place >= end:
        return
    sizes, rules = leaves.configuration, candidates.rules
    schedule = leaves.schedule or schedule_name(sizes.v, pairs=sizes.pairs)
    whole = _of_sizes(sizes, schedule, rules)._replace(
        rank_order=int(not _is_usual(leaves.placement, sizes, rules))
    )
    uneven = _are_uneven(leaves.layouts, _blocks(candidates.workload)).tolist()
    keys: dict[tuple[int, bool], tuple[int, ...]] = {}
    for index in range(place, end):
        number, layout = leaves.numbers[index, :2].tolist()
        kind = number, uneven[layout]
        if kind not in keys:
            choice = leaves.choices[number]
            keys[kind] = whole._replace(
                layout=int(uneven[layout]),
                partial_sharding=int(choice.zero_stage > 0 and choice.sharding > 0),
                host_offload=int(choice.offload != NO_OFFLOAD),
                counted_recompute=int(choice.counting > 0),
            ).key
        yield keys[kind], float(leaves.bounds[index]), leaves.leaf(index)


def _is_usual(placement: Placement, sizes: Configuration, rules: LaunchRules) -> bool:
    """Tell whether ranks and nodes are in the order that the framework begins with."""
    usual = whole_dimensions(orders_of(rules, sizes)[0], extents_of(sizes))
    return placement.order is None and placement.steps == usual.steps
