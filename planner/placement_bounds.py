"""Bounds of placements, from what must leave the blocks of a tree."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from planner.kernels import placement_loads as loads
from planner.placements import Placement
from planner.stage_rates import StageRates
from topologies import Network
from topologies.arrays import FloatArray, IntArray
from topologies.network import TREES

MOST_NUMBERS = 2**24
"""Numbers that are kept of placements' loads at a time: 128 MB."""


class Loads(NamedTuple):
    """Lower bounds of a placement's inverse bandwidths [s/byte]."""

    rates: FloatArray
    """By stage, columns as in `planner.kernels.placement_loads`, ``(p, NUM_RATES)``."""
    boundary: FloatArray
    """After each stage, both directions' mean, by replica, shape ``(p, d)``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementBounds:
    """Bounds rates of placements on one network."""

    num_devices: int
    block_sizes: IntArray
    """Devices of all blocks of the network, rising."""
    tiers: tuple[IntArray, FloatArray, FloatArray]
    """Blocks of devices with ways out of them: size, seconds for a byte to leave over
    all ways together, and over the fastest link."""
    _known: dict[object, Loads] = field(default_factory=dict)
    _held: list[int] = field(default_factory=lambda: [0])
    """How many numbers are kept, in a list because the rest is frozen."""

    @classmethod
    def of(cls, network: Network) -> "PlacementBounds":
        """Read the tiers off a network; only trees have any."""
        links = network.links
        # Where switches add up, what leaves in half of an all-reduce is all of it.
        part = 0.5 if network.adds_in_switches else 1.0
        tiers = [
            (
                level.block_size,
                part / level.uplink_bandwidth,
                part / links.bandwidth[links.level == number + 1].max(),
            )
            for number, level in enumerate(network.levels)
            if network.kind in TREES
            and level.num_blocks > 1
            # Where a tier does not block, what leaves it left a tier below as fast.
            and (number == 0 or level.oversubscription > 1.0)
        ]
        sizes, inverses, alone = zip(*tiers, strict=True) if tiers else ((), (), ())
        return cls(
            num_devices=network.num_devices,
            block_sizes=np.array(network.block_sizes, dtype=np.int64),
            tiers=(
                np.array(sizes, dtype=np.int64),
                np.array(inverses, dtype=np.float64),
                np.array(alone, dtype=np.float64),
            ),
        )

    def rates(
        self, placement: Placement, relaxed: tuple[StageRates, ...]
    ) -> StageRates:
        """Return rates elementwise at most the placement's.

        ``relaxed`` are rates one of which is at most those of any placement of these
        sizes.
        """
        found = self._loads(placement)
        base = relaxed[0]
        row = base.rows[0]
        if len(relaxed) > 1:
            row = np.min([rates.rows[0] for rates in relaxed], axis=0)
        rows, signature = loads.placement_rows(found.rates, row, base.group_sizes[0])
        boundary = np.empty((*found.boundary.shape, 2))
        boundary[..., 0] = base.boundary[0, 0, 0]
        boundary[..., 1] = np.maximum(found.boundary, base.boundary[0, 0, 1])
        return base._replace(rows=rows, signature=signature, boundary=boundary)

    def _loads(self, placement: Placement) -> Loads:
        key = placement.extents, placement.steps
        found = self._known.get(key)
        if found is None:
            if self._held[0] > MOST_NUMBERS:
                self._known.clear()
                self._held[0] = 0
            found = Loads(
                *loads.placement_loads(
                    np.array(placement.extents),
                    np.array(placement.steps),
                    self.num_devices,
                    self.block_sizes,
                    *self.tiers,
                )
            )
            self._known[key] = found
            self._held[0] += found.rates.size + found.boundary.size
        return found
