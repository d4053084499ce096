"""What a stress test says: what conditions cost, what to change, what is robust."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nestsim.document.figures import (
    BarGroups,
    BarsOfGroup,
    CurveMarks,
    CurvePoint,
    Curves,
    DrawnCurve,
    GroupedBar,
    HeatCell,
    HeatGroup,
    HeatMap,
    HeatRow,
)
from nestsim.document.fronts import PricedPoint, front_figure
from nestsim.document.paints import Swatch
from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    Sentences,
    cell,
)
from nestsim.document.wording import hourly, number, percent, plural, signed_percent

Row = Mapping[str, Any]
"""One planner under one condition."""

Blocks = tuple[Block, ...]
"""What stands in a section."""

_NOTEWORTHY = 1e-3
"""Size of a negative regret above which it is explained."""

_NEGATIVE = (
    "A regret below 0: the re-made plan is faster as planned, but slower in the "
    'replay; with search.objective = "replayed" the replay chooses.'
)

_KEPT, _REMADE = "kept", "remade"
_WORDS = {_REMADE: "re-made", _KEPT: "kept"}
"""Whose plan -> what it is called."""


def stress_document(data: Mapping[str, Any]) -> Document:
    """Return what a stress test says.

    Parameters
    ----------
    data
        As ``stress.json`` has it.
    """
    return Document(
        subject=data["scenario"],
        doing="stress",
        headline=_headline(data),
        sections=tuple(
            Section(name=name, title=title, blocks=blocks, in_text=in_text)
            for name, title, blocks, in_text in _parts(data)
            if blocks
        ),
    )


def _parts(data: Mapping[str, Any]) -> Iterator[tuple[str, str, Blocks, bool]]:
    """Yield name, title and blocks of each section, and whether the text has it.

    The numbers of the figures that the text has not are in its tables.
    """
    yield "conditions", "Conditions", _conditions(data), True
    yield "ratios", "Oversubscription, level by level", _maps(data), False
    yield "changes", "Where the best plan changes", _changes(data), True
    yield "crossed", "Planned for one, run on another", _cross(data), False
    yield "cost", "What clusters cost", _savings(data), True
    yield "links", "The busiest links", _links(data), False
    yield "plans", "Plans", _plans(data), True
    problems = data["problems"]
    yield "problems", "Without results", _paragraphs(problems), True


def _paragraphs(sentences: Sequence[str]) -> Blocks:
    return (Sentences(sentences=tuple(sentences)),) if sentences else ()


def _headline(data: Mapping[str, Any]) -> Headline:
    """Return what keeping the plan costs, how far it can go, and what is robust."""
    inverse, robust = data["inverse"], data["robust"]
    answers = inverse["answers"] if inverse else ()
    return Headline(
        verdict=data["headline"],
        tone="plain" if data["plans"] else "bad",
        sentences=(
            *(one["in_words"] for one in answers),
            *((_weighed(data),) if robust else ()),
            *(f"{one['in_words']}." for one in (robust or {}).values()),
        ),
        key_figures=_key_figures(data),
    )


def _key_figures(data: Mapping[str, Any]) -> tuple[KeyFigure, ...]:
    rows, robust = _rows_of(data, data["planners"][0]), data["robust"]
    built = rows[0]["kept_simulated_tokens_per_s"]
    kept = [row for row in rows if row["kept_simulated_tokens_per_s"] is not None]
    if built is None or not kept or robust is None:
        return ()
    worst = min(kept, key=lambda row: float(row["kept_simulated_tokens_per_s"]))
    least = robust["least_worst"]
    return (
        KeyFigure(
            name="As built", value=f"{number(built)} tokens/s", note="in the replay"
        ),
        KeyFigure(
            name="At worst, plan kept",
            value=f"{number(worst['kept_simulated_tokens_per_s'])} tokens/s",
            note=worst["condition"],
        ),
        KeyFigure(
            name="Least worst regret",
            value=percent(least["worst_regret"]),
            note=data["plans"][least["plan"]]["name"],
        ),
    )


def _rows_of(data: Mapping[str, Any], planner: str) -> list[Row]:
    return [row for row in data["rows"] if row["planner"] == planner]


def _weighed(data: Mapping[str, Any]) -> str:
    plans, conditions = len(data["plans"]), len(data["cells"])
    return (
        f"{plural(plans, 'plan')} by all planners under "
        f"{plural(conditions, 'condition')} of equal weight, by the replay:"
    )


def _conditions(data: Mapping[str, Any]) -> Blocks:
    planner = data["planners"][0]
    rows = _rows_of(data, planner)
    shown = [row for row in rows if row["condition"] in set(data["shown"])]
    more = "" if len(shown) == len(rows) else f"{len(shown)} of {len(rows)} are drawn. "
    bars = FigureBlock(
        name="conditions",
        title=f"Throughput under each condition, by {planner}",
        about="Bars of the throughput in the replay of the plan that is re-made for "
        "each condition; a line across a bar is that of the plan made for the network "
        "as built, kept.",
        drawing=BarGroups(
            groups=(BarsOfGroup("", tuple(_bar(row) for row in shown)),),
            across="thousand tokens/s",
        ),
        table=DataTable.of("Throughput of the plan kept and re-made", rows, _SPEEDS),
        legend=(Swatch(name="plan re-made", paint="series-0"),),
        note=f"{more}Bars: plan re-made. Lines: the plan for the network as built, "
        "kept.",
        in_text=False,
    )
    # The text has the first rows alone.
    ordered = [*shown, *(row for row in rows if row not in shown)]
    blocks: list[Block] = [bars] if data["plans"] else []
    blocks.append(_limits(ordered, planner, len(shown)))
    regrets = [row["simulated_regret"] or 0.0 for row in shown]
    if min(regrets, default=0.0) < -_NOTEWORTHY:
        blocks.append(Sentences(sentences=(_NEGATIVE,)))
    if len(data["planners"]) > 1:
        blocks.append(_planners(data, [row["condition"] for row in ordered]))
    return tuple(blocks)


def _bar(row: Row) -> GroupedBar:
    kept, remade = (_thousands(row, whose) for whose in (_KEPT, _REMADE))
    words = "no plan" if remade is None else number(1e3 * remade)
    kept_words = "none" if kept is None else number(1e3 * kept)
    return GroupedBar(
        name=row["condition"],
        length=remade,
        words=words,
        paint="series-0",
        mark=kept,
        tip=f"{row['condition']}: re-made {words}, kept {kept_words} tokens/s",
    )


def _thousands(row: Row, whose: str) -> float | None:
    value = row[f"{whose}_simulated_tokens_per_s"]
    return None if value is None else float(value) / 1e3


def _of(key: str, write: Callable[[float], str]) -> Callable[[Row], Cell | str]:
    return lambda row: cell(row[key], write)


_SPEEDS: Mapping[str, Callable[[Row], Cell | str]] = {
    "Condition": lambda row: str(row["condition"]),
    "Kept": _of(f"{_KEPT}_simulated_tokens_per_s", number),
    "Re-made": _of(f"{_REMADE}_simulated_tokens_per_s", number),
    "Regret": _of("simulated_regret", signed_percent),
}
"""Columns of tokens/s, and of what keeping the plan costs."""


def _limits(rows: Sequence[Row], planner: str, first: int) -> DataTable:
    """Return all conditions and what limits the kept plan under each."""
    return DataTable.of(
        f"Conditions, by {planner}: tokens/s, what keeping the plan costs, and "
        "what limits it",
        rows,
        {
            **_SPEEDS,
            "Planned": _of("planned_regret", signed_percent),
            "Term": lambda row: row["kept_limiting_term"] or row["reason"] or "-",
            "Link": _busiest,
            "Stage": _of("kept_busiest_stage", str),
        },
        sortable=True,
        first=first,
    )


def _busiest(row: Row) -> str:
    name, share = row["kept_hottest_link"], row["kept_hottest_link_share"]
    if name is None:
        return "-"
    return f"{name} ({row['kept_hottest_link_level']}) busy {percent(share)}"


def _planners(data: Mapping[str, Any], names: Sequence[str]) -> DataTable:
    speeds = {
        (row["planner"], row["condition"]): row["remade_simulated_tokens_per_s"]
        for row in data["rows"]
    }

    def speed(planner: str) -> Callable[[str], Cell | str]:
        return lambda name: cell(speeds[planner, name], number)

    return DataTable.of(
        "All planners: tokens/s of the plan re-made for each condition",
        names,
        {
            "Condition": str,
            **{planner: speed(planner) for planner in data["planners"]},
        },
        sortable=True,
        first=len(data["shown"]),
    )


def _maps(data: Mapping[str, Any]) -> Blocks:
    """Return throughput over two levels' ratios, and over each level's."""
    levels = enumerate(data["lines"]) if data["plans"] else ()
    return (
        *_map(data),
        *(_line_figure(data, level, place) for place, level in levels),
    )


def _map(data: Mapping[str, Any]) -> tuple[FigureBlock, ...]:
    found = data["map"]
    values = [
        value
        for rows in (found or {"tokens_per_s": {}})["tokens_per_s"].values()
        for row in rows
        for value in row
        if value is not None
    ]
    if not values:
        return ()
    best = max(values)
    inner, outer = found["rows"], found["columns"]
    ratios = data["oversubscription"]
    columns = [f"{ratio:g}" for ratio in ratios[outer]]

    def cell(planner: str, row: str, column: str, value: float | None) -> Any:
        if value is None:
            return None
        words = f"{100 * value / best:.1f}"
        tip = (
            f"{planner}, {inner} {row}:1, {outer} {column}:1: {number(value)} tokens/s"
        )
        return HeatCell(value, words, tip)

    groups = [
        HeatGroup(
            planner,
            tuple(
                HeatRow(
                    name,
                    tuple(
                        cell(planner, name, column, value)
                        for column, value in zip(columns, row, strict=True)
                    ),
                )
                for name, row in zip(
                    (f"{inner} {ratio:g}:1" for ratio in ratios[inner]),
                    rows,
                    strict=True,
                )
            ),
        )
        for planner, rows in found["tokens_per_s"].items()
    ]
    about = "Cells have the throughput of the plan re-made, as a share of the highest"
    return (
        FigureBlock(
            name="map",
            title=f"Throughput over the oversubscription of {inner} and {outer}",
            about=f"{about}; rows by planner and the ratio of {inner}.",
            drawing=HeatMap(
                groups=tuple(groups),
                columns=tuple(columns),
                across=f"oversubscription of {outer}, to 1",
            ),
            table=_heat_table(
                groups, columns, f"Share of the highest throughput [%], by {outer}"
            ),
            note=f"{about}, {number(best)} tokens/s [%]. The stronger, the more.",
        ),
    )


def _heat_table(
    groups: Sequence[HeatGroup], columns: Sequence[str], caption: str
) -> DataTable:
    return DataTable(
        caption=caption,
        columns=("Planner", "Row", *columns),
        rows=tuple(
            (
                group.name,
                row.name,
                *(
                    "-" if one is None else Cell(one.words, one.value)
                    for one in row.cells
                ),
            )
            for group in groups
            for row in group.rows
        ),
        numbers=tuple(columns),
    )


def _line_figure(data: Mapping[str, Any], level: str, place: int) -> FigureBlock:
    """Return throughput over the ratios of one level, plans re-made and kept."""
    names, ratios = data["lines"][level], data["oversubscription"][level]
    rows = {(row["planner"], row["condition"]): row for row in data["rows"]}
    curves = [
        DrawnCurve(
            f"{planner}, {_WORDS[whose]}",
            tuple(
                CurvePoint(
                    ratio,
                    value,
                    f"{planner}, {_WORDS[whose]}, {level} {ratio:g}:1: "
                    f"{number(1e3 * value)} tokens/s",
                )
                for name, ratio in zip(names, ratios, strict=True)
                if (value := _thousands(rows[planner, name], whose)) is not None
            ),
        )
        for planner in data["planners"]
        for whose in _WORDS
    ]

    def speed(planner: str, whose: str) -> Callable[[Any], Cell | str]:
        key = f"{whose}_simulated_tokens_per_s"
        return lambda pair: cell(rows[planner, pair[1]][key], number)

    built = data["built_oversubscription"][level]
    to_keep = (data["inverse"] or {}).get("to_keep")
    marks = CurveMarks(
        (built,), () if to_keep is None else (to_keep["tokens_per_s"] / 1e3,)
    )
    kept = f"; {to_keep['in_words']}" if to_keep else ""
    return FigureBlock(
        name=f"line-{place}",
        title=f"Throughput over the oversubscription of {level}",
        about="Curves of the throughput in the replay, with plans re-made for each "
        "ratio and with those for the network as built, kept; other levels as built.",
        drawing=Curves(
            curves=tuple(curves),
            across=f"oversubscription of {level}, to 1",
            up="thousand tokens/s",
            logarithmic=True,
            marks=marks,
        ),
        table=DataTable.of(
            f"tokens/s by the oversubscription of {level}",
            list(zip(ratios, names, strict=True)),
            {
                "Ratio": lambda pair: Cell(f"{pair[0]:g}:1", pair[0]),
                **{
                    f"{planner}, {words}": speed(planner, whose)
                    for planner in data["planners"]
                    for whose, words in _WORDS.items()
                },
            },
        ),
        note=f"Dotted: as built, {built:g}:1{kept}. Other levels are as built.",
    )


def _changes(data: Mapping[str, Any]) -> Blocks:
    if not data["lines"]:
        return ()
    found = [one["in_words"] for one in data["changes"]]
    return _paragraphs(found or ["At none of the ratios."])


def _cross(data: Mapping[str, Any]) -> Blocks:
    crossed = data["crossed"]
    names = crossed["conditions"]
    if len(names) < 2 or not data["plans"]:
        return ()
    columns = [str(place) for place in range(1, len(names) + 1)]
    groups = [
        HeatGroup(
            planner,
            tuple(
                HeatRow(
                    f"{place}  {made_for}",
                    tuple(
                        None
                        if value is None
                        else HeatCell(
                            value,
                            f"{100 * value:.1f}",
                            f"{planner}, made for {made_for}, run at {run_at}: "
                            f"{signed_percent(value)}",
                        )
                        for run_at, value in zip(names, row, strict=True)
                    ),
                )
                for place, made_for, row in zip(columns, names, rows, strict=True)
            ),
        )
        for planner, rows in crossed["regret"].items()
    ]
    about = (
        "How much longer [%] the plan made for the row's condition takes at the "
        "column's than the plan made there"
    )
    return (
        FigureBlock(
            name="crossed",
            title=crossed["in_words"],
            about=f"{about}; below 0 it is the faster one.",
            drawing=HeatMap(
                groups=tuple(groups),
                columns=tuple(columns),
                across="run at (numbers of the rows)",
                meaning="worse",
            ),
            table=_heat_table(groups, columns, f"{about}; columns by number of row"),
            note=f"{about}; below 0 it is the faster one.",
        ),
    )


def _savings(data: Mapping[str, Any]) -> Blocks:
    """Return what each condition's cluster costs; nothing without prices."""
    cost = data.get("cost")
    if cost is None:
        return ()
    assumed = _paragraphs(cost["assumptions"])
    code = cost["currency"]
    if not code:
        return assumed
    rows = _rows_of(data, data["planners"][0])
    table = DataTable.of(
        f"How much is saved: each condition's cluster, by {data['planners'][0]}",
        rows,
        {
            "Condition": lambda row: row["condition"],
            "The cluster": _of("cost_per_s", lambda rate: hourly(rate, code)),
            "Saved": _of("saved_share", percent),
            "Its network": _of("network_cost_per_s", lambda rate: hourly(rate, code)),
            f"tokens/{code}, kept": _of("kept_tokens_per_currency", number),
            f"tokens/{code}, re-made": _of("remade_tokens_per_currency", number),
            "Front": lambda row: "on it" if row["pareto"] else "",
        },
        sortable=True,
        first=len(data["shown"]),
    )
    points = [
        PricedPoint(
            f"{row['planner']}, {row['condition']}",
            row["cost_per_s"],
            row["remade_simulated_tokens_per_s"],
            row["pareto"],
        )
        for row in data["rows"]
        if row["remade_simulated_tokens_per_s"] is not None
    ]
    front = front_figure(points, code, "Planner, condition") if points else None
    # The table has its numbers.
    figures = () if front is None else (replace(front, in_text=False),)
    return (*figures, table, *assumed)


