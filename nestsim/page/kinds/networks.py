"""The page of a comparison of networks: of what its ``comparison.json`` holds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nestsim.document.figures import (
    BarGroups,
    BarsOfGroup,
    GroupedBar,
    StackedBar,
    StackPart,
    Stacks,
)
from nestsim.document.paints import Swatch
from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    Sentences,
)
from nestsim.document.wording import hourly, number, percent, plan_label, plural
from planner.step.plan import Plan
from topologies.units import (
    format_bandwidth,
    format_duration,
    format_money,
    format_power,
    format_size,
)

Network = Mapping[str, Any]
"""One network of the comparison."""

Entry = Mapping[str, Any]
"""What one planner found on it."""

_STEP = {
    "work": ("compute, optimizer", "series-0"),
    "exposed": ("exposed communication", "series-1"),
    "bubble": ("bubble", "series-7"),
}
"""Part of a step -> its name and paint."""

_NOTHING = "nothing valid"


def networks_page(data: Mapping[str, Any]) -> Document:
    """Return the page of a comparison of networks.

    Parameters
    ----------
    data
        As ``comparison.json`` has it.
    """
    sections = (
        Section(
            name="throughput", title="What each network gives", blocks=_gives(data)
        ),
        Section(name="why", title="What decides", blocks=_why(data)),
        Section(
            name="parts", title="What each network is made of", blocks=_parts(data)
        ),
        Section(name="cost", title="What each network costs", blocks=_costs(data)),
        Section(
            name="basis",
            title="What is the same, and what is not",
            blocks=_paragraphs([*data["fairness"], *data["assumptions"]]),
        ),
    )
    return Document(
        subject=data["scenario"],
        doing="compare --networks",
        headline=_headline(data),
        sections=tuple(one for one in sections if one.blocks),
    )


def _paragraphs(sentences: Sequence[str]) -> tuple[Block, ...]:
    return (Sentences(sentences=tuple(sentences)),) if sentences else ()


def _headline(data: Mapping[str, Any]) -> Headline:
    """Return who is fastest, and whether the networks are equal."""
    confirmed = all(one["confirmed"] for one in data["networks"])
    asked = data["asked_equal"]
    replay = (
        "The replay confirms a plan on every network."
        if confirmed
        else "Not on every network the replay confirms a plan."
    )
    held = confirmed and (asked is None or data["equal"][asked]["is_equal"])
    return Headline(
        verdict=data["headline"],
        tone="good" if held else "bad",
        sentences=(
            *(one["in_words"] for one in data["equal"].values()),
            f"{replay} The job: {data['model']} on "
            f"{plural(data['num_devices'], 'device')} ({data['device']}).",
        ),
        key_figures=_key_figures(data),
    )


def _key_figures(data: Mapping[str, Any]) -> tuple[KeyFigure, ...]:
    for network in data["networks"]:
        if network["network"] == data["fastest"]:
            best = _best(network)
            planned = format_duration(best["planned"]["iteration_time_s"])
            return (
                _fastest(data, network["kind"]),
                KeyFigure(
                    name="Throughput",
                    value=f"{number(best['simulated']['tokens_per_s'])} tokens/s",
                    note=plan_label(Plan.from_json(best["plan"])),
                ),
                KeyFigure(
                    name="Time per iteration",
                    value=format_duration(best["simulated"]["iteration_time_s"]),
                    note=f"planned {planned}",
                ),
            )
    return ()


def _fastest(data: Mapping[str, Any], kind: str) -> KeyFigure:
    leaders = data["leaders"]
    if len(leaders) > 1:
        names = ", ".join(leaders)
        return KeyFigure(name="Fastest networks", value=names, note="a tie")
    return KeyFigure(name="Fastest network", value=leaders[0], note=kind)


def _best(network: Network) -> Entry:
    """Return the entry that is fastest in the replay; the first one without any."""
    entries: Sequence[Entry] = network["entries"]
    return next(
        (one for one in entries if one["planner"] == network["best"]), entries[0]
    )


def _gives(data: Mapping[str, Any]) -> tuple[Block, ...]:
    return (_speeds(data), _results(data), _steps(data))


def _kinds(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of what throughput is taken by, and their paints."""
    code = data["currency"]
    names = ("as it is", "per port", *([f"per {code}"] if code else []))
    return dict(zip(names, ("series-0", "series-2", "series-4"), strict=False))


def _ratios(entry: Entry) -> list[float | None]:
    """Return throughput relative to the base: as it is, per port, for money."""
    return [entry["relative_speed"], *entry["relative_per"].values()]


