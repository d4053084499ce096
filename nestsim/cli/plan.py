"""``nestsim plan``."""

import typer

from nestsim.cli.arguments import Json, Quiet, ScenarioFile


def plan(scenario: ScenarioFile, as_json: Json = False, quiet: Quiet = False) -> None:
    """Print the k best plans of a scenario, without replaying them.

    What is printed is what the planner believes; `nestsim run` finds out whether it
    is true. Exit status 1 if no plan fits.

    Example: `nestsim plan scenarios/gpt3_1.3b_8_a100.toml`
    """
    from nestsim.cli.errors import naming
    from nestsim.cli.output import progress_bar, result_console
    from nestsim.scenario import load_scenario

    loaded = load_scenario(scenario)
    from nestsim.job import plan_job

    with naming(scenario), progress_bar(quiet=quiet) as progress:
        result = plan_job(loaded, progress=progress)
    if as_json:
        from nestsim.report.json import dump_json, plan_json

        typer.echo(dump_json(plan_json(result)), nl=False)
    else:
        from nestsim.report.text import print_plans

        print_plans(result, result_console())
    raise typer.Exit(0 if result.candidates else 1)
