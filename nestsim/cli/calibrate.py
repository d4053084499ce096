"""``nestsim calibrate``."""

from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.arguments import Force, Json, Quiet

MeasurementsFile = Annotated[
    Path,
    typer.Argument(
        metavar="MEASUREMENTS",
        help="Your runs (CSV), with the columns of nestsim validate.",
    ),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="The constants to write (TOML), for software.constants of scenarios.",
    ),
]


def calibrate(
    measurements: MeasurementsFile,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a few constants to your own runs.

    Each row of the file is a configuration that you ran and the time of its step, with
    the columns of `nestsim validate`, which stand in the README. What products and
    attention reach of the accelerators, gaps between layers and the fixed time of a
    step are fitted around the values that nestsim comes with, so that few rows move
    little. The table says how firm each is, and which the rows do not tell.

    A scenario takes the file with `constants = "FILE"` in its table `[software]`.

    Exit status 1 if the rows tell no constant.

    Example: `nestsim calibrate my_runs.csv -o my_constants.toml`
    """
    from datetime import UTC, datetime

    from estimators.user_files.constants import is_user_constants, user_constants_toml
    from nestsim.cli.output import note, progress_bar, result_console
    from nestsim.cli.results import check_output_file, write_output_file
    from nestsim.own_runs.calibrate import calibrate_runs, calibration_json
    from nestsim.own_runs.calibration_text import print_run_calibration
    from nestsim.report.destination import writer_of
    from nestsim.report.json import dump_json
    from nestsim.report.wording import plural
    from nestsim.validation.columns import read_measurements

    rows = read_measurements(measurements)
    if output is not None:
        check_output_file(output, is_user_constants, inputs=[measurements], force=force)
    with progress_bar(quiet=quiet) as progress:
        found = calibrate_runs(rows, progress=progress)
    if output is not None:
        text = user_constants_toml(
            found.entries(),
            date=datetime.now(UTC).date().isoformat(),
            source=f"{plural(found.num_rows, 'row')} of {found.name}",
        )
        write_output_file(output, writer_of(text))
        note(f"The constants are in {output}", quiet=quiet)
    if as_json:
        typer.echo(dump_json(calibration_json(found)), nl=False)
    else:
        print_run_calibration(found, result_console())
    raise typer.Exit(0 if any(one.is_told for one in found.constants) else 1)
