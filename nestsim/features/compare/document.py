"""What a comparison of planners says: who is fastest, by how much, and why."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from nestsim.document.figures import BarGroups, BarsOfGroup, GroupedBar
from nestsim.document.paints import planner_series, swatches
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
    cell,
    fact_lists,
    paragraphs,
)
from nestsim.document.wording import (
    DAY,
    KILOWATT_HOUR,
    amount,
    difference,
    number,
    percent,
    plan_label,
    plural,
    signed_percent,
)
from nestsim.features.compare.stored import (
    ComparisonRecord,
    EntryRecord,
    GroupRecord,
    NetworksRecord,
    PlannerRecord,
)
from nestsim.features.run.result_record import ThroughputRecord
from planner.step.plan import Plan
from topologies.units import format_duration, format_energy, format_money, format_size

_Row = tuple[GroupRecord, PlannerRecord]
"""An entry with its group."""

_Columns = dict[str, Callable[[_Row], str | Cell]]
"""Heading -> what writes the cell of an entry."""

NOTHING = "nothing valid"
"""Words where no plan has room in the replay."""

_FAIR = (
    "All planners search the same space of plans for the same job on the same network.",
    "Whatever a planner believes, its plan is priced by one evaluator, replayed by one "
    "simulator over the links, and judged by the same memory.",
)
"""What makes the comparison fair."""


def comparison_document(data: Mapping[str, object]) -> Document:
    """Return what a comparison of planners says.

    Parameters
    ----------
    data
        As ``comparison.json`` has it.
    """
    record = ComparisonRecord.read(data)
    count = len(record.groups)
    subject = record.groups[0].scenario if count == 1 else plural(count, "scenario")
    return Document.of(subject, "compare", _headline(record), _sections(record))


def _sections(data: ComparisonRecord) -> Iterator[Section]:
    groups = data.groups
    yield Section(
        "throughput",
        "Throughput",
        _figures(data),
        # The numbers of the figures are those of the tables below.
        in_text=False,
    )
    yield Section(
        "planners", "Planners", (*_tables(data), *_obstacles(groups), *_overview(data))
    )
    yield Section("cost", "Cost and power, by the replay", _cost(data))
    yield Section("why", "Who is ahead, and why", _words(groups))
    seen = {
        f"{entry.planner} sees": entry.sees for _, entry in _rows(groups) if entry.sees
    }
    yield Section(
        "basis",
        "What this rests on",
        (*paragraphs(_FAIR), *fact_lists(seen)),
        in_text=False,
    )


def _rows(groups: Sequence[GroupRecord]) -> list[_Row]:
    """Return every entry with its group."""
    return [(group, entry) for group in groups for entry in group.entries]


def _headline(data: ComparisonRecord) -> Headline:
    groups = data.groups
    confirmed = all(group.confirmed for group in groups)
    replay = (
        "The replay confirms a plan for every scenario."
        if confirmed
        else "Not every scenario has a plan that the replay confirms."
    )
    jobs = dict.fromkeys(job_in_words(group) for group in groups)
    return Headline(
        verdict=data.headline,
        tone="good" if confirmed else "bad",
        sentences=(f"{replay} {' '.join(jobs)}" if len(jobs) == 1 else replay,),
        key_figures=_key_figures(groups[0]) if len(groups) == 1 else (),
    )


def job_in_words(data: GroupRecord | NetworksRecord) -> str:
    """Say what is trained, and on how many devices."""
    devices = plural(data.num_devices, "device")
    device = f" ({data.device})" if isinstance(data, NetworksRecord) else ""
    return f"The job: {data.model} on {devices}{device}."


def _key_figures(group: GroupRecord) -> tuple[KeyFigure, ...]:
    best = [entry for entry in group.entries if entry.planner == group.fastest]
    return result_figures(best[0]) if best else ()


def result_figures(entry: EntryRecord) -> tuple[KeyFigure, ...]:
    """Return the plan of an entry that has one, its throughput and its time."""
    planned, simulated = entry.planned, entry.simulated
    assert planned is not None
    assert simulated is not None
    return (
        KeyFigure("Fastest plan", plan_name(entry), f"by {entry.planner}"),
        KeyFigure(
            "Throughput",
            f"{number(simulated.tokens_per_s)} tokens/s",
            f"planned {number(planned.tokens_per_s)}",
        ),
        KeyFigure(
            "Time per iteration",
            format_duration(simulated.iteration_time_s),
            f"planned {format_duration(planned.iteration_time_s)}",
        ),
    )


def plan_name(entry: EntryRecord) -> str:
    """Return what the plan of an entry is called; `NOTHING` without one."""
    return plan_label(Plan.from_json(entry.plan)) if entry.plan else NOTHING


def _figures(data: ComparisonRecord) -> tuple[FigureBlock, ...]:
    """Return throughput by scenario: a figure for each model, scenarios by size."""
    models: dict[str, list[GroupRecord]] = {}
    for group in sorted(data.groups, key=lambda group: group.num_devices):
        models.setdefault(group.model, []).append(group)
    series = planner_series(data.planners)
    paints = {name: f"series-{place}" for name, place in series.items()}
    return tuple(
        _figure(
            data.base,
            groups,
            paints,
            name="throughput" if place == 1 else f"throughput-{place}",
            title="Throughput in the replay" if len(models) == 1 else model,
        )
        for place, (model, groups) in enumerate(models.items(), start=1)
    )


def _figure(
    base: str,
    groups: Sequence[GroupRecord],
    paints: Mapping[str, str],
    name: str,
    title: str,
) -> FigureBlock:
    rows = _rows(groups)
    ratios = {id(entry): _ratios(group, base, entry) for group, entry in rows}

    def ratio(place: int) -> Callable[[_Row], str | Cell]:
        return lambda row: ratio_cell(ratios[id(row[1])][place])

    return FigureBlock(
        name=name,
        title=title,
        about=f"Bars of each planner's throughput in the replay relative to {base}, by "
        "scenario; a line across a bar is what was planned, a diamond what the planner "
        "believed.",
        drawing=BarGroups(
            groups=tuple(
                BarsOfGroup(
                    _label(group, groups, base),
                    tuple(
                        _bar(entry, ratios[id(entry)], paints[entry.planner])
                        for entry in group.entries
                    ),
                )
                for group in groups
            ),
            across=f"throughput, {base} = 1",
        ),
        table=DataTable.of(
            f"Throughput relative to the replay of {base}",
            rows,
            {
                "Scenario": lambda row: row[0].scenario,
                "Planner": lambda row: row[1].planner,
                "Believed": ratio(2),
                "Planned": ratio(1),
                "Replayed": ratio(0),
            },
        ),
        legend=swatches(paints),
        note="Bars: replay. Lines: planned. Diamonds: the planner's own belief; a "
        "triangle where that is beyond the axis.",
    )


def _reference(group: GroupRecord, base: str) -> PlannerRecord | None:
    """Return the entry whose replay is 1: the base's, or the fastest without it."""
    valid = {entry.planner: entry for entry in group.entries if entry.valid}
    return valid.get(base) or valid.get(group.fastest or "")


