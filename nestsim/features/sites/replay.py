"""The outer loop as the simulator replays it: sites, uplinks, inner steps as timers.

A site is two actors: one does inner steps and outer optimizers, the other one sends the
fragments around the ring, one after another. The messages of a ring go in lockstep, as
those of any collective: a flow over all uplinks and downlinks, at the rate of the
slowest. Where there are many sites, one stands for all of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nestsim.features.sites.closed_form import OuterLoop
from nestsim.simulator.replay import confirmed_run
from nestsim.simulator.system import (
    NONE,
    WHOLE,
    Incidence,
    ReplaySettings,
    Step,
    Steps,
    System,
    quantise,
    tick_for,
)

GO, OUT, IN, DONE = range(4)
"""Ports: a fragment is to be sent; to the next site; from the last one; it is there."""

MOST_MESSAGES = 50_000
"""Of all sites; beyond, one of them stands for all."""

LAST = 4
"""Fragments that are replayed beyond those that the beginning still shows in."""

SAME = 1e-12
"""Relative difference up to which times are alike: that of float64's sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReplay:
    """What the replay found."""

    round_time: float
    """Time of all fragments, each of them taking as long as the last one [s]."""

    num_fragments: int
    """Synchronisations that were replayed."""

    is_settled: bool
    """Whether that is how it goes on: the last ones were alike, and enough."""

    num_actors: int
    """Sites that were simulated."""

    num_events: int
    """Events of the replay."""

    engine: str
    """``"simpy"``, or ``"compiled"`` where there were too many events for it."""


def replay_rounds(loop: OuterLoop, rates: Sequence[float]) -> RoundReplay:
    """Replay an outer loop until one synchronisation goes like the next.

    Parameters
    ----------
    loop
        Sites and steps.
    rates
        What each site sends, and receives, at most [byte/s].
    """
    enough = _enough(loop, min(rates))
    most = max(LAST, MOST_MESSAGES // loop.hops)
    number = int(min(enough, most))
    system = build_system(loop, rates, number)
    run, engine = confirmed_run(system, ReplaySettings())
    before, last = np.diff(run.span_ends[0][-3:]).tolist()
    return RoundReplay(
        round_time=loop.fragments * last,
        num_fragments=number,
        is_settled=enough <= most and abs(last - before) <= SAME * last,
        num_actors=system.program.size // 2,
        num_events=run.num_events,
        engine=engine,
    )


def _enough(loop: OuterLoop, rate: float) -> float:
    """Return after how many synchronisations all go alike.

    As many as are under way at once, and where the ring is the slower side as many as
    it takes to fall behind by the delay.
    """
    behind = loop.all_reduce_time(rate) - loop.working_time
    under_way = loop.delay // loop.spacing
    falling = loop.slack / behind if under_way and behind > 0.0 else 0.0
    return LAST + 2.0 * under_way + math.ceil(min(falling, 1e9))


def build_system(loop: OuterLoop, rates: Sequence[float], num_fragments: int) -> System:
    """Return what an engine runs: two actors, two channels and two links a site.

    And the ring's channel, whose messages leave when all sites have posted theirs.
    """
    messages = loop.num_sites * loop.hops * num_fragments
    sites = loop.num_sites if messages <= MOST_MESSAGES else 1
    steps = num_fragments * loop.spacing + loop.delay + 1
    horizon = steps * loop.step_time + num_fragments * (
        loop.optimizer_time + loop.all_reduce_time(min(rates))
    )
    tick = tick_for(horizon + 1.0)
    site = np.arange(sites)
    nothing = np.full(sites, NONE)
    go, done, ring = site, sites + site, np.full(sites, 2 * sites)
    trainer = np.stack([go, nothing, nothing, done], axis=1)
    stream = np.stack([go, ring, ring, done], axis=1)
    # Uplinks, then downlinks; only the ring, the last channel, crosses any.
    indptr = np.zeros(2 * sites + 2, np.int64)
    indptr[-1] = 2 * sites
    capacity = np.array(rates if sites == loop.num_sites else (min(rates),))
    part = loop.num_bytes / (loop.fragments * loop.num_sites)
    return System(
        programs=(
            Steps.of(_trainer(loop, num_fragments, tick)),
            Steps.of(_stream(loop.hops, num_fragments)),
        ),
        program=np.tile([0, 1], sites),
        ports=np.stack([trainer, stream], axis=1).reshape(2 * sites, 4),
        num_sources=np.append(np.ones(2 * sites, np.int64), sites),
        latency=quantise(np.append(np.zeros(2 * sites), loop.latency), tick),
        num_bytes=np.append(np.zeros(2 * sites), part),
        incidence=Incidence(indptr, np.arange(2 * sites), np.ones(2 * sites)),
        capacity=np.tile(capacity, 2),
        tick=tick,
        num_recorded=2 * sites + 1,
    )


def _trainer(loop: OuterLoop, num_fragments: int, tick: float) -> Iterator[Step]:
    """Yield inner steps: fragments go, are waited for, and the outer optimizer runs."""
    step = quantise(loop.step_time, tick)
    hidden = quantise(min(loop.hidden, loop.step_time), tick)
    optimizer = quantise(loop.optimizer_time / loop.fragments, tick)
    marks = []
    for number in range(num_fragments):
        sent = (number + 1) * loop.spacing
        marks.append((sent * step - hidden, 0, number))
        marks.append(((sent + loop.delay) * step, 1, number))
    worked = 0.0
    for moment, waits, number in sorted(marks):
        if waits:
            yield Step(moment - worked, NONE, 0, NONE, 0)
            yield Step(optimizer, DONE, number + 1, NONE, WHOLE)
        else:
            yield Step(moment - worked, NONE, 0, GO, 0)
        worked = moment


def _stream(hops: int, num_fragments: int) -> Iterator[Step]:
    """Yield the messages of rings: each but the first waits for that before it."""
    for number in range(num_fragments):
        yield Step(0.0, GO, number + 1, OUT, 0)
        received = number * hops
        for hop in range(1, hops):
            yield Step(0.0, IN, received + hop, OUT, 0)
        yield Step(0.0, IN, received + hops, DONE, 0)
