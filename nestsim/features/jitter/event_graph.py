"""What each moment of a replica's step waits for, written down once.

The programs of the replay (`nestsim.simulator.build`) say what every actor waits for,
how long it works and what it posts. Written down for one replica, every moment is the
later one of two others, and a duration after it: a timed event graph. A message takes
the time that it has if all replicas send theirs at once and nothing else is on the
links. What waits for other replicas waits for this one's part alone.

Letters: ``O`` operations of the graph.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np

from nestsim.simulator.build import Model
from nestsim.simulator.flows import SIGNAL
from nestsim.simulator.jittered import Timing
from nestsim.simulator.kernels.jitter import Operations
from nestsim.simulator.programs import OPTIMIZER, StageProgram
from nestsim.simulator.system import NONE, OPENS
from topologies.arrays import FloatArray, IntArray

START = 0
"""The moment at which a step begins."""


class EventGraph(NamedTuple):
    """The moments of one replica's step."""

    operations: Operations
    """What each of them waits for."""

    fixed: FloatArray
    """Part of each duration that is no compute, shape ``(O,)`` [s]."""

    compute: FloatArray
    """Compute of passes in each duration, shape ``(O,)`` [s]."""

    varying: FloatArray
    """Compute that the factor of each operation multiplies, shape ``(O,)`` [s]: what
    several have in common stands at the last of them."""

    num_draws: FloatArray
    """Draws whose mean that factor is, shape ``(O,)``."""

    update: FloatArray
    """Compute of the optimizer step in each duration, where all replicas have met
    before it, shape ``(O,)`` [s]; else it is as that of passes."""

    actor: IntArray
    """Stage whose compute it is, shape ``(O,)``."""

    messages: IntArray
    """Messages over links that arrive with each operation, shape ``(O,)``."""


class _Effort(NamedTuple):
    """How long an operation takes: as in `EventGraph`."""

    fixed: float = 0.0
    compute: float = 0.0
    varying: float = 0.0
    num_draws: float = 1.0
    update: float = 0.0
    actor: int = 0
    messages: int = 0


_NOTHING = _Effort()
"""An operation that takes no time."""


class _Todo(NamedTuple):
    """A step of an actor, and how long it works."""

    source: int
    """Channel to wait for, or `NONE`."""

    need: int
    """Messages that must have come there."""

    target: int
    """Channel to post to, or `NONE`."""

    work: _Effort
    """How long it takes."""


@dataclass(slots=True)
class _Channel:
    """Messages of a channel, as far as they are known."""

    wire: float
    """How long a message occupies it [s]."""

    behind: _Effort
    """What follows until a message arrives."""

    num_sources: int = 0
    """Actors of the replica that post to it."""

    posts: list[list[int]] = field(default_factory=list)
    """Moments of the posts of each message."""

    posted: Counter[int] = field(default_factory=Counter)
    """Messages that each actor has posted for."""

    left: int = START
    """When the last message had left."""

    arrivals: list[int] = field(default_factory=list)
    """When each message arrives."""


class _Writer:
    """Writes down the moments of a replica, which are numbered as they come.

    Parameters
    ----------
    programs
        Steps of each actor.
    channels
        Channels that they post to.
    """

    def __init__(
        self, programs: Sequence[Sequence[_Todo]], channels: Mapping[int, _Channel]
    ) -> None:
        self.programs, self.channels = programs, channels
        self.rows: list[tuple[int, int, _Effort]] = []
        self.free = [START] * len(programs)
        self.position = [0] * len(programs)

    def write(self) -> None:
        """Write down all moments, each behind those that it waits for."""
        while sum(map(self._go_on, range(len(self.programs)))):
            pass
        lengths = [len(steps) for steps in self.programs]
        assert self.position == lengths, "programs wait for each other"

    def _go_on(self, actor: int) -> bool:
        """Write down the steps of an actor as far as it can go; say if there is one."""
        todo, begin = self.programs[actor], self.position[actor]
        while self.position[actor] < len(todo):
            step = todo[self.position[actor]]
            ready = self._arrival(step)
            if ready is None:
                break
            self.free[actor] = self._after(self.free[actor], ready, step.work)
            if step.target != NONE:
                self._post(actor, self.channels[step.target])
            self.position[actor] += 1
        return self.position[actor] > begin

    def _arrival(self, step: _Todo) -> int | None:
        """Return when what a step waits for has come; None if that is not known yet."""
        channel = self.channels.get(step.source)
        if channel is None or not step.need:
            return START
        if len(channel.arrivals) < step.need:
            return None
        return channel.arrivals[step.need - 1]

    def _post(self, actor: int, channel: _Channel) -> None:
        """Post to a channel; the message leaves when all have posted for it."""
        place = channel.posted[actor]
        channel.posted[actor] += 1
        if place == len(channel.posts):
            channel.posts.append([])
        posts = channel.posts[place]
        posts.append(self.free[actor])
        if len(posts) < channel.num_sources:
            return
        ready = reduce(self._after, posts)
        channel.left = self._after(channel.left, ready, _Effort(channel.wire))
        arrival = self._after(channel.left, channel.left, channel.behind)
        channel.arrivals.append(arrival)

    def _after(self, first: int, second: int, work: _Effort = _NOTHING) -> int:
        """Return the moment that is some time after the later one of two."""
        if work == _NOTHING._replace(actor=work.actor):
            if START in {first, second}:
                return max(first, second)
            if first == second:
                return first
        self.rows.append((first, second, work))
        return len(self.rows)


