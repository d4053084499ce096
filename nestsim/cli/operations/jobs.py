"""``nestsim jobs``."""

from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.console.results import Force, Html, Json, NoFigures, Quiet

FILES = ("jobs.json", "jobs.csv", "jobs.png", "page.html")
"""What is written."""

LARGEST_SEED = 2**63 - 1

JobsFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A scenario file with tables [[jobs]] (TOML)."),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for jobs.json, jobs.csv and jobs.png. Default: none.",
        show_default=False,
    ),
]

Seeds = Annotated[
    str | None,
    typer.Option(
        "--ecmp-seeds",
        metavar="SEED,SEED..",
        help="Seeds of the hash that picks cables, e.g. 0,1,2: the jobs are replayed "
        "once more for each. Replaces shared.ecmp_seeds.",
        show_default=False,
    ),
]


def jobs(  # noqa: PLR0913, PLR0917 - one for each option
    file: JobsFile,
    ecmp_seeds: Seeds = None,
    output: Output = None,
    force: Force = False,
    no_figures: NoFigures = False,
    html: Html = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Replay several jobs on one fabric: what they do to each other.

    Each table [[jobs]] is a job on devices of its own, which the file names or which
    are chosen: close together, spread, or where all jobs together lose the least. Each
    job is replayed alone and beside the others, step after step over the links that
    they share: its slow-down, and which links they meet on.

    Exit status 1 if a job has no plan that fits.

    Example: `nestsim jobs scenarios/jobs/three_jobs_64_h100.toml --ecmp-seeds 0,1,2`
    """
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.features.jobs.scenario import JobsScenario

    seeds = None if ecmp_seeds is None else _seeds(ecmp_seeds)
    loaded = JobsScenario.from_file(file)
    with results_folder(
        output, FILES, inputs=loaded.files(), force=force, html=html
    ) as folder:
        with progress_bar(quiet=quiet) as progress:
            report = nestsim.jobs(loaded, ecmp_seeds=seeds, progress=progress)
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


def _seeds(text: str) -> tuple[int, ...]:
    """Read ``0,1,2``."""
    from topologies.errors import InputError

    seeds = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and int(word[:20]) <= LARGEST_SEED):
            raise InputError(
                "is not a list of seeds",
                where="--ecmp-seeds",
                got=text,
                expected="whole numbers with commas between them, e.g. 0,1,2",
            )
        seeds.append(int(word))
    return tuple(dict.fromkeys(seeds))
