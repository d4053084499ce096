"""How long a step takes when all wait for the slowest, without simulating it.

An actor (a stage of a replica, whose ``t`` ranks work in lockstep) computes for a
random time. The step lasts as long as the slowest actor computes, and besides for what
it takes without jitter beyond the compute of the busiest actor:

    T = T_plain - max_a C_a + max_a C_a X_a,

where ``C_a`` is the compute of actor ``a`` in a step and ``X_a`` its random factor, of
mean 1 or, as the slowest of ``t`` ranks, a little more. With factors that last a step,
``X_a`` is the largest of ``t`` draws; with factors that last a pass or a segment, it is
the mean of that many draws, each the largest of ``t``, weighted by their durations
(`nestsim.jitter.order_statistics`).

Optimizer steps come behind a meeting of their own: unless factors last a step, their
slowest one is added, as an independent variate.

That is exact for the mean where actors meet before the optimizer step alone: without a
pipeline, whatever the replicas and the ranks of each, as long as gradients are not
reduced beside backward passes. In a pipeline it is a bound on neither side. Above the
mean it may be because stages before the last have slack: in 1F1B the forward passes
that stage ``s`` of ``p`` makes ahead, ``p - 1 - s`` of them, are not on the longest
path, so that a slow stage there costs less than its compute says, and because the
slowest stage's neighbours are faster than it. Below it may be because a stage also
waits for others that are late in single passes. Reports have what the simulation finds
beside it, and go on from there for more replicas. Delays of messages are left out.

Each device is slow with a probability of its own, so that actors are independent of
each other. One is as slow as the slowest of its ranks: by a factor ``s`` or less with
the product of their probabilities of that.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nestsim.jitter.order_statistics import (
    Corrected,
    Shifted,
    Sum,
    Variate,
    moments,
    quantiles,
    slowest_of,
    weighted_sum,
)
from nestsim.scenario.operations.jitter import JitterSpec
from nestsim.simulator.noise import Noise
from nestsim.simulator.work import PipelineWork
from planner.step.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT
from topologies.arrays import FloatArray

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


Slowness = tuple[tuple[float, float], ...]
"""Factors, rising from the least, and the probability of each."""


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
                    probability * self._actor(kind, over / factor)
                    for factor, probability in kind.slow
                )
                logarithm += kind.count * np.log(in_time)
        return np.where(x < self.base, 0.0, np.exp(logarithm))

    def _actor(self, kind: ActorKind, over: FloatArray) -> FloatArray:
        found = kind.factor
        variate: Variate = found.variate
        if self.corrected and found.left_out:
            variate = Corrected(found)
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
        of_each = np.array([self.of.cdf(x - one) for one in self.later])
        mean: FloatArray = of_each.mean(axis=0)
        return mean


def step_form(
    work: PipelineWork,
    plain_time: float,
    spec: JitterSpec,
    always: FloatArray,
    multiple: int = 1,
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
    always
        What compute times of each device of the fleet are multiplied by without jitter,
        shape ``(N,)``.
    multiple
        How many times the replicas of the step there are, on as many times the devices;
        what the step takes beside its slowest actor stays the same.
    """
    slow = _slowness(work, spec, always)
    kinds = [work.of_kind(kind) for kind in range(1 + len(work.others))]
    passes = [pieces for one in kinds for pieces in _pass_compute(one)]
    updates: list[Pieces] = [
        [(float(time), 1, 1)] for one in kinds for time in one.optimizer_time
    ]
    if spec.jitter.per == "step":
        # One factor for all that an actor does: its slowest passes and its slowest
        # optimizer step come together.
        passes = [both + one for both, one in zip(passes, updates, strict=True)]
        updates = []
    base, update = plain_time, None
    if any(time > 0.0 for pieces in updates for time, _, _ in pieces):
        actors = _actors(work, updates, spec, slow, multiple)
        update = StepForm(0.0, actors)
        base += update.mean - _longest(actors)
    actors = _actors(work, passes, spec, slow, multiple)
    return StepForm(base - _longest(actors), actors, update)


