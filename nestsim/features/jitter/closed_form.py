"""How long a step takes when all wait for the slowest, without simulating it.

An actor (a stage of a replica, whose ``t`` ranks work in lockstep) computes for a
random time. The step lasts as long as the slowest actor computes, and besides for what
it takes without jitter beyond the compute of the busiest actor:

    T = T_plain - max_a C_a + max_a C_a X_a,

where ``C_a`` is the compute of actor ``a`` in a step and ``X_a`` its random factor, of
mean 1 or, as the slowest of ``t`` ranks, a little more. With factors that last a step,
``X_a`` is the largest of ``t`` draws; with factors that last a pass or a segment, it is
the mean of that many draws, each the largest of ``t``, weighted by their durations
(`nestsim.features.jitter.order_statistics`).

Optimizer steps come behind a meeting of their own where gradients are reduced behind
the passes: unless factors last a step, their slowest one is added, as an independent
variate.

That is exact for the mean where actors meet before the optimizer step alone: without a
pipeline, whatever the replicas and the ranks of each, as long as gradients are not
reduced beside backward passes. Pipelines have a form of their own
(`nestsim.features.jitter.pipelines`). Delays of messages are left out.

Drawn documents add to an actor's sum what the attention of each microbatch takes more
or less than the average one (`nestsim.simulator.packed`). Stages of a replica have the
same documents, so that in a pipeline each replica is one actor: its busiest stage.

Each device is slow with a probability of its own, so that actors are independent of
each other. One is as slow as the slowest of its ranks: by a factor ``s`` or less with
the product of their probabilities of that. What its passes and its optimizer step then
take is what the cost model says of such devices: where passes wait for the host, or
memory sets the pace, a slow device costs less than its factor.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nestsim.features.jitter.order_statistics import (
    Corrected,
    Sampled,
    Shifted,
    Sum,
    Variate,
    moments,
    quantiles,
    slowest_of,
    weighted_sum,
)
from nestsim.scenario.jitter import JitterSpec
from nestsim.simulator.noise import Noise
from nestsim.simulator.packed import PackedWork
from nestsim.simulator.work import PipelineWork
from planner.step.instructions import BACKWARD, FIRST_FORWARD, FORWARD, WEIGHT
from planner.step.schedules import SCHEDULES
from topologies.arrays import FloatArray, IntArray

ALWAYS = Noise("normal", 0.0)
"""The factor of compute that does not vary."""


@dataclass(frozen=True, slots=True)
class ActorKind:
    """Actors that compute alike."""

    compute: float
    """Compute of each in a step, without jitter [s]."""

    factor: Sum
    """Random compute of each in a step [s]."""

    count: float
    """Number of them."""

    slow: "Slowness"
    """What the slow devices of a run multiply the compute of each by."""


class Slow(NamedTuple):
    """How slow the devices of an actor may be, and what its compute then takes."""

    probability: float
    """Probability of it."""

    factor: float
    """What its compute is multiplied by."""

    extra: float
    """What comes on top, as waiting for the host does, over its compute without
    jitter; below 0 where that is less on slow devices."""


Slowness = tuple[Slow, ...]
"""How slow an actor may be, the fastest first."""


class Paces(NamedTuple):
    """How slow devices are, and what they make of a step."""

    always: FloatArray
    """What compute times of each device of the fleet are multiplied by without jitter,
    shape ``(N,)``."""

    slowed: Callable[[float], PipelineWork]
    """Factor -> the step on devices that are all so many times slower."""


@dataclass(frozen=True)
class StepForm:
    """The distribution of a step's time."""

    base: float
    """What a step takes beside the compute of its slowest actor [s]."""

    actors: tuple[ActorKind, ...]
    """Actors, by kind."""

    update: "StepForm | None" = None
    """The slowest optimizer step, whose mean is part of `base`; None where it has no
    factor of its own."""

    corrected: bool = False
    """Whether sums have the term that is left out otherwise."""

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the probability that a step takes at most ``x`` [s].

        The optimizer step takes what it does on average.
        """
        over = np.maximum(x - self.base, 0.0)
        logarithm = np.zeros_like(over)
        with np.errstate(divide="ignore"):
            for kind in self.actors:
                in_time = sum(
                    pace.probability
                    * self._actor(
                        kind, (over - pace.extra * kind.compute) / pace.factor
                    )
                    for pace in kind.slow
                )
                logarithm += kind.count * np.log(in_time)
        return np.where(x < self.base, 0.0, np.exp(logarithm))

    def _actor(self, kind: ActorKind, over: FloatArray) -> FloatArray:
        factor = kind.factor
        variate: Variate = factor.variate
        if self.corrected and factor.left_out:
            variate = Corrected(factor)
        return variate.cdf(over)

    @cached_property
    def mean(self) -> float:
        """Expected time of a step [s]."""
        return moments(self).mean

    @cached_property
    def error(self) -> float:
        """By how much the mean moves with the first term that sums leave out [s]."""
        if not any(kind.factor.left_out for kind in self.actors):
            return 0.0
        other = replace(self, corrected=True)
        return abs(moments(other).mean - self.mean)

    def quantiles(self, shares: FloatArray) -> FloatArray:
        """Return the times that some shares of all steps do not exceed [s].

        The optimizer step is taken to be independent of what comes before it.
        """
        if self.update is None:
            return quantiles(self, shares)
        places = (np.arange(_NUM_UPDATES) + 0.5) / _NUM_UPDATES
        later = quantiles(self.update, places)
        return quantiles(_Later(self, later - later.mean()), shares)


_NUM_UPDATES = 64
"""Optimizer steps, equally probable, that stand for their distribution."""


@dataclass(frozen=True, slots=True)
class _Later:
    """A variate that ends later, by one of some equally probable times."""

    of: Variate
    """The variate."""

    later: FloatArray
    """By how much it may end later [s]."""

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the probability that it is at most ``x`` [s]."""
        of_each = np.array([self.of.cdf(x - later) for later in self.later])
        mean: FloatArray = of_each.mean(axis=0)
        return mean


