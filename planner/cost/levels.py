"""How the price of a plan follows the bandwidth of each level of its network.

A plan is priced anew where the links of one level carry half and twice as much, all
else as it is: routes, algorithms, and whose turn it is. The differences, term by term,
are what `estimated_times` puts together for other bandwidths. In the planner's model
what is sent takes a latency and a time in proportion to the inverse bandwidth of the
slowest link on its way; between two prices a term is a line over that inverse, too.

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

SLOWER, FASTER = 0.5, 2.0
"""Bandwidths of a level, over what it has, at which plans are priced."""

FACTORS = SLOWER, FASTER


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
    """By how much each term of `PricedPlan.terms` changes where each level is slower
    and faster, shape ``(levels, 2, terms)`` [s]."""


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
    """Return what changes count for, shape ``(levels, 2)``.

    Of a level with ``s`` times its bandwidth, the slower change counts ``1 / s - 1``
    times below 1, and the faster one ``2 (1 - 1 / s)`` times above: lines over ``1 /
    s`` through the prices at ``1 / 2``, 1 and 2.
    """
    inverse = 1.0 / np.asarray(factors, dtype=np.float64)
    slower = np.maximum(inverse - 1.0, 0.0) / (1.0 / SLOWER - 1.0)
    faster = np.maximum(1.0 - inverse, 0.0) / (1.0 - 1.0 / FASTER)
    return np.stack([slower, faster], axis=1)


def estimated_terms(
    terms: FloatArray, changes: FloatArray, factors: Sequence[float]
) -> FloatArray:
    """Return the terms of plans where levels have other bandwidths [s].

    Parameters
    ----------
    terms
        Of the plans as they are, shape ``(plans, terms)`` [s].
    changes
        As `PriceByLevel.changes`, shape ``(plans, levels, 2, terms)`` [s].
    factors
        Bandwidth of each level over what it has.
    """
    moved = np.einsum("lf,nlft->nt", level_weights(factors), changes)
    return np.asarray(terms + moved)
