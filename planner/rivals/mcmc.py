"""``mcmc``: Metropolis walks over the space of the search, after FlexFlow and TopoOpt.

From a start, a walk proposes neighbours. A plan that is slower by the fraction ``x`` is
accepted with probability ``exp(-alpha x)``; one that does not fit in memory never is.
Every `reset_span` steps the walk goes back to its best. One walk for each seed; the
best plans of all of them count.

A neighbour is made by a move, which returns another state, or None where the space has
none of the kind. Megatron's sequence parallelism has no move: the space has it on
wherever the tensor-parallel size exceeds 1, or off.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import Any

from planner.cost.choices import MemoryChoice, goes_with
from planner.rivals.launched import Launcher
from planner.rivals.manual import manual_plans
from planner.rivals.mcmc_state import Walkable, WalkState
from planner.rivals.protocol import (
    Planner,
    PlannerOutcome,
    PlannerSettings,
    PlanRequest,
    believed_time,
    priced_best_first,
)
from planner.search.candidates import CandidateSet
from planner.search.space import Configuration, SearchSpec
from planner.search.thriftiest import space_infeasibility
from planner.work import STEP, LimitReachedError, Work, stopped_sentence

Move = Callable[[Walkable, WalkState, Random], WalkState | None]

KEEP_GOING = 0.75
"""Probability of propagation to go on to the next stage, as in FlexFlow."""

PROPAGATION = 0.25
"""Probability of a propagation move, as in FlexFlow."""

ANY_NESTING = 0.25
"""Probability that a move to other sizes draws the placement, too."""

ANY_CHOICE = 0.5
"""Probability that a move to other sizes draws one choice for all stages, too: what was
the best for some sizes is not for others."""


def propose(space: Walkable, state: WalkState, rng: Random) -> WalkState | None:
    """Propagate a stage's choice, or do one of `MOVES`, all alike likely."""
    if rng.random() < PROPAGATION:
        return _propagate(space, state, rng)
    return rng.choice(_ALL)(space, state, rng)


def _redraw(size: str) -> Move:
    """Return the move that draws one of the sizes of layer tables."""

    def move(space: Walkable, state: WalkState, rng: Random) -> WalkState | None:
        old = getattr(state.configuration, size)
        others = [value for value in space.index.sizes[size] if value != old]
        if not others:
            return None
        drawn: dict[str, Any] = {size: rng.choice(others)}
        changed = space.index.regrouped(state.configuration._replace(**drawn))
        return _resize(space, state, changed, rng)

    return move


def _step_micro_batch(
    space: Walkable, state: WalkState, rng: Random
) -> WalkState | None:
    """Take the next larger or smaller micro-batch size."""
    sizes = space.index.sizes["b"]
    place = sizes.index(state.configuration.b) + rng.choice((-1, 1))
    if not 0 <= place < len(sizes):
        return None
    changed = state.configuration._replace(b=sizes[place])
    return _resize(space, state, changed, rng)


