"""Validation for machines: JSON, and a line of CSV for every row."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from nestsim.document.dumps import csv_of, plain_record
from nestsim.evaluate.uncertainty import SHARE
from nestsim.features.validation.results import (
    Errors,
    RowResult,
    ValidationResult,
    errors_of,
    ranking_of,
)

UNITS: Mapping[str, str] = MappingProxyType(
    {"throughput": "s", "memory": "byte", "collectives": "s"}
)
"""Kind of measurements -> unit of their values."""


def validation_json(result: ValidationResult) -> dict[str, object]:
    """Return the result as plain values with stable keys, errors as fractions.

    What is about time stands at the top, what is about memory under ``"memory"``; a
    file is about one of them, and the other has no rows. What is about collectives
    stands under ``"collectives"``: ``"median_of_curves"`` is the median over curves of
    each one's median error; other errors pool rows.
    """
    parts: dict[str, object]
    if result.kind == "collectives":
        parts = {"collectives": _collectives(result)}
    else:
        empty = replace(result, rows=())
        of_memory = result if result.kind == "memory" else empty
        judged = of_memory.judgement()
        gone = {
            "rows": judged.out_of_memory,
            "predicted_to_fit": judged.out_of_memory_but_fit,
        }
        parts = {
            **_summary(result if result.kind == "throughput" else empty),
            "memory": {**_summary(of_memory), "out_of_memory": gone},
        }
    return plain_record({"measurements": result.name, **parts})


def _summary(result: ValidationResult) -> dict[str, object]:
    errors = result.errors_by("source_key")
    rankings = result.ranking_by("source_key")
    judged = result.judgement_by("source_key")
    refused = Counter(row.row.source for row in result.refused)
    by_source = {
        source: {
            **_scored(errors.get(source, errors_of([], []))),
            "refused": refused[source],
            "ranking": rankings.get(source, ranking_of([]))._asdict(),
            "judgement": judged[source]._asdict() if source in judged else None,
        }
        for source in dict.fromkeys(row.row.source for row in result.rows)
    }
    return {
        **_counts(result),
        **_without_count(result.errors()),
        "ranking": result.ranking()._asdict(),
        "band": {"share": SHARE, "coverage": result.coverage()},
        "judgement": result.judgement()._asdict(),
        "by_source": by_source,
        "by_accelerator": _each_scored(result.errors_by("accelerator")),
        "refusals": _refusals(result),
    }


def _collectives(result: ValidationResult) -> dict[str, object]:
    curves = [
        {**curve._asdict(), **_scored(errors)}
        for curve, errors in result.errors_by_curve().items()
    ]
    return {
        **_counts(result),
        "median_of_curves": result.median_of_curves(),
        **_without_count(result.errors()),
        "by_accelerator": _each_scored(result.errors_by_family()),
        "by_source": _each_scored(result.errors_by("source_key")),
        "curves": curves,
        "refusals": _refusals(result),
    }


def _counts(result: ValidationResult) -> dict[str, int]:
    return {
        "rows": len(result.rows),
        "scored": len(result.scored),
        "refused": len(result.refused),
    }


def _refusals(result: ValidationResult) -> dict[str, int]:
    return dict(Counter(row.code for row in result.refused).most_common())


def _each_scored(errors: Mapping[str, Errors]) -> dict[str, dict[str, object]]:
    return {name: _scored(errors_of_group) for name, errors_of_group in errors.items()}


def _scored(errors: Errors) -> dict[str, object]:
    return {"scored": errors.rows, **_without_count(errors)}


def _without_count(errors: Errors) -> dict[str, object]:
    return {key: value for key, value in errors._asdict().items() if key != "rows"}


def predictions_csv(result: ValidationResult) -> str:
    """Return a table with a line for every row of the file, in its order.

    ``error`` is relative, with its sign; numbers have all their digits.
    """
    columns = _columns(result.kind)
    rows = [[write(row) for write in columns.values()] for row in result.rows]
    return csv_of(rows, tuple(columns))


def _columns(kind: str) -> dict[str, Callable[[RowResult], object]]:
    """Return the columns of a kind of measurements, and what writes them."""
    is_collective = kind == "collectives"
    job: dict[str, Callable[[RowResult], object]] = {
        "planned": lambda row: row.planned,
        "fits": lambda row: "" if row.code else str(row.fits).lower(),
        "fits_in_ten": lambda row: "" if row.code else row.need.fits_in_ten,
        "peak_memory_share": lambda row: row.memory_share,
    }
    ends: dict[str, Callable[[RowResult], object]] = {
        "predicted_low": lambda row: row.ends.low,
        "predicted_high": lambda row: row.ends.high,
    }
    return {
        "row_id": lambda row: row.row.row_id,
        "source_key": lambda row: row.row.source,
        "status": lambda row: row.status,
        "measured": lambda row: row.measured,
        "predicted": lambda row: row.predicted,
        **({} if is_collective else ends),
        "unit": lambda _: UNITS[kind],
        "error": lambda row: row.error,
        **({} if is_collective else job),
        "basis": lambda row: row.basis,
        **(
            {"transport": _transport}
            if is_collective
            else {"preset": lambda row: row.preset}
        ),
        "code": lambda row: row.code,
        "reason": lambda row: row.reason,
        "assumed": lambda row: "; ".join(row.assumed),
    }


def _transport(row: RowResult) -> str:
    case = row.collective
    return "" if case is None else (case.across or case.inside).name
