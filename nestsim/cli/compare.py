"""``nestsim compare`` of planners, and ``nestsim diff`` of two results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.console.results import Force, Json, NoFigures, Quiet, ScenarioFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

Planners = Annotated[
    str,
    typer.Option(
        "--planners",
        metavar="NAMES",
        help="Planners to compare, separated by commas: nest, manual, mcmc, phaze, "
        "alpa, mist, exhaustive, fixed. Default: all but exhaustive, fixed where every "
        "scenario has a table [plan].",
        show_default=False,
    ),
]

Base = Annotated[
    str,
    typer.Option(
        "--base",
        metavar="NAME",
        help="The planner whose throughput is 1. Default: nest.",
        show_default=False,
    ),
]

TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="SECONDS",
        min=0.001,
        help="Each search ends this long after its first plan, with its best so far: "
        "results may then differ from run to run. Default: the scenario's "
        "search.time_limit.",
        show_default=False,
    ),
]

Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Processes. With more than one, searches slow each other down: compare "
        "their times with one.",
    ),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for the results. Default: results/ and the scenario file's name, "
        "ending in _comparison, or results/comparison; none with --json.",
        show_default=False,
    ),
]

Restart = Annotated[
    bool,
    typer.Option(
        "--restart", help="Begin anew instead of going on where it was interrupted."
    ),
]


def compare(  # noqa: PLR0913, PLR0917 - one for each option
    scenarios: ScenarioFiles,
    planners: Planners = "",
    base: Base = "",
    time_limit: TimeLimit = None,
    workers: Workers = 1,
    output: Output = None,
    restart: Restart = False,
    force: Force = False,
    no_figures: NoFigures = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare planners: one space, one evaluator, and the replay as the judge.

    Each planner searches each scenario. Its plan is priced by the same evaluator and
    replayed over the links of the network; the report says who is fastest there, by
    which term, and how far each planner's own belief is off. A comparison that was
    interrupted goes on where it was.

    Exit status 1 if in some scenario the replay confirms no planner's plan.

    Example: `nestsim compare scenarios/llama2_7b_64_h100.toml --base manual`
    """
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.compare.data import comparison_files
    from nestsim.compare.job import CompareSettings, checked_settings
    from nestsim.scenario import load_scenario

    loaded = [load_scenario(path) for path in scenarios]
    chosen = tuple(name.strip() for name in planners.split(",") if name.strip())
    settings = checked_settings(CompareSettings(planners=chosen, base=base), loaded)
    if output is None and not as_json:
        output = _default_folder(scenarios)
    names = comparison_files(loaded)
    inputs = [file for one in loaded for file in one.files()]
    with results_folder(output, names, inputs=inputs, force=force) as folder:
        with progress_bar(quiet=quiet) as progress:
            report = nestsim.compare(
                loaded,
                planners=settings.planners,
                base=settings.base,
                time_limit=time_limit,
                workers=workers,
                keep_in=None if folder is None else folder.path,
                restart=restart,
                progress=progress,
            )
        note_all(report.notices, quiet=quiet)
        if folder is not None and output is not None:
            write_report(
                folder, report, named=output, figures=not no_figures, quiet=quiet
            )
    print_report(report, as_json=as_json)
    raise typer.Exit(0 if report.succeeded else 1)


def _default_folder(scenarios: "Sequence[Path]") -> Path:
    if len(scenarios) == 1:
        return Path("results") / f"{scenarios[0].stem}_comparison"
    return Path("results") / "comparison"


Before = Annotated[
    Path,
    typer.Argument(
        metavar="A",
        help="A folder of results, or a file with what run, plan or simulate printed "
        "with --json.",
    ),
]

After = Annotated[Path, typer.Argument(metavar="B", help="Another one.")]


def diff(before: Before, after: After, as_json: Json = False) -> None:
    """Show what changed between two results: the plan, and its numbers.

    Settings of the plan that differ, stage by stage, numbers with their absolute and
    relative change, and what only one of the two has. Results of run, simulate and
    plan may be compared with each other.

    Exit status 0 if they are equal, 1 if they differ, 2 if one cannot be read.

    Example: `nestsim diff results/first results/second`
    """
    from nestsim.report.diff import compare_reports, read_report

    found = compare_reports(read_report(before), read_report(after))
    if as_json:
        from nestsim.report.diff import diff_json
        from nestsim.report.json import dump_json

        typer.echo(dump_json(diff_json(found)), nl=False)
    else:
        from nestsim.cli.console.output import result_console
        from nestsim.report.diff import print_diff

        print_diff(found, (str(before), str(after)), result_console())
    raise typer.Exit(0 if found.is_empty else 1)
