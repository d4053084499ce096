"""``nestsim profile`` this machine, and ``nestsim calibrate`` to own runs.

Of a machine either operators are measured, or, with ``--links``, collectives between
processes, which are fitted and written; with ``--nccl-tests`` those that logs of
nccl-tests have.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.console.results import Force, Json, Quiet

if TYPE_CHECKING:
    from estimators.measuring.links import World
    from estimators.user_files import LinkSweep
    from nestsim.features.profile.links import LinkFit, Stated
    from nestsim.features.profile.nccl_tests import LogOptions
    from planner.work import Progress


def profile_links(  # noqa: PLR0913 - one for each option
    output: Path,
    device: str,
    ranks: int | None,
    stated: tuple[float | None, float | None],
    *,
    budget: float,
    quick: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure collectives, fit what links reach, print it, and write the file.

    Under a launcher every process comes here; the first one prints and writes.

    Parameters
    ----------
    output
        The file to write.
    device
        ``"cpu"`` or ``"cuda"``.
    ranks
        Processes to start; None for as many as are sensible.
    stated
        Bandwidth of a device's links, and of all adapters of a node, by the
        datasheet; None where nothing is stated [byte/s].
    budget
        No measurement begins later than that [s].
    quick, force, as_json, quiet
        As the options say.
    """
    import os
    from datetime import UTC, datetime

    from estimators.measuring.link_processes import launched_world, local_ranks
    from estimators.measuring.links import measure_links
    from estimators.measuring.operators import available_device
    from estimators.user_files import is_user_links
    from nestsim.cli.console.output import note, progress_bar
    from nestsim.cli.console.results import check_output_file, write_output_file
    from nestsim.document.folder import writer_of
    from nestsim.features.profile.links import fit_links

    available_device(device)
    world = launched_world(os.environ, device)
    count = local_ranks(device, ranks) if world is None else world.num_ranks
    if world is not None:
        _check_launched(ranks, count)
        if world.rank > 0:
            measure_links(world, budget=budget, quick=quick)
            return
    check_output_file(output, is_user_links, inputs=(), force=force)
    with progress_bar(quiet=quiet) as progress:
        sweep = _measured(
            world, (device, count), budget=budget, quick=quick, progress=progress
        )
    date = datetime.now(UTC).date().isoformat()
    fitted = fit_links(
        sweep, _stated(sweep.device, stated), name=output.name, date=date
    )
    write_output_file(output, writer_of(fitted.links.toml()))
    note(f"The links are in {output}", quiet=quiet)
    _print(fitted, as_json=as_json)


