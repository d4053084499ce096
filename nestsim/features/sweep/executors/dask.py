"""Workers of a Dask cluster, on any number of machines.

What is handed to the scheduler are functions of Python's own library with bytes: the
scheduler needs no nestsim, and a worker that lacks it says so when it unpacks them.
Only some points are handed out in advance. A worker that dies takes nothing with it:
the scheduler hands its points to others. One that it gives up, after its setting
``distributed.scheduler.allowed-failures``, is tried once more with nothing beside it,
as it may only have been waiting where another one killed.

A worker answers for a sweep only if it computes what this machine would compute: with
the same nestsim, file by file, and the same numerical libraries. It looks at that
before it unpacks the task. Files that points read come along: a worker needs no folder
in common with this machine.

References
----------
.. [1] "Scheduling State" and "Resilience", documentation of distributed,
   distributed.dask.org.
"""

import asyncio
import functools
import hashlib
import itertools
import logging
import operator
import pickle
import platform
import queue
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from nestsim.features.sweep.executors.protocol import (
    DIED,
    Evaluate,
    FileReader,
    Job,
    PointAnswer,
    raised_after,
)
from topologies.errors import InputError, import_extra
from topologies.input_file import carried_files, files_to_carry

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_WITHIN = 10.0
"""A scheduler answers as soon, or cannot be reached [s]."""

_CLOSE_WITHIN = 5.0
"""Until a connection is given up that does not close [s]."""

_LOOK_AGAIN = 1.0
"""Between two looks at which workers there are, or whether anybody still waits for an
answer [s]."""

_LEAST_AHEAD = 128
"""Points that are handed out whatever the number of workers: adaptive clusters start
workers for what waits."""

_AHEAD = 4
"""Points that are handed out for each worker."""

_UNDER_WAY = {"pending", "lost"}
"""Statuses of a point whose worker died with the answer: another one is at it again."""

_EXAMPLE = "tcp://host:8786"


PACKAGES = ("nestsim", "planner", "estimators", "topologies")
"""What every worker must have installed, file by file the same."""

_LIBRARIES = ("numba", "numpy", "scipy")
"""What computes numbers."""

_SOURCES = (".py", ".toml", ".csv")
"""Files that results depend on."""


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