def _speeds(data: Mapping[str, Any]) -> FigureBlock:
    base, kinds = data["base"], _kinds(data)
    groups = [
        BarsOfGroup(
            network["network"],
            tuple(
                GroupedBar(
                    name,
                    ratio,
                    _NOTHING if ratio is None else f"{ratio:.3f}",
                    paint,
                    tip=f"{network['network']}, {name}: "
                    f"{_NOTHING if ratio is None else f'{ratio:.3f}'}",
                )
                for (name, paint), ratio in zip(
                    kinds.items(), _ratios(_best(network)), strict=True
                )
            ),
        )
        for network in data["networks"]
    ]
    return FigureBlock(
        name="throughput",
        title=data["headline"],
        about=f"Bars of the throughput of each network's best plan in the replay "
        f"relative to {base}, as it is and by what the network takes.",
        drawing=BarGroups(groups=tuple(groups), across=f"throughput, {base} = 1"),
        table=DataTable(
            caption=f"Throughput of the best plan in the replay, {base} = 1",
            columns=("Network", *kinds),
            rows=tuple(
                (network["network"], *(_ratio(one) for one in _ratios(_best(network))))
                for network in data["networks"]
            ),
            numbers=tuple(kinds),
        ),
        legend=tuple(Swatch(name=name, paint=paint) for name, paint in kinds.items()),
        note="Ports are those outside of nodes, of NICs and of switches.",
    )


def _ratio(value: float | None) -> Cell | str:
    return "-" if value is None else Cell(f"{value:.3f}", value)


def _entries(data: Mapping[str, Any]) -> Iterator[tuple[Network, Entry]]:
    for network in data["networks"]:
        for entry in network["entries"]:
            yield network, entry


_NUMBERS = ("Iteration", "tokens/s", "MFU", "Memory", "Relative")


def _results(data: Mapping[str, Any]) -> DataTable:
    """Return all plans, one row for each network and planner."""
    several = len(data["planners"]) > 1
    who = ("Planner",) if several else ()
    columns = ("Network", *who, "Plan", *_NUMBERS, "Exposed")
    rows = [
        (
            network["network"],
            *((entry["planner"],) if several else ()),
            *_result_cells(entry),
        )
        for network, entry in _entries(data)
    ]
    fastest = [
        place
        for place, (network, entry) in enumerate(_entries(data))
        if network["network"] == data["fastest"] and entry is _best(network)
    ]
    return DataTable(
        caption="The best plan for each network, replayed",
        columns=(*columns, "Hottest link", "Verdict"),
        rows=tuple(rows),
        numbers=(*_NUMBERS, "Exposed"),
        sortable=True,
        shown=fastest[0] if fastest else None,
    )


def _result_cells(entry: Entry) -> tuple[Cell | str, ...]:
    found, hot = entry["simulated"], entry["hottest_link"]
    if found is None:
        return (_NOTHING, *["-"] * (len(_NUMBERS) + 2), "none")
    memory = found["peak_memory_bytes"]
    return (
        plan_label(Plan.from_json(entry["plan"])),
        _time(found["iteration_time_s"]),
        Cell(number(found["tokens_per_s"]), found["tokens_per_s"]),
        Cell(percent(found["mfu"]), found["mfu"]),
        "-" if memory is None else Cell(format_size(memory), memory),
        _ratio(entry["relative_speed"]),
        _time(entry["exposed_communication_s"]),
        "-" if hot is None else f"{hot['name']}, used {percent(hot['utilisation'])}",
        entry["verdict"] or "none",
    )


def _time(seconds: float | None) -> Cell | str:
    return "-" if seconds is None else Cell(format_duration(seconds), seconds)


def _steps(data: Mapping[str, Any]) -> FigureBlock:
    """Return where the step of each network's best plan goes."""
    networks: Sequence[Network] = data["networks"]
    bars = [
        StackedBar(
            one["network"],
            ()
            if one["step_s"] is None
            else tuple(
                StackPart(
                    name,
                    1e3 * one["step_s"][part],
                    paint,
                    f"{one['network']}, {name}: {format_duration(one['step_s'][part])}",
                )
                for part, (name, paint) in _STEP.items()
            ),
            _NOTHING
            if one["step_s"] is None
            else format_duration(sum(one["step_s"].values())),
        )
        for one in networks
    ]
    names = [name for name, _ in _STEP.values()]
    return FigureBlock(
        name="step",
        title="Where the replayed step of each network's best plan goes",
        about="Bars of compute, communication that nothing hides, and waiting.",
        drawing=Stacks(bars=tuple(bars), across="time [ms]"),
        table=DataTable(
            caption="Parts of the replayed step",
            columns=("Network", *names),
            rows=tuple(
                (
                    one["network"],
                    *(_time((one["step_s"] or {}).get(part)) for part in _STEP),
                )
                for one in networks
            ),
            numbers=tuple(names),
        ),
        legend=tuple(Swatch(name=name, paint=paint) for name, paint in _STEP.values()),
    )


def _why(data: Mapping[str, Any]) -> tuple[Block, ...]:
    """Return what decides, and what stood in the way of plans."""
    obstacles = {
        f"{network['network']}, {entry['planner']}": entry["reason"]
        for network, entry in _entries(data)
        if not entry["valid"] and entry["reason"]
    }
    lists = (FactList(rows=obstacles),) if obstacles else ()
    return (*_paragraphs(data["decisions"]), *lists)


