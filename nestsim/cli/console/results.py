"""Arguments that several commands share, and what ``--output`` and ``--force`` mean."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nestsim.document.folder import ResultsFolder, Writer
    from nestsim.face.report import FolderReport, Report

PICTURE = ".png"
"""How the names of figures in a folder of results end."""


@contextmanager
def results_folders(
    folders: Sequence[Path],
    names: Sequence[str],
    *,
    inputs: Sequence[Path],
    force: bool,
) -> Iterator[list["ResultsFolder"]]:
    """Take hold of folders of results, before hours of work.

    Parameters
    ----------
    folders
        As the user named them.
    names
        Files that may be written into each.
    inputs
        Files that the command reads.
    force
        Write into folders of other origin, too.

    Raises
    ------
    InputError
        If one cannot be written into.
    """
    from nestsim.document.folder import claimed_folder

    with ExitStack() as stack:
        claimed = []
        for folder in folders:
            claim = claimed_folder(folder, names, inputs=inputs, force=force)
            with _about_output():
                claimed.append(stack.enter_context(claim))
        try:
            yield claimed
        except BaseException as error:
            # Whatever a library has made of a signal: only stops print their notes.
            if claimed:
                error.add_note(_left_behind(folders, claimed))
            raise


@contextmanager
def results_folder(
    folder: Path | None,
    names: Sequence[str],
    *,
    inputs: Sequence[Path],
    force: bool,
    html: bool = False,
) -> Iterator["ResultsFolder | None"]:
    """Take hold of one folder of results; of none if there is to be none.

    Parameters
    ----------
    folder
        As the user named it; None for none.
    names, inputs, force
        As for `results_folders`.
    html
        Whether a page is to be written, too.

    Raises
    ------
    InputError
        If the folder cannot be written into, or a page has none.
    """
    from topologies.errors import InputError

    if html and folder is None:
        raise InputError(
            "the page is written into a folder of results, and there is none",
            where="--html",
            expected="--output FOLDER beside it",
        )
    given = [] if folder is None else [folder]
    with results_folders(given, names, inputs=inputs, force=force) as claimed:
        yield claimed[0] if claimed else None


def _left_behind(folders: Sequence[Path], claimed: Sequence["ResultsFolder"]) -> str:
    """Say what was written before an interruption, and how to go on."""
    pairs = list(zip(folders, claimed, strict=True))
    written = [str(name) for name, one in pairs if one.is_written]
    begun = [str(name) for name, one in pairs if not one.is_written and one.stores()]
    others = [str(name) for name, _ in pairs if str(name) not in {*written, *begun}]
    said = []
    if written:
        said.append(f"Results are in {_some(written)}.")
    if begun:
        said.append(
            f"Finished points are kept in {_some(begun)}; the same command, without "
            "--restart, goes on from there."
        )
    if others:
        said.append(f"Nothing was written to {_some(others)}.")
    return " ".join(said)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} others" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def write_report(
    folder: "ResultsFolder",
    report: "FolderReport",
    *,
    named: Path,
    figures: bool,
    quiet: bool,
    html: bool = False,
) -> None:
    """Write a folder of results, and say where it is.

    Parameters
    ----------
    folder
        As `results_folder` gives it.
    report
        What was found.
    named
        The folder as the user named it.
    figures
        Draw the figures, too; without, those of earlier results go.
    quiet
        Say nothing.
    html
        Write the page, too; without, that of earlier results goes.
    """
    from nestsim.cli.console.output import note, progress_bar

    with _about_output(), progress_bar(quiet=quiet) as progress:
        report.write_to(folder, figures=figures, html=html, progress=progress)
    note(f"Results are in {named}", quiet=quiet)


def print_report(report: "Report", *, as_json: bool, verbose: bool = False) -> None:
    """Print what was found, for people, with ``verbose`` in detail, or for programs."""
    if as_json:
        from typer import echo

        from nestsim.document.dumps import dump_json

        echo(dump_json(report.printed_dict()), nl=False)
        return
    from nestsim.cli.console.output import result_console
    from nestsim.face.report import DocumentReport

    if isinstance(report, DocumentReport):
        report.print_to(result_console(), verbose=verbose)
    else:
        report.print_to(result_console())


def check_output_file(
    file: Path,
    is_ours: Callable[[bytes], bool],
    *,
    inputs: Sequence[Path],
    force: bool,
) -> None:
    """Refuse a file that results may not be written to, before anything is done."""
    from nestsim.document.folder import check_file

    with _about_output():
        check_file(file, is_ours, inputs=inputs, force=force)


def write_output_file(file: Path, write: "Writer") -> None:
    """Write a file whole or not at all."""
    from nestsim.document.folder import replace_file

    with _about_output():
        replace_file(file, write)


@contextmanager
def _about_output() -> Iterator[None]:
    """Say that a mistake is in what ``--output`` names."""
    from topologies.errors import InputError

    try:
        yield
    except InputError as error:
        raise error.at("--output", ": ") from None


ScenarioFile = Annotated[
    Path, typer.Argument(metavar="SCENARIO", help="A scenario file (TOML).")
]

ScenarioFiles = Annotated[
    list[Path], typer.Argument(metavar="SCENARIO", help="Scenario files (TOML).")
]

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables, in SI units.")
]

Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="No progress and no notes; results and errors only."
    ),
]

Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Print everything that report.txt of a folder of results has: what the "
        "times rest on, stages, links, the search.",
    ),
]

TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Run the Python file that the scenario in the folder names as its model's "
        "module. Without, such a folder is refused: it may be somebody else's.",
    ),
]

Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Write there even if nestsim did not make what is there; files of the "
        "names that it writes are replaced, all others stay.",
    ),
]

NoFigures = Annotated[
    bool,
    typer.Option(
        "--no-figures",
        help="Draw no figures: they take about a third of a small job's time.",
    ),
]

Html = Annotated[
    bool,
    typer.Option(
        "--html",
        help="Write everything to look at into one file, too: page.html in the folder "
        "of results.",
    ),
]
