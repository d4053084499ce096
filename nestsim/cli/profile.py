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


Links = Annotated[
    bool,
    typer.Option(
        "--links",
        help="Measure collectives between devices instead of operators.",
    ),
]

Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        metavar="N",
        help="Processes to start, with --links. Default: one for each GPU, up to 4 on "
        "a CPU.",
    ),
]

Bandwidth = Annotated[
    str | None,
    typer.Option(
        "--bandwidth",
        metavar="RATE",
        help="Of a device's links inside a node by the datasheet, with --links: "
        '"450 GB/s". Default: that of the catalogue, else the highest measured.',
    ),
]

NicBandwidth = Annotated[
    str | None,
    typer.Option(
        "--nic-bandwidth",
        metavar="RATE",
        help="Of all adapters of a node together, likewise. Default: the highest "
        "measured.",
    ),
]


def profile(  # noqa: PLR0913, PLR0917 - one for each option
    output: Output,
    device: Device = DeviceKind.cpu,
    quick: Quick = False,
    check: Check = False,
    budget: Budget = "5 min",
    links: Links = False,
    ranks: Ranks = None,
    bandwidth: Bandwidth = None,
    nic_bandwidth: NicBandwidth = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure this machine's operators, or its links, with torch.

    Products, attention, norms, activations, loss and the rest of what a transformer's
    layers consist of, at several sizes, in each number format that the device trains
    in: warmed up, synchronised, median and quartiles. The profile is written as JSON.

    With `--check`, layers of other sizes are predicted from it, and measured.

    With `--links`, collectives between processes are measured as nccl-tests does, from
    1 KiB to 1 GiB: NCCL with a process for each GPU, gloo on a CPU; or between the
    processes that torchrun has started, on several nodes too. Launches, ramp and the
    part of the bandwidth that is reached are fitted and written as TOML, for
    `software.links` of scenarios.

    Example: `nestsim profile --device cpu --quick --check -o cpu.json`

    Example: `torchrun --nproc-per-node 8 -m nestsim profile --links --device cuda -o
    links.toml`
    """
    if links:
        _check_alone("--check", given=check)
        stated = (
            _rate(bandwidth, "--bandwidth"),
            _rate(nic_bandwidth, "--nic-bandwidth"),
        )
        from nestsim.cli.profile_links import profile_links

        profile_links(
            output,
            device.value,
            ranks,
            stated,
            budget=_seconds(budget),
            quick=quick,
            force=force,
            as_json=as_json,
            quiet=quiet,
        )
        return
    given = {"--ranks": ranks, "--bandwidth": bandwidth}
    for name, value in (given | {"--nic-bandwidth": nic_bandwidth}).items():
        _check_links(name, given=value is not None)
    from datetime import UTC, datetime

    from estimators.operators.profile import is_profile, write_profile
    from nestsim.cli.output import note, progress_bar, working
    from nestsim.cli.results import check_output_file, write_output_file

    seconds = _seconds(budget)
    check_output_file(output, is_profile, inputs=(), force=force)
    from estimators.measuring.devices import available_device
    from estimators.measuring.operators import check_layers, measure_profile

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


def _check_alone(option: str, *, given: bool) -> None:
    """Refuse what goes with operators only."""
    from topologies.errors import InputError

    if given:
        raise InputError(
            "is about operators",
            where=option,
            got=f"--links {option}",
            expected="one of the two",
        )


def _check_links(option: str, *, given: bool) -> None:
    """Refuse what goes with links only."""
    from topologies.errors import InputError

    if given:
        raise InputError("is about links", where=option, expected="--links with it")


def _rate(text: str | None, option: str) -> float | None:
    """Read a bandwidth with its unit [byte/s]; None if none is stated."""
    from topologies.errors import InputError
    from topologies.units import parse_quantity

    if text is None:
        return None
    try:
        found = parse_quantity(text, "bandwidth")
    except InputError as error:
        raise error.at(option) from None
    if found <= 0:
        raise InputError(
            "must be more than 0", where=option, got=text, expected='e.g. "450 GB/s"'
        )
    return found


def _seconds(text: str) -> float:
    """Read a time with its unit [s]."""
    from topologies.errors import InputError
    from topologies.units import parse_quantity

    try:
        return parse_quantity(text, "duration")
    except InputError as error:
        raise error.at("--budget") from None
