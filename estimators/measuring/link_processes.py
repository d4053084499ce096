"""The processes that measure links together: started here, or by a launcher.

Without a launcher, processes of this machine are started, one for each rank. Under one
such as ``torchrun`` every process is a rank already, which it reads from ``RANK``,
``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from estimators.measuring.links import World, measure_links
from estimators.measuring.operators import Progress
from estimators.user_files import LinkSweep
from topologies.errors import InputError

MOST_LOCAL = 4
"""Ranks that are started on a CPU unless more are asked for: each takes a core."""

MOST_RANKS = 64
"""Most ranks on one CPU: each is a process with torch in it, 0.3 GB."""

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

_LOOPBACK = Path("/sys/class/net/lo")


def launched_world(environment: Mapping[str, str], device: str) -> World | None:
    """Return which process a launcher made this one; None without a launcher.

    Parameters
    ----------
    environment
        Its variables.
    device
        ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    InputError
        If some of the variables are missing, or contradict each other.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    values = []
    for name in _VARIABLES:
        written = environment.get(name, "")
        if not (written.isascii() and written.isdigit()):
            raise InputError(
                "is not a whole number" if written else "is not set",
                where=name,
                got=written or None,
                expected=f"{', '.join(_VARIABLES)}, as torchrun sets them",
                hint="unset RANK and WORLD_SIZE to measure on this machine alone",
            )
        values.append(int(written))
    rank, size, local_rank, local_size = values
    fits = rank < size and local_rank < local_size <= size
    if not fits or size % local_size or rank % local_size != local_rank:
        raise InputError(
            "contradict each other",
            where=", ".join(_VARIABLES),
            got=", ".join(map(str, values)),
            expected="nodes with the same number of ranks each, numbered in a row",
        )
    if size < 2:
        raise InputError(
            "one rank alone has no links", where="WORLD_SIZE", got=size, expected="2"
        )
    _check_device(device, local_size, "LOCAL_WORLD_SIZE")
    return World(
        rank=rank,
        num_ranks=size,
        local_rank=local_rank,
        num_local=local_size,
        device=device,
    )


def local_ranks(device: str, requested: int | None) -> int:
    """Return how many ranks are started on this machine.

    Raises
    ------
    InputError
        If there are not so many devices, or only one.
    """
    if requested is None:
        requested = (
            max(2, min(MOST_LOCAL, os.cpu_count() or 1))
            if device == "cpu"
            else torch.cuda.device_count()
        )
        if requested < 2:
            raise InputError(
                "one device alone has no links",
                where="--device",
                got=f"{device}: {requested} here",
                expected="two GPUs at least, or several nodes under torchrun",
            )
    if requested < 2:
        raise InputError(
            "one rank alone has no links",
            where="--ranks",
            got=requested,
            expected="2 or more",
        )
    _check_device(device, requested, "--ranks")
    return requested


def _check_device(device: str, requested: int, where: str) -> None:
    """Refuse ranks that this machine has no devices or no library for."""
    if not torch.distributed.is_available():
        raise InputError(
            "torch was built without its package for several processes",
            where="--links",
            expected="a build of torch with torch.distributed",
        )
    if device == "cpu":
        has_library, library = torch.distributed.is_gloo_available(), "gloo"
    else:
        has_library, library = torch.distributed.is_nccl_available(), "nccl"
    if not has_library:
        raise InputError(
            f"torch was built without {library}",
            where="--device",
            got=device,
            expected=f"a build of torch with {library}",
        )
    there = torch.cuda.device_count() if device == "cuda" else MOST_RANKS
    if requested > there:
        raise InputError(
            "are more ranks than devices",
            where=where,
            got=requested,
            expected=f"at most {there}",
        )


def measure_local_links(
    device: str,
    num_ranks: int,
    *,
    budget: float,
    quick: bool = False,
    progress: Progress | None = None,
    unheard: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> LinkSweep:
    """Start a process for each rank on this machine, and return what they measure.

    Parameters
    ----------
    device
        ``"cpu"`` or ``"cuda"``.
    num_ranks
        From `local_ranks`.
    budget, quick, progress
        As `estimators.measuring.links.measure_links` takes them.
    unheard
        Processes that are started inside of it do not hear signals to stop: this one
        does, and ends them.

    Raises
    ------
    InputError
        If a process fails, with what it said.
    """
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    ends: list[Connection[Any, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(num_ranks):
                here, there = context.Pipe(duplex=False)
                world = World(
                    rank=rank,
                    num_ranks=num_ranks,
                    local_rank=rank,
                    num_local=num_ranks,
                    device=device,
                    meeting=(Path(folder) / "meeting").as_uri(),
                )
                process: BaseProcess = context.Process(
                    target=_work, args=(world, budget, quick, there), daemon=True
                )
                with unheard():
                    process.start()
                there.close()
                processes.append(process)
                ends.append(here)
            return _listen(ends, processes, progress)
        finally:
            for process in processes:
                process.kill()
                process.join()
            for end in ends:
                end.close()


def _listen(
    ends: "Sequence[Connection[Any, Any]]",
    processes: Sequence[BaseProcess],
    progress: Progress | None,
) -> LinkSweep:
    """Pass progress on until every process has said how it ended."""
    waiting = dict(zip(ends, processes, strict=True))
    sweep: LinkSweep | None = None
    while waiting:
        for end in wait(list(waiting)):
            assert isinstance(end, Connection)
            try:
                kind, value = end.recv()
            except EOFError:
                process = waiting[end]
                process.join()
                raise _failure(f"a process ended with {process.exitcode}") from None
            if kind == "failed":
                raise _failure(value)
            if kind == "progress" and progress is not None:
                progress(*value)
            if kind == "done":
                sweep = value or sweep
                del waiting[end]
    assert sweep is not None
    return sweep


def _failure(message: str) -> InputError:
    return InputError(
        "the processes could not measure together",
        where="--links",
        got=message,
        expected="processes of this machine that reach each other by torch.distributed",
        hint="GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME chooses the network interface",
    )


def _work(
    world: World, budget: float, quick: bool, end: "Connection[Any, Any]"
) -> None:
    """Measure in a started process, and tell the one that started it."""
    if _LOOPBACK.exists():
        # Names of hosts lead anywhere, behind a tunnel for example.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    try:
        sweep = measure_links(
            world,
            budget=budget,
            quick=quick,
            progress=(lambda *note: end.send(("progress", note)))
            if world.rank == 0
            else None,
        )
    except (RuntimeError, ValueError, OSError) as error:
        end.send(("failed", f"rank {world.rank}: {error}".splitlines()[0]))
        return
    end.send(("done", sweep))
