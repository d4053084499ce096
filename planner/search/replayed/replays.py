"""What judges plans, what a replay costs the search, and the best plans so far.

Alternatives differ in what a user decides first (`Alternative`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from planner.cost.objective import PricedPlan
from planner.search.replayed.trail import ProofTrail
from planner.search.space import Configuration, configuration_of
from planner.step.plan import Plan
from planner.work import PLAN, Progress
from topologies.arrays import FloatArray

REPLAY = 25_000
"""Units of work of a replay, before its passes are counted."""

REPLAYED_PASSES = 15
"""Units of work of each pass of a replayed plan's stages."""

OTHER_LAYOUTS = "other layouts replayed"
"""Key in the statistics of replays of layouts beyond those that are listed."""

OTHER_COPIES = "second copies replayed"
"""Key in the statistics of replays of plans with second copies of weights."""

SLACK = 1.25
"""Factor on the best replay up to which bounds are worked out in full: plans beyond it
are not even alternatives."""


class Judge(Protocol):
    """Replays a plan."""

    def __call__(self, priced: PricedPlan, cutoff: float) -> float:
        """Return its replayed iteration time, infinity if it does not fit [s].

        Of its price only what passes and collectives cost need be there; the planned
        times may be NaN. Any number from ``cutoff`` on may stand for a longer time.
        """


def no_transfers(plan: Plan) -> FloatArray | None:  # noqa: ARG001
    """Know nothing of what transfers of a plan share."""
    return None


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

    ordinary: Callable[[], Sequence[PricedPlan]] = tuple
    """Makes plans that are replayed before all else, those of them that can be
    launched."""

    trail: ProofTrail | None = None
    """What is to be filled for a certificate; None where nobody asks for one."""

    simplest_within: float = 0.0
    """How much slower than the best, relative, simpler plans that are looked for may
    be; 0 to look for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedPlan:
    """A plan that was replayed."""

    time: float
    """Replayed iteration time [s]."""

    priced: PricedPlan
    """Plan with its price."""


class Alternative(NamedTuple):
    """What alternatives differ in: plans that are alike in it are twins."""

    tp: int
    """Tensor-parallel size."""
    pp: int
    """Pipeline stages."""
    ep: int
    """Expert-parallel size."""
    cp: int
    """Context-parallel size."""
    recompute: str
    """Recompute mode of all stages, ``"mixed"`` if they differ."""

    @classmethod
    def of(cls, plan: Plan) -> "Alternative":
        """Return what tells a plan from its alternatives."""
        tp, cp, ep, _, pp = plan.parallel.sizes()
        modes = {stage.recompute for stage in plan.stages}
        return cls(tp, pp, ep, cp, modes.pop() if len(modes) == 1 else "mixed")


@dataclass(slots=True, kw_only=True)
class BestReplayed:
    """The fastest replay of each of the best alternatives.

    Of equally fast plans the one of the smaller configuration.
    """

    keep: int
    """Most alternatives that are kept."""
    fastest: dict[Alternative, ReplayedPlan] = field(default_factory=dict)
    """Alternative -> its fastest plan."""

    @property
    def time(self) -> float:
        """Replayed time of the fastest plan, infinite if there is none [s]."""
        return min((plan.time for plan in self.fastest.values()), default=np.inf)

    def cutoff(self, plan: Plan) -> float:
        """Return from where on a plan's replay is not kept [s].

        Beyond its faster twin, or beyond the slowest of as many as are kept.
        """
        known = self.fastest.get(Alternative.of(plan))
        if known is not None:
            return float(np.nextafter(known.time, np.inf))
        if len(self.fastest) < self.keep:
            return np.inf
        return max(plan.time for plan in self.fastest.values())

    def add(self, plan: ReplayedPlan) -> None:
        """Keep a plan if it is among the best."""
        alternative = Alternative.of(plan.priced.plan)
        known = self.fastest.get(alternative)
        if known is None or _order(plan) < _order(known):
            self.fastest[alternative] = plan
        if len(self.fastest) > self.keep:
            del self.fastest[max(self.fastest, key=lambda a: _order(self.fastest[a]))]

    def ranked(self, *others: "BestReplayed") -> tuple[ReplayedPlan, ...]:
        """Return these and faster ones of others, best first.

        Ties: others last, then by configuration.
        """
        every = [(False, plan) for plan in self.fastest.values()]
        every += [(True, p) for other in others for p in other.fastest.values()]
        every.sort(key=lambda item: (item[1].time, item[0], _order(item[1])))
        merged: dict[Alternative, ReplayedPlan] = {}
        for _, plan in every:
            merged.setdefault(Alternative.of(plan.priced.plan), plan)
        return tuple(merged.values())[: self.keep]


def _order(plan: ReplayedPlan) -> tuple[float, Configuration]:
    return plan.time, configuration_of(plan.priced.plan)


@dataclass(slots=True, kw_only=True)
class SearchProgress:
    """Says beside what is done how good the best plan so far is."""

    show: Progress | None
    """Takes what is said; None for nobody."""
    best: float = np.inf
    """Fastest replay so far, infinite if there is none [s]."""
    bound: float = 0.0
    """No plan that is left is faster, 0 while nothing is known [s]."""

    def __call__(self, doing: str, share: float | None) -> None:
        """Say what is done, and the share of it that is done."""
        if self.show is not None:
            self.show(f"search: {self._words}; {doing.removeprefix('search: ')}", share)

    @property
    def _words(self) -> str:
        least, has_plan = min(self.bound, self.best), bool(np.isfinite(self.best))
        words = f"best {self.best:.4g} s" if has_plan else "no plan that fits yet"
        if not 0.0 < least < np.inf:
            return words
        words += f", none below {least:.4g} s"
        return (
            f"{words}: proven to {self.best / least - 1.0:.1%}" if has_plan else words
        )


def replay_work(plan: Plan) -> int:
    """Return the units of work of a plan and its replay."""
    passes = 2 * len(plan.stages) * plan.num_microbatches
    passes *= plan.virtual_pipeline_model_parallel_size
    return PLAN + REPLAY + REPLAYED_PASSES * passes
