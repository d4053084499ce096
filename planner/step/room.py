"""Whether a plan has room: one judgement for all who ask, of devices and of hosts."""

from collections.abc import Sequence
from typing import Literal

from planner.step.execution import Workload
from planner.step.memory import memory_of_stage
from planner.step.plan import Plan
from topologies.accelerators import Host
from topologies.units import format_size

ROUNDING = 1.0 + 1e-9
"""Memory and times that differ by less are equal."""


def is_within(needed: float, room: float) -> bool:
    """Tell whether there is as much as is needed, but for rounding."""
    return needed <= room * ROUNDING


RoomKind = Literal["fits", "doubtful", "infeasible"]
"""What is said of room: there is enough by the estimate; not by the estimate, but by
the lower end of its band; not even by that."""


def judge_room(needed: float, low: float, room: float) -> RoomKind:
    """Judge an estimate and the lower end of its band by what there is [byte]."""
    if is_within(needed, room):
        return "fits"
    return "doubtful" if is_within(low, room) else "infeasible"


def host_room(host: Host | None) -> float:
    """Return what a host may keep for each device, nothing without one [byte]."""
    return 0.0 if host is None else host.memory


def host_sentence(kept: float, host: Host | None) -> str:
    """Say that a host is to keep more for a device than it has [byte]."""
    return (
        f"the host is to keep {format_size(kept)} for a device, and has "
        f"{format_size(host_room(host))} for each."
    )


def stage_rooms(workload: Workload, plan: Plan, reserve: float) -> list[float]:
    """Return what tensors may take of a device of each stage [byte].

    Parameters
    ----------
    workload, plan
        The job, and who works on what.
    reserve
        What plans leave free of each device [byte].
    """
    return [workload.memory_on(stage.devices, reserve) for stage in plan.stages]


def has_room(
    workload: Workload, plan: Plan, rooms: Sequence[float], on_host: float
) -> bool:
    """Tell whether all stages have room, and look at no more stages than that takes.

    Parameters
    ----------
    workload, plan
        The job, and a plan or the outline of one.
    rooms
        What a device of each stage has for tensors [byte].
    on_host
        What its host may keep for each device [byte].
    """
    table = workload.table(plan.degrees)
    for index, room in enumerate(rooms):
        held = memory_of_stage(workload, table, plan, index)
        if not is_within(sum(held.device.values()), room):
            return False
        if not is_within(sum(held.host.values()), on_host):
            return False
    return True
