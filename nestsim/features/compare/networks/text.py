"""A comparison of networks as text, for a person at a terminal.

First whether they are equal, then what each gives, what each is made of, throughput for
each port, what decides, and what makes the comparison fair.
"""

import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.document.terminal import (
    add_row,
    facts,
    new_table,
    print_line,
    print_section,
)
from nestsim.document.wording import (
    HOUR,
    difference,
    number,
    percent,
    plan_label,
    plural,
    signed_duration,
)
from nestsim.features.compare.measure import differences, largest
from nestsim.features.compare.networks.equality import (
    are_equal,
    equality_sentence,
    network_rate,
    tokens_per_money,
    tokens_per_port,
    yardsticks,
)
from nestsim.features.compare.networks.record import (
    TIE,
    ComparedNetwork,
    NetworkComparison,
    NetworkEntry,
)
from nestsim.features.compare.text import (
    CLOSE,
    EQUAL,
    NOTHING,
    format_ratio,
    format_time,
    listed,
)
from nestsim.features.run.cost import cost_sentences
from nestsim.features.topology.document import IDEAL_TRUNKS
from topologies.fabrics.inventory import TierParts
from topologies.units import (
    format_bandwidth,
    format_duration,
    format_money,
    format_power,
    format_size,
)


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


def print_networks(
    comparison: NetworkComparison, console: Console, *, with_times: bool = True
) -> None:
    """Print tables and sentences.

    Parameters
    ----------
    comparison
        What was found.
    console
        Where to.
    with_times
        Whether to print how long the searches took.
    """
    headline = f"{plural(len(comparison.networks), 'network')} compared"
    subject = (
        f"{comparison.scenario}: {plural(comparison.num_devices, 'device')} "
        f"({comparison.device}), {comparison.model}"
    )
    print_line(console, Text(headline, style="bold"), subject)
    for what in yardsticks(comparison):
        asked = comparison.asked == what
        colour = "green" if are_equal(comparison, what) else "red"
        style = f"bold {colour}" if asked else ""
        text = Text(equality_sentence(comparison, what), style=style)
        console.print(text, highlight=False)
    title = "What each network gives: its best plan, replayed"
    print_section(console, title, _results(comparison, with_times=with_times))
    title = f"Communication, and throughput for what, {comparison.base.label} = 1"
    print_section(console, title, _loads(comparison))
    obstacles = {
        _row_name(comparison, network, one): one.entry.obstacle
        for network in comparison.networks
        for one in network.entries
        if one.entry.obstacle
    }
    if obstacles:
        print_section(console, f"{NOTHING}: nothing valid was found", facts(obstacles))
    print_section(
        console, "What each is made of, outside of nodes", _made_of(comparison)
    )
    print_section(console, "Tier by tier", _tiers(comparison))
    if comparison.currency:
        print_section(console, "What each costs", _costs(comparison))
    for title, lines in (
        ("What decides", decisions(comparison)),
        ("What is the same, and what is not", fairness(comparison)),
        ("What cost and power rest on", assumptions(comparison)),
    ):
        if not lines:
            continue
        body = Table.grid(padding=(0, 1, 0, 0))
        for sentence in lines:
            body.add_row(Text("  -"), Text(sentence))
        print_section(console, title, body)


def _row_name(
    comparison: NetworkComparison, network: ComparedNetwork, one: NetworkEntry
) -> str:
    """Return the name of an entry: its network, and its planner if there are more."""
    if len(comparison.planners) == 1:
        return network.label
    return f"{network.label}, {one.entry.planner}"


def _results(comparison: NetworkComparison, *, with_times: bool) -> Table:
    versus = f"Vs {comparison.base.label}"
    numbers = ["Iteration", "Tokens/s", "MFU", "Memory", versus]
    if with_times:
        numbers.insert(0, "Search")
    table = new_table("Network", "Plan", *numbers, "Verdict", numbers=numbers)
    for network, one, name in _rows(comparison):
        is_best = network is comparison.fastest and one is network.best
        search = [format_time(one.entry.search_time)] if with_times else []
        made = one.entry.found
        if made is None:
            cells = [NOTHING, *search, *4 * ["-"], NOTHING, "none"]
        else:
            ratio = comparison.speed(one.tokens_per_second)
            cells = [
                plan_label(made.plan),
                *search,
                format_duration(made.simulated.iteration_time),
                number(made.simulated.tokens_per_second),
                percent(made.simulated.mfu),
                format_size(made.simulated.peak_memory),
                format_ratio(ratio) if one.entry.is_valid else NOTHING,
                made.verdict,
            ]
        add_row(table, name, *cells, style="bold" if is_best else "")
    return table


