"""Validation for people and machines: text, JSON, a line for every row, and Markdown.

The Markdown is a table of errors by source, as the documentation has it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.document.dumps import csv_of, plain_values
from nestsim.document.terminal import add_row, new_table
from nestsim.document.wording import percent, plural, signed_percent
from nestsim.evaluate.uncertainty import SHARE
from nestsim.features.validation.metrics import Errors, Ranking, errors_of, ranking_of
from nestsim.features.validation.rows.columns import REFUSALS
from nestsim.features.validation.runner import Judgement, RowResult, ValidationResult

_NUMBERS = ("Rows", "MAPE", "Median", "90th pct", "Worst", "Bias", "Kendall", "Regret")
"""Columns of the table of errors."""

_UNITS = {"throughput": "s", "memory": "byte"}
"""Kind of measurements -> unit of their values."""

_VALUES = {"throughput": "times", "memory": "sizes"}
"""Kind of measurements -> what sentences call their values."""


def validation_json(result: ValidationResult) -> dict[str, Any]:
    """Return the result as plain values with stable keys, errors as fractions.

    What is about time stands at the top, what is about memory under ``"memory"``; a
    file is about one of them, and the other has no rows.
    """
    of_time = result if result.kind == "throughput" else _without_rows(result)
    of_memory = result if result.kind == "memory" else _without_rows(result)
    plain: dict[str, Any] = plain_values(
        {
            "measurements": result.name,
            **_summary(of_time),
            "memory": {
                **_summary(of_memory),
                "out_of_memory": _out_of_memory(of_memory),
            },
        }
    )
    return plain


def _without_rows(result: ValidationResult) -> ValidationResult:
    return ValidationResult(name=result.name, kind=result.kind, rows=())


def _summary(result: ValidationResult) -> dict[str, Any]:
    errors = result.errors_by("source_key")
    rankings = result.ranking_by("source_key")
    judged = result.judgement_by("source_key")
    refused = Counter(row.row.source for row in result.refused)
    sources = dict.fromkeys(row.row.source for row in result.rows)
    by_source = {
        source: {
            **_errors_json(errors.get(source, errors_of([], []))),
            "refused": refused[source],
            "ranking": rankings.get(source, ranking_of([]))._asdict(),
            "judgement": judged[source]._asdict() if source in judged else None,
        }
        for source in sources
    }
    return {
        "rows": len(result.rows),
        "scored": len(result.scored),
        "refused": len(result.refused),
        **{
            key: value
            for key, value in _errors_json(result.errors()).items()
            if key != "scored"
        },
        "ranking": result.ranking()._asdict(),
        "band": {"share": SHARE, "coverage": result.coverage()},
        "judgement": result.judgement()._asdict(),
        "by_source": by_source,
        "by_accelerator": {
            name: _errors_json(errors)
            for name, errors in result.errors_by("accelerator").items()
        },
        "refusals": dict(Counter(row.code for row in result.refused).most_common()),
    }


def _errors_json(errors: Errors) -> dict[str, Any]:
    values = errors._asdict()
    return {"scored": values.pop("rows"), **values}


def _out_of_memory(result: ValidationResult) -> dict[str, int]:
    """Count the runs that ran out of memory, and those judged to fit."""
    judged = result.judgement()
    return {
        "rows": judged.out_of_memory,
        "predicted_to_fit": judged.out_of_memory_but_fit,
    }


_COLUMNS = (
    "row_id",
    "source_key",
    "status",
    "measured",
    "predicted",
    "predicted_low",
    "predicted_high",
    "unit",
    "error",
    "planned",
    "fits",
    "peak_memory_share",
    "basis",
    "preset",
    "code",
    "reason",
    "assumed",
)
"""Columns of the file with a line for every row."""


def predictions_csv(result: ValidationResult) -> str:
    """Return a table with a line for every row of the file, in its order.

    ``error`` is relative, with its sign; numbers have all their digits.
    """
    rows = [
        [
            row.row.row_id,
            row.row.source,
            _status(row),
            *(row.measured, row.predicted, *_ends(row)),
            _UNITS[result.kind],
            *(row.error, row.planned),
            "" if row.code else str(row.fits).lower(),
            row.memory_share,
            row.basis,
            row.preset,
            row.code,
            row.reason,
            "; ".join(row.assumed),
        ]
        for row in result.rows
    ]
    return csv_of(rows, _COLUMNS)


def _ends(row: RowResult) -> tuple[float, float]:
    """Return the ends of the 80 % band [s]; NaN where there is none."""
    if row.band is None:
        return math.nan, math.nan
    return row.band.low * row.predicted, row.band.high * row.predicted


def _status(row: RowResult) -> str:
    if row.code:
        return "refused"
    return "out of memory" if row.ran_out_of_memory else "scored"


def print_validation(result: ValidationResult, console: Console) -> None:
    """Print the errors over all, by source and by accelerator, and what was refused."""
    what = "time of a step" if result.kind == "throughput" else "memory of a device"
    console.print(
        Text(
            f"{result.name}: {plural(len(result.rows), 'row')} about the {what}, "
            f"{len(result.scored):,} predicted and compared, "
            f"{len(result.refused):,} refused"
        )
    )
    if result.scored:
        console.print()
        console.print(_errors_table(result, "source_key", "Source"))
        console.print()
        console.print(_errors_table(result, "accelerator", "Accelerator"))
        console.print()
        console.print(Text(_ranking_sentence(result)))
        if not math.isnan(result.coverage()):
            console.print(Text(_coverage_sentence(result)))
    if len(result.rows) > len(result.refused):
        _print_judgement(result, console)
    if result.refused:
        console.print()
        console.print(_refusals_table(result.refused))


def _errors_table(result: ValidationResult, column: str, heading: str) -> Table:
    errors = result.errors_by(column)
    rankings = result.ranking_by(column)
    is_time = result.kind == "throughput"
    numbers = _NUMBERS if is_time else _NUMBERS[:-1]
    table = new_table(heading, *numbers, numbers=numbers)
    for key in sorted(errors):
        add_row(table, key, *_error_cells(errors[key], rankings[key], is_time=is_time))
    if len(errors) > 1:
        cells = _error_cells(result.errors(), result.ranking(), is_time=is_time)
        add_row(table, "all", *cells, style="bold")
    return table


def _error_cells(errors: Errors, ranking: Ranking, *, is_time: bool) -> list[str]:
    tau = errors.kendall_tau
    cells = [
        f"{errors.rows:,}",
        percent(errors.mape),
        percent(errors.median_ape),
        percent(errors.p90_ape),
        percent(errors.max_ape),
        signed_percent(errors.bias),
        "-" if math.isnan(tau) else f"{tau:.3f}",
    ]
    return [*cells, percent(ranking.top1_regret)] if is_time else cells


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


def _coverage_sentence(result: ValidationResult) -> str:
    return (
        f"{percent(result.coverage())} of the measured {_VALUES[result.kind]} lie in "
        f"the {100 * SHARE:g} % band of their prediction."
    )


def _print_judgement(result: ValidationResult, console: Console) -> None:
    """Print which sources' runs are judged against what happened, if any are."""
    console.print(Text(judgement_sentence(result.judgement())))
    by_source = result.judgement_by("source_key")
    shown = {key: one for key, one in by_source.items() if one.misjudged}
    if not shown:
        return
    numbers = ("Ran", "Too large", "Of A, A-", "Largest", "Ran out", "Fit")
    table = new_table("Judged by memory", *numbers, numbers=numbers)
    for key in sorted(shown):
        add_row(table, key, *judgement_cells(shown[key]))
    console.print()
    console.print(table)


