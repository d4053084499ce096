"""Whether networks are equal: in ports, in cost; and throughput for each of them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nestsim.document.wording import HOUR, number, percent
from nestsim.features.compare.networks.record import (
    EQUAL_WITHIN,
    ComparedNetwork,
    NetworkComparison,
    NetworkEntry,
    spread,
)
from topologies.units import format_bandwidth, format_money


class Yardstick(NamedTuple):
    """One number that networks may be equal in."""

    name: str
    """What is counted."""

    values: tuple[float, ...]
    """Of each network; NaN where it is not known."""

    write: Callable[[float], str]
    """Writes one value for people."""

    @property
    def spread(self) -> float:
        """How far the largest is above the smallest, NaN where one is not known."""
        return spread(self.values)

    @property
    def is_equal(self) -> bool:
        """Whether the values are equal within `EQUAL_WITHIN`."""
        return self.spread <= EQUAL_WITHIN


def yardsticks(comparison: NetworkComparison) -> dict[str, tuple[Yardstick, ...]]:
    """Return by what may be asked to be equal the numbers that it takes.

    Ports of different speed are not the same thing: equal ports are as many, and of as
    much bandwidth together. Cost is that of the network alone, its price written off
    and its electricity; it is there if anything has a price.
    """
    found: dict[str, tuple[Yardstick, ...]] = {
        "ports": (
            _yardstick(
                comparison, "ports", lambda one: one.inventory.num_ports, number
            ),
            _yardstick(
                comparison,
                "their bandwidth",
                lambda one: one.inventory.port_bandwidth,
                format_bandwidth,
            ),
        ),
    }
    if comparison.currency:
        stick = _yardstick(
            comparison,
            "cost of the network per hour",
            network_rate,
            lambda value: format_money(value, comparison.currency),
        )
        found["cost"] = (stick,)
    return found


def network_rate(network: ComparedNetwork) -> float:
    """Return what a network costs, NaN where it has no price [currency/h]."""
    rate = None if network.cost is None else network.cost.network_rate
    return math.nan if rate is None else rate * HOUR


def tokens_per_money(network: ComparedNetwork, one: NetworkEntry) -> float:
    """Return tokens for one unit of the currency, NaN without a price or a plan.

    Of the whole cluster, as far as it is priced [token/currency].
    """
    run = network.run_cost(one)
    tokens = None if run is None else run.tokens_per_money
    return math.nan if tokens is None else tokens


def _yardstick(
    comparison: NetworkComparison,
    name: str,
    value: Callable[[ComparedNetwork], float],
    write: Callable[[float], str],
) -> Yardstick:
    values = tuple(value(one) for one in comparison.networks)
    return Yardstick(name, values, write)


def are_equal(comparison: NetworkComparison, what: str) -> bool:
    """Return whether the networks are equal in all numbers that this takes."""
    return all(one.is_equal for one in yardsticks(comparison)[what])


def equality_sentence(comparison: NetworkComparison, what: str) -> str:
    """Say whether the networks are equal in this, and how far apart they are."""
    sticks = yardsticks(comparison)[what]
    names = [network.label for network in comparison.networks]
    parts = "; ".join(_part(stick, names) for stick in sticks)
    verdict = "equal" if are_equal(comparison, what) else "not equal"
    limit = f"equal: within {100 * EQUAL_WITHIN:g} %"
    return f"{what.capitalize()} {verdict}: {parts} ({limit})."


def _part(stick: Yardstick, names: Sequence[str]) -> str:
    if math.isnan(stick.spread):
        unknown = [
            name
            for name, value in zip(names, stick.values, strict=True)
            if math.isnan(value)
        ]
        return f"{stick.name} of {', '.join(unknown)} not known"
    low, high = min(stick.values), max(stick.values)
    if low == high:
        return f"{stick.name} {stick.write(low)} each"
    least, most = names[stick.values.index(low)], names[stick.values.index(high)]
    apart = "" if math.isinf(stick.spread) else f" (+{percent(stick.spread)})"
    return (
        f"{stick.name} {stick.write(low)} on {least} to {stick.write(high)} on {most}"
        f"{apart}"
    )


def tokens_per_port(network: ComparedNetwork, tokens_per_second: float) -> float:
    """Return throughput for each port outside of nodes [token/s].

    NaN where there are no such ports.
    """
    ports = network.inventory.num_ports
    return tokens_per_second / ports if ports else math.nan
