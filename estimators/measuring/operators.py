"""Measure operators one at a time on the devices that torch has.

On a CPU calls run one after the other between two readings of a clock, many enough to
be much longer than its resolution. An accelerator works behind a queue: its own events
mark beginning and end of a call, and before each call a large buffer is overwritten,
so that the operands are not still in the cache, and so that the queue is never empty
because the host was late (as ``triton.testing.do_bench`` does). Its times are those of
the device alone; the host's share is the launch time, measured apart.

Measure operators one at a time: forward, backward, and the weight's gradient.

What is timed is what eager torch does, autograd's bookkeeping included. On a CPU the
engine of autograd is entered once for each measured backward pass, but once for a
whole model when it trains: what an entry costs is measured and taken off. On an
accelerator the times are those of the device, where no entry shows.

A profile is checked by whole transformer layers, predicted and measured. The prediction
goes the way of every plan: the layer is traced, its operators on one device are looked
up one by one, and their times are added. What this leaves out shows as the error: what
operators do to each other in the cache and in the launch queue.
"""

import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees, OperatorWork
from estimators.measuring.cases import NUM_QUICK_SIZES, SIZES, OperatorCase, Size, cases
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import torch_module
from estimators.operators.profile import (
    Measurement,
    OperatorTiming,
    Profile,
    ProfiledTimes,
)
from estimators.tracing.trace import trace_model
from topologies.errors import InputError


def available_device(name: str) -> torch.device:
    """Return a device to measure on.

    Raises
    ------
    InputError
        If torch does not reach one.
    """
    known = name == "cpu" or (name == "cuda" and torch.cuda.is_available())
    if not known:
        raise InputError(
            "torch finds no such device here",
            where="--device",
            got=name,
            expected="cpu, or cuda where torch was built for it and sees a GPU",
        )
    return torch.device(name)


def precisions_of(device: torch.device) -> tuple[str, ...]:
    """Return the number formats that a device trains in.

    torch computes fp16 on a CPU too, but several times more slowly than fp32: nobody
    trains that way.
    """
    if device.type == "cpu":
        return ("fp32", "bf16")
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return ("bf16", "fp16", "fp32")
    return ("fp16", "fp32")


def device_name(device: torch.device) -> str:
    """Return what the driver or the operating system calls a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def driver_of(device: torch.device) -> str:
    """Return the versions below torch: driver and toolkit, or operating system."""
    if device.type == "cpu":
        return f"{platform.system()} {platform.release()}"
    driver = "unknown"
    command = shutil.which("nvidia-smi")
    if command is not None:
        query = "--query-gpu=driver_version"
        answer = subprocess.run(
            [command, query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        driver = next(iter(answer.stdout.split()), driver)
    return f"driver {driver}, CUDA {torch.version.cuda}"


Call = Callable[[], object]

FLUSHED_BYTES = 256 * 2**20
"""Memory overwritten before a timed call on an accelerator: several times the L2 cache
of any, 40 to 130 MB [byte]."""

FLUSHES = 4
"""Overwrites before a call: 1 GiB takes 0.2 to 0.7 ms of any accelerator, longer than
the host needs to launch the kernels of one operator."""

MOST_REPEATS = 1000
"""Most repeats of one call in one sample."""


class Stopwatch(Protocol):
    """Something that times calls on one device."""

    @property
    def shortest(self) -> float:
        """A sample should take at least that long [s]."""

    def elapsed(self, call: Call, repeats: int) -> float:
        """Return how long some calls took together, until the device was done [s]."""


@dataclass(frozen=True, slots=True)
class WallStopwatch:
    """The host's clock, read when the device has done everything."""

    device: torch.device
    """Device that is waited for."""
    shortest: float = 2e-3
    """Shortest time of a sample [s]."""

    def elapsed(self, call: Call, repeats: int) -> float:
        """Return how long some calls took together [s]."""
        synchronise(self.device)
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        synchronise(self.device)
        return time.perf_counter() - start


