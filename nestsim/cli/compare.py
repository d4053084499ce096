"""``nestsim compare`` of planners or networks; ``nestsim diff`` of two results."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from nestsim.cli.console.results import (
    Force,
    Html,
    Json,
    NoFigures,
    Quiet,
    ScenarioFiles,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nestsim.face.report import FolderReport
    from nestsim.scenario import Scenario

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


class SpaceOfPlans(StrEnum):
    """What planners may be held to."""

    launchable = "launchable"
    free = "free"


Space = Annotated[
    SpaceOfPlans | None,
    typer.Option(
        "--space",
        help="What all planners are held to: plans that the framework can launch, or "
        "any; the report says what the first costs against the second. Default: what "
        "the scenario's search.launchable says.",
        show_default=False,
    ),
]

Networks = Annotated[
    list[Path] | None,
    typer.Option(
        "--networks",
        metavar="FILE...",
        help="Compare networks instead: two or more files that each hold one. The job "
        "of the one SCENARIO, which comes before, is taken to each; the throughput of "
        "the first network is 1.",
        show_default=False,
    ),
]


class EqualIn(StrEnum):
    """What networks may have to be equal in."""

    ports = "ports"
    cost = "cost"


MustBeEqual = Annotated[
    EqualIn | None,
    typer.Option(
        "--equal",
        help="With --networks: exit status 1 unless the networks are equal in this, "
        "within 5 %. The report says whether they are in any case.",
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
        "ending in _comparison or, of networks, in _networks; results/comparison for "
        "several scenarios; none with --json.",
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
    space: Space = None,
    networks: Networks = None,
    equal: MustBeEqual = None,
    workers: Workers = 1,
    output: Output = None,
    restart: Restart = False,
    force: Force = False,
    no_figures: NoFigures = False,
    html: Html = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare planners or networks: one evaluator, and the replay as the judge.

    Each planner searches each scenario. Its plan is priced by the same evaluator and
    replayed over the links of the network; the report says who is fastest there, by
    which term, and how far each planner's own belief is off. A comparison that was
    interrupted goes on where it was.

    With `--networks` the job of one scenario is searched and replayed on each of
    several networks of as many devices, by the scenario's planner or those named. What
    each network gives stands beside its switches, ports, cables and cost.

    Exit status 1 if in some scenario, or on some network, the replay confirms no plan.

    Example: `nestsim compare scenarios/llama2_7b_64_h100.toml --base manual`

    Example: `nestsim compare scenarios/llama2_7b_64_h100.toml --networks
    scenarios/networks/rail.toml scenarios/networks/torus.toml`
    """
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.scenario import load_scenario

    loaded = [load_scenario(path) for path in scenarios]
    chosen = tuple(name.strip() for name in planners.split(",") if name.strip())
    if networks is None:
        _refuse_equal(equal)
        asked = _planners_asked(loaded, chosen, base, time_limit, space)
    else:
        job = _one_job(loaded, base, time_limit, space)
        asked = _networks_asked(job, networks, chosen, equal)
    if output is None and not as_json:
        output = asked.folder
    inputs = asked.inputs
    with results_folder(
        output, asked.names, inputs=inputs, force=force, html=html
    ) as folder:
        with progress_bar(quiet=quiet) as progress:
            report = asked.call(
                workers=workers,
                keep_in=None if folder is None else folder.path,
                restart=restart,
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


class _Asked(NamedTuple):
    """A comparison, ready to be made."""

    call: "Callable[..., FolderReport]"
    """Makes it."""

    names: "Sequence[str]"
    """Files that may be written."""

    inputs: "Sequence[Path]"
    """Files that are read."""

    folder: Path
    """Where results go if nobody says."""


def _planners_asked(
    loaded: "Sequence[Scenario]",
    planners: "Sequence[str]",
    base: str,
    time_limit: float | None,
    space: SpaceOfPlans | None,
) -> _Asked:
    import nestsim
    from nestsim.features.compare.job import CompareSettings, checked_settings
    from nestsim.features.compare.record import comparison_files

    wanted = CompareSettings(planners=tuple(planners), base=base)
    settings = checked_settings(wanted, loaded)
    return _Asked(
        call=partial(
            nestsim.compare,
            loaded,
            planners=settings.planners,
            base=settings.base,
            time_limit=time_limit,
            space="" if space is None else space.value,
        ),
        names=comparison_files(loaded),
        inputs=[file for one in loaded for file in one.files()],
        folder=_default_folder([one.path for one in loaded]),
    )


def _networks_asked(
    job: "Scenario",
    networks: "Sequence[Path]",
    planners: "Sequence[str]",
    equal: EqualIn | None,
) -> _Asked:
    import nestsim
    from nestsim.features.compare.networks_job import (
        checked_planners,
        read_network_files,
    )
    from nestsim.features.compare.networks_record import networks_files

    files = read_network_files(networks)
    return _Asked(
        call=partial(
            nestsim.compare_networks,
            job,
            networks,
            planners=checked_planners(planners, job),
            equal=None if equal is None else equal.value,
        ),
        names=networks_files(job, files),
        inputs=[*job.files(), *(file.path for file in files)],
        folder=Path("results") / f"{job.path.stem}_networks",
    )


def _one_job(
    loaded: "Sequence[Scenario]",
    base: str,
    time_limit: float | None,
    space: SpaceOfPlans | None,
) -> "Scenario":
    """Return the scenario that is taken to every network."""
    from topologies.errors import InputError

    if len(loaded) > 1:
        raise InputError(
            "networks are compared by one job",
            where="SCENARIO",
            got=" ".join(str(one.path) for one in loaded),
            expected="one scenario before --networks, and the networks behind it",
        )
    if base:
        raise InputError(
            "the network of the first file is the one whose throughput is 1",
            where="--base",
            got=base,
            expected="left out, and that file first in --networks",
        )
    (job,) = loaded
    changed: dict[str, object] = {}
    if time_limit is not None:
        changed["search.time_limit"] = f"{time_limit!r} s"
    if space is not None:
        changed["search.launchable"] = space is SpaceOfPlans.launchable
    return job.replace(changed) if changed else job


def _refuse_equal(equal: EqualIn | None) -> None:
    from topologies.errors import InputError

    if equal is not None:
        raise InputError(
            "is about networks",
            where="--equal",
            got=equal.value,
            expected="two or more files of networks in --networks",
        )


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
    from nestsim.features.run.diff import compare_reports, read_report

    found = compare_reports(read_report(before), read_report(after))
    if as_json:
        from nestsim.document.dumps import dump_json
        from nestsim.features.run.diff import diff_json

        typer.echo(dump_json(diff_json(found)), nl=False)
    else:
        from nestsim.cli.console.output import result_console
        from nestsim.document.terminal import print_document
        from nestsim.features.run.diff import diff_document

        document = diff_document(found, (str(before), str(after)))
        print_document(document, result_console())
    raise typer.Exit(0 if found.is_empty else 1)