def profile_logs(  # noqa: PLR0913 - one for each option
    output: Path,
    logs: list[Path],
    options: "LogOptions",
    stated: tuple[float | None, float | None],
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fit what links reach to logs of nccl-tests, print it, and write the file.

    Parameters
    ----------
    output
        The file to write.
    logs
        What programs of nccl-tests printed.
    options
        What the logs do not tell.
    stated
        As for `profile_links`.
    force, as_json, quiet
        As the options say.
    """
    from estimators.user_files import is_user_links
    from nestsim.cli.console.output import note
    from nestsim.cli.console.results import check_output_file, write_output_file
    from nestsim.document.folder import writer_of
    from nestsim.features.profile.links import fit_links
    from nestsim.features.profile.nccl_tests import read_nccl_tests

    check_output_file(output, is_user_links, inputs=logs, force=force)
    sweep = read_nccl_tests(logs, options)
    # Logs have no date, and a file of today would not be the same tomorrow.
    fitted = fit_links(
        sweep, _stated(sweep.device, stated), name=output.name, date="date unknown"
    )
    write_output_file(output, writer_of(fitted.links.toml()))
    note(f"The links are in {output}", quiet=quiet)
    _print(fitted, as_json=as_json)


def _measured(
    world: "World | None",
    local: tuple[str, int],
    *,
    budget: float,
    quick: bool,
    progress: "Progress | None",
) -> "LinkSweep":
    """Measure as the first of a launcher's processes, or start processes here."""
    from estimators.measuring.link_processes import measure_local_links
    from estimators.measuring.links import measure_links
    from nestsim.running.interruption import unheard_by_children

    if world is None:
        return measure_local_links(
            *local,
            budget=budget,
            quick=quick,
            progress=progress,
            unheard=unheard_by_children,
        )
    found = measure_links(world, budget=budget, quick=quick, progress=progress)
    assert found is not None
    return found


def _print(fitted: "LinkFit", *, as_json: bool) -> None:
    if as_json:
        import typer

        from nestsim.document.dumps import dump_json
        from nestsim.features.profile.links import links_json

        typer.echo(dump_json(links_json(fitted)), nl=False)
        return
    from nestsim.cli.console.output import result_console
    from nestsim.document.terminal import print_document
    from nestsim.features.profile.document import links_document

    print_document(links_document(fitted), result_console())


def _check_launched(ranks: int | None, launched: int) -> None:
    """Refuse another number of ranks than the launcher has started."""
    from topologies.errors import InputError

    if ranks not in {None, launched}:
        raise InputError(
            "a launcher has started the ranks already",
            where="--ranks",
            got=ranks,
            expected=f"left out, or {launched} as WORLD_SIZE says",
        )


def _stated(device: str, given: tuple[float | None, float | None]) -> "Stated":
    """Return what is known of a device's links by its name, and by the user."""
    from nestsim.features.profile.links import Stated
    from nestsim.features.profile.record import catalogue_entry

    entry = catalogue_entry(device)
    node, fabric = given
    if entry is None:
        return Stated(node=node, fabric=fabric)
    known = entry.interconnect_bandwidth if node is None else node
    return Stated(accelerator=entry.name, node=known, fabric=fabric)


class MeasuredDevice(StrEnum):
    """What torch can be asked for."""

    cpu = "cpu"
    cuda = "cuda"


Device = Annotated[
    MeasuredDevice,
    typer.Option("--device", help="What is measured: the CPU or one GPU."),
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

Logs = Annotated[
    list[Path] | None,
    typer.Option(
        "--nccl-tests",
        metavar="LOG",
        help="Fit links to what all_reduce_perf and others printed, instead of "
        "measuring. Once for each log.",
    ),
]

Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        metavar="N",
        help="Processes to start, with --links. Default: one for each GPU, up to 4 on "
        "a CPU. With --nccl-tests, the ranks of logs that do not tell them.",
    ),
]

Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        metavar="N",
        help="Nodes that the ranks of logs are on, with --nccl-tests; a rack that "
        "NVLink joins is one. Default: as many as hosts in the log.",
    ),
]