class EventStopwatch:
    """The events of a CUDA device, around calls that find a cold cache."""

    shortest = 0.0
    """Shortest time of a sample [s]."""

    def __init__(self, device: torch.device) -> None:
        self._buffer = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device)

    def elapsed(self, call: Call, repeats: int) -> float:
        """Return how long some calls took on the device together [s]."""
        new_event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        start, end = (new_event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        for _ in range(FLUSHES):
            self._buffer.zero_()
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3  # the event counts milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is put into one time."""

    warm_up: int = 3
    """Calls before the first one that counts."""

    samples: int = 15
    """Most samples."""

    fewest_samples: int = 3
    """Fewest samples, however long they take."""

    seconds: float = 0.5
    """Time spent on the samples, unless there are still too few [s]."""


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stopwatch_for(device: torch.device) -> Stopwatch:
    """Return the stopwatch for single operators on a device."""
    return EventStopwatch(device) if device.type == "cuda" else WallStopwatch(device)


def time_call(call: Call, stopwatch: Stopwatch, effort: Effort) -> OperatorTiming:
    """Return the time of one call: warmed up, repeated, its median and quartiles."""
    for _ in range(effort.warm_up):
        call()
    first = stopwatch.elapsed(call, 1)
    repeats = 1
    if first < stopwatch.shortest:
        repeats = min(MOST_REPEATS, round(stopwatch.shortest / max(first, 1e-9)) + 1)
    samples: list[float] = []
    spent = 0.0
    while len(samples) < effort.samples and (
        len(samples) < effort.fewest_samples or spent < effort.seconds
    ):
        taken = stopwatch.elapsed(call, repeats)
        spent += taken
        samples.append(taken / repeats)
    lower, upper = np.quantile(samples, (0.25, 0.75))
    return OperatorTiming(median(samples), float(upper - lower), len(samples))


Progress = Callable[[str, float], None]
"""Called with what is being measured and the share of the list that is done."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

ADAM_BYTES = 28
"""Memory traffic of an Adam step for one fp32 parameter: parameter, gradient and both
moments are read, all but the gradient written [byte]."""

QUICK = Effort(warm_up=1, samples=5, seconds=0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringSetup:
    """On what is measured, and how carefully."""

    device: torch.device
    """Device that is measured."""
    stopwatch: Stopwatch
    """What times calls on the device."""
    effort: Effort
    """How often each call is timed."""
    launch_time: float
    """Time of a kernel that does next to nothing [s]."""
    entry_time: float
    """Part of each measured backward pass that a model pays once [s]."""

    @classmethod
    def of(cls, device: torch.device, effort: Effort) -> "MeasuringSetup":
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

    def time(self, call: Call) -> OperatorTiming:
        """Return the time of a forward pass."""
        return time_call(call, self.stopwatch, self.effort)

    def time_backward(self, call: Call) -> OperatorTiming:
        """Return the time of a backward pass, without the entry into autograd."""
        timing = self.time(call)
        net = max(timing.seconds - self.entry_time, self.launch_time)
        return timing._replace(seconds=net)


def planned_cases(
    sizes: Sequence[Size], precisions: Sequence[str]
) -> list[list[tuple[str, OperatorCase]]]:
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
        Called before each measurement.
    """
    start = time.perf_counter()
    sizes = SIZES[device.type]
    sizes = sizes[:NUM_QUICK_SIZES] if quick else sizes
    planned = planned_cases(sizes, precisions_of(device))
    setup = MeasuringSetup.of(device, QUICK if quick else Effort())
    measurements: dict[tuple[str, str, tuple[int, ...]], Measurement] = {}
    skipped, done = 0, 0
    total = sum(len(row) for row in planned)
    with _seed_fixed(device):
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
                skipped += not _measure(setup, precision, case, measurements)
            if in_any_case or time.perf_counter() - start <= budget:
                adam = measure_adam(setup, 4 * size.hidden**2)
                measurements.setdefault(
                    (adam.operation, adam.precision, adam.shape), adam
                )
    return Profile(
        device=device_name(device),
        driver=driver_of(device),
        date=date,
        torch_version=torch.__version__,
        num_threads=torch.get_num_threads() if device.type == "cpu" else 0,
        launch_time=setup.launch_time,
        measurements=tuple(measurements.values()),
        num_skipped=skipped,
    )


def _measure(
    setup: MeasuringSetup,
    precision: str,
    case: OperatorCase,
    measurements: dict[tuple[str, str, tuple[int, ...]], Measurement],
) -> bool:
    """Measure a case unless its shape is known; False if memory does not suffice."""
    work = case.work(DTYPES[precision].itemsize)
    key = (case.operation, precision, case.shape(work))
    if key in measurements:
        return True
    try:
        measurements[key] = measure_case(setup, precision, case, work)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return False
    return True


def measure_case(
    setup: MeasuringSetup, precision: str, case: OperatorCase, work: OperatorWork
) -> Measurement:
    """Measure one operator of one shape."""
    dtype = DTYPES[precision]
    with torch.device(setup.device):
        module = case.module().to(dtype)
    inputs = [given.make(setup.device, dtype) for given in case.inputs]
    leaves = [
        tensor for tensor in (*inputs, *module.parameters()) if tensor.requires_grad
    ]
    forward = setup.time(lambda: module(*inputs))
    results = module(*inputs)
    outputs = _floating_tensors(results if isinstance(results, tuple) else (results,))
    weight = None
    if case.sums_gradients:
        left, right = (torch.randn_like(outputs[0]) for _ in range(2))
        backward = setup.time(lambda: left + right)
    else:
        backward = setup.time_backward(_gradients(outputs, leaves))
    if case.operation == "linear":
        parameters = tuple(module.parameters())
        weight = setup.time_backward(_gradients(outputs, parameters))
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


def measure_adam(setup: MeasuringSetup, num_parameters: int) -> Measurement:
    """Measure a fused Adam step on fp32 parameters, all of them in one tensor."""
    weight = torch.zeros(num_parameters, device=setup.device, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam([weight], fused=True)
    return Measurement(
        operation="adam",
        precision="fp32",
        shape=(num_parameters,),
        flops=0.0,
        num_bytes=float(ADAM_BYTES * num_parameters),
        forward=setup.time(optimizer.step),
    )


def _floating_tensors(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in results if tensor.is_floating_point())


def _gradients(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> Call:
    """Return a call that goes back from outputs to leaves, any number of times."""
    given = tuple(torch.ones_like(tensor) for tensor in outputs)
    return lambda: torch.autograd.grad(outputs, leaves, given, retain_graph=True)


@contextmanager
def _seed_fixed(device: torch.device) -> Iterator[None]:
    """Draw the same values every time, and leave the caller's generator alone."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        yield


_GPT = TransformerSpec(
    family="gpt",
    num_layers=1,
    hidden_size=384,
    num_attention_heads=6,
    vocab_size=1024,
    sequence_length=192,
    hidden_dropout=0.1,
)
_LLAMA = TransformerSpec(
    family="llama",
    num_layers=1,
    hidden_size=320,
    num_attention_heads=5,
    vocab_size=1024,
    sequence_length=160,
    ffn_hidden_size=896,
    gated_linear_unit=True,
    normalization="rmsnorm",
    position_embedding_type="rope",
    add_bias_linear=False,
    tie_word_embeddings=False,
)
_SCALE_ON_CUDA = 10
"""Factor of widths on an accelerator over those for a CPU: 3840 and 3200, as in models
of 7B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCheck:
    """One layer, predicted and measured."""

    name: str
    """Kind of layer and its sizes."""

    precision: str
    """Precision of weights and activations."""

    measured_forward: OperatorTiming
    """Measured time of the forward pass."""
    measured_backward: OperatorTiming
    """Measured time of the backward pass."""

    predicted_forward: float
    """Time of the forward pass by the profile [s]."""

    predicted_backward: float
    """Time of the backward pass by the profile [s]."""

    num_operators: int
    """Operators in the layer."""

    num_outside: int
    """Operators of the layer with a size outside the range that was measured."""


def checked_layers(device: torch.device) -> dict[str, tuple[TransformerSpec, int]]:
    """Return the layers that are checked on a device, each with its micro batch."""
    scale = 1 if device.type == "cpu" else _SCALE_ON_CUDA
    gpt, llama = (_scale_spec(spec, scale) for spec in (_GPT, _LLAMA))
    plain = replace(gpt, attention_implementation="plain")
    return {
        "GPT, flash attention": (gpt, 2),
        "GPT, plain attention": (plain, 2),
        "Llama, flash attention": (llama, 3),
    }


def _scale_spec(spec: TransformerSpec, scale: int) -> TransformerSpec:
    return replace(
        spec,
        hidden_size=spec.hidden_size * scale,
        num_attention_heads=spec.num_attention_heads * scale // (2 if scale > 1 else 1),
        kv_channels=0,
        num_query_groups=0,
        sequence_length=spec.sequence_length * scale,
        max_position_embeddings=0,
        ffn_hidden_size=spec.ffn_hidden_size * scale,
    )


def check_layers(
    profile: Profile, device: torch.device, *, quick: bool = False
) -> list[LayerCheck]:
    """Predict and measure a few layers in the first of the device's number formats.

    Raises
    ------
    InputError
        If the profile lacks what the layers need.
    """
    effort = QUICK if quick else Effort(seconds=2.0)
    precision = precisions_of(device)[0]
    return [
        check_layer(profile, device, name, precision, effort)
        for name in checked_layers(device)
    ]


def check_layer(
    profile: Profile, device: torch.device, name: str, precision: str, effort: Effort
) -> LayerCheck:
    """Predict and measure one of `checked_layers`."""
    spec, batch = checked_layers(device)[name]
    graph = trace_model(spec)
    element_bytes = DTYPES[precision].itemsize
    degrees = Degrees(micro_batch_size=batch)
    kind = graph.kinds[graph.names.index("block 0")]
    operators = layer_work(graph, kind, degrees, element_bytes).operators
    model = ProfiledTimes.of(profile, precision, spec)
    times = [model.operator_time(operator) for operator in operators]
    forward, backward = _measure_layer(spec, batch, device, precision, effort)
    tokens = batch * spec.sequence_length
    return LayerCheck(
        name=f"{name}, {tokens} tokens x {spec.hidden_size}",
        precision=precision,
        measured_forward=forward,
        measured_backward=backward,
        predicted_forward=sum(time.forward for time in times),
        predicted_backward=sum(time.backward for time in times),
        num_operators=len(operators),
        num_outside=sum(model.is_outside(operator) for operator in operators),
    )


def _measure_layer(
    spec: TransformerSpec,
    batch: int,
    device: torch.device,
    precision: str,
    effort: Effort,
) -> tuple[OperatorTiming, OperatorTiming]:
    """Return the time of a layer's forward and of its backward pass."""
    dtype = DTYPES[precision]
    with torch.device(device):
        (kind,) = spec.block_kinds.values()
        families = torch_module("families")
        block = families.FAMILIES[spec.family].block(spec, kind).to(dtype)
    shape = (batch, spec.sequence_length, spec.hidden_size)
    hidden = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    stopwatch = WallStopwatch(device)
    forward = time_call(lambda: block(hidden), stopwatch, effort)
    output = block(hidden)
    given = torch.ones_like(output)
    leaves = (hidden, *block.parameters())
    backward = time_call(
        lambda: torch.autograd.grad(output, leaves, given, retain_graph=True),
        stopwatch,
        effort,
    )
    return forward, backward
