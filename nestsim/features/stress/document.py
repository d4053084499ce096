"""What a stress test says: what conditions cost, what to change, what is robust."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nestsim.document.figures import (
    BarGroups,
    CurveMarks,
    CurvePoint,
    Curves,
    DrawnCurve,
    GroupedBar,
    HeatCell,
    HeatGroup,
    HeatMap,
)
from nestsim.document.fronts import PricedPoint, front_figure
from nestsim.document.paints import planner_series, series_paints, swatches
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
    field_cell,
    keyed,
    paragraphs,
)
from nestsim.document.wording import hourly, number, percent, plural, signed_percent
from nestsim.features.stress.stored import Matrix, StressRecord

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


def stress_document(data: Mapping[str, object]) -> Document:
    """Return what a stress test says.

    Parameters
    ----------
    data
        As ``stress.json`` has it.
    """
    record = StressRecord.read(data)
    return Document.of(record.scenario, "stress", _headline(record), _sections(record))


def _sections(data: StressRecord) -> Iterator[Section]:
    """Yield the sections; figures that the text has not are those of its tables."""
    for name, title, blocks, in_text in (
        ("conditions", "Conditions", _conditions(data), True),
        ("ratios", "Oversubscription, level by level", _maps(data), False),
        ("changes", "Where the best plan changes", _changes(data), True),
        ("crossed", "Planned for one, run on another", _cross(data), False),
        ("cost", "What clusters cost", _savings(data), True),
        ("links", "The busiest links", _links(data), False),
        ("plans", "Plans", _plans(data), True),
        ("problems", "Without results", paragraphs(data.problems), True),
    ):
        yield Section(name, title, blocks, in_text=in_text)


def _headline(data: StressRecord) -> Headline:
    """Return what keeping the plan costs, how far it can go, and what is robust."""
    inverse, robust = data.inverse, data.robust
    answers = inverse.answers if inverse else ()
    choices = (robust.least_worst, robust.least_mean) if robust else ()
    return Headline(
        verdict=data.headline,
        tone="plain" if data.plans else "bad",
        sentences=(
            *(answer.in_words for answer in answers),
            *((_weighed(data),) if robust else ()),
            *(f"{choice.in_words}." for choice in choices),
        ),
        key_figures=_key_figures(data),
    )


def _key_figures(data: StressRecord) -> tuple[KeyFigure, ...]:
    rows, robust = _rows_of(data, data.planners[0]), data.robust
    built = rows[0]["kept_simulated_tokens_per_s"]
    kept = [row for row in rows if row["kept_simulated_tokens_per_s"] is not None]
    if built is None or not kept or robust is None:
        return ()
    worst = min(kept, key=lambda row: float(row["kept_simulated_tokens_per_s"]))
    least = robust.least_worst
    return (
        KeyFigure("As built", f"{number(built)} tokens/s", "in the replay"),
        KeyFigure(
            "At worst, plan kept",
            f"{number(worst['kept_simulated_tokens_per_s'])} tokens/s",
            worst["condition"],
        ),
        KeyFigure(
            "Least worst regret",
            percent(least.worst_regret),
            data.plans[least.plan].name,
        ),
    )


def _rows_of(data: StressRecord, planner: str) -> list[Row]:
    return [row for row in data.rows if row["planner"] == planner]


def _weighed(data: StressRecord) -> str:
    plans, conditions = len(data.plans), len(data.cells)
    return (
        f"{plural(plans, 'plan')} by all planners under "
        f"{plural(conditions, 'condition')} of equal weight, by the replay:"
    )


def _conditions(data: StressRecord) -> Blocks:
    planner = data.planners[0]
    rows = _rows_of(data, planner)
    shown = [row for row in rows if row["condition"] in set(data.shown)]
    more = "" if len(shown) == len(rows) else f"{len(shown)} of {len(rows)} are drawn. "
    bars = FigureBlock(
        name="conditions",
        title=f"Throughput under each condition, by {planner}",
        about="Bars of the throughput in the replay of the plan that is re-made for "
        "each condition; a line across a bar is that of the plan made for the network "
        "as built, kept.",
        drawing=BarGroups.of(map(_bar, shown), "thousand tokens/s"),
        table=DataTable.of("Throughput of the plan kept and re-made", rows, _SPEEDS),
        legend=swatches({"plan re-made": "series-0"}),
        note=f"{more}Bars: plan re-made. Lines: the plan for the network as built, "
        "kept.",
        in_text=False,
    )
    # The text has the first rows alone.
    ordered = [*shown, *(row for row in rows if row not in shown)]
    blocks: list[Block] = [bars] if data.plans else []
    blocks.append(_limits(ordered, planner, len(shown)))
    regrets = [row["simulated_regret"] or 0.0 for row in shown]
    if min(regrets, default=0.0) < -_NOTEWORTHY:
        blocks += paragraphs([_NEGATIVE])
    if len(data.planners) > 1:
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


_SPEEDS: Mapping[str, Callable[[Row], Cell | str]] = {
    "Condition": lambda row: str(row["condition"]),
    "Kept": keyed(f"{_KEPT}_simulated_tokens_per_s", number),
    "Re-made": keyed(f"{_REMADE}_simulated_tokens_per_s", number),
    "Regret": keyed("simulated_regret", signed_percent),
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
            "Planned": keyed("planned_regret", signed_percent),
            "Term": lambda row: row["kept_limiting_term"] or row["reason"] or "-",
            "Link": _busiest,
            "Stage": keyed("kept_busiest_stage", str),
        },
        sortable=True,
        first=first,
    )


def _busiest(row: Row) -> str:
    name, share = row["kept_hottest_link"], row["kept_hottest_link_share"]
    if name is None:
        return "-"
    return f"{name} ({row['kept_hottest_link_level']}) busy {percent(share)}"


def _planners(data: StressRecord, names: Sequence[str]) -> DataTable:
    speeds = {
        (row["planner"], row["condition"]): row["remade_simulated_tokens_per_s"]
        for row in data.rows
    }

    def speed(planner: str) -> Callable[[str], Cell | str]:
        return lambda name: cell(speeds[planner, name], number)

    return DataTable.of(
        "All planners: tokens/s of the plan re-made for each condition",
        names,
        {
            "Condition": str,
            **{planner: speed(planner) for planner in data.planners},
        },
        sortable=True,
        first=len(data.shown),
    )


def _maps(data: StressRecord) -> Blocks:
    """Return throughput over two levels' ratios, and over each level's."""
    levels = enumerate(data.lines) if data.plans else ()
    return (
        *_map(data),
        *(_line_figure(data, level, place) for place, level in levels),
    )


def _map(data: StressRecord) -> tuple[FigureBlock, ...]:
    drawn = data.map
    if drawn is None:
        return ()
    rows = itertools.chain(*drawn.tokens_per_s.values())
    best = max(filter(None, itertools.chain(*rows)), default=None)
    if best is None:
        return ()
    inner, outer = drawn.rows, drawn.columns
    ratios = data.oversubscription
    columns = [f"{ratio:g}" for ratio in ratios[outer]]
    names = [f"{inner} {ratio:g}:1" for ratio in ratios[inner]]

    def tip(row: int, column: int, value: float) -> str:
        return f"{names[row]}, {outer} {columns[column]}:1: {number(value)} tokens/s"

    groups = _heat_groups(drawn.tokens_per_s, names, best, tip)
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


def _heat_groups(
    planners: Mapping[str, Matrix],
    rows: Sequence[str],
    unit: float,
    tip: Callable[[int, int, float], str],
) -> list[HeatGroup]:
    """Return the heat of each planner's rows, as a share of a unit [%]."""

    def group(planner: str, values: Matrix) -> HeatGroup:
        def heat(row: int, column: int) -> HeatCell | None:
            value = values[row][column]
            if value is None:
                return None
            words = f"{planner}, {tip(row, column, value)}"
            return HeatCell(value, f"{100 * value / unit:.1f}", words)

        return HeatGroup.of(planner, rows, len(values[0]), heat)

    return [group(*of_planner) for of_planner in planners.items()]


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
                    "-" if heat is None else Cell(heat.words, heat.value)
                    for heat in row.cells
                ),
            )
            for group in groups
            for row in group.rows
        ),
        numbers=tuple(columns),
    )


