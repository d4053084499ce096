"""``nestsim import`` a launch configuration as a scenario with its plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestsim.cli.console.results import Force, Json, Quiet

if TYPE_CHECKING:
    from nestsim.scenario import Scenario

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A shell script, log or checkpoint of Megatron-LM, a recipe or YAML of "
        "NeMo or Megatron Bridge, an experiment of Primus, a script of slime or verl, "
        "a configuration of torchtitan (TOML, log), GPT-NeoX (YAML), DeepSpeed (JSON) "
        "or MaxText (YAML, log), or a Hugging Face config.json.",
    ),
]

Format = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        help="megatron, megatron-args, nemo, primus, slime, verl, torchtitan, neox, "
        "deepspeed, maxtext or huggingface. Default: what the file looks like.",
        show_default=False,
    ),
]

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME|FILE",
        help="A name that `nestsim models` lists or a config.json, where the "
        "configuration does not spell the model out.",
        show_default=False,
    ),
]

Cluster = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="SCENARIO",
        help="A scenario whose cluster the job runs on. Default: H100 servers on a "
        "fabric that does not block.",
        show_default=False,
    ),
]

AcceleratorOption = Annotated[
    str | None,
    typer.Option(
        "--accelerator",
        metavar="NAME",
        help="A name that `nestsim accelerators` lists, without --cluster.",
        show_default=False,
    ),
]

NumDevices = Annotated[
    int | None,
    typer.Option(
        "--num-devices",
        min=1,
        help="Devices of the job. Default: what the configuration says.",
        show_default=False,
    ),
]

Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A variable that a shell script takes from outside, a parameter of a "
        "recipe (RECIPE names one of several) or a setting, as often as needed.",
        show_default=False,
    ),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the scenario goes. Default: standard output.",
        show_default=False,
    ),
]


def import_(  # noqa: PLR0913, PLR0917 - one for each option
    file: File,
    format_: Format = None,
    model: Model = None,
    cluster: Cluster = None,
    accelerator: AcceleratorOption = None,
    num_devices: NumDevices = None,
    values: Values = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read a launch configuration as a scenario, its plan in the table [plan].

    What somebody runs today becomes a scenario that `nestsim simulate` explains and
    `nestsim run` improves on. Each thing that the configuration does not say and that
    was assumed is listed in the scenario's first lines and on standard error. Nothing
    of a script is executed.

    Example: `nestsim import config.json --num-devices 64`
    """
    import nestsim
    from nestsim.cli.console.output import note, note_all
    from nestsim.cli.console.results import (
        check_output_file,
        print_report,
        write_output_file,
    )

    inputs = [file, *([] if cluster is None else [cluster])]
    if output is not None:
        check_output_file(output, _is_ours, inputs=inputs, force=force)
    report = nestsim.import_launch(
        file,
        format=format_,
        given={
            "model": model,
            "num_devices": num_devices,
            "variables": parsed_variables(values or []),
        },
        cluster=_cluster(cluster),
        accelerator=accelerator,
        saved_as=output,
    )
    note_all(report.notices, quiet=quiet)
    if output is not None:
        write_output_file(output, lambda path: path.write_bytes(report.scenario.text))
        note(f"The scenario is in {output}", quiet=quiet)
    if output is None or as_json:
        print_report(report, as_json=as_json)


def _is_ours(content: bytes) -> bool:
    """Whether a file is a scenario that was imported before."""
    return content.startswith(b"# Read of ")


def parsed_variables(values: list[str], file: Path | None = Path()) -> dict[str, Any]:
    """Return the values of variables by name.

    Raises
    ------
    InputError
        If one is no ``NAME=VALUE``, or there is no file that takes them.
    """
    from topologies.errors import InputError

    if values and file is None:
        raise InputError(
            "is for a script that takes variables from outside",
            where="--set",
            got=values[0],
            expected="--onto FILE beside it",
        )

    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not (name.isidentifier() or name.isdecimal()) or not equals:
            raise InputError(
                "is not the value of a variable",
                where="--set",
                got=name + equals,
                expected="NAME=VALUE, such as --set NNODES=8",
            )
    return {name: value for name, _, value in pairs}


def _cluster(path: Path | None) -> "Scenario | None":
    from nestsim.scenario import load_scenario

    return None if path is None else load_scenario(path)
