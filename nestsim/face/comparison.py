"""Planners compared on scenarios."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.dumps import frame_of, plain_values
from nestsim.document.folder import ResultsFolder
from nestsim.document.parts import Document
from nestsim.document.terminal import print_document
from nestsim.face.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    scenario_from,
    store_folder,
)
from nestsim.face.report import Contents, PagedReport
from nestsim.features.compare.document import comparison_document
from nestsim.features.compare.job import (
    CompareSettings,
    checked_settings,
    compare_job,
    store_facts,
)
from nestsim.features.compare.record import (
    STORE,
    TIMES,
    comparison_facts,
    comparison_json,
    comparison_rows,
    comparison_writers,
)
from nestsim.features.compare.results import Comparison
from nestsim.running.store import Store, remove_store
from nestsim.scenario.load import Scenario
from planner.work import Progress

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CompareReport(PagedReport):
    """What each planner found for each scenario, in one evaluator and replay."""

    scenarios: tuple[Scenario, ...]
    """What was asked."""

    result: Comparison
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether the replay confirms some planner's plan for every scenario."""
        return all(group.is_confirmed for group in self.result.groups)

    def facts(self) -> dict[str, Any]:
        """Return the fastest planner for each scenario."""
        best = {one.scenario: one.fastest for one in self.result.groups}
        return {
            "planners": self.result.planners,
            "base": self.result.base,
            **{
                f"fastest for {name}": entry.planner if entry else "none"
                for name, entry in best.items()
            },
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything that stands in ``comparison.json``."""
        return comparison_json(self.result, with_times=False)

    def printed_dict(self) -> dict[str, Any]:
        """Return the same with how long the searches took."""
        return comparison_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each scenario and planner."""
        return frame_of(plain_values(comparison_rows(self.result)))

    def print_to(self, console: "Console", *, verbose: bool = False) -> None:
        """Print what the document says, and how long searches took."""
        print_document(
            comparison_document(self.printed_dict()), console, verbose=verbose
        )

    def contents(self) -> Contents:
        """Return copies of the scenarios, tables, the figure and the page."""
        return Contents(
            writers={
                **comparison_writers(self.result, self.scenarios),
                **self.page_writers(),
            },
            manifest=comparison_facts(self.scenarios),
            unhashed=(TIMES,),
        )

    def document(self) -> Document:
        """Return what text, picture and page say."""
        return comparison_document(self.to_dict())

    def inputs(self) -> Sequence[Path]:
        """Return the scenarios' files."""
        return [file for one in self.scenarios for file in one.files()]

    def write_to(
        self,
        folder: ResultsFolder,
        *,
        figures: bool = True,
        html: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write into a folder that is claimed; what a killed call left there goes."""
        super().write_to(folder, figures=figures, html=html, progress=progress)
        remove_store(folder.path / STORE)


def compare(  # noqa: PLR0913 - one for each thing that can be asked
    scenarios: ScenarioSource | Sequence[ScenarioSource],
    *,
    planners: Sequence[str] = (),
    base: str = "",
    time_limit: float | None = None,
    space: str = "",
    workers: int | None = 1,
    keep_in: str | os.PathLike[str] | None = None,
    restart: bool = False,
    progress: ProgressTarget = None,
) -> CompareReport:
    """Compare planners: one space, one evaluator, and the replay as the judge.

    Parameters
    ----------
    scenarios
        One or several, each as `nestsim.plan` takes it.
    planners
        Names: nest, manual, mcmc, phaze, alpa, mist, exhaustive, fixed. Empty for all
        but exhaustive, fixed where every scenario has a table [plan].
    base
        The planner whose throughput is 1; empty for nest, or the first one without it.
    time_limit
        Each search ends this long after its first plan, with its best so far; None
        for the scenario's own [s].
    space
        What all planners are held to: "launchable" plans, or "free" for any; empty for
        what each scenario's ``search.launchable`` says.
    workers
        Processes. With more than one, searches slow each other down; None for one for
        each core.
    keep_in
        Folder in which finished pairs are kept, so that a call that was interrupted
        goes on there; None for memory alone.
    restart
        Forget what is kept there.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If a scenario is wrong, or a planner unknown. What stops a single planner is
        part of the result.
    """
    if isinstance(scenarios, Scenario | str | os.PathLike | Mapping):
        scenarios = (scenarios,)
    loaded = tuple(scenario_from(one) for one in scenarios)
    settings = checked_settings(
        CompareSettings(
            planners=tuple(planners), base=base, time_limit=time_limit, space=space
        ),
        loaded,
    )
    folder = store_folder(keep_in)
    notes = [note for one in loaded for note in one.notes]
    with ExitStack() as stack, calling(progress, notes=notes) as call:
        store = None
        if folder is not None:
            facts = store_facts(loaded, settings)
            opened = Store(folder / STORE, facts, restart=restart)
            store = stack.enter_context(opened)
        result = compare_job(
            loaded, settings, store=store, workers=workers, progress=call.progress
        )
    return CompareReport(scenarios=loaded, result=result, notices=tuple(call.notices))