class DaskWorkers:
    """The workers of a Dask scheduler; close it, or use it in a ``with``.

    Parameters
    ----------
    scheduler
        Its address, such as ``tcp://host:8786``. Certificates for ``tls://`` are those
        of Dask's own configuration.
    tell
        Told in sentences about workers and the scheduler's dashboard; None for silence.

    Raises
    ------
    InputError
        If Dask is not installed here, or the scheduler cannot be reached within
        `CONNECT_WITHIN`.
    """

    def __init__(
        self, scheduler: str, *, tell: Callable[[str], object] | None = None
    ) -> None:
        self._scheduler = scheduler
        self._tell = tell
        self._told: set[str] = set()
        distributed = import_extra("distributed", "dask", where="executor")
        self._levels = _silenced()
        try:
            self._client = self._connected(distributed)
        except BaseException:
            _restore(self._levels)
            raise
        self._say(f"Dask: scheduler {scheduler}{self._dashboard()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the scheduler and its workers to others."""
        try:
            with suppress(OSError):
                self._client.close(timeout=_CLOSE_WITHIN)
        finally:
            _restore(self._levels)

    def answers(
        self, jobs: Sequence[Job], evaluate: Evaluate
    ) -> Generator[PointAnswer, None, None]:
        """Yield answers as they come; see `Executor`."""
        if not jobs:
            return
        with self._watched():
            self._check_connected()
            run = _HandedOut(self._client, Parcel.of(evaluate, jobs))
            try:
                yield from self._spread(run, jobs)
            finally:
                run.cancel()

    def _spread(
        self, run: "_HandedOut", jobs: Sequence[Job]
    ) -> Generator[PointAnswer, None, None]:
        """Hand out points, so many at a time; then those alone that killed workers."""
        waiting, suspects = iter(jobs), list[Job]()
        ahead, looked = _LEAST_AHEAD, -_LOOK_AGAIN
        while True:
            if time.monotonic() - looked >= _LOOK_AGAIN:
                ahead = max(_LEAST_AHEAD, _AHEAD * self._look())
                looked = time.monotonic()
            for job in itertools.islice(waiting, max(0, ahead - len(run))):
                run.submit(job)
            if not run:
                break
            for job, answer in run.finished(_LOOK_AGAIN):
                if answer is None:
                    suspects.append(job)
                else:
                    yield answer
        for job in suspects:
            yield self._alone(run, job)

    def _alone(self, run: "_HandedOut", job: Job) -> PointAnswer:
        """Return the answer of a point that nothing is evaluated beside."""
        begun = time.perf_counter()
        run.submit(job, alone=True)
        while True:
            self._look()
            for _, answer in run.finished(_LOOK_AGAIN):
                seconds = time.perf_counter() - begun
                return answer or PointAnswer(job[0], None, DIED, seconds)

    def _look(self) -> int:
        """Return how many workers there are; tell of what slows the sweep down."""
        self._check_connected()
        threads = self._client.nthreads()
        if not threads:
            self._say(f"{self._scheduler} has no workers yet; waiting for some")
        several = [address for address, number in threads.items() if number > 1]
        if several:
            self._say(
                f"{several[0]} has {threads[several[0]]} threads, of which one is "
                "used: --nthreads 1 --nworkers N starts workers that use all cores"
            )
        return len(threads)

    def _check_connected(self) -> None:
        """Raise what `_watched` hears of; asked, Dask would try to connect again."""
        if self._client.status != "running":
            raise OSError

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Say that the scheduler went away."""
        try:
            yield
        except (OSError, CancelledError, asyncio.CancelledError):
            raise InputError(
                "the scheduler went away or forgot the points",
                where=self._scheduler,
                hint="finished points are kept where there is a folder for them: with "
                "a new scheduler, the same command goes on from there",
            ) from None
        except _NotUnpackedError as error:
            raise self._other_software(error) from None
        except _RaisedByTaskError as raised:
            raise raised.error from None

    def _other_software(self, problem: "_NotUnpackedError") -> Exception:
        """Return what to say where a worker cannot take up a task, or must not."""
        expected = ", ".join(f"{name} {one}" for name, one in software().items())
        hint = "install the same on every worker, by the same commands as here"
        if isinstance(problem.found, OtherSoftware):
            found = problem.found.found
            return InputError(
                "a worker has other software than this machine",
                where=problem.found.worker,
                got=", ".join(
                    f"{name} {found.get(name)}"
                    for name, one in software().items()
                    if found.get(name) != one
                ),
                expected=expected,
                hint=f"{hint}, and start it again",
            )
        unpacked: dict[str, object] = {}
        with suppress(OSError):
            unpacked = self._client.run(
                pickle.loads, pickle.dumps(Parcel), on_error="return"
            )
        for worker, one in unpacked.items():
            if isinstance(one, ImportError | AttributeError):
                return InputError(
                    f"a worker cannot import what evaluates points: {one}",
                    where=worker,
                    expected=expected,
                    hint=hint,
                )
        return problem.found  # a mistake of the task's own

    def _connected(self, distributed: ModuleType) -> "Client":
        """Return a connection to the scheduler."""
        # A client that finds no scheduler cannot be closed: look before.
        try:
            kind = _kind_of(distributed, self._scheduler)
            if kind == "Scheduler":
                return self._client_of(distributed)
            problem = f"is no scheduler, but: {kind}"
        except OSError:
            problem = f"no scheduler answers within {CONNECT_WITHIN:.0f} s"
        except (ValueError, TypeError, RuntimeError) as error:
            problem = f"is no address of a scheduler: {error}"
        raise InputError(
            problem,
            where="scheduler",
            got=self._scheduler,
            expected=f"the address of a Dask scheduler, such as {_EXAMPLE}",
        )

    def _client_of(self, distributed: ModuleType) -> "Client":
        with warnings.catch_warnings():
            # What matters of versions is looked at by `Parcel`.
            warnings.simplefilter("ignore")
            client: Client = distributed.Client(
                self._scheduler,
                timeout=CONNECT_WITHIN,
                set_as_default=False,
                name="nestsim",
            )
        return client

    def _dashboard(self) -> str:
        """Return where the scheduler's dashboard is, if it has one."""
        with suppress(KeyError, OSError):
            if link := self._client.dashboard_link:
                return f", dashboard {link}"
        return ""

    def _say(self, sentence: str) -> None:
        """Tell something once."""
        if self._tell is not None and sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)


