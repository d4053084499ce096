"""What every call of the face returns: something to look at, compute with and keep."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from nestsim.document.canvas import drawn_figures
from nestsim.document.dumps import dump_json
from nestsim.document.folder import (
    PAGE,
    ResultsFolder,
    Writer,
    claimed_folder,
    replace_file,
)
from nestsim.document.html import write_page
from nestsim.document.markdown import markdown
from nestsim.document.parts import Document
from nestsim.document.sheet import draw_document, has_picture
from nestsim.document.terminal import plain_text, print_document
from nestsim.running.progress import fact_text, html_of, html_table, shown_progress
from nestsim.scenario.errors import nearest, one_of
from planner.work import Progress
from topologies.errors import MOST, InputError

if TYPE_CHECKING:
    import os

    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import Console

PICTURE, HTML = ".png", ".html"
"""How the names of figures and pages in a folder of results end."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Report(ABC):
    """What a job found; ``print(report)`` says what its command says."""

    notices: tuple[str, ...] = ()
    """What users should know beside the result, one sentence each."""

    @property
    @abstractmethod
    def succeeded(self) -> bool:
        """Whether the command would end with exit status 0."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the few things that matter most, by name, in SI units."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything under stable keys, in SI units."""

    @abstractmethod
    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row for each thing that was found, in SI units."""

    @abstractmethod
    def print_to(self, console: "Console") -> None:
        """Print what the command prints."""

    def printed_dict(self) -> dict[str, Any]:
        """Return what the command prints with ``--json``."""
        return self.to_dict()

    def to_json(self) -> str:
        """Return `to_dict` as text: the bytes of the command's file."""
        return dump_json(self.to_dict())

    def __str__(self) -> str:
        return plain_text(self.print_to).rstrip("\n")

    def __repr__(self) -> str:
        facts = (f"{name}={fact_text(fact)}" for name, fact in self.facts().items())
        text = f"{type(self).__name__}({', '.join(facts)})"
        return text if len(text) <= MOST else f"{text[:MOST]}..)"

    def _repr_html_(self) -> str:
        """Show facts and rows in a notebook."""
        return html_of(type(self).__name__, self.facts()) + html_table(self.to_frame())


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What stands in a folder of results."""

    writers: Mapping[str, Writer]
    """What writes each file, by name relative to the folder."""

    manifest: Mapping[str, Any]
    """What the manifest says beside the hash of each file."""

    unhashed: tuple[str, ...] = ()
    """Files that differ from run to run."""


class FolderReport(Report):
    """What a job found that has figures and a folder of results."""

    @abstractmethod
    def contents(self) -> Contents:
        """Return the files of the folder of results."""

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
        folder: "str | os.PathLike[str]",
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
        place, inputs = Path(folder), [one for one in self.inputs() if one.exists()]
        names = list(self.contents().writers)
        with (
            shown_progress(progress) as told,
            claimed_folder(place, names, inputs=inputs, force=force) as claimed,
        ):
            self.write_to(claimed, figures=figures, html=html, progress=told)
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
        contents = self.contents()
        wanted = {PICTURE: figures, HTML: html}
        writers = {
            name: write
            for name, write in contents.writers.items()
            if wanted.get(PurePosixPath(name).suffix, True)
        }
        folder.write(
            writers, contents.manifest, unhashed=contents.unhashed, progress=progress
        )

    def _figures(self) -> dict[str, Writer]:
        """Return what draws each figure, by name."""
        paths = {
            PurePosixPath(name): one for name, one in self.contents().writers.items()
        }
        return {
            str(path.with_suffix("")).removeprefix("figures/"): draw
            for path, draw in paths.items()
            if path.suffix == PICTURE
        }


class DocumentReport(Report):
    """What a job found that says itself in a document."""

    @abstractmethod
    def document(self) -> Document:
        """Return what text, picture and page say."""

    def print_to(self, console: "Console", *, verbose: bool = False) -> None:
        """Print what the document says; with ``verbose`` its details, too."""
        print_document(self.document(), console, verbose=verbose)

    def to_markdown(self) -> str:
        """Return what the document says in Markdown, e.g. for the summary of a CI."""
        return markdown(self.document())


class PagedReport(DocumentReport, FolderReport):
    """What a job found that can be looked at on one page."""

    def page(self) -> Document:
        """Return what the page shows: the document, and what only the page has."""
        return self.document()

    def save_page(self, path: "str | os.PathLike[str]") -> None:
        """Write everything to look at into one HTML file, which needs no network.

        Raises
        ------
        InputError
            If it cannot be written.
        """
        replace_file(Path(path), self._write_page)

    def picture_writers(self, name: str, *figures: str) -> dict[str, Writer]:
        """Return what draws figures of the document, by the picture's name.

        Parameters
        ----------
        name
            Of the picture; there is none where the document has none of its figures.
        figures
            Their names; all of them by default.
        """
        document = self.document().with_figures(*figures)
        if not has_picture(document):
            return {}
        return {f"{name}{PICTURE}": lambda path: draw_document(document, path)}

    def page_writers(self) -> dict[str, Writer]:
        """Return what writes the page into a folder of results, by its name."""
        return {PAGE: self._write_page}

    def _write_page(self, path: Path) -> None:
        write_page(self.page(), path)
