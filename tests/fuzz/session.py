"""A session: so many inputs, on some workers side by side, and what came of them."""

import queue
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.case import Case, write_reproducer
from tests.fuzz.cases import Results, cases
from tests.fuzz.oracle import Failure, examine
from tests.fuzz.pool import CPU_SECONDS, Lane, Outcome
from tests.fuzz.shrinking import shrunk

BATCH = 250
"""Inputs that are drawn under one seed."""

TWICE = 5
"""One input in so many is run twice."""


@dataclass(slots=True, kw_only=True)
class Counted:
    """What came of the inputs of one kind."""

    statuses: Counter[int | None] = field(default_factory=Counter)
    """Exit status -> inputs; None for those that did not end by themselves."""

    num_failed: int = 0
    num_mutated: int = 0
    seconds: list[float] = field(default_factory=list)
    """CPU time of each [s]."""

    peak_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Session:
    """Counts, and failures by key."""

    kinds: dict[str, Counted] = field(default_factory=lambda: defaultdict(Counted))
    failures: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Key -> a detail of each input that failed so."""

    reproducers: dict[str, Path] = field(default_factory=dict)
    """Key -> the file that repeats the first of them."""

    slowest: tuple[float, str] = (0.0, "")
    """CPU time [s] and command line."""

    @property
    def num_inputs(self) -> int:
        """How many inputs were run."""
        return sum(len(one.seconds) for one in self.kinds.values())

    def count(self, case: Case, outcome: Outcome, failures: list[Failure]) -> None:
        """Take up one input."""
        counted = self.kinds[case.kind]
        status = None if outcome.error else outcome.status
        counted.statuses[status] += 1
        counted.num_failed += bool(failures)
        counted.num_mutated += case.is_mutated
        counted.seconds.append(outcome.cpu_seconds)
        counted.peak_bytes = max(counted.peak_bytes, outcome.peak_bytes)
        self.slowest = max(
            self.slowest, (outcome.cpu_seconds, " ".join(case.argv)[:100])
        )
        for failure in failures:
            self.failures[failure.key].append(failure.detail)


def drawn(results: Results, *, number: int, first_seed: int) -> Iterator[list[Case]]:
    """Yield inputs, batch by batch; the same for the same seed."""
    made, batch = 0, 0
    while made < number:
        found = _batch(results, min(BATCH, number - made), first_seed * 100_003 + batch)
        yield found
        made += len(found)
        batch += 1


def _batch(results: Results, number: int, batch_seed: int) -> list[Case]:
    found: list[Case] = []

    @seed(batch_seed)
    @settings(
        max_examples=number,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(results))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found[:number]


def run_session(
    folder: Path,
    *,
    number: int,
    first_seed: int,
    num_lanes: int,
    minutes: float | None = None,
    cpu_seconds: float = CPU_SECONDS,
    tell: Callable[[str], object] = lambda text: None,
) -> Session:
    """Draw inputs, run them all, and keep a reproducer of each failure.

    Parameters
    ----------
    folder
        An empty one, for the workers and for ``failures``.
    number
        Of inputs.
    first_seed
        The same seed draws the same inputs.
    num_lanes
        Workers.
    minutes
        Draw no more inputs after this long; None for no limit.
    cpu_seconds
        An input that takes longer hangs [s].
    tell
        Takes a line about what has been done.
    """
    crew = _Crew(folder / "failures", tell)
    begun = time.perf_counter()
    with ExitStack() as stack:
        lanes = [
            Lane(folder / f"lane{one}", cpu_seconds=cpu_seconds)
            for one in range(num_lanes)
        ]
        for lane in lanes:
            crew.begin(stack.enter_context(lane))
        try:
            results = lanes[0].results()
            for batch in drawn(results, number=number, first_seed=first_seed):
                crew.hand_out(batch)
                past = time.perf_counter() - begun
                tell(f"{crew.session.num_inputs} of {number} inputs, {past:.0f} s")
                if crew.broken or (minutes is not None and past > 60 * minutes):
                    break
        finally:
            crew.end()
    if crew.broken:
        raise crew.broken[0]
    return crew.session


class _Crew:
    """Threads that run inputs, each on its lane, and count what came of them.

    Parameters
    ----------
    folder
        For reproducers; it is made.
    tell
        Takes a line about each new failure.
    """

    def __init__(self, folder: Path, tell: Callable[[str], object]) -> None:
        folder.mkdir(parents=True)
        self.session = Session()
        self.broken: list[Exception] = []
        self._folder, self._tell = folder, tell
        self._lock = threading.Lock()
        self._waiting: queue.Queue[tuple[int, Case] | None] = queue.Queue(2 * BATCH)
        self._threads: list[threading.Thread] = []
        self._position = 0

    def begin(self, lane: Lane) -> None:
        """Start a thread that uses a lane."""
        thread = threading.Thread(target=self._work, args=(lane,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def hand_out(self, batch: list[Case]) -> None:
        """Give inputs to whichever thread is free."""
        for case in batch:
            self._waiting.put((self._position, case))
            self._position += 1

    def end(self) -> None:
        """Wait until everything that was handed out is done."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, lane: Lane) -> None:
        for position, case in iter(self._waiting.get, None):
            if not self.broken:
                try:
                    self._run(case, lane, twice=position % TWICE == 0)
                except Exception as error:  # ends the session, in the other thread
                    self.broken.append(error)

    def _run(self, case: Case, lane: Lane, *, twice: bool) -> None:
        outcome, failures = examine(case, lane, twice=twice)
        with self._lock:
            known = self.session.failures
            new = {one.key: one for one in failures if one.key not in known}
            self.session.count(case, outcome, failures)
        for failure in new.values():
            file = _keep(case, failure, lane, self._folder)
            self.session.reproducers[failure.key] = file
            self._tell(f"{file.name}: {failure.key}")


