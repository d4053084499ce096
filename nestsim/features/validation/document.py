"""What a validation says: how far off, of which sources, and what was refused."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from nestsim.document.figures import MOST_CLOUDS, Cloud, CloudPoint, Scatter
from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    FigureBlock,
    Headline,
    KeyFigure,
    Record,
    Section,
    Sentences,
    cell,
    table_section,
)
from nestsim.document.wording import number, percent, plural, signed_percent
from nestsim.evaluate.uncertainty import SHARE
from nestsim.features.validation.columns import REFUSALS
from nestsim.features.validation.results import (
    Curve,
    Errors,
    Judgement,
    Ranking,
    RowResult,
    ValidationResult,
    errors_of,
    grouped,
)
from topologies.units import format_duration, format_size

GIB = 2.0**30
"""Size of a gibibyte [byte]."""

MIB, MICROSECOND = 2.0**20, 1e-6

BANDS = (0.1, 0.25)
"""Relative errors that the picture shows as bands around equality."""


class Wording(NamedTuple):
    """How a kind of measurements is spoken of."""

    about: str
    """What its rows are about."""

    predicted: str
    """Begin of the headline."""

    heading: str
    """Heading of the column of sources."""

    values: str
    """Plural of what is measured."""

    unit: str
    """Unit of the figure."""

    scale: float
    """Size of that unit [s or byte]."""

    write: Callable[[float], str]
    """Writes a measured value."""


_WORDING: Mapping[str, Wording] = MappingProxyType(
    {
        "throughput": Wording(
            "the time of a step",
            "Predicted step times are",
            "Time of a step",
            "times",
            "s",
            1.0,
            format_duration,
        ),
        "memory": Wording(
            "the memory of a device",
            "Predicted memory is",
            "Memory of a device",
            "sizes",
            "GiB",
            GIB,
            format_size,
        ),
        "collectives": Wording(
            "the time of a collective",
            "Predicted collectives are",
            "Curve",
            "times",
            "us",
            MICROSECOND,
            format_duration,
        ),
    }
)

MOST_CURVES = 12
"""Figures of curves, those of most points; of more, the table alone has the errors."""


def validation_document(result: ValidationResult) -> Document:
    """Return what text, picture and Markdown say of a file of measurements."""
    return Document(
        subject=result.name,
        doing="validate",
        headline=_headline(result),
        sections=tuple(_sections(result)),
    )


def _headline(result: ValidationResult) -> Headline:
    wording, errors = _WORDING[result.kind], result.errors()
    counts = (
        f"{plural(len(result.rows), 'row')} about {wording.about}: "
        f"{len(result.scored):,} predicted and compared, {len(result.refused):,} "
        "refused."
    )
    if not result.scored:
        return Headline(verdict="NO ERROR TO COUNT", tone="plain", sentences=(counts,))
    if result.kind == "collectives":
        off = (
            f"{percent(result.median_of_curves())} off in the median of "
            f"{plural(len(result.curves()), 'curve')}, each by its median"
        )
        key_figures = [KeyFigure("median row", percent(errors.median_ape))]
    else:
        off = (
            f"{percent(errors.mape)} off on average, {percent(errors.median_ape)} in "
            "the median"
        )
        key_figures = [
            KeyFigure(f"within {100 * band:g} %", percent(result.share_within(band)))
            for band in BANDS
        ]
    return Headline(
        verdict=f"{wording.predicted} {off}",
        tone="plain",
        sentences=(counts,),
        key_figures=tuple(key_figures),
    )


def _sections(result: ValidationResult) -> Iterator[Section]:
    if result.kind == "collectives":
        yield from _curve_sections(result)
    else:
        yield from _job_sections(result)
    if result.refused:
        yield table_section("refused", _refusals(result.refused))


Columns = Mapping[str, Callable[[Errors], str | Cell]]


def _share(
    of: Callable[[Errors], float], write: Callable[[float], str] = percent
) -> Callable[[Errors], str | Cell]:
    """Return what writes a share of some errors; a dash for none."""
    return lambda errors: cell(of(errors), write)


_ERRORS: Columns = MappingProxyType(
    {
        "MAPE": _share(lambda errors: errors.mape),
        "Median": _share(lambda errors: errors.median_ape),
        "90th pct": _share(lambda errors: errors.p90_ape),
        "Worst": _share(lambda errors: errors.max_ape),
        "Bias": _share(lambda errors: errors.bias, signed_percent),
    }
)
"""Columns of errors."""

NUMBERS = ("Rows", "Refused", *_ERRORS, "Too large")
"""Headings of the columns behind the source."""


def _kendall(group: Errors | Ranking) -> str | Cell:
    return cell(group.kendall_tau, "{:.3f}".format)


def _errors_columns(
    errors: Callable[[Record], Errors],
) -> dict[str, Callable[[Record], str | Cell]]:
    """Return the columns of errors of the records of a table."""
    return {
        name: lambda record, write=write: write(errors(record))  # type: ignore[misc]  # bound now
        for name, write in _ERRORS.items()
    }


def _errors_table(
    caption: str, heading: str, groups: Mapping[str, Errors]
) -> DataTable:
    """Return the errors of groups of rows."""
    return DataTable.of(
        caption,
        groups.items(),
        {
            heading: lambda group: group[0],
            "Rows": lambda group: cell(group[1].rows, number),
            **_errors_columns(lambda group: group[1]),
            "Kendall": lambda group: _kendall(group[1]),
        },
        shown=len(groups) - 1 if "all" in groups else None,
    )


def _with_all(groups: Mapping[str, Errors], total: Errors) -> dict[str, Errors]:
    """Return groups by name, and what they are together."""
    together = {"all": total} if len(groups) > 1 else {}
    return {name: groups[name] for name in sorted(groups)} | together


def _job_sections(result: ValidationResult) -> Iterator[Section]:
    sources = _sources_table(result)
    if result.scored:
        figure = _scatter(result, sources)
        yield Section("sources", "By source", (figure,))
        groups = _with_all(result.errors_by("accelerator"), result.errors())
        yield table_section(
            "accelerators", _errors_table("By accelerator", "Accelerator", groups)
        )
        yield _ranking_section(result)
    else:
        yield Section("sources", "By source", (sources,))
    if len(result.rows) > len(result.refused):
        yield _judgement_section(result)


def _sources_table(result: ValidationResult) -> DataTable:
    """Return a line for every source in the order of the file, and one for all.

    Those of which no row could be compared are in it too, with dashes. ``Too large``
    counts runs that happened and are judged not to fit in memory.
    """
    errors, judged = result.errors_by("source_key"), result.judgement_by("source_key")
    refused = Counter(row.row.source for row in result.refused)
    sources = dict.fromkeys(row.row.source for row in result.rows)
    lines = [
        (
            source,
            errors.get(source, errors_of([], [])),
            refused[source],
            judged[source].ran_but_too_large if source in judged else 0,
        )
        for source in sources
    ]
    large = result.judgement().ran_but_too_large
    lines.append(("all", result.errors(), refused.total(), large))
    return DataTable.of(
        "Errors by source",
        lines,
        {
            _WORDING[result.kind].heading: lambda line: line[0],
            "Rows": lambda line: cell(line[1].rows, number),
            "Refused": lambda line: cell(line[2], number),
            **_errors_columns(lambda line: line[1]),
            "Too large": lambda line: cell(line[3], number),
        },
        shown=len(lines) - 1,
    )


def _scatter(result: ValidationResult, table: DataTable) -> FigureBlock:
    """Return every scored row, predicted over measured, a colour for each source."""
    wording = _WORDING[result.kind]
    by_source = grouped((row.row.source, row) for row in result.scored)
    ranked = sorted(by_source, key=lambda source: -len(by_source[source]))
    shown = ranked if len(ranked) <= MOST_CLOUDS else ranked[: MOST_CLOUDS - 1]
    groups = {source: by_source[source] for source in shown}
    others = [row for source in ranked[len(shown) :] for row in by_source[source]]
    if others:
        groups["other sources"] = others
    return FigureBlock(
        name="errors",
        title="Predicted over measured; shaded are errors within "
        + " and ".join(f"{100 * band:g} %" for band in BANDS),
        about="A point for each row, predicted over measured, beside equality.",
        drawing=Scatter(
            clouds=tuple(
                Cloud(
                    f"{source} ({len(rows):,})",
                    tuple(_point(row, wording) for row in rows),
                )
                for source, rows in groups.items()
            ),
            across=f"measured {wording.about.removeprefix('the ')} [{wording.unit}]",
            up=f"predicted [{wording.unit}]",
            bands=BANDS,
        ),
        table=table,
    )


def _point(row: RowResult, wording: Wording) -> CloudPoint:
    low, high = (None if math.isnan(end) else end / wording.scale for end in row.ends)
    return CloudPoint(
        row.measured / wording.scale,
        row.predicted / wording.scale,
        f"{row.row.row_id}: {wording.write(row.measured)} measured, "
        f"{wording.write(row.predicted)} predicted ({signed_percent(row.error)})",
        low,
        high,
    )


def _ranking_section(result: ValidationResult) -> Section:
    """Return how well plans for the same job are put in order, and the bands."""
    sentences = [_ranking_sentence(result)]
    if not math.isnan(result.coverage()):
        sentences.append(
            f"{percent(result.coverage())} of the measured "
            f"{_WORDING[result.kind].values} lie in the {100 * SHARE:g} % band of "
            "their prediction."
        )
    by_source = result.ranking_by("source_key")
    groups = {name: by_source[name] for name in sorted(by_source)}
    ranked = {name: ranking for name, ranking in groups.items() if ranking.groups}
    columns: dict[str, Callable[[tuple[str, Ranking]], str | Cell]] = {
        "Source": lambda group: group[0],
        "Groups": lambda group: cell(group[1].groups, number),
        "Rows": lambda group: cell(group[1].rows, number),
        "Kendall": lambda group: _kendall(group[1]),
    }
    if result.kind == "throughput":
        columns["Regret"] = lambda group: cell(group[1].top1_regret, percent)
    title = "Plans for the same job"
    tables = (DataTable.of(title, ranked.items(), columns),) if ranked else ()
    blocks = (Sentences(tuple(sentences)), *tables)
    return Section("ranking", title, blocks)


def _ranking_sentence(result: ValidationResult) -> str:
    ranking = result.ranking()
    if not ranking.groups:
        return "No two rows are plans for the same job on the same devices."
    groups = plural(ranking.groups, "group")
    sentence = (
        f"{groups} of rows for the same job on the same devices ({ranking.rows:,} "
        f"rows): Kendall's tau {ranking.kendall_tau:.3f} within them"
    )
    if result.kind == "memory":
        return f"{sentence}."
    return (
        f"{sentence}; the plan predicted to be the fastest is "
        f"{percent(ranking.top1_regret)} slower than the fastest one on average, "
        f"{percent(ranking.max_top1_regret)} at worst."
    )


def _judgement_section(result: ValidationResult) -> Section:
    """Return which sources' runs are judged against what happened, if any are."""
    by_source = result.judgement_by("source_key")
    wrong = [(name, by_source[name]) for name in sorted(by_source)]
    wrong = [(name, judged) for name, judged in wrong if judged.misjudged]
    title = "Judged by memory"
    table = DataTable.of(
        title,
        wrong,
        {
            "Source": lambda line: line[0],
            "Ran": lambda line: cell(line[1].ran, number),
            "Too large": lambda line: cell(line[1].ran_but_too_large, number),
            "Of A, A-": lambda line: Cell(
                f"{line[1].complete_but_too_large:,} of {line[1].complete:,}",
                line[1].complete_but_too_large,
            ),
            "Largest": lambda line: (
                cell(line[1].largest_share, percent)
                if math.isfinite(line[1].largest_share)
                else "-"
            ),
            "Ran out": lambda line: cell(line[1].out_of_memory, number),
            "Fit": lambda line: cell(line[1].out_of_memory_but_fit, number),
        },
    )
    sentence = _judgement_sentence(result.judgement())
    blocks = (Sentences((sentence,)), *((table,) if wrong else ()))
    return Section("judgement", title, blocks)


