"""What travels to a worker on another machine: a task, its files, and what is expected.

A worker answers for a sweep only if it computes what this machine would compute: with
the same nestsim, file by file, and the same numerical libraries. It looks at that
before it unpacks the task. Files that points read come along: a worker needs no folder
in common with this machine.
"""

import hashlib
import pickle
import platform
import threading
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from nestsim.features.sweep.executors.alarm import raised_after
from nestsim.features.sweep.executors.protocol import (
    Evaluate,
    FileReader,
    Job,
    PointAnswer,
)
from topologies.input_file import carried_files, files_to_carry

PACKAGES = ("nestsim", "planner", "estimators", "topologies")
"""What every worker must have installed, file by file the same."""

_LIBRARIES = ("numba", "numpy", "scipy")
"""What computes numbers."""

_SOURCES = (".py", ".toml", ".csv")
"""Files that results depend on."""

_LOOK_AGAIN = 1.0
"""Between two looks at whether anybody still waits for an answer [s]."""


@cache
def software() -> Mapping[str, str]:
    """Return what results depend on, by name."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "Python": python,
        "nestsim": f"{version('nestsim')} ({_sources_digest()[:8]})",
        **{name: version(name) for name in _LIBRARIES},
    }


def _sources_digest() -> str:
    """Return a hash of all our files: one version may be installed of two states."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        (folder,) = map(Path, import_module(package).__path__)
        for file in sorted(folder.rglob("*")):
            if file.suffix in _SOURCES:
                content = file.read_bytes()
                name = f"{package}/{file.relative_to(folder).as_posix()}"
                digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


class OtherSoftware(NamedTuple):
    """The answer of a worker that would compute something else."""

    worker: str
    """Address of the worker."""

    found: Mapping[str, str]
    """What it has, by name."""


class Parcel(NamedTuple):
    """Evaluates points on a worker."""

    software: Mapping[str, str]
    """What a worker must have."""

    content: bytes
    """What evaluates a point, and the files that points read; pickled."""

    @classmethod
    def of(cls, evaluate: Evaluate, jobs: Sequence[Job]) -> "Parcel":
        """Pack what evaluates some points."""
        import cloudpickle

        task = evaluate.task
        points = [point for _, point in jobs]
        read = task.files(points) if isinstance(task, FileReader) else ()
        return cls(software(), cloudpickle.dumps((evaluate, files_to_carry(read))))

    def __call__(self, job: bytes) -> "PointAnswer | OtherSoftware | None":
        """Return the answer of a pickled job; None if nobody waits for it any more."""
        import distributed

        worker = distributed.get_worker()
        if software() != self.software:
            return OtherSoftware(worker.address, software())
        key = worker.get_current_task()

        def is_forgotten() -> bool:
            task = worker.state.tasks.get(key)
            return task is None or task.state == "cancelled"

        with _ONE_POINT:
            if is_forgotten():
                return None
            evaluate, files = _unpacked(self.content)
            try:
                with (
                    raised_after(_LOOK_AGAIN, _ForgottenError, is_forgotten),
                    carried_files(files),
                ):
                    return evaluate(*pickle.loads(job))
            except _ForgottenError:
                return None


_ONE_POINT = threading.Lock()
"""A worker evaluates one point at a time, whatever its threads."""


class _ForgottenError(Exception):
    """Nobody waits for the point any more."""


@lru_cache(maxsize=1)
def _unpacked(content: bytes) -> tuple[Evaluate, Mapping[str, Any]]:
    """Return a parcel's content, once in a process: its caches serve all points."""
    evaluate, files = pickle.loads(content)
    return evaluate, files
