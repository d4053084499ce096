"""What a row states that can be compared, on which basis, and the rows shipped here.

The measurements that come with nestsim are published figures, each with its source: two
tables, about the time of a step and about the memory of a device, in the columns that
every file of measurements has. Numbers are as printed; where a source prints a rate
alone, the time of a step was computed by the source's own count of FLOPs, as the row's
notes say.
"""

from importlib.resources import as_file, files
from typing import NamedTuple

from estimators.layers.work import model_flops_per_sequence
from estimators.tracing.graph import LayerGraph
from nestsim.features.validation.case import Case
from nestsim.features.validation.columns import (
    Measurements,
    Row,
    RowRefusedError,
    read_measurements,
)

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
    `estimators.platform.Allocator` has them."""


_COUNTED = (
    ("oom", Counted((), "device")),
    ("max reserved", Counted((), "reserved")),
    ("max allocated", Counted((), "allocated")),
    # What torch.cuda.max_memory_allocated is called in logs.
    ("peak memory", Counted((), "allocated")),
    ("gpu memory", Counted((), "device")),
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
