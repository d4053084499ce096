"""Solve an instance of the published NEST artifact under its own cost model, exactly.

For every tensor-parallel width a dynamic program over stages from the end, see
`planner.kernels.nest_artifact`; the best width wins. Widths without a solution are
passed over, where the artifact gives up.

The plans by hand that an instance stores are priced three ways: as the artifact scores
them, which is with the pipeline back to front (`planner.rivals.nest_artifact.costs`),
with the stages in their true order and the same cuts, and with the best cuts for their
width, depth and replicas.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from planner.kernels import nest_artifact as kernels
from planner.rivals.nest_artifact.costs import ArtifactCosts, PricedSplit, price_split
from planner.rivals.nest_artifact.instance import (
    ArtifactTraffic,
    Baseline,
    LayerChain,
    NestInstance,
)
from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError

MAX_CELLS = 50_000_000
"""Cells of the largest table of a search with ZeRO; a cell has ten bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NestSolution:
    """The answer to one instance."""

    instance: NestInstance
    """Instance that was solved."""
    plan: PricedSplit | None
    """Best plan; None if there is none."""
    reason: str
    """Why there is no plan; empty if there is one."""
    solve_seconds: float
    """Time of the search, without reading the file and without compiling kernels
    [s]."""


class ArtifactSplit(NamedTuple):
    """A split that a kernel returned."""

    value: float
    """Time of one batch [unit of the file]."""
    data: int
    """Number of replicas."""
    bounds: tuple[int, ...]
    """First node of each stage, and the number of nodes."""


def solve(instance: NestInstance) -> NestSolution:
    """Find the plan of the least time per batch over widths, replicas and cuts.

    Returns
    -------
    NestSolution
        Without a plan, but with the reason, if nothing fits. Ties go to the narrowest
        width, then to fewer stages, the earliest end of the first stage and more
        replicas.
    """
    zeros = zero_widths(instance)
    warm_up(zero=any(zeros.values()))
    start = time.perf_counter()
    plan: PricedSplit | None = None
    best, chosen = math.inf, None
    for t, chain in instance.chains.items():
        split = _best_split(instance, chain, zero=zeros[t], cutoff=best)
        if split is not None:
            best, chosen = split.value, (t, split)
    if chosen is not None:
        t, split = chosen
        costs = ArtifactCosts(instance, instance.chains[t], zero=zeros[t])
        plan = price_split(costs, split.bounds, split.data)
        assert math.isclose(plan.time_per_batch, best, rel_tol=1e-12)
    seconds = time.perf_counter() - start
    return NestSolution(
        instance=instance,
        plan=plan,
        reason="" if plan else _reason(instance),
        solve_seconds=seconds,
    )


def best_cuts(
    instance: NestInstance, tensor: int, pipeline: int, data: int
) -> PricedSplit | None:
    """Return the best cuts for a given width, depth and number of replicas.

    Without ZeRO. None if no cuts fit.
    """
    chain = instance.chains[tensor]
    split = _best_split(instance, chain, pipeline=pipeline, data=data)
    if split is None:
        return None
    return price_split(ArtifactCosts(instance, chain), split.bounds, split.data)


def zero_widths(instance: NestInstance) -> dict[int, bool]:
    """Return at which widths stages may be sharded with ZeRO, by the artifact's rule.

    It looks at the last node alone. Once that has fitted a device without ZeRO, at
    this width or a narrower one, ZeRO is off for good.
    """
    last = instance.num_nodes - 1
    allowed, sharded = True, {}
    for t, chain in instance.chains.items():
        costs = ArtifactCosts(instance, chain, zero=True)
        allowed = allowed and costs.most_in_flight(last, last + 1) == 0
        sharded[t] = allowed and costs.sharding(last, last + 1) is not None
    return sharded


