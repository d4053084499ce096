"""Say which scenario a mistake is in that shows only when work has begun."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(scenario: Path) -> Iterator[None]:
    """Prefix the location of an `InputError` with the scenario file."""
    from topologies.errors import InputError

    try:
        yield
    except InputError as error:
        raise error.at(str(scenario), ": ") from None
