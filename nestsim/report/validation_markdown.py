"""Validation as Markdown: a table of errors by source, as the README has it."""

from collections import Counter
from collections.abc import Sequence

from nestsim.report.wording import percent, signed_percent
from nestsim.validation.metrics import Errors, errors_of
from nestsim.validation.runner import ValidationResult

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
        own = errors.get(source, errors_of([], []))
        large = judged[source].ran_but_too_large if source in judged else 0
        lines.append(_line(source, *_cells(own, refused[source], large)))
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
