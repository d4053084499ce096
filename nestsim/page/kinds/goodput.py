"""The page of training through failures: of what its ``goodput.json`` holds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nestsim.document.figures import (
    CurveMarks,
    CurvePoint,
    Curves,
    DrawnCurve,
    StackedBar,
    StackPart,
    Stacks,
)
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
from nestsim.report.wording import amount, long_time, number, percent, token_unit

_DAY = 86400.0

_PAINTS = {
    "lost work": "series-3",
    "checkpoints": "series-0",
    "detection and diagnosis": "series-4",
    "restart": "series-1",
    "waiting for repair": "series-5",
    "maintenance": "series-7",
    "degraded": "series-9",
}
"""What takes time from the training -> its paint."""

_NAMES = {"young_s": "Young 1974", "daly_s": "Daly 2006", "best_s": "best"}


def goodput_page(data: Mapping[str, Any]) -> Document:
    """Return the page of training through failures.

    Parameters
    ----------
    data
        As ``goodput.json`` has it.
    """
    sections: tuple[Section, ...] = ()
    if "goodput" in data:
        sections = (
            Section(name="time", title="Where the time goes", blocks=(_causes(data),)),
            Section(
                name="intervals",
                title="How often to write checkpoints",
                blocks=_intervals(data),
            ),
            Section(name="tokens", title="Tokens over time", blocks=(_tokens(data),)),
            Section(name="failures", title="What fails", blocks=_failures(data)),
            Section(
                name="basis",
                title="What is assumed",
                blocks=(FactList(rows=data["facts"]),),
            ),
        )
    return Document(
        subject=data["scenario"],
        doing="goodput",
        headline=_headline(data),
        sections=tuple(one for one in sections if one.blocks),
    )


def _headline(data: Mapping[str, Any]) -> Headline:
    if "goodput" not in data:
        return Headline(verdict="No plan", tone="bad", sentences=(data["reason"],))
    share, day = data["goodput"], data["tokens_per_day"]
    mtti = data["mtti_s"]
    return Headline(
        verdict=data["headline"],
        tone="plain",
        sentences=tuple(data["in_words"]),
        key_figures=(
            KeyFigure(
                name="Goodput",
                value=percent(share["p50"]),
                note=f"p5 {percent(share['p5'])}, p95 {percent(share['p95'])}",
            ),
            KeyFigure(
                name="Tokens a day",
                value=amount(day["p50"]),
                note=f"{amount(data['healthy']['tokens_per_day'])} without failures",
            ),
            KeyFigure(
                name="Effective training time",
                value=percent(data["effective_training_time"]["p50"]),
                note="useful training over elapsed time",
            ),
            KeyFigure(
                name="Time to an interruption",
                value="never" if mtti is None else long_time(mtti),
                note=f"{number(data['interruptions']['mean'])} in a run",
            ),
        ),
    )


def _causes(data: Mapping[str, Any]) -> FigureBlock:
    """Return what takes time from the training, as one bar."""
    shares: Mapping[str, Mapping[str, float]] = data["shares"]
    lost = {name: shares[name]["mean"] for name in _PAINTS if shares[name]["mean"]}
    total = sum(lost.values())
    rows = tuple(
        (name, _share(band["mean"]), _share(band["p5"]), _share(band["p95"]))
        for name, band in shares.items()
    )
    return FigureBlock(
        name="causes",
        title=f"{percent(total)} of the time is not kept as training",
        about="A bar of the shares of the time that failures, checkpoints and stops "
        "take.",
        drawing=Stacks(
            bars=(
                StackedBar(
                    "loss",
                    tuple(
                        StackPart(name, 100.0 * share, _PAINTS[name], _tip(name, share))
                        for name, share in lost.items()
                    ),
                    percent(total),
                ),
            ),
            across="share of the time [%]",
        ),
        table=DataTable(
            caption="Shares of the time over the runs",
            columns=("Part", "Mean", "p5", "p95"),
            rows=rows,
            numbers=("Mean", "p5", "p95"),
        ),
    )


def _tip(name: str, share: float) -> str:
    return f"{name}: {100.0 * share:.2f} %, {share * 24.0:.2f} h a day"


def _share(share: float) -> Cell:
    return Cell(f"{100.0 * share:.2f} %", share)


def _intervals(data: Mapping[str, Any]) -> tuple[Block, ...]:
    """Return goodput over intervals, and those with a name."""
    points: Sequence[Mapping[str, Any]] = data["curve"]
    if not points:
        return (Sentences(sentences=("Nothing fails.",)),)
    given = data["intervals"]
    named = {
        name: given[key] / 60.0
        for key, name in _NAMES.items()
        if given[key] is not None
    }
    if given["is_given"]:
        named["this job's"] = given["used_s"] / 60.0
    simulated = [one for one in points if one["simulated"] is not None]
    curves = [
        DrawnCurve(
            "closed form, nodes always there",
            tuple(
                _point(one["interval_s"], one["expected"], "closed form")
                for one in simulated
            ),
        ),
        *(
            DrawnCurve(
                f"simulated, {key}",
                tuple(
                    _point(one["interval_s"], one["simulated"][key], key)
                    for one in simulated
                ),
            )
            for key in ("mean", "p5", "p95")
        ),
    ]
    words = ", ".join(f"{name} {value:.3g} min" for name, value in named.items())
    return (
        FigureBlock(
            name="intervals",
            title="Too often and too seldom both cost",
            about="Curves of the share of the time that is not kept as training, over "
            "the training between two checkpoints.",
            drawing=Curves(
                curves=tuple(curves),
                across="training between two checkpoints [min]",
                up="not kept as training [%]",
                names={
                    _minutes(one["interval_s"]): f"{one['interval_s'] / 60.0:.2g}"
                    for one in simulated
                },
                logarithmic=True,
                marks=CurveMarks(
                    upright=tuple(
                        value
                        for value in named.values()
                        if simulated[0]["interval_s"] / 60.0
                        <= value
                        <= simulated[-1]["interval_s"] / 60.0
                    )
                ),
            ),
            note=f"Dotted: {words}.",
            table=DataTable(
                caption="Goodput over intervals",
                columns=("Interval [min]", "Closed form", "Mean", "p5", "p95"),
                rows=tuple(
                    (
                        Cell(f"{one['interval_s'] / 60.0:.3g}", one["interval_s"]),
                        _share(one["expected"]),
                        *(
                            _share(one["simulated"][key])
                            for key in ("mean", "p5", "p95")
                        ),
                    )
                    for one in simulated
                ),
                numbers=("Interval [min]", "Closed form", "Mean", "p5", "p95"),
            ),
        ),
    )


def _minutes(seconds: float) -> float:
    return float(seconds) / 60.0


def _point(interval: float, share: float, name: str) -> CurvePoint:
    minutes = _minutes(interval)
    tip = f"{name}, every {minutes:.3g} min: goodput {percent(share)}"
    return CurvePoint(minutes, 100.0 * (1.0 - share), tip)


def _tokens(data: Mapping[str, Any]) -> FigureBlock:
    """Return tokens over time: without failures, and percentiles of the runs."""
    over, each = data["tokens_over_time"], data["healthy"]["tokens_per_day"]
    scale, unit = token_unit(over["p95"][-1])

    def point(name: str, place: int) -> CurvePoint:
        many = lines[name][place] / scale
        tip = f"{name}, day {days[place]:.3g}: {amount(lines[name][place])}"
        return CurvePoint(days[place], many, tip)

    days = [time / _DAY for time in over["time_s"]]
    # The last one, and as many others at equal distances as have names.
    kept = range(len(days) - 1, -1, -max(1, len(days) // 13))[::-1]
    digits = max(0, 2 - math.floor(math.log10(days[-1]))) if days[-1] < 30.0 else 0
    lines = {
        "nothing fails": [each * day for day in days],
        "p95": over["p95"],
        "p50": over["p50"],
        "p5": over["p5"],
    }
    curves = [
        DrawnCurve(
            name,
            tuple(point(name, place) for place in kept),
        )
        for name in lines
    ]
    return FigureBlock(
        name="tokens",
        title=f"{amount(over['p50'][-1])} tokens in the end",
        about="Curves of tokens over time without failures and in the runs.",
        drawing=Curves(
            curves=tuple(curves),
            across="time [d]",
            up=f"tokens [{unit}]",
            names={days[place]: f"{days[place]:.{digits}f}" for place in kept},
        ),
        table=DataTable(
            caption=f"Tokens over time [{unit}]",
            columns=("Day", *lines),
            rows=tuple(
                (
                    Cell(f"{days[place]:.3g}", days[place]),
                    *(
                        Cell(f"{values[place] / scale:,.3f}", values[place])
                        for values in lines.values()
                    ),
                )
                for place in kept
            ),
            numbers=("Day", *lines),
        ),
    )


def _failures(data: Mapping[str, Any]) -> tuple[Block, ...]:
    rows = tuple(
        (
            one["component"],
            Cell(f"{one['count']:,}", one["count"]),
            Cell(number(one["mtbf_s"] / _DAY), one["mtbf_s"]),
            Cell(number(one["mtbf_of_all_s"] / 3600.0), one["mtbf_of_all_s"]),
            Cell(number(one["in_a_run"]["mean"]), one["in_a_run"]["mean"]),
            "published" if one["is_published"] else "given",
        )
        for one in data["failures"]
    )
    sources = {one["source"]: None for one in data["failures"] if one["is_published"]}
    if not rows:
        return ()
    numbers = ("Number", "MTBF of one [d]", "MTBF of all [h]", "In a run")
    return (
        DataTable(
            caption="Components that fail",
            columns=("Component", *numbers, "Rate"),
            rows=rows,
            numbers=numbers,
            sortable=True,
        ),
        *(Sentences(sentences=(f"Published: {one}.",)) for one in sources),
    )
