"""``nestsim jitter``."""

from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.console.results import (
    Force,
    Html,
    Json,
    NoFigures,
    Quiet,
    ScenarioFile,
)

FILES = ("jitter.json", "jitter.csv", "scale.csv", "jitter.png", "page.html")
"""What is written."""

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for jitter.json, jitter.csv, scale.csv and jitter.png. Default: "
        "none.",
        show_default=False,
    ),
]

Runs = Annotated[
    int | None,
    typer.Option(
        "--runs",
        metavar="N",
        min=1,
        max=100_000,
        help="Steps that are replayed, for each number of replicas. Replaces "
        "jitter.runs.",
        show_default=False,
    ),
]

DrawSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="S",
        min=0,
        max=2**63 - 1,
        help="Seed of everything that is drawn. Replaces jitter.seed.",
        show_default=False,
    ),
]

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Processes; results do not depend on it. Default: one for each core.",
        show_default=False,
    ),
]


def jitter(  # noqa: PLR0913, PLR0917 - one for each option
    scenario: ScenarioFile,
    runs: Runs = None,
    seed: DrawSeed = None,
    workers: Workers = None,
    output: Output = None,
    force: Force = False,
    no_figures: NoFigures = False,
    html: Html = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Replay steps that differ at random: p50, p95, p99, and the slowest of many.

    Operators and messages take random times, devices are slow at random, as the
    scenario's table [jitter] says. The plan, the one in its table [plan] or the best
    one found, is replayed again and again with other draws, and so are its halves of
    the replicas. Beside the simulation stands the closed form of the slowest of many,
    which goes on to more replicas.

    Exit status 1 if no plan fits.

    Example: `nestsim jitter scenarios/jitter/llama2_7b_64_h100.toml --runs 200`
    """
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.scenario import load_scenario

    loaded = load_scenario(scenario)
    with results_folder(
        output, FILES, inputs=loaded.files(), force=force, html=html
    ) as folder:
        with progress_bar(quiet=quiet) as progress:
            report = nestsim.jitter(
                loaded, runs=runs, seed=seed, workers=workers, progress=progress
            )
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
