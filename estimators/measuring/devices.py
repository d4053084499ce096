"""Devices that torch can measure on, and how calls are timed on them.

On a CPU calls run one after the other between two readings of a clock, many enough to
be much longer than its resolution. An accelerator works behind a queue: its own events
mark beginning and end of a call, and before each call a large buffer is overwritten,
so that the operands are not still in the cache, and so that the queue is never empty
because the host was late (as ``triton.testing.do_bench`` does). Its times are those of
the device alone; the host's share is the launch time, measured apart.
"""

import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import torch

from estimators.operators.profile import OperatorTiming
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
