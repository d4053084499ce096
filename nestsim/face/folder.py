"""Folders of results: what they hold, as a page to look at."""

import os
from dataclasses import dataclass
from pathlib import Path

from nestsim.face.calls import ProgressTarget, calling
from nestsim.face.launch import launch_snippets
from nestsim.page.document import page_html
from nestsim.page.kinds.stored import stored_page
from nestsim.page.parts import Page
from nestsim.page.run import result_page
from nestsim.page.stored import stored_run
from nestsim.report.destination import replace_file, writer_of
from nestsim.report.json import reported_candidate
from topologies.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ReportPage:
    """A page about a folder of results."""

    page: Page
    """What it shows."""

    notices: tuple[str, ...] = ()
    """What users should know beside the page, one sentence each."""

    def to_html(self) -> str:
        """Return the page as HTML: the bytes of the command's file."""
        return page_html(self.page)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into a file, whole or not at all.

        Raises
        ------
        InputError
            If it cannot be written.
        """
        file = Path(path)
        replace_file(file, writer_of(self.to_html()))
        return file


def report_page(
    folder: str | os.PathLike[str],
    *,
    scenario: str | os.PathLike[str] | None = None,
    trust_code: bool = False,
    progress: ProgressTarget = None,
) -> ReportPage:
    """Return a page about a folder of results; the plan of a run is replayed anew.

    Parameters
    ----------
    folder
        As ``nestsim run``, ``simulate``, ``compare``, ``stress``, ``jitter``,
        ``goodput``, ``jobs`` or ``sweep`` writes it.
    scenario
        The scenario's file where it was, if it names files beside it; None for its
        copy in the folder.
    trust_code
        Whether the Python file that the copy in the folder names as its ``module`` may
        be run: do so where you know what is in it. One that ``scenario`` names is run.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the folder holds no such results, they were changed, or the replay differs
        from them.
    """
    place = Path(folder)
    stored = stored_page(place)
    if stored is not None:
        if scenario is not None:
            raise InputError(
                "is for folders of nestsim run and nestsim simulate",
                where="--scenario",
                got=str(scenario),
                expected="left out",
            )
        return ReportPage(page=stored)
    with calling(progress) as call:
        named = None if scenario is None else Path(scenario)
        found = stored_run(place, named, progress=call.progress, trust_code=trust_code)
        best = reported_candidate(found.result)
        snippets = (
            () if best is None else launch_snippets(found.scenario, best.priced.plan)
        )
    page = result_page(found.result, found.rows, snippets)
    return ReportPage(page=page, notices=tuple(call.notices))