def _label(group: GroupRecord, groups: Sequence[GroupRecord], base: str) -> str:
    """Name a group of bars: by its size, or by its scenario where sizes are equal."""
    sizes = {other.num_devices for other in groups}
    label = group.scenario
    if len(sizes) == len(groups):
        label = plural(group.num_devices, "device") if len(groups) > 1 else ""
    reference = _reference(group, base)
    if reference is None or reference.planner == base:
        return label
    return f"{label} ({reference.planner} = 1)".lstrip()


def _ratios(group: GroupRecord, base: str, entry: PlannerRecord) -> list[float | None]:
    """Return throughput relative to a replay: replayed, planned, believed."""
    reference = _reference(group, base)
    if reference is None or not entry.valid:
        return [None, None, None]
    unit = _time(reference.simulated)
    times = _time(entry.simulated), _time(entry.planned), entry.belief_s
    return [unit / time if unit and time else None for time in times]


def _bar(
    entry: PlannerRecord, ratios: Sequence[float | None], paint: str
) -> GroupedBar:
    replayed, planned, believed = ratios
    words = ratio_words(replayed)
    return GroupedBar(
        name=entry.planner,
        length=replayed,
        words=words,
        paint=paint,
        mark=planned,
        dot=believed,
        tip=f"{entry.planner}: {words}",
    )


def ratio_words(ratio: float | None) -> str:
    """Write a ratio of throughputs for people."""
    return NOTHING if ratio is None else f"{ratio:.3f}"


def ratio_cell(ratio: float | None) -> str | Cell:
    """Return the cell of a ratio of throughputs."""
    return cell(ratio, ratio_words)


def time_cell(seconds: float | None) -> str | Cell:
    """Return the cell of a time."""
    return cell(seconds, format_duration)


def _tables(data: ComparisonRecord) -> tuple[DataTable, ...]:
    """Return the times of all plans, and the plans."""
    rows = _rows(data.groups)
    names = _names(data)
    fastest = [
        place
        for place, (group, entry) in enumerate(rows)
        if entry.planner == group.fastest
    ]
    shown = fastest[0] if len(data.groups) == 1 and fastest else None
    times = DataTable.of(
        "Iteration time: believed by the planner, planned by one evaluator, replayed",
        rows,
        {
            **names,
            **search_column(rows),
            "Belief": lambda row: time_cell(row[1].belief_s),
            "Planned": lambda row: time_cell(_time(row[1].planned)),
            "Replayed": lambda row: time_cell(_time(row[1].simulated)),
            "Differs": _differs,
            f"Vs {data.base}": lambda row: ratio_cell(
                row[1].relative_throughput["simulated"]
            ),
        },
        sortable=True,
        shown=shown,
    )
    plans = DataTable.of(
        "The plan that each planner proposes first",
        rows,
        {
            **names,
            "Plan": lambda row: plan_name(row[1]),
            "Planned memory": lambda row: memory_cell(row[1].planned),
            "Replayed memory": lambda row: memory_cell(row[1].simulated),
            "Verdict": lambda row: row[1].verdict or "none",
        },
        shown=shown,
    )
    return times, plans


