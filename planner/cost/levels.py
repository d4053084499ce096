"""How the price of a plan follows the bandwidth of each level of its network.

A plan is priced anew where the links of one level carry a quarter, half and twice as
much, all else as it is: routes, algorithms, and whose turn it is. The differences, term
by term, are what `estimated_terms` puts together for other bandwidths. In the planner's
model what is sent takes a latency and a time in proportion to the inverse bandwidth of
the slowest link on its way; between two prices a term is a line over that inverse, too.

Left out: what two levels do together, where one of them takes over as the slowest
link, and whatever the search would choose anew.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.cost.objective import PricedPlan
from planner.cost.pricing import PlanCharges, price_at
from planner.cost.rates import PlacementRates
from planner.step.execution import Workload
from planner.step.plan import Plan
from topologies.arrays import FloatArray
from topologies.network import Network

FACTORS = 0.25, 0.5, 2.0
"""Bandwidths of a level, over what it has, at which plans are priced."""


def linked_levels(network: Network) -> tuple[int, ...]:
    """Return the numbers of the levels that have links, hosts' left out, rising."""
    levels: list[int] = np.unique(network.links.level).tolist()
    return tuple(level for level in levels if level < len(network.levels))


def with_level_bandwidth(network: Network, level: int, factor: float) -> Network:
    """Return the network with other links of a level; routes stay as they are.

    Parameters
    ----------
    network
        As it is.
    level
        One of `linked_levels`.
    factor
        Bandwidth of its links over what they have.
    """
    links = network.links
    factors = np.where(links.level == level, factor, 1.0)
    return replace(network, links=replace(links, bandwidth=links.bandwidth * factors))


class PriceByLevel(NamedTuple):
    """A plan's price, and what each level's bandwidth does to it."""

    priced: PricedPlan
    """The plan on the network as it is."""

    changes: FloatArray
    """By how much each term of `PricedPlan.terms` changes at each of `FACTORS` of each
    level, shape ``(levels, 3, terms)`` [s]."""


class LevelPrices:
    """Prices plans at several bandwidths of each level.

    Parameters
    ----------
    network, workload
        What the plans are for.
    levels
        Numbers of levels, each of `linked_levels`.
    """

    def __init__(
        self, network: Network, workload: Workload, levels: Sequence[int]
    ) -> None:
        self.workload = workload
        self._here = PlanCharges(network, workload)
        self._other = [
            [
                PlanCharges(with_level_bandwidth(network, level, factor), workload)
                for factor in FACTORS
            ]
            for level in levels
        ]

    def __call__(self, plan: Plan) -> PriceByLevel:
        """Price a plan, and what each level does to it."""
        rates = self._here.rates(plan)
        priced = price_at(self.workload, plan, rates)
        changes = np.zeros((len(self._other), len(FACTORS), len(priced.terms)))
        for row, networks in zip(changes, self._other, strict=True):
            for change, charges in zip(row, networks, strict=True):
                there = charges.rates(plan)
                if not _are_equal(rates, there):
                    terms = price_at(self.workload, plan, there).terms
                    change += [terms[name] - priced.terms[name] for name in terms]
        return PriceByLevel(priced, changes)


def _are_equal(here: PlacementRates, there: PlacementRates) -> bool:
    """Tell whether nothing that a plan sends takes another time."""
    return all(
        np.array_equal(before, after)
        for before, after in zip(_read(here), _read(there), strict=True)
    )


def _read(rates: PlacementRates) -> tuple[FloatArray, ...]:
    return rates.packed(), rates.activation, rates.gradient, rates.tied


def level_weights(factors: Sequence[float]) -> FloatArray:
    """Return what changes count for, shape ``(levels, 3)``.

    Lines over ``x``, the inverse of a level's bandwidth over what it has, through the
    prices at 4, 2, 1 and ``1 / 2``; beyond 4 the line from 2 to 4 goes on, and below
    ``1 / 2`` that from 1.
    """
    x = 1.0 / np.asarray(factors, dtype=np.float64)
    quarter = np.maximum(x - 2.0, 0.0) / 2.0
    half = np.where(x > 2.0, (4.0 - x) / 2.0, np.maximum(x - 1.0, 0.0))
    twice = 2.0 * np.maximum(1.0 - x, 0.0)
    return np.stack([quarter, half, twice], axis=1)


def estimated_terms(
    terms: FloatArray, changes: FloatArray, factors: Sequence[float]
) -> FloatArray:
    """Return the terms of plans where levels have other bandwidths [s].

    Parameters
    ----------
    terms
        Of the plans as they are, shape ``(plans, terms)`` [s].
    changes
        As `PriceByLevel.changes`, shape ``(plans, levels, 3, terms)`` [s].
    factors
        Bandwidth of each level over what it has.
    """
    moved = np.einsum("lf,nlft->nt", level_weights(factors), changes)
    return np.asarray(terms + moved)
