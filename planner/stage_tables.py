"""Costs of every class of intervals: what the split kernel reads.

Letters: ``K`` interval classes, ``C`` choices of recompute and ZeRO, ``p`` stages. A
*signature* is a distinct row of in-layer rates; stages on equal footing share one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.layer_table import InLayerTraffic, LayerTable
from estimators.memory import optimizer_step_bytes, static_bytes
from estimators.training import ParameterBytes
from planner.intervals import IntervalClasses
from planner.rates import PlacementRates

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

UNLIMITED = np.iinfo(np.int64).max
"""Slots of an interval that keeps nothing per microbatch."""


class Choice(NamedTuple):
    """What a stage may do about its memory."""

    recompute: str
    zero_stage: int


def choices_of(
    recompute: Sequence[str], zero_stages: Sequence[int], data_parallel_size: int
) -> tuple[Choice, ...]:
    """Return the choices worth trying, cheapest first.

    With one replica there is nothing to shard over: ZeRO collapses to its smallest
    stage.
    """
    stages = sorted(set(zero_stages))
    if data_parallel_size == 1:
        stages = stages[:1]
    kinds = [kind for kind in ("none", "full") if kind in recompute]
    return tuple(Choice(kind, stage) for kind in kinds for stage in stages)


class Traffic(NamedTuple):
    """In-layer collectives of one operation over an interval, per class."""

    operation: str
    num_collectives: FloatArray
    num_bytes: FloatArray
    recompute_count: FloatArray
    recompute_bytes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassSums:
    """A layer table summed over the interval classes of its chain, shape ``(K,)``."""

    compute_time: FloatArray
    recompute_time: FloatArray
    num_layers: FloatArray
    parameters: FloatArray
    largest_layer: FloatArray
    saved: FloatArray
    checkpoint: FloatArray
    working: FloatArray
    """Alive inside one pass when nothing is recomputed."""
    recompute_working: FloatArray
    """Alive inside one pass under full recompute: a block's activations too."""
    traffic: tuple[Traffic, ...]


def class_sums(table: LayerTable, classes: IntervalClasses) -> ClassSums:
    """Sum a chain's table over its interval classes. O(K kinds)."""
    first_of_kind = np.unique(table.kinds, return_index=True)[1]

    def per_kind(values: FloatArray) -> FloatArray:
        return values[first_of_kind]

    parameters = classes.sums(per_kind(table.parameters))
    parameters[classes.whole] -= table.tied_parameters
    recomputed = table.recompute_time > 0
    working = per_kind(table.working_bytes)
    again = per_kind(np.where(recomputed, table.saved_bytes, 0.0))
    return ClassSums(
        compute_time=classes.sums(per_kind(table.forward_time + table.backward_time)),
        recompute_time=classes.sums(per_kind(table.recompute_time)),
        num_layers=classes.sums(np.ones(len(first_of_kind))),
        parameters=parameters,
        largest_layer=classes.maxima(per_kind(table.parameters)),
        saved=classes.sums(per_kind(table.saved_bytes)),
        checkpoint=classes.sums(per_kind(table.checkpoint_bytes)),
        working=classes.maxima(working),
        recompute_working=classes.maxima(working + again),
        traffic=tuple(
            Traffic(
                item.operation,
                *(
                    classes.sums(per_kind(values))
                    for values in _tensor_columns(item, recomputed)
                ),
            )
            for item in table.traffic
        ),
    )


def _tensor_columns(
    item: InLayerTraffic, recomputed: NDArray[np.bool_]
) -> tuple[FloatArray, ...]:
    assert item.group == "tensor", "the search places tensor groups only"
    return (
        item.forward_count + item.backward_count,
        item.forward_bytes + item.backward_bytes,
        np.where(recomputed, item.forward_count, 0.0),
        np.where(recomputed, item.forward_bytes, 0.0),
    )


