"""What a search may spend: work that is counted, not time.

A unit is about a microsecond of a usual core, whatever the job: the weights below were
fitted to the processor time of searches over 64 to 100,352 devices. Counts depend on
the job alone, so a search that a count stops answers the same on a slow, a fast and a
busy machine. A limit of wall time is something that a user asks for; its clock starts
once a plan has been found, when every kernel that the search needs has been loaded, so
that no compilation counts. `make bench-planner` prints work beside processor time.

Whatever the limits, a search goes on until it has one plan, or has looked at
everything, or has spent `MOST_WORK`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

DEFAULT_WORK = 60_000_000
"""Units that a scenario's search may spend if the scenario does not say: about a
minute."""

MOST_WORK = 2 * DEFAULT_WORK
"""Units after which a search that has found nothing yet gives up, unless its limit is
larger."""

WORK_LIMIT = "work limit"
TIME_LIMIT = "time limit"

LAYER_TABLE = 1200
"""Units of work of a layer table and its bounds."""

CLOSED_FORMS = 2
"""Configurations whose closed-form bounds together take one unit of work."""

MEMORY_BOUND = 25
"""Units of work of what memory forces on a configuration, before its stages are
counted."""

BOUNDED_STAGES = 4
"""Stages of a configuration for which what memory forces on it takes one unit of work
more."""

CHAIN_CLASSES = 1000
"""Units of work of the interval classes of a chain."""

SPLIT = 100
"""Units of work of preparing a split, before its tables and steps are counted."""

SPLIT_NUMBERS = 100
"""Numbers in the tables of a split that take one unit of work more."""

SPLIT_STEPS = 150
"""Steps of the recursions of a split that take one unit of work more."""

PLACEMENTS = 50
"""Units of work of listing a configuration's placements, before each is counted."""

LISTED = 10
"""Units of work of each placement that is listed."""

NESTED_DEVICES = 32
"""Devices of the cluster for which each listed placement takes one unit of work
more."""

PLACEMENT_BOUND = 30
"""Units of work of the bound of a placement, before its devices are counted."""

BOUNDED_DEVICES = 28
"""Devices that a placement uses for which its bound takes one unit of work more."""

PRICED = 200
"""Units of work of the price of a placement, before its devices are counted."""

PRICED_DEVICES = 8
"""Devices that a placement uses for which its price takes one unit of work more; each
counts as often as it has partners in an exchange among experts."""

EVERY_SPLIT = 15
"""Units of work of a split that is enumerated."""

PLAN = 2000
"""Units of work of a plan that is written out and priced by itself."""

BELIEVED = 12
"""Units of work of a plan that a dynamic program prices by its own account."""

STEP = 50
"""Units of work of a step of a walk, or of any other look at one split."""


class LimitReachedError(Exception):
    """A limit has ended a search; what has been found stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a search has spent, and whether a limit ended it."""

    work: int = 0
    """Work that was done, in the units of this module."""

    stopped_by: str = ""
    """Limit that stopped the search, `WORK_LIMIT` or `TIME_LIMIT`; empty if it ran to
    its end."""

    time_limit: float | None = None
    """Limit of wall time that was set, None if none was [s]. With one, the result may
    differ from run to run."""

    @property
    def is_stopped(self) -> bool:
        """Whether a limit ended it."""
        return bool(self.stopped_by)

    @property
    def is_reproducible(self) -> bool:
        """Whether the same search finds the same on any machine, at any load."""
        return self.time_limit is None


@dataclass(slots=True, kw_only=True)
class Work:
    """Counts what one search spends, and ends it.

    The same rule for every planner: `spend` what is done, say when there is `a_plan`,
    and take `LimitReachedError` for the end.
    """

    limit: int | None = None
    """Units that may be spent; None for no limit."""

    time_limit: float | None = None
    """Limit of wall time, from the first plan on; None for no limit [s]."""

    spent: int = 0
    """Units spent so far."""

    stopped_by: str = ""
    """Limit that stopped the search, `WORK_LIMIT` or `TIME_LIMIT`; empty while none
    did."""

    has_plan: bool = False
    """Whether the search has found a plan."""

    started: float = field(default_factory=time.monotonic)
    """Clock when the search was asked for [s]."""

    _clock: float = 0.0
    """Clock when there was the first plan [s]."""

    def a_plan(self) -> None:
        """Note that there is something to show: limits count from now on.

        So does the clock, as every kernel has been loaded by now.
        """
        if not self.has_plan:
            self.has_plan = True
            self._clock = time.monotonic()

    def count(self, units: int) -> None:
        """Add what cannot be left out, whatever the limit."""
        self.spent += units

    def spend(self, units: int) -> None:
        """Add what was done, or is about to be.

        Raises
        ------
        LimitReachedError
            If a limit is passed; from then on every time.
        """
        self.spent += units
        if self.limit is not None:
            limit = self.limit if self.has_plan else max(self.limit, MOST_WORK)
            if self.spent > limit:
                self._stop(WORK_LIMIT)
        if self.time_limit is None or not self.has_plan:
            return
        if time.monotonic() - self._clock > self.time_limit:
            self._stop(TIME_LIMIT)

    def _stop(self, reason: str) -> None:
        self.stopped_by = self.stopped_by or reason
        raise LimitReachedError(self.stopped_by)

    @property
    def share(self) -> float:
        """Part of the limit that is spent, 0 without one."""
        return 0.0 if self.limit is None else self.spent / self.limit

    @property
    def elapsed(self) -> float:
        """Since the search was asked for [s]."""
        return time.monotonic() - self.started

    def total(self) -> Spent:
        """Return what was spent so far."""
        return Spent(
            work=self.spent, stopped_by=self.stopped_by, time_limit=self.time_limit
        )


def stopped_sentence(spent: Spent, what: str) -> str:
    """Say why a search that was stopped has no plan, and how to go on.

    Parameters
    ----------
    spent
        By the search.
    what
        It has been through: ``"12 of 3,400 configurations"``.
    """
    return (
        f"Stopped by the {spent.stopped_by} after {spent.work:,} units of work and "
        f"{what}: no plan that fits was found, and it is not proven that there is "
        f"none. To go on, raise search.work_limit above "
        f"{max(MOST_WORK, spent.work):,}, or narrow the lists of [search]."
    )


Progress = Callable[[str, float | None], None]
"""Called with a note of what is being done, and the share of it that is done, None if
unknown."""
