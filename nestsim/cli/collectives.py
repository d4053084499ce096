"""``nestsim collectives``."""

from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.console.results import Force, Json, NoFigures, Quiet, ScenarioFile

FILES = ("collectives.csv", "collectives.png")
"""What is written."""

LARGEST = 2**50
"""Of a message: no device holds that much [byte]."""

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for collectives.csv and collectives.png. Default: results/ and "
        "the scenario file's name, ending in _collectives; none with --json.",
    ),
]

MinBytes = Annotated[
    str,
    typer.Option(
        "--min-bytes", "-b", metavar="SIZE", help='The smallest size: "8" or "1 KiB".'
    ),
]

MaxBytes = Annotated[
    str, typer.Option("--max-bytes", "-e", metavar="SIZE", help="The largest size.")
]

StepFactor = Annotated[
    int,
    typer.Option(
        "--step-factor", "-f", metavar="N", help="From one size to the next one."
    ),
]


def collectives(  # noqa: PLR0913, PLR0917 - the options of nccl-tests, and ours
    scenario: ScenarioFile,
    min_bytes: MinBytes = "1 KiB",
    max_bytes: MaxBytes = "1 GiB",
    step_factor: StepFactor = 4,
    output: Output = None,
    force: Force = False,
    no_figures: NoFigures = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the collectives of a plan: size, time, algbw, busbw.

    The table of nccl-tests for the groups of the scenario's plan, the one in its table
    [plan] or the best one found: simulated alone, all groups of a kind together, and
    while the job's other traffic runs. The algorithm is the cheapest for the size.

    Exit status 1 if no plan fits.

    Example: `nestsim collectives scenarios/gpt3_175b_512_tpuv4.toml -b 1KiB -e 1GiB`
    """
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.scenario import load_scenario

    sizes = _sizes(min_bytes, max_bytes, step_factor)
    loaded = load_scenario(scenario)
    if output is None and not as_json:
        output = Path("results") / f"{scenario.stem}_collectives"
    inputs = loaded.files()
    with results_folder(output, FILES, inputs=inputs, force=force) as folder:
        with progress_bar(quiet=quiet) as progress:
            report = nestsim.collectives(loaded, sizes, progress=progress)
        note_all(report.notices, quiet=quiet)
        if folder is not None and output is not None and report.result.tables:
            write_report(
                folder, report, named=output, figures=not no_figures, quiet=quiet
            )
    print_report(report, as_json=as_json)
    raise typer.Exit(0 if report.succeeded else 1)


def _sizes(min_bytes: str, max_bytes: str, factor: int) -> tuple[int, ...]:
    """Return the sizes asked for [byte]."""
    from nestsim.features.collectives.job import sizes_between
    from topologies.errors import InputError

    first = _size(min_bytes, "--min-bytes")
    last = _size(max_bytes, "--max-bytes")
    if last < first:
        raise InputError(
            "is below the smallest size",
            where="--max-bytes",
            got=max_bytes,
            expected=f"at least {min_bytes}",
        )
    if factor < 2:
        raise InputError(
            "sizes must grow",
            where="--step-factor",
            got=factor,
            expected="a whole number of at least 2, e.g. 2",
        )
    return sizes_between(first, last, factor)


def _size(text: str, option: str) -> int:
    """Read a size: a number of bytes, or a quantity with a unit."""
    from topologies.errors import InputError
    from topologies.units import parse_quantity

    expected = f'whole bytes from 1 to {LARGEST}, e.g. "8" or "1 KiB"'
    plain = text.strip()
    try:
        size = (
            float(plain)
            if plain.isascii() and plain.isdigit()
            else parse_quantity(text, "size")
        )
    except InputError as error:
        raise InputError(
            error.problem, where=option, got=text, expected=expected
        ) from None
    if not (1 <= size <= LARGEST and size == int(size)):
        raise InputError("not a size", where=option, got=text, expected=expected)
    return int(size)
