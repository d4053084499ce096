"""What goodput says: what a day gives, what takes the rest, and what to change."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from nestsim.document.figures import (
    BarGroups,
    CurveMarks,
    CurvePoint,
    Curves,
    DrawnCurve,
    GroupedBar,
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
    cell,
    paragraphs,
)
from nestsim.document.wording import (
    amount,
    long_time,
    number,
    percent,
    plural,
    token_unit,
)
from nestsim.features.goodput.record import (
    FailureRecord,
    GoodputRecord,
)
from nestsim.features.goodput.results import DAY, SeedBand

_COMPONENTS: Mapping[str, str] = {
    "device": "devices",
    "node": "rest of nodes",
    "switch": "switches",
    "link": "cables",
    "fabric": "fabric, per device",
    "job": "the job, whatever its size",
    "software": "software, per device",
}
"""Component -> what people call it."""

_PAINTS = {
    "lost work": "series-3",
    "checkpoints": "series-0",
    "checkpoints in memory": "series-2",
    "slow nodes": "series-6",
    "detection and diagnosis": "series-4",
    "restart": "series-1",
    "waiting for repair": "series-5",
    "maintenance": "series-7",
    "degraded": "series-9",
}
"""What takes time from the training -> its paint."""

_INTERVALS = {
    "young_s": "Young 1974",
    "daly_s": "Daly 2006",
    "best_s": "best",
    "used_s": "this job's",
}
"""Key of an interval -> its name."""


def goodput_document(data: Mapping[str, object]) -> Document:
    """Return what training through failures says.

    Parameters
    ----------
    data
        As ``goodput.json`` has it.
    """
    if "goodput" not in data:
        headline = Headline.without("NO PLAN", data["reason"])
        return Document.of(str(data["scenario"]), "goodput", headline, ())
    record = GoodputRecord.read(data)
    return Document.of(record.scenario, "goodput", _headline(record), _sections(record))


def goodput_section(data: Mapping[str, object]) -> Section:
    """Return the short of it, for the report of a run.

    Parameters
    ----------
    data
        As ``goodput.json`` has it, of a job with a plan.
    """
    record = GoodputRecord.read(data)
    sentences = Sentences((record.headline + ".", *record.in_words))
    return Section("goodput", "Through failures", (sentences, _causes(record)))


def _sections(data: GoodputRecord) -> Iterator[Section]:
    blocks = (_causes(data), _ranges(data))
    yield Section("time", "Where the time goes", blocks)
    yield Section("intervals", "How often to write checkpoints", (_intervals(data),))
    if data.without:
        yield Section("worth", "What habits are worth", (_worth(data),))
    yield Section("tokens", "Tokens over time", (_tokens(data),), in_text=False)
    if data.failures:
        yield Section("failures", "What fails", _failures(data))
    yield Section("basis", "What is assumed", (FactList(data.facts),))


def _headline(data: GoodputRecord) -> Headline:
    share, day = data.goodput, data.tokens_per_day
    mtti = data.mtti_s
    return Headline(
        verdict=data.headline,
        tone="plain",
        sentences=tuple(data.in_words),
        key_figures=(
            KeyFigure(
                "Goodput",
                percent(share.p50),
                f"p5 {percent(share.p5)}, p95 {percent(share.p95)}",
            ),
            KeyFigure(
                "Tokens a day",
                amount(day.p50),
                f"{amount(data.healthy.tokens_per_day)} without failures",
            ),
            KeyFigure(
                "Effective training time",
                percent(data.effective_training_time.p50),
                "useful training over elapsed time",
            ),
            KeyFigure(
                "Time to an interruption",
                "never" if mtti is None else long_time(mtti),
                f"{number(data.interruptions.mean)} in a run",
            ),
        ),
    )


def _causes(data: GoodputRecord) -> FigureBlock:
    """Return what takes time from the training, as one bar."""
    bands: Mapping[str, SeedBand] = data.shares
    shown = {
        name: band for name, band in bands.items() if name == "training" or band.mean
    }
    lost = {name: bands[name].mean for name in _PAINTS if name in shown}
    total = percent(sum(lost.values()))
    parts = tuple(
        StackPart(
            f"{name} {_share(share).text}",
            100.0 * share,
            _PAINTS[name],
            f"{name}: {_share(share).text}, {long_time(share * DAY)} a day",
        )
        for name, share in lost.items()
    )
    shown["effective training time"] = data.effective_training_time
    return FigureBlock(
        name="causes",
        title=f"{total} of the time is not kept as training",
        about="A bar of the shares of the time that failures, checkpoints and stops "
        "take.",
        drawing=Stacks(
            bars=(StackedBar("loss", parts, total),), across="share of the time [%]"
        ),
        table=DataTable.of(
            "Shares of the time over the runs",
            shown.items(),
            {
                "Part": lambda row: row[0],
                **_bands(lambda row: row[1]),
                "A day": lambda row: cell(DAY * row[1].mean, long_time),
            },
        ),
    )


def _ranges(data: GoodputRecord) -> FigureBlock:
    """Return what takes time from the training in the runs, each by itself."""
    whole = data.effective_training_time
    lost = SeedBand(1.0 - whole.p95, 1.0 - whole.p50, 1.0 - whole.p5, 1.0 - whole.mean)
    bands: dict[str, SeedBand] = {
        "in all": lost,
        **{name: data.shares[name] for name in _PAINTS if name in data.shares},
    }
    shown = {name: band for name, band in bands.items() if band.p95 or band.mean}

    def bar(name: str, band: SeedBand) -> GroupedBar:
        low, high = percent(band.p5), percent(band.p95)
        return GroupedBar(
            name=name,
            length=100.0 * band.mean,
            words=_share(band.mean).text,
            paint=_PAINTS.get(name, "idle"),
            mark=100.0 * band.p50,
            whisker=(100.0 * band.p5, 100.0 * band.p95),
            tip=f"{name}: mean {_share(band.mean).text}, p5 {low}, p95 {high}",
        )

    return FigureBlock(
        name="runs",
        title=f"{plural(data.seeds.count, 'run')}: what each may lose",
        about="Bars of the mean share of the time that is lost, with a line from what "
        "5 of 100 runs stay below to what 5 of 100 exceed.",
        drawing=BarGroups.of(
            (bar(*row) for row in shown.items()), "share of the time [%]"
        ),
        table=DataTable.of(
            "Shares of the time over the runs",
            shown.items(),
            {"Part": lambda row: row[0], **_bands(lambda row: row[1])},
        ),
        note="Bars: mean. Marks: p50. Thin lines: p5 to p95.",
        # The table above has its numbers.
        in_text=False,
    )


Row = TypeVar("Row")
"""What a row of a table is about."""


def _bands(
    band: Callable[[Row], SeedBand],
) -> dict[str, Callable[[Row], Cell]]:
    """Return the columns of bands over the runs."""
    return {
        "Mean": lambda row: _share(band(row).mean),
        "p5": lambda row: _share(band(row).p5),
        "p95": lambda row: _share(band(row).p95),
    }


def _share(share: float) -> Cell:
    return Cell(f"{100.0 * share:.2f} %", share)


def _intervals(data: GoodputRecord) -> Block:
    """Return goodput over intervals, and those with a name."""
    if not data.curve:
        return Sentences(("Nothing fails.",))
    given = data.intervals
    named = {key: interval for key in _INTERVALS if (interval := getattr(given, key))}
    simulated = [
        (point.interval_s, point.expected, point.simulated)
        for point in data.curve
        if point.simulated is not None
    ]
    curves = (
        DrawnCurve(
            "closed form, nodes always there",
            tuple(
                _point(interval, share, "closed form")
                for interval, share, _ in simulated
            ),
        ),
        DrawnCurve(
            "simulated, mean and p5 to p95",
            tuple(
                _point(interval, band.mean, "simulated", (band.p95, band.p5))
                for interval, _, band in simulated
            ),
        ),
    )
    places = [interval for interval, _, _ in simulated]
    expected = given.expected
    words = "; ".join(
        f"{_INTERVALS[key]} {long_time(interval)}, {_share(expected[key]).text}"
        for key, interval in named.items()
    )
    used = given.used_s
    rows = [
        *(
            (interval, long_time(interval), share, band)
            for interval, share, band in simulated
        ),
        (used, f"{long_time(used)}, this job's", expected["used_s"], data.goodput),
    ]
    return FigureBlock(
        name="intervals",
        title="Too often and too seldom both cost",
        about="Curves of the share of the time that is not kept as training, over "
        "the training between two checkpoints.",
        drawing=Curves(
            curves=curves,
            across="training between two checkpoints",
            up="not kept as training [%]",
            names={place: long_time(place) for place in places},
            logarithmic=True,
            marks=CurveMarks(
                upright=tuple(
                    interval
                    for interval in named.values()
                    if places[0] <= interval <= places[-1]
                )
            ),
        ),
        note=f"Dotted, with what the closed form keeps: {words}.",
        table=DataTable.of(
            "Goodput over intervals",
            sorted(rows, key=lambda row: row[0]),
            {
                "Interval": lambda row: Cell(row[1], row[0]),
                "Closed form": lambda row: _share(row[2]),
                **_bands(lambda row: row[3]),
            },
        ),
    )


def _point(
    interval: float, share: float, name: str, band: tuple[float, float] | None = None
) -> CurvePoint:
    """Return what an interval loses; the band is what p95 and p5 keep."""
    tip = f"{name}, every {long_time(interval)}: goodput {percent(share)}"
    low, high = (None, None) if band is None else (100.0 * (1.0 - x) for x in band)
    return CurvePoint(interval, 100.0 * (1.0 - share), tip, low, high)


def _tokens(data: GoodputRecord) -> FigureBlock:
    """Return tokens over time: without failures, and percentiles of the runs."""
    over, each_day = data.tokens_over_time, data.healthy.tokens_per_day
    scale, unit = token_unit(over.p95[-1])
    days = [time / DAY for time in over.time_s]
    # The last one, and as many others at equal distances as have names.
    kept = range(len(days) - 1, -1, -max(1, len(days) // 13))[::-1]
    digits = max(0, 2 - math.floor(math.log10(days[-1]))) if days[-1] < 30.0 else 0
    lines: dict[str, Sequence[float]] = {
        "nothing fails": [each_day * day for day in days],
        "p95": over.p95,
        "p50": over.p50,
        "p5": over.p5,
    }

    def point(name: str, place: int, *ends: str) -> CurvePoint:
        tip = f"{name}, day {days[place]:.3g}: {amount(lines[name][place])}"
        low, high = [lines[end][place] / scale for end in ends] or (None, None)
        return CurvePoint(days[place], lines[name][place] / scale, tip, low, high)

    def amounts(values: Sequence[float]) -> Callable[[int], Cell]:
        return lambda at: Cell(f"{values[at] / scale:,.3f}", values[at])

    return FigureBlock(
        name="tokens",
        title=f"{amount(over.p50[-1])} tokens in the end",
        about="Curves of tokens over time without failures and in the runs.",
        drawing=Curves(
            curves=(
                DrawnCurve(
                    "nothing fails", tuple(point("nothing fails", at) for at in kept)
                ),
                DrawnCurve(
                    "p50 of the runs, p5 to p95",
                    tuple(point("p50", at, "p5", "p95") for at in kept),
                ),
            ),
            across="time [d]",
            up=f"tokens [{unit}]",
            names={days[place]: f"{days[place]:.{digits}f}" for place in kept},
        ),
        table=DataTable.of(
            f"Tokens over time [{unit}]",
            kept,
            {
                "Day": lambda at: cell(days[at], "{:.3g}".format),
                **{name: amounts(values) for name, values in lines.items()},
            },
        ),
    )


def _worth(data: GoodputRecord) -> Block:
    """Return goodput without each habit that not every job has."""
    whole = data.intervals.expected["used_s"]
    return DataTable.of(
        "Goodput by the closed form, nodes always there, without each",
        data.without.items(),
        {
            "Without": lambda row: row[0],
            "Goodput": lambda row: _share(row[1]),
            "Points more with it": lambda row: Cell(
                f"{100.0 * (whole - row[1]):+.2f}", whole - row[1]
            ),
        },
    )


def _failures(data: GoodputRecord) -> tuple[Block, ...]:
    sources = dict.fromkeys(
        f"Published: {kind.source}." if kind.is_published else f"Log: {kind.source}."
        for kind in data.failures
        if kind.is_published or kind.counted is not None
    )
    return (
        DataTable.of(
            "What fails",
            data.failures,
            {
                "Component": _component,
                "Number": lambda kind: cell(kind.count, "{:,}".format),
                "MTBF of one": lambda kind: cell(kind.mtbf_s, long_time),
                "MTBF of all": lambda kind: cell(kind.mtbf_of_all_s, long_time),
                "In a run": lambda kind: cell(kind.in_a_run.mean, number),
                "Rate": _rate,
            },
            sortable=True,
        ),
        *paragraphs(sources),
    )


def _component(kind: FailureRecord) -> str:
    name = _COMPONENTS.get(kind.component, kind.component)
    return f"{name}, {kind.nodes:,} nodes each" if kind.nodes > 1 else name


def _rate(kind: FailureRecord) -> str:
    origin = "published" if kind.is_published else "given"
    shape = kind.weibull_shape
    if kind.mtbf_band_s is not None:
        least, most = map(long_time, kind.mtbf_band_s)
        how = "as logged" if kind.as_logged else "fitted"
        origin = f"{how}, {kind.counted:,}: MTBF {least} to {most}"
    if shape == 1.0:
        return origin
    low, high = kind.shape_band
    band = f" ({low:.2g} to {high:.2g})" if low < high else ""
    return f"{origin}, Weibull {shape:.3g}{band}"
