"""The page of a comparison of planners: of what ``comparison.json`` holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from nestsim.document.figures import BarGroups, BarsOfGroup, GroupedBar
from nestsim.document.paints import DISTINCT, Swatch
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
from nestsim.document.wording import number, plan_label, plural
from planner.step.plan import Plan
from topologies.units import format_duration, format_size

Group = Mapping[str, Any]
"""One scenario of the comparison."""

Entry = Mapping[str, Any]
"""What one planner found for it."""

_FAIR = (
    "All planners search the same space of plans for the same job on the same network.",
    "Whatever a planner believes, its plan is priced by one evaluator, replayed by one "
    "simulator over the links, and judged by the same memory.",
)
"""What makes the comparison fair."""


def comparison_page(data: Mapping[str, Any]) -> Document:
    """Return the page of a comparison.

    Parameters
    ----------
    data
        As ``comparison.json`` has it.
    """
    groups: Sequence[Group] = data["groups"]
    alone = len(groups) == 1
    names = {name: f"series-{k % len(DISTINCT)}" for k, name in _numbered(data)}
    return Document(
        subject=groups[0]["scenario"] if alone else plural(len(groups), "scenario"),
        doing="compare",
        headline=_headline(data),
        sections=(
            Section(
                name="throughput",
                title="Throughput",
                blocks=(_figure(data, names),),
            ),
            Section(
                name="planners", title="Planners", blocks=(_table(data, alone=alone),)
            ),
            Section(name="why", title="Who is ahead, and why", blocks=_words(groups)),
            Section(
                name="basis",
                title="What this rests on",
                blocks=(Sentences(sentences=_FAIR), *_sight(groups)),
            ),
        ),
    )


def _numbered(data: Mapping[str, Any]) -> list[tuple[int, str]]:
    return list(enumerate(data["planners"]))


def _headline(data: Mapping[str, Any]) -> Headline:
    groups: Sequence[Group] = data["groups"]
    confirmed = all(group["confirmed"] for group in groups)
    replay = (
        "The replay confirms a plan for every scenario."
        if confirmed
        else "Not every scenario has a plan that the replay confirms."
    )
    return Headline(
        verdict=data["headline"],
        tone="good" if confirmed else "bad",
        sentences=(replay,),
        key_figures=_key_figures(groups[0]) if len(groups) == 1 else (),
    )


def _key_figures(group: Group) -> tuple[KeyFigure, ...]:
    fastest = [one for one in group["entries"] if one["planner"] == group["fastest"]]
    if not fastest:
        return ()
    (best,) = fastest
    simulated = best["simulated"]
    return (
        KeyFigure(
            name="Fastest plan",
            value=plan_label(Plan.from_json(best["plan"])),
            note=f"by {best['planner']}, on {plural(group['num_devices'], 'device')}",
        ),
        KeyFigure(
            name="Throughput",
            value=f"{number(simulated['tokens_per_s'])} tokens/s",
            note=f"planned {number(best['planned']['tokens_per_s'])}",
        ),
        KeyFigure(
            name="Time per iteration",
            value=format_duration(simulated["iteration_time_s"]),
            note=f"planned {format_duration(best['planned']['iteration_time_s'])}",
        ),
    )


def _figure(data: Mapping[str, Any], paints: Mapping[str, str]) -> FigureBlock:
    groups: Sequence[Group] = data["groups"]
    base = data["base"]
    return FigureBlock(
        name="throughput",
        title=data["headline"],
        about=f"Bars of each planner's throughput in the replay relative to {base}, by "
        "scenario; a line across a bar is what was planned.",
        drawing=BarGroups(
            groups=tuple(
                BarsOfGroup(
                    group["scenario"] if len(groups) > 1 else "",
                    tuple(
                        _bar(one, paints[one["planner"]]) for one in group["entries"]
                    ),
                )
                for group in groups
            ),
            across=f"throughput, {base} = 1",
        ),
        table=_ratios(groups, base),
        legend=tuple(Swatch(name=name, paint=paint) for name, paint in paints.items()),
        note="Bars: replay. Lines: planned.",
    )


def _bar(entry: Entry, paint: str) -> GroupedBar:
    ratios = entry["relative_throughput"]
    found = ratios["simulated"]
    words = "nothing valid" if found is None else f"{found:.3f}"
    return GroupedBar(
        name=entry["planner"],
        length=found,
        words=words,
        paint=paint,
        mark=ratios["planned"],
        tip=f"{entry['planner']}: {words}",
    )


def _ratios(groups: Sequence[Group], base: str) -> DataTable:
    return DataTable(
        caption=f"Throughput relative to {base} in the replay",
        columns=("Scenario", "Planner", "Planned", "Replayed"),
        rows=tuple(
            (
                group["scenario"],
                entry["planner"],
                *(_ratio(entry["relative_throughput"][n]) for n in _WHOSE),
            )
            for group in groups
            for entry in group["entries"]
        ),
        numbers=("Planned", "Replayed"),
    )


_WHOSE = ("planned", "simulated")


def _ratio(value: float | None) -> Cell | str:
    return "-" if value is None else Cell(f"{value:.3f}", value)


def _table(data: Mapping[str, Any], *, alone: bool) -> DataTable:
    """Return all plans, one row for each scenario and planner."""
    rows = [
        (*(() if alone else (group["scenario"],)), *_cells(entry))
        for group in data["groups"]
        for entry in group["entries"]
    ]
    columns = ("Planner", "Plan", *_NUMBERS, "Verdict")
    return DataTable(
        caption="The plan that each planner proposes first",
        columns=columns if alone else ("Scenario", *columns),
        rows=tuple(rows),
        numbers=_NUMBERS,
        sortable=True,
    )


_NUMBERS = ("Own belief", "Planned", "Replayed", "Relative", "Memory")


def _cells(entry: Entry) -> tuple[Cell | str, ...]:
    planned, simulated = entry["planned"], entry["simulated"]
    times = (
        entry["belief_s"],
        planned and planned["iteration_time_s"],
        simulated and simulated["iteration_time_s"],
    )
    memory = simulated and simulated["peak_memory_bytes"]
    return (
        entry["planner"],
        plan_label(Plan.from_json(entry["plan"])) if entry["plan"] else "-",
        *(_time(time) for time in times),
        _ratio(entry["relative_throughput"]["simulated"]),
        "-" if memory is None else Cell(format_size(memory), memory),
        entry["verdict"] or "none",
    )


def _time(seconds: float | None) -> Cell | str:
    return "-" if seconds is None else Cell(format_duration(seconds), seconds)


def _words(groups: Sequence[Group]) -> tuple[Block, ...]:
    """Return what is to be said of each scenario."""
    if len(groups) == 1:
        return (Sentences(sentences=tuple(groups[0]["sentences"])),)
    names = [group["scenario"] for group in groups]
    told = [
        name if names.count(name) == 1 else f"{name} ({place})"
        for place, name in enumerate(names, start=1)
    ]
    words = [" ".join(group["sentences"]) for group in groups]
    return (FactList(rows=dict(zip(told, words, strict=True))),)


def _sight(groups: Sequence[Group]) -> tuple[Block, ...]:
    """Return what each planner sees of the network, and what stood in its way."""
    seen = {
        f"{entry['planner']} sees": entry["sees"]
        for group in groups
        for entry in group["entries"]
        if entry["sees"]
    }
    kept = {
        f"{entry['planner']}, {group['scenario']}": entry["reason"]
        for group in groups
        for entry in group["entries"]
        if not entry["valid"] and entry["reason"]
    }
    return tuple(FactList(rows=rows) for rows in (seen, kept) if rows)