def judgement_sentence(judgement: Judgement) -> str:
    """Say how many runs are judged against what happened."""
    ran, large = judgement.ran, judgement.ran_but_too_large
    part = f" ({percent(large / ran)})" if ran else ""
    sentence = (
        f"Of {plural(ran, 'run')} that happened, {large:,}{part} are judged not to "
        f"fit in memory; of those of full quality (A, A-), "
        f"{judgement.complete_but_too_large:,} of {judgement.complete:,}."
    )
    if not judgement.out_of_memory:
        return sentence
    return (
        f"{sentence} Of {plural(judgement.out_of_memory, 'run')} that ran out of "
        f"memory, {judgement.out_of_memory_but_fit:,} are judged to fit."
    )


def judgement_cells(judgement: Judgement) -> list[str]:
    """Return the counts of a judgement, for a row of a table."""
    largest = judgement.largest_share
    return [
        f"{judgement.ran:,}",
        f"{judgement.ran_but_too_large:,}",
        f"{judgement.complete_but_too_large:,} of {judgement.complete:,}",
        percent(largest) if math.isfinite(largest) else "-",
        f"{judgement.out_of_memory:,}",
        f"{judgement.out_of_memory_but_fit:,}",
    ]


def _refusals_table(refused: Sequence[RowResult]) -> Table:
    """Return how many rows were refused for which reason, with sources."""
    table = new_table("Refused", "Rows", "Why", "Sources", numbers=("Rows",))
    for code, count in Counter(row.code for row in refused).most_common():
        sources = Counter(row.row.source for row in refused if row.code == code)
        counts = ", ".join(f"{name} {number}" for name, number in sources.most_common())
        add_row(table, code, f"{count:,}", REFUSALS[code], counts)
    return table


NUMBERS = (
    "Rows",
    "Refused",
    "MAPE",
    "Median",
    "90th pct",
    "Worst",
    "Bias",
    "Too large",
)
"""Headings of the columns behind the source."""

_HEADINGS = {"throughput": "Time of a step", "memory": "Memory of a device"}
"""Kind of measurements -> heading of their table."""


def validation_markdown(results: Sequence[ValidationResult]) -> str:
    """Return a table for each result, with a line for every source and one for all.

    Sources stand in the order of the file; those of which no row could be compared
    are in it too, with dashes. ``Too large`` counts runs that happened and are judged
    not to fit in memory.
    """
    return "\n".join("\n".join(_table(result)) + "\n" for result in results)


def _table(result: ValidationResult) -> list[str]:
    errors = result.errors_by("source_key")
    judged = result.judgement_by("source_key")
    refused = Counter(row.row.source for row in result.refused)
    lines = [
        _line(_HEADINGS[result.kind], *NUMBERS),
        _line("---", *("---:" for _ in NUMBERS)),
    ]
    for source in dict.fromkeys(row.row.source for row in result.rows):
        of_source = errors.get(source, errors_of([], []))
        large = judged[source].ran_but_too_large if source in judged else 0
        lines.append(_line(source, *_cells(of_source, refused[source], large)))
    large = result.judgement().ran_but_too_large
    total = _cells(result.errors(), refused.total(), large)
    return [*lines, _line("all", *total)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(errors: Errors, refused: int, large: int) -> list[str]:
    return [
        f"{errors.rows:,}",
        f"{refused:,}",
        percent(errors.mape),
        percent(errors.median_ape),
        percent(errors.p90_ape),
        percent(errors.max_ape),
        signed_percent(errors.bias),
        f"{large:,}",
    ]