@lru_cache
def warm_up(*, zero: bool) -> None:
    """Compile the kernels that a solve needs, or load them from numba's cache."""
    link = (ArtifactTraffic(0, 1.0),)
    chain = LayerChain(
        tensor=1,
        parameters=(1.0, 1.0),
        activations=(0.0, 0.0),
        forward=(1.0, 1.0),
        backward=(1.0, 1.0),
        incoming=((), link),
        outgoing=((ArtifactTraffic(1, 1.0),), ()),
    )
    tiny = NestInstance(
        ids=(0, 1),
        chains={1: chain},
        num_devices=4,
        memory_bytes=4.0,
        num_microbatches=1,
        bandwidths=(1.0,),
        latencies=(0.0,),
        group_sizes=(4,),
        expert_parallel=1,
        context_parallel=1,
        recompute=False,
        optimizer="SGD",
        frequency=1.0,
    )
    for sharded in {False, zero}:
        _best_split(tiny, chain, zero=sharded)


def _best_split(
    instance: NestInstance,
    chain: LayerChain,
    *,
    zero: bool = False,
    pipeline: int = 0,
    data: int = 0,
    cutoff: float = math.inf,
) -> ArtifactSplit | None:
    """Return the best split of one width below a cutoff, None if there is none."""
    width = instance.devices_per_stage(chain.tensor)
    units = instance.num_devices // width
    if units == 0:
        return None
    bandwidth, latency = np.array(instance.bandwidths), np.array(instance.latencies)
    group_devices = np.cumprod(np.array(instance.group_sizes, dtype=np.float64))
    # A group of more than all devices is as good as one of all, and fits an integer.
    group_devices = np.minimum(group_devices, instance.num_devices).astype(np.int64)
    incoming = _edges(chain.incoming)
    kept, alive, stash = _memory_tables(instance, chain, incoming)
    in_flight, degree, zero_stage = kernels.fill_in_flight(
        kept, alive, stash, instance.memory_bytes, instance.num_devices, width,
        instance.optimizer == "Adam", zero,
    )  # fmt: skip
    times = kernels.time_tables(
        np.array(chain.forward), np.array(chain.backward), incoming,
        _edges(chain.outgoing), np.minimum.accumulate(bandwidth), latency,
        instance.recompute, in_flight,
    )  # fmt: skip
    job = kernels.NestJob(
        width, instance.num_devices, instance.num_microbatches, bandwidth, latency,
        group_devices,
    )  # fmt: skip
    if not zero:
        link = _links(group_devices, width, min(units, chain.num_nodes))
        status, value, best_data, bounds = kernels.split_even(
            times, in_flight, kept, link, job, pipeline, data, cutoff
        )
    else:
        _check_size(units, chain.num_nodes)
        costs = ArtifactCosts(instance, chain)
        extra = np.zeros(kept.shape)
        for stage in (2, 3):
            extra[zero_stage == stage] = costs.sharding_time(stage)
        status, value, best_data, bounds = kernels.split_uneven(
            times, in_flight, np.where(zero_stage == 3, kept / degree, kept), degree,
            extra, _links(group_devices, width, units), job, cutoff,
        )  # fmt: skip
    if status == kernels.NOT_BETTER:
        return None
    return ArtifactSplit(value, int(best_data), tuple(bounds.tolist()))