Bandwidth = Annotated[
    str | None,
    typer.Option(
        "--bandwidth",
        metavar="RATE",
        help="Of a device's links inside a node by the datasheet, with --links or "
        '--nccl-tests: "450 GB/s". Default: that of the catalogue, else the highest '
        "measured.",
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
    device: Device = MeasuredDevice.cpu,
    quick: Quick = False,
    check: Check = False,
    budget: Budget = "5 min",
    links: Links = False,
    logs: Logs = None,
    ranks: Ranks = None,
    nodes: Nodes = None,
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

    With `--nccl-tests`, the same is fitted to logs of nccl-tests (or rccl-tests), as
    they were printed; several programs may stand in one log.

    Example: `nestsim profile --device cpu --quick --check -o cpu.json`

    Example: `torchrun --nproc-per-node 8 -m nestsim profile --links --device cuda -o
    links.toml`

    Example: `nestsim profile --nccl-tests all_reduce.log --nic-bandwidth "400 GB/s" -o
    links.toml`
    """
    rates = {"--bandwidth": bandwidth, "--nic-bandwidth": nic_bandwidth}
    node, fabric = (_rate(rate, name) for name, rate in rates.items())
    if logs:
        for option, given in (("--links", links), ("--check", check)):
            _check_alone(option, "--nccl-tests", given=given)
        from nestsim.features.profile.nccl_tests import LogOptions

        profile_logs(
            output,
            logs,
            LogOptions(num_ranks=ranks, num_nodes=nodes),
            (node, fabric),
            force=force,
            as_json=as_json,
            quiet=quiet,
        )
        return
    if nodes is not None:
        _refuse("--nodes", "is about logs", "--nccl-tests with it")
    if links:
        _check_alone("--check", "--links", given=check)
        profile_links(
            output,
            device.value,
            ranks,
            (node, fabric),
            budget=_seconds(budget),
            quick=quick,
            force=force,
            as_json=as_json,
            quiet=quiet,
        )
        return
    for name, value in {"--ranks": ranks, **rates}.items():
        if value is not None:
            _refuse(name, "is about links", "--links with it")
    from datetime import UTC, datetime

    from estimators.operators.profile import is_profile, write_profile
    from nestsim.cli.console.output import note, progress_bar, working
    from nestsim.cli.console.results import check_output_file, write_output_file

    seconds = _seconds(budget)
    check_output_file(output, is_profile, inputs=(), force=force)
    from estimators.measuring.operators import (
        available_device,
        check_layers,
        measure_profile,
    )

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
        from nestsim.document.dumps import dump_json
        from nestsim.features.profile.record import profile_json

        typer.echo(dump_json(profile_json(measured, checks)), nl=False)
        return
    from nestsim.cli.console.output import result_console
    from nestsim.document.terminal import print_document
    from nestsim.features.profile.document import profile_document

    print_document(profile_document(measured, checks), result_console())


def _check_alone(option: str, other: str, *, given: bool) -> None:
    """Refuse what does not go with links, or with logs of them."""
    from topologies.errors import InputError

    if given:
        raise InputError(
            "is about operators" if option == "--check" else "measures links",
            where=option,
            got=f"{other} {option}",
            expected="one of the two",
        )


def _refuse(option: str, problem: str, expected: str) -> None:
    from topologies.errors import InputError

    raise InputError(problem, where=option, expected=expected)


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


MeasurementsFile = Annotated[
    Path,
    typer.Argument(
        metavar="MEASUREMENTS",
        help="Your runs (CSV), with the columns of nestsim validate.",
    ),
]

ConstantsOutput = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="The constants to write (TOML), for software.constants of scenarios.",
    ),
]


def calibrate(
    measurements: MeasurementsFile,
    output: ConstantsOutput = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a few constants to your own runs.

    Each row of the file is a configuration that you ran and the time of its step, with
    the columns of `nestsim validate`, which stand in docs/validate.md. What products
    and attention reach of the accelerators, gaps between layers and the fixed time of a
    step are fitted around the values that nestsim comes with, so that few rows move
    little. The table says how firm each is, and which the rows do not tell.

    A scenario takes the file with `constants = "FILE"` in its table `[software]`.

    Exit status 1 if the rows tell no constant.

    Example: `nestsim calibrate my_runs.csv -o my_constants.toml`
    """
    from datetime import UTC, datetime

    from estimators.user_files import is_user_constants, user_constants_toml
    from nestsim.cli.console.output import note, progress_bar, result_console
    from nestsim.cli.console.results import check_output_file, write_output_file
    from nestsim.document.dumps import dump_json
    from nestsim.document.folder import writer_of
    from nestsim.document.wording import plural
    from nestsim.features.profile.constants import (
        calibrate_runs,
        calibration_json,
    )
    from nestsim.features.validation.columns import read_measurements

    rows = read_measurements(measurements)
    if output is not None:
        check_output_file(output, is_user_constants, inputs=[measurements], force=force)
    with progress_bar(quiet=quiet) as progress:
        found = calibrate_runs(rows, progress=progress)
    if output is not None:
        text = user_constants_toml(
            found.entries(),
            date=datetime.now(UTC).date().isoformat(),
            source=f"{plural(found.num_rows, 'row')} of {found.name}",
        )
        write_output_file(output, writer_of(text))
        note(f"The constants are in {output}", quiet=quiet)
    if as_json:
        typer.echo(dump_json(calibration_json(found)), nl=False)
    else:
        from nestsim.document.terminal import print_document
        from nestsim.features.profile.document import calibration_document

        print_document(calibration_document(found), result_console())
    raise typer.Exit(0 if any(one.is_told for one in found.constants) else 1)
