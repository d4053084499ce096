"""What passes take in each layer at least, at given rates, ZeRO left aside.

A collective that goes on beside the compute it belongs to leaves a layer at least as
long as either. What goes between experts is hidden in windows: in a pass that has
another one beside it half of it outside of the layer's experts and half beside them,
else all of it beside experts of all tokens. Each window takes what the replay writes
(`planner.step.exposure.beside_each_other`), which is longer the more it computes and
sends; and no pass takes longer than one that is alone and does both in turn.

Letters: ``L`` layers of the chain, ``R`` rows of rates.
"""

from typing import NamedTuple

import numpy as np

from estimators.dispatch import ALONE, Sharing
from estimators.layers.work import Degrees, LayerTable
from planner.cost.choices import RATE_COLUMNS, RECOMPUTE_MODES
from planner.cost.rates import StageRates
from planner.kernels import tables
from planner.step.execution import DISPATCHED, SHARED, Workload
from planner.step.exposure import LayerPassTimes, beside_each_other
from planner.step.recompute import repeats_by_mode
from topologies.arrays import FloatArray


class PassKind(NamedTuple):
    """What the times of passes depend on beside tables and rates."""

    degrees: Degrees
    """Sizes that layer tables depend on."""
    is_paired: bool
    """Whether passes go on beside each other."""
    splits: bool
    """Whether weight gradients are passes of their own."""
    hides_tensor: bool
    """Whether products can hide the collectives of so many tensor-parallel ranks."""
    contention: Sharing
    """How compute and what goes between experts slow each other down at least."""


def passes_in_layers(
    workload: Workload,
    by_row: list[LayerTable],
    named: list[list[LayerTable]],
    rates: StageRates,
    kind: PassKind,
) -> tuple[FloatArray, FloatArray]:
    """Return sums over the layers before each, and over all, of what they take [s].

    Parameters
    ----------
    workload
        What is trained, and what is hidden behind compute.
    by_row
        Table of each row of rates, or one for all.
    named
        The same of each set of modules that selective recompute may run again.
    rates
        What sending costs.
    kind
        Of the passes. Weight gradients may wait for the other pass of a pair, unless
        they are passes of their own.

    Returns
    -------
    tuple[FloatArray, FloatArray]
        Forward, shape ``(R, L + 1)``, and backward by recompute, ``(R, modes and sets,
        L + 1)``.
    """
    execution, table = workload.execution, by_row[0]
    hides_experts = kind.is_paired or workload.overlaps_shared_experts
    delays = kind.is_paired and execution.delay_wgrad_compute and not kind.splits
    num_layers = table.num_layers
    repeats = [
        (number, mode, by_row) for mode, number in RECOMPUTE_MODES.items() if number
    ]
    for number, some in enumerate(named, tables.NUM_MODES):
        repeats.append((number, "selective", some))
    tensor, other, experts = _sent(rates, repeats, apart=hides_experts)
    compute = np.zeros((len(tensor), len(by_row), num_layers))
    for row, costs in enumerate(by_row):
        compute[0, row] = costs.forward_time
        compute[1, row] = costs.backward_time - delays * costs.weight_gradient_time
        for number, mode, some in repeats:
            compute[2 + number, row] = some[row].recompute_time[mode]
    hiding, apart = np.zeros((2, num_layers)), np.zeros(num_layers)
    if hides_experts and workload.fleet is None:
        apart = kind.splits * table.weight_gradient_time
        forward, backward, weight = _hiding(workload, table, kind)
        hiding = np.stack((forward, backward - delays * weight))
        compute[0] -= forward
        compute[1] -= hiding[1] + apart
    if execution.tp_comm_overlap and kind.hides_tensor:
        both = np.maximum(compute, tensor) + other
    else:
        both = compute + tensor + other
    outside = (
        LayerPassTimes(both[0], compute[0]),
        LayerPassTimes(both[1] + both[2:], compute[1] + compute[2:]),
    )
    passes = [layers.whole for layers in outside]
    if hides_experts:
        share, contention = 0.5 if kind.is_paired else 0.0, kind.contention
        if workload.fleet is not None:
            # Kinds of devices divide layers each in their own way.
            share, contention = 1.0, ALONE
        passes = [
            _behind_experts(*window, share, contention)
            for window in zip(outside, hiding, experts[:2], strict=True)
        ]
    return (
        prefix_sums(passes[0]),
        prefix_sums(np.ascontiguousarray(np.swapaxes(passes[1] + apart, 0, 1))),
    )


def _sent(
    rates: StageRates,
    repeats: list[tuple[int, str, list[LayerTable]]],
    *,
    apart: bool,
) -> FloatArray:
    """Return how long collectives take, by group, pass, row of rates and layer [s].

    Tensor-parallel ones, others, and those between experts if these are ``apart``; of
    forward and backward passes, and of each way to run some of them again.
    """
    rows, table = rates.rows[:, None, :], repeats[0][2][0]
    shape = 3 + max(number for number, *_ in repeats), len(rows), table.num_layers
    tensor, other, experts = sums = np.zeros((3, *shape))
    by_group = {"tensor": tensor, "expert": experts if apart else other}
    for place, item in enumerate(table.traffic):
        column = RATE_COLUMNS[item.group, item.operation]
        latency, inverse = rows[..., column], rows[..., column + 1]
        times = by_group.get(item.group, other)
        times[0] += item.forward_count * latency + item.forward_bytes * inverse
        times[1] += item.backward_count * latency + item.backward_bytes * inverse
        for number, mode, (like, *_) in repeats:
            count, num_bytes = repeats_by_mode(like.traffic[place], like)[mode]
            times[2 + number] += count * latency + num_bytes * inverse
    return sums


def _hiding(workload: Workload, table: LayerTable, kind: PassKind) -> FloatArray:
    """Return compute of each layer that has a window of its own, ``(3, L)`` [s].

    Forward, backward, and of the latter what weight gradients are.
    """
    part = DISPATCHED if kind.is_paired else SHARED
    forward, backward, weight = workload.part_times(part, kind.degrees)
    longest = table.backward_time
    if kind.splits:
        backward, longest = backward - weight, longest - table.weight_gradient_time
    return np.minimum(
        (forward, backward, weight),
        (table.forward_time, longest, table.weight_gradient_time),
    )


def _behind_experts(
    outside: LayerPassTimes,
    hiding: FloatArray,
    sent: FloatArray,
    share: float,
    contention: Sharing,
) -> FloatArray:
    """Return what layers take with their two windows, and no more than without [s].

    Parameters
    ----------
    outside
        What they take outside of the part that has a window of its own.
    hiding
        Compute of that part [s].
    sent
        How long what goes between experts takes alone [s].
    share
        Part of that which is sent beside what is outside.
    contention
        How compute and sending slow each other down.
    """
    inside = LayerPassTimes(hiding, hiding)
    first = beside_each_other(outside, share * sent, contention)
    second = beside_each_other(inside, (1.0 - share) * sent, contention)
    return np.minimum(first.whole + second.whole, outside.whole + hiding + sent)


def prefix_sums(values: FloatArray) -> FloatArray:
    """Return sums over the layers before each, one entry more in the last axis."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums
