"""What an executor is: it evaluates points somewhere, and tells what became of each.

An executor is handed numbered points and what evaluates one, and yields one answer for
each, in any order. A point may fail, which is an answer like any other; a worker may
die, which is none: its points go to others. Only a point that takes its worker with it
whenever it is tried has failed, for the reason `DIED`.
"""

import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from nestsim.features.sweep.executors.alarm import TimeIsUpError, alarm
from nestsim.running.store import Point, PointFailedError, PointTask, Row
from topologies.errors import InputError
from topologies.units import format_duration

DIED = "its process died: most likely, its machine ran out of memory"
"""Reason of a point whose process died."""

OUT_OF_MEMORY = "its machine ran out of memory"
"""Reason of a point that found no memory."""

Job = tuple[int, Point]
"""Number of a point, and the point."""


class PointAnswer(NamedTuple):
    """What a worker sends back."""

    number: int
    """Number of the point."""

    row: Row | None
    """Results of the point; None if it failed."""

    reason: str
    """Reason why the point failed; empty if it did not."""

    seconds: float
    """Time that the point took [s]."""


class Evaluate(NamedTuple):
    """Evaluates one point, in whichever process."""

    task: PointTask
    """Task that evaluates a point."""

    time_limit: float | None
    """Limit on the time of one point [s]."""

    def __call__(self, number: int, point: Point) -> PointAnswer:
        """Return the results of a point, or why it has none."""
        begun = time.perf_counter()
        row, reason = None, ""
        try:
            with alarm(self.time_limit):
                row = self.task(point)
        except InputError as error:
            reason = one_line(error)
        except PointFailedError as failure:
            reason = " ".join(failure.reason.split())
        except TimeIsUpError:
            assert self.time_limit is not None
            row = None  # it may have come just as the time was up
            reason = f"took longer than {format_duration(self.time_limit)}"
        except MemoryError:
            reason = OUT_OF_MEMORY
        return PointAnswer(number, row, reason, time.perf_counter() - begun)


def one_line(error: InputError) -> str:
    """Return a mistake in the input as one line."""
    first, *others = (" ".join(line.split()) for line in str(error).splitlines())
    return f"{first} ({'; '.join(others)})" if others else first


class Executor(Protocol):
    """Somewhere to evaluate points."""

    def answers(
        self, jobs: Sequence[Job], evaluate: Evaluate
    ) -> Generator[PointAnswer, None, None]:
        """Yield the answer of each job once, as they come.

        Closed before its end, as by an interruption, the generator stops what is
        under way and waits for nobody.

        Parameters
        ----------
        jobs
            Points with their numbers.
        evaluate
            What is done with each; it travels to workers by pickle.

        Raises
        ------
        InputError
            If there is nobody to evaluate points, or no longer. What a task itself
            raises beside failures of points is raised here.
        """
        ...


@runtime_checkable
class FileReader(Protocol):
    """A task that reads files, which may have to travel with it."""

    def files(self, points: Sequence[Point]) -> Iterable[Path]:
        """Return the files that points read, each at least once."""
        ...
