"""``nestsim simulate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.arguments import Force, Json, NoFigures, Quiet, ScenarioFile

if TYPE_CHECKING:
    from nestsim.results import SimulateResult
    from nestsim.scenario import Scenario

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

Output = Annotated[
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
    output: Output = None,
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
    from nestsim.asserted import check_assertions, exit_status
    from nestsim.cli.results import inputs_of, results_folder, write_files
    from nestsim.report.assertions import assertions_json, print_assertions
    from nestsim.report.folder import FILES, result_facts, result_writers
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
        from nestsim.report.simulation import simulation_json

        report = {**simulation_json(result), **assertions_json(checked)}
        typer.echo(dump_json(report), nl=False)
    else:
        from nestsim.cli.output import result_console
        from nestsim.report.simulation import print_simulation

        console = result_console()
        print_simulation(result, console)
        print_assertions(checked, console)
    own = 0 if result.chosen is not None else 1
    raise typer.Exit(exit_status(own, checked))


def _simulate(
    scenario: "Scenario", plan: Path | None, *, quiet: bool
) -> "SimulateResult":
    from nestsim.cli.errors import naming
    from nestsim.cli.output import progress_bar
    from nestsim.simulate_job import simulate_job
    from planner.plans.json_file import read_plan

    given = None if plan is None else read_plan(plan)
    with naming(scenario.path), progress_bar(quiet=quiet) as progress:
        return simulate_job(scenario, plan=given, source=str(plan), progress=progress)
