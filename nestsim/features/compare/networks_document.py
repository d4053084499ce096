"""What a comparison of networks says: what each gives, what it takes, what decides."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from nestsim.document.figures import (
    BarGroups,
    BarsOfGroup,
    GroupedBar,
    StackedBar,
    StackPart,
    Stacks,
)
from nestsim.document.paints import series_paints, swatches
from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    cell,
    fact_lists,
    field_cell,
    paragraphs,
)
from nestsim.document.wording import hourly, number, percent
from nestsim.features.compare.document import (
    job_in_words,
    memory_cell,
    plan_name,
    ratio_cell,
    ratio_words,
    result_figures,
    search_column,
    time_cell,
)
from nestsim.features.compare.stored import (
    NetworkRecord,
    NetworksRecord,
    OnNetworkRecord,
    TierRecord,
)
from topologies.units import (
    format_bandwidth,
    format_duration,
    format_money,
    format_power,
)

_STEP = {
    "work": ("compute, optimizer", "series-0"),
    "exposed": ("exposed communication", "series-1"),
    "bubble": ("bubble", "series-7"),
}
"""Part of a step -> its name and paint."""


def networks_document(data: Mapping[str, object]) -> Document:
    """Return what a comparison of networks says.

    Parameters
    ----------
    data
        As ``comparison.json`` has it.
    """
    record = NetworksRecord.read(data)
    return Document.of(
        record.scenario, "compare --networks", _headline(record), _sections(record)
    )


def _sections(data: NetworksRecord) -> Iterator[Section]:
    networks = data.networks
    yield Section(
        "throughput",
        "What each network gives",
        (_speeds(data), *_results(data), _steps(networks)),
    )
    obstacles = {
        f"{network.network}, {entry.planner}": entry.reason
        for network, entry in _rows(networks)
        if not entry.valid and entry.reason
    }
    yield Section(
        "why", "What decides", (*paragraphs(data.decisions), *fact_lists(obstacles))
    )
    yield Section(
        "parts",
        "What each network is made of",
        (*_ports(networks), _parts(networks), _tiers(networks)),
    )
    yield Section("cost", "What each network costs", _costs(data))
    yield Section(
        "basis",
        "What is the same, and what is not",
        paragraphs([*data.fairness, *data.assumptions]),
    )


def _headline(data: NetworksRecord) -> Headline:
    """Return who is fastest, and whether the networks are equal."""
    confirmed = all(network.confirmed for network in data.networks)
    asked = data.asked_equal
    replay = (
        "The replay confirms a plan on every network."
        if confirmed
        else "Not on every network the replay confirms a plan."
    )
    held = confirmed and (asked is None or data.equal[asked].is_equal)
    return Headline(
        verdict=data.headline,
        tone="good" if held else "bad",
        sentences=(
            *(equal.in_words for equal in data.equal.values()),
            f"{replay} {job_in_words(data)}",
        ),
        key_figures=_key_figures(data),
    )


def _key_figures(data: NetworksRecord) -> tuple[KeyFigure, ...]:
    for network in data.networks:
        if network.network == data.fastest:
            leaders, is_tie = data.leaders, len(data.leaders) > 1
            fastest = KeyFigure(
                "Fastest networks" if is_tie else "Fastest network",
                ", ".join(leaders),
                "a tie" if is_tie else network.kind,
            )
            return (fastest, *result_figures(_best(network)))
    return ()


def _best(network: NetworkRecord) -> OnNetworkRecord:
    """Return the entry that is fastest in the replay; the first one without any."""
    entries = network.entries
    return next(
        (entry for entry in entries if entry.planner == network.best), entries[0]
    )


def _label(network: NetworkRecord) -> str:
    return network.network


_Row = tuple[NetworkRecord, OnNetworkRecord]
"""An entry with its network."""


def _rows(networks: Sequence[NetworkRecord]) -> list[_Row]:
    return [(network, entry) for network in networks for entry in network.entries]


def _measures(
    data: NetworksRecord,
) -> dict[str, Callable[[OnNetworkRecord], float | None]]:
    """Return throughput relative to the base: as it is, per port, for money."""

    def per(what: str) -> Callable[[OnNetworkRecord], float | None]:
        return lambda entry: entry.relative_per[what]

    code = data.currency
    return {
        "as it is": lambda entry: entry.relative_speed,
        "per port": per("port"),
        **({f"per {code}": per(code)} if code else {}),
    }


def _speeds(data: NetworksRecord) -> FigureBlock:
    base, measures = data.base, _measures(data)
    paints = dict(zip(measures, ("series-0", "series-2", "series-4"), strict=False))

    def bar(network: NetworkRecord, name: str) -> GroupedBar:
        ratio = measures[name](_best(network))
        words = ratio_words(ratio)
        tip = f"{_label(network)}, {name}: {words}"
        return GroupedBar(name, ratio, words, paints[name], tip=tip)

    def ratio(name: str) -> Callable[[NetworkRecord], str | Cell]:
        return lambda network: ratio_cell(measures[name](_best(network)))

    return FigureBlock(
        name="throughput",
        title="Throughput of each network's best plan in the replay",
        about=f"Bars of the throughput of each network's best plan in the replay "
        f"relative to {base}, as it is and by what the network takes.",
        drawing=BarGroups(
            groups=tuple(
                BarsOfGroup(
                    _label(network), tuple(bar(network, name) for name in measures)
                )
                for network in data.networks
            ),
            across=f"throughput, {base} = 1",
        ),
        table=DataTable.of(
            f"Throughput of the best plan in the replay, {base} = 1",
            data.networks,
            {"Network": _label, **{name: ratio(name) for name in measures}},
        ),
        legend=swatches(paints),
        note="Ports are those outside of nodes, of NICs and of switches.",
        # The tables below have its numbers.
        in_text=False,
    )


def _results(data: NetworksRecord) -> tuple[DataTable, ...]:
    """Return all plans, a row for each network and planner, and what they send."""
    rows = _rows(data.networks)
    names: dict[str, Callable[[_Row], str | Cell]] = {
        "Network": lambda row: _label(row[0])
    }
    if len(data.planners) > 1:
        names["Planner"] = lambda row: row[1].planner
    fastest = [
        place
        for place, (network, entry) in enumerate(rows)
        if _label(network) == data.fastest and entry is _best(network)
    ]

    def replayed(
        key: str, write: Callable[[float], str]
    ) -> Callable[[_Row], str | Cell]:
        return lambda row: cell(getattr(row[1].simulated, key, None), write)

    def relative(
        name: str,
    ) -> Callable[[_Row], str | Cell]:
        return lambda row: ratio_cell(_measures(data)[name](row[1]))

    plans = DataTable.of(
        "The best plan for each network, replayed",
        rows,
        {
            **names,
            "Plan": lambda row: plan_name(row[1]),
            **search_column(rows),
            "Iteration": replayed("iteration_time_s", format_duration),
            "tokens/s": replayed("tokens_per_s", number),
            "MFU": replayed("mfu", percent),
            "Memory": lambda row: memory_cell(row[1].simulated),
            f"Vs {data.base}": relative("as it is"),
            "Verdict": lambda row: row[1].verdict or "none",
        },
        sortable=True,
        shown=fastest[0] if fastest else None,
    )
    loads = DataTable.of(
        f"Communication, and throughput for what, {data.base} = 1",
        rows,
        {
            **names,
            "Exposed": lambda row: time_cell(row[1].exposed_communication_s),
            "Of the step": _exposed_share,
            "Hottest link": lambda row: getattr(row[1].hottest_link, "name", "-"),
            "Used": lambda row: cell(
                getattr(row[1].hottest_link, "utilisation", None), percent
            ),
            **{f"P{name[1:]}": relative(name) for name in list(_measures(data))[1:]},
        },
    )
    return plans, loads


def _exposed_share(row: _Row) -> str | Cell:
    exposed, replayed = row[1].exposed_communication_s, row[1].simulated
    if exposed is None or replayed is None:
        return "-"
    return cell(exposed / replayed.iteration_time_s, percent)


def _steps(networks: Sequence[NetworkRecord]) -> FigureBlock:
    """Return where the step of each network's best plan goes."""

    def stack(network: NetworkRecord) -> StackedBar:
        step = network.step_s
        if step is None:
            return StackedBar(_label(network), (), "nothing valid")
        return _stack(
            network,
            {name: (1e3 * step[part], paint) for part, (name, paint) in _STEP.items()},
            {name: format_duration(step[part]) for part, (name, _) in _STEP.items()},
            format_duration(sum(step.values())),
        )

    def part(key: str) -> Callable[[NetworkRecord], str | Cell]:
        return lambda network: time_cell((network.step_s or {}).get(key))

    return FigureBlock(
        name="step",
        title="Where the replayed step of each network's best plan goes",
        about="Bars of compute, communication that nothing hides, and waiting.",
        drawing=Stacks(bars=tuple(map(stack, networks)), across="time [ms]"),
        table=DataTable.of(
            "Parts of the replayed step",
            networks,
            {
                "Network": _label,
                **{name: part(key) for key, (name, _) in _STEP.items()},
            },
        ),
        legend=swatches(dict(_STEP.values())),
    )


