"""A comparison of networks in sentences: what is equal, what decides, what is fair.

Whether networks are equal, in ports or in cost, stands here, too, and throughput for
each of them.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nestsim.document.wording import (
    HOUR,
    difference,
    number,
    percent,
    plural,
    signed_duration,
)
from nestsim.features.compare.measure import differences, largest
from nestsim.features.compare.networks_record import (
    EQUAL_WITHIN,
    TIE,
    ComparedNetwork,
    NetworkComparison,
    NetworkEntry,
    spread,
)
from nestsim.features.compare.words import CLOSE, EQUAL, listed
from nestsim.features.run.cost import cost_sentences
from nestsim.features.topology.document import IDEAL_TRUNKS
from topologies.units import format_bandwidth, format_duration, format_money


def networks_title(comparison: NetworkComparison) -> str:
    """Say which network is fastest, and how far ahead of the slowest."""
    fastest = comparison.fastest
    if fastest is None:
        return "On no network is there a plan that the replay finds room for"
    times = [one.best.time for one in comparison.networks]
    lead = difference(
        fastest.best.time, max(time for time in times if math.isfinite(time))
    )
    title = f"Fastest network in the replay: {leaders_label(comparison)}"
    return f"{title}, up to {percent(lead)} ahead" if lead >= TIE else title


def leaders_label(comparison: NetworkComparison) -> str:
    """Name the fastest network, or those that tie; "none" without any."""
    names = [one.label for one in comparison.leaders]
    if len(names) < 2:
        return names[0] if names else "none"
    return f"a tie of {listed(names)}"


def relative(
    comparison: NetworkComparison, network: ComparedNetwork, one: NetworkEntry
) -> list[float]:
    """Return throughput, for each port and for money, relative to the base.

    The last one where there are prices; NaN where one of both is not known.
    """
    first = comparison.base
    tokens, before = one.tokens_per_second, first.best.tokens_per_second
    ratios = [
        tokens / before,
        tokens_per_port(network, tokens) / tokens_per_port(first, before),
    ]
    if comparison.currency:
        money = tokens_per_money(network, one)
        ratios.append(money / tokens_per_money(first, first.best))
    return ratios


def decisions(comparison: NetworkComparison) -> list[str]:
    """Say which network is fastest, and what the others lose by."""
    fastest = comparison.fastest
    if fastest is None:
        return ["On no network is there a plan that the replay finds room for."]
    leaders = comparison.leaders
    names = listed([one.label for one in leaders])
    time = f"{format_duration(fastest.best.time)} per iteration"
    lines = [f"{names} is fastest, with {time}."]
    if len(leaders) > 1:
        apart = max(one.best.time for one in leaders) - fastest.best.time
        by = f"at most {format_duration(apart)} apart" if apart else "all alike"
        lines = [
            f"{names} tie, with {time}, {by}: less than {percent(TIE)} is no lead, and "
            "has no cause worth a name."
        ]
    lines += [
        _slower(fastest, network)
        for network in comparison.networks
        if network.label not in {one.label for one in leaders}
    ]
    for network in comparison.networks:
        for one in network.entries:
            planner = f", {one.entry.planner}" if len(network.entries) > 1 else ""
            lines += [f"{network.label}{planner}: {note}" for note in one.entry.notes]
    return lines


def _slower(fastest: ComparedNetwork, network: ComparedNetwork) -> str:
    """Say by how much a network is slower, and by which term."""
    best, other = fastest.best.entry.found, network.best.entry.found
    if other is None or not network.best.entry.is_valid:
        return f"{network.label}: {network.best.entry.obstacle}"
    assert best is not None
    longer = difference(fastest.best.time, network.best.time)
    close = " (too close to tell apart under contention)" if longer < CLOSE else ""
    cause = largest(differences(best, other))
    total = network.best.time - fastest.best.time
    same = "the same plan" if best.plan == other.plan else "another plan"
    return (
        f"{network.label} takes {percent(longer)} longer, {signed_duration(total)}"
        f"{close}, with {same}: the term that differs most is {cause.term}, "
        f"{signed_duration(cause.seconds)}."
    )


def fairness(comparison: NetworkComparison) -> list[str]:
    """Say what was held equal, what was not, and what is proven."""
    searched = listed(comparison.planners)
    limit = (
        "without a limit of work"
        if comparison.work_limit is None
        else f"with the same limit of work, {plural(comparison.work_limit, 'unit')}"
    )
    return [
        f"The same for all: {plural(comparison.num_devices, 'device')} "
        f"({comparison.device}), model, batch, number formats, software and search "
        "space; the replay is the judge.",
        f"{searched} searched each network by itself, {limit}: compared are the best "
        "plans that each allows, not one plan on all.",
        *_proofs(comparison),
        *_trunks(comparison),
        *_inside(comparison),
        *_unpriced(comparison),
        "Ports are counted outside of nodes, at NICs and at switches. A link that is "
        "wider than a NIC's counts as the cables that fill it, a switch as those that "
        "have enough ports.",
        *_bisections(comparison),
    ]


def assumptions(comparison: NetworkComparison) -> list[str]:
    """Say what cost and power rest on; nothing without prices."""
    said = (
        sentence
        for network in comparison.networks
        if network.cost is not None
        for sentence in cost_sentences(network.cost)
    )
    return list(dict.fromkeys(said))


def _proofs(comparison: NetworkComparison) -> list[str]:
    """Say how far each search has proven its plan."""
    how = "as planned" if comparison.objective == "planned" else "in the replay"
    proven: dict[str, list[str]] = {}
    for network in comparison.networks:
        proven.setdefault(_proof(network.best, how), []).append(network.label)
    return [f"On {listed(names)} {text}" for text, names in proven.items() if text]


def _proof(one: NetworkEntry, how: str) -> str:
    """Say what is proven of a plan, behind the names of networks; "" without one."""
    planner, spent = one.entry.planner, one.entry.spent
    if one.entry.found is None:
        return ""
    stopped = f"the {spent.stopped_by} ended the search: " if spent.is_stopped else ""
    if math.isnan(one.gap):
        return f"{stopped}{planner} proves nothing of its plan."
    faster = percent(one.gap / (1.0 + one.gap))
    if spent.is_stopped:
        return f"{stopped}another plan may be up to {faster} faster {how}."
    if one.gap <= EQUAL:
        return f"it is proven that no plan of the space is faster {how}."
    return f"it is proven that no plan is more than {faster} faster {how}."


def _trunks(comparison: NetworkComparison) -> list[str]:
    """Say where no two flows can meet on one of several cables."""
    names = [one.label for one in comparison.networks if one.has_ideal_trunks]
    return [f"On {listed(names)} {IDEAL_TRUNKS}"] if names else []


def inside_bandwidths(network: ComparedNetwork) -> float:
    """Return what a device has inside of its node, per direction; 0 without nodes.

    Of the tier that devices are in [byte/s].
    """
    inside = network.inventory.inside_nodes
    return inside[0].bandwidth / network.inventory.num_devices if inside else 0.0


def _inside(comparison: NetworkComparison) -> list[str]:
    """Say so if devices have different links inside of nodes."""
    found: dict[float, list[str]] = {}
    for network in comparison.networks:
        found.setdefault(inside_bandwidths(network), []).append(network.label)
    if len(found) == 1:
        return []
    parts = [
        f"{format_bandwidth(bandwidth) if bandwidth else 'nothing'} on {listed(names)}"
        for bandwidth, names in found.items()
    ]
    return [
        f"NOT the same: links inside of nodes. A device has {listed(parts)}; no number "
        "of ports counts that."
    ]


def _unpriced(comparison: NetworkComparison) -> list[str]:
    """Say of levels that no price is about that they cost nothing here."""
    return [
        f"NOT priced on {network.label}: {listed(network.cost.unpriced_levels)}."
        for network in comparison.networks
        if network.cost is not None and comparison.currency
        if network.cost.unpriced_levels
    ]


def _bisections(comparison: NetworkComparison) -> list[str]:
    rules: dict[str, list[str]] = {}
    for network in comparison.networks:
        rules.setdefault(network.bisection_rule, []).append(network.label)
    parts = [f"{rule} ({', '.join(names)})" for rule, names in rules.items()]
    return [f"Bisections are what links reach, one way: {'; '.join(parts)}."]


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
