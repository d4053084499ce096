"""The command line as a whole: its commands, in the order in which help lists them.

Only typer is imported here; each command imports what it needs when it runs, so that
``nestsim --help`` and shell completion answer at once.
"""

from typing import Annotated

import typer

from nestsim.cli.catalog import accelerators, models, schema, topology
from nestsim.cli.collectives import collectives
from nestsim.cli.compare import compare, diff
from nestsim.cli.console.several import SeveralValues
from nestsim.cli.export import export
from nestsim.cli.import_ import import_
from nestsim.cli.memory import memory
from nestsim.cli.operations.goodput import goodput
from nestsim.cli.operations.jitter import jitter
from nestsim.cli.operations.jobs import jobs
from nestsim.cli.plan import plan
from nestsim.cli.profile import calibrate, profile
from nestsim.cli.report import report
from nestsim.cli.run import run, simulate
from nestsim.cli.stress import stress
from nestsim.cli.sweep import sweep
from nestsim.cli.validate import validate

app = typer.Typer(
    name="nestsim",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"nestsim {version('nestsim')}")
        raise typer.Exit


@app.callback()
def nestsim(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Plan, replay and report distributed training of large models.

    On this cluster, how should this model be split and placed, and what throughput
    and memory will it really get? A planner proposes placements; a simulator replays
    the best of them over the cluster's real links; only a plan that the replay has
    confirmed is reported.

    What is computed stands in a scenario, a TOML file. Results go to standard output,
    everything else to standard error.

    Exit status: 0 done (and confirmed), 1 nothing fits, nothing is confirmed or an
    assertion of the scenario does not hold, 2 the input is wrong or results cannot be
    written, 130 interrupted, 143 terminated.

    Example: `nestsim run scenarios/llama2_7b_64_h100.toml`
    """


for _command in (
    run,
    plan,
    simulate,
    memory,
    compare,
    stress,
    goodput,
    jitter,
    sweep,
    jobs,
    diff,
    export,
    import_,
    report,
    validate,
    calibrate,
    collectives,
    topology,
    models,
    accelerators,
    profile,
    schema,
):
    app.command(
        _command.__name__.rstrip("_"),
        cls=SeveralValues if _command is compare else None,
    )(_command)
