"""``nestsim goodput``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from nestsim.cli.console.results import (
    Force,
    Html,
    Json,
    NoFigures,
    Quiet,
    ScenarioFile,
)

FILES = ("goodput.json", "goodput.csv", "goodput.png", "page.html")
"""What is written."""

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for goodput.json, goodput.csv (one row a run) and goodput.png. "
        "Default: none.",
        show_default=False,
    ),
]

Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        help="Runs with random failures. Replaces goodput.seeds.",
        show_default=False,
    ),
]

RunLength = Annotated[
    str | None,
    typer.Option(
        "--duration",
        metavar="TIME",
        help='How long the job runs, e.g. "54 d". Replaces goodput.duration.',
        show_default=False,
    ),
]

CheckpointInterval = Annotated[
    str | None,
    typer.Option(
        "--interval",
        metavar="TIME",
        help='Training between two checkpoints, e.g. "30 min", or "best". Replaces '
        "goodput.checkpoint.interval.",
        show_default=False,
    ),
]

SpareNodes = Annotated[
    int | None,
    typer.Option(
        "--spares",
        metavar="N",
        help="Spare nodes. Replaces goodput.spares.",
        show_default=False,
    ),
]


def goodput(  # noqa: PLR0913, PLR0917 - one for each option
    scenario: ScenarioFile,
    seeds: Seeds = None,
    duration: RunLength = None,
    interval: CheckpointInterval = None,
    spares: SpareNodes = None,
    output: Output = None,
    force: Force = False,
    no_figures: NoFigures = False,
    html: Html = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train through failures: tokens a day, checkpoint intervals, spare nodes.

    The job of the scenario, for a year or as long as the table [goodput] says, with
    failures at published or given rates: what it trains of what it would without them
    (p5, p50, p95 over seeds), what takes the rest, and how often to write checkpoints,
    by closed forms (Young, Daly, the best one) beside the simulation.

    Exit status 1 if no plan fits.

    Example: `nestsim goodput scenarios/goodput/llama3_405b_16384_h100.toml --seeds 50`
    """
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.scenario import load_scenario
    from nestsim.scenario.goodput import MOST_SEEDS, MOST_SPARES

    loaded = load_scenario(scenario)
    asked: dict[str, Any] = {}
    if seeds is not None:
        asked["seeds"] = _count(seeds, "--seeds", 1, MOST_SEEDS)
    if duration is not None:
        asked["duration"] = _time(duration, "--duration")
    if interval is not None:
        is_best = interval.strip() == "best"
        asked["checkpoint"] = replace(
            loaded.goodput.checkpoint,
            interval=None if is_best else _time(interval, "--interval"),
        )
    if spares is not None:
        asked["spares"] = _count(spares, "--spares", 0, MOST_SPARES)
    loaded = replace(loaded, goodput=replace(loaded.goodput, **asked))
    inputs = loaded.files()
    with results_folder(output, FILES, inputs=inputs, force=force, html=html) as folder:
        with progress_bar(quiet=quiet) as progress:
            report = nestsim.goodput(loaded, progress=progress)
        note_all(report.notices, quiet=quiet)
        if folder is not None and output is not None:
            write_report(
                folder,
                report,
                named=output,
                figures=not no_figures,
                html=html,
                quiet=quiet,
            )
    print_report(report, as_json=as_json)
    raise typer.Exit(0 if report.succeeded else 1)


def _count(value: int, option: str, least: int, most: int) -> int:
    from topologies.errors import InputError

    if not least <= value <= most:
        raise InputError(
            "is out of range",
            where=option,
            got=value,
            expected=f"a whole number from {least} to {most:,}",
        )
    return value


def _time(text: str, option: str) -> float:
    """Read a time that may be years [s]."""
    from topologies.errors import InputError
    from topologies.units import parse_quantity

    try:
        seconds = parse_quantity(text, "lifetime")
    except InputError as error:
        raise error.at(option) from None
    if not seconds:
        raise InputError(
            "must be more than 0", where=option, got=text, expected='e.g. "12 h"'
        )
    return seconds
