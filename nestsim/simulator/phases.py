"""Pools that go through phases on one fabric: what they send meets on its links.

A pool does its duties one after another: it works for a while (hosts, or devices that
send nothing), and then all actors of a part do a step, or several with a barrier behind
each. Pools go on side by side; a duty that several have begins when the last of them
comes to it, and all of them go on when it is done.

Each pool is one more actor, its *conductor*. It tells all actors of a part to begin,
by a channel that they all wait for, and waits for another one, to which each of them
posts when it has done its step. Both channels take no time. So one duty alone is the
part's own replay (`nestsim.simulator.replay`), bit for bit on the same tick.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nestsim.simulator.folding import fold
from nestsim.simulator.replay import confirmed_run, run_system
from nestsim.simulator.several import in_turn, lay_out, side_by_side
from nestsim.simulator.system import (
    CLOSES,
    NONE,
    OPENS,
    WHOLE,
    ReplaySettings,
    Step,
    Steps,
    System,
    quantise,
)
from nestsim.simulator.work import PipelineWork
from topologies.arrays import FloatArray
from topologies.network import Network


class PoolWork(NamedTuple):
    """What actors do when they are called."""

    work: PipelineWork
    """One step."""

    passes: int | None = None
    """Passes of each actor after which it stops, without streams; None for all."""


class Duty(NamedTuple):
    """What a pool does before it goes on."""

    time: float = 0.0
    """What it does first without a link [s]."""

    work: int = NONE
    """Number of the part whose step follows, or `NONE`."""

    num_steps: int = 1
    """Steps, each when all actors have done the one before."""


class PhasedRun(NamedTuple):
    """When pools did their duties."""

    starts: tuple[FloatArray, ...]
    """Moment at which each pool came to each of its duties [s]."""

    ends: tuple[FloatArray, ...]
    """Moment at which each pool was done with each of its duties [s]."""

    num_events: int
    """Events of the replay."""

    engine: str
    """``"simpy"`` or ``"compiled"``."""

    @property
    def time(self) -> float:
        """Time until all pools are done [s]."""
        return max(float(ends[-1]) for ends in self.ends)


def replay_phases(
    network: Network,
    parts: Sequence[PoolWork],
    pools: Sequence[Sequence[Duty]],
    settings: ReplaySettings,
    *,
    confirm: bool,
) -> PhasedRun:
    """Replay the duties of pools over the links of one network.

    Parameters
    ----------
    network
        Links and routes.
    parts
        What there is to do; parts that may go on at a time share no device.
    pools
        Duties of each pool, at least one, in order. A part has as many steps in each
        pool that has it.
    settings
        What may be left out, exactly.
    confirm
        Whether SimPy has to give the same run, as in `confirmed_run`.

    Raises
    ------
    InputError
        If a schedule does not exist or does not work with these sizes.
    """
    system = conducted(network, parts, pools)
    if settings.folding:
        alike = (
            np.zeros(size, np.int64) for size in (system.program.size, _size(system))
        )
        folding = fold(system, *alike)
        conductors = folding.actors.of[-len(pools) :].tolist()
        system = folding.system
    else:
        conductors = [*range(system.program.size)][-len(pools) :]
    if confirm:
        run, engine = confirmed_run(system, settings)
    else:
        fast = replace(settings, engine="compiled")
        run, engine = run_system(system, fast), "compiled"
    return PhasedRun(
        starts=tuple(run.span_starts[k] for k in conductors),
        ends=tuple(run.span_ends[k] for k in conductors),
        num_events=run.num_events,
        engine=engine,
    )


def conducted(
    network: Network, parts: Sequence[PoolWork], pools: Sequence[Sequence[Duty]]
) -> System:
    """Return what an engine runs, the conductors of the pools last."""
    counts = np.zeros((len(pools), len(parts)), np.int64)
    for pool, duties in enumerate(pools):
        for duty in duties:
            if duty.work != NONE:
                counts[pool, duty.work] += duty.num_steps
    most = counts.max(axis=0)
    assert np.all((counts == most) | (counts == 0)), "pools share all steps of a part"
    assert most.min() > 0, "every part is done"
    waits = sum(duty.time for duties in pools for duty in duties)
    laid = lay_out(
        network,
        [part.work for part in parts],
        lambda times: waits + float(most @ np.array(times)) + 1.0,
    )
    callers = np.count_nonzero(counts, axis=0).tolist()
    called = [
        in_turn(_called(system, part, pools_of_part), count, (_size(system),))
        for system, part, count, pools_of_part in zip(
            laid.systems, parts, most.tolist(), callers, strict=True
        )
    ]
    return _with_conductors(called, pools)


def _size(system: System) -> int:
    """Return the number of channels."""
    return system.latency.size


def _called(system: System, part: PoolWork, callers: int) -> System:
    """Let every actor wait for a call first, and every worker report at the end.

    Calls and reports are the last two channels.
    """
    num_stages, num_replicas, _ = part.work.devices.shape
    num_workers = num_stages * num_replicas
    call, report = _size(system), _size(system) + 1
    port = system.ports.shape[1]
    begin = Steps.of([Step(0.0, port, 1, NONE, 0)])
    end = Steps.of([Step(0.0, NONE, 0, port + 1, 0)])
    num_programs = int(system.program[:num_workers].max()) + 1
    assert part.passes is None or num_programs == len(system.programs)
    programs = []
    for number, steps in enumerate(system.programs):
        whole = begin.followed_by(_first_passes(steps, part.passes))
        programs.append(whole.followed_by(end) if number < num_programs else whole)
    num_actors = system.program.size
    indptr = system.incidence.indptr
    added = np.tile(np.array([call, report], np.int64), (num_actors, 1))
    return replace(
        system,
        programs=tuple(programs),
        ports=np.concatenate([system.ports, added], axis=1),
        num_sources=np.append(system.num_sources, [callers, num_workers]),
        latency=np.append(system.latency, [0.0, 0.0]),
        num_bytes=np.append(system.num_bytes, [0.0, 0.0]),
        incidence=system.incidence._replace(
            indptr=np.append(indptr, [indptr[-1], indptr[-1]])
        ),
    )


def _first_passes(steps: Steps, passes: int | None) -> Steps:
    """Return a program up to the end of some of its spans."""
    if passes is None:
        return steps
    last = np.flatnonzero(steps.span & CLOSES)[passes - 1] + 1
    return Steps(
        steps.duration[:last],
        steps.source[:last],
        steps.need[:last],
        steps.target[:last],
        steps.span[:last],
    )


def _with_conductors(
    parts: Sequence[System], pools: Sequence[Sequence[Duty]]
) -> System:
    """Return works side by side, and the actors that call them."""
    system = side_by_side(parts)
    behind = np.cumsum([_size(part) for part in parts])
    # Port 2 k calls part k, and port 2 k + 1 hears of it.
    row = np.stack([behind - 2, behind - 1], axis=1).ravel()
    width = max(row.size, system.ports.shape[1])
    ports = np.full((system.program.size + len(pools), width), NONE)
    ports[: system.program.size, : system.ports.shape[1]] = system.ports
    ports[system.program.size :, : row.size] = row
    number = len(system.programs)
    return replace(
        system,
        programs=(*system.programs, *(_score(duties, system.tick) for duties in pools)),
        program=np.append(system.program, number + np.arange(len(pools))),
        ports=ports,
    )


def _score(duties: Sequence[Duty], tick: float) -> Steps:
    """Return what a conductor does: a span for each duty."""
    steps: list[Step] = []
    done: dict[int, int] = {}
    for time, work, count in duties:
        wait = quantise(time, tick)
        if work == NONE:
            steps.append(Step(wait, NONE, 0, NONE, WHOLE))
            continue
        call, report = 2 * work, 2 * work + 1
        steps.append(Step(wait, NONE, 0, call, OPENS))
        first = done.get(work, 0)
        done[work] = first + count
        steps += [
            Step(0.0, report, k, call, 0) for k in range(first + 1, first + count)
        ]
        steps.append(Step(0.0, report, first + count, NONE, CLOSES))
    return Steps.of(steps)
