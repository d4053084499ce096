"""Training steps whose operators and messages take random times.

A run is a replay in which compute is multiplied by random factors, and messages are
under way for random times longer (`nestsim.simulator.noise`). What is drawn depends on
the seed, the number of the run, and what it is drawn for: the n-th factor of a stage of
a replica, or the n-th message of a flow. So it is the same in any order, with any
engine, and alone or among other runs.

An actor is a stage of a replica, whose ``t`` ranks work in lockstep: it takes as long
as the slowest of them, and each of them draws a factor of its own. How long a factor
lasts decides what that means:

- ``"step"``: a device is slow or fast for a whole step. All passes and the optimizer
  step of an actor have the same factor, the largest of ``t`` draws.
- ``"pass"``: each pass and the optimizer step have a factor, the largest of ``t``
  draws.
- ``"operator"``: the ranks wait for each other at every collective inside of a pass.
  So a pass of ``n`` segments (`nestsim.simulator.work.PipelineWork.segments`), equal
  parts of its compute, has the mean of ``n`` factors, each the largest of ``t`` draws.
  Where collectives are simulated one by one, each piece of compute between two of them
  has a factor. The optimizer step has one.

Communication that is part of a pass's duration is not stretched, as slow devices do not
stretch it. Factors come on top of those of slow devices.

Every message of a flow that crosses links has one delay: a transfer between stages one
for all its ranks, a collective one for each of its phases. Messages do not overtake
each other (`nestsim.simulator.system.System.delays`).

Nothing is folded and nothing skipped: no two actors, and no two periods, are alike.

Letters: ``A`` actors, ``d`` replicas, ``t`` ranks, ``K`` factors, ``T`` steps of all
actors that work.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nestsim.simulator.build import Model, build_model
from nestsim.simulator.flows import SIGNAL
from nestsim.simulator.folding import list_steps, num_posts_of_channels
from nestsim.simulator.kernels.jitter import uniforms
from nestsim.simulator.noise import COMPUTE_DRAW, LINK_DRAW, Jitter
from nestsim.simulator.packed import PackedWork
from nestsim.simulator.programs import StageProgram
from nestsim.simulator.replay import (
    model_step,
    replay,
    replay_step,
    replayed_time,
    system_time,
)
from nestsim.simulator.system import (
    CLOSES,
    OPENS,
    Replay,
    ReplaySettings,
    System,
    num_posts,
    quantise,
    tick_for,
)
from nestsim.simulator.work import PipelineWork
from planner.step.instructions import Instructions
from planner.step.schedules import find_schedule
from topologies.arrays import FloatArray, IntArray
from topologies.network import Network

_STAGE = 2**32
"""An actor's number among those that draw: its stage times this, and its replica."""


