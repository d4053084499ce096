"""Price any given plan as the published NEST artifact does, in plain Python.

Stages are packed from the last one, which gets devices 0, 1, ..; the level of a link
is that between the neighbouring devices of two stages. With ``s`` the position of a
stage counted from the end, ``S`` stages, ``d`` replicas and ``B`` microbatches::

    T = max load * (ceil(B / d) + S - 1) + D(d, parameters of the first stage)

Every replica is taken to be like the first, which starts at device 0.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.nest_artifact.costs import ArtifactCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage of a priced plan."""

    first: int
    """Position of its first node in the chain."""
    end: int
    """One past its last node."""
    devices: int
    position: int
    """Counted from the end of the pipeline; the last stage is 1."""
    incoming_level: int | None
    """Network level of the link from the stage before; None for the first stage."""
    recomputes: bool
    load: float
    """Of one microbatch, forward and backward [unit of the file]."""
    memory_bytes: float
    """Of one device at this position [byte]."""
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSplit:
    """What the artifact's model says about one plan."""

    time_per_batch: float
    """Infinite if the plan is not possible [unit of the file]."""
    reason: str
    """Why it is not possible; empty if it is."""
    tensor: int
    data: int
    stages: tuple[StageCost, ...]
    """From the first to the last; empty if there are not enough devices."""


def price_split(
    costs: ArtifactCosts,
    bounds: Sequence[int],
    data: int,
    *,
    order_reversed: bool = False,
) -> PricedSplit:
    """Price contiguous stages of a chain, replicated.

    Parameters
    ----------
    costs
        The model, which knows the tensor-parallel width.
    bounds
        First node of each stage, first to last, and the number of nodes.
    data
        Number of replicas.
    order_reversed
        Make the artifact's mistake with baselines: count positions from the wrong
        end, so that the last stage recomputes and holds the most microbatches and the
        first does neither, and take the last stage's parameters for the first's.
        Links are unaffected.

    Returns
    -------
    PricedSplit
        With a reason instead of a time if memory or devices do not suffice.
    """
    widths = [costs.width(*span) for span in itertools.pairwise(bounds)]
    reason = _shortage(costs, data, sum(widths))
    stages: tuple[StageCost, ...] = ()
    if not reason:
        stages = tuple(_stages(costs, bounds, widths, order_reversed=order_reversed))
        reason = _overflow(costs, stages)
    time = math.inf
    if not reason:
        first = stages[-1 if order_reversed else 0]
        slowest = max(0.0, *(stage.load for stage in stages))
        microbatches = -(-costs.instance.num_microbatches // data)
        time = slowest * (microbatches + len(stages) - 1) + costs.all_reduce_time(
            data, costs.reduced_bytes(first.first, first.end), sum(widths)
        )
    return PricedSplit(
        time_per_batch=time,
        reason=reason,
        tensor=costs.chain.tensor,
        data=data,
        stages=stages,
    )


def _stages(
    costs: ArtifactCosts,
    bounds: Sequence[int],
    widths: Sequence[int],
    *,
    order_reversed: bool,
) -> Iterator[StageCost]:
    """Yield the stages of a plan, first to last."""
    # Where the devices of each stage end; those of the stage before begin there.
    ends = list(itertools.accumulate(reversed(widths)))[::-1]
    links = [0, *(costs.level(device - 1, device) for device in ends[1:]), 0]
    for k, (first, end) in enumerate(itertools.pairwise(bounds)):
        position = k + 1 if order_reversed else len(widths) - k
        recompute = costs.instance.recompute and position > 1
        load = costs.forward_time(first, end, links[k]) + costs.backward_time(
            first, end, links[k + 1], recompute=recompute
        )
        sharding = costs.sharding(first, end)
        if sharding is None:
            memory, slots = costs.constant_bytes(first, end), costs.slots(first, end)
        else:
            load += costs.sharding_time(sharding.zero_stage)
            memory, slots = sharding.memory_bytes, sharding.slots
        yield StageCost(
            first=first,
            end=end,
            devices=widths[k],
            position=position,
            incoming_level=links[k] if k else None,
            recomputes=recompute,
            load=load,
            memory_bytes=memory + (position - 1) * costs.stash_bytes(first, end),
            fits=slots >= position,
        )


def _shortage(costs: ArtifactCosts, data: int, spacing: int) -> str:
    """Return what there is too little of for so many replicas, empty if nothing."""
    instance = costs.instance
    if data > instance.num_microbatches:
        return f"{data} replicas for {instance.num_microbatches} microbatches"
    if data * spacing > instance.num_devices:
        return f"needs {data * spacing} devices, there are {instance.num_devices}"
    return ""


def _overflow(costs: ArtifactCosts, stages: Sequence[StageCost]) -> str:
    """Return by how much memory falls short, empty if it does not."""
    worst = max(stages, key=lambda stage: (not stage.fits, stage.memory_bytes))
    if worst.fits:
        return ""
    return (
        f"stage {stages.index(worst) + 1} of {len(stages)} needs "
        f"{worst.memory_bytes / 2**30:.4g} GiB, a device has "
        f"{costs.instance.memory_bytes / 2**30:.4g} GiB"
    )
