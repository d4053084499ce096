"""``nestsim profile --links``: collectives between processes, fitted and written."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.measuring.links import World
    from estimators.user_files.tables import LinkSweep
    from nestsim.own_runs.links import LinkFit, Stated
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

    from estimators.measuring.devices import available_device
    from estimators.measuring.link_processes import launched_world, local_ranks
    from estimators.measuring.links import measure_links
    from estimators.user_files.links import is_user_links
    from nestsim.cli.output import note, progress_bar
    from nestsim.cli.results import check_output_file, write_output_file
    from nestsim.own_runs.links import fit_links
    from nestsim.report.destination import writer_of

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
    from nestsim.interruption import unheard_by_children

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

        from nestsim.own_runs.links import links_json
        from nestsim.report.json import dump_json

        typer.echo(dump_json(links_json(fitted)), nl=False)
        return
    from nestsim.cli.output import result_console
    from nestsim.own_runs.links_text import print_links

    print_links(fitted, result_console())


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
    from nestsim.own_runs.links import Stated
    from nestsim.report.profile import catalogue_entry

    entry = catalogue_entry(device)
    node, fabric = given
    if entry is None:
        return Stated(node=node, fabric=fabric)
    known = entry.interconnect_bandwidth if node is None else node
    return Stated(accelerator=entry.name, node=known, fabric=fabric)
