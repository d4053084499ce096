"""``nestsim collectives``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.arguments import Json, Quiet, ScenarioFile

if TYPE_CHECKING:
    from nestsim.collectives_job import CollectivesResult

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
    from nestsim.cli.errors import naming
    from nestsim.cli.output import note, progress_bar
    from nestsim.scenario import load_scenario

    sizes = _sizes(min_bytes, max_bytes, step_factor)
    loaded = load_scenario(scenario)
    if output is None and not as_json:
        output = Path("results") / f"{scenario.stem}_collectives"
    if output is not None:
        _check_folder(output)
    from nestsim.collectives_job import collectives_job

    with naming(scenario), progress_bar(quiet=quiet) as progress:
        result = collectives_job(loaded, sizes, progress=progress)
    if output is not None and result.tables:
        _write(result, output)
        note(f"Results are in {output}", quiet=quiet)
    _print(result, as_json=as_json)
    raise typer.Exit(0 if result.priced is not None else 1)


def _sizes(min_bytes: str, max_bytes: str, factor: int) -> tuple[int, ...]:
    """Return the sizes asked for [byte]."""
    from nestsim.collective_measures import sizes_between
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


def _check_folder(folder: Path) -> None:
    """Refuse what is no folder, before anything is done."""
    from topologies.errors import InputError

    if folder.exists() and not folder.is_dir():
        raise InputError(
            "is not a folder",
            where="--output",
            got=str(folder),
            expected="a folder, which is made if there is none",
        )


def _write(result: "CollectivesResult", folder: Path) -> None:
    from nestsim.report.collectives import collectives_csv
    from nestsim.report.collectives_figure import draw_collectives
    from topologies.errors import InputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / ".collectives.partial"
        partial.write_text(collectives_csv(result.tables), encoding="utf-8")
        partial.replace(folder / "collectives.csv")
        draw_collectives(result, partial)
        partial.replace(folder / "collectives.png")
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InputError(problem, where="--output", got=str(folder)) from None


def _print(result: "CollectivesResult", *, as_json: bool) -> None:
    if as_json:
        from nestsim.report.collectives import collectives_json
        from nestsim.report.json import dump_json

        typer.echo(dump_json(collectives_json(result)), nl=False)
        return
    from nestsim.cli.output import result_console
    from nestsim.report.collectives import print_collectives

    print_collectives(result, result_console())