def _keep(case: Case, failure: Failure, lane: Lane, folder: Path) -> Path:
    """Write a reproducer of a failure, as small as is quickly found."""
    small = case
    if not failure.key.startswith(("hangs", "waits", "two answers", "memory")):
        small = shrunk(case, failure.key, lane)
    file = folder / f"{len(list(folder.iterdir())):03}.json"
    write_reproducer(small, file, key=failure.key, detail=failure.detail)
    return file


def summary(session: Session) -> str:
    """Return counts by kind and exit status, and every failure, as a text."""
    heading = f"{'kind':<12}{'inputs':>7}{'changed':>9}{'0':>7}{'1':>6}{'2':>6}"
    heading += f"{'other':>7}{'failed':>8}{'median s':>10}{'worst s':>9}{'peak MB':>9}"
    lines = [heading]
    whole = Counted()
    for kind, counted in sorted(session.kinds.items()):
        lines.append(_row(kind, counted))
        whole.statuses += counted.statuses
        whole.num_failed += counted.num_failed
        whole.num_mutated += counted.num_mutated
        whole.seconds += counted.seconds
        whole.peak_bytes = max(whole.peak_bytes, counted.peak_bytes)
    lines.append(_row("all", whole))
    accepted = whole.statuses[0] + whole.statuses[1]
    share = accepted / max(1, len(whole.seconds))
    lines += [
        "",
        f"accepted (0 or 1): {share:.0%}; CPU {sum(whole.seconds):.0f} s; "
        f"slowest {session.slowest[0]:.1f} s: {session.slowest[1]!r}",
        f"distinct failures: {len(session.failures)}",
    ]
    for key, details in sorted(session.failures.items(), key=lambda one: -len(one[1])):
        file = session.reproducers.get(key)
        lines.append(f"{len(details):>6} x {key}  [{file.name if file else '-'}]")
    return "\n".join(lines)


def _row(kind: str, counted: Counted) -> str:
    statuses = counted.statuses
    other = len(counted.seconds) - sum(statuses[one] for one in (0, 1, 2))
    median = statistics.median(counted.seconds) if counted.seconds else 0.0
    worst = max(counted.seconds, default=0.0)
    return (
        f"{kind:<12}{len(counted.seconds):>7}{counted.num_mutated:>9}{statuses[0]:>7}"
        f"{statuses[1]:>6}{statuses[2]:>6}{other:>7}{counted.num_failed:>8}"
        f"{median:>10.3f}{worst:>9.2f}{counted.peak_bytes / 1e6:>9.0f}"
    )