def _stack(
    network: NetworkRecord,
    parts: Mapping[str, tuple[float, str]],
    words: Mapping[str, str],
    total: str,
) -> StackedBar:
    """Return a network's bar of parts: length and paint of each by its name."""
    return StackedBar(
        _label(network),
        tuple(
            StackPart(name, length, paint, f"{_label(network)}, {name}: {words[name]}")
            for name, (length, paint) in parts.items()
        ),
        total,
    )


def _parts(networks: Sequence[NetworkRecord]) -> DataTable:
    return DataTable.of(
        "Outside of nodes",
        networks,
        {
            "Network": _label,
            "Kind": lambda network: network.kind,
            "NIC ports": field_cell("nic_ports", number),
            "Switches": field_cell("switches", number),
            "Their ports": field_cell("switch_ports", number),
            "Ports": field_cell("ports", number),
            "Cables": field_cell("cables", number),
            "Of them": lambda network: cell(
                network.cable_bandwidth_bytes_per_s, format_bandwidth
            ),
            "Bisection": lambda network: cell(
                network.bisection_bandwidth_bytes_per_s, format_bandwidth
            ),
            "Oversub.": lambda network: cell(
                network.oversubscription, "{:.3g} : 1".format
            ),
        },
        sortable=True,
    )


def _pieces(network: NetworkRecord) -> dict[str, int]:
    """Return the ports outside of nodes: those of NICs, and of switches by tier."""
    return {
        "NICs": network.nic_ports,
        **{
            f"switches, {tier.name}": tier.switch_ports
            for tier in network.tiers
            if not tier.inside_nodes and tier.switch_ports
        },
    }


