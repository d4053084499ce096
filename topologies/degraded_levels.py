"""What levels say of a network of which links have been slowed or removed.

A pair keeps its level. A level's bandwidth is that of the slowest link left among those
that its undisturbed routes may cross; its latency stays. Detours are longer, and may be
narrower: they are no part of any level, and are priced link by link. What leaves a
block, and the oversubscription, are those of the block that has most left: so bounds
made of them hold for all blocks.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topologies.network import BoolArray, FloatArray, Level, Links, Routing
from topologies.tori import TorusRouting
from topologies.tree_routing import TreeRouting


def degraded_levels(
    levels: Sequence[Level], built: Routing, links: Links, kept: BoolArray
) -> tuple[Level, ...]:
    """Return the levels that are left; those of other kinds of routing as built."""
    capacity = np.where(kept, links.bandwidth, 0.0)
    if isinstance(built, TreeRouting):
        return _of_tree(levels, built, links, capacity)
    if isinstance(built, TorusRouting):
        return built.planner_levels(capacity)
    return tuple(levels)


def _of_tree(
    levels: Sequence[Level], built: TreeRouting, links: Links, capacity: FloatArray
) -> tuple[Level, ...]:
    tiers = range(len(levels))
    narrowest = []
    for k in tiers:
        left = capacity[links.level == k]
        bandwidth = built.switch_tiers[k].capacity
        narrowest.append(float(left[left > 0].min(initial=bandwidth)))
    outermost = len(levels) - 1
    found = []
    for k, level in enumerate(levels):
        bandwidth = min(narrowest[tier] for tier in built.path(k))
        new = replace(level, bandwidth=bandwidth)
        if k < outermost:
            leaving = built.sums_by_block(capacity, k + 1, k)
            best = int(leaving.argmax())
            uplink = float(leaving[best])
            sending = float(built.sums_by_block(capacity, k, k)[best])
            new = replace(
                new,
                uplink_bandwidth=uplink,
                oversubscription=sending / uplink if uplink else float("inf"),
            )
        found.append(new)
    return tuple(found)
