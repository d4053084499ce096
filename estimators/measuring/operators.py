"""Measure operators one at a time: forward, backward, and the weight's gradient.

What is timed is what eager torch does, autograd's bookkeeping included. On a CPU the
engine of autograd is entered once for each measured backward pass, but once for a
whole model when it trains: what an entry costs is measured and taken off. On an
accelerator the times are those of the device, where no entry shows.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from estimators.layer_work import OperatorWork
from estimators.measuring.cases import NUM_QUICK_SIZES, SIZES, Case, Size, cases
from estimators.measuring.devices import device_name, driver_of, precisions_of
from estimators.measuring.stopwatch import (
    Call,
    Effort,
    Stopwatch,
    WallStopwatch,
    stopwatch_for,
    time_call,
)
from estimators.profile import Measurement, Profile, Timing

Progress = Callable[[str, float], None]
"""Called with what is being measured and the share of the list that is done."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

ADAM_BYTES = 28
"""Memory traffic of an Adam step for one fp32 parameter: parameter, gradient and both
moments are read, all but the gradient written [byte]."""

QUICK = Effort(warm_up=1, samples=5, seconds=0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """On what is measured, and how carefully."""

    device: torch.device
    stopwatch: Stopwatch
    effort: Effort
    launch_time: float
    """Time of a kernel that does next to nothing [s]."""
    entry_time: float
    """Part of each measured backward pass that a model pays once [s]."""

    @classmethod
    def of(cls, device: torch.device, effort: Effort) -> "Bench":
        """Set up a device, and measure what its host adds to operators."""
        host = WallStopwatch(device)
        cell = torch.zeros(1, device=device)
        launch = time_call(lambda: cell.add_(1), host, effort)
        entry = 0.0
        if device.type == "cpu":
            leaf = torch.zeros(1, requires_grad=True)
            call = _gradients((leaf.view_as(leaf),), (leaf,))
            entry = time_call(call, host, effort).seconds
        return cls(
            device=device,
            stopwatch=stopwatch_for(device),
            effort=effort,
            launch_time=launch.seconds,
            entry_time=entry,
        )

    def time(self, call: Call) -> Timing:
        """Return the time of a forward pass."""
        return time_call(call, self.stopwatch, self.effort)

    def time_backward(self, call: Call) -> Timing:
        """Return the time of a backward pass, without the entry into autograd."""
        timing = self.time(call)
        net = max(timing.seconds - self.entry_time, self.launch_time)
        return timing._replace(seconds=net)


def planned_cases(
    sizes: Sequence[Size], precisions: Sequence[str]
) -> list[list[tuple[str, Case]]]:
    """List (precision, case) in the order of measuring, one list for each size."""
    return [
        [(precision, case) for precision in precisions for case in cases(size)]
        for size in sizes
    ]


def measure_profile(
    device: torch.device,
    *,
    date: str,
    budget: float,
    quick: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Measure all operators at one size after the other.

    Parameters
    ----------
    device
        From `available_device`.
    date
        What the profile says about when it was measured.
    budget
        No measurement begins later than that [s]. The first size is always measured
        whole, so that every profile knows every operator.
    quick
        Fewer sizes, and fewer samples of each.
    progress
        Told before each measurement.
    """
    start = time.perf_counter()
    sizes = SIZES[device.type]
    sizes = sizes[:NUM_QUICK_SIZES] if quick else sizes
    planned = planned_cases(sizes, precisions_of(device))
    bench = Bench.of(device, QUICK if quick else Effort())
    found: dict[tuple[str, str, tuple[int, ...]], Measurement] = {}
    skipped, done = 0, 0
    total = sum(len(row) for row in planned)
    with _reproducible(device):
        for number, (size, row) in enumerate(zip(sizes, planned, strict=True)):
            in_any_case = number == 0
            for precision, case in row:
                spent = time.perf_counter() - start
                if progress is not None:
                    progress(f"{case.operation} in {precision}", done / total)
                done += 1
                if spent > budget and not in_any_case:
                    skipped += 1
                    continue
                skipped += not _measure(bench, precision, case, found)
            if in_any_case or time.perf_counter() - start <= budget:
                adam = measure_adam(bench, 4 * size.hidden**2)
                found.setdefault((adam.operation, adam.precision, adam.shape), adam)
    return Profile(
        device=device_name(device),
        driver=driver_of(device),
        date=date,
        torch_version=torch.__version__,
        num_threads=torch.get_num_threads() if device.type == "cpu" else 0,
        launch_time=bench.launch_time,
        measurements=tuple(found.values()),
        num_skipped=skipped,
    )


def _measure(
    bench: Bench,
    precision: str,
    case: Case,
    found: dict[tuple[str, str, tuple[int, ...]], Measurement],
) -> bool:
    """Measure a case unless its shape is known; False if memory does not suffice."""
    work = case.work(DTYPES[precision].itemsize)
    key = (case.operation, precision, case.shape(work))
    if key in found:
        return True
    try:
        found[key] = measure_case(bench, precision, case, work)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return False
    return True


def measure_case(
    bench: Bench, precision: str, case: Case, work: OperatorWork
) -> Measurement:
    """Measure one operator of one shape."""
    dtype = DTYPES[precision]
    with torch.device(bench.device):
        module = case.module().to(dtype)
    inputs = [given.make(bench.device, dtype) for given in case.inputs]
    leaves = [one for one in (*inputs, *module.parameters()) if one.requires_grad]
    forward = bench.time(lambda: module(*inputs))
    results = module(*inputs)
    outputs = _floating(results if isinstance(results, tuple) else (results,))
    weight = None
    if case.sums_gradients:
        left, right = (torch.randn_like(outputs[0]) for _ in range(2))
        backward = bench.time(lambda: left + right)
    else:
        backward = bench.time_backward(_gradients(outputs, leaves))
    if case.operation == "linear":
        parameters = tuple(module.parameters())
        weight = bench.time_backward(_gradients(outputs, parameters))
    return Measurement(
        operation=case.operation,
        precision=precision,
        shape=case.shape(work),
        flops=work.forward_flops,
        num_bytes=work.forward_bytes,
        forward=forward,
        backward=backward,
        weight_gradient=weight,
    )


def measure_adam(bench: Bench, num_parameters: int) -> Measurement:
    """Measure a fused Adam step on fp32 parameters, all of them in one tensor."""
    weight = torch.zeros(num_parameters, device=bench.device, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam([weight], fused=True)
    return Measurement(
        operation="adam",
        precision="fp32",
        shape=(num_parameters,),
        flops=0.0,
        num_bytes=float(ADAM_BYTES * num_parameters),
        forward=bench.time(optimizer.step),
    )


def _floating(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(one for one in results if one.is_floating_point())


def _gradients(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> Call:
    """Return a call that goes back from outputs to leaves, as often as wanted."""
    given = tuple(torch.ones_like(one) for one in outputs)
    return lambda: torch.autograd.grad(outputs, leaves, given, retain_graph=True)


@contextmanager
def _reproducible(device: torch.device) -> Iterator[None]:
    """Draw the same values every time, and leave the caller's generator alone."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        yield
