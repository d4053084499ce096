"""``nestsim profile``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.arguments import Force, Json, Quiet


class DeviceKind(StrEnum):
    """What torch can be asked for."""

    cpu = "cpu"
    cuda = "cuda"


Device = Annotated[
    DeviceKind, typer.Option("--device", help="What is measured: the CPU or one GPU.")
]

Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="The profile to write.")
]

Quick = Annotated[
    bool, typer.Option("--quick", help="Fewer sizes and samples: a first look.")
]

Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Predict whole layers from the profile, and measure them."
    ),
]

Budget = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="TIME",
        help='Begin no measurement later than that: "5 min". The first size is '
        "measured in any case.",
    ),
]


def profile(  # noqa: PLR0913, PLR0917 - one for each option
    output: Output,
    device: Device = DeviceKind.cpu,
    quick: Quick = False,
    check: Check = False,
    budget: Budget = "5 min",
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure this machine's operators with torch.

    Products, attention, norms, activations, loss and the rest of what a transformer's
    layers consist of, at several sizes, in each number format that the device trains
    in: warmed up, synchronised, median and quartiles. The profile is written as JSON.

    With `--check`, layers of other sizes are predicted from it, and measured.

    Example: `nestsim profile --device cpu --quick --check -o cpu.json`
    """
    from datetime import UTC, datetime

    from estimators.profile import is_profile, write_profile
    from nestsim.cli.output import note, progress_bar, working
    from nestsim.cli.results import check_output_file, write_output_file

    seconds = _seconds(budget)
    check_output_file(output, is_profile, inputs=(), force=force)
    from estimators.measuring.devices import available_device
    from estimators.measuring.layers import check_layers
    from estimators.measuring.operators import measure_profile

    chosen = available_device(device.value)
    with progress_bar(quiet=quiet) as progress:
        measured = measure_profile(
            chosen,
            date=datetime.now(UTC).date().isoformat(),
            budget=seconds,
            quick=quick,
            progress=progress,
        )
    write_output_file(output, lambda path: write_profile(measured, path))
    note(f"The profile is in {output}", quiet=quiet)
    with working("check: measure whole layers", quiet=quiet):
        checks = check_layers(measured, chosen, quick=quick) if check else []
    if as_json:
        from nestsim.report.json import dump_json
        from nestsim.report.profile import profile_json

        typer.echo(dump_json(profile_json(measured, checks)), nl=False)
        return
    from nestsim.cli.output import result_console
    from nestsim.report.profile import print_profile

    print_profile(measured, checks, result_console())


def _seconds(text: str) -> float:
    """Read a time with its unit [s]."""
    from topologies.errors import InputError
    from topologies.units import parse_quantity

    try:
        return parse_quantity(text, "duration")
    except InputError as error:
        raise error.at("--budget") from None
