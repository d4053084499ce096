"""Folders of results read again: what they hold, as a page to look at."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.commands.calls import ProgressTarget, calling
from nestsim.commands.task import FileOutput, Reply, Task, known
from nestsim.document.folder import MANIFEST, PAGE, replace_file, writer_of
from nestsim.document.html import is_page, page_html
from nestsim.document.parts import Document
from nestsim.document.terminal import print_document
from nestsim.features.run.diff import (
    compare_reports,
    diff_document,
    diff_json,
    read_report,
)
from nestsim.features.run.document import launch_section, run_document
from nestsim.features.run.record import reported_candidate
from nestsim.features.run.stored import stored_run
from nestsim.launch.command import launch_snippets
from nestsim.registry import COMMANDS, Command
from topologies.errors import InputError, naming
from topologies.input_file import Value, decode, parse_json, read_file

if TYPE_CHECKING:
    from rich.console import Console

    from planner.work import Progress

_EXPECTED = "a folder of results that nestsim wrote"

_LONGEST = 1 << 28
"""No file of a folder of results is longer [byte]."""


@dataclass(frozen=True, kw_only=True)
class ReportPage:
    """A page about a folder of results."""

    page: Document
    """What it shows."""

    notices: tuple[str, ...] = ()
    """What users should know beside the page, one sentence each."""

    @property
    def succeeded(self) -> bool:
        """Always: there is a page."""
        return True

    def printed_dict(self) -> dict[str, object]:
        """Return the page, for programs."""
        return {"html": self.to_html()}

    def print_to(self, console: "Console", *, verbose: bool = False) -> None:
        """Print what the page says."""
        print_document(self.page, console, verbose=verbose)

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
    stored = stored_document(place)
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
        replayed = stored_run(
            place, named, progress=call.progress, trust_code=trust_code
        )
        best = reported_candidate(replayed.result)
        page = run_document(replayed.result, rows=replayed.rows)
        if best is not None:
            snippets = launch_snippets(replayed.scenario, best.priced.plan)
            page = page.with_section(launch_section(snippets))
    return ReportPage(page=page, notices=tuple(call.notices))


def report_task(
    folder: Path, output: Path | None, scenario: Path | None, trust_code: bool
) -> Task:
    """Return the task of writing a page about a folder."""

    def call(progress: "Progress | None") -> ReportPage:
        return report_page(
            folder, scenario=scenario, trust_code=trust_code, progress=progress
        )

    return Task(
        call=call,
        inputs=[] if scenario is None else [scenario],
        file=FileOutput(
            path=folder / PAGE if output is None else output,
            is_ours=is_page,
            title="The page is",
            writer=lambda page: writer_of(page.to_html()),
            is_added=output is None,
        ),
        prints=False,
    )


def stored_document(folder: Path) -> Document | None:
    """Return what a folder of results says; None if they may be a run's.

    Nothing is computed anew: the folder's own file holds all that the document says.
    Its hash in the manifest says that it is the one that was written.

    Raises
    ------
    InputError
        If the folder has no manifest, or its results are not as they were written.
    """
    manifest = folder / MANIFEST
    with naming(manifest):
        hashes = Value(_parsed(_content(manifest))).get("files", {}).table()
    for command in COMMANDS:
        if command.stored is not None and command.stored.marker in hashes:
            return _checked(command, folder, hashes)
    return None


def _checked(command: Command, folder: Path, hashes: Mapping[str, object]) -> Document:
    """Return what a file says, which must be the one that was written."""
    assert command.stored is not None
    file = folder / command.stored.record
    with naming(file):
        content = _content(file)
    if hashlib.sha256(content).hexdigest() != hashes.get(command.stored.record):
        raise InputError(
            "is not as it was written",
            where=str(file),
            expected=f"the file whose hash {MANIFEST} has",
            hint="run the command again",
        )
    try:
        document: Document = command.function(command.stored.document)(_parsed(content))
        return document
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(
            "was written by another version of nestsim",
            where=str(file),
            got=f"{type(error).__name__}: {error}",
            expected="results of this version",
            hint="run the command again",
        ) from None


def _content(file: Path) -> bytes:
    return read_file(file, expected=_EXPECTED, most_bytes=_LONGEST)


def _parsed(content: bytes) -> Any:
    return parse_json(decode(content), expected=_EXPECTED)


def diff_task(before: Path, after: Path) -> Task:
    """Return the task of comparing two results."""
    changes = compare_reports(read_report(before), read_report(after))
    names = str(before), str(after)
    return known(
        Reply(
            record=partial(diff_json, changes),
            document=partial(diff_document, changes, names),
            succeeded=changes.is_empty,
        )
    )
