"""``nestsim memory``."""

from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.console.results import Force, Json, NoFigures, Quiet, ScenarioFile

FILES = ("memory.json", "memory.png")
"""What is written."""

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for memory.json and memory.png. Default: none.",
        show_default=False,
    ),
]


def _size(name: str, words: str) -> object:
    """Return an option for a size that replaces the scenario's."""
    return typer.Option(name, metavar="N", help=words, show_default=False)


Tensor = Annotated[int | None, _size("--tp", "Tensor-parallel size.")]
Pipeline = Annotated[int | None, _size("--pp", "Pipeline stages.")]
Data = Annotated[
    int | None, _size("--dp", "Replicas. Left out, as many as the devices suffice for.")
]
Context = Annotated[int | None, _size("--cp", "Context-parallel size.")]
Experts = Annotated[int | None, _size("--ep", "Expert-parallel size.")]
MicroBatch = Annotated[int | None, _size("--micro-batch", "Sequences of a microbatch.")]
Zero = Annotated[int | None, _size("--zero", "Stage of ZeRO, 0 to 3.")]
Recompute = Annotated[
    str | None,
    typer.Option(
        "--recompute",
        metavar="MODE",
        help="Recompute mode: none, selective, full or stage.",
        show_default=False,
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="List the tensors that layers keep for the backward pass."
    ),
]


def memory(  # noqa: PLR0913, PLR0917 - one for each option
    scenario: ScenarioFile,
    tp: Tensor = None,
    pp: Pipeline = None,
    dp: Data = None,
    cp: Context = None,
    ep: Experts = None,
    micro_batch: MicroBatch = None,
    zero: Zero = None,
    recompute: Recompute = None,
    explain: Explain = False,
    output: Output = None,
    force: Force = False,
    no_figures: NoFigures = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Count the memory of each stage, and say what would fit.

    The plan is the one in the scenario's table [plan]; without one, of what the
    scenario lets be searched, the configuration that needs the least memory. The
    options below give it other sizes. The scenario needs no network: an accelerator
    and a number of devices do.

    Where the plan does not fit, single changes that save memory are tried; where it
    does, the largest micro-batch and the longest sequence. In both cases the fewest
    devices are named that hold the job.

    Exit status 1 if a stage does not fit.

    Example: `nestsim memory scenarios/gpt_76b_1024_a100.toml --pp 2 --explain`
    """
    import nestsim
    from nestsim.cli.console.output import note_all, progress_bar
    from nestsim.cli.console.results import print_report, results_folder, write_report
    from nestsim.scenario import load_scenario

    sizes = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "b": micro_batch}
    request = _request({**sizes, "zero": zero, "recompute": recompute})
    loaded = load_scenario(scenario)
    with results_folder(output, FILES, inputs=loaded.files(), force=force) as folder:
        with progress_bar(quiet=quiet) as progress:
            report = nestsim.memory(loaded, request, explain=explain, progress=progress)
        note_all(report.notices, quiet=quiet)
        if folder is not None and output is not None:
            write_report(
                folder, report, named=output, figures=not no_figures, quiet=quiet
            )
    print_report(report, as_json=as_json)
    raise typer.Exit(0 if report.succeeded else 1)


def _request(given: dict[str, int | str | None]) -> str:
    """Write the sizes that are given, each checked on its own."""
    from planner.explain.request import Request
    from topologies.errors import InputError

    written = []
    for key, value in given.items():
        if value is None:
            continue
        item = f"{key}={value}"
        try:
            if "," in item:
                raise InputError("not one value", got=value)
            Request.parse(item)
        except InputError as error:
            option = "--micro-batch" if key == "b" else f"--{key}"
            raise error.at(option, ": ") from None
        written.append(item)
    return ",".join(written)