def _memory_tables(
    instance: NestInstance,
    chain: LayerChain,
    incoming: kernels.Edges,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    tables: tuple[FloatArray, FloatArray, FloatArray] = kernels.memory_tables(
        np.array(chain.parameters),
        np.array(chain.activations),
        incoming,
        instance.recompute,
    )
    return tables


def _edges(
    traffic: Sequence[Sequence[ArtifactTraffic]],
) -> kernels.Edges:
    """Return the edges of all nodes."""
    flat = [edge for edges in traffic for edge in edges]
    start = np.zeros(len(traffic) + 1, dtype=np.int64)
    np.cumsum([len(edges) for edges in traffic], out=start[1:])
    node = np.array([edge.node for edge in flat], dtype=np.int64)
    num_bytes = np.array([edge.num_bytes for edge in flat], dtype=np.float64)
    return kernels.Edges(start, node, num_bytes)


def _links(group_devices: IntArray, width: int, count: int) -> IntArray:
    """Return the level between units ``k - 1`` and ``k`` of ``width`` devices.

    For ``1 <= k < count``; entry 0 is unused.
    """
    here = np.arange(count) * width
    apart = (here - 1) // group_devices[:, None] != here // group_devices[:, None]
    level: IntArray = np.minimum(apart.sum(axis=0), len(group_devices) - 1)
    return level


def _check_size(units: int, num_nodes: int) -> None:
    cells = (min(units, num_nodes) + 1) * (num_nodes + 1) * (units + 1)
    if cells > MAX_CELLS:
        raise InputError(
            "needs ZeRO, and is too large for a search with it",
            got=f"{cells} states",
            expected=f"at most {MAX_CELLS}",
        )


def _reason(instance: NestInstance) -> str:
    """Return what is missing at the width that comes closest to fitting."""
    needs = [_least_need(instance, chain) for chain in instance.chains.values()]
    return min(needs)[1]


def _least_need(instance: NestInstance, chain: LayerChain) -> tuple[float, str]:
    """Return the memory that a width needs at least, and what is missing in words."""
    width = instance.devices_per_stage(chain.tensor)
    name = f"tensor width {chain.tensor}"
    need, stages = kernels.least_memory(
        *_memory_tables(instance, chain, _edges(chain.incoming)),
        instance.num_devices // width,
        instance.optimizer == "Adam",
    )
    if stages == 0:
        devices = f"a stage takes {width} devices, there are {instance.num_devices}"
        return math.inf, f"{name}: {devices}"
    return need, (
        f"{name}: without ZeRO even the split that needs least, into {stages} stages, "
        f"needs {need / 2**30:.4g} GiB on a device, which has "
        f"{instance.memory_bytes / 2**30:.4g} GiB"
    )


WHY = (
    "The artifact prices its baselines back to front: it charges their last stage "
    "with what the first stage bears (recompute, the most microbatches in flight, the "
    "gradient all-reduce) and their first stage with what the last one is spared, "
    "while its own plans are priced in their true order."
)
"""Why the two values of a baseline differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredBaseline:
    """A baseline and its three prices."""

    baseline: Baseline
    """Plan by hand that is scored."""
    as_scored: PricedSplit
    """Price that the artifact gives it."""
    true_order: PricedSplit
    """Price of the same cuts, the first stage first."""
    best_cuts: PricedSplit
    """Price of the best cuts for its width, depth and replicas, in true order."""


def score_baselines(instance: NestInstance) -> tuple[ScoredBaseline, ...]:
    """Price every stored baseline, in the order of the file."""
    return tuple(_score_baseline(instance, baseline) for baseline in instance.baselines)


def _score_baseline(instance: NestInstance, baseline: Baseline) -> ScoredBaseline:
    if baseline.tensor not in instance.chains:
        none = _no_price(baseline, f"no graph of tensor width {baseline.tensor}")
        return ScoredBaseline(
            baseline=baseline, as_scored=none, true_order=none, best_cuts=none
        )
    bounds, problem = _cuts(baseline, instance.num_nodes)
    if problem:
        problem = f"{problem}; the artifact crashes"
        as_scored = true_order = _no_price(baseline, problem)
    else:
        costs = ArtifactCosts(instance, instance.chains[baseline.tensor])
        as_scored = price_split(costs, bounds, baseline.data, order_reversed=True)
        true_order = price_split(costs, bounds, baseline.data)
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


def _with_best_cuts(instance: NestInstance, baseline: Baseline) -> PricedSplit:
    t, p, d = baseline.tensor, baseline.pipeline, baseline.data
    plan = best_cuts(instance, t, p, d)
    if plan is not None:
        return plan
    reason = "no cuts fit in memory"
    needed = p * d * instance.devices_per_stage(t)
    if needed > instance.num_devices:
        reason = f"needs {needed} devices, there are {instance.num_devices}"
    elif d > instance.num_microbatches:
        reason = f"{d} replicas for {instance.num_microbatches} microbatches"
    elif p > instance.num_nodes:
        reason = f"{p} stages for {instance.num_nodes} nodes"
    return _no_price(baseline, reason)


def _no_price(baseline: Baseline, reason: str) -> PricedSplit:
    """Return that a baseline has no plan, and why."""
    return PricedSplit(
        time_per_batch=math.inf,
        reason=reason,
        tensor=baseline.tensor,
        data=baseline.data,
        stages=(),
    )
