"""How the members of groups lie in the blocks of a network."""

from collections.abc import Callable, Sequence

import numpy as np

from estimators.kernels import groups as kernels
from estimators.messages import are_devices, no_such_device, plain
from topologies import Network
from topologies.arrays import IntArray
from topologies.network import CollectiveRules

Shapes = Callable[[IntArray, IntArray], IntArray]
"""Ordered groups and block sizes -> the shape of each stage's groups."""


def ordered_groups(network: Network, groups: IntArray) -> IntArray:
    """Return groups ``(S, G, n)`` with their members in order of device number.

    Raises
    ------
    IndexError
        If there is no such device.
    """
    groups = plain(groups)
    if not are_devices(network, groups):
        raise no_such_device(network)
    rising = (groups[:, :, 1:] >= groups[:, :, :-1]).all()
    return groups if rising else np.sort(groups, axis=2)


def flat_shapes(ordered: IntArray, blocks: IntArray) -> IntArray:
    """Return the shape of all groups: one level."""
    del blocks
    return np.array([[ordered.shape[2]]], dtype=np.int64)


def uneven_blocks(groups: IntArray, blocks: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of blocks that do not divide groups ``(G, n)`` evenly.

    Of blocks that hold a member of a group, not all hold as many. `level_shapes` leaves
    these levels out. O(G n log(G n)) each.
    """
    group = np.arange(len(groups))[:, None]
    found = []
    for block in blocks:
        holders = groups // block + group * (int(groups.max()) // block + 1)
        counts = np.unique(holders, return_counts=True)[1]
        if counts.min() < counts.max():
            found.append(block)
    return tuple(found)


def level_shapes(ordered: IntArray, blocks: IntArray) -> IntArray:
    """Return the shape of each stage's groups, or one row if all are alike."""
    shapes = np.empty((len(ordered), len(blocks)), dtype=np.int64)
    alike = kernels.split_evenly(plain(ordered), blocks, shapes)
    return shapes[:1] if alike else shapes


def ruled_shapes(rules: CollectiveRules | None) -> Shapes:
    """Return what gives the shapes by which collectives go level by level."""
    if rules is None or not rules.tells_nodes:
        return level_shapes
    node = rules.node_size

    def shapes(ordered: IntArray, blocks: IntArray) -> IntArray:
        return node_shapes(ordered, blocks, node)

    return shapes


def node_shapes(ordered: IntArray, blocks: IntArray, node_size: int) -> IntArray:
    """Return `level_shapes` whose first column is the members in a node, if only 1.

    1 as well where nodes do not divide a group evenly.
    """
    levels = level_shapes(ordered, blocks[np.searchsorted(blocks, node_size) :])
    first = ordered[:, 0, :] // node_size
    inside = (first == first[:, :1]).sum(axis=1)
    begins = (inside > 1) & (levels[:, 0] == inside)
    if begins.all():
        return levels
    rows = np.ones((len(levels), levels.shape[1] + 1), dtype=np.int64)
    rows[:, 1:] = levels
    if not begins.any():
        return rows
    rows = np.repeat(rows, len(ordered) // len(rows), axis=0)
    rows[begins, :-1] = np.broadcast_to(levels, (len(ordered), levels.shape[1]))[begins]
    rows[begins, -1] = 0
    return rows