def _rows(
    comparison: NetworkComparison,
) -> Iterator[tuple[ComparedNetwork, NetworkEntry, str]]:
    """Yield every entry with its network and its name."""
    for network in comparison.networks:
        for one in network.entries:
            yield network, one, _row_name(comparison, network, one)


def _loads(comparison: NetworkComparison) -> Table:
    numbers = ["Exposed", "Of the step", "Used", "Per port"]
    if comparison.currency:
        numbers.append(f"Per {comparison.currency}")
    columns = [*numbers[:2], "Hottest link", *numbers[2:]]
    table = new_table("Network", *columns, numbers=numbers)
    for network, one, name in _rows(comparison):
        load = one.load
        cells = ["-", "-", "-", "-"]
        if load is not None and one.entry.found is not None:
            hot = load.busiest
            cells = [
                format_duration(load.exposed),
                percent(load.exposed / one.entry.found.simulated.iteration_time),
                "-" if hot is None else hot.name,
                "-" if hot is None else percent(hot.utilisation),
            ]
        ratios = relative(comparison, network, one)[1:]
        add_row(table, name, *cells, *(format_ratio(ratio) for ratio in ratios))
    return table


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


def _made_of(comparison: NetworkComparison) -> Table:
    numbers = ("NIC ports", "Switches", "Their ports", "Ports", "Cables", "Of them")
    more = ("Bisection", "Oversub.")
    table = new_table("Network", *numbers, *more, numbers=(*numbers, *more))
    for network in comparison.networks:
        parts = network.inventory
        ratio = network.oversubscription
        add_row(
            table,
            network.label,
            number(parts.num_nic_ports),
            number(parts.num_switches),
            number(parts.num_switch_ports),
            number(parts.num_ports),
            number(parts.num_cables),
            format_bandwidth(parts.bandwidth),
            format_bandwidth(network.bisection),
            f"{ratio:.3g} : 1" if math.isfinite(ratio) else "-",
        )
    return table


def _tiers(comparison: NetworkComparison) -> Table:
    numbers = ("Cables", "Each", "Switches", "Ports used by each")
    table = new_table("Network", "Kind", "Tier", *numbers, numbers=numbers)
    for network in comparison.networks:
        for tier in network.inventory.tiers:
            names = (network.label, network.kind, tier_name(tier))
            add_row(table, *names, *_tier_cells(tier))
    return table


def tier_name(tier: TierParts) -> str:
    """Return the name of a tier, and whether it is inside of nodes."""
    return f"{tier.name} (inside nodes)" if tier.is_inside_nodes else tier.name


def _tier_cells(tier: TierParts) -> list[str]:
    switches, ports = "-", "-"
    if tier.num_switches:
        switches, ports = number(tier.num_switches), number(tier.ports_per_switch)
    cables = [number(tier.num_cables), format_bandwidth(tier.cable_bandwidth)]
    return [*cables, switches, ports]


def _costs(comparison: NetworkComparison) -> Table:
    currency = comparison.currency
    tokens = f"Tokens/{currency}"
    numbers = ("Network bought", "Network/h", "Cluster/h", tokens, "Power")
    table = new_table("Network", *numbers, numbers=numbers)
    for network in comparison.networks:
        cost = network.cost
        assert cost is not None
        rate = math.nan if cost.rate is None else cost.rate * HOUR
        bought = math.nan if cost.network_capital is None else cost.network_capital
        amounts = (bought, network_rate(network), rate)
        add_row(
            table,
            network.label,
            *(_money(amount, currency) for amount in amounts),
            number(tokens_per_money(network, network.best)),
            "-" if cost.power is None else format_power(cost.power),
        )
    return table


def _money(amount: float, currency: str) -> str:
    return format_money(amount, currency) if math.isfinite(amount) else "-"


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
    for _, one, name in _rows(comparison):
        lines += [f"{name}: {note}" for note in one.entry.notes]
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
    parts = [f"{rule} ({_names(names)})" for rule, names in rules.items()]
    return [f"Bisections are what links reach, one way: {'; '.join(parts)}."]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
