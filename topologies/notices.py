"""What a machine does once, and does without: told to whoever listens.

Kernels are compiled and models traced when they are first needed, and kept in the
user's folder of caches. That takes seconds, in the middle of other work, so the command
line tells users of it; results do not depend on it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Notices:
    """What this process has to tell; `NOTICES` is the one that all write to."""

    listener: Callable[[str], None] | None = None
    """Called with what is being done once, and with an empty text when it is done."""

    seconds: dict[str, float] = field(default_factory=dict)
    """What has been done once -> how long it took [s]."""

    counts: dict[str, int] = field(default_factory=dict)
    """What has been done once -> how many times, for different kernels or models."""

    problems: dict[str, str] = field(default_factory=dict)
    """What must be done anew each time -> why it cannot be kept."""

    _depth: int = 0

    @contextmanager
    def once(self, doing: str) -> Iterator[None]:
        """Note that something is being done whose result will be kept.

        What is done inside of it counts as part of it.
        """
        begun = time.monotonic()
        self._depth += 1
        if self._depth == 1:
            self._tell(f"{doing}, once: {self.seconds.get(doing, 0.0):.0f} s")
        try:
            yield
        finally:
            self._depth -= 1
            self.counts[doing] = self.counts.get(doing, 0) + 1
            if self._depth == 0:
                taken = time.monotonic() - begun
                self.seconds[doing] = self.seconds.get(doing, 0.0) + taken
                self._tell("")

    def cannot_keep(self, what: str, why: str) -> None:
        """Note that something will be done again by the next command."""
        self.problems[what] = why

    def sentences(self, least: float) -> list[str]:
        """Say what took at least so long [s], and what cannot be kept; then forget."""
        told = [
            f"{doing}, once: {seconds:.0f} s"
            for doing, seconds in self.seconds.items()
            if seconds >= least
        ]
        told += [
            f"{what} cannot be kept for the next command: {why}"
            for what, why in self.problems.items()
        ]
        for kept in (self.seconds, self.counts, self.problems):
            kept.clear()
        return told

    def _tell(self, text: str) -> None:
        if self.listener is not None:
            self.listener(text)


NOTICES = Notices()
