"""Validate a file of measurements: predict every row that can be expressed.

Of rows about memory plans are replayed, and the account of the fullest device or of the
stage that was measured is taken; stages that no plan expresses are worked out by
themselves. What the framework's allocator adds to tensors depends on what the metric
counts.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from nestsim.evaluate.uncertainty import Setting, band, memory_band
from nestsim.features.validation.case import Case, read_case, read_stage
from nestsim.features.validation.collective_rows import predicted_time, read_collective
from nestsim.features.validation.columns import Measurements, Row, RowRefusedError
from nestsim.features.validation.measured import (
    Counted,
    counted,
    measured_memory,
    measured_time,
)
from nestsim.features.validation.predict import PredictedMemory, Predictor, memory_share
from nestsim.features.validation.results import RowResult, ValidationResult
from nestsim.features.validation.stages import with_notes_of_run
from planner.step.memory import block_stage_memory
from planner.work import Progress


def validate(
    measurements: Measurements, *, progress: Progress | None = None
) -> ValidationResult:
    """Predict every row of a file that can be expressed.

    Parameters
    ----------
    measurements
        What `nestsim.features.validation.columns.read_measurements` read.
    progress
        Called with every row.
    """
    predictor, score = Predictor(), _SCORES[measurements.kind]
    rows = measurements.rows
    if measurements.kind == "memory":
        rows = with_notes_of_run(rows)
    results = []
    for index, row in enumerate(rows):
        if progress is not None:
            progress(f"row {index + 1:,} of {len(rows):,}", index / len(rows))
        try:
            results.append(score(predictor, row))
        except RowRefusedError as refusal:
            results.append(RowResult(row=row, code=refusal.code, reason=refusal.reason))
    return ValidationResult(
        name=measurements.name, kind=measurements.kind, rows=tuple(results)
    )


def score_time(predictor: Predictor, row: Row) -> RowResult:
    """Predict the time of a step.

    Raises
    ------
    RowRefusedError
        If the row cannot be expressed; so all scores do.
    """
    case = predictor.settled(read_case(row))
    measured = measured_time(case, predictor.graph(case))
    predicted = predictor.predict(case, memory=True)
    setting = Setting(
        source=case.row.source,
        software=case.software.name,
        accelerator=case.accelerator.name,
        num_devices=case.num_devices,
        has_experts=bool(case.model.num_moe_experts),
        assumes_layout=case.assumes_layout,
    )
    return RowResult(
        row=row,
        basis=measured.basis,
        measured=measured.value,
        predicted=predicted.iteration_time,
        planned=predicted.planned_time,
        band=band(setting),
        memory_share=predicted.memory_share,
        preset=case.preset,
        assumed=case.assumed,
    )


def score_memory(predictor: Predictor, row: Row) -> RowResult:
    """Predict the memory of a device."""
    measured = measured_memory(row)
    what = counted(row.words("metric"))
    case = read_stage(row)
    if case is not None:
        ((degrees, _, blocks),) = case.stages
        workload = predictor.workload(case)
        table = workload.table(degrees)
        held = block_stage_memory(workload.parameter_bytes, table, blocks)
        tensors = sum(held.get(part, 0.0) for part in what.parts or held)
        share = memory_share(workload, sum(held.values()))
    else:
        case = predictor.settled(read_case(row))
        place = _place(row.words("where"), case.plan.pipeline_model_parallel_size)
        prediction = predictor.predict(case, memory=True)
        stages = prediction.memory
        if place is not None:
            stages = stages[place : place + 1]
        tensors = max(_replayed(stage, what) for stage in stages)
        share = prediction.memory_share
    known = memory_band(case.preset)
    return RowResult(
        row=row,
        basis=measured.basis,
        measured=measured.value,
        predicted=_shown(predictor, case, what, tensors),
        band=None if known is None else known.band,
        memory_share=share,
        preset=case.preset,
        assumed=case.assumed,
    )


def score_collective(_predictor: Predictor, row: Row) -> RowResult:
    """Predict the time of a collective."""
    case = read_collective(row)
    return RowResult(
        row=row,
        basis=case.basis,
        measured=case.measured,
        predicted=predicted_time(case),
        assumed=case.assumed,
        collective=case,
    )


_SCORES: Mapping[str, Callable[[Predictor, Row], RowResult]] = MappingProxyType(
    {
        "throughput": score_time,
        "memory": score_memory,
        "collectives": score_collective,
    }
)
"""Kind of measurements -> what predicts a row."""


def _replayed(stage: PredictedMemory, what: Counted) -> float:
    if not what.parts:
        return stage.peak
    return sum(float(getattr(stage, part)) for part in what.parts)


def _shown(predictor: Predictor, case: Case, what: Counted, tensors: float) -> float:
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
