"""Predict rows about memory, and hold them against what was measured.

Plans are replayed, and the account of the fullest device or of the stage that was
measured is taken; stages that no plan expresses are worked out by themselves. What
the framework's allocator adds to tensors depends on what the metric counts.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from nestsim.features.validation.case import Case, read_case, read_stage
from nestsim.features.validation.columns import Row, RowRefusedError
from nestsim.features.validation.measured import (
    Counted,
    Measured,
    counted,
    measured_memory,
)
from nestsim.features.validation.predict import PredictedMemory, Predictor, memory_share
from planner.step.memory import block_stage_memory


class MemoryScore(NamedTuple):
    """A prediction beside what it is about."""

    case: Case
    """The row as the planner sees it."""

    measured: Measured
    """NaN for a run that ran out of memory."""

    predicted: float
    """Predicted size [byte]."""

    memory_share: float
    """Peak of the fullest device's tensors, or of that of the only stage that is
    known, over what a device has for them."""


def score_memory(predictor: Predictor, row: Row) -> MemoryScore:
    """Predict a row.

    Raises
    ------
    RowRefusedError
        If it cannot be expressed.
    """
    measured = measured_memory(row)
    what = counted(row.words("metric"))
    staged = read_stage(row)
    if staged is not None:
        ((degrees, _, blocks),) = staged.stages
        workload = predictor.workload(staged)
        table = workload.table(degrees)
        held = block_stage_memory(workload.parameter_bytes, table, blocks)
        return MemoryScore(
            staged,
            measured,
            _taken(predictor, staged, what, _tensors(held, what)),
            memory_share(workload, sum(held.values())),
        )
    case = predictor.settled(read_case(row))
    place = _place(row.words("where"), case.plan.pipeline_model_parallel_size)
    prediction = predictor.predict(case, memory=True)
    stages = prediction.memory
    if place is not None:
        stages = stages[place : place + 1]
    tensors = max(_replayed(stage, what) for stage in stages)
    return MemoryScore(
        case,
        measured,
        _taken(predictor, case, what, tensors),
        prediction.memory_share,
    )


def _tensors(held: Mapping[str, float], what: Counted) -> float:
    return sum(held.get(part, 0.0) for part in what.parts or held)


def _replayed(stage: PredictedMemory, what: Counted) -> float:
    if not what.parts:
        return stage.peak
    return sum(float(getattr(stage, part)) for part in what.parts)


def _taken(predictor: Predictor, case: Case, what: Counted, tensors: float) -> float:
    """Return what the metric shows at a peak of tensors [byte]."""
    if what.of == "tensors":
        return tensors
    allocator = predictor.workload(case).allocator
    shown = {
        "allocated": allocator.allocated,
        "reserved": allocator.reserved,
        "device": allocator.device,
    }
    return shown[what.of](tensors)


def _place(where: str, num_stages: int) -> int | None:
    """Return the stage that was measured; None for whichever holds most."""
    written = where.lower()
    number = re.match(r"stage ([0-9]{1,9})\b", written)
    if number is not None:
        if int(number[1]) < num_stages:
            return int(number[1])
        raise RowRefusedError("contradiction", f"no {where} among {num_stages} stages")
    if written.startswith("last rank") or written == "last pipeline stage":
        return num_stages - 1
    if written == "first pipeline stage":
        return 0
    if written.startswith(("max", "any", "first/last", "not stated")) or not written:
        return None
    raise RowRefusedError("other-place", f"where is {where}")
