"""Validate a file of measurements: predict every row that can be expressed.

Of rows about memory plans are replayed, and the account of the fullest device or of the
stage that was measured is taken; stages that no plan expresses are worked out by
themselves. What the framework's allocator adds to tensors depends on what the metric
counts.

The measurements that come with nestsim are published figures, each with its source: two
tables, about the time of a step and about the memory of a device, in the columns that
every file of measurements has. Numbers are as printed; where a source prints a rate
alone, the time of a step was computed by the source's own count of FLOPs, as the row's
notes say.
"""

import re
from collections.abc import Callable, Mapping
from importlib.resources import as_file, files
from types import MappingProxyType
from typing import NamedTuple

from estimators.layers.work import model_flops_per_sequence
from estimators.tracing.graph import LayerGraph
from nestsim.evaluate.uncertainty import band, memory_band
from nestsim.features.validation.case import Case, read_case, read_stage
from nestsim.features.validation.collective_rows import predicted_time, read_collective
from nestsim.features.validation.columns import (
    Measurements,
    Row,
    RowRefusedError,
    read_measurements,
)
from nestsim.features.validation.predict import PredictedMemory, Predictor, memory_share
from nestsim.features.validation.results import RowResult, ValidationResult
from nestsim.features.validation.stages import with_notes_of_run
from planner.step.memory import block_stage_memory
from planner.work import Progress

GIB = 2.0**30
"""Size of a gibibyte [byte]."""

STATIC = ("weights", "gradients", "optimizer")
"""Parts of memory that passes find and leave."""

STEP_END = (*STATIC, "copies")
"""Parts of memory that passes leave at the end of a step."""


class Measured(NamedTuple):
    """A measured value [s or byte]."""

    value: float
    """Measured time [s] or size [byte]."""

    basis: str
    """Column that the value comes from; with FLOPs, which."""


def measured_time(case: Case, graph: LayerGraph) -> Measured:
    """Return how long a step took [s].

    The printed time is taken before one that was derived, that before rates.

    Raises
    ------
    RowRefusedError
        If the row states none of them.
    """
    row, batch = case.row, case.training.global_batch_size
    for column in ("iter_time_s", "iter_time_s_derived"):
        value = row.number(column)
        if value is not None:
            return Measured(value, column)
    tokens = row.number("tokens_per_s_per_device")
    if tokens is not None:
        total = batch * case.model.sequence_length / case.num_devices
        return Measured(total / tokens, "tokens_per_s_per_device")
    samples = row.number("samples_per_s")
    if samples is not None:
        return Measured(batch / samples, "samples_per_s")
    return _by_flops(case, graph)


def _by_flops(case: Case, graph: LayerGraph) -> Measured:
    rate = case.row.number("tflops_per_device")
    if rate is None:
        raise RowRefusedError("missing-measurement", "no time and no rate is stated")
    kind = case.row.words("tflops_kind").lower()
    flops = case.training.global_batch_size * model_flops_per_sequence(graph)
    if kind.startswith("hardware") and "estimate" not in kind and "old" not in kind:
        counted = "hardware"
        if case.plan.recompute == "full":
            flops += case.training.global_batch_size * _repeated(graph)
    elif kind.startswith("model"):
        counted = "model"
    else:
        raise RowRefusedError(
            "ambiguous-measurement",
            f"tflops_kind is {case.row.words('tflops_kind') or 'empty'}",
        )
    time = flops / (rate * 1e12 * case.num_devices)
    return Measured(time, f"tflops_per_device, {counted} FLOPs")


def _repeated(graph: LayerGraph) -> float:
    """Return what full recompute adds for a sequence: the blocks' forward [FLOP]."""
    flops = [sum(op.model_flops for op in layer.operators) for layer in graph.layers]
    return float(
        sum(
            flops[kind]
            for kind, name in zip(graph.kinds, graph.names, strict=True)
            if name.startswith("block")
        )
    )


def measured_memory(row: Row) -> Measured:
    """Return how much memory was used [byte]; NaN for a run that ran out of it.

    Raises
    ------
    RowRefusedError
        If the metric is not a size.
    """
    metric = row.words("metric")
    if metric.upper() == "OOM":
        return Measured(float("nan"), "OOM")
    if row.words("unit") == "percent":
        raise RowRefusedError("other-metric", f"{metric} in percent")
    value = row.number("value_gib")
    if value is None:
        raise RowRefusedError("missing-measurement", "value_gib is empty")
    counted(metric)
    return Measured(value * GIB, metric)


class Counted(NamedTuple):
    """What of a device's memory a metric counts."""

    parts: tuple[str, ...]
    """Parts of the tensors' memory; none for all of them, at their peak."""

    of: str
    """``"tensors"``, ``"allocated"``, ``"reserved"`` or ``"device"``, as
    `estimators.platform.Allocator` has them; ``"reading"`` for what a device that runs
    shows of the last."""


_COUNTED = (
    ("oom", Counted((), "device")),
    ("max reserved", Counted((), "reserved")),
    ("max allocated", Counted((), "allocated")),
    # What torch.cuda.max_memory_allocated is called in logs.
    ("peak memory", Counted((), "allocated")),
    ("gpu memory", Counted((), "reading")),
    ("end of step", Counted(STEP_END, "allocated")),
    ("params+grads+optimizer", Counted(STATIC, "tensors")),
)
"""What a metric contains -> what it counts, the first that it does."""


def counted(metric: str) -> Counted:
    """Return what a metric counts.

    Raises
    ------
    RowRefusedError
        If it is not a metric that is known.
    """
    written = metric.lower()
    if written == "activations":
        return Counted(("activations",), "tensors")
    for words, what in _COUNTED:
        if words in written:
            return what
    raise RowRefusedError("other-metric", f"metric {metric or 'is empty'}")


TABLES = ("published.csv", "published_memory.csv")
"""Names of the files, beside this one."""


def published_measurements() -> tuple[Measurements, ...]:
    """Return the tables, time before memory."""
    files_read = []
    for name in TABLES:
        with as_file(files("nestsim.features.validation") / name) as path:
            files_read.append(read_measurements(path))
    return tuple(files_read)


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
    return RowResult(
        row=row,
        basis=measured.basis,
        measured=measured.value,
        predicted=predicted.iteration_time,
        planned=predicted.planned_time,
        band=band(case.setting(case.row.source)),
        memory_share=predicted.memory_share,
        preset=case.preset,
        grows_segments=case.software.expandable_segments,
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
        grows_segments=case.software.expandable_segments,
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
    if what.of == "reading":
        # A full device is full: the allocator gives back what it keeps before it fails.
        return min(allocator.device(tensors), case.accelerator.memory_bytes)
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
    if written == "first pipeline stage" or written.startswith("rank 0"):
        return 0
    if written.startswith(("max", "any", "first/last", "not stated")) or not written:
        return None
    raise RowRefusedError("other-place", f"where is {where}")
