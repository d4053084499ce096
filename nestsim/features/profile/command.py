"""``nestsim profile``, ``profile-links``, ``profile-logs`` and ``calibrate``.

Of a machine operators are measured, or collectives between processes, or those that
logs of nccl-tests have; of a user's own runs the constants are fitted.
"""

import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.operators.profile import Profile, is_profile, write_profile
from estimators.user_files import (
    LinkSweep,
    is_user_constants,
    is_user_links,
    user_constants_toml,
)
from nestsim.commands.task import FileOutput, Reply, Task
from nestsim.document.folder import Writer, writer_of
from nestsim.document.wording import plural
from nestsim.features.profile.constants import (
    calibrate_runs,
    calibration_json,
)
from nestsim.features.profile.document import (
    calibration_document,
    catalogue_entry,
    links_document,
    profile_document,
    profile_json,
)
from nestsim.features.profile.links import (
    LinkFit,
    Stated,
    fit_links,
    links_json,
)
from nestsim.features.profile.nccl_tests import LogOptions, read_nccl_tests
from nestsim.features.profile.peak import (
    correct_peak,
    correction_document,
    correction_json,
)
from nestsim.features.validation.columns import read_measurements
from nestsim.running.interruption import unheard_by_children
from nestsim.running.progress import shown_progress
from nestsim.scenario import Scenario, load_scenario
from planner.work import Progress
from topologies.errors import InputError, import_extra
from topologies.units import format_size, parse_quantity

if TYPE_CHECKING:
    from estimators.measuring.links import World


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _text_of(answer: Reply) -> Writer:
    """Return what writes the text that an answer is about."""
    return writer_of(str(answer.about))


def rate(text: str) -> float:
    """Read a bandwidth with its unit [byte/s]."""
    rate = parse_quantity(text, "bandwidth")
    if rate <= 0:
        raise InputError("must be more than 0", got=text, expected='e.g. "450 GB/s"')
    return rate


def seconds(text: str) -> float:
    """Read a time with its unit [s]."""
    return parse_quantity(text, "duration")


def profile_task(
    output: Path, device: str, quick: bool, check: bool, budget: float, quiet: bool
) -> Task:
    """Return the task of measuring operators."""
    import_extra("torch", "trace")
    from estimators.measuring.operators import available_device, measure_profile

    def call(progress: Progress | None) -> Reply:
        measured = measure_profile(
            available_device(device),
            date=_today(),
            budget=budget,
            quick=quick,
            progress=progress,
        )
        checks = partial(_checks, measured, device, quick, quiet) if check else list
        return Reply(
            record=lambda: profile_json(measured, checks()),
            document=lambda: profile_document(measured, checks()),
            about=measured,
        )

    return Task(
        call=call,
        file=FileOutput(
            path=output,
            is_ours=is_profile,
            title="The profile is in",
            writer=lambda answer: lambda path: write_profile(answer.about, path),
        ),
    )


def _checks(measured: Profile, device: str, quick: bool, quiet: bool) -> list[Any]:
    """Measure whole layers, which the profile predicts."""
    from estimators.measuring.operators import available_device, check_layers

    with shown_progress(not quiet) as progress:
        if progress is not None:
            progress("check: measure whole layers", None)
        return list(check_layers(measured, available_device(device), quick=quick))


def links_task(  # noqa: PLR0913, PLR0917 - one for each option
    output: Path,
    device: str,
    quick: bool,
    budget: float,
    ranks: int | None,
    bandwidth: float | None,
    nic_bandwidth: float | None,
) -> Task:
    """Return the task of measuring links; under a launcher every process comes here."""
    import_extra("torch", "trace")
    from estimators.measuring.link_processes import launched_world, local_ranks
    from estimators.measuring.links import measure_links
    from estimators.measuring.operators import available_device

    available_device(device)
    world = launched_world(os.environ, device)
    count = local_ranks(device, ranks) if world is None else world.num_ranks
    if world is not None:
        _check_launched(ranks, count)
        if world.rank > 0:  # the first process of the launcher prints and writes
            measure_links(world, budget=budget, quick=quick)
            return Task(call=_nothing, prints=False)
    measure = partial(_measured, world, (device, count), budget=budget, quick=quick)

    def call(progress: Progress | None) -> Reply:
        stated = bandwidth, nic_bandwidth
        return _fitted(measure(progress=progress), stated, output.name, _today())

    return Task(call=call, file=_links_file(output))


def _nothing(**_: object) -> Reply:
    return Reply(record=dict, text=lambda _: None)


