"""What jitter says: what a step takes, who is slowest, and what scale does."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from nestsim.document.figures import CurveMarks, CurvePoint, Curves, DrawnCurve
from nestsim.document.parts import (
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    Sentences,
    Snippet,
    cell,
    field_cell,
)
from nestsim.document.wording import (
    number,
    percent,
    plural,
    signed_percent,
)
from nestsim.features.jitter.fit import FALSE_SHARE, JitterFit, fit_toml
from nestsim.features.jitter.record import (
    JitterRecord,
    ScaleRecord,
    StepsRecord,
    signed_points,
)
from topologies.units import format_duration

_MOST_POINTS = 200
"""Steps of a curve; of more, evenly many are drawn."""

_NORMAL_95 = 1.959964
"""Quantile 0.975 of the standard normal distribution: how many standard errors the
bounds of a mean are away, by the central limit theorem."""


def jitter_document(data: Mapping[str, object]) -> Document:
    """Return what jitter says.

    Parameters
    ----------
    data
        As ``jitter.json`` has it.
    """
    record = JitterRecord.read(data)
    return Document.of(record.scenario, "jitter", _headline(record), _sections(record))


def _sections(data: JitterRecord) -> Iterator[Section]:
    facts = dict(data.jitter_in_words)
    if data.steps is not None and data.slowest is not None:
        slowest = Sentences((data.slowest.in_words or "",))
        yield Section("steps", "Time of a step", (_steps(data.steps), slowest))
        facts = {"plan": data.plan or "", **facts}
    if data.scale:
        yield Section("scale", "What scale does", (_scale(data),))
    yield Section("assumed", "What differs from step to step", (FactList(facts),))


def _headline(data: JitterRecord) -> Headline:
    steps = data.steps
    if steps is None:
        return Headline.without(data.headline, data.reason or "")
    p50, p99 = (steps.quantiles[name].time_s for name in ("p50", "p99"))
    return Headline(
        verdict=data.headline,
        tone="plain",
        sentences=(steps.in_words,),
        key_figures=(
            KeyFigure(
                "Mean step",
                format_duration(steps.mean_s),
                f"{format_duration(steps.plain_time_s)} without jitter",
            ),
            KeyFigure("p99", format_duration(p99), f"p50 {format_duration(p50)}"),
            KeyFigure(
                "Throughput",
                f"{number(steps.mean_tokens_per_s)} tokens/s",
                f"{number(steps.plain_tokens_per_s)} without jitter",
            ),
        ),
    )


def _steps(steps: StepsRecord) -> FigureBlock:
    """Return which share of the steps takes how long."""
    times = sorted(steps.times_s)
    places = sorted({round(k * (len(times) - 1) / _MOST_POINTS) for k in range(201)})
    points = []
    for place in places:
        share = 100 * (place + 1) / len(times)
        tip = f"{share:.1f} % of the steps take at most {format_duration(times[place])}"
        points.append(CurvePoint(times[place], share, tip))
    marks = {
        "without jitter": steps.plain_time_s,
        **{name: band.time_s for name, band in steps.quantiles.items()},
    }
    words = ", ".join(f"{name} {format_duration(at)}" for name, at in marks.items())
    tokens = steps.plain_tokens_per_s * steps.plain_time_s
    return FigureBlock(
        name="steps",
        title=f"{len(times):,} steps: which share takes at most how long",
        about="A rising curve of the share of steps over the time of a step.",
        drawing=Curves(
            curves=(DrawnCurve("steps", tuple(points)),),
            across="time of a step [s]",
            up="steps that take at most so long [%]",
            round_ticks=True,
            marks=CurveMarks(upright=tuple(marks.values())),
        ),
        note=f"From and to hold the value in {100 * steps.confidence:g} % of all "
        f"samples. Dotted in the figure: {words}.",
        table=DataTable.of(
            "Time of a step",
            list(_step_rows(steps)),
            {
                "Step": lambda row: row[0],
                "Time": lambda row: cell(row[1], format_duration),
                "From": lambda row: cell(row[2], format_duration),
                "To": lambda row: cell(row[3], format_duration),
                "Longer": lambda row: cell(
                    row[1] / steps.plain_time_s - 1.0, signed_percent
                ),
                "Tokens/s": lambda row: cell(tokens / row[1], number),
            },
        ),
    )


def _step_rows(
    steps: StepsRecord,
) -> Iterator[tuple[str, float, float | None, float | None]]:
    """Yield what a step takes, by name: value, and band where there is one [s]."""
    yield "without jitter", steps.plain_time_s, None, None
    mean, error = steps.mean_s, steps.mean_standard_error_s
    reach = None if error is None else _NORMAL_95 * error
    yield (
        *("mean", mean),
        *((None, None) if reach is None else (mean - reach, mean + reach)),
    )
    for name, band in steps.quantiles.items():
        yield name, band.time_s, band.from_s, band.to_s
    yield "longest", steps.longest_s, None, None


def _scale(data: JitterRecord) -> FigureBlock:
    """Return the loss over the replicas: closed form, and simulation."""
    rows: Sequence[ScaleRecord] = data.scale
    curves: dict[str, Callable[[ScaleRecord], float | None]] = {
        "closed form": lambda row: row.closed_loss,
        _SIMULATED: lambda row: row.simulated_loss,
        "expected": lambda row: row.expected_loss,
    }
    return FigureBlock(
        name="scale",
        title="What jitter costs the same plan on other numbers of replicas",
        about="Curves of the mean loss over the replicas: closed form, simulation.",
        drawing=Curves(
            curves=tuple(
                DrawnCurve(
                    name,
                    tuple(
                        _point(row, loss, name)
                        for row in rows
                        if (loss := loss_of(row)) is not None
                    ),
                )
                for name, loss_of in curves.items()
            ),
            across="data-parallel replicas",
            up="longer than without jitter [%]",
            logarithmic=True,
        ),
        note=data.closed_form.in_words or "",
        table=DataTable.of(
            "Mean loss by the number of replicas",
            rows,
            {
                "Replicas": field_cell("replicas", "{:,}".format),
                "Devices": field_cell("num_devices", "{:,}".format),
                "Without jitter": field_cell("plain_time_s", format_duration),
                "Closed form": field_cell("closed_loss", loss_words),
                "Simulated": field_cell("simulated_loss", loss_words),
                "Difference": field_cell("difference", signed_points),
                "Expected": field_cell("expected_loss", loss_words),
                "+-": field_cell("expected_loss_error", loss_words),
            },
        ),
    )


_SIMULATED = "simulated, two standard errors"
"""Name of the curve with bands."""


def _point(row: ScaleRecord, share: float, name: str) -> CurvePoint:
    loss, error = 100 * share, row.expected_loss_error
    tip = f"{name}, {row.replicas:,} replicas: {loss:.2f} %"
    if name != _SIMULATED or error is None:
        return CurvePoint(row.replicas, loss, tip)
    reach = 200 * error
    return CurvePoint(row.replicas, loss, tip, loss - reach, loss + reach)


def loss_words(loss: float) -> str:
    """Write a loss: ``4.67 %``."""
    return f"{100 * loss + 0.0:.2f} %".replace("-0.00", "0.00")


def fit_document(fit: JitterFit) -> Document:
    """Return what a fit says: parameters with bands, whom to drain, what to paste."""
    drained = len(fit.slow)
    headline = Headline(
        verdict=f"Drain {plural(drained, 'rank')}: always slow"
        if drained
        else "No rank is always slow",
        tone="plain",
    )
    bands = {
        "coefficient of variation": fit.cv,
        "share that is slow in a step": fit.fraction,
        "how many times as long": fit.factor,
    }
    parameters = DataTable.of(
        "What differs from step to step",
        [(name, band) for name, band in bands.items() if band is not None],
        {
            "Parameter": lambda row: row[0],
            "Value": lambda row: cell(row[1].value, "{:.4g}".format),
            "From": lambda row: cell(row[1].low, "{:.4g}".format),
            "To": lambda row: cell(row[1].high, "{:.4g}".format),
        },
    )
    num_ranks, num_steps = fit.times.times.shape
    sentences = Sentences(
        (
            f"{fit.times.source}: {num_ranks:,} ranks, {num_steps:,} "
            f"{'steps' if fit.times.per == 'step' else 'collectives'}, median compute "
            f"{format_duration(fit.median)}. Bands hold 95 % of samples of steps that "
            "are drawn again.",
        )
    )
    sections = [Section("fit", "What fits", (parameters, sentences))]
    if fit.slow:
        ranks = DataTable.of(
            f"Ranks that are always slow: {percent(FALSE_SHARE)} of them may be wrong",
            fit.slow,
            {
                "Rank": lambda rank: str(rank.rank),
                "Node": lambda rank: rank.node or "-",
                "Times as long": lambda rank: cell(rank.factor, "{:.3f}".format),
                "Deviations": lambda rank: cell(rank.deviations, "{:.1f}".format),
            },
            sortable=True,
        )
        sections.append(Section("drain", "Whom to drain", (ranks,)))
    paste = Snippet(name="scenario.toml", text=fit_toml(fit))
    sections.append(Section("toml", "For a scenario", (paste,)))
    return Document.of(fit.times.source, "jitter-fit", headline, sections)
