"""``nestsim validate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.console.results import Force, Json, NoFigures, Quiet

if TYPE_CHECKING:
    from nestsim.face.validation import ValidateReport

MeasurementsFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="A file of measurements (CSV). Without one: the published figures that "
        "come with nestsim.",
    ),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for predictions.csv, validation.json and validation.png. Default: "
        "results/ and the file's name, ending in _validation; none with --json or "
        "--markdown. The published figures get two folders in it, time and memory.",
    ),
]

Markdown = Annotated[
    bool,
    typer.Option("--markdown", help="Print the report as Markdown, and nothing else."),
]


def validate(  # noqa: PLR0913, PLR0917 - one for each option
    measurements: MeasurementsFile = None,
    output: Output = None,
    force: Force = False,
    no_figures: NoFigures = False,
    as_json: Json = False,
    markdown: Markdown = False,
    quiet: Quiet = False,
) -> None:
    """Predict published or own measurements, and report the errors.

    Each row of the file is a configuration that somebody ran, and what it took: the
    time of a step, or memory; or, in a file with a column `collective`, a collective
    of one size and its time. A configuration becomes a fixed plan on a fixed cluster,
    is replayed as `nestsim simulate` does it, and compared. A row that cannot be
    expressed is refused with its reason; what a row does not say is assumed, and
    written down. The columns stand in docs/validate.md.

    Exit status 1 if no row could be compared.

    Example: `nestsim validate measurements.csv`
    """
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import results_folder, write_report
    from nestsim.face.validation import (
        FILES,
        inner_folders,
        tables_of,
        validate_tables,
    )

    _check_form(as_json=as_json, markdown=markdown)
    stem = "published" if measurements is None else measurements.stem
    tables = tables_of(measurements)
    if output is None and not (as_json or markdown):
        output = Path("results") / f"{stem}_validation"
    folders = inner_folders([table.kind for table in tables])
    names = [f"{inner}{name}" for inner in folders for name in FILES]
    inputs = [] if measurements is None else [measurements]
    with results_folder(output, names, inputs=inputs, force=force) as folder:
        with progress_bar(quiet=quiet) as progress:
            report = validate_tables(tables, measurements, progress=progress)
        note_all(report.notices, quiet=quiet)
        if folder is not None and output is not None:
            write_report(
                folder, report, named=output, figures=not no_figures, quiet=quiet
            )
    _print(report, as_json=as_json, markdown=markdown)
    raise typer.Exit(0 if report.succeeded else 1)


def _check_form(*, as_json: bool, markdown: bool) -> None:
    """Refuse two forms at once."""
    from topologies.errors import InputError

    if as_json and markdown:
        raise InputError(
            "results are printed in one form",
            where="--markdown",
            got="--json --markdown",
            expected="one of the two",
        )


def _print(report: "ValidateReport", *, as_json: bool, markdown: bool) -> None:
    from nestsim.cli.console.results import print_report
    from nestsim.document.markdown import markdown as markdown_of

    if markdown:
        typer.echo("\n".join(map(markdown_of, report.documents())), nl=False)
    else:
        print_report(report, as_json=as_json)
