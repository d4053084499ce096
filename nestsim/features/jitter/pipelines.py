"""How long a step of a pipeline takes when stages wait for each other, by its moments.

A replica's step is a graph of moments (`event_graph`): each is the later
one of two others, and a duration after it. Replicas meet once, behind their passes; so
the step is as long as the slowest replica's, and the distribution function of that is
the product of theirs.

*One factor a step.* A replica's step is a function of one factor of each stage. Its
distribution is that over the points of a lattice rule, which fill the cube of the
stages' probabilities evenly [2]_. A stage's slow devices are a part of its axis; where
they are rare, the part is larger than their probability, and points have weights.

*Factors of passes and operators.* There are too many for that. Each moment is taken to
be normal; the larger one of two has the mean and variance of Clark's formulas, and so
have its covariances with all others [1]_. Which stages are slow is summed over.

Optimizer steps come behind a meeting of their own: unless factors last a step, each is
as long as the slowest replica's. Delays of messages are there with their means, and in
the second case with their variances.

What the step takes without jitter is that of the replay: what transfers that meet on
links add to it is left as it is.

References
----------
.. [1] Clark, "The greatest of a finite set of random variables", Operations Research
   9(2) 1961.
.. [2] Sloan, Joe, *Lattice Methods for Multiple Integration*, Oxford 1994, section 4.4
   (Korobov rules).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from nestsim.features.jitter.closed_form import (
    ALWAYS,
    ActorSlowness,
    Paces,
    Slowness,
    StepForm,
    meets_before_update,
    slowness_of,
    step_form,
)
from nestsim.features.jitter.event_graph import EventGraph, event_graph
from nestsim.features.jitter.order_statistics import (
    PearsonThree,
    Shifted,
    Slowest,
    Variate,
    moments,
    slowest_of,
)
from nestsim.scenario.jitter import JitterSpec
from nestsim.simulator.build import build_model
from nestsim.simulator.jittered import timings_of
from nestsim.simulator.kernels.jitter import latest_cumulants, latest_moments
from nestsim.simulator.packed import PackedWork
from nestsim.simulator.work import PipelineWork
from topologies.arrays import FloatArray
from topologies.network import Network

GENERATOR = 221
"""Multiplier of the lattice: of those that are 3 or 5 modulo 8, the one that is worst
by the least factor in 8, 16 and 32 dimensions with 512 to 4,096 points, by the mean
square of their pairs' Bernoulli polynomials."""

MOST_POINTS = 4096
"""Points of the lattice."""

LEAST_POINTS = 512
"""Points of the lattice where there is much to compute at each."""

_FEWEST_MIXED = 64
"""Points over which stages are slow, where factors are of passes or operators."""

_MUCH = 2.0**26
"""Operations on moments of a form, about: a fifth of a second."""

_PLACES = 4001
"""Times at which a distribution of normal variates is looked at."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """A factor of an actor that is slow at times."""

    of: Variate
    """The factor."""

    slow: Slowness
    """How slow it may be."""

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the probability that it is at most ``x``."""
        total = np.zeros_like(x)
        for pace in self.slow:
            total += pace.probability * self.of.cdf((x - pace.extra) / pace.factor)
        return total


@dataclass(frozen=True, slots=True)
class PipelineForm:
    """The distribution of a step's time, by the times that it may be."""

    times: FloatArray
    """Times, rising, shape ``(K,)`` [s]."""

    reached: FloatArray
    """Probability that a step takes no more than each, shape ``(K,)``."""

    error: float = 0.0
    """By how much the mean moves with the first term that sums leave out [s]."""

    @property
    def mean(self) -> float:
        """Expected time of a step [s]."""
        return float(np.dot(self.times, np.diff(self.reached, prepend=0.0)))

    def quantiles(self, shares: FloatArray) -> FloatArray:
        """Return the times that some shares of all steps do not exceed [s]."""
        places = np.searchsorted(self.reached, shares * self.reached[-1])
        times: FloatArray = self.times[np.minimum(places, self.times.size - 1)]
        return times


@dataclass(frozen=True, slots=True)
class _AlikeReplicas:
    """Replicas whose steps are distributed alike."""

    graph: EventGraph
    slow: tuple[ActorSlowness, ...]
    """How slow the actor of each stage may be."""

    count: int
    """Number of them."""


