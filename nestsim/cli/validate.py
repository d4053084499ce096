"""``nestsim validate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.arguments import Json, Quiet

if TYPE_CHECKING:
    from nestsim.validation.runner import ValidationResult

MeasurementsFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file of measurements (CSV).")
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for predictions.csv, validation.json and validation.png. Default: "
        "results/ and the file's name, ending in _validation; none with --json.",
    ),
]


def validate(
    measurements: MeasurementsFile,
    output: Output = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict published or own measurements, and report the errors.

    Each row of the file is a configuration that somebody ran, and what it took: the
    time of a step, or memory. It becomes a fixed plan on a fixed cluster, is replayed
    as `nestsim simulate` does it, and compared. A row that cannot be expressed is
    refused with its reason; what a row does not say is assumed, and written down. The
    columns stand in the README.

    Exit status 1 if no row could be compared.

    Example: `nestsim validate measurements.csv`
    """
    from nestsim.cli.output import note, progress_bar
    from nestsim.validation.columns import read_measurements
    from nestsim.validation.runner import validate as validate_rows

    rows = read_measurements(measurements)
    if output is None and not as_json:
        output = Path("results") / f"{measurements.stem}_validation"
    if output is not None:
        _check_folder(output)
    with progress_bar(quiet=quiet) as progress:
        result = validate_rows(rows, progress=progress)
    if output is not None:
        _write(result, output)
        note(f"Results are in {output}", quiet=quiet)
    _print(result, as_json=as_json)
    raise typer.Exit(0 if result.scored else 1)


def _check_folder(folder: Path) -> None:
    """Refuse what is no folder, before anything is done."""
    from topologies.errors import InputError

    if folder.exists() and not folder.is_dir():
        raise InputError(
            "is not a folder",
            where="--output",
            got=str(folder),
            expected="a folder, or a name that is free",
        )


def _write(result: "ValidationResult", folder: Path) -> None:
    from nestsim.report.json import dump_json
    from nestsim.report.validation import predictions_csv, validation_json
    from nestsim.report.validation_figure import draw_validation
    from topologies.errors import InputError

    texts = {
        "predictions.csv": predictions_csv(result),
        "validation.json": dump_json(validation_json(result)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / ".validation.partial"
        for name, text in texts.items():
            partial.write_text(text, encoding="utf-8")
            partial.replace(folder / name)
        if result.scored:
            draw_validation(result, partial)
            partial.replace(folder / "validation.png")
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InputError(problem, where="--output", got=str(folder)) from None


def _print(result: "ValidationResult", *, as_json: bool) -> None:
    if as_json:
        from nestsim.report.json import dump_json
        from nestsim.report.validation import validation_json

        typer.echo(dump_json(validation_json(result)), nl=False)
        return
    from nestsim.cli.output import result_console
    from nestsim.report.validation import print_validation

    print_validation(result, result_console())