def _judgement_sentence(judgement: Judgement) -> str:
    """Say how many runs are judged against what happened."""
    ran, large = judgement.ran, judgement.ran_but_too_large
    part = f" ({percent(large / ran)})" if ran else ""
    sentence = (
        f"Of {plural(ran, 'run')} that happened, {large:,}{part} are judged not to "
        f"fit in memory; of those of full quality (A, A-), "
        f"{judgement.complete_but_too_large:,} of {judgement.complete:,}. "
        f"{judgement.ran_in_doubt:,} may fit: fewer than nine of ten like them do."
    )
    if not judgement.out_of_memory:
        return sentence
    return (
        f"{sentence} Of {plural(judgement.out_of_memory, 'run')} that ran out of "
        f"memory, {judgement.out_of_memory_but_fit:,} are judged to fit, "
        f"{judgement.out_of_memory_in_doubt:,} may fit."
    )


def _refusals(refused: Sequence[RowResult]) -> DataTable:
    """Return how many rows were refused for which reason, with sources."""
    codes = Counter(row.code for row in refused)
    sources = {
        code: Counter(row.row.source for row in refused if row.code == code)
        for code in codes
    }
    return DataTable.of(
        "Refused rows",
        codes.most_common(),
        {
            "Refused": lambda line: line[0],
            "Rows": lambda line: cell(line[1], number),
            "Why": lambda line: REFUSALS[line[0]],
            "Sources": lambda line: ", ".join(
                f"{name} {count}" for name, count in sources[line[0]].most_common()
            ),
        },
    )


