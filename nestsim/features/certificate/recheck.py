"""A certificate beside the job that it is of, and what a check has to say."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from nestsim.evaluate.evaluator import Evaluator
from nestsim.features.certificate.record import CertificateRecord
from planner.search.replayed.candidates import LaunchableCandidates, Leaves
from planner.search.replayed.timelines import TimelineBounds
from planner.search.space import Configuration
from planner.search.thriftiest import sizes_label
from planner.work import Progress, Work

Row = tuple[int, int, int]
"""Three numbers that name what is to be replayed."""

CLOSE = 1e-9
"""Relative difference of bounds that rounding on another machine may make."""

TICKS = 2e-9
"""How much less than its durations a replay may take: each is rounded to ticks of 2^-40
s [s]."""

MOST_NAMED = 3
"""Failures of a kind that are named one by one."""


class Inspection(NamedTuple):
    """What one check looked at, and what does not hold."""

    what: str
    """What was checked."""
    num_checked: int
    """How many of them."""
    how: str
    """How they were checked, in a clause."""
    failures: tuple[str, ...] = ()
    """Sentences on what does not hold."""


def inspection(what: str, count: int, how: str, failures: Iterable[str]) -> Inspection:
    """Return a check, the first of its failures by name and the others by number."""
    named = list(islice(iterator := iter(failures), MOST_NAMED))
    more = sum(1 for _ in iterator)
    if more:
        named.append(f"{what}: {more:,} more do not hold.")
    return Inspection(what, count, how, tuple(named))


def is_close(first: float | None, second: float | None) -> bool:
    """Tell whether two numbers are the same but for rounding; None for no number."""
    known, other = finite(first), finite(second)
    if known is None or other is None:
        return known is other
    return math.isclose(known, other, rel_tol=CLOSE)


def finite(number: float | None) -> float | None:
    """Return a number, None for one that does not exist."""
    return number if number is not None and math.isfinite(number) else None


def infinite(number: float | None) -> float:
    """Return a number, infinity for none."""
    return math.inf if number is None else number


@dataclass(kw_only=True, eq=False)
class Recheck:
    """A certificate beside the job that it is of."""

    record: CertificateRecord
    """What is to be checked."""
    evaluator: Evaluator
    """What prices and replays plans of the job."""
    candidates: LaunchableCandidates
    """The space, listed anew."""
    replays: int | None
    """Plans that are replayed of each kind; None for all that the search replayed."""
    progress: Progress | None = None
    """Told what is done."""
    anew: dict[int, tuple[Leaves, ...]] = field(default_factory=dict)
    """Position among opened configurations -> its plans, listed anew."""

    @classmethod
    def of(
        cls,
        record: CertificateRecord,
        evaluator: Evaluator,
        replays: int | None,
        progress: Progress | None,
    ) -> "Recheck":
        """List the space of a certificate anew."""
        candidates = LaunchableCandidates.enumerate(
            evaluator.network,
            evaluator.workload,
            evaluator.search,
            by_layer=evaluator.replays.by_layer,
            work=Work(),
            progress=progress,
        )
        return cls(
            record=record,
            evaluator=evaluator,
            candidates=candidates,
            replays=replays,
            progress=progress,
        )

    @cached_property
    def rows(self) -> list[Configuration]:
        """Configurations as the certificate has them."""
        return self.record.configurations.configurations()

    @cached_property
    def numbers(self) -> list[int | None]:
        """Number in the space of each of them, None for one that is not in it."""
        number = {
            self.candidates[index]: index for index in range(len(self.candidates))
        }
        return [number.get(row) for row in self.rows]

    @cached_property
    def timelines(self) -> TimelineBounds:
        """What bounds plans by their timelines."""
        return TimelineBounds(
            bounds=self.candidates.bounds,
            prices=self.candidates.prices,
            transfers=self.evaluator.replays.transfers,
        )

    @cached_property
    def keeping_gradients(self) -> Evaluator:
        """What prices plans whose gradients are there for the whole step.

        As the search takes them, whatever `Execution.frees_gradients` gives back.
        """
        workload = self.evaluator.workload
        if not workload.execution.frees_gradients:
            return self.evaluator
        execution = replace(workload.execution, frees_gradients=False)
        return replace(self.evaluator, workload=replace(workload, execution=execution))

    def known(self, *closings: int) -> Iterator[tuple[int, int]]:
        """Yield positions and numbers of configurations that something closes."""
        by = self.record.configurations.by
        for position, number in enumerate(self.numbers):
            if number is not None and by[position] in closings:
                yield position, number

    def label(self, position: int) -> str:
        """Return what sentences call a configuration."""
        return f"Configuration {position} ({sizes_label(self.rows[position])})"

    def floor(self, position: int) -> float:
        """Return the bound of all plans of a configuration [s]."""
        columns = self.record.configurations
        bounds = columns.first_bound_s[position], columns.relaxed_bound_s[position]
        return max((bound for bound in bounds if bound is not None), default=math.inf)

    def sample(self, rows: Sequence[Row]) -> list[Row]:
        """Return as many of some rows as are replayed."""
        return spread(rows, len(rows) if self.replays is None else self.replays)

    def tell(self, doing: str) -> None:
        """Say what is being done."""
        if self.progress is not None:
            self.progress(f"verify: {doing}", None)


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """Return so many of some rows, evenly spaced; all of few."""
    if count >= len(rows):
        return list(rows)
    places = np.linspace(0, len(rows) - 1, max(count, 0)).astype(int)
    return [rows[place] for place in dict.fromkeys(places.tolist())]