def _check_launched(ranks: int | None, launched: int) -> None:
    """Refuse another number of ranks than the launcher has started."""
    if ranks not in {None, launched}:
        raise InputError(
            "a launcher has started the ranks already",
            where="--ranks",
            got=ranks,
            expected=f"left out, or {launched} as WORLD_SIZE says",
        )


def _measured(
    world: "World | None",
    local: tuple[str, int],
    *,
    budget: float,
    quick: bool,
    progress: Progress | None,
) -> LinkSweep:
    """Measure as the first of a launcher's processes, or start processes here."""
    from estimators.measuring.link_processes import measure_local_links
    from estimators.measuring.links import measure_links

    if world is None:
        return measure_local_links(
            *local,
            budget=budget,
            quick=quick,
            progress=progress,
            unheard=unheard_by_children,
        )
    sweep = measure_links(world, budget=budget, quick=quick, progress=progress)
    assert sweep is not None
    return sweep


def _links_file(output: Path) -> FileOutput:
    return FileOutput(
        path=output, is_ours=is_user_links, title="The links are in", writer=_text_of
    )


def _fitted(
    sweep: LinkSweep,
    stated: tuple[float | None, float | None],
    name: str,
    date: str,
) -> Reply:
    """Fit what links reach to a sweep."""
    fit: LinkFit = fit_links(
        sweep, _stated(sweep.device, *stated), name=name, date=date
    )
    return Reply(
        record=partial(links_json, fit),
        document=partial(links_document, fit),
        about=fit.links.toml(),
    )


def _stated(device: str, node: float | None, fabric: float | None) -> Stated:
    """Return what is known of a device's links by its name, and by the user."""
    entry = catalogue_entry(device)
    if entry is None:
        return Stated(node=node, fabric=fabric)
    known = entry.interconnect_bandwidth if node is None else node
    return Stated(accelerator=entry.name, node=known, fabric=fabric)


def logs_task(
    logs: list[Path],
    output: Path,
    ranks: int | None,
    nodes: int | None,
    bandwidth: float | None,
    nic_bandwidth: float | None,
) -> Task:
    """Return the task of fitting links to logs."""
    options = LogOptions(num_ranks=ranks, num_nodes=nodes)

    def call(**_: object) -> Reply:
        # Logs have no date, and a file of today would not be the same tomorrow.
        sweep = read_nccl_tests(logs, options)
        return _fitted(sweep, (bandwidth, nic_bandwidth), output.name, "date unknown")

    return Task(call=call, inputs=logs, file=_links_file(output))


def size(text: str) -> float:
    """Read a size of memory with its unit [byte]."""
    found = parse_quantity(text, "size")
    if found <= 0:
        raise InputError("must be more than 0", got=text, expected='e.g. "61.3 GiB"')
    return found


def calibrate_task(
    measurements: Path, output: Path | None, peak: float | None, stage: int | None
) -> Task:
    """Return the task of fitting constants to runs, or a job's memory to a peak."""
    if peak is None and stage is not None:
        raise InputError(
            "is of a peak", where="--stage", got=stage, expected="--peak beside it"
        )
    if peak is None:
        call = partial(_calibrated, read_measurements(measurements))
    else:
        call = partial(_corrected, load_scenario(measurements), peak, stage)
    constants = FileOutput(
        path=output or Path(),
        is_ours=is_user_constants,
        title="The constants are in",
        writer=_text_of,
    )
    return Task(
        call=call,
        inputs=[measurements],
        file=None if output is None else constants,
    )


def _calibrated(rows: Any, progress: Progress | None) -> Reply:
    """Fit constants to rows."""
    fit = calibrate_runs(rows, progress=progress)
    source = f"{plural(fit.num_rows, 'row')} of {fit.name}"
    return Reply(
        record=partial(calibration_json, fit),
        document=partial(calibration_document, fit),
        succeeded=any(constant.is_told for constant in fit.constants),
        about=user_constants_toml(fit.entries(), date=_today(), source=source),
    )


"""All of them."""


def _corrected(
    scenario: Scenario, peak: float, stage: int | None, **_: object
) -> Reply:
    """Hold a printed peak against the plan of a scenario."""
    correction = correct_peak(scenario, peak, stage)
    ran = f"{format_size(peak)} in stage {correction.stage} of {scenario.name}"
    return Reply(
        record=partial(correction_json, correction),
        document=partial(correction_document, correction),
        about=user_constants_toml(correction.entries(), date=_today(), source=ran),
    )