class Timing(NamedTuple):
    """How the steps of an actor, or of all of them, vary."""

    step: IntArray
    """Steps that work, shape ``(T,)``."""

    duration: FloatArray
    """How long each works without jitter, shape ``(T,)`` [s]."""

    compute: FloatArray
    """The part of each that is compute, as a fraction, shape ``(T,)``."""

    factor: IntArray
    """Factor of each, shape ``(T,)``."""

    num_draws: IntArray
    """Draws whose mean each factor is, shape ``(K,)``."""

    growth: FloatArray
    """What each takes longer with whole documents, over its duration, shape
    ``(T,)``."""

    microbatch: IntArray
    """Microbatch of each, any where `growth` is 0, shape ``(T,)``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JitteredModel:
    """A training step whose runs differ in durations and delays alone."""

    model: Model
    """The step, with a program for each actor."""

    jitter: Jitter
    """What differs."""

    num_ranks: int
    """Ranks ``t`` of each actor."""

    timing: Timing
    """How the steps of all actors vary, one after another; microbatches are numbered
    replica by replica."""

    packed: PackedWork | None
    """What drawn documents make of the step; None where none are drawn."""

    grid: tuple[int, int]
    """Replicas ``d``, and microbatches of each."""

    owners: IntArray
    """Who draws the factors, shape ``(A,)``."""

    num_owned: IntArray
    """Draws of each of them, shape ``(A,)``."""

    channels: IntArray
    """Channels whose messages have delays."""

    num_messages: IntArray
    """Messages of each channel, also of the others."""

    most_posts: int
    """Messages that a chain of events can meet."""

    @classmethod
    def of(
        cls,
        network: Network,
        work: PipelineWork,
        jitter: Jitter,
        packed: PackedWork | None = None,
    ) -> "JitteredModel":
        """Build the model of a training step.

        Raises
        ------
        InputError
            If the schedule does not exist or does not work with these sizes.
        """
        plain = build_model(network, work)
        timings = timings_of(plain, work, jitter.per, packed)
        of_actor = plain.system.program.tolist()
        model = _with_own_programs(plain)
        system = model.system
        num_actors = work.devices.shape[0] * plain.num_replicas
        stage, replica = np.divmod(np.arange(num_actors), plain.num_replicas)
        timing = _joined(
            [
                timings[program]._replace(
                    microbatch=timings[program].microbatch
                    + number * work.num_microbatches
                )
                for program, number in zip(
                    of_actor[:num_actors], replica.tolist(), strict=True
                )
            ],
            [len(plain.programs[program].steps) for program in of_actor],
        )
        by_actor = [timings[program].num_draws.sum() for program in of_actor]
        crosses = np.diff(plain.flows.incidence.indptr) > 0
        posts = num_posts_of_channels(system, list_steps(system))
        by_program = num_posts(plain.system.programs, system.ports.shape[1])
        return cls(
            model=model,
            jitter=jitter,
            num_ranks=work.devices.shape[2],
            timing=timing,
            packed=packed,
            grid=(plain.num_replicas, work.num_microbatches),
            owners=stage * _STAGE + replica,
            num_owned=np.array(by_actor[:num_actors], np.int64),
            channels=np.flatnonzero(crosses & (plain.flows.kind != SIGNAL)),
            num_messages=posts // system.num_sources,
            most_posts=int(by_program.sum()),
        )

    def run(self, number: int) -> System:
        """Return the system of one run."""
        durations, largest = self._durations(number)
        delays = self._delays(number)
        system = self.model.system
        # A factor stretches whatever a chain of events meets; a delay is added to it.
        horizon = self.model.horizon * max(1.0, largest)
        horizon += self.most_posts * float(delays.max(initial=0.0))
        tick = max(system.tick, tick_for(horizon))
        return replace(
            system,
            programs=tuple(
                replace(steps, duration=duration)
                for steps, duration in zip(
                    system.programs,
                    self._by_program(quantise(durations, tick)),
                    strict=True,
                )
            ),
            latency=quantise(system.latency, tick),
            delays=quantise(delays, tick),
            tick=tick,
        )

    def _durations(self, number: int) -> tuple[FloatArray, float]:
        """Return how long each step of each actor works, and the largest factor [s]."""
        timing, compute = self.timing, self.jitter.compute
        durations = np.zeros(sum(len(steps) for steps in self.model.system.programs))
        durations[timing.step] = timing.duration
        longest = 1.0
        if self.packed is not None:
            attention = self.packed.drawn(self.jitter.seed, number, *self.grid)
            extra = timing.growth * attention.ravel()[timing.microbatch]
            durations[timing.step] *= np.maximum(1.0 + extra, 0.0)
            longest += float(extra.max(initial=0.0))
        if compute is None or not compute.varies:
            return durations, longest
        drawn = compute.slowest(
            uniforms(
                self.jitter.seed, number, COMPUTE_DRAW, self.owners, self.num_owned
            ),
            self.num_ranks,
        )
        if drawn.size > timing.num_draws.size:
            first = np.cumsum(timing.num_draws) - timing.num_draws
            drawn = np.add.reduceat(drawn, first) / timing.num_draws
        stretch = 1.0 + (drawn[timing.factor] - 1.0) * timing.compute
        durations[timing.step] *= stretch
        return durations, longest * float(stretch.max(initial=1.0))

    def _delays(self, number: int) -> FloatArray:
        """Return the delay of each message, channel by channel; empty if none [s]."""
        links = self.jitter.links
        if links is None or links.mean == 0.0:
            return np.zeros(0)
        counts = np.zeros_like(self.num_messages)
        counts[self.channels] = self.num_messages[self.channels]
        delays = np.zeros(int(self.num_messages.sum()))
        drawn = uniforms(
            self.jitter.seed,
            number,
            LINK_DRAW,
            self.channels,
            self.num_messages[self.channels],
        )
        delays[np.repeat(counts > 0, self.num_messages)] = links.exceeded(drawn)
        return delays

    def _by_program(self, durations: FloatArray) -> Iterator[FloatArray]:
        """Yield the durations of each program."""
        begin = 0
        for steps in self.model.system.programs:
            yield durations[begin : begin + len(steps)]
            begin += len(steps)


def jittered_times(
    network: Network,
    work: PipelineWork,
    settings: ReplaySettings,
    jitter: Jitter,
    runs: Sequence[int],
    packed: PackedWork | None = None,
) -> FloatArray:
    """Return how long a training step takes in each of some runs [s].

    Bitwise `Replay.iteration_time` of `jittered_replay`. The flows are built once; runs
    differ in durations and delays.

    Parameters
    ----------
    network, work, settings
        As of `nestsim.simulator.replay.replay`; folding and skipping do not apply.
    jitter
        What differs.
    runs
        Numbers of the runs, not negative. A run is the same whichever others there are.
    packed
        What drawn documents make of the step; None where none are drawn.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    if not jitter.varies:
        return np.full(len(runs), replayed_time(network, work, settings))
    model = JitteredModel.of(network, work, jitter, packed)
    settings = replace(settings, skipping=False)
    times = np.empty(len(runs))
    for place, number in enumerate(runs):
        times[place] = system_time(model.run(number), settings, np.inf)
    return times