@dataclass(frozen=True, slots=True)
class _Mixture:
    """One of several variates, each with a probability."""

    of: tuple[PearsonThree, ...]
    """The variates."""

    weights: FloatArray
    """Their probabilities."""

    def ends(self) -> tuple[float, float]:
        """Return two values that it is hardly ever outside of."""
        reach = [(variate.mean, math.sqrt(variate.variance)) for variate in self.of]
        return (
            min(mean - 8.0 * spread for mean, spread in reach),
            max(mean + 14.0 * spread for mean, spread in reach),
        )

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the probability that it is at most ``x``."""
        total = np.zeros_like(x)
        for variate, weight in zip(self.of, self.weights.tolist(), strict=True):
            total += weight * variate.cdf(x)
        return total


def _variate(mean: float, variance: float, third: float) -> PearsonThree:
    """Return the variate of three cumulants."""
    skewness = third / variance**1.5 if variance > 0.0 else 0.0
    return PearsonThree(mean, variance, skewness)


@dataclass(frozen=True, slots=True)
class PipelineMoments:
    """The moments of a step, ready for forms of it.

    Parameters
    ----------
    replicas
        Replicas by kind.
    spec
        What differs from step to step.
    num_ranks
        Ranks of an actor, which work in lockstep.
    plain_time
        A step without jitter [s].
    """

    replicas: tuple[_AlikeReplicas, ...]
    spec: JitterSpec
    num_ranks: int
    plain_time: float

    @classmethod
    def of(
        cls,
        network: Network,
        work: PipelineWork,
        plain_time: float,
        spec: JitterSpec,
        paces: Paces,
    ) -> "PipelineMoments":
        """Return the moments of a step.

        Parameters
        ----------
        network, work
            The step, lowered.
        plain_time
            What it takes without jitter [s].
        spec
            What differs from step to step.
        paces
            How slow devices are.
        """
        model = build_model(network, work)
        timings = timings_of(model, work, spec.jitter.per)
        num_stages, num_replicas, num_ranks = work.devices.shape
        slow = slowness_of(work, spec, paces)
        meets = [meets_before_update(work, stage) for stage in range(num_stages)]
        for actor, slowness in enumerate(slow):
            if not meets[actor // num_replicas]:
                slow[actor] = slowness._replace(passes=slowness.both)
        programs = model.system.program.reshape(-1, num_replicas).T.tolist()
        keys = [
            (tuple(program), tuple(slow[replica::num_replicas]))
            for replica, program in enumerate(programs)
        ]
        return cls(
            tuple(
                _AlikeReplicas(
                    event_graph(model, timings, keys.index(key), meets), key[1], n
                )
                for key, n in Counter(keys).items()
            ),
            spec,
            num_ranks,
            plain_time,
        )

    def form(self, multiple: int = 1) -> PipelineForm:
        """Return the distribution of a step's time.

        Parameters
        ----------
        multiple
            How many times the replicas there are.
        """
        alone = max(_without_jitter(alike.graph) for alike in self.replicas)
        base = self.plain_time - alone
        updates = self._slowest_updates(multiple)
        if self.spec.jitter.per == "step":
            steps = [self._by_points(alike, updates) for alike in self.replicas]
            times = np.unique(np.concatenate([ends for ends, _ in steps]))
            looked_up = times
        else:
            mixtures = [self._mixture(alike, updates) for alike in self.replicas]
            reach = np.array([mixture.ends() for mixture in mixtures])
            low, high = reach[:, 0].min(), reach[:, 1].max()
            looked_up = np.linspace(low, max(high, low * (1.0 + 1e-12)), _PLACES)
            times = looked_up - 0.5 * (looked_up[1] - looked_up[0])
            steps = [(looked_up, mixture.cdf(looked_up)) for mixture in mixtures]
        logarithm = np.zeros_like(times)
        with np.errstate(divide="ignore"):
            for alike, (ends, reached) in zip(self.replicas, steps, strict=True):
                places = np.searchsorted(ends, looked_up, side="right")
                at = np.append(0.0, reached)[places]
                logarithm += alike.count * multiple * np.log(at)
        return PipelineForm(base + times, np.exp(logarithm))

    def _by_points(
        self, alike: _AlikeReplicas, updates: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return times of a replica's step, rising, and how probably each is reached.

        With one factor a step.
        """
        graph = alike.graph
        size = graph.fixed.size * len(self.replicas)
        num_points = _halved(MOST_POINTS, LEAST_POINTS, _MUCH / size)
        passes = [slowness.passes for slowness in alike.slow]
        slow, rest, weights = _points(passes, num_points)
        drawn = np.ones_like(rest)
        compute = self.spec.jitter.compute
        if compute is not None and compute.varies:
            drawn = compute.slowest(1.0 - rest, self.num_ranks)
        times = latest_moments(
            graph.operations,
            self._fixed(graph, updates),
            graph.compute,
            graph.actor,
            np.ascontiguousarray(slow[..., 0] * drawn + slow[..., 1]),
        )
        order = np.argsort(times, kind="stable")
        reached = np.cumsum(weights[order])
        return times[order], reached / reached[-1]

    def _fixed(self, graph: EventGraph, updates: FloatArray) -> FloatArray:
        """Return what durations have besides the compute of passes [s].

        Mean delays are included.
        """
        fixed: FloatArray = graph.fixed + (graph.update > 0.0) * updates[graph.actor]
        links = self.spec.jitter.links
        return fixed if links is None else fixed + graph.messages * links.mean

    def _slowest_updates(self, multiple: int) -> FloatArray:
        """Return what the slowest optimizer step of each stage takes on average [s]."""
        factor = slowest_of(self.spec.jitter.compute or ALWAYS, self.num_ranks)
        num_stages = len(self.replicas[0].slow)
        means = np.zeros(num_stages)
        usual = [
            np.bincount(alike.graph.actor, alike.graph.update, num_stages).tolist()
            for alike in self.replicas
        ]
        for stage in range(num_stages):
            of_replicas = tuple(
                (
                    Shifted(
                        Slowed(factor, alike.slow[stage].update), times[stage], 0.0
                    ),
                    float(alike.count * multiple),
                )
                for alike, times in zip(self.replicas, usual, strict=True)
                if times[stage] > 0.0
            )
            if of_replicas:
                means[stage] = moments(Slowest(of_replicas)).mean
        return means

    def _mixture(self, alike: _AlikeReplicas, updates: FloatArray) -> _Mixture:
        """Return the distribution of a replica's step by which stages are slow."""
        graph, links = alike.graph, self.spec.jitter.links
        factor = moments(slowest_of(self.spec.jitter.compute or ALWAYS, self.num_ranks))
        passes = [slowness.passes for slowness in alike.slow]
        size = graph.fixed.size * graph.operations.num_slots * len(self.replicas)
        num_points = 1
        if any(len(slowness) > 1 for slowness in passes):
            num_points = _halved(LEAST_POINTS, _FEWEST_MIXED, 4.0 * _MUCH / size)
        drawn, _, of_points = _points(passes, num_points)
        slow, place = np.unique(drawn, axis=0, return_inverse=True)
        weights = np.bincount(place.reshape(-1), of_points)
        fixed = self._fixed(graph, updates)
        delayed = 0.0 if links is None else graph.messages * links.variance
        variates = []
        for row in slow:
            times, more = row[graph.actor].T
            mean = fixed + graph.compute * (times * factor.mean + more)
            varying = graph.varying * times
            variance = varying**2 / graph.num_draws * factor.variance
            third = varying**3 / graph.num_draws**2
            third *= factor.skewness * factor.variance**1.5
            cumulants = latest_cumulants(
                graph.operations, mean, variance + delayed, third
            )
            variates.append(_variate(*cumulants.tolist()))
        return _Mixture(tuple(variates), weights / weights.sum())


