"""What judges plans, what a replay costs the search, and the best plans so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from planner.cost.objective import PricedPlan
from planner.search.space import Configuration
from planner.step.plan import Plan
from planner.work import PLAN
from topologies.arrays import FloatArray

REPLAY = 25_000
"""Units of work of a replay, before its passes are counted."""

REPLAYED_PASSES = 15
"""Units of work of each pass of a replayed plan's stages."""

SLACK = 1.25
"""Factor on the best replay up to which bounds are worked out in full: plans beyond it
are not even alternatives."""


class Judge(Protocol):
    """Replays a plan."""

    def __call__(self, priced: PricedPlan, cutoff: float) -> float:
        """Return its replayed iteration time, infinity if it does not fit [s].

        Any number from ``cutoff`` on may stand for a time that is longer.
        """


def no_transfers(plan: Plan) -> FloatArray | None:
    """Know nothing of what transfers of a plan share."""
    del plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """How plans are judged."""

    judge: Judge
    """Replays a plan."""

    by_layer: bool = False
    """Whether it sends the collectives inside of layers over the links."""

    starts: tuple[Plan, ...] = ()
    """Plans to begin with: the answer is no slower than any of them that fits."""

    transfers: Callable[[Plan], FloatArray | None] = no_transfers
    """Returns latency [s] and inverse bandwidth [s/byte] of activations and gradients
    over the boundary after each stage, no more than in the plan's replay, by replica,
    shape ``(d, p, 2, 2)``; the same for all layouts, microbatches and recompute. None
    if it knows no more than what each takes alone."""

    ordinary: Callable[[], Sequence[Plan]] = tuple
    """Makes plans that are replayed before all else, those of them that can be
    launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedPlan:
    """A plan that was replayed."""

    time: float
    """Replayed iteration time [s]."""

    priced: PricedPlan
    """Plan with its price."""


@dataclass(slots=True, kw_only=True)
class BestReplayed:
    """The fastest replay of each of the best configurations."""

    keep: int
    """Most configurations that are kept."""
    fastest: dict[Configuration, ReplayedPlan] = field(default_factory=dict)
    """Configuration -> its fastest plan."""

    @property
    def time(self) -> float:
        """Replayed time of the fastest plan, infinite if there is none [s]."""
        return min((plan.time for plan in self.fastest.values()), default=np.inf)

    @property
    def cutoff(self) -> float:
        """Replays from here on are not kept [s]."""
        if len(self.fastest) < self.keep:
            return np.inf
        return max(plan.time for plan in self.fastest.values())

    def add(self, configuration: Configuration, plan: ReplayedPlan) -> None:
        """Keep a plan if it is among the best."""
        known = self.fastest.get(configuration)
        if known is None or plan.time < known.time:
            self.fastest[configuration] = plan
        if len(self.fastest) > self.keep:
            slowest = max(self.fastest, key=lambda c: (self.fastest[c].time, c))
            del self.fastest[slowest]

    def ranked(self, *others: "BestReplayed") -> tuple[ReplayedPlan, ...]:
        """Return these and faster ones of others, best first.

        Ties: others last, then by configuration.
        """
        merged: dict[
            Configuration, tuple[float, bool, Configuration, ReplayedPlan]
        ] = {}
        for other in others:
            for configuration, plan in other.fastest.items():
                if plan.time < merged.get(configuration, (np.inf,))[0]:
                    merged[configuration] = plan.time, True, configuration, plan
        for configuration, plan in self.fastest.items():
            if plan.time <= merged.get(configuration, (np.inf,))[0]:
                merged[configuration] = plan.time, False, configuration, plan
        order = sorted(merged.values(), key=lambda item: item[:3])
        return tuple(plan for *_, plan in order[: self.keep])


def replay_work(plan: Plan) -> int:
    """Return the units of work of a plan and its replay."""
    passes = 2 * len(plan.stages) * plan.num_microbatches
    passes *= plan.virtual_pipeline_model_parallel_size
    return PLAN + REPLAY + REPLAYED_PASSES * passes
