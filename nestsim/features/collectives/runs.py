"""Simulate collectives over real links: units of groups that repeat an operation.

A *unit* is one actor: it works for a while, does its operation phase by phase, and
begins again. Each phase is one coupled flow, as in the replay of a training step. A
collective is measured alone, or while units in the background go on.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.collectives.messages import PlacedExchange
from nestsim.simulator.folding import fold
from nestsim.simulator.replay import run_system
from nestsim.simulator.system import (
    CLOSES,
    NONE,
    OPENS,
    Incidence,
    ReplaySettings,
    Step,
    Steps,
    System,
    quantise,
    tick_for,
)
from topologies.arrays import FloatArray, IntArray
from topologies.network import Links, Network

_SETTINGS = ReplaySettings()
"""The engine that suits; whole periods are skipped, exactly."""


class Wire(NamedTuple):
    """What the messages of one phase put on the links."""

    links: IntArray
    """Rising."""

    weights: FloatArray
    """Messages that cross each of them."""

    latency: float
    """Latency of all steps together [s]."""

    fraction: float
    """What each message carries, over the full tensor."""


Wires = tuple[Wire, ...]
"""The phases of one operation, one after another."""


class Repeated(NamedTuple):
    """A unit and what it does."""

    wires: Wires
    """Links that the operation loads, phase by phase."""

    num_bytes: float
    """Size of the full tensor [byte]."""
    gaps: tuple[float, ...]
    """Work before each operation; as many operations as there are gaps [s]."""


def wires_of(network: Network, phases: Sequence[PlacedExchange]) -> Wires:
    """Return what a placed collective puts on the links. O(messages * hops)."""
    return tuple(_wire(network, phase) for phase in phases)


def _wire(network: Network, phase: PlacedExchange) -> Wire:
    routes = network.routes(phase.sources, phase.targets)
    links, counts = np.unique(routes.links, return_counts=True)
    longest = float(network.latencies(routes).max())
    return Wire(
        links.astype(np.int64),
        counts.astype(np.float64),
        phase.num_steps * longest,
        phase.fraction,
    )


def time_alone(links: Links, wires: Wires, num_bytes: float) -> float:
    """Return how long an operation takes if nothing else is sent [s]."""
    return sum(
        wire.latency
        + wire.fraction
        * num_bytes
        * float((wire.weights / _capacity(links, wire)).max())
        for wire in wires
    )


def durations(links: Links, units: Sequence[Repeated]) -> list[FloatArray]:
    """Simulate all units from the same moment on until the last one is done.

    Units and links that are provably alike are simulated once, which changes nothing
    [s].

    Returns
    -------
    list[FloatArray]
        How long each operation of each unit took, without the work before it.
    """
    return [ends - starts for starts, ends in spans(links, units)]


def spans(
    links: Links, units: Sequence[Repeated]
) -> list[tuple[FloatArray, FloatArray]]:
    """Return when each operation of each unit began and ended, as `durations`."""
    system = build_system(links, units)
    nothing = np.zeros(system.program.size, np.int64)
    folding = fold(system, nothing, np.zeros(system.latency.size, np.int64))
    run = folding.unfolded(run_system(folding.system, _SETTINGS))
    return list(zip(run.span_starts, run.span_ends, strict=True))


def build_system(links: Links, units: Sequence[Repeated]) -> System:
    """Return what an engine runs: one actor for each unit, a channel for each phase."""
    wires = [wire for unit in units for wire in unit.wires]
    sizes = [unit.num_bytes * wire.fraction for unit in units for wire in unit.wires]
    num_phases = np.array([len(unit.wires) for unit in units], np.int64)
    used = np.unique(np.concatenate([wire.links for wire in wires]))
    tick = tick_for(_horizon(links, units))
    kinds = [(unit.gaps, len(unit.wires)) for unit in units]
    programs = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    counts = np.array([wire.links.size for wire in wires])
    incidence = Incidence(
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        np.concatenate([wire.links for wire in wires]),
        np.concatenate([wire.weights for wire in wires]),
    )
    return System(
        programs=tuple(_program(*kind, tick) for kind in programs),
        program=np.array([programs[kind] for kind in kinds], np.int64),
        ports=_ports(num_phases),
        num_sources=np.ones(len(wires), np.int64),
        latency=quantise(np.array([wire.latency for wire in wires]), tick),
        num_bytes=np.array(sizes, np.float64),
        incidence=incidence.restricted(used, len(links)),
        capacity=links.bandwidth[used],
        tick=tick,
        num_recorded=max(used.size, len(wires)),
    )


def _program(gaps: tuple[float, ...], num_phases: int, tick: float) -> Steps:
    """Work, operation, work, operation: each is a span that its last arrival closes."""
    steps = []
    for number, gap in enumerate(gaps, start=1):
        steps.append(Step(quantise(gap, tick), NONE, 0, NONE, 0))
        steps.append(Step(0.0, NONE, 0, 0, OPENS))
        steps += [
            Step(0.0, phase - 1, number, phase, 0) for phase in range(1, num_phases)
        ]
        steps.append(Step(0.0, num_phases - 1, number, NONE, CLOSES))
    return Steps.of(steps)


def _ports(num_phases: IntArray) -> IntArray:
    """Return the channels of each unit's phases, one after another."""
    phase = np.arange(int(num_phases.max()))
    first = np.cumsum(num_phases) - num_phases
    return np.where(phase < num_phases[:, None], first[:, None] + phase, NONE)