def jittered_replay(
    network: Network,
    work: PipelineWork,
    settings: ReplaySettings,
    jitter: Jitter,
    run: int,
    packed: PackedWork | None = None,
) -> Replay:
    """Return everything that happens in one run of a training step.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    if not jitter.varies:
        return replay(network, work, settings)
    jittered = JitteredModel.of(network, work, jitter, packed)
    model = jittered.model._replace(system=jittered.run(run))
    model = model._replace(notes=(*model.notes, *_notes(jitter, run)))
    settings = replace(settings, folding=False, skipping=False)
    return replay_step(network, work, model_step(model, settings), settings)


def _with_own_programs(plain: Model) -> Model:
    """Give each actor a program of its own; columns are shared."""
    of_actor = plain.system.program.tolist()
    programs = tuple(plain.programs[program] for program in of_actor)
    system = replace(
        plain.system,
        programs=tuple(program.steps for program in programs),
        program=np.arange(len(programs)),
    )
    return plain._replace(programs=programs, system=system)


def timings_of(
    model: Model, work: PipelineWork, per: str, packed: PackedWork | None = None
) -> list[Timing]:
    """Return how the steps of each of the model's programs vary."""
    num_stages, num_replicas, _ = work.devices.shape
    schedule = find_schedule(work.schedule)
    _, first = np.unique(model.system.program, return_index=True)
    timings = []
    for program, actor in zip(model.programs, first.tolist(), strict=True):
        if not program.kinds.size:
            # A communication stream.
            nothing = np.zeros(0, np.int64)
            none = np.zeros(0)
            timings.append(Timing(nothing, none, none, nothing, nothing, none, nothing))
            continue
        stage, replica = divmod(actor, num_replicas)
        kind = int(work.kind[stage, replica])
        work_of_kind = work.of_kind(kind)
        packed_of_kind = packed and packed.of_kind(kind)
        instructions = schedule.instructions(
            stage, num_stages, work.num_microbatches, work.num_chunks
        )
        passes = _passes(work_of_kind, stage, instructions, packed_of_kind)
        timings.append(_timing(program, passes, per))
    return timings


class _PassFacts(NamedTuple):
    """What is known of each span of a stage, passes and then the optimizer step."""

    sent: FloatArray
    """Communication that is part of its duration [s]."""

    num_segments: IntArray
    """Segments of its compute; 0 for each of its steps being one."""

    growth: FloatArray
    """What it takes longer with whole documents, over its duration."""


