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
reduced beside backward passes. In a pipeline a stage also waits for others that are
late in single passes, so that the step takes longer: the closed form is then below the
mean, and reports have what the simulation finds beside it. Delays of messages are left
out.

Of the fleet's ``N`` devices ``K`` drawn ones are slow. They hit at most
``n = min(K, A)`` of the ``A`` actors, on average ``H = A (1 - C(N - t, K) / C(N, K))``.
The number is taken to be binomial, of ``n`` trials with probability ``H / n``, each of
any stage and independent of other entries. That is exact for ``t = 1`` and a job on all
devices, where every slow one hits another actor.
"""

import math
from collections import Counter
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


@dataclass(frozen=True, slots=True)
class SlowTrials:
    """Actors that a slow rank may hit."""

    factor: float
    """What their compute is multiplied by."""

    count: int
    """Most of them that can be hit in a run."""

    probability: float
    """Probability of each to be hit."""


@dataclass(frozen=True)
class StepForm:
    """The distribution of a step's time."""

    base: float
    """What a step takes beside the compute of its slowest actor [s]."""

    actors: tuple[ActorKind, ...]
    """Actors, by kind."""

    trials: tuple[SlowTrials, ...]
    """What slow devices of each run do."""

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
        each = []
        with np.errstate(divide="ignore", invalid="ignore"):
            for kind in self.actors:
                each.append(self._actor(kind, over))
                logarithm += kind.count * np.log(each[-1])
            total = np.exp(logarithm)
            num_actors = sum(kind.count for kind in self.actors)
            for trial in self.trials:
                ratio = np.zeros_like(over)
                for kind, healthy in zip(self.actors, each, strict=True):
                    slow = self._actor(kind, over / trial.factor)
                    part = np.where(healthy > 0.0, slow / healthy, 0.0)
                    ratio += kind.count / num_actors * part
                kept = 1.0 - trial.probability + trial.probability * ratio
                total *= kept**trial.count
        return np.where(x < self.base, 0.0, total)

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
        """Return the times that some shares of all steps do not exceed [s]."""
        if self.update is None:
            return quantiles(self, shares)
        both = weighted_sum([(self, 1.0, 1), (self.update, 1.0, 1)])
        return quantiles(both.variate, shares) - self.update.mean


def step_form(
    work: PipelineWork,
    plain_time: float,
    spec: JitterSpec,
    num_devices: int,
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
    num_devices
        Devices of the fleet.
    multiple
        How many times the replicas of the step there are, in as many times the fleet;
        what the step takes beside its slowest actor stays the same.
    """
    num_ranks = work.devices.shape[2]
    num_actors = work.devices[:, :, 0].size * multiple
    trials = _trials(spec, num_actors, num_ranks, num_devices * multiple)
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
        actors = _actors(work, updates, spec, multiple)
        update = StepForm(0.0, actors, trials)
        base += update.mean - _longest(actors)
    actors = _actors(work, passes, spec, multiple)
    return StepForm(base - _longest(actors), actors, trials, update)


def _longest(actors: tuple[ActorKind, ...]) -> float:
    """Return the compute of the actor that has most of it, without jitter [s]."""
    return max(kind.compute for kind in actors)


def _actors(
    work: PipelineWork, computes: "list[Pieces]", spec: JitterSpec, multiple: int
) -> tuple[ActorKind, ...]:
    """Return the actors by what they compute between two meetings.

    ``computes`` has that of every stage, for one kind of devices after the other.
    """
    num_stages, _, num_ranks = work.devices.shape
    numbers = work.kind * num_stages + np.arange(num_stages)[:, None]
    kinds = Counter(computes.index(computes[one]) for one in numbers.ravel().tolist())
    return tuple(
        ActorKind(
            compute=sum(time * count for time, count, _ in computes[number]),
            factor=_factor(computes[number], spec, num_ranks),
            count=count * multiple,
        )
        for number, count in kinds.items()
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


def _trials(
    spec: JitterSpec, num_actors: int, num_ranks: int, num_devices: int
) -> tuple[SlowTrials, ...]:
    """Return what the slow devices of each run may hit."""
    found = []
    healthy = num_devices
    for slow in spec.slow:
        # Entries take different devices, as long as there are any left.
        num_slow = min(slow.num_slow(num_devices), healthy)
        healthy -= num_slow
        places = np.arange(num_ranks)
        missed = np.maximum(num_devices - num_slow - places, 0) / (num_devices - places)
        expected = num_actors * (1.0 - math.prod(missed.tolist()))
        count = min(num_slow, num_actors)
        if count and slow.factor > 1.0:
            found.append(SlowTrials(slow.factor, count, min(expected / count, 1.0)))
    return tuple(found)


LEAST_ERROR = 1e-4
"""Error of a sum's distribution that is told, over the step without jitter."""


def approximations(
    work: PipelineWork,
    spec: JitterSpec,
    num_devices: int,
    *,
    fewest_devices: int,
    sum_error: float,
) -> tuple[str, ...]:
    """Return why the closed form is not the simulation's mean, one clause each.

    Parameters
    ----------
    work
        The step, lowered.
    spec
        What differs from step to step.
    num_devices
        Devices of the fleet.
    fewest_devices
        Devices of the fewest replicas that are simulated.
    sum_error
        The largest `StepForm.error` of all numbers of replicas, over the step without
        jitter.
    """
    num_stages, _, num_ranks = work.devices.shape
    jitter = spec.jitter
    said = []
    if num_stages > 1:
        said.append("stages of a pipeline wait for each other in single passes")
    if any(work.reduce_buckets) or any(work.gather_buckets):
        said.append("gradients or parameters are sent beside passes")
    if jitter.links is not None and jitter.links.mean > 0.0:
        said.append("delays of messages are left out")
    if work.layers is not None:
        said.append("passes wait for collectives that are simulated one by one")
    num_slow = sum(slow.num_slow(num_devices) for slow in spec.slow)
    is_part = num_ranks > 1 or work.devices.size < num_devices
    if (spec.slow and is_part) or (num_slow > 1 and fewest_devices < num_devices):
        said.append("how many replicas have slow devices is taken to be binomial")
    if sum_error >= LEAST_ERROR:
        said.append("sums of factors are known by their first three cumulants")
    return tuple(said)
