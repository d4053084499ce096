"""``nestsim validate``."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestsim.cli.results import Force, Json, NoFigures, Quiet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nestsim.report.destination import ResultsFolder
    from nestsim.validation.collective_runner import CollectivesValidation
    from nestsim.validation.rows.columns import Measurements
    from nestsim.validation.runner import ValidationResult
    from planner.work import Progress

    Result = ValidationResult | CollectivesValidation

FILES = ("predictions.csv", "validation.json", "validation.png")
"""What is written of a file of measurements."""

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
    typer.Option(
        "--markdown", help="Print the errors by source as Markdown, and nothing else."
    ),
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
    from nestsim.cli.output import progress_bar
    from nestsim.cli.results import results_folder
    from nestsim.validation.measured import published_measurements
    from nestsim.validation.rows.columns import read_measurements

    _check_form(as_json=as_json, markdown=markdown)
    stem = "published" if measurements is None else measurements.stem
    tables = (
        published_measurements()
        if measurements is None
        else (read_measurements(measurements),)
    )
    _check_markdown(tables, markdown=markdown)
    if output is None and not (as_json or markdown):
        output = Path("results") / f"{stem}_validation"
    folders = _folders(tables)
    names = [f"{inner}{name}" for inner in folders for name in FILES]
    inputs = [] if measurements is None else [measurements]
    with results_folder(output, names, inputs=inputs, force=force) as folder:
        with progress_bar(quiet=quiet) as progress:
            results = [_validated(rows, progress) for rows in tables]
        if folder is not None and output is not None:
            _write(
                dict(zip(folders, results, strict=True)),
                folder,
                output,
                figures=not no_figures,
                quiet=quiet,
            )
    _print(results, as_json=as_json, markdown=markdown)
    raise typer.Exit(0 if any(result.scored for result in results) else 1)


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


def _check_markdown(tables: "Sequence[Measurements]", *, markdown: bool) -> None:
    """Refuse Markdown of collectives, which are reported by curve."""
    from topologies.errors import InputError

    if markdown and any(table.kind == "collectives" for table in tables):
        raise InputError(
            "errors of collectives have no Markdown form",
            where="--markdown",
            got="a file about collectives",
            expected="--json, or neither",
        )


def _validated(rows: "Measurements", progress: "Progress | None") -> "Result":
    from nestsim.validation.collective_runner import validate_collectives
    from nestsim.validation.runner import validate as validate_rows

    if rows.kind == "collectives":
        return validate_collectives(rows, progress=progress)
    return validate_rows(rows, progress=progress)


def _folders(tables: "Sequence[Measurements]") -> list[str]:
    """Return where in the folder each result goes: of several, one folder for each."""
    if len(tables) == 1:
        return [""]
    names = {"throughput": "time"}
    return [f"{names.get(one.kind, one.kind)}/" for one in tables]


def _write(
    results: "Mapping[str, Result]",
    folder: "ResultsFolder",
    named: Path,
    *,
    figures: bool,
    quiet: bool,
) -> None:
    from nestsim.cli.results import write_files
    from nestsim.report.destination import Writer, writer_of
    from nestsim.report.json import dump_json

    writers: dict[str, Writer] = {}
    for inner, result in results.items():
        writers |= {
            f"{inner}predictions.csv": writer_of(_table(result)),
            f"{inner}validation.json": writer_of(dump_json(_json(result))),
        }
        if result.scored:
            writers[f"{inner}validation.png"] = partial(_draw, result)
    facts = {"measurements": [result.name for result in results.values()]}
    write_files(folder, writers, facts, named=named, figures=figures, quiet=quiet)


def _table(result: "Result") -> str:
    from nestsim.validation.collective_report import collectives_csv
    from nestsim.validation.report import predictions_csv
    from nestsim.validation.runner import ValidationResult

    if isinstance(result, ValidationResult):
        return predictions_csv(result)
    return collectives_csv(result)


def _json(result: "Result") -> dict[str, Any]:
    from nestsim.validation.collective_report import collectives_json
    from nestsim.validation.report import validation_json
    from nestsim.validation.runner import ValidationResult

    if isinstance(result, ValidationResult):
        return validation_json(result)
    return collectives_json(result)


def _draw(result: "Result", path: Path) -> None:
    from nestsim.validation.collective_report import draw_collectives
    from nestsim.validation.figure import draw_validation
    from nestsim.validation.runner import ValidationResult

    if isinstance(result, ValidationResult):
        draw_validation(result, path)
    else:
        draw_collectives(result, path)


def _print(results: "Sequence[Result]", *, as_json: bool, markdown: bool) -> None:
    from nestsim.validation.runner import ValidationResult

    if as_json:
        from nestsim.report.json import dump_json

        typer.echo(dump_json(_all_json(results)), nl=False)
        return
    if markdown:
        from nestsim.validation.report import validation_markdown

        known = [one for one in results if isinstance(one, ValidationResult)]
        typer.echo(validation_markdown(known), nl=False)
        return
    from nestsim.cli.output import result_console
    from nestsim.validation.collective_report import print_collectives
    from nestsim.validation.report import print_validation

    console = result_console()
    for number, result in enumerate(results):
        if number:
            console.print()
        if isinstance(result, ValidationResult):
            print_validation(result, console)
        else:
            print_collectives(result, console)


def _all_json(results: "Sequence[Result]") -> dict[str, Any]:
    """Return one object: of time at the top, of memory under ``"memory"``."""
    found = [(result, _json(result)) for result in results]
    _, plain = found[0]
    for result, other in found[1:]:
        if result.kind == "memory":
            plain = {**plain, "memory": other["memory"]}
    return plain