def step_form(
    work: PipelineWork,
    plain_time: float,
    spec: JitterSpec,
    paces: Paces,
    multiple: int = 1,
    packed: PackedWork | None = None,
) -> StepForm:
    """Return the distribution of a step's time, all waiting for the slowest.

    Parameters
    ----------
    work
        The step, lowered.
    plain_time
        What it takes without jitter [s].
    spec
        What differs from step to step.
    paces
        How slow devices are.
    multiple
        How many times the replicas of the step there are, on as many times the devices;
        what the step takes beside its slowest actor stays the same.
    packed
        What drawn documents make of the step; None where none are drawn.
    """
    slow = slowness_of(work, spec, paces)
    kinds = [work.of_kind(kind) for kind in range(1 + len(work.others))]
    passes = [pieces for stage in kinds for pieces in _pass_compute(stage)]
    updates: list[Pieces] = [
        [(float(time), 1, 1)] for stage in kinds for time in stage.optimizer_time
    ]
    if spec.jitter.per == "step" or not meets_before_update(work, 0):
        # One factor for all that an actor does: its slowest passes and its slowest
        # optimizer step come together. Or it goes on with no regard to others.
        passes = [both + update for both, update in zip(passes, updates, strict=True)]
        updates = []
        slow = [slowness._replace(passes=slowness.both) for slowness in slow]
    base, update = plain_time, None
    if any(time > 0.0 for pieces in updates for time, _, _ in pieces):
        of_updates = [slowness.update for slowness in slow]
        actors = _actors(work, _Computes(updates), spec, of_updates, multiple)
        update = StepForm(0.0, actors)
        base += update.mean - _longest(actors)
    of_passes = [slowness.passes for slowness in slow]
    computes = _Computes(passes)
    if packed is not None:
        attention = [
            part
            for number, stage in enumerate(kinds)
            for part in _attention(stage, packed.of_kind(number))
        ]
        drawn = Sampled(packed.sequences), packed.per_microbatch
        computes = _Computes(passes, attention, drawn)
    actors = _actors(work, computes, spec, of_passes, multiple)
    return StepForm(base - _longest(actors), actors, update)