def _curve_sections(result: ValidationResult) -> Iterator[Section]:
    if not result.scored:
        return
    curves = {
        curve.label(): errors
        for curve, errors in sorted(result.errors_by_curve().items())
    }
    yield table_section("curves", _errors_table("By curve", "Curve", curves))
    families = _with_all(result.errors_by_family(), result.errors())
    yield table_section(
        "accelerators", _errors_table("By accelerator", "Accelerator", families)
    )
    figures = tuple(_panels(result))
    if figures:
        title = "Time over size"
        yield Section("times", title, figures, in_text=False)


def _panels(result: ValidationResult) -> Iterator[FigureBlock]:
    """Yield curves that share axes, those of most points first.

    They are of one source, operation and number of nodes; a single point is no curve.
    """
    keyed = (
        ((curve.source, curve.operation, curve.num_nodes), (curve, rows))
        for curve, rows in result.curves().items()
        if len({row.num_bytes for row in rows}) > 1
    )
    panels = grouped(keyed)
    largest = sorted(
        panels, key=lambda panel: -sum(len(rows) for _, rows in panels[panel])
    )
    for place, (source, operation, num_nodes) in enumerate(largest[:MOST_CURVES]):
        curves = sorted(panels[source, operation, num_nodes], key=lambda pair: pair[0])
        yield FigureBlock(
            name=f"curve-{place}",
            title=f"{source}: {operation}, {plural(num_nodes, 'node')}; points are "
            "measured, lines predicted",
            about="Time over size of the tensor, a colour for each number of ranks.",
            drawing=Scatter(
                clouds=tuple(_cloud(curve, rows) for curve, rows in curves),
                across="size [MiB]",
                up="time [us]",
            ),
            table=_points_table(source, [row for _, rows in curves for row in rows]),
        )


def _cloud(curve: Curve, rows: Sequence[RowResult]) -> Cloud:
    wording = _WORDING["collectives"]
    points = [_point(row, wording) for row in rows]
    sizes = [row.num_bytes / MIB for row in rows]
    return Cloud(
        f"{curve.num_ranks} ranks",
        tuple(
            point._replace(x=size, y=point.x)
            for size, point in zip(sizes, points, strict=True)
        ),
        tuple((size, point.y) for size, point in zip(sizes, points, strict=True)),
    )


def _points_table(source: str, rows: Sequence[RowResult]) -> DataTable:
    return DataTable.of(
        f"Points of {source}",
        rows,
        {
            "Ranks": lambda row: cell(row.curve.num_ranks, number),
            "Size": lambda row: cell(row.num_bytes, format_size),
            "Measured": lambda row: cell(row.measured, format_duration),
            "Predicted": lambda row: cell(row.predicted, format_duration),
            "Error": lambda row: cell(row.error, signed_percent),
        },
    )