def _step_stages(space: Walkable, state: WalkState, rng: Random) -> WalkState | None:
    """Double or halve the number of stages, or change it by one; split anew."""
    pp = state.configuration.pp
    num_stages = rng.choice((2 * pp, pp // 2, pp - 1, pp + 1))
    return _resize(space, state, state.configuration._replace(pp=num_stages), rng)


def _redraw_replicas(
    space: Walkable, state: WalkState, rng: Random
) -> WalkState | None:
    """Draw the number of replicas; fewer may leave devices idle."""
    others = space.index.replicas(state.configuration)
    dp = rng.choice(others)
    if dp == state.configuration.dp:
        return None
    changed = state.configuration._replace(dp=dp)
    return _move_to(space, state, changed, state.bounds, rng)


def _resize(
    space: Walkable, state: WalkState, changed: Configuration, rng: Random
) -> WalkState | None:
    """Return a state of other sizes with as many replicas as these allow."""
    replicas = space.index.replicas(changed)
    if not replicas:
        return None
    changed = changed._replace(dp=replicas[-1])
    old = state.configuration
    same = (changed.pp, changed.v) == (old.pp, old.v)
    bounds = state.bounds if same else space.split(changed, rng)
    return _move_to(space, state, changed, bounds, rng)


def _move_to(
    space: Walkable,
    state: WalkState,
    changed: Configuration,
    bounds: tuple[int, ...],
    rng: Random,
) -> WalkState:
    """Return a state of other sizes, its choices still to be settled."""
    if rng.random() < ANY_NESTING:
        number = rng.randrange(len(space.placements(changed)))
    else:
        number = space.like(state, changed)
    choices = state.choices
    if rng.random() < ANY_CHOICE:
        choices = (rng.choice(space.choices(changed)),)
    choices += choices[-1:] * (changed.pp - len(choices))
    return WalkState(changed, number, bounds, choices[: changed.pp])


def _change_two_sizes(
    space: Walkable, state: WalkState, rng: Random
) -> WalkState | None:
    """Change two sizes at once: what one of them needs, the other may give up."""
    now: WalkState | None = state
    for move in rng.sample(_SIZES, 2):
        now = None if now is None else move(space, now, rng)
    return now


def _redraw_configuration(
    space: Walkable, state: WalkState, rng: Random
) -> WalkState | None:
    """Draw all sizes anew, as FlexFlow draws the whole configuration of an operator."""
    candidates = space.prices.candidates
    drawn = candidates[rng.randrange(len(candidates))]
    return _move_to(space, state, drawn, space.split(drawn, rng), rng)


def _move_layer(_: Walkable, state: WalkState, rng: Random) -> WalkState | None:
    """Move one layer over a random boundary."""
    p = state.configuration.pp
    if p == 1:
        return None
    cut, bounds = rng.randrange(1, p), list(state.bounds)
    bounds[cut] += rng.choice((-1, 1))
    if not bounds[cut - 1] < bounds[cut] < bounds[cut + 1]:
        return None
    return state._replace(bounds=tuple(bounds))


def _redraw_placement(
    space: Walkable, state: WalkState, rng: Random
) -> WalkState | None:
    """Nest the dimensions in another way: stages and replicas swap devices."""
    number = rng.randrange(len(space.placements(state.configuration)))
    return None if number == state.placement else state._replace(placement=number)


def _redraw_recompute(
    space: Walkable, state: WalkState, rng: Random
) -> WalkState | None:
    """Draw the recompute mode of a stage, or what its hosts keep, if there is more."""
    stage = rng.randrange(state.configuration.pp)
    choices, old = space.chain(state).choices, state.choices[stage]
    offloads = sorted({choice.offload for choice in choices})
    if len(offloads) > 1 and rng.random() < 0.5:
        drawn = old._replace(offload=rng.choice(offloads))
    else:
        modes = sorted({choice.recompute for choice in choices})
        drawn = old._replace(recompute=rng.choice(modes))
    if not goes_with(drawn.recompute, drawn.offload):
        return None
    return _with_choice(state, stage, drawn)


def _step_zero(space: Walkable, state: WalkState, rng: Random) -> WalkState | None:
    """Take the next higher or lower ZeRO stage that is allowed."""
    stage = rng.randrange(state.configuration.pp)
    stages = sorted({choice.zero_stage for choice in space.chain(state).choices})
    old = state.choices[stage]
    place = stages.index(old.zero_stage) + rng.choice((-1, 1))
    if not 0 <= place < len(stages):
        return None
    zero = stages[place]
    sharding = old.sharding if zero else 0
    return _with_choice(state, stage, old._replace(zero_stage=zero, sharding=sharding))


def _redraw_sharding(
    space: Walkable, state: WalkState, rng: Random
) -> WalkState | None:
    """Draw the group that shares a stage's shards."""
    stage = rng.randrange(state.configuration.pp)
    old = state.choices[stage]
    options = len(space.chain(state).rates.shardings)
    if old.zero_stage == 0 or options == 1:
        return None
    return _with_choice(state, stage, old._replace(sharding=rng.randrange(options)))


def _with_choice(
    state: WalkState, stage: int, choice: MemoryChoice
) -> WalkState | None:
    if state.choices[stage] == choice:
        return None
    choices = (*state.choices[:stage], choice, *state.choices[stage + 1 :])
    return state._replace(choices=choices)


def _propagate(_: Walkable, state: WalkState, rng: Random) -> WalkState | None:
    """Copy a stage's choice onto its neighbours, one after another."""
    p = state.configuration.pp
    stage, step = rng.randrange(p), rng.choice((-1, 1))
    choices = list(state.choices)
    while 0 <= stage + step < p:
        choices[stage + step] = choices[stage]
        stage += step
        if rng.random() >= KEEP_GOING:
            break
    changed = tuple(choices)
    return None if changed == state.choices else state._replace(choices=changed)


_SIZES = (
    _redraw("tp"),
    _redraw("ep"),
    _redraw("cp"),
    _redraw("v"),
    _step_micro_batch,
    _step_stages,
    _redraw_replicas,
)

MOVES: Mapping[str, Move] = MappingProxyType(
    {
        "tensor-parallel size": _redraw("tp"),
        "expert-parallel size": _redraw("ep"),
        "context-parallel size": _redraw("cp"),
        "virtual stages": _redraw("v"),
        "micro-batch size": _step_micro_batch,
        "stages": _step_stages,
        "replicas": _redraw_replicas,
        "two sizes": _change_two_sizes,
        "all sizes": _redraw_configuration,
        "a layer": _move_layer,
        "placement": _redraw_placement,
        "recompute": _redraw_recompute,
        "ZeRO": _step_zero,
        "sharding": _redraw_sharding,
    }
)
"""What is changed -> the move that does it."""

_ALL = tuple(MOVES.values())


MOST_STARTS = 1000
"""Draws of a start that fits before a walk gives up."""


def reset_span(budget: int) -> int:
    """Return after how many steps a walk goes back to its best: FlexFlow's rule."""
    return min(max(budget // 100, 1), 1000)


@dataclass(slots=True, kw_only=True)
class _Walks:
    """What all walks share."""

    space: Walkable
    """Space that is walked in."""
    settings: PlannerSettings
    """Settings of the planner."""
    work: Work
    """Work that the walks are counted on."""
    start: WalkState | None
    """State where all walks start; None for a random state each."""

    evaluations: int = 0
    """Number of states that were priced."""
    best: dict[Configuration, tuple[float, WalkState]] = field(default_factory=dict)
    """Configuration -> its best state that was accepted, and that state's price [s]."""

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
            accepted = self._step(now, limit, rng)
            if accepted is not None:
                now, time = accepted
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
        self, now: WalkState, limit: float, rng: Random
    ) -> tuple[WalkState, float] | None:
        """Return a proposal if it is accepted."""
        proposed = propose(self.space, now, rng)
        if proposed is not None:
            proposed = self.space.launched(proposed, now)
        if proposed is None:
            return None
        if proposed.configuration != now.configuration:
            # What no placement can make fast enough need not be placed.
            if self.space.floor(proposed.configuration, proposed.bounds) > limit:
                return None
            proposed = self._settled(proposed)
        elif proposed.placement != now.placement:
            proposed = self._offered(proposed)
        if proposed is None:
            return None
        value = self.space.value(proposed)
        self.evaluations += 1
        if value > limit or math.isinf(value) or not self.space.keeps_rules(proposed):
            return None
        return proposed, self._accept(proposed, value)

    def _offered(self, state: WalkState) -> WalkState | None:
        """Return the state if its placement offers the choices, settled if not."""
        known = self.space.chain(state).number
        if all(choice in known for choice in state.choices):
            return state
        return self._settled(state)

    def _settled(self, state: WalkState) -> WalkState | None:
        """Return a state whose choices fit, as the framework would have it."""
        settled = self.space.settled(*state)
        return None if settled is None else self.space.launched(settled, state)

    def _accept(self, state: WalkState, value: float) -> float:
        """Remember a state if it is the best of its configuration; return its time."""
        self.work.note_plan()
        known = self.best.get(state.configuration)
        if known is None or value < known[0]:
            self.best[state.configuration] = value, state
        return value

    def _start(self, rng: Random) -> WalkState | None:
        if self.start is not None:
            return self.start
        for _ in range(MOST_STARTS):
            self.work.spend(STEP)
            drawn = self.space.random(rng)
            if drawn is not None:
                drawn = self.space.launched(drawn, drawn)
            if drawn is not None and self._is_possible(drawn):
                return drawn
        return None

    def _is_possible(self, state: WalkState) -> bool:
        """Tell whether a state fits and can be launched; all that is drawn if free."""
        if self.space.launcher is None:
            return True
        return math.isfinite(self.space.value(state)) and self.space.keeps_rules(state)


class Mcmc(Planner):
    """Walks at random and accepts what is faster, and some of what is not."""

    name = "mcmc"
    sees = "Every link and route, through the price of each placement."

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the k best plans that the walks came through."""
        settings, work = request.settings, request.work
        launcher = Launcher.of(*request.problem)
        candidates = launcher.candidates(work, request.progress)
        space = Walkable.of(candidates, launcher)
        walks = _Walks(space=space, settings=settings, work=work, start=None)
        spread: list[float] = []
        if len(candidates):
            with suppress(LimitReachedError):
                walks.start = _start_state(space, settings, work)
            for number, seed in enumerate(settings.seeds):
                total = len(settings.seeds)
                request.report(f"mcmc: walk {number + 1} of {total}", number / total)
                spread.append(walks.walk(seed))
        spent = work.total()
        # What was found is written out, whatever is left.
        writing = Walkable.of(replace(candidates, work=Work()), launcher)
        written = [writing.plan(state) for state in _best(walks, request.spec)]
        if space.launcher is not None:
            # With a schedule of the framework's own a plan may need more memory.
            written = [plan for plan in written if launcher.takes(plan)]
        plans = priced_best_first(request.network, request.workload, written)
        return PlannerOutcome(
            plans=plans,
            belief=believed_time(plans),
            spent=spent,
            evaluations=walks.evaluations,
            why_not="" if plans else _why_not(candidates, walks),
            spread=tuple(spread),
        )


def _start_state(
    space: Walkable, settings: PlannerSettings, work: Work
) -> WalkState | None:
    """Return the state that all walks start from; None for random ones."""
    candidates = space.prices.candidates
    if settings.init == "manual":
        network, workload = candidates.network, candidates.workload
        # Its first plan is not the walks' first: their limits count from that on.
        recipe = Work(limit=work.limit)
        plans = manual_plans(network, workload, candidates.spec, recipe)
        work.count(recipe.spent)
        states = (space.state_of(plan) for plan in plans)
        return next(
            (
                state
                for state in states
                if state is not None and space.keeps_rules(state)
            ),
            None,
        )
    if settings.init == "dp":
        start = _data_parallel(space)
        return start if start is not None and space.keeps_rules(start) else None
    return None


def _data_parallel(space: Walkable) -> WalkState | None:
    """Return data parallelism alone, the smallest of all other sizes, if that fits."""
    sizes = space.index.sizes
    b, v = sizes["b"][0], sizes["v"][0]
    tp, cp, ep = sizes["tp"][0], sizes["cp"][0], sizes["ep"][0]
    stages = space.index.stages(tp, cp, ep, b, v)
    if not stages:
        return None
    configuration = Configuration(tp, cp, ep, b, v, stages[0], 1)
    configuration = space.index.regrouped(configuration)
    dp = space.index.replicas(configuration)[-1]
    configuration = configuration._replace(dp=dp)
    return space.settled(configuration, 0, space.uniform(configuration), ())


def _best(walks: _Walks, spec: SearchSpec) -> list[WalkState]:
    """Return the best states of the k best configurations."""
    ranked = sorted(walks.best.values(), key=lambda pair: (pair[0], pair[1][0]))
    return [state for _, state in ranked[: spec.keep_best]]


def _why_not(candidates: CandidateSet, walks: _Walks) -> str:
    """Say why no walk found a state that fits."""
    spent = walks.work.total()
    if spent.is_stopped:
        return stopped_sentence(spent, f"{walks.evaluations:,} plans")
    if not len(candidates):
        return space_infeasibility(candidates)
    fits = "fits" if walks.space.launcher is None else "fits and can be launched"
    return (
        f"Memory: no start that {fits} in {MOST_STARTS} draws for each of "
        f"{len(walks.settings.seeds)} seeds. {space_infeasibility(candidates)}"
    )