def meets_before_update(work: PipelineWork, stage: int) -> bool:
    """Return whether the replicas of a stage meet before the optimizer step."""
    ends = {0, len(work.devices) - 1}
    return bool(
        work.reduce_phases[stage]
        or work.reduce_buckets[stage]
        or (work.tied_phases and stage in ends)
    )


def _longest(actors: tuple[ActorKind, ...]) -> float:
    """Return the compute of the actor that has most of it, without jitter [s]."""
    return max(kind.compute for kind in actors)


def _actors(
    work: PipelineWork,
    computes: "_Computes",
    spec: JitterSpec,
    slow: Sequence[Slowness],
    multiple: int,
) -> tuple[ActorKind, ...]:
    """Return the actors by what they compute between two meetings.

    ``slow`` is what each actor's ranks make of their compute, stage by stage.
    """
    num_stages, num_replicas, num_ranks = work.devices.shape
    numbers = work.kind * num_stages + np.arange(num_stages)[:, None]
    firsts = [computes.first_like(number) for number in numbers.ravel().tolist()]
    actors = list(zip(firsts, slow, strict=True))
    if computes.drawn is not None:
        # One actor for each replica: the stage that computes most.
        busiest = max(range(num_stages), key=computes.total)
        actors = actors[busiest * num_replicas : (busiest + 1) * num_replicas]
    kinds = Counter(actors)
    return tuple(
        ActorKind(
            compute=computes.total(number),
            factor=_factor(computes, number, spec, work.num_microbatches, num_ranks),
            count=count * multiple,
            slow=of_ranks,
        )
        for (number, of_ranks), count in kinds.items()
    )


Pieces = list[tuple[float, int, int]]
"""Compute of one kind [s], how often a step has it, and its segments."""


class _Computes(NamedTuple):
    """What every stage computes, for one kind of devices after the other."""

    pieces: list[Pieces]
    """Compute without jitter."""

    attention: Sequence[float] = ()
    """What whole documents add to each microbatch [s]; empty if none are drawn."""

    drawn: tuple[Sampled, int] | None = None
    """Attention of a drawn sequence over that, and sequences of a microbatch."""

    def total(self, number: int) -> float:
        """Return the compute of a stage in a step, without jitter [s]."""
        return sum(time * count for time, count, _ in self.pieces[number])

    def first_like(self, number: int) -> int:
        """Return the first stage that computes the same."""
        for first, pieces in enumerate(self.pieces):
            alike = pieces == self.pieces[number]
            if alike and self.attention[first:][:1] == self.attention[number:][:1]:
                return first
        return number


def _attention(work: PipelineWork, packed: PackedWork) -> list[float]:
    """Return what whole documents add to a microbatch in each stage [s]."""
    kinds = [FORWARD, BACKWARD]
    if SCHEDULES[work.schedule].splits_backward:
        kinds.append(WEIGHT)
    return [
        sum(
            packed.growth(work, kind, number)
            * sum(move.duration for move in work.pass_moves(kind, number))
            for number in numbers
            for kind in kinds
        )
        for numbers in work.virtual_stages().number.tolist()
    ]


def _pass_compute(work: PipelineWork) -> list[Pieces]:
    """Return what the passes of each stage compute in a step."""
    virtual = work.virtual_stages()
    kinds = {FORWARD: work.forward_time, BACKWARD: work.backward_time}
    if SCHEDULES[work.schedule].splits_backward:
        kinds[WEIGHT] = work.weight_time
    stages: list[Pieces] = [[] for _ in work.devices]
    for stage, pieces in enumerate(stages):
        for number in virtual.number[stage].tolist():
            for kind, times in kinds.items():
                pieces.extend(_pieces(work, kind, number, float(times[number])))
    return stages


def _pieces(work: PipelineWork, kind: int, virtual: int, time: float) -> Pieces:
    """Return the compute of one kind of pass."""
    count = work.num_microbatches
    moves = work.pass_moves(kind, virtual)
    if work.layers is not None and len(moves) > 1:
        durations = Counter(move.duration for move in moves if move.duration > 0.0)
        return [(duration, count * number, 1) for duration, number in durations.items()]
    segments = max(1, work.segments_in(kind, virtual))
    return [(time - work.sent_in(kind, virtual), count, segments)]