class _NotUnpackedError(Exception):
    """A worker cannot take up a task, or must not."""

    def __init__(self, found: OtherSoftware | Exception) -> None:
        self.found = found
        super().__init__()


class _RaisedByTaskError(Exception):
    """A task raised something beside failures of points."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__()


class _HandedOut:
    """The points of one sweep that the scheduler has at the moment."""

    def __init__(self, client: "Client", parcel: Parcel) -> None:
        self._client = client
        self._name = f"nestsim-{uuid.uuid4().hex}"
        self._done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._jobs: dict[Future[Any], Job] = {}
        self._again: list[Future[Any]] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large graphs: it is sent once
            # As bytes: workers pass it on to others, which may lack what it needs.
            self._parcel = client.submit(
                bytes, pickle.dumps(parcel), key=f"{self._name}-task"
            )

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, job: Job, *, alone: bool = False) -> None:
        """Hand a point to the scheduler."""
        # That is, pickle.loads(parcel)(job).
        future = self._client.submit(
            functools.reduce,
            operator.call,
            [pickle.loads, self._parcel, pickle.dumps(job)],
            key=(f"{self._name}-alone" if alone else self._name, job[0]),
            priority=-job[0],  # in their order: Dask's own is no promise
        )
        self._jobs[future] = job
        future.add_done_callback(self._done.put)

    def finished(self, patience: float) -> Iterator[tuple[Job, PointAnswer | None]]:
        """Yield what is done by now; the answer is None where workers died.

        Parameters
        ----------
        patience
            How long to wait for the first one [s].
        """
        # A status may change at any time: each is looked at once.
        done = [(future, future.status) for future in self._take(patience)]
        good = [future for future, status in done if status == "finished"]
        # As a table, in which None stands for what has been lost since; or for what a
        # worker stopped, as it was told that nobody waits for it.
        answers = self._client.gather(dict(enumerate(good)), errors="skip")
        for number, future in enumerate(good):
            answer = answers[number]
            if isinstance(answer, OtherSoftware):
                raise _NotUnpackedError(answer)
            if answer is None and future.status != "finished":
                self._again.append(future)
            else:
                yield self._jobs.pop(future), answer
        for future, status in done:
            if status in _UNDER_WAY:
                self._again.append(future)
            elif status != "finished":
                self._check(future, status)
                yield self._jobs.pop(future), None

    def cancel(self) -> None:
        """Have the scheduler and its workers forget what is under way."""
        if self._client.status == "running":  # else it may not even be asked
            with suppress(OSError):
                self._client.cancel([*self._jobs, self._parcel])
        self._jobs.clear()

    def _take(self, patience: float) -> list["Future[Any]"]:
        done = [one for one in self._again if one.status not in _UNDER_WAY]
        self._again = [one for one in self._again if one not in done]
        with suppress(queue.Empty):
            if not done:
                done.append(self._done.get(timeout=patience))
            while True:
                done.append(self._done.get_nowait())
        return done

    def _check(self, future: "Future[Any]", status: str | None) -> None:
        """Raise why a point has no answer, unless its workers died."""
        from distributed.scheduler import KilledWorker

        if status != "error":
            raise OSError  # cancelled by whoever has the scheduler, or by its end
        error = future.exception()
        if error is None or self._parcel.status in {"error", "cancelled"}:
            raise OSError  # cancelled since, or what all points need is not there
        if isinstance(error, KilledWorker):
            return
        if isinstance(error, ImportError | AttributeError):
            raise _NotUnpackedError(error)
        raise _RaisedByTaskError(error)


def _kind_of(distributed: ModuleType, address: str) -> str:
    """Return what answers at an address: ``Scheduler``, ``Worker``, ``Nanny``."""

    async def identity() -> str:
        asked = distributed.rpc(
            address,
            timeout=CONNECT_WITHIN,
            connection_args=distributed.Security().get_connection_args("client"),
        )
        async with asked as remote:
            answer = await asyncio.wait_for(remote.identity(), CONNECT_WITHIN)
            return str(answer["type"])

    # In a thread of its own: a notebook's has a loop already.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, identity()).result()


_LOGGERS = ("distributed", "distributed.client", "distributed.core")


def _silenced() -> dict[str, int]:
    """Have Dask write no log of its own beside our sentences; return what it was."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return levels


def _restore(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
