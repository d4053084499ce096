"""Proposals of a Metropolis walk: each changes a state a little.

A move returns another state, or None where the space has none of the kind. It may lead
to a state that does not fit in memory, which the walk rejects. Megatron's sequence
parallelism has no move: the space has it on wherever the tensor-parallel size exceeds
1, or off.
"""

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType

from planner.baselines.mcmc_state import State, Walkable
from planner.class_table import Choice
from planner.space import Configuration

Move = Callable[[Walkable, State, Random], State | None]

KEEP_GOING = 0.75
"""Probability of propagation to go on to the next stage, as in FlexFlow."""

PROPAGATION = 0.25
"""Probability of a propagation move, as in FlexFlow."""

ANY_NESTING = 0.25
"""Probability that a move to other sizes draws the placement, too."""

ANY_CHOICE = 0.5
"""Probability that it draws one choice for all stages, too: what was the best for some
sizes is not for others."""


def propose(space: Walkable, state: State, rng: Random) -> State | None:
    """Propagate a stage's choice, or do one of `MOVES`, all alike likely."""
    if rng.random() < PROPAGATION:
        return _propagate(space, state, rng)
    return rng.choice(_ALL)(space, state, rng)


def _redraw(size: str) -> Move:
    """Return the move that draws one of the sizes of layer tables."""

    def move(space: Walkable, state: State, rng: Random) -> State | None:
        old = getattr(state.configuration, size)
        others = [value for value in space.index.sizes[size] if value != old]
        if not others:
            return None
        changed = state.configuration._replace(**{size: rng.choice(others)})
        return _resized(space, state, changed, rng)

    return move


def _step_micro_batch(space: Walkable, state: State, rng: Random) -> State | None:
    """Take the next larger or smaller micro-batch size."""
    sizes = space.index.sizes["b"]
    place = sizes.index(state.configuration.b) + rng.choice((-1, 1))
    if not 0 <= place < len(sizes):
        return None
    changed = state.configuration._replace(b=sizes[place])
    return _resized(space, state, changed, rng)


def _step_stages(space: Walkable, state: State, rng: Random) -> State | None:
    """Double or halve the number of stages, or change it by one; split anew."""
    pp = state.configuration.pp
    wanted = rng.choice((2 * pp, pp // 2, pp - 1, pp + 1))
    return _resized(space, state, state.configuration._replace(pp=wanted), rng)


def _redraw_replicas(space: Walkable, state: State, rng: Random) -> State | None:
    """Draw the number of replicas; fewer may leave devices idle."""
    others = space.index.replicas(state.configuration)
    dp = rng.choice(others)
    if dp == state.configuration.dp:
        return None
    changed = state.configuration._replace(dp=dp)
    return _moved(space, state, changed, state.bounds, rng)


def _resized(
    space: Walkable, state: State, changed: Configuration, rng: Random
) -> State | None:
    """Return a state of other sizes with as many replicas as these allow."""
    replicas = space.index.replicas(changed)
    if not replicas:
        return None
    changed = changed._replace(dp=replicas[-1])
    old = state.configuration
    same = (changed.pp, changed.v) == (old.pp, old.v)
    bounds = state.bounds if same else space.split(changed, rng)
    return _moved(space, state, changed, bounds, rng)


def _moved(
    space: Walkable,
    state: State,
    changed: Configuration,
    bounds: tuple[int, ...],
    rng: Random,
) -> State:
    """Return a state of other sizes, its choices still to be settled."""
    if rng.random() < ANY_NESTING:
        number = rng.randrange(len(space.placements(changed)))
    else:
        number = space.like(state, changed)
    wanted = state.choices
    if rng.random() < ANY_CHOICE:
        wanted = (rng.choice(space.choices(changed)),)
    wanted += wanted[-1:] * (changed.pp - len(wanted))
    return State(changed, number, bounds, wanted[: changed.pp])


def _change_two_sizes(space: Walkable, state: State, rng: Random) -> State | None:
    """Change two sizes at once: what one of them needs, the other may give up."""
    now: State | None = state
    for move in rng.sample(_SIZES, 2):
        now = None if now is None else move(space, now, rng)
    return now


def _redraw_configuration(space: Walkable, state: State, rng: Random) -> State | None:
    """Draw all sizes anew, as FlexFlow draws the whole configuration of an operator."""
    candidates = space.prices.candidates
    drawn = candidates[rng.randrange(len(candidates))]
    return _moved(space, state, drawn, space.split(drawn, rng), rng)


def _move_layer(_: Walkable, state: State, rng: Random) -> State | None:
    """Move one layer over a random boundary."""
    p = state.configuration.pp
    if p == 1:
        return None
    cut, bounds = rng.randrange(1, p), list(state.bounds)
    bounds[cut] += rng.choice((-1, 1))
    if not bounds[cut - 1] < bounds[cut] < bounds[cut + 1]:
        return None
    return state._replace(bounds=tuple(bounds))


def _redraw_placement(space: Walkable, state: State, rng: Random) -> State | None:
    """Nest the dimensions in another way: stages and replicas swap devices."""
    number = rng.randrange(len(space.placements(state.configuration)))
    return None if number == state.placement else state._replace(placement=number)


def _redraw_recompute(space: Walkable, state: State, rng: Random) -> State | None:
    """Draw the recompute mode of a stage."""
    stage = rng.randrange(state.configuration.pp)
    modes = sorted({choice.recompute for choice in space.chain(state).choices})
    drawn = state.choices[stage]._replace(recompute=rng.choice(modes))
    return _with_choice(state, stage, drawn)


def _step_zero(space: Walkable, state: State, rng: Random) -> State | None:
    """Take the next higher or lower ZeRO stage that is allowed."""
    stage = rng.randrange(state.configuration.pp)
    stages = sorted({choice.zero_stage for choice in space.chain(state).choices})
    old = state.choices[stage]
    place = stages.index(old.zero_stage) + rng.choice((-1, 1))
    if not 0 <= place < len(stages):
        return None
    zero = stages[place]
    sharding = old.sharding if zero else 0
    return _with_choice(state, stage, Choice(old.recompute, zero, sharding))


def _redraw_sharding(space: Walkable, state: State, rng: Random) -> State | None:
    """Draw the group that shares a stage's shards."""
    stage = rng.randrange(state.configuration.pp)
    old = state.choices[stage]
    options = len(space.chain(state).rates.shardings)
    if old.zero_stage == 0 or options == 1:
        return None
    return _with_choice(state, stage, old._replace(sharding=rng.randrange(options)))


def _with_choice(state: State, stage: int, choice: Choice) -> State | None:
    if state.choices[stage] == choice:
        return None
    choices = (*state.choices[:stage], choice, *state.choices[stage + 1 :])
    return state._replace(choices=choices)


def _propagate(_: Walkable, state: State, rng: Random) -> State | None:
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