def _factor(
    computes: _Computes,
    number: int,
    spec: JitterSpec,
    num_microbatches: int,
    num_ranks: int,
) -> Sum:
    """Return the random compute of an actor in a step [s]."""
    pieces = computes.pieces[number]
    documents: list[tuple[Variate, float, int]] = []
    if computes.drawn is not None:
        sequences, per_microbatch = computes.drawn
        count = num_microbatches * per_microbatch
        weight = computes.attention[number] / per_microbatch
        documents = [(sequences, weight, count)]
    slowest = slowest_of(spec.jitter.compute or ALWAYS, num_ranks)
    if spec.jitter.per == "step":
        worked = sum(time * count for time, count, _ in pieces)
        if documents:
            return weighted_sum([(slowest, worked, 1), *documents])
        return Sum(Shifted(slowest, worked, 0.0), 0.0)
    if spec.jitter.per == "pass":
        whole = Counter[float]()
        for time, count, _ in pieces:
            whole[time] += count
        return weighted_sum(
            [(slowest, *pieces) for pieces in whole.items()] + documents
        )
    return weighted_sum(
        [(slowest, time / parts, count * parts) for time, count, parts in pieces]
        + documents
    )


class ActorSlowness(NamedTuple):
    """How slow an actor may be, by what it computes."""

    passes: Slowness
    """In its passes."""

    update: Slowness
    """In its optimizer step."""

    both: Slowness
    """In both together."""


def slowness_of(
    work: PipelineWork, spec: JitterSpec, paces: Paces
) -> list[ActorSlowness]:
    """Return what the slow devices of a run do to each actor, stage by stage."""
    borders = spec.slow_borders().tolist()
    factors = [drawn.factor for drawn in spec.slow]
    shares = [1.0 - (borders[-1] if borders else 0.0), *np.diff([0.0, *borders])]
    ranks = list(zip([1.0, *factors], map(float, shares), strict=True))
    relative = np.sort(paces.always[work.devices], axis=-1)
    relative /= relative[..., -1:]
    at = {1.0: _ActorTimes.of(work)}
    slowness: dict[tuple[int, int, bytes], ActorSlowness] = {}
    every = []
    for stage, replica in np.ndindex(relative.shape[:2]):
        of_actor = relative[stage, replica]
        key = stage, int(work.kind[stage, replica]), of_actor.tobytes()
        if key not in slowness:
            places = _slowest_rank(of_actor, ranks)
            for factor, _ in places:
                if factor not in at:
                    at[factor] = _ActorTimes.of(paces.slowed(factor))
            slowness[key] = _slowness(
                [
                    (chance, at[factor].of_actor(stage, replica))
                    for factor, chance in places
                ],
                at[1.0].of_actor(stage, replica),
            )
        every.append(slowness[key])
    return every


class _ActorTimes(NamedTuple):
    """What actors compute in a step, and what their passes take besides."""

    kind: IntArray
    """Kind of each actor, shape ``(p, d)``."""

    times: FloatArray
    """Compute of the passes, the rest of them, and the optimizer step, by kind and
    stage, shape ``(K, p, 3)`` [s]."""

    @classmethod
    def of(cls, work: PipelineWork) -> "_ActorTimes":
        """Return what the actors of a step do."""
        times = []
        for number in range(1 + len(work.others)):
            own = work.of_kind(number)
            computed = np.array(
                [
                    sum(time * count for time, count, _ in pieces)
                    for pieces in _pass_compute(own)
                ]
            )
            times.append([computed, _sent(own), own.optimizer_time])
        return cls(work.kind, np.moveaxis(np.array(times), 1, 2))

    def of_actor(self, stage: int, replica: int) -> FloatArray:
        """Return the times of an actor, shape ``(3,)`` [s]."""
        times: FloatArray = self.times[self.kind[stage, replica], stage]
        return times