def _names(data: ComparisonRecord) -> _Columns:
    """Return the columns that tell entries apart."""
    scenario: _Columns = {"Scenario": lambda row: row[0].scenario}
    alone = len(data.groups) == 1
    return {
        **({} if alone else scenario),
        "Planner": lambda row: row[1].planner,
    }


Row = TypeVar("Row", bound=tuple[object, EntryRecord])
"""An entry with what it is of."""


def search_column(rows: Sequence[Row]) -> dict[str, Callable[[Row], str | Cell]]:
    """Return the column of what searches took; none where nothing says that."""
    if not any(entry.search_time_s is not None for _, entry in rows):
        return {}
    return {"Search": lambda row: time_cell(row[1].search_time_s)}


def _time(throughput: ThroughputRecord | None) -> float | None:
    return None if throughput is None else throughput.iteration_time_s


def memory_cell(throughput: ThroughputRecord | None) -> str | Cell:
    """Return the cell of the most that a device holds."""
    peak = None if throughput is None else throughput.peak_memory_bytes
    return cell(peak, format_size)


def _differs(row: _Row) -> str | Cell:
    planned, replayed = _time(row[1].planned), _time(row[1].simulated)
    if planned is None or replayed is None:
        return "-"
    return cell(difference(planned, replayed), signed_percent)


def _obstacles(groups: Sequence[GroupRecord]) -> tuple[Block, ...]:
    """Return what stood in the way of plans."""
    return fact_lists(
        {
            entry.planner
            if len(groups) == 1
            else f"{entry.planner}, {group.scenario}": f"{NOTHING}: {entry.reason}"
            for group, entry in _rows(groups)
            if not entry.valid and entry.reason
        }
    )


def _overview(data: ComparisonRecord) -> tuple[DataTable, ...]:
    """Return the throughput of all planners, a row for each of several scenarios."""
    if len(data.groups) == 1:
        return ()

    def ratio(place: int) -> Callable[[GroupRecord], str | Cell]:
        return lambda group: ratio_cell(
            group.entries[place].relative_throughput["simulated"]
        )

    overview = DataTable.of(
        f"Throughput in the replay, {data.base} = 1",
        data.groups,
        {
            "Scenario": lambda group: group.scenario,
            "Devices": lambda group: cell(group.num_devices, "{:,}".format),
            **{name: ratio(place) for place, name in enumerate(data.planners)},
        },
    )
    return (overview,)


def _cost(data: ComparisonRecord) -> tuple[Block, ...]:
    """Return what each planner's plan costs; nothing without prices and powers."""
    rows = [(group, entry) for group, entry in _rows(data.groups) if entry.cost]
    if not rows:
        return ()
    costs = [entry.cost or {} for _, entry in rows]
    code = costs[0]["currency"] or ""
    run = costs[0]["run"] or {"tokens": None}

    def money(amount: float) -> str:
        return format_money(amount, code)

    def of(
        name: str, write: Callable[[float], str], part: str = "", unit: float = 1.0
    ) -> Callable[[_Row], str | Cell]:
        def written(row: _Row) -> str | Cell:
            cost = row[1].cost or {}
            value = ((cost[part] or {}) if part else cost).get(name)
            return cell(None if value is None else value * unit, write)

        return written

    tokens = "" if run["tokens"] is None else f"{amount(run['tokens'])} tokens"
    columns: _Columns = {
        "A training step": of("step_cost", money),
        "Its energy": of("step_energy_j", format_energy),
        f"tokens/{code}": of("tokens_per_currency", number),
        "tokens/kWh": of("tokens_per_j", number, unit=KILOWATT_HOUR),
        tokens: of("cost", money, "run"),
        f"{tokens}, energy": of("energy_j", format_energy, "run"),
        f"{tokens}, days": of("time_s", number, "run", 1.0 / DAY),
        "Network, of the cost": of("share_of_cost", percent, "network"),
        "Network, of the power": of("share_of_power", percent, "network"),
    }
    known = {
        name: write
        for name, write in columns.items()
        if any(isinstance(write(row), Cell) for row in rows)
    }
    table = DataTable.of(
        "What each planner's plan costs", rows, {**_names(data), **known}
    )
    assumed = dict.fromkeys(text for cost in costs for text in cost["assumptions"])
    return (table, *paragraphs(assumed))


def _words(groups: Sequence[GroupRecord]) -> tuple[Block, ...]:
    """Return what is to be said of each scenario."""
    if len(groups) == 1:
        return paragraphs(groups[0].sentences)
    names = [group.scenario for group in groups]
    rows = {
        name if names.count(name) == 1 else f"{name} ({place})": " ".join(
            group.sentences
        )
        for place, (name, group) in enumerate(zip(names, groups, strict=True), start=1)
    }
    return (FactList(rows),)