_COUNTS = {
    "NIC ports": "nic_ports",
    "Switches": "switches",
    "Their ports": "switch_ports",
    "Ports": "ports",
    "Cables": "cables",
}
"""Column -> what is counted."""


def _parts(data: Mapping[str, Any]) -> tuple[Block, ...]:
    networks: Sequence[Network] = data["networks"]
    numbers = (*_COUNTS, "Of them", "Bisection", "Oversubscription")
    made_of = DataTable(
        caption="Outside of nodes",
        columns=("Network", "Kind", *numbers),
        rows=tuple(
            (
                one["network"],
                one["kind"],
                *(Cell(number(one[key]), one[key]) for key in _COUNTS.values()),
                _bandwidth(one["cable_bandwidth_bytes_per_s"]),
                _bandwidth(one["bisection_bandwidth_bytes_per_s"]),
                _oversubscription(one["oversubscription"]),
            )
            for one in networks
        ),
        numbers=numbers,
        sortable=True,
    )
    return (*_ports(networks), made_of, _tiers(networks))


def _bandwidth(value: float | None) -> Cell | str:
    return "-" if value is None else Cell(format_bandwidth(value), value)


def _oversubscription(value: float | None) -> Cell | str:
    return "-" if value is None else Cell(f"{value:.3g} : 1", value)


def _pieces(network: Network) -> list[tuple[str, int]]:
    """Return the ports outside of nodes: those of NICs, and of switches by tier."""
    return [
        ("NICs", network["nic_ports"]),
        *(
            (f"switches, {tier['name']}", tier["switch_ports"])
            for tier in network["tiers"]
            if not tier["inside_nodes"] and tier["switch_ports"]
        ),
    ]


def _ports(networks: Sequence[Network]) -> tuple[FigureBlock, ...]:
    """Return the ports of each network; nothing if none has any."""
    if not any(one["ports"] for one in networks):
        return ()
    names = dict.fromkeys(name for one in networks for name, _ in _pieces(one))
    paints = {name: f"series-{place % 10}" for place, name in enumerate(names)}
    bars = [
        StackedBar(
            one["network"],
            tuple(
                StackPart(
                    name,
                    count,
                    paints[name],
                    f"{one['network']}, {name}: {number(count)}",
                )
                for name, count in _pieces(one)
            ),
            number(one["ports"]),
        )
        for one in networks
    ]
    return (
        FigureBlock(
            name="ports",
            title="Ports outside of nodes",
            about="Bars of the ports of NICs, and of switches by the tier whose cables "
            "are in them.",
            drawing=Stacks(bars=tuple(bars), across="ports"),
            table=DataTable(
                caption="Ports outside of nodes",
                columns=("Network", *names, "All"),
                rows=tuple(
                    (
                        one["network"],
                        *(
                            number(count) if (count := pieces.get(name)) else "-"
                            for name in names
                        ),
                        number(one["ports"]),
                    )
                    for one in networks
                    for pieces in (dict(_pieces(one)),)
                ),
                numbers=(*names, "All"),
            ),
            legend=tuple(
                Swatch(name=name, paint=paint) for name, paint in paints.items()
            ),
        ),
    )


def _tiers(networks: Sequence[Network]) -> DataTable:
    numbers = ("Cables", "Each", "Switches", "Ports used by each")
    return DataTable(
        caption="Tier by tier",
        columns=("Network", "Tier", *numbers),
        rows=tuple(
            (
                one["network"],
                f"{tier['name']} (inside nodes)"
                if tier["inside_nodes"]
                else tier["name"],
                number(tier["cables"]),
                _bandwidth(tier["cable_bandwidth_bytes_per_s"]),
                number(tier["switches"]) if tier["switches"] else "-",
                number(tier["ports_per_switch"]) if tier["switches"] else "-",
            )
            for one in networks
            for tier in one["tiers"]
        ),
        numbers=numbers,
    )


def _costs(data: Mapping[str, Any]) -> tuple[Block, ...]:
    """Return what each network costs; nothing without prices."""
    code = data["currency"]
    if not code:
        return ()
    numbers = ("Bought", "Network", "Cluster", f"tokens/{code}", "Power of the network")
    return (
        DataTable(
            caption="What each network costs",
            columns=("Network", *numbers),
            rows=tuple(
                (one["network"], *_cost_cells(one, code)) for one in data["networks"]
            ),
            numbers=numbers,
            sortable=True,
        ),
    )


def _cost_cells(network: Network, code: str) -> tuple[Cell | str, ...]:
    run = _best(network).get("cost") or {}
    bought, power = network["network_capital"], network["network_power_w"]
    tokens = run.get("tokens_per_currency")
    return (
        "-" if bought is None else Cell(format_money(bought, code), bought),
        _rate(network["network_cost_per_s"], code),
        _rate(run.get("cost_per_s"), code),
        "-" if tokens is None else Cell(number(tokens), tokens),
        "-" if power is None else Cell(format_power(power), power),
    )


def _rate(value: float | None, code: str) -> Cell | str:
    return "-" if value is None else Cell(hourly(value, code), value)
