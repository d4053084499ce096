"""``nestsim run`` a scenario, and ``nestsim simulate`` a plan that is given."""

from collections import Counter
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
    ScenarioFiles,
    Verbose,
)

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


def run(  # noqa: PLR0913, PLR0917 - one for each option
    scenarios: ScenarioFiles,
    output: Output = None,
    force: Force = False,
    no_figures: NoFigures = False,
    html: Html = False,
    as_json: Json = False,
    verbose: Verbose = False,
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
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folders, write_report
    from nestsim.features.run.files import FILES
    from nestsim.scenario import load_scenario

    loaded = [load_scenario(path) for path in scenarios]
    folders = _folders(scenarios, output)
    inputs = [file for scenario in loaded for file in scenario.files()]
    status = 0
    with results_folders(folders, FILES, inputs=inputs, force=force) as claimed:
        for scenario, folder, named in zip(loaded, claimed, folders, strict=True):
            with progress_bar(quiet=quiet) as progress:
                report = nestsim.run(scenario, progress=progress)
            note_all(report.notices, quiet=quiet)
            write_report(
                folder,
                report,
                named=named,
                figures=not no_figures,
                html=html,
                quiet=quiet,
            )
            print_report(report, as_json=as_json, verbose=verbose)
            status = max(status, 0 if report.succeeded else 1)
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
    html: Html = False,
    as_json: Json = False,
    verbose: Verbose = False,
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
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.features.run.files import FILES
    from nestsim.scenario import load_scenario

    loaded = load_scenario(scenario)
    inputs = [*loaded.files(), *([] if plan is None else [plan])]
    with results_folder(output, FILES, inputs=inputs, force=force, html=html) as folder:
        with progress_bar(quiet=quiet) as progress:
            report = nestsim.simulate(loaded, plan, progress=progress)
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
    print_report(report, as_json=as_json, verbose=verbose)
    raise typer.Exit(0 if report.succeeded else 1)
