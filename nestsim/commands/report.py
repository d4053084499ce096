"""What every call returns: something to look at, compute with and keep."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from nestsim.document.canvas import drawn_figures
from nestsim.document.drawing import PAGES
from nestsim.document.dumps import csv_of, dump_json, frame_of
from nestsim.document.folder import (
    PAGE,
    REPORT,
    ResultsFolder,
    Writer,
    claimed_folder,
    json_writer,
    replace_file,
    writer_of,
)
from nestsim.document.html import write_page
from nestsim.document.markdown import markdown
from nestsim.document.parts import Document
from nestsim.document.sheet import draw_document, has_picture
from nestsim.document.terminal import plain_text, print_document
from nestsim.running.progress import fact_text, html_of, html_table, shown_progress
from nestsim.scenario.errors import nearest, one_of
from nestsim.scenario.load import Scenario
from planner.work import Progress
from topologies.errors import MOST, InputError, import_extra

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import Console

PICTURE, HTML = ".png", ".html"
"""How the names of figures and pages in a folder of results end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a result is written as."""

    record: Mapping[str, Any]
    """Everything under stable keys, in SI units."""

    rows: Sequence[Mapping[str, Any]] = ()
    """One row for each thing that was found, in SI units."""

    document: Callable[[], Document] | None = None
    """What makes the document that text, pictures and page render; None without."""

    files: Mapping[str, str | bytes | Writer] = field(default_factory=dict)
    """Content of each file of the folder of results, or what writes it, by name."""

    pictures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Picture in the folder -> names of the figures of the document that it shows; none
    for all."""

    page: Callable[[], Document] | None = None
    """What makes the page, where it shows more than the document."""

    has_page: bool = True
    """Whether the folder may hold the document as a page."""

    beside_page: Mapping[str, Writer] = field(default_factory=dict)
    """What writes each file that the folder holds beside a page, and only then."""

    has_report: bool = False
    """Whether the folder holds the document as a text, with its details."""

    manifest: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says beside the hash of each file."""

    unhashed: tuple[str, ...] = ()
    """Files that differ from run to run."""

    def writers(self) -> "dict[str, Writer]":
        """Return what writes each file of the folder, by its name."""
        writers: dict[str, Writer] = {
            name: writer_of(content) if isinstance(content, str | bytes) else content
            for name, content in self.files.items()
        }
        if self.document is not None:
            document = self.document() if self.pictures else None
            for name, figures in self.pictures.items():
                assert document is not None
                writers |= _picture(document, name, figures)
            if self.has_report:
                writers[REPORT] = self._write_report
            if self.has_page:
                writers |= self.beside_page
                writers[PAGE] = self.write_page
        return writers

    def _write_report(self, path: Path) -> None:
        assert self.document is not None
        document = self.document()
        text = plain_text(
            lambda console: print_document(document, console, verbose=True)
        )
        path.write_text(text, encoding="utf-8", newline="")

    def write_page(self, path: Path) -> None:
        """Write the document as a page."""
        make = self.page or self.document
        assert make is not None
        write_page(make(), path)


def _picture(
    document: Document, name: str, figures: Sequence[str]
) -> "dict[str, Writer]":
    """Return what draws a picture, if the document has one of its figures."""
    shown = document.with_figures(*figures)
    if not has_picture(shown):
        return {}
    return {f"{name}{PICTURE}": lambda path: draw_document(shown, path)}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Report(ABC):
    """What a job found; ``print(report)`` says what its command says."""

    notices: tuple[str, ...] = ()
    """What users should know beside the result, one sentence each."""

    @property
    def succeeded(self) -> bool:
        """Whether the command would end with exit status 0."""
        return True

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the few things that matter most, by name, in SI units."""

    @abstractmethod
    def parts(self) -> Parts:
        """Return what it is written as."""

    @cached_property
    def written(self) -> Parts:
        """What it is written as, made once: nothing in it may be changed."""
        parts = self.parts()
        document = parts.document
        return parts if document is None else replace(parts, document=cache(document))

    def __getstate__(self) -> dict[str, Any]:
        """Return what other processes get: what was found alone."""
        return {known.name: getattr(self, known.name) for known in fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Return everything under stable keys, in SI units."""
        return deepcopy(dict(self.written.record))

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row for each thing that was found, in SI units."""
        return frame_of(self.written.rows)

    @abstractmethod
    def print_to(self, console: "Console", *, verbose: bool = False) -> None:
        """Print what the command prints; with ``verbose`` its details, too."""

    def printed_dict(self) -> Mapping[str, Any]:
        """Return what the command prints with ``--json``."""
        return self.written.record

    def to_json(self) -> str:
        """Return `to_dict` as text: the bytes of the command's file."""
        return dump_json(self.written.record)

    def __str__(self) -> str:
        return plain_text(self.print_to).rstrip("\n")

    def __repr__(self) -> str:
        facts = (f"{name}={fact_text(fact)}" for name, fact in self.facts().items())
        text = f"{type(self).__name__}({', '.join(facts)})"
        return text if len(text) <= MOST else f"{text[:MOST]}..)"

    def _repr_html_(self) -> str:
        """Show facts and rows in a notebook."""
        return html_of(type(self).__name__, self.facts()) + html_table(self.to_frame())


class FolderReport(Report):
    """What a job found that has figures and a folder of results."""

    @abstractmethod
    def inputs(self) -> Sequence[Path]:
        """Return the files that were read: their folders are not written into."""

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures that there are of this result."""
        return tuple(self._figures())

    def figure(self, name: str) -> "Figure":
        """Return a figure, the one that the folder of results has.

        Parameters
        ----------
        name
            One of `figures`, such as ``"timeline"``.

        Raises
        ------
        InputError
            If there is none of that name.
        """
        known = self._figures()
        if name not in known:
            raise InputError(
                "there is no such figure of this result",
                where="figure",
                got=name,
                expected=one_of(list(known)) if known else "none: nothing is drawn",
                hint=nearest(name, list(known)),
            )
        with drawn_figures() as drawn:
            known[name](Path(f"{name}{PICTURE}"))
        (figure,) = drawn
        return figure

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        figures: bool = True,
        html: bool = False,
        force: bool = False,
        progress: Progress | bool | None = None,
    ) -> Path:
        """Write the folder of results that the command's ``--output`` writes.

        All of it or nothing; earlier results in the folder are replaced.

        Parameters
        ----------
        folder
            New, empty, or with earlier results.
        figures
            Draw the figures, too: they take most of a small job's time.
        html
            Write everything into one HTML file, too: ``page.html``.
        force
            Write there even if nestsim did not make what is there: files of the names
            that it writes are replaced, all others stay.
        progress
            As `nestsim.run` takes it.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        InputError
            If the folder cannot be written into, or holds files of other origin.
        """
        if html:
            import_extra(*PAGES, where="html")
        place, inputs = Path(folder), [file for file in self.inputs() if file.exists()]
        names = list(self.written.writers())
        with (
            shown_progress(progress) as shown,
            claimed_folder(place, names, inputs=inputs, force=force) as claimed,
        ):
            self.write_to(claimed, figures=figures, html=html, progress=shown)
        return place

    def write_to(
        self,
        folder: ResultsFolder,
        *,
        figures: bool = True,
        html: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write into a folder that is claimed; what is not wanted goes, if it is there.

        Parameters
        ----------
        folder
            As `nestsim.document.folder.claimed_folder` gives it.
        figures
            Draw the figures, too.
        html
            Write the page, too.
        progress
            Told about every file.
        """
        parts = self.written
        wanted = {PICTURE: figures, HTML: html}
        writers = {
            name: write
            for name, write in parts.writers().items()
            if wanted.get(PurePosixPath(name).suffix, True)
            and (html or name not in parts.beside_page)
        }
        folder.write(
            writers, parts.manifest, unhashed=parts.unhashed, progress=progress
        )

    def _figures(self) -> "dict[str, Writer]":
        """Return what draws each figure, by name."""
        writers = self.written.writers().items()
        return {
            name.removesuffix(PICTURE).removeprefix("figures/"): draw
            for name, draw in writers
            if name.endswith(PICTURE)
        }


class DocumentReport(Report):
    """What a job found that says itself in a document."""

    def document(self) -> Document:
        """Return what text, pictures and page say."""
        document = self.written.document
        assert document is not None
        return document()

    def print_to(self, console: "Console", *, verbose: bool = False) -> None:
        """Print what the document says; with ``verbose`` its details, too."""
        print_document(self.document(), console, verbose=verbose)

    def to_markdown(self) -> str:
        """Return what the document says in Markdown, e.g. for the summary of a CI."""
        return markdown(self.document())


class PagedReport(DocumentReport, FolderReport):
    """What a job found that can be looked at on one page."""

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Write everything to look at into one HTML file, which needs no network.

        Raises
        ------
        InputError
            If it cannot be written.
        """
        replace_file(Path(path), self.written.write_page)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ScenarioReport(PagedReport):
    """What a job of one scenario found."""

    scenario: Scenario
    """What was asked."""

    result: Any
    """Everything that was found."""

    def inputs(self) -> Sequence[Path]:
        """Return the scenario's files."""
        return self.scenario.files()

    def manifest(self) -> dict[str, Any]:
        """Return the scenario's name and its user's module, for the manifest."""
        return {"scenario": self.scenario.name, **self.scenario.module_facts()}

    def parts_of(
        self,
        name: str,
        record: Mapping[str, object],
        rows: Sequence[Mapping[str, object]],
        document: Callable[[Mapping[str, object]], Document],
    ) -> Parts:
        """Return a record, a table of rows, the figures and a page.

        Files have the command's name; without rows there is the record alone.
        """
        files: dict[str, str | bytes | Writer] = {f"{name}.json": json_writer(record)}
        if rows:
            files[f"{name}.csv"] = csv_of(rows)
        return Parts(
            record=record,
            rows=rows,
            document=partial(document, record),
            files=files,
            pictures={name: ()} if rows else {},
            has_page=bool(rows),
            manifest=self.manifest(),
        )