def _horizon(links: Links, units: Sequence[Repeated]) -> float:
    """Return a moment before which all units are done, whatever meets on links [s].

    A max-min fair level is at least the least fair share on the flow's links.
    """
    load = np.zeros(len(links))
    for unit in units:
        for wire in unit.wires:
            load[wire.links] += wire.weights
    slowness = load / links.bandwidth
    ends = []
    for unit in units:
        once = sum(
            wire.latency
            + wire.fraction * unit.num_bytes * float(slowness[wire.links].max())
            for wire in unit.wires
        )
        ends.append(sum(unit.gaps) + len(unit.gaps) * once)
    # Rounding to ticks adds less than the last term.
    return max(ends) + 1.0


def _capacity(links: Links, wire: Wire) -> FloatArray:
    return links.bandwidth[wire.links]


MOST_OPERATIONS = 20
"""Measured in the job's traffic; the default of nccl-tests."""

PERIODS = 4
"""Periods of the slowest background traffic over which the measured operations
spread."""

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Golden section, whose multiples spread moments evenly."""


class Background(NamedTuple):
    """A unit that goes on all the time."""

    wires: Wires
    """Links that the operation loads, phase by phase."""

    num_bytes: float
    """Size of the full tensor [byte]."""
    delay: float
    """Until its first operation, beside the work before it [s]."""
    gap: float
    """Work before each operation [s]."""

    def lasting(self, time: float, alone: float) -> Repeated:
        """Return the unit with enough operations for a time, however fast they are."""
        count = 1 + math.ceil(time / (self.gap + alone))
        first = self.delay + self.gap
        return Repeated(self.wires, self.num_bytes, (first, *(self.gap,) * (count - 1)))


def evenly(numbers: IntArray) -> FloatArray:
    """Return numbers in [0, 1) of which those of any range of numbers lie evenly.

    Multiples of the golden ratio, modulo 1 (Knuth, "The Art of Computer Programming",
    volume 3, section 6.4, theorem S).
    """
    return np.asarray(numbers * _GOLDEN % 1.0)


def reached(
    links: Links, units: Sequence[Wires], background: Sequence[Background]
) -> list[Background]:
    """Return the background that can matter: joined to the units by links in use."""
    used = np.zeros(len(links), dtype=np.bool_)
    for wires in units:
        _mark(used, wires)
    traffic: list[Background] = []
    left = list(background)
    while left:
        near = [_touches(used, unit.wires) for unit in left]
        if not any(near):
            break
        joined = [unit for unit, is_near in zip(left, near, strict=True) if is_near]
        left = [unit for unit, is_near in zip(left, near, strict=True) if not is_near]
        for unit in joined:
            _mark(used, unit.wires)
        traffic += joined
    return traffic


def _mark(used: NDArray[np.bool_], wires: Wires) -> None:
    for wire in wires:
        used[wire.links] = True


def _touches(used: NDArray[np.bool_], wires: Wires) -> bool:
    return any(bool(used[wire.links].any()) for wire in wires)


def busy_time(
    links: Links,
    units: Sequence[Wires],
    num_bytes: float,
    background: Sequence[Background],
    together: float,
) -> float:
    """Return the mean time of the slowest unit's operations among the background [s].

    Parameters
    ----------
    links
        Of the network.
    units
        What is measured.
    num_bytes
        Of the full tensor [byte].
    background
        At least one unit.
    together
        How long the operation takes without background [s].
    """
    alone = [time_alone(links, unit.wires, unit.num_bytes) for unit in background]
    period = max(unit.gap + time for unit, time in zip(background, alone, strict=True))
    window = PERIODS * period
    count = min(max(math.ceil(window / together), 1), MOST_OPERATIONS)
    mean_gap = max(window / count - together, 0.0)
    gaps = tuple((2.0 * mean_gap * evenly(1 + np.arange(count))).tolist())
    measured = [Repeated(wires, num_bytes, gaps) for wires in units]
    lasting = sum(gaps) + count * together
    while True:
        lasting *= 1.5
        others = [
            unit.lasting(lasting, time)
            for unit, time in zip(background, alone, strict=True)
        ]
        spans_of_units = spans(links, [*measured, *others])
        ours, theirs = spans_of_units[: len(units)], spans_of_units[len(units) :]
        end = max(float(ends[-1]) for _, ends in ours)
        # The background must not have run out before the last one was done.
        if all(float(ends[-1]) >= end for _, ends in theirs):
            return max(float((ends - starts).mean()) for starts, ends in ours)
        lasting = max(lasting, end)
