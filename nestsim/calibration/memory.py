"""How far off predicted sizes of memory are: bands by framework.

What memory holds is counted, and few constants are fitted by hand to some of the same
rows; half widths are quantiles of all rows' errors, and what they cover is counted in
folds of configurations, each held against the widths of the others.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console

from nestsim.calibration.bands import (
    COUNTED,
    FEWEST,
    LEANING,
    Coverage,
    weighted_quantile,
)
from nestsim.calibration.folds import NUM_FOLDS
from nestsim.report.tables import add_row, new_table
from nestsim.report.wording import percent
from nestsim.validation.columns import Row
from nestsim.validation.memory_rows import score_memory
from nestsim.validation.metrics import grouped
from nestsim.validation.predict import Predictor
from nestsim.validation.refusals import RowRefusedError


class Miss(NamedTuple):
    """The error of one predicted size."""

    software: str
    """Name of the preset."""

    source: str
    size: float
    """``|log(predicted / measured)|``"""

    fold: int


def read_misses(rows: Iterable[Row], predictor: Predictor) -> list[Miss]:
    """Return the errors of all rows that can be predicted and measured a size."""
    found = []
    for row in rows:
        try:
            score = score_memory(predictor, row)
        except RowRefusedError:
            continue
        if math.isnan(score.measured.value):
            continue
        size = abs(math.log(score.predicted / score.measured.value))
        # Rows that one prediction answers are one configuration.
        key = f"{row.source} {score.predicted!r}".encode()
        fold = int.from_bytes(hashlib.sha256(key).digest()[:4], "big") % NUM_FOLDS
        found.append(Miss(score.case.preset, row.source, size, fold))
    return found


def memory_widths(misses: Sequence[Miss]) -> dict[str, float]:
    """Return preset, or ``"all"``, -> half width of the band, in the logarithm.

    A source of ``n`` rows counts as ``sqrt(n)`` where sources are taken together; a
    preset of few rows leans on all.
    """
    counts = {key: len(own) for key, own in _by_source(misses).items()}
    weights = np.array([1.0 / math.sqrt(counts[one.source]) for one in misses])
    sizes = np.array([one.size for one in misses])
    widths = {"all": weighted_quantile(sizes, weights)}
    for preset, own in sorted(grouped((one.software, one) for one in misses).items()):
        if len(own) < FEWEST:
            continue
        alike = np.array([one.size for one in own])
        found = weighted_quantile(alike, np.ones(len(own)))
        logs = len(own) * math.log(found) + LEANING * math.log(widths["all"])
        widths[preset] = math.exp(logs / (len(own) + LEANING))
    return widths


def memory_coverage(misses: Sequence[Miss]) -> dict[str, Coverage]:
    """Return the coverage of all, and of each preset with many rows."""
    outcomes: dict[str, list[bool]] = {}
    for fold in sorted({one.fold for one in misses}):
        others = [one for one in misses if one.fold != fold]
        if not others:
            continue
        widths = memory_widths(others)
        for one in misses:
            if one.fold == fold:
                inside = one.size <= widths.get(one.software, widths["all"])
                for name in ("all", one.software):
                    outcomes.setdefault(name, []).append(inside)
    return {
        name: Coverage(sum(inside), len(inside))
        for name, inside in sorted(outcomes.items())
        if name == "all" or len(inside) >= COUNTED
    }


def print_memory(misses: Sequence[Miss], console: Console) -> None:
    """Print how wide bands of memory are, and what they cover."""
    numbers = ("Rows", "In the band", "Width")
    table = new_table("Memory of", *numbers, numbers=numbers)
    widths = memory_widths(misses)
    for name, one in memory_coverage(misses).items():
        shown = percent(math.expm1(widths[name]))
        add_row(table, name, f"{one.rows:,}", percent(one.share), shown)
    console.print(table)


def _by_source(misses: Sequence[Miss]) -> dict[str, list[Miss]]:
    return grouped((one.source, one) for one in misses)
