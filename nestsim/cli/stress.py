"""``nestsim stress``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from nestsim.scenario import Scenario

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for stress.json, stress.csv, matrix.csv and the pictures. A test "
        "that was killed goes on there. Default: none.",
        show_default=False,
    ),
]

Ratios = Annotated[
    list[str] | None,
    typer.Option(
        "--oversubscription",
        metavar="LEVEL=R,R..",
        help="Ratios of a level, e.g. leaf=1,2,4,8; once for each level. Replaces "
        "[stress.oversubscription].",
        show_default=False,
    ),
]

Planners = Annotated[
    str | None,
    typer.Option(
        "--planners",
        metavar="NAME,NAME..",
        help="Whose plans, e.g. nest,manual. Replaces stress.planners.",
        show_default=False,
    ),
]

Keep = Annotated[
    float | None,
    typer.Option(
        "--keep",
        metavar="SHARE",
        help="Ask how far a level can be worsened while this share of the throughput "
        "is kept, e.g. 0.95.",
        show_default=False,
    ),
]

Level = Annotated[
    str | None,
    typer.Option(
        "--level",
        metavar="LEVEL",
        help="Which level --keep asks of.",
        show_default=False,
    ),
]

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Processes; results do not depend on it. Default: one for each core.",
        show_default=False,
    ),
]

Restart = Annotated[
    bool,
    typer.Option("--restart", help="Forget what an earlier test left in the folder."),
]


def stress(  # noqa: PLR0913, PLR0917 - one for each option
    scenario: ScenarioFile,
    oversubscription: Ratios = None,
    planners: Planners = None,
    keep: Keep = None,
    level: Level = None,
    workers: Workers = None,
    executor: ExecutorName = "processes",
    scheduler: Scheduler = None,
    restart: Restart = False,
    output: Output = None,
    force: Force = False,
    no_figures: NoFigures = False,
    html: Html = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put plans under worse networks: oversubscription, lost and slow parts, traffic.

    For each condition of the table [stress]: the plan made for the network as built,
    kept and replayed under it; the plan re-made for it; what keeping costs, and what
    limits. Also: the ratio at which the best plan changes, how far a level can be
    worsened while a share of the throughput is kept, and the plan with the least
    regret over all conditions.

    Exit status 1 if no planner finds a plan.

    Example: `nestsim stress scenarios/llama2_7b_64_h100.toml --keep 0.95 -o stress`
    """
    import nestsim
    from nestsim.cli.console.executors import chosen_executor
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.features.stress.record import FILES
    from nestsim.scenario import load_scenario

    loaded = _with_options(
        load_scenario(scenario),
        oversubscription=_axes(oversubscription or []),
        planners=_names(planners),
        keep=_share(keep),
        level=level,
        workers=workers,
    )
    inputs = loaded.files()
    with (
        chosen_executor(executor, scheduler, workers=workers, quiet=quiet) as evaluator,
        results_folder(output, FILES, inputs=inputs, force=force, html=html) as folder,
    ):
        stores = None if folder is None else folder.path
        with progress_bar(quiet=quiet) as progress:
            report = nestsim.stress(
                loaded,
                keep_in=stores,
                restart=restart,
                executor=evaluator,
                progress=progress,
            )
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


def _with_options(scenario: "Scenario", **given: Any) -> "Scenario":
    from nestsim.features.stress.job import with_options

    return with_options(scenario, **given)


def _names(text: str | None) -> tuple[str, ...]:
    """Read ``nest,manual``, each once."""
    return tuple(dict.fromkeys(one.strip() for one in (text or "").split(",") if one))


def _axes(texts: list[str]) -> dict[str, tuple[float, ...]]:
    """Read ``leaf=1,2,4``, once for each level."""
    from topologies.errors import InputError

    axes: dict[str, tuple[float, ...]] = {}
    for text in texts:
        level, equals, listed = text.rpartition("=")
        ratios = tuple(_ratio(part, text) for part in listed.split(","))
        is_wrong = not equals or not level.strip() or level.strip() in axes
        if is_wrong or len(set(ratios)) < len(ratios):
            raise InputError(
                "is not a level with ratios, each given once",
                where="--oversubscription",
                got=text,
                expected="LEVEL=RATIO,.., e.g. leaf=1,2,4,8",
            )
        axes[level.strip()] = ratios
    return axes


def _ratio(part: str, text: str) -> float:
    from nestsim.features.stress.conditions import MOST_RATIO
    from topologies.errors import InputError

    try:
        ratio = float(part)
    except ValueError:
        ratio = -1.0
    if not 0.0 < ratio <= MOST_RATIO:
        raise InputError(
            "is not a positive ratio",
            where="--oversubscription",
            got=part.strip() or text,
            expected="LEVEL=RATIO,.., e.g. leaf=1,2,4,8",
        )
    return ratio


def _share(keep: float | None) -> float | None:
    from topologies.errors import InputError

    if keep is not None and not 0.0 < keep < 1.0:
        raise InputError(
            "is no share",
            where="--keep",
            got=keep,
            expected="a number between 0 and 1, e.g. 0.95",
        )
    return keep
