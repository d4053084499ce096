"""What a stage's recompute means for each of its layers.

A stage repeats all of its blocks in one mode, or only the first ones of each chunk
(Megatron's ``recompute_method`` block); the others keep what they need.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from estimators.layers.work import InLayerTraffic, LayerTable
from estimators.software import Software
from planner.step.plan import Stage
from topologies.arrays import FloatArray

SENDING_AGAIN = frozenset({"full", "stage"})
"""Recompute modes that send tokens to experts again."""


def sending_again(software: Software, modules: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the recompute modes that send tokens to experts again.

    Selective recompute does where its modules are whole layers of experts: those of a
    plan, or of the software if it has none.
    """
    if "moe" in (modules or software.recompute_modules) and not software.saves_products:
        return SENDING_AGAIN | {"selective"}
    return SENDING_AGAIN


class RepeatedCollectives(NamedTuple):
    """Forward collectives that backward passes repeat, by layer."""

    calls: FloatArray
    """Number of the collectives, shape ``(L,)``."""
    num_bytes: FloatArray
    """Size of the full tensors of all of them together, shape ``(L,)`` [byte]."""


def repeated_layers(table: LayerTable, stage: Stage) -> FloatArray:
    """Return 1 for layers that the stage's mode is about, 0 for others, ``(L,)``."""
    count = stage.recompute_num_layers
    if stage.recompute == "none":
        return np.zeros(table.num_layers)
    if count is None:
        return np.ones(table.num_layers)
    repeated = np.zeros(table.num_layers)
    for first, last in stage.chunks:
        blocks = first + np.flatnonzero(table.is_block[first : last + 1])
        repeated[blocks[:count]] = 1.0
    return repeated


def saved_bytes(table: LayerTable, stage: Stage) -> FloatArray:
    """Return what each layer keeps for its backward pass, shape ``(L,)`` [byte].

    Not for stages that keep their input only.
    """
    return _mixed(table, stage, table.saved_bytes)


def working_bytes(table: LayerTable, stage: Stage) -> FloatArray:
    """Return what is alive inside a pass of each layer, shape ``(L,)`` [byte].

    Not for stages that keep their input only.
    """
    return _mixed(table, stage, table.working_bytes)


def paired_bytes(table: LayerTable, works: FloatArray, saves: FloatArray) -> FloatArray:
    """Return `working_bytes` with what a block keeps of another microbatch [byte].

    That of pairs that go through their layers in step (`planner.step.schedules`).
    """
    return works + saves * table.is_block


def alive_inside(
    table: LayerTable,
    works: FloatArray,
    layers: tuple[int, int],
    *,
    splits_backward: bool,
) -> FloatArray:
    """Return what a pass has beside all that a chunk saves, by its layer [byte].

    While a layer is worked on, the ends of the chain behind it are done with, or not
    begun: the logits are gone when blocks are run again. Less than nothing where those
    were larger.

    Parameters
    ----------
    table
        Costs of the layers.
    works
        What is alive inside a pass of each layer, shape ``(L,)`` [byte].
    layers
        First and last layer of the chunk.
    splits_backward
        Whether weight gradients are passes of their own: those of the ends need what
        they need then, whatever else is gone.
    """
    span = slice(layers[0], layers[1] + 1)
    if splits_backward:
        return works[span]
    ends = (table.saved_bytes["none"] * (1.0 - table.is_block))[span]
    left: FloatArray = works[span] - (ends.sum() - np.cumsum(ends))
    return left


def repeated_time(table: LayerTable, stage: Stage) -> FloatArray:
    """Return the compute that recompute adds to each layer, shape ``(L,)`` [s]."""
    if stage.recompute == "none":
        return np.zeros(table.num_layers)
    return repeated_layers(table, stage) * table.recompute_time[stage.recompute]


def repeated_wait(table: LayerTable, stage: Stage) -> FloatArray:
    """Return the part of `repeated_time` that a device waits for its host [s]."""
    if stage.recompute == "none":
        return np.zeros(table.num_layers)
    return repeated_layers(table, stage) * table.waited(stage.recompute)


def repeats_by_mode(
    item: InLayerTraffic, table: LayerTable
) -> dict[str, RepeatedCollectives]:
    """Return the forward collectives that each recompute mode repeats."""
    count, num_bytes = item.forward_count, item.forward_bytes
    return {
        "selective": RepeatedCollectives(item.repeated_count, item.repeated_bytes),
        "full": RepeatedCollectives(count * table.is_block, num_bytes * table.is_block),
        "stage": RepeatedCollectives(count, num_bytes),
    }


def repeated_traffic(
    item: InLayerTraffic, table: LayerTable, stage: Stage
) -> RepeatedCollectives:
    """Return the forward collectives that a stage's backward pass repeats."""
    if stage.recompute == "none":
        return RepeatedCollectives(
            np.zeros(table.num_layers), np.zeros(table.num_layers)
        )
    layers = repeated_layers(table, stage)
    count, num_bytes = repeats_by_mode(item, table)[stage.recompute]
    return RepeatedCollectives(layers * count, layers * num_bytes)


def _mixed(
    table: LayerTable, stage: Stage, columns: Mapping[str, FloatArray]
) -> FloatArray:
    mode = stage.recompute
    if mode == "none" or stage.recompute_num_layers is None:
        return columns[mode]
    repeats = repeated_layers(table, stage) > 0.0
    return np.where(repeats, columns[mode], columns["none"])
