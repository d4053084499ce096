"""``nestsim sweep``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.results import Force, Json, NoFigures, Quiet, ScenarioFile

if TYPE_CHECKING:
    from nestsim.report.destination import ResultsFolder
    from nestsim.scenario import Scenario
    from nestsim.sweep.job import ScenarioSweep, ScenarioSweepResult

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
    output: Output = None,
    restart: Restart = False,
    force: Force = False,
    no_figures: NoFigures = False,
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
    from nestsim.cli.output import working
    from nestsim.cli.results import inputs_of, naming, results_folder
    from nestsim.scenario import load_scenario
    from nestsim.sweep.figure import FILES
    from nestsim.sweep.job import scenario_sweep

    _check_form(what, as_json=as_json, as_csv=as_csv)
    loaded = load_scenario(scenario)
    with naming(scenario), working("points: check", quiet=quiet):
        asked = scenario_sweep(loaded, settings or (), what=what, workers=workers)
    named = output or Path("results") / f"{scenario.stem}_sweep"
    inputs = inputs_of(loaded)
    with results_folder(named, FILES, inputs=inputs, force=force) as folder:
        assert folder is not None
        result = _run(asked, folder.path, restart=restart, quiet=quiet)
        _write(result, loaded, folder, named, figures=not no_figures, quiet=quiet)
    _print(result, as_json=as_json, as_csv=as_csv)
    raise typer.Exit(0 if any(one.row for one in result.outcomes) else 1)


def _check_form(what: str | None, *, as_json: bool, as_csv: bool) -> None:
    from nestsim.scenario.settings import SWEPT
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


def _run(
    asked: "ScenarioSweep", folder: Path, *, restart: bool, quiet: bool
) -> "ScenarioSweepResult":
    from nestsim.cli.output import progress_bar
    from nestsim.sweep.job import run_scenario_sweep

    with progress_bar(quiet=quiet) as progress:
        return run_scenario_sweep(asked, folder, restart=restart, progress=progress)


def _write(
    result: "ScenarioSweepResult",
    scenario: "Scenario",
    folder: "ResultsFolder",
    named: Path,
    *,
    figures: bool,
    quiet: bool,
) -> None:
    from nestsim.cli.results import write_files
    from nestsim.sweep.figure import sweep_facts, sweep_writers

    writers = sweep_writers(result, scenario.text)
    facts = sweep_facts(result, scenario.text)
    write_files(folder, writers, facts, named=named, figures=figures, quiet=quiet)


def _print(result: "ScenarioSweepResult", *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        from nestsim.report.json import dump_json
        from nestsim.sweep.report import sweep_json

        typer.echo(dump_json(sweep_json(result)), nl=False)
    elif as_csv:
        from nestsim.sweep.job import csv_text

        typer.echo(csv_text(result.outcomes), nl=False)
    else:
        from nestsim.cli.output import result_console
        from nestsim.sweep.report import print_sweep

        print_sweep(result, result_console())
