"""Price the fixed configurations that an instance of the NEST artifact stores.

The artifact scores them with the pipeline back to front, see
`planner.nest_artifact.pricing.price_split`. Here each is priced three ways: as the
artifact scores it, with the stages in their true order and the same cuts, and with the
best cuts for its width, depth and replicas.
"""

import itertools
import math
from dataclasses import dataclass

from planner.nest_artifact.costs import ArtifactCosts
from planner.nest_artifact.instance import Baseline, NestInstance
from planner.nest_artifact.pricing import PricedSplit, price_split
from planner.nest_artifact.solver import best_cuts

WHY = (
    "The artifact prices its baselines back to front: it charges their last stage "
    "with what the first stage bears (recompute, the most microbatches in flight, the "
    "gradient all-reduce) and their first stage with what the last one is spared, "
    "while its own plans are priced in their true order."
)
"""Why the two values of a baseline differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One price of a baseline."""

    time_per_batch: float
    """Infinite if there is none [unit of the file]."""
    reason: str
    """Why there is none; empty if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredBaseline:
    """A baseline and its three prices."""

    baseline: Baseline
    as_scored: Score
    """As the artifact does it."""
    true_order: Score
    """The same cuts, the first stage first."""
    best_cuts: Score
    """The best cuts for its width, depth and replicas, in true order."""


def score_baselines(instance: NestInstance) -> tuple[ScoredBaseline, ...]:
    """Price every stored baseline, in the order of the file."""
    return tuple(_scored(instance, baseline) for baseline in instance.baselines)


def _scored(instance: NestInstance, baseline: Baseline) -> ScoredBaseline:
    if baseline.tensor not in instance.chains:
        none = _none(f"no graph of tensor width {baseline.tensor}")
        return ScoredBaseline(
            baseline=baseline, as_scored=none, true_order=none, best_cuts=none
        )
    bounds, problem = _cuts(baseline, instance.num_nodes)
    if problem:
        as_scored = true_order = _none(f"{problem}; the artifact crashes")
    else:
        costs = ArtifactCosts(instance, instance.chains[baseline.tensor])
        as_scored = _score(
            price_split(costs, bounds, baseline.data, order_reversed=True)
        )
        true_order = _score(price_split(costs, bounds, baseline.data))
    return ScoredBaseline(
        baseline=baseline,
        as_scored=as_scored,
        true_order=true_order,
        best_cuts=_with_best_cuts(instance, baseline),
    )


def _cuts(baseline: Baseline, num_nodes: int) -> tuple[tuple[int, ...], str]:
    """Return the cuts that the artifact makes for a baseline, and what is wrong.

    Equal numbers of *renumbered* nodes, rounded up, so that the embedding, position
    0, counts as a layer of the first stage; all nodes from the number of layers on go
    to the last stage.
    """
    p, n = baseline.pipeline, baseline.num_layers
    if p > num_nodes:
        return (), f"{p} stages for {num_nodes} nodes"
    if len(baseline.layer_partition) == p:
        ends = list(itertools.accumulate(baseline.layer_partition))
    else:
        ends = [min((k + 1) * -(-n // p), n) for k in range(p)]
    bounds = (0, *ends[:-1], num_nodes)
    if ends[-1] != min(n, num_nodes):
        return bounds, f"cuts for {ends[-1]} layers, {n} stored, {num_nodes} nodes"
    for k, (first, end) in enumerate(itertools.pairwise(bounds), start=1):
        if first >= end:
            return bounds, f"stage {k} of {p} is empty"
    return bounds, ""


def _with_best_cuts(instance: NestInstance, baseline: Baseline) -> Score:
    t, p, d = baseline.tensor, baseline.pipeline, baseline.data
    plan = best_cuts(instance, t, p, d)
    if plan is not None:
        return _score(plan)
    needed = p * d * instance.devices_per_stage(t)
    if needed > instance.num_devices:
        return _none(f"needs {needed} devices, there are {instance.num_devices}")
    if d > instance.num_microbatches:
        return _none(f"{d} replicas for {instance.num_microbatches} microbatches")
    if p > instance.num_nodes:
        return _none(f"{p} stages for {instance.num_nodes} nodes")
    return _none("no cuts fit in memory")


def _score(priced: PricedSplit) -> Score:
    return Score(time_per_batch=priced.time_per_batch, reason=priced.reason)


def _none(reason: str) -> Score:
    return Score(time_per_batch=math.inf, reason=reason)
