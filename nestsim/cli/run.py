"""``nestsim run``.

``nestsim simulate``.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.results import (
    Force,
    Json,
    NoFigures,
    Quiet,
    ScenarioFile,
    ScenarioFiles,
)

if TYPE_CHECKING:
    from nestsim.assertions import Checked
    from nestsim.report.destination import ResultsFolder
    from nestsim.results import JobResult, SimulateResult
    from nestsim.scenario import Scenario

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for the results; with several scenarios, the folder that gets "
        "one folder for each. Default: results/ and the scenario file's name.",
    ),
]


def run(
    scenarios: ScenarioFiles,
    output: Output = None,
    force: Force = False,
    no_figures: NoFigures = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan, replay, judge and report: the main job.

    The k best plans are replayed over the links of the network and re-ranked; the
    first one that the replay confirms is reported. A folder of results holds the
    scenario, the plan, figures and a trace that Perfetto opens. All scenarios are
    checked before the first one runs.

    Exit status 1 if no plan of a scenario fits or is confirmed, or something in its
    table [assert] does not hold.

    Example: `nestsim run scenarios/llama2_7b_64_h100.toml --output results/first`
    """
    from nestsim.assertions import check_assertions, exit_status
    from nestsim.cli.results import inputs_of, results_folders
    from nestsim.report.folder import FILES
    from nestsim.scenario import load_scenario

    loaded = [load_scenario(path) for path in scenarios]
    folders = _folders(scenarios, output)
    inputs = [file for scenario in loaded for file in inputs_of(scenario)]
    status = 0
    with results_folders(folders, FILES, inputs=inputs, force=force) as claimed:
        for scenario, folder, named in zip(loaded, claimed, folders, strict=True):
            result = _run_one(
                scenario, folder, named, figures=not no_figures, quiet=quiet
            )
            checked = check_assertions(scenario.assertions, result)
            _print(result, checked, as_json=as_json)
            own = 0 if result.chosen is not None else 1
            status = max(status, exit_status(own, checked))
    raise typer.Exit(status)


def _folders(scenarios: list[Path], output: Path | None) -> list[Path]:
    """Return where the results of each scenario go."""
    if output is not None and len(scenarios) == 1:
        return [output]
    stems = [path.stem for path in scenarios]
    stem, count = Counter(stems).most_common(1)[0]
    if count > 1:
        from topologies.errors import InputError

        raise InputError(
            "several scenarios would write into the same folder",
            where="SCENARIO",
            got=stem,
            expected="files of different names",
            hint="run them one by one, each with its own --output",
        )
    return [(output or Path("results")) / stem for stem in stems]


def _run_one(
    scenario: "Scenario",
    folder: "ResultsFolder",
    named: Path,
    *,
    figures: bool,
    quiet: bool,
) -> "JobResult":
    """Run one scenario and write its folder of results."""
    from nestsim.cli.output import note_unread_plan, progress_bar
    from nestsim.cli.results import naming, write_files
    from nestsim.job import run_job
    from nestsim.report.folder import result_facts, result_writers

    note_unread_plan(scenario, quiet=quiet)
    with naming(scenario.path), progress_bar(quiet=quiet) as progress:
        result = run_job(scenario, progress=progress)
    writers = result_writers(result, scenario.text)
    facts = result_facts(result, scenario.text)
    write_files(folder, writers, facts, named=named, figures=figures, quiet=quiet)
    return result


def _print(
    result: "JobResult", checked: "tuple[Checked, ...]", *, as_json: bool
) -> None:
    from nestsim.report.text import assertions_json, print_assertions

    if as_json:
        from nestsim.report.json import dump_json, job_json

        report = {**job_json(result), **assertions_json(checked)}
        typer.echo(dump_json(report), nl=False)
        return
    from nestsim.cli.output import result_console
    from nestsim.report.text import print_job

    console = result_console()
    print_job(result, console)
    print_assertions(checked, console)


PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="A plan (JSON), such as plan.json in a folder of results, instead of the "
        "scenario's table [plan].",
        show_default=False,
    ),
]

SimulationOutput = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for the results, as `nestsim run` writes it. Default: none.",
        show_default=False,
    ),
]


def simulate(  # noqa: PLR0913, PLR0917 - one for each option
    scenario: ScenarioFile,
    plan: PlanFile = None,
    output: SimulationOutput = None,
    force: Force = False,
    no_figures: NoFigures = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Replay one given plan, judge and report it.

    The plan stands in the scenario's table [plan], under Megatron's names, or in a
    file. Nothing is searched: what somebody already runs is priced, replayed over the
    links of the network, and explained.

    Exit status 1 if the replay does not confirm the planned throughput, or memory
    does not suffice, or if something in the scenario's table [assert] does not hold.

    Example: `nestsim simulate scenarios/gpt_76b_1024_a100.toml`
    """
    from nestsim.assertions import check_assertions, exit_status
    from nestsim.cli.results import inputs_of, results_folder, write_files
    from nestsim.report.folder import FILES, result_facts, result_writers
    from nestsim.report.text import assertions_json, print_assertions
    from nestsim.scenario import load_scenario

    loaded = load_scenario(scenario)
    inputs = inputs_of(loaded, plan)
    with results_folder(output, FILES, inputs=inputs, force=force) as folder:
        result = _simulate(loaded, plan, quiet=quiet)
        if folder is not None and output is not None:
            writers = result_writers(result, loaded.text)
            facts = result_facts(result, loaded.text)
            write_files(
                folder,
                writers,
                facts,
                named=output,
                figures=not no_figures,
                quiet=quiet,
            )
    checked = check_assertions(loaded.assertions, result)
    if as_json:
        from nestsim.report.json import dump_json
        from nestsim.report.text import simulation_json

        report = {**simulation_json(result), **assertions_json(checked)}
        typer.echo(dump_json(report), nl=False)
    else:
        from nestsim.cli.output import result_console
        from nestsim.report.text import print_simulation

        console = result_console()
        print_simulation(result, console)
        print_assertions(checked, console)
    own = 0 if result.chosen is not None else 1
    raise typer.Exit(exit_status(own, checked))


def _simulate(
    scenario: "Scenario", plan: Path | None, *, quiet: bool
) -> "SimulateResult":
    from nestsim.cli.output import progress_bar
    from nestsim.cli.results import naming
    from nestsim.job import simulate_job
    from planner.plans.json_file import read_plan

    given = None if plan is None else read_plan(plan)
    with naming(scenario.path), progress_bar(quiet=quiet) as progress:
        return simulate_job(scenario, plan=given, source=str(plan), progress=progress)
