"""Notes for users beside a result, handed to whoever listens.

Kernels are compiled and models traced when they are first needed, and kept in the
user's folder of caches. That takes seconds, in the middle of other work, so the command
line tells users of it; results do not depend on it. Nor do they depend on where a
setting stands that has moved: both places are read for one release.

Notes belong to a call: whoever wants them opens `gathered_notices`, and what works
below writes to `notices()`. Calls in other threads, before and after have their own.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class Notices:
    """Notes of one call."""

    listener: Callable[[str], None] | None = None
    """Function called with what is being done once, and with an empty text when it is
    done; None if nobody listens."""

    seconds: dict[str, float] = field(default_factory=dict)
    """What has been done once -> time that it took [s]."""

    counts: dict[str, int] = field(default_factory=dict)
    """What has been done once -> number of times, for different kernels or models."""

    problems: dict[str, str] = field(default_factory=dict)
    """What must be done anew each time -> reason why it cannot be kept."""

    moved: dict[str, str] = field(default_factory=dict)
    """File and setting that was read at its old place -> its new place."""

    remarks: dict[str, None] = field(default_factory=dict)
    """What else users should know, each sentence once."""

    _depth: int = 0

    @contextmanager
    def once(self, doing: str) -> Iterator[None]:
        """Note that something is being done whose result will be kept.

        What is done inside of it counts as part of it.
        """
        begun = time.monotonic()
        self._depth += 1
        if self._depth == 1:
            self._notify(f"{doing}, once: {self.seconds.get(doing, 0.0):.0f} s")
        try:
            yield
        finally:
            self._depth -= 1
            self.counts[doing] = self.counts.get(doing, 0) + 1
            if self._depth == 0:
                taken = time.monotonic() - begun
                self.seconds[doing] = self.seconds.get(doing, 0.0) + taken
                self._notify("")

    def cannot_keep(self, what: str, why: str) -> None:
        """Note that something will be done again by the next command."""
        self.problems[what] = why

    def setting_moved(self, old: str, new: str) -> None:
        """Note that a setting was read at a place that the next release refuses."""
        self.moved[old] = new

    def remark(self, sentence: str) -> None:
        """Note what users should know of what is done with their files."""
        self.remarks[sentence] = None

    def sentences(self, least: float) -> list[str]:
        """Return remarks, what took at least so long [s], cannot be kept, or moved."""
        notes = list(self.remarks)
        notes += [
            f"{doing}, once: {seconds:.0f} s"
            for doing, seconds in self.seconds.items()
            if seconds >= least
        ]
        notes += [
            f"{what} cannot be kept for the next command: {why}"
            for what, why in self.problems.items()
        ]
        notes += [
            f"{old} has moved to {new}; the next release no longer reads it here"
            for old, new in self.moved.items()
        ]
        return notes

    def _notify(self, text: str) -> None:
        if self.listener is not None:
            self.listener(text)


_OPEN: ContextVar[Notices | None] = ContextVar("_OPEN", default=None)
"""Notes of the call that is under way."""


def notices() -> Notices:
    """Return the notes of the call that is under way; if none is, some to be lost."""
    return _OPEN.get() or Notices()


@contextmanager
def gathered_notices() -> Iterator[Notices]:
    """Give the notes of what is done meanwhile, which no call around it gets.

    Whoever listens to the call around it goes on to do so.
    """
    inner = Notices(listener=notices().listener)
    token = _OPEN.set(inner)
    try:
        yield inner
    finally:
        _OPEN.reset(token)