def _line_figure(data: StressRecord, level: str, place: int) -> FigureBlock:
    """Return throughput over the ratios of one level, plans re-made and kept."""
    names, ratios = data.lines[level], data.oversubscription[level]
    rows = {(row["planner"], row["condition"]): row for row in data.rows}
    series = planner_series(data.planners)
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
            series[planner],
        )
        for planner in data.planners
        for whose in _WORDS
    ]

    def speed(planner: str, whose: str) -> Callable[[tuple[float, str]], Cell | str]:
        key = f"{whose}_simulated_tokens_per_s"
        return lambda pair: cell(rows[planner, pair[1]][key], number)

    built = data.built_oversubscription[level]
    to_keep = data.inverse.to_keep if data.inverse else None
    marks = CurveMarks(
        (built,), () if to_keep is None else (to_keep.tokens_per_s / 1e3,)
    )
    kept = f"; {to_keep.in_words}" if to_keep else ""
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
                    for planner in data.planners
                    for whose, words in _WORDS.items()
                },
            },
        ),
        note=f"Dotted: as built, {built:g}:1{kept}. Other levels are as built.",
    )


def _changes(data: StressRecord) -> Blocks:
    if not data.lines:
        return ()
    sentences = [change.in_words for change in data.changes]
    return paragraphs(sentences or ["At none of the ratios."])


