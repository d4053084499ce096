"""The process that runs inputs: `nestsim.cli.main`, with limits, again and again.

``python -m tests.fuzz.worker FOLDER PROGRAM`` runs a few jobs, after which libraries
and kernels are loaded, then forks a child, which reads requests from standard input
and writes answers to standard output, one JSON object a line. A child that dies, or
that the reader of its answers has killed, is replaced by a fork that is as warm.
"""

import faulthandler
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.formats import dump
from tests.fuzz.scenarios import SCENARIO

Program = Callable[[list[str]], int]

RESULTS = "results"
"""Folder, below the worker's own, of the results that were made on the way."""

NESTSIM = "nestsim.cli:main"
"""The program that is tried: a function that takes arguments."""

FINISHED = 75
"""Exit status of a child that has nothing left to read."""

_MODEL = {
    "family": "llama",
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "sequence_length": 256,
}
_TORUS = {"kind": "torus", "dimensions": [4], "bandwidth": "50 GB/s", "latency": "1 us"}
_LEVELS = [
    {"name": "node", "fan_out": 4, "bandwidth": "300 GB/s", "latency": "500 ns"},
    {"name": "leaf", "fan_out": 2, "bandwidth": "50 GB/s", "latency": "1 us"},
]
_TREE = {"kind": "fat-tree", "levels": _LEVELS}

JOBS: tuple[dict[str, Any], ...] = (
    {
        "name": "a tree",
        "model": _MODEL,
        "training": {"global_batch_size": 32},
        "cluster": {"accelerator": "h100-sxm", "network": _TREE},
        "search": {"pipeline_model_parallel_sizes": [2]},
        "simulation": {"granularity": "layer", "engine": "compiled"},
    },
    {
        "name": "a torus",
        "model": {**_MODEL, "family": "gpt"},
        "training": {"global_batch_size": 16},
        "cluster": {"accelerator": "a100-80gb", "network": _TORUS},
        "software": {"preset": "megatron-core"},
    },
    {
        "name": "experts",
        "model": {
            **_MODEL,
            "family": "mixtral",
            "num_moe_experts": 4,
            "moe_router_topk": 2,
        },
        "training": {"global_batch_size": 16},
        "cluster": {"accelerator": "h200", "network": _TREE},
        "search": {"keep_best": 2},
    },
)
"""Scenarios whose results other inputs start from."""


def main() -> None:
    """Load everything, and serve until standard input ends."""
    folder, program = Path(sys.argv[1]), sys.argv[2]
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    with (folder / "worker.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    module, _, name = program.partition(":")
    function = getattr(importlib.import_module(module), name)
    if program == NESTSIM:
        _warm_up(folder, function)
    died: int | None = None
    while True:
        child = os.fork()
        if child == 0:
            _serve(requests, answers, died, function)
        _, died = os.waitpid(child, 0)
        if os.WIFEXITED(died) and os.WEXITSTATUS(died) == FINISHED:
            return


def _warm_up(folder: Path, nestsim: Program) -> None:
    """Run every command once, and keep the results of some jobs."""
    os.chdir(folder)
    for number, job in enumerate(JOBS):
        made = folder / RESULTS / str(number)
        made.mkdir(parents=True)
        (made / SCENARIO).write_bytes(dump(SCENARIO, job))
        status = nestsim(["run", str(made / SCENARIO), "-o", str(made / "made")])
        assert status in {0, 1}, status
        for name in ("plan.json", "result.json"):
            shutil.copy(made / "made" / name, made / name)
    first = str(folder / RESULTS / "0" / SCENARIO)
    nestsim(["plan", first, "--explain", "tp=2"])
    nestsim(["collectives", first, "--json", "-e", "1 MiB"])
    nestsim(["compare", first, "--json"])


def _serve(requests: int, answers: int, died: int | None, program: Program) -> None:
    """Answer requests until there are no more."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _say(answers, {"pid": os.getpid(), "died": died})
    with os.fdopen(requests, "rb", buffering=0) as lines:
        for line in iter(lines.readline, b""):
            _say(answers, _answer(json.loads(line), program))
    os._exit(FINISHED)


def _say(answers: int, record: dict[str, Any]) -> None:
    os.write(answers, json.dumps(record).encode("ascii") + b"\n")


def _answer(request: dict[str, Any], program: Program) -> dict[str, Any]:
    """Run one command line and return what came of it."""
    os.chdir(request["folder"])
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        file = os.open(request[name], flags, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    _limit(request["cpu_seconds"], request["memory_bytes"])
    _forget_peak()
    begun, wall = _cpu_seconds(), time.perf_counter()
    status, error = _run(program, request["argv"])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return {
        "status": status,
        "error": error,
        "cpu_seconds": _cpu_seconds() - begun,
        "wall_seconds": time.perf_counter() - wall,
        "peak_bytes": _memory("VmHWM"),
    }


def _run(program: Program, argv: list[str]) -> tuple[int, str]:
    """Return the exit status, and the traceback if there is one."""
    try:
        with warnings.catch_warnings():
            # Not once for each place, as is the default: every input counts alone.
            warnings.simplefilter("always", RuntimeWarning)
            return program(argv), ""
    except BaseException:
        return 1, traceback.format_exc()


def _limit(cpu_seconds: float, memory_bytes: int) -> None:
    """Let the kernel end an input that takes too long, and refuse too much memory.

    The signal prints the stack before it ends the process.
    """
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(signal.SIGXCPU, file=2, all_threads=False, chain=True)
    used = resource.getrusage(resource.RUSAGE_SELF)
    last = int(used.ru_utime + used.ru_stime + cpu_seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (last, resource.RLIM_INFINITY))
    room = _memory("VmSize") + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))


def _cpu_seconds() -> float:
    """Return what this process and its children that have ended have used [s]."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _forget_peak() -> None:
    """Begin to measure the peak of memory anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _memory(key: str) -> int:
    """Return a size that the kernel knows of this process [byte]."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
