"""``nestsim collectives``: what it is called with, and what it returns."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from nestsim.commands.calls import ProgressTarget, ScenarioSource, reported
from nestsim.commands.report import Parts, ScenarioReport
from nestsim.document.wording import plan_label
from nestsim.features.collectives.document import (
    collectives_csv,
    collectives_document,
    collectives_json,
)
from nestsim.features.collectives.job import (
    CollectivesResult,
    collectives_job,
    sizes_between,
)
from topologies.errors import InputError
from topologies.units import parse_quantity

SIZES = tuple(1024 * 4**power for power in range(11))
"""From 1 KiB to 1 GiB [byte]."""

LARGEST = 2**50
"""Of a message: no device holds that much [byte]."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CollectivesReport(ScenarioReport):
    """Times and bandwidths of what the groups of a plan do."""

    result: CollectivesResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether a plan fits."""
        return self.result.priced is not None

    def facts(self) -> dict[str, object]:
        """Return the plan and the kinds of groups."""
        result = self.result
        facts: dict[str, object] = {"scenario": result.scenario_name}
        if result.priced is None:
            return {**facts, "reason": result.shortfall}
        traffic = [table.traffic for table in result.tables]
        kinds = tuple(f"{group.kind} {group.operation}" for group in traffic)
        return {**facts, "plan": plan_label(result.priced.plan), "groups": kinds}

    def to_frame(self) -> "pd.DataFrame":
        """Return the table of ``collectives.csv``."""
        return pd.read_csv(io.StringIO(collectives_csv(self.result.tables)))

    def parts(self) -> Parts:
        """Return record, table and figure; no files if no device sends anything."""
        tables = self.result.tables
        return Parts(
            record=collectives_json(self.result),
            document=partial(collectives_document, self.result),
            files={"collectives.csv": collectives_csv(tables)} if tables else {},
            pictures={"collectives": ()} if tables else {},
            has_page=False,
            manifest=self.manifest(),
        )


def collectives(
    scenario: ScenarioSource,
    sizes: Sequence[int] = SIZES,
    *,
    progress: ProgressTarget = None,
) -> CollectivesReport:
    """Measure the collectives of a plan: size, time, algorithm and bus bandwidth.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it; the plan is the one in its table [plan], or the
        best one found.
    sizes
        Of messages [byte].
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together.
    """
    return reported(
        CollectivesReport, collectives_job, scenario, progress, sizes=tuple(sizes)
    )


def arguments(min_bytes: int, max_bytes: int, step_factor: int) -> dict[str, object]:
    """Return the sizes that are asked for [byte]."""
    if max_bytes < min_bytes:
        raise InputError(
            "is below the smallest size",
            where="--max-bytes",
            got=max_bytes,
            expected=f"at least {min_bytes}",
        )
    if step_factor < 2:
        raise InputError(
            "sizes must grow",
            where="--step-factor",
            got=step_factor,
            expected="a whole number of at least 2, e.g. 2",
        )
    return {"sizes": sizes_between(min_bytes, max_bytes, step_factor)}


def size(text: str) -> int:
    """Read a size: a number of bytes, or a quantity with a unit."""
    expected = f'whole bytes from 1 to {LARGEST}, e.g. "8" or "1 KiB"'
    plain = text.strip()
    is_plain = plain.isascii() and plain.isdigit()
    try:
        size = float(plain) if is_plain else parse_quantity(text, "size")
    except InputError as error:
        raise InputError(error.problem, got=text, expected=expected) from None
    if not (1 <= size <= LARGEST and size == int(size)):
        raise InputError("not a size", got=text, expected=expected)
    return int(size)
