"""What one question may take: processor time, memory, devices, bytes, a place to wait.

A worker sets the limits of time and memory on itself before it looks at a question, by
the kernel's own means [1]_: whatever the question makes it do, in Python or in compiled
code, the kernel ends it. What a process holds before the question does not count.

References
----------
.. [1] setrlimit(2), Linux manual: RLIMIT_CPU, RLIMIT_AS.
"""

import math
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from topologies.errors import InputError

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server."""

    cpu_seconds: float = 60.0
    """Processor time of a question [s]."""

    memory_bytes: int = 4 << 30
    """Address space that a question may add to a worker's own [byte]."""

    devices: int = 131_072
    """Devices of a scenario's cluster."""

    body_bytes: int = 4_000_000
    """Length of a request [byte]."""

    waiting: int = 100
    """Questions of one token that wait or are worked on."""

    @property
    def wall_seconds(self) -> float:
        """After so long a question is given up that takes no processor time [s]."""
        return 10.0 * (1.0 + self.cpu_seconds)

    def check_devices(self, num_devices: int) -> None:
        """Refuse a cluster of too many devices."""
        if num_devices > self.devices:
            raise InputError(
                "has more devices than this server takes",
                where="cluster",
                got=f"{num_devices:,} devices",
                expected=f"at most {self.devices:,}",
            )


def begin_question(limits: Limits) -> None:
    """Limit what this process takes from now on.

    Beyond its time the kernel ends the process by SIGXCPU; memory beyond is refused,
    which Python says by `MemoryError`.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime + limits.cpu_seconds
    _soften(resource.RLIMIT_CPU, math.ceil(seconds))
    _soften(resource.RLIMIT_AS, _pages(0) * _PAGE + limits.memory_bytes)


def end_question() -> None:
    """Lift the limits."""
    _soften(resource.RLIMIT_CPU, resource.RLIM_INFINITY)
    _soften(resource.RLIMIT_AS, resource.RLIM_INFINITY)


def resident_bytes() -> int:
    """Return what this process holds in memory [byte]."""
    return _pages(1) * _PAGE


def _soften(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = hard if value == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, hard))


def _pages(column: int) -> int:
    """Return a column of the kernel's count of pages: address space, resident."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[column])
