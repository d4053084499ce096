"""``mcmc``: Metropolis walks over the space of the search, after FlexFlow and TopoOpt.

From a start, a walk proposes neighbours (`planner.baselines.mcmc_moves`). A plan that
is slower by the fraction ``x`` is accepted with probability ``exp(-alpha x)``; one that
does not fit in memory never is. Every `reset_span` steps the walk goes back to its
best. One walk for each seed; the best plans of all of them count.

FlexFlow compares milliseconds where this compares fractions, redraws the devices of an
operator where this redraws the placement, and has no account of memory. Its number of
replicas follows from the other sizes; here a move changes it, too, since fewer replicas
with full microbatches can be faster.

References
----------
.. [1] Jia et al., "Beyond Data and Model Parallelism" (FlexFlow), MLSys 2019, section
   6.2.
.. [2] Wang et al., "TopoOpt", NSDI 2023, section 4: budgets and independent runs.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

from planner.baselines.manual import manual_plans
from planner.baselines.mcmc_moves import propose
from planner.baselines.mcmc_state import State, Walkable
from planner.baselines.proposals import believed_time, priced_best_first
from planner.baselines.protocol import PlannerOutcome, PlannerSettings
from planner.candidates import CandidateSet
from planner.progress import Progress
from planner.search_spec import SearchSpec
from planner.shortfall import memory_shortfall
from planner.space import Configuration
from planner.work import STEP, LimitReachedError, Work, stopped_sentence
from planner.workload import Workload
from topologies import Network

MOST_STARTS = 1000
"""Draws of a start that fits before a walk gives up."""


def reset_span(budget: int) -> int:
    """Return after how many steps a walk goes back to its best: FlexFlow's rule."""
    return min(max(budget // 100, 1), 1000)


@dataclass(slots=True, kw_only=True)
class _Walks:
    """What all walks share."""

    space: Walkable
    settings: PlannerSettings
    work: Work
    start: State | None
    """Where all of them start; None for a random state each."""

    evaluations: int = 0
    best: dict[Configuration, tuple[float, State]] = field(default_factory=dict)
    """The best state of each configuration that was accepted."""

    def walk(self, seed: int) -> float:
        """Walk, and return the best iteration time; infinite without a start [s].

        A walk that a limit ends returns the best that it came through.
        """
        rng = Random(seed)
        best_time = math.inf
        try:
            for time in self._times(rng):
                best_time = time
        except LimitReachedError:
            pass
        return best_time

    def _times(self, rng: Random) -> Iterator[float]:
        """Walk, and yield the best iteration time after each step [s].

        Raises
        ------
        LimitReachedError
            If the work is spent.
        """
        now = self._start(rng)
        if now is None:
            return
        time = self._accept(now, self.space.value(now))
        best, best_time = now, time
        yield best_time
        span = reset_span(self.settings.budget)
        for step in range(1, self.settings.budget + 1):
            self.work.spend(STEP)
            limit = self._limit(time, rng)
            found = self._step(now, limit, rng)
            if found is not None:
                now, time = found
            if time < best_time:
                best, best_time = now, time
            if step % span == 0:
                now, time = best, best_time
            yield best_time

    def _limit(self, time: float, rng: Random) -> float:
        """Draw how slow a state may be to be accepted [s]."""
        # exp(-alpha (T - time) / time) >= u, solved for T; u in (0, 1].
        return time * (1.0 - math.log(1.0 - rng.random()) / self.settings.alpha)

    def _step(
        self, now: State, limit: float, rng: Random
    ) -> tuple[State, float] | None:
        """Return a proposal if it is accepted."""
        proposed = propose(self.space, now, rng)
        if proposed is None:
            return None
        if proposed.configuration != now.configuration:
            # What no placement can make fast enough need not be placed.
            if self.space.floor(proposed.configuration, proposed.bounds) > limit:
                return None
            proposed = self.space.settled(*proposed)
        elif proposed.placement != now.placement:
            proposed = self._offered(proposed)
        if proposed is None:
            return None
        value = self.space.value(proposed)
        self.evaluations += 1
        if value > limit or math.isinf(value):
            return None
        return proposed, self._accept(proposed, value)

    def _offered(self, state: State) -> State | None:
        """Return the state if its placement offers the choices, settled if not."""
        known = self.space.chain(state).number
        if all(choice in known for choice in state.choices):
            return state
        return self.space.settled(*state)

    def _accept(self, state: State, value: float) -> float:
        """Remember a state if it is the best of its configuration; return its time."""
        self.work.a_plan()
        known = self.best.get(state.configuration)
        if known is None or value < known[0]:
            self.best[state.configuration] = value, state
        return value

    def _start(self, rng: Random) -> State | None:
        if self.start is not None:
            return self.start
        for _ in range(MOST_STARTS):
            self.work.spend(STEP)
            drawn = self.space.random(rng)
            if drawn is not None:
                return drawn
        return None


@dataclass(frozen=True, slots=True)
class Mcmc:
    """Walks at random and accepts what is faster, and some of what is not."""

    name: str = "mcmc"

    sees: str = "Every link and route, through the price of each placement."

    def find(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        settings: PlannerSettings,
        *,
        progress: Progress | None = None,
    ) -> PlannerOutcome:
        """Return the k best plans that the walks came through."""
        work = settings.allowance(spec)
        candidates = CandidateSet.enumerate(
            network, workload, spec, work=work, progress=progress
        )
        space = Walkable.of(candidates)
        walks = _Walks(space=space, settings=settings, work=work, start=None)
        spread: list[float] = []
        if len(candidates):
            with suppress(LimitReachedError):
                walks.start = _first(space, settings, work)
            for number, seed in enumerate(settings.seeds):
                if progress is not None:
                    done = number / len(settings.seeds)
                    progress(f"mcmc: walk {number + 1} of {len(settings.seeds)}", done)
                spread.append(walks.walk(seed))
        spent = work.total()
        # What was found is written out, whatever is left.
        writing = Walkable.of(replace(candidates, work=Work()))
        plans = priced_best_first(
            network, workload, (writing.plan(one) for one in _best(walks, spec))
        )
        return PlannerOutcome(
            planner=self.name,
            plans=plans,
            belief=believed_time(plans),
            sees=self.sees,
            spent=spent,
            search_time=work.elapsed,
            evaluations=walks.evaluations,
            why_not="" if plans else _why_not(candidates, walks),
            spread=tuple(spread),
        )


def _first(space: Walkable, settings: PlannerSettings, work: Work) -> State | None:
    """Return the state that all walks start from; None for random ones."""
    candidates = space.prices.candidates
    if settings.init == "manual":
        network, workload = candidates.network, candidates.workload
        # Its first plan is not the walks' first: their limits count from that on.
        recipe = Work(limit=work.limit)
        plans = manual_plans(network, workload, candidates.spec, recipe)
        work.count(recipe.spent)
        states = (space.state_of(plan) for plan in plans)
        return next((state for state in states if state is not None), None)
    if settings.init == "dp":
        return _data_parallel(space)
    return None


def _data_parallel(space: Walkable) -> State | None:
    """Return data parallelism alone, the smallest of all other sizes, if that fits."""
    sizes = space.index.sizes
    b, v = sizes["b"][0], sizes["v"][0]
    tp, cp, ep = sizes["tp"][0], sizes["cp"][0], sizes["ep"][0]
    stages = space.index.stages(tp, cp, ep, b, v)
    if not stages:
        return None
    configuration = Configuration(tp, cp, ep, b, v, stages[0], 1)
    dp = space.index.replicas(configuration)[-1]
    configuration = configuration._replace(dp=dp)
    return space.settled(configuration, 0, space.uniform(configuration), ())


def _best(walks: _Walks, spec: SearchSpec) -> list[State]:
    """Return the best states of the k best configurations."""
    ranked = sorted(
        walks.best.values(), key=lambda found: (found[0], found[1].configuration)
    )
    return [state for _, state in ranked[: spec.keep_best]]


def _why_not(candidates: CandidateSet, walks: _Walks) -> str:
    """Say why no walk found a state that fits."""
    spent = walks.work.total()
    if spent.is_stopped:
        return stopped_sentence(spent, f"{walks.evaluations:,} plans")
    if not len(candidates):
        return memory_shortfall(candidates)
    return (
        f"Memory: no start that fits in {MOST_STARTS} draws for each of "
        f"{len(walks.settings.seeds)} seeds. {memory_shortfall(candidates)}"
    )
