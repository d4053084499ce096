"""Make an input that fails smaller, as long as it fails in the same way."""

from collections.abc import Iterator

from tests.fuzz.case import Case
from tests.fuzz.formats import dump, parse
from tests.fuzz.mutations import Place, places, value_at, without
from tests.fuzz.oracle import examine
from tests.fuzz.pool import Lane

MOST_RUNS = 80
"""Of one input: a reproducer is read by people, but need not be the smallest."""

MOST_SECONDS = 1.0
"""An input that takes longer is kept as it is [s]."""


def shrunk(case: Case, key: str, lane: Lane) -> Case:
    """Return a smaller input that fails with the same key.

    Files are left out, then parts of files, the largest parts first.
    """
    runs = 0
    found = True
    while found and runs < MOST_RUNS:
        found = False
        for smaller in _smaller(case):
            runs += 1
            if runs >= MOST_RUNS:
                break
            outcome, failures = examine(smaller, lane, twice=False)
            if any(failure.key == key for failure in failures):
                case, found = smaller, True
                break
            if outcome.cpu_seconds > MOST_SECONDS:
                return case
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Yield inputs that have one thing less."""
    for name in case.files:
        yield case.without_file(name)
    for name, content in case.files.items():
        if not isinstance(content, bytes) or not content:
            continue
        tree = parse(name, content)
        if tree is None:
            half = len(content) // 2
            yield case.with_file(name, content[:half])
            yield case.with_file(name, content[half:])
            continue
        for place in sorted(places(tree), key=lambda place: _order(tree, place)):
            yield case.with_file(name, dump(name, without(tree, place)))


def _order(tree: object, place: Place) -> tuple[int, int]:
    """Put large parts before small ones, later ones before earlier ones."""
    last = place[-1]
    return -len(repr(value_at(tree, place))), -last if isinstance(last, int) else 0
