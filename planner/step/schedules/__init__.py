"""Pipeline schedules: the order in which a stage works on its microbatches.

A schedule is a rule that writes a list of instructions for each stage; nothing else
limits what is in flight; and it says which stage holds which part of the chain. The
planner's recurrence and the simulator read the same. To add a schedule, write a file
with the function of its instructions, of its in-flight count where that has a closed
form, and of where its virtual stages are if they are not dealt in turn, and add one
entry to `SCHEDULES`. A
closed form of its cycle time, if there is one, goes to `tests.planner.step.cycle_time`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from planner.step.schedules.combined import COMBINED, COMBINED_INTERLEAVED
from planner.step.schedules.dualpipe_v import DUALPIPE_V
from planner.step.schedules.gpipe import GPIPE
from planner.step.schedules.interleaved import INTERLEAVED
from planner.step.schedules.language import (
    BACKWARD,
    FIRST_FORWARD,
    FORWARD,
    NUM_KINDS,
    PAIRED,
    PAIRED_BACKWARD,
    PAIRED_FORWARD,
    USUAL_KIND,
    WEIGHT,
    Instructions,
    Program,
    Schedule,
    VirtualStages,
    paired_kind,
)
from planner.step.schedules.one_f_one_b import ONE_F_ONE_B
from planner.step.schedules.scanned import CIRCULAR, SCANNED
from planner.step.schedules.zb_h1 import ZB_H1
from planner.step.schedules.zb_h2 import ZB_H2
from planner.step.schedules.zb_v import ZB_V
from topologies.errors import InputError

__all__ = [
    "BACKWARD",
    "FIRST_FORWARD",
    "FORWARD",
    "NUM_KINDS",
    "PAIRED",
    "PAIRED_BACKWARD",
    "PAIRED_FORWARD",
    "SCHEDULES",
    "USUAL_KIND",
    "WEIGHT",
    "Instructions",
    "Program",
    "Schedule",
    "VirtualStages",
    "find_schedule",
    "paired_kind",
    "schedule_name",
]

SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        one.name: one
        for one in (
            ONE_F_ONE_B,
            GPIPE,
            INTERLEAVED,
            ZB_H1,
            ZB_H2,
            ZB_V,
            DUALPIPE_V,
            COMBINED,
            COMBINED_INTERLEAVED,
            SCANNED,
            CIRCULAR,
        )
    }
)
"""Name -> schedule."""


def schedule_name(v: int, *, pairs: bool = False) -> str:
    """Return the 1F1B schedule of plans with ``v`` chunks of each stage.

    Parameters
    ----------
    v
        Chunks of each stage.
    pairs
        Whether passes of two microbatches go on beside each other.
    """
    plain = ONE_F_ONE_B if v == 1 else INTERLEAVED
    combined = COMBINED if v == 1 else COMBINED_INTERLEAVED
    return (combined if pairs else plain).name


def find_schedule(name: str) -> Schedule:
    """Return the schedule of that name.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in SCHEDULES:
        expected = ", ".join(f'"{known}"' for known in SCHEDULES)
        raise InputError("no such schedule", got=name, expected=expected)
    return SCHEDULES[name]