def _passes(
    work: PipelineWork,
    stage: int,
    instructions: Instructions,
    packed: PackedWork | None,
) -> _PassFacts:
    """Return the facts of a stage's spans."""
    schedule = find_schedule(work.schedule)
    kind, _, chunk = instructions
    written = schedule.written_kinds(
        kind, chunk, np.array([0, kind.size]), first=work.tells_first
    )
    virtual = work.virtual_stages().number[stage]
    sent, segments = np.zeros(kind.size + 1), np.ones(kind.size + 1, np.int64)
    growth = np.zeros(kind.size + 1)
    for one, part in {*zip(written.tolist(), chunk.tolist(), strict=True)}:
        alike = np.flatnonzero((written == one) & (chunk == part))
        number = int(virtual[part])
        sent[alike] = work.sent_in(one, number)
        by_step = work.layers is not None and len(work.pass_moves(one, number)) > 1
        segments[alike] = 0 if by_step else work.segments_in(one, number)
        if packed is not None:
            growth[alike] = packed.growth(work, one, number)
    return _PassFacts(sent, segments, growth)


def _timing(program: StageProgram, passes: _PassFacts, per: str) -> Timing:
    """Return how the steps of one program vary."""
    steps = program.steps
    closes = steps.span & CLOSES > 0
    span = np.cumsum(steps.span & OPENS > 0) - 1
    assert closes.sum() == program.kinds.size
    works = np.flatnonzero(steps.duration > 0.0)
    span, duration = span[works], steps.duration[works]
    total = np.bincount(span, duration, minlength=program.kinds.size)[span]
    compute = 1.0 - np.minimum(1.0, passes.sent[span] / total)
    if per == "step":
        factor, num_draws = np.zeros_like(works), np.ones(1, np.int64)
    elif per == "pass":
        factor, num_draws = span, np.ones(program.kinds.size, np.int64)
    else:
        share = passes.num_segments[span] * (duration / total)
        factor = np.arange(works.size)
        num_draws = np.maximum(1, np.rint(share)).astype(np.int64)
    growth, microbatch = passes.growth[span], np.maximum(program.microbatches[span], 0)
    return Timing(works, duration, compute, factor, num_draws, growth, microbatch)


def _joined(timings: Sequence[Timing], lengths: Sequence[int]) -> Timing:
    """Put the actors' steps and factors one after another.

    Parameters
    ----------
    timings
        Of each actor that works.
    lengths
        Steps of the program of each actor; streams come behind.
    """
    first_step = np.cumsum([0, *lengths])
    first_factor = np.cumsum([0, *(timing.num_draws.size for timing in timings)])
    return Timing(
        np.concatenate(
            [timing.step + first_step[k] for k, timing in enumerate(timings)]
        ),
        np.concatenate([timing.duration for timing in timings]),
        np.concatenate([timing.compute for timing in timings]),
        np.concatenate(
            [timing.factor + first_factor[k] for k, timing in enumerate(timings)]
        ),
        np.concatenate([timing.num_draws for timing in timings]),
        np.concatenate([timing.growth for timing in timings]),
        np.concatenate([timing.microbatch for timing in timings]),
    )


def _notes(jitter: Jitter, run: int) -> Iterator[str]:
    """Yield what was drawn, in words."""
    drawn = f"in run {run} of seed {jitter.seed}"
    compute, links = jitter.compute, jitter.links
    if jitter.documents:
        yield f"Attention is that of documents drawn for each microbatch {drawn}."
    if jitter.images:
        yield f"The tower sees pictures drawn for each microbatch {drawn}."
    if compute is not None and compute.varies:
        per_unit = "" if jitter.per == "step" else f" for each {jitter.per}"
        yield (
            "Compute is multiplied by random factors of mean 1 "
            f"({compute.distribution}, coefficient of variation {compute.cv:g}), drawn "
            f"for each device{per_unit} {drawn}."
        )
    if links is not None and links.mean > 0.0:
        yield (
            f"Each message arrives {links.mean:g} s later on average "
            f"({links.distribution}, coefficient of variation {links.cv:g}), drawn "
            f"{drawn}."
        )