def _cross(data: StressRecord) -> Blocks:
    crossed = data.crossed
    names = crossed.conditions
    if len(names) < 2 or not data.plans:
        return ()
    columns = [str(place) for place in range(1, len(names) + 1)]
    rows = [f"{place}  {name}" for place, name in zip(columns, names, strict=True)]

    def tip(made: int, run: int, value: float) -> str:
        return f"made for {names[made]}, run at {names[run]}: {signed_percent(value)}"

    groups = _heat_groups(crossed.regret, rows, 1.0, tip)
    about = (
        "How much longer [%] the plan made for the row's condition takes at the "
        "column's than the plan made there"
    )
    return (
        FigureBlock(
            name="crossed",
            title=crossed.in_words,
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


def _savings(data: StressRecord) -> Blocks:
    """Return what each condition's cluster costs; nothing without prices."""
    cost = data.cost
    if cost is None:
        return ()
    assumed = paragraphs(cost.assumptions)
    code = cost.currency
    if not code:
        return assumed
    rows = _rows_of(data, data.planners[0])
    table = DataTable.of(
        f"How much is saved: each condition's cluster, by {data.planners[0]}",
        rows,
        {
            "Condition": lambda row: row["condition"],
            "The cluster": keyed("cost_per_s", lambda rate: hourly(rate, code)),
            "Saved": keyed("saved_share", percent),
            "Its network": keyed("network_cost_per_s", lambda rate: hourly(rate, code)),
            f"tokens/{code}, kept": keyed("kept_tokens_per_currency", number),
            f"tokens/{code}, re-made": keyed("remade_tokens_per_currency", number),
            "Front": lambda row: "on it" if row["pareto"] else "",
        },
        sortable=True,
        first=len(data.shown),
    )
    points = [
        PricedPoint(
            f"{row['planner']}, {row['condition']}",
            row["cost_per_s"],
            row["remade_simulated_tokens_per_s"],
            row["pareto"],
        )
        for row in data.rows
        if row["remade_simulated_tokens_per_s"] is not None
    ]
    front = front_figure(points, code, "Planner, condition") if points else None
    # The table has its numbers.
    figures = () if front is None else (replace(front, in_text=False),)
    return (*figures, table, *assumed)


def _links(data: StressRecord) -> Blocks:
    busiest = data.busiest_links
    if not busiest.links:
        return ()
    paints = series_paints(link.level for link in busiest.links)
    planner = data.planners[0]
    return (
        FigureBlock(
            name="links",
            title=busiest.in_words,
            about=f"Bars of how busy {planner}'s plan for the network as built keeps "
            "each link, under the condition that keeps it busiest.",
            drawing=BarGroups.of(
                (
                    GroupedBar(
                        link.link,
                        100 * link.share,
                        f"{percent(link.share)}, {link.condition}",
                        paints[link.level],
                        tip=f"{link.link}, {link.condition}: {percent(link.share)}",
                    )
                    for link in busiest.links
                ),
                "busy, share of the step [%]",
            ),
            table=DataTable.of(
                "The busiest links, each under its worst condition",
                busiest.links,
                {
                    "Link": lambda link: link.link,
                    "Level": lambda link: link.level,
                    "Busy": field_cell("share", percent),
                    "Condition": lambda link: link.condition,
                },
            ),
            legend=swatches({f"level {name}": paint for name, paint in paints.items()}),
        ),
    )


def _plans(data: StressRecord) -> Blocks:
    """Return every plan, who made it, and for what."""
    made: dict[tuple[str, str], list[str]] = {}
    for planner, plans in data.made.items():
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
                "Plan": lambda pair: data.plans[pair[0][0]].name,
                "Planner": lambda pair: pair[0][1],
                "First made for": lambda pair: pair[1][0],
                "Conditions": lambda pair: cell(len(pair[1]), str),
            },
        ),
    )