def _without_jitter(graph: EventGraph) -> float:
    """Return what a replica's step takes without jitter [s]."""
    ones = np.ones((1, int(graph.actor.max()) + 1))
    compute = graph.compute + graph.update
    (end,) = latest_moments(graph.operations, graph.fixed, compute, graph.actor, ones)
    return float(end)


def _halved(most: int, least: int, bearable: float) -> int:
    """Return `most`, halved until it is bearable, or the least."""
    while most > least and most > bearable:
        most //= 2
    return most


def _points(
    slow: Sequence[Slowness], num_points: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the points of a lattice over the stages of a replica.

    Returns
    -------
    tuple
        What slow devices multiply the compute of each stage by, and what comes on top,
        shape ``(P, p, 2)``; the probability that its factor is smaller, shape ``(P,
        p)``; the weight of each point, shape ``(P,)``.
    """
    number = np.arange(num_points)
    factors = np.empty((num_points, len(slow), 2))
    rest, weights = np.empty((num_points, len(slow))), np.ones(num_points)
    generator = 1
    for stage, outcomes in enumerate(slow):
        place = (number * generator % num_points + 0.5) / num_points
        generator = generator * GENERATOR % num_points
        probability = np.array([pace.probability for pace in outcomes])
        least = 1.0 / (4.0 * len(slow) * probability.size)
        share = np.maximum(probability, least if probability.size > 1 else 0.0)
        share /= share.sum()
        ends = np.cumsum(share)
        which = np.minimum(np.searchsorted(ends, place), probability.size - 1)
        factors[:, stage] = np.array([pace[1:] for pace in outcomes])[which]
        inside = (place - (ends - share)[which]) / share[which]
        rest[:, stage] = np.clip(inside, 0.5 / num_points, 1.0 - 0.5 / num_points)
        weights *= (probability / share)[which]
    return factors, rest, weights


def form_of(
    network: Network,
    work: PipelineWork,
    plain_time: float,
    spec: JitterSpec,
    paces: Paces,
    packed: PackedWork | None = None,
) -> Callable[[int], StepForm | PipelineForm]:
    """Return what has the distribution of a step for each multiple of its replicas.

    Parameters
    ----------
    network, work
        The step, lowered.
    plain_time
        What it takes without jitter [s].
    spec
        What differs from step to step.
    paces
        How slow devices are.
    packed
        What drawn documents make of the step; None where none are drawn.
    """
    if len(work.devices) > 1 and packed is None:
        return PipelineMoments.of(network, work, plain_time, spec, paces).form
    return partial(step_form, work, plain_time, spec, paces, packed=packed)