def _sent(work: PipelineWork) -> FloatArray:
    """Return what the passes of each stage take besides compute, shape ``(p,)`` [s]."""
    if work.layers is not None:
        return np.zeros(len(work.devices))
    kinds = [FORWARD, BACKWARD]
    if SCHEDULES[work.schedule].splits_backward:
        kinds.append(WEIGHT)
    numbers = work.virtual_stages().number
    sent = [
        [sum(work.sent_in(kind, number) for kind in kinds) for number in own]
        for own in numbers.tolist()
    ]
    total: FloatArray = work.num_microbatches * np.array(sent).sum(axis=1)
    more = [
        sum(work.sent_in(FIRST_FORWARD, n) - work.sent_in(FORWARD, n) for n in own)
        for own in numbers.tolist()
    ]
    return total + more


def _slowness(
    places: Sequence[tuple[float, FloatArray]], alone: FloatArray
) -> ActorSlowness:
    """Return how slow an actor may be, of what it then does and does without jitter."""

    def outcomes(computed: Sequence[int], besides: Sequence[int]) -> Slowness:
        usual = float(alone[computed].sum())
        if usual <= 0.0:
            return (Slow(1.0, 1.0, 0.0),)
        return tuple(
            Slow(
                chance,
                float(times[computed].sum()) / usual,
                float((times - alone)[besides].sum()) / usual,
            )
            for chance, times in places
        )

    return ActorSlowness(outcomes([0], [1]), outcomes([2], []), outcomes([0, 2], [1]))


def _slowest_rank(
    relative: FloatArray, ranks: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return how slow the slowest of an actor's ranks is: factors, rising, and chances.

    Parameters
    ----------
    relative
        How slow each rank is without jitter, relative to the slowest of them.
    ranks
        What a rank may be multiplied by, and the probability of each factor.
    """
    places = np.unique(np.outer(relative, [factor for factor, _ in ranks]))
    # The slowest is never faster than the one that is slowest without jitter.
    places = places[places >= 1.0]
    below = np.ones_like(places)
    for rank in relative.tolist():
        below *= sum(
            probability * (rank * factor <= places) for factor, probability in ranks
        )
    return [
        (factor, probability)
        for factor, probability in zip(
            places.tolist(), np.diff(below, prepend=0.0).tolist(), strict=True
        )
        if probability > 0.0
    ]


LEAST_ERROR = 1e-4
"""Error of a sum's distribution that is told, over the step without jitter."""


_OF_PIPELINES = {
    "packed": "a replica of a pipeline is as late as its busiest stage",
    "steady": "a pipeline's step is integrated over its stages' factors at some points",
    "changing": "moments in a pipeline are taken to be nearly normal variates",
}
"""What is approximated in a pipeline: with drawn documents, or by how long factors
last."""


def approximations(
    work: PipelineWork,
    spec: JitterSpec,
    *,
    sum_error: float,
) -> tuple[str, ...]:
    """Return why the closed form is not the simulation's mean, one clause each.

    Parameters
    ----------
    work
        The step, lowered.
    spec
        What differs from step to step.
    sum_error
        The largest `StepForm.error` of all numbers of replicas, over the step without
        jitter.
    """
    num_stages = len(work.devices)
    jitter = spec.jitter
    lines = []
    is_pipeline, is_steady = num_stages > 1, jitter.per == "step"
    if is_pipeline:
        way = "steady" if is_steady else "changing"
        lines.append(_OF_PIPELINES["packed" if jitter.draws_sequences else way])
    if any(work.reduce_buckets) or any(work.gather_buckets):
        lines.append("gradients or parameters are sent beside passes")
    if jitter.links is not None and jitter.links.mean > 0.0:
        if not is_pipeline:
            lines.append("delays of messages are left out")
        elif is_steady:
            lines.append("delays of messages are as long as on average")
    if work.layers is not None:
        lines.append("passes wait for collectives that are simulated one by one")
    if sum_error >= LEAST_ERROR:
        lines.append("sums of factors are known by their first three cumulants")
    return tuple(lines)
