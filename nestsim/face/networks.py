"""Networks compared by one job that is taken to each."""

import os
from collections.abc import Sequence
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
from nestsim.features.compare.networks_document import networks_document
from nestsim.features.compare.networks_job import (
    NetworkFile,
    checked_planners,
    networks_facts,
    networks_job,
    read_network_files,
)
from nestsim.features.compare.networks_record import (
    are_equal,
    leaders_label,
    networks_json,
    networks_manifest,
    networks_rows,
    networks_writers,
)
from nestsim.features.compare.networks_results import Equal, NetworkComparison
from nestsim.features.compare.record import STORE, TIMES
from nestsim.running.store import Store, remove_store
from nestsim.scenario.load import Scenario
from planner.work import Progress

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworksReport(PagedReport):
    """What one job gets on each of several networks."""

    scenario: Scenario
    """The job."""

    files: tuple[NetworkFile, ...]
    """The networks, as they were read."""

    result: NetworkComparison
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether a plan is confirmed on each network, and they are equal if asked."""
        asked = self.result.asked
        return all(one.is_confirmed for one in self.result.networks) and (
            asked is None or are_equal(self.result, asked)
        )

    def facts(self) -> dict[str, Any]:
        """Return the fastest network, and the speed of each."""
        return {
            "fastest": leaders_label(self.result),
            **{
                f"speed on {one.label}": self.result.speed(one.best.tokens_per_second)
                for one in self.result.networks
            },
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything that stands in ``comparison.json``."""
        return networks_json(self.result, with_times=False)

    def printed_dict(self) -> dict[str, Any]:
        """Return the same with how long the searches took."""
        return networks_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each network and planner."""
        return frame_of(plain_values(networks_rows(self.result)))

    def print_to(self, console: "Console", *, verbose: bool = False) -> None:
        """Print what the document says, and how long searches took."""
        print_document(networks_document(self.printed_dict()), console, verbose=verbose)

    def contents(self) -> Contents:
        """Return copies of what was read, tables, the figure and the page."""
        return Contents(
            writers={
                **networks_writers(self.result, self.scenario, self.files),
                **self.page_writers(),
            },
            manifest=networks_manifest(self.result, self.scenario),
            unhashed=(TIMES,),
        )

    def document(self) -> Document:
        """Return what ``page.html`` shows."""
        return networks_document(self.to_dict())

    def inputs(self) -> Sequence[Path]:
        """Return the files that were read."""
        return [*self.scenario.files(), *(file.path for file in self.files)]

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


def compare_networks(  # noqa: PLR0913 - one for each thing that can be asked
    scenario: ScenarioSource,
    networks: Sequence[str | os.PathLike[str]],
    *,
    planners: Sequence[str] = (),
    equal: Equal | None = None,
    workers: int | None = 1,
    keep_in: str | os.PathLike[str] | None = None,
    restart: bool = False,
    progress: ProgressTarget = None,
) -> NetworksReport:
    """Compare networks: one job on each, and the best plan that each allows.

    Parameters
    ----------
    scenario
        The job, as `nestsim.plan` takes it. Its own network only says how many devices
        there are.
    networks
        Two or more files, each with a table [cluster.network], with the settings of
        that table alone, or with a whole scenario, of which the network is taken. The
        first one's throughput is 1.
    planners
        Names, as `nestsim.compare` takes them. Empty for the scenario's own.
    equal
        ``"ports"`` or ``"cost"``: what has to be equal for `NetworksReport.succeeded`.
    workers
        Processes; None for one for each core.
    keep_in
        Folder in which finished points are kept, so that a call that was interrupted
        goes on there; None for memory alone.
    restart
        Forget what is kept there.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario or a network is wrong, or a network does not join as many
        devices. What stops a single planner is part of the result.
    """
    base = scenario_from(scenario)
    files = read_network_files([Path(one) for one in networks])
    names = checked_planners(planners, base)
    folder = store_folder(keep_in)
    with ExitStack() as stack, calling(progress, notes=base.notes) as call:
        store = None
        if folder is not None:
            facts = networks_facts(base, files, names)
            opened = Store(folder / STORE, facts, restart=restart)
            store = stack.enter_context(opened)
        result = networks_job(
            base,
            files,
            names,
            equal=equal,
            store=store,
            workers=workers,
            progress=call.progress,
        )
    return NetworksReport(
        scenario=base, files=files, result=result, notices=tuple(call.notices)
    )