def _ports(networks: Sequence[NetworkRecord]) -> tuple[FigureBlock, ...]:
    """Return the ports of each network; nothing if none has any."""
    if not any(network.ports for network in networks):
        return ()
    paints = series_paints(name for network in networks for name in _pieces(network))

    def stack(network: NetworkRecord) -> StackedBar:
        pieces = _pieces(network)
        bandwidth = network.bisection_bandwidth_bytes_per_s
        return _stack(
            network,
            {name: (count, paints[name]) for name, count in pieces.items()},
            {name: number(count) for name, count in pieces.items()},
            f"{number(network.ports)}, bisection {format_bandwidth(bandwidth)}",
        )

    def count(name: str) -> Callable[[NetworkRecord], str | Cell]:
        return lambda network: cell(_pieces(network).get(name) or None, number)

    return (
        FigureBlock(
            name="ports",
            title="Ports outside of nodes",
            about="Bars of the ports of NICs, and of switches by the tier whose cables "
            "are in them.",
            drawing=Stacks(bars=tuple(map(stack, networks)), across="ports"),
            table=DataTable.of(
                "Ports outside of nodes",
                networks,
                {
                    "Network": _label,
                    **{name: count(name) for name in paints},
                    "All": field_cell("ports", number),
                },
            ),
            legend=swatches(paints),
            # The tables below have its numbers.
            in_text=False,
        ),
    )


def _tiers(networks: Sequence[NetworkRecord]) -> DataTable:
    def switches(key: str) -> Callable[[tuple[NetworkRecord, TierRecord]], str | Cell]:
        return lambda row: cell(
            getattr(row[1], key) if row[1].switches else None, number
        )

    return DataTable.of(
        "Tier by tier",
        [(network, tier) for network in networks for tier in network.tiers],
        {
            "Network": lambda row: _label(row[0]),
            "Tier": lambda row: (
                f"{row[1].name}{' (inside nodes)' if row[1].inside_nodes else ''}"
            ),
            "Cables": lambda row: cell(row[1].cables, number),
            "Each": lambda row: cell(
                row[1].cable_bandwidth_bytes_per_s, format_bandwidth
            ),
            "Switches": switches("switches"),
            "Ports used by each": switches("ports_per_switch"),
        },
    )


def _costs(data: NetworksRecord) -> tuple[Block, ...]:
    """Return what each network costs; nothing without prices."""
    code = data.currency
    if not code:
        return ()

    def rate(value: float) -> str:
        return hourly(value, code)

    def by_run(
        key: str, write: Callable[[float], str]
    ) -> Callable[[NetworkRecord], str | Cell]:
        return lambda network: cell((_best(network).cost or {}).get(key), write)

    table = DataTable.of(
        "What each network costs",
        data.networks,
        {
            "Network": _label,
            "Bought": lambda network: cell(
                network.network_capital, lambda money: format_money(money, code)
            ),
            "Network/h": field_cell("network_cost_per_s", rate),
            "Cluster/h": by_run("cost_per_s", rate),
            f"tokens/{code}": by_run("tokens_per_currency", number),
            "Power of the network": lambda network: cell(
                network.network_power_w, format_power
            ),
        },
        sortable=True,
    )
    return (table,)
