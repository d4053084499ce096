"""``nestsim plan`` a scenario, or an instance of the published NEST artifact."""

from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.console.results import Json, Quiet, Verbose


def plan_instance(path: Path, *, score: bool, as_json: bool, quiet: bool) -> int:
    """Solve an instance file, print the answer and return the exit status.

    Parameters
    ----------
    path
        The file.
    score
        Print the baselines stored in the file beside the optimum.
    as_json
        Print JSON instead of tables.
    quiet
        Show no progress.
    """
    from nestsim.cli.console.output import working
    from planner.rivals.nest_artifact import read_instance, score_baselines, solve
    from topologies.errors import naming

    instance = read_instance(path)
    with working(f"solve {path.name}", quiet=quiet):
        with naming(path):
            solution = solve(instance)
        scored = score_baselines(instance) if score else ()
    if as_json:
        from nestsim.document.dumps import dump_json
        from nestsim.features.run.nest import scores_json, solution_json

        answer = scores_json(solution, scored) if score else solution_json(solution)
        typer.echo(dump_json(answer), nl=False)
    else:
        from nestsim.cli.console.output import result_console
        from nestsim.document.terminal import print_document
        from nestsim.features.run.nest import solution_document

        document = solution_document(solution, path.name, scored if score else None)
        print_document(document, result_console())
    return 0 if solution.plan else 1


OptionalScenarioFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="SCENARIO", help="A scenario file (TOML).", show_default=False
    ),
]

NestInstanceFile = Annotated[
    Path | None,
    typer.Option(
        "--nest-instance",
        metavar="FILE",
        help="Instead of a scenario: an instance file (JSON) of the published NEST "
        "artifact, solved exactly under the artifact's own cost model.",
        show_default=False,
    ),
]

NestScore = Annotated[
    bool,
    typer.Option(
        "--score",
        help="With --nest-instance: price the baselines stored in the file as the "
        "artifact scores them and with their stages in the true order.",
    ),
]


Explain = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="KEY=VALUE,..",
        help="Search the configurations with these values, too, and say why the best "
        "of them lost to the best plan, or does not fit. Keys: tp, pp, dp, cp, ep, b "
        "(micro-batch), v (virtual stages), recompute (none, selective, full, stage), "
        "zero (0 to 3); what is not named is searched.",
        show_default=False,
    ),
]


def plan(  # noqa: PLR0913, PLR0917 - one for each option
    scenario: OptionalScenarioFile = None,
    explain: Explain = None,
    nest_instance: NestInstanceFile = None,
    score: NestScore = False,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Print the k best plans of a scenario, with their planned times.

    The search replays the time of what it compares, unless search.objective is
    "planned"; `nestsim run` replays its best plans as a whole and judges them. Exit
    status 1 if no plan fits or something in the scenario's table [assert] does not
    hold, 0 for whatever --explain has explained.

    Example: `nestsim plan scenarios/gpt3_1.3b_8_a100.toml --explain tp=4,pp=2`
    """
    _check_what(scenario, nest_instance, score=score)
    if explain is not None:
        raise typer.Exit(_explain(scenario, explain, as_json=as_json, quiet=quiet))
    if nest_instance is not None:
        solved = plan_instance(nest_instance, score=score, as_json=as_json, quiet=quiet)
        raise typer.Exit(solved)
    if scenario is not None:
        raise typer.Exit(
            _plan_scenario(scenario, as_json=as_json, verbose=verbose, quiet=quiet)
        )


def _check_what(scenario: Path | None, instance: Path | None, *, score: bool) -> None:
    """Refuse anything but either a scenario or an instance."""
    from topologies.errors import InputError

    expected = "either a scenario file or --nest-instance FILE"
    if scenario is None and instance is None:
        raise InputError("nothing to plan", where="SCENARIO", expected=expected)
    if scenario is not None and instance is not None:
        raise InputError(
            "does not go with a scenario",
            where="--nest-instance",
            got=str(scenario),
            expected=expected,
        )
    if score and instance is None:
        raise InputError(
            "needs an instance that stores baselines",
            where="--score",
            expected="--nest-instance FILE",
        )


def _explain(scenario: Path | None, text: str, *, as_json: bool, quiet: bool) -> int:
    """Explain a configuration of a scenario and return the exit status."""
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report
    from nestsim.scenario import load_scenario
    from planner.explain.request import Request
    from topologies.errors import InputError

    if scenario is None:
        raise InputError(
            "needs a scenario to search", where="--explain", expected="a scenario file"
        )
    loaded = load_scenario(scenario)
    try:
        request = Request.parse(text)
    except InputError as error:
        raise error.at("--explain") from None
    with progress_bar(quiet=quiet) as progress:
        report = nestsim.explain(loaded, request, progress=progress)
    note_all(report.notices, quiet=quiet)
    print_report(report, as_json=as_json)
    return 0


def _plan_scenario(scenario: Path, *, as_json: bool, verbose: bool, quiet: bool) -> int:
    """Plan a scenario, print the plans and return the exit status."""
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report

    with progress_bar(quiet=quiet) as progress:
        report = nestsim.plan(scenario, progress=progress)
    note_all(report.notices, quiet=quiet)
    print_report(report, as_json=as_json, verbose=verbose)
    return 0 if report.succeeded else 1
