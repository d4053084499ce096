"""Processes of this machine, which stay for the next point.

What they have loaded, compiled and cached serves every later point. They end with the
sweep that they work for, however it ends.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass

from nestsim.features.sweep.executors.protocol import DIED, Evaluate, Job, PointAnswer
from nestsim.running.interruption import unheard_by_children
from nestsim.running.store import Point


@dataclass(frozen=True, slots=True)
class Processes:
    """Processes of this machine."""

    workers: int | None = None
    """How many; 1 for this one alone, None for one for each core."""

    def answers(
        self, jobs: Sequence[Job], evaluate: Evaluate
    ) -> Generator[PointAnswer, None, None]:
        """Yield answers as they come; see `Executor`."""
        if not jobs:
            return
        workers = self.workers or _cores()
        if workers == 1:
            for job in jobs:
                yield evaluate(*job)
            return
        # Of one process joblib would make none.
        workers = max(2, min(workers, len(jobs)))
        waiting = dict(jobs)
        while waiting:
            begun: set[int] = set()
            pool = _parallel(waiting, evaluate, workers, begun.add)
            try:
                with closing(pool) as answers:
                    for answer in answers:
                        del waiting[answer.number]
                        yield answer
            except BrokenProcessPool:
                # One of those that were under way took its worker with it: each of
                # them alone, until it is known which.
                for number in sorted(begun & waiting.keys()):
                    yield _alone((number, waiting.pop(number)), evaluate)


_INTERVAL = 1.0
"""Time between two looks at the parent [s]."""


def end_with(parent: int) -> None:
    """Have this process end soon after its parent has.

    A sweep that is killed cannot tell its workers, which would wait for minutes for
    more to do.

    Parameters
    ----------
    parent
        Number of the process that sweeps.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_INTERVAL)
    os._exit(1)


def _cores() -> int:
    import joblib

    return int(joblib.cpu_count())


def _parallel(
    waiting: dict[int, Point],
    evaluate: Evaluate,
    workers: int,
    on_begin: Callable[[int], object],
) -> Generator[PointAnswer, None, None]:
    """Yield the answers of processes, and call back with each point handed out.

    Workers do not hear what tells this process to stop, and end with it.
    """
    import joblib

    def calls() -> Iterator[tuple[Evaluate, Job, dict[str, object]]]:
        for job in list(waiting.items()):
            on_begin(job[0])
            yield evaluate, job, {}

    pool = joblib.Parallel(
        n_jobs=workers,
        return_as="generator_unordered",
        batch_size=1,
        initializer=end_with,
        initargs=(os.getpid(),),
    )
    answers = None
    try:
        with unheard_by_children():
            answers = pool(calls())
        # Not "yield from", which would close it where joblib's warning is heard.
        for answer in answers:  # noqa: UP028
            yield answer
    finally:
        if answers is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answers.close()


def _alone(job: Job, evaluate: Evaluate) -> PointAnswer:
    """Evaluate a point in a process of its own, which may die."""
    number, point = job
    begun = time.perf_counter()
    try:
        (answer,) = _parallel({number: point}, evaluate, 2, lambda _: None)
    except BrokenProcessPool:
        return PointAnswer(number, None, DIED, time.perf_counter() - begun)
    return answer