def stage_times(
    sums: ClassSums,
    choices: Sequence[Choice],
    rates: PlacementRates,
    stage_of_signature: IntArray,
    each: ParameterBytes,
) -> FloatArray:
    """Return the time of one microbatch, shape ``(sig, C, K)`` [s].

    ``stage_of_signature`` names one stage of the placement for each signature.
    ZeRO-2 reduce-scatters gradients in every backward pass; ZeRO-3 also gathers
    weights in the forward and in the backward pass, one layer at a time. Nothing is
    hidden behind compute.
    """
    times = np.empty((len(stage_of_signature), len(choices), len(sums.parameters)))
    for row, stage in enumerate(stage_of_signature):
        plain = sums.compute_time.copy()
        again = sums.recompute_time.copy()
        for item in sums.traffic:
            latency, inverse = rates.tensor[item.operation][stage]
            plain += item.num_collectives * latency + item.num_bytes * inverse
            again += item.recompute_count * latency + item.recompute_bytes * inverse
        reduce_latency, reduce_inverse = rates.data["reduce_scatter"][stage]
        gather_latency, gather_inverse = rates.data["all_gather"][stage]
        reduce = sums.num_layers * reduce_latency
        reduce = reduce + sums.parameters * each.gradients * reduce_inverse
        gather = sums.num_layers * gather_latency
        gather = gather + sums.parameters * each.weights * gather_inverse
        for column, choice in enumerate(choices):
            time = plain + again if choice.recompute == "full" else plain
            if choice.zero_stage >= 2:
                time = time + reduce
            if choice.zero_stage >= 3:
                time = time + 2.0 * gather
            times[row, column] = time
    return times


def memory_slots(
    sums: ClassSums,
    choices: Sequence[Choice],
    *,
    each: ParameterBytes,
    zero_group: int,
    memory: float,
) -> IntArray:
    """Return how many microbatches may be in flight, shape ``(C, K)``.

    0 where not even one fits; position in the pipeline then decides (section 1 of the
    search's formulation: ``slots >= in_flight``).
    """
    slots = np.empty((len(choices), len(sums.parameters)), dtype=np.int64)
    for row, choice in enumerate(choices):
        static = static_bytes(
            sums.parameters,
            sums.largest_layer,
            each=each,
            zero_stage=choice.zero_stage,
            zero_group=zero_group,
        ).total()
        full = choice.recompute == "full"
        stash = sums.checkpoint if full else sums.saved
        room = memory - static - (sums.recompute_working if full else sums.working)
        with np.errstate(divide="ignore", invalid="ignore"):
            fit = np.floor(room / stash)
        fit = np.where(stash > 0, fit, np.inf)
        bounded = np.clip(fit, 0, 2.0**62).astype(np.int64)
        slots[row] = np.where(room >= 0, bounded, 0)
    return slots


def tails(
    rates: PlacementRates,
    *,
    each: ParameterBytes,
    zero_group: int,
    memory_rate: float,
    tied_parameters: float,
) -> tuple[FloatArray, FloatArray]:
    """Return what follows the last backward pass, as lines over the parameters.

    Gradient collective (ZeRO-0 all-reduce, ZeRO-1 reduce-scatter), tied embedding,
    optimizer step on the device's shard, parameter all-gather (ZeRO-1 and 2). What
    ZeRO-2 and 3 do in every microbatch is not part of the tail.

    Returns
    -------
    tuple[FloatArray, FloatArray]
        Fixed part [s] and rate [s/parameter], both of shape ``(p, 4)``: stages from
        the first to the last, ZeRO stages 0 to 3.
    """
    num_stages = len(rates.data["all_reduce"])
    fixed = np.zeros((num_stages, 4))
    rate = np.zeros((num_stages, 4))
    step = optimizer_step_bytes(each) / memory_rate
    for zero in range(4):
        rate[:, zero] = step / (zero_group if zero >= 1 else 1)
    collectives = (
        (0, "all_reduce", each.gradients),
        (1, "reduce_scatter", each.gradients),
        (1, "all_gather", each.weights),
        (2, "all_gather", each.weights),
    )
    for zero, operation, width in collectives:
        fixed[:, zero] += rates.data[operation][:, 0]
        rate[:, zero] += width * rates.data[operation][:, 1]
    if num_stages > 1 and tied_parameters > 0:
        latency, inverse = rates.tied
        shared = latency + tied_parameters * each.gradients * inverse
        fixed[[0, -1]] += shared
    return fixed, rate
