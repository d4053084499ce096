"""Instances of the published NEST artifact, in place of a scenario."""

from pathlib import Path

import typer


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
    from nestsim.cli.errors import naming
    from nestsim.cli.output import working
    from planner.nest_artifact import read_instance, score_baselines, solve

    instance = read_instance(path)
    with working(f"solve {path.name}", quiet=quiet):
        with naming(path):
            solution = solve(instance)
        scored = score_baselines(instance) if score else ()
    if as_json:
        from nestsim.report.json import dump_json
        from nestsim.report.nest import scores_json, solution_json

        answer = scores_json(solution, scored) if score else solution_json(solution)
        typer.echo(dump_json(answer), nl=False)
    else:
        from nestsim.cli.output import result_console
        from nestsim.report.nest import print_scores, print_solution

        console = result_console()
        if score:
            print_scores(solution, scored, path.name, console)
        else:
            print_solution(solution, path.name, console)
    return 0 if solution.plan else 1