def _longest(actors: tuple[ActorKind, ...]) -> float:
    """Return the compute of the actor that has most of it, without jitter [s]."""
    return max(kind.compute for kind in actors)


def _actors(
    work: PipelineWork,
    computes: "list[Pieces]",
    spec: JitterSpec,
    slow: Sequence[Slowness],
    multiple: int,
) -> tuple[ActorKind, ...]:
    """Return the actors by what they compute between two meetings.

    ``computes`` has that of every stage, for one kind of devices after the other, and
    ``slow`` what each actor's ranks make of it, stage by stage.
    """
    num_stages, _, num_ranks = work.devices.shape
    numbers = work.kind * num_stages + np.arange(num_stages)[:, None]
    firsts = [computes.index(computes[one]) for one in numbers.ravel().tolist()]
    kinds = Counter(zip(firsts, slow, strict=True))
    return tuple(
        ActorKind(
            compute=sum(time * count for time, count, _ in computes[number]),
            factor=_factor(computes[number], spec, num_ranks),
            count=count * multiple,
            slow=of_ranks,
        )
        for (number, of_ranks), count in kinds.items()
    )


Pieces = list[tuple[float, int, int]]
"""Compute of one kind [s], how often a step has it, and its segments."""


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
        return [(each, count * number, 1) for each, number in durations.items()]
    segments = max(1, work.segments_in(kind, virtual))
    return [(time - work.sent_in(kind, virtual), count, segments)]


def _factor(pieces: Pieces, spec: JitterSpec, num_ranks: int) -> Sum:
    """Return the random compute of an actor in a step [s]."""
    slowest = slowest_of(spec.jitter.compute or ALWAYS, num_ranks)
    if spec.jitter.per == "step":
        worked = sum(time * count for time, count, _ in pieces)
        return Sum(Shifted(slowest, worked, 0.0), 0.0)
    if spec.jitter.per == "pass":
        whole = Counter[float]()
        for time, count, _ in pieces:
            whole[time] += count
        return weighted_sum([(slowest, *one) for one in whole.items()])
    return weighted_sum(
        [(slowest, time / parts, count * parts) for time, count, parts in pieces]
    )


def _slowness(
    work: PipelineWork, spec: JitterSpec, always: FloatArray
) -> list[Slowness]:
    """Return what the slow devices of a run do to each actor, stage by stage."""
    borders = spec.slow_borders().tolist()
    factors = [one.factor for one in spec.slow]
    shares = [1.0 - (borders[-1] if borders else 0.0), *np.diff([0.0, *borders])]
    ranks = list(zip([1.0, *factors], map(float, shares), strict=True))
    found: dict[bytes, Slowness] = {}
    relative = np.sort(always[work.devices], axis=-1)
    relative /= relative[..., -1:]
    every = []
    for of_actor in relative.reshape(-1, relative.shape[-1]):
        key = of_actor.tobytes()
        if key not in found:
            found[key] = _slowest_rank(of_actor, ranks)
        every.append(found[key])
    return every


def _slowest_rank(
    relative: FloatArray, ranks: Sequence[tuple[float, float]]
) -> Slowness:
    """Return how slow the slowest of an actor's ranks is.

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
    return tuple(
        (factor, probability)
        for factor, probability in zip(
            places.tolist(), np.diff(below, prepend=0.0).tolist(), strict=True
        )
        if probability > 0.0
    )


LEAST_ERROR = 1e-4
"""Error of a sum's distribution that is told, over the step without jitter."""


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
    said = []
    if num_stages > 1:
        said.append(
            "in a pipeline it is too large where slow stages have slack, and too small "
            "where stages wait for each other in single passes"
        )
    if any(work.reduce_buckets) or any(work.gather_buckets):
        said.append("gradients or parameters are sent beside passes")
    if jitter.links is not None and jitter.links.mean > 0.0:
        said.append("delays of messages are left out")
    if work.layers is not None:
        said.append("passes wait for collectives that are simulated one by one")
    if sum_error >= LEAST_ERROR:
        said.append("sums of factors are known by their first three cumulants")
    return tuple(said)