def _links(data: Mapping[str, Any]) -> Blocks:
    found = data["busiest_links"]
    if not found["links"]:
        return ()
    levels = list(dict.fromkeys(one["level"] for one in found["links"]))
    paints = {name: f"series-{place}" for place, name in enumerate(levels)}
    planner = data["planners"][0]
    return (
        FigureBlock(
            name="links",
            title=found["in_words"],
            about=f"Bars of how busy {planner}'s plan for the network as built keeps "
            "each link, under the condition that keeps it busiest.",
            drawing=BarGroups(
                groups=(
                    BarsOfGroup(
                        "",
                        tuple(
                            GroupedBar(
                                one["link"],
                                100 * one["share"],
                                f"{percent(one['share'])}, {one['condition']}",
                                paints[one["level"]],
                                tip=f"{one['link']}, {one['condition']}: "
                                f"{percent(one['share'])}",
                            )
                            for one in found["links"]
                        ),
                    ),
                ),
                across="busy, share of the step [%]",
            ),
            table=DataTable.of(
                "The busiest links, each under its worst condition",
                found["links"],
                {
                    "Link": lambda one: one["link"],
                    "Level": lambda one: one["level"],
                    "Busy": _of("share", percent),
                    "Condition": lambda one: one["condition"],
                },
            ),
            legend=tuple(
                Swatch(name=f"level {name}", paint=paint)
                for name, paint in paints.items()
            ),
        ),
    )


def _plans(data: Mapping[str, Any]) -> Blocks:
    """Return every plan, who made it, and for what."""
    made: dict[tuple[str, str], list[str]] = {}
    for planner, plans in data["made"].items():
        for condition, key in plans.items():
            if key is not None:
                made.setdefault((key, planner), []).append(condition)
    if not made:
        return ()
    return (
        DataTable.of(
            "Plans, and the conditions they were made for",
            made.items(),
            {
                "Plan": lambda pair: data["plans"][pair[0][0]]["name"],
                "Planner": lambda pair: pair[0][1],
                "First made for": lambda pair: pair[1][0],
                "Conditions": lambda pair: cell(len(pair[1]), str),
            },
        ),
    )