def event_graph(
    model: Model, timings: Sequence[Timing], replica: int, meets: Sequence[bool]
) -> EventGraph:
    """Return the moments of a replica's step.

    Parameters
    ----------
    model
        The step, nothing folded.
    timings
        How the steps of each of the model's programs vary.
    replica
        Number of the replica.
    meets
        Whether the replicas of each stage meet before the optimizer step.
    """
    programs = list(_programs_of(model, timings, replica, meets))
    wires, latency = wire_times(model), model.system.latency
    crosses = np.diff(model.flows.incidence.indptr) > 0
    crosses &= model.flows.kind != SIGNAL
    channels: dict[int, _Channel] = {}
    for steps in programs:
        for number in {step.target for step in steps} - {NONE}:
            behind = _Effort(float(latency[number]), messages=int(crosses[number]))
            channel = _Channel(float(wires[number]), behind)
            channels.setdefault(number, channel).num_sources += 1
    writer = _Writer(programs, channels)
    writer.write()
    return _graph(writer.rows, writer.free)


def _programs_of(
    model: Model, timings: Sequence[Timing], replica: int, meets: Sequence[bool]
) -> Iterator[list[_Todo]]:
    """Yield what the actors of one replica do, communication streams included."""
    system, num_replicas = model.system, model.num_replicas
    for actor in range(replica, system.program.size, num_replicas):
        number = int(system.program[actor])
        program, steps = model.programs[number], system.programs[number]
        # Streams compute nothing.
        stage = actor // num_replicas if program.kinds.size else 0
        columns = _columns(program, timings[number], meets[stage])
        channel = np.append(system.ports[actor], NONE)
        yield [
            _Todo(source, need, target, _Effort._make((*durations, stage, 0)))
            for source, need, target, *durations in zip(
                channel[steps.source].tolist(),
                steps.need.tolist(),
                channel[steps.target].tolist(),
                *(column.tolist() for column in columns),
                strict=True,
            )
        ]


def _columns(
    program: StageProgram, timing: Timing, meets: bool
) -> Sequence[FloatArray]:
    """Return the columns of each step of a program, from `fixed` to `update`."""
    steps = program.steps
    fixed = steps.duration.copy()
    compute, varying, update = (np.zeros_like(fixed) for _ in range(3))
    num_draws = np.ones_like(fixed)
    compute[timing.step] = timing.duration * timing.compute
    fixed = np.maximum(fixed - compute, 0.0)
    if meets and program.kinds.size and program.kinds[-1] == OPTIMIZER:
        last = np.flatnonzero(steps.span & OPENS)[-1]
        update[last], compute[last] = compute[last], 0.0
    # Steps that share a factor vary together: the last of them with all.
    shared = np.bincount(timing.factor, compute[timing.step], timing.num_draws.size)
    last = np.zeros(timing.num_draws.size, dtype=np.int64)
    np.maximum.at(last, timing.factor, timing.step)
    varies = shared > 0.0
    varying[last[varies]] = shared[varies]
    num_draws[last[varies]] = timing.num_draws[varies]
    return fixed, compute, varying, num_draws, update


def wire_times(model: Model) -> FloatArray:
    """Return how long a message of each channel occupies it, shape ``(C,)`` [s].

    All replicas send theirs at once, so that flows of one kind and place share links;
    collectives of several replicas do not, which come one after another.
    """
    system, flows = model.system, model.flows
    links, indptr = system.incidence.links, system.incidence.indptr
    counts = np.diff(indptr)
    number = np.where(flows.replica < 0, np.arange(counts.size), NONE)
    alike = np.stack([flows.kind, flows.stage, flows.chunk, number])
    _, group = np.unique(alike, axis=1, return_inverse=True)
    of_entry = np.repeat(group.reshape(-1), counts) * system.capacity.size + links
    _, place = np.unique(of_entry, return_inverse=True)
    weights = np.bincount(place, system.incidence.weights)[place]
    slowness = np.append(weights / system.capacity[links], 0.0)
    slowest = np.zeros(counts.size)
    has = counts > 0
    slowest[has] = np.maximum.reduceat(slowness, indptr[:-1][has])
    times: FloatArray = system.num_bytes * slowest
    return times


def _graph(rows: Sequence[tuple[int, int, _Effort]], ends: Sequence[int]) -> EventGraph:
    """Put moments into slots, each for as long as somebody reads it."""
    reads = np.array([row[:2] for row in rows], dtype=np.int64).reshape(-1, 2)
    slots, num_slots = _slots(reads.tolist(), ends)
    first, second = np.ascontiguousarray(slots[reads].T)
    operations = Operations(first, second, slots[1:], slots[list(ends)], num_slots)
    columns = np.array([row[2] for row in rows]).reshape(-1, len(_NOTHING)).T
    column = dict(zip(_Effort._fields, np.ascontiguousarray(columns), strict=True))
    return EventGraph(
        operations=operations,
        fixed=column["fixed"],
        compute=column["compute"],
        varying=column["varying"],
        num_draws=column["num_draws"],
        update=column["update"],
        actor=column["actor"].astype(np.int64),
        messages=column["messages"].astype(np.int64),
    )


def _slots(reads: Sequence[Sequence[int]], ends: Sequence[int]) -> tuple[IntArray, int]:
    """Return the slot of each moment, and how many there are."""
    last_read = list(range(len(reads) + 1))
    for moment, read in enumerate(reads, 1):
        for earlier in read:
            last_read[earlier] = moment
    for end in (START, *ends):
        last_read[end] = len(last_read)
    slots = [0]
    unused: list[int] = []
    num_slots = 1
    for moment, read in enumerate(reads, 1):
        unused.extend(slots[last] for last in {*read} if last_read[last] == moment)
        if not unused:
            unused.append(num_slots)
            num_slots += 1
        slots.append(unused.pop())
    return np.array(slots, dtype=np.int64), num_slots
