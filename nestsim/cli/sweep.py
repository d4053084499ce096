"""``nestsim sweep``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.console.executors import ExecutorName, Scheduler
from nestsim.cli.console.results import (
    Force,
    Html,
    Json,
    NoFigures,
    Quiet,
    ScenarioFile,
)

if TYPE_CHECKING:
    from nestsim.face.sweep import SweepReport

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=V1,V2,..",
        help="A setting of the scenario and its values, as in TOML; several --set make "
        "every combination. Over those of [sweep.set].",
        show_default=False,
    ),
]

What = Annotated[
    str | None,
    typer.Option(
        "--what",
        metavar="simulate|plan|run",
        help="What is done at each point. Default: sweep.what of the scenario, else "
        "simulate where it has a [plan], else run.",
        show_default=False,
    ),
]

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="N",
        help="Processes. Default: sweep.workers, else one for each core.",
        show_default=False,
    ),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for the results, and for the store that an interrupted sweep is "
        "taken up from. Default: results/ and the file's name, ending in _sweep.",
        show_default=False,
    ),
]

Restart = Annotated[
    bool, typer.Option("--restart", help="Forget the points that the folder holds.")
]

Csv = Annotated[bool, typer.Option("--csv", help="Print all points as CSV.")]


def sweep(  # noqa: PLR0913, PLR0917 - one for each option
    scenario: ScenarioFile,
    settings: Set = None,
    what: What = None,
    workers: Workers = None,
    executor: ExecutorName = "processes",
    scheduler: Scheduler = None,
    output: Output = None,
    restart: Restart = False,
    force: Force = False,
    no_figures: NoFigures = False,
    html: Html = False,
    as_json: Json = False,
    as_csv: Csv = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate every combination of some settings, on all cores.

    The settings stand in the scenario's table [sweep.set], or are given by --set. At
    each point the scenario's [plan] is replayed, or it is planned anew. Points are
    stored one by one: what was interrupted or killed is taken up where it stopped by
    the same command. A point that fails is recorded with its reason.

    Exit status 1 if no point has a result.

    Example: `nestsim sweep scenarios/gpt_76b_1024_a100.toml --set
    "cluster.network.nic_bandwidth=100 Gbit/s,200 Gbit/s,400 Gbit/s"`
    """
    import nestsim
    from nestsim.cli.console.executors import chosen_executor
    from nestsim.cli.console.output import note_all, progress_bar, working
    from nestsim.cli.console.results import results_folder, write_report
    from nestsim.features.sweep.axes import axes_of_texts
    from nestsim.features.sweep.job import scenario_sweep
    from nestsim.features.sweep.record import FILES
    from nestsim.scenario import load_scenario
    from topologies.errors import naming

    _check_form(what, as_json=as_json, as_csv=as_csv)
    loaded = load_scenario(scenario)
    with naming(scenario), working("points: check", quiet=quiet):
        axes = axes_of_texts(settings or ())
        scenario_sweep(loaded, axes, what=what)
    named = output or Path("results") / f"{scenario.stem}_sweep"
    with (
        chosen_executor(executor, scheduler, workers=workers, quiet=quiet) as evaluator,
        results_folder(named, FILES, inputs=loaded.files(), force=force) as folder,
    ):
        assert folder is not None
        with progress_bar(quiet=quiet) as progress:
            report = nestsim.sweep(
                loaded,
                axes,
                what=what,
                workers=workers,
                executor=evaluator,
                keep_in=folder.path,
                restart=restart,
                progress=progress,
            )
        note_all(report.notices, quiet=quiet)
        write_report(
            folder,
            report,
            named=named,
            figures=not no_figures,
            html=html,
            quiet=quiet,
        )
    _print(report, as_json=as_json, as_csv=as_csv)
    raise typer.Exit(0 if report.succeeded else 1)


def _check_form(what: str | None, *, as_json: bool, as_csv: bool) -> None:
    from nestsim.scenario.stress import SWEPT
    from topologies.errors import InputError

    if as_json and as_csv:
        raise InputError(
            "results are printed in one form",
            where="--csv",
            got="--json --csv",
            expected="one of the two",
        )
    if what is not None and what not in SWEPT:
        raise InputError(
            "unknown choice", where="--what", got=what, expected=" or ".join(SWEPT)
        )


def _print(report: "SweepReport", *, as_json: bool, as_csv: bool) -> None:
    from nestsim.cli.console.results import print_report

    if as_csv:
        from nestsim.features.sweep.job import csv_text

        typer.echo(csv_text(report.result.outcomes), nl=False)
    else:
        print_report(report, as_json=as_json)
