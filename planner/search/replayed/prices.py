"""The prices of placements that bounds read, made once.

Placements whose groups are the same devices share them. What is kept is bounded by the
numbers that it has.
"""

from dataclasses import dataclass, field

import numpy as np

from planner.cost.pricing import placement_choices
from planner.cost.rates import (
    AlgorithmChoice,
    AlgorithmChooser,
    PlacementRates,
    PricedGrid,
)
from planner.search.placements import Placement, PlacementBounds, groups_of
from planner.search.replayed.bounds import Placed
from planner.search.replayed.listing import PlanListing
from planner.search.replayed.orders import alone_rates, placed_exits
from planner.search.space import Configuration
from planner.work import PRICED, PRICED_DEVICES, Work
from topologies import Network

MOST_PRICED_NUMBERS = 2**25
"""Numbers that are kept of placements at a time: 256 MB."""

MOST_GRIDS = 64
"""Placements whose prices under every algorithm are kept at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementPrices:
    """What placements cost, and what bounds read of that."""

    network: Network
    """Network that plans are placed on."""
    listing: PlanListing
    """Plans of the space."""
    tiers: PlacementBounds
    """Blocks of the network."""
    work: Work
    """Work that prices are counted on."""
    _placed: dict[object, Placed] = field(default_factory=dict)
    _grids: dict[object, PricedGrid] = field(default_factory=dict)
    _choosers: dict[object, AlgorithmChooser] = field(default_factory=dict)
    _held: list[int] = field(default_factory=lambda: [0])
    """Count of numbers that are kept, in a list because the rest is frozen."""

    def placed(self, configuration: Configuration, placement: Placement) -> Placed:
        """Return what bounds read of a placement."""
        place = place_of(configuration, placement)
        if place not in self._choosers:
            self.rates(configuration, placement)
            self._choosers[place] = self._grids[place].chooser()
        names = self._choosers[place].names(*self._algorithms(configuration))
        key = place, names
        if key not in self._placed:
            rates = self.rates(configuration, placement)
            groups = groups_of(configuration, placement)
            kinds = self.listing.kinds(placement)
            alone = alone_rates(self.network, groups, rates, kinds.which)
            sizes = tuple(option.group_size for option in rates.shardings)
            exits = placed_exits(self.tiers, groups, sizes)
            read = rates.stage_rates._replace(boundary=np.zeros((0, 0, 2)))
            arrays = (*read, alone.ends, *alone.boundaries, *exits[:4])
            content = b"".join(array.tobytes() for array in arrays)
            placed = Placed(read, alone, exits, kinds, content + kinds.key)
            self._held[0] += 2 * placed.size
            if self._held[0] > MOST_PRICED_NUMBERS:
                self._placed.clear()
                self._held[0] = 2 * placed.size
            self._placed[key] = placed
        return self._placed[key]

    def rates(
        self, configuration: Configuration, placement: Placement
    ) -> PlacementRates:
        """Price a placement, all groups at the same time."""
        key = place_of(configuration, placement)
        if key not in self._grids:
            if len(self._grids) >= MOST_GRIDS:
                self._grids.clear()
            members = configuration.devices * (2 + configuration.ep)
            self.work.spend(2 * PRICED + members // PRICED_DEVICES)
            groups = groups_of(configuration, placement)
            asked = self.listing.space.spec.sharding_group_sizes or ()
            self._grids[key] = PricedGrid(self.network, groups, asked, aligned=True)
        return self._grids[key].rates(*self._algorithms(configuration))

    def _algorithms(
        self, configuration: Configuration
    ) -> tuple[AlgorithmChoice, AlgorithmChoice]:
        """Return how tensor and data collectives choose their algorithm."""
        workload = self.listing.space.workload
        table = workload.table(self.listing.shape(configuration).degrees)
        return placement_choices(table, workload, configuration.pp)


def place_of(configuration: Configuration, placement: Placement) -> object:
    """Return what tells placements apart whose groups differ."""
    return placement.place, configuration.ep, configuration.grouping
