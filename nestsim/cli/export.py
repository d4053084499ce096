"""``nestsim export`` a plan as the launch configuration of a framework."""

from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.console.results import Force, Json, Quiet, TrustCode
from nestsim.cli.import_ import Values, parsed_variables

Source = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE",
        help="A folder of results of `nestsim run` or `simulate`, a plan (JSON) with "
        "--scenario, or a scenario with a table [plan].",
    ),
]

Format = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FORMAT",
        help="megatron, megatron-bridge, torchtitan, deepspeed, maxtext, plan (ours) "
        "or chakra (execution traces). Default: that of the scenario's framework.",
        show_default=False,
    ),
]

ScenarioOption = Annotated[
    Path | None,
    typer.Option(
        "--scenario",
        metavar="FILE",
        help="The scenario that a plan in JSON belongs to. Default: scenario.toml "
        "beside the plan.",
        show_default=False,
    ),
]

Onto = Annotated[
    Path | None,
    typer.Option(
        "--onto",
        metavar="FILE",
        help="A launch script or configuration of yours: only what the plan asks for "
        "otherwise is changed of it, and the changes are printed. The file itself "
        "stays; --output writes the changed one.",
        show_default=False,
    ),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for all files. Default: the main one goes to standard output.",
        show_default=False,
    ),
]


def export(  # noqa: PLR0913, PLR0917 - one for each option
    source: Source,
    to: Format = None,
    scenario: ScenarioOption = None,
    onto: Onto = None,
    values: Values = None,
    output: Output = None,
    trust_code: TrustCode = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a plan as a launch configuration: complete, commented, ready to edit.

    The configuration holds the model, the batch, parallel sizes and layout, recompute,
    sharding, overlaps and the order of ranks; a host file or rank map where the
    placement asks for one. What the framework's configuration cannot express is said
    in words, there and on standard error. Code that the scenario of a folder names
    runs only with --trust-code.

    With --onto the plan is put into a file that you have, in place: comments, order and
    variables stay, and a unified diff shows what differs.

    Example: `nestsim export scenarios/gpt_76b_1024_a100.toml`
    """
    import nestsim
    from nestsim.cli.console.output import note, note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.launch.registry import find_writer
    from nestsim.scenario import load_scenario

    if to is not None:
        find_writer(to)
    given = {"variables": parsed_variables(values or [], onto)}
    file, plan = _parts(source, scenario)
    trusted = trust_code or file in (source, scenario)
    loaded = load_scenario(file, trust_code=trusted)
    with progress_bar(quiet=quiet) as progress:
        report = nestsim.export(
            loaded, to, plan=plan, onto=onto, given=given, progress=progress
        )
    names = list(report.contents().writers)
    inputs = [*loaded.files(), *([] if plan is None else [plan])]
    with results_folder(output, names, inputs=inputs, force=force) as folder:
        note_all(report.notices, quiet=quiet)
        if folder is not None and output is not None:
            write_report(folder, report, named=output, figures=True, quiet=quiet)
    if output is None or as_json:
        if len(names) > 1 and output is None and not as_json:
            note(f"--output DIR writes {', '.join(names[1:])}, too", quiet=quiet)
        print_report(report, as_json=as_json)


def _parts(source: Path, scenario: Path | None) -> tuple[Path, Path | None]:
    """Return the files of the scenario and of the plan, None for its table [plan]."""
    from nestsim.face.launch import PLAN, SCENARIO

    if source.is_dir():
        return scenario or source / SCENARIO, source / PLAN
    if source.suffix.lower() == ".json":
        return scenario or source.with_name(SCENARIO), source
    if scenario is not None:
        from topologies.errors import InputError

        raise InputError(
            "is for a plan in JSON or a folder of results",
            where="--scenario",
            got=str(source),
            expected="plan.json or a folder of results as SOURCE",
        )
    return source, None
