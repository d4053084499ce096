"""The collectives of a plan, measured."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.folder import Writer, writer_of
from nestsim.document.parts import Document
from nestsim.document.wording import plan_label
from nestsim.face.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    scenario_from,
)
from nestsim.face.report import Contents, PagedReport
from nestsim.features.collectives.document import collectives_document
from nestsim.features.collectives.job import (
    CollectivesResult,
    collectives_job,
    sizes_between,
)
from nestsim.features.collectives.record import collectives_csv, collectives_json
from nestsim.scenario.load import Scenario

if TYPE_CHECKING:
    import pandas as pd

SIZES = sizes_between(2**10, 2**30, 4)
"""From 1 KiB to 1 GiB [byte]."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CollectivesReport(PagedReport):
    """Times and bandwidths of what the groups of a plan do."""

    scenario: Scenario
    """What was asked."""

    result: CollectivesResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether a plan fits."""
        return self.result.priced is not None

    def facts(self) -> dict[str, Any]:
        """Return the plan and the kinds of groups."""
        found = self.result
        facts: dict[str, Any] = {"scenario": found.scenario_name}
        if found.priced is None:
            return {**facts, "reason": found.shortfall}
        kinds = (f"{one.traffic.kind} {one.traffic.operation}" for one in found.tables)
        return {
            **facts,
            "plan": plan_label(found.priced.plan),
            "groups": tuple(kinds),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything that the command prints with ``--json``."""
        return collectives_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return the table of ``collectives.csv``."""
        import pandas as pd

        return pd.read_csv(io.StringIO(collectives_csv(self.result.tables)))

    def document(self) -> Document:
        """Return what text, picture and page say."""
        return collectives_document(self.result)

    def contents(self) -> Contents:
        """Return table and figure; nothing if no device sends anything."""
        result = self.result
        writers: dict[str, Writer] = {
            "collectives.csv": writer_of(collectives_csv(result.tables)),
            **self.picture_writers("collectives"),
        }
        return Contents(
            writers=writers if result.tables else {},
            manifest={
                "scenario": result.scenario_name,
                **self.scenario.module_facts(),
            },
        )

    def inputs(self) -> Sequence[Path]:
        """Return the scenario's files."""
        return self.scenario.files()


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
    loaded = scenario_from(scenario)
    with calling(progress, loaded.path, loaded.notes) as call:
        result = collectives_job(loaded, tuple(sizes), progress=call.progress)
    return CollectivesReport(
        scenario=loaded, result=result, notices=tuple(call.notices)
    )
