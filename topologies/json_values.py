"""Values of a JSON file, checked one by one, with the place of each in every error."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from topologies.errors import InputError

_LARGEST = 1e30
"""What the published NEST artifact takes for infinity; no size or time is larger."""

_LONGEST_TEXT = 200


class Value:
    """One value of a file and where it stands.

    Parameters
    ----------
    raw
        As the JSON parser gave it.
    where
        Dotted path of keys, e.g. ``nodes.4[0].parameterSize``.
    """

    def __init__(self, raw: Any, where: str = "") -> None:
        self.raw, self.where = raw, where

    def __getitem__(self, key: str) -> "Value":
        """Return the value of a key that must be there."""
        table = self.table()
        if key not in table:
            raise InputError(
                "key is missing",
                where=self._inner(key),
                expected=f'an object with "{key}"',
            )
        return Value(table[key], self._inner(key))

    def get(self, key: str, default: Any) -> "Value":
        """Return the value of a key, or the default if it is not there."""
        return Value(self.table().get(key, default), self._inner(key))

    def items(self) -> Iterator[tuple[str, "Value"]]:
        """Yield keys and values of an object."""
        for key, raw in self.table().items():
            yield key, Value(raw, self._inner(key))

    def table(self) -> dict[str, Any]:
        """Return an object's raw values by key."""
        if not isinstance(self.raw, dict):
            raise self.error("has the wrong type", "an object")
        return self.raw

    def array(self, *, least: int = 0, most: int | None = None) -> list["Value"]:
        """Return the values of an array of at least and at most so many."""
        if not isinstance(self.raw, list):
            raise self.error("has the wrong type", "an array")
        if len(self.raw) < least:
            raise self.error("is too short", f"an array of at least {least}")
        if most is not None and len(self.raw) > most:
            raise self.error("is too long", f"an array of at most {most:,}")
        return [Value(raw, f"{self.where}[{i}]") for i, raw in enumerate(self.raw)]

    def number(self, *, least: float = 0.0) -> float:
        """Return a finite number that is not below ``least``."""
        raw = self.raw
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise self.error("has the wrong type", "a number")
        if not least <= raw <= _LARGEST:  # also NaN
            expected = f"a number from {least:g} to {_LARGEST:g}"
            raise self.error("is out of range", expected)
        return float(raw)

    def whole(self, *, least: int, most: int) -> int:
        """Return a whole number in a range; 8.0 counts as 8."""
        raw = self.raw
        expected = f"a whole number from {least} to {most}"
        if isinstance(raw, float) and raw.is_integer():
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise self.error("has the wrong type", expected)
        if not least <= raw <= most:
            raise self.error("is out of range", expected)
        return raw

    def text(self) -> str:
        """Return one line of readable text that is not empty, nor very long."""
        raw = self.raw
        if not isinstance(raw, str):
            raise self.error("has the wrong type", "a text in quotes")
        if not raw.strip() or not raw.isprintable() or len(raw) > _LONGEST_TEXT:
            expected = f"one line of at most {_LONGEST_TEXT} readable characters"
            raise self.error("is not readable text", expected)
        return raw

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.raw, bool):
            raise self.error("has the wrong type", "true or false")
        return self.raw

    def choice(self, choices: Sequence[str]) -> str:
        """Return one of some texts."""
        if self.raw not in choices or not isinstance(self.raw, str):
            words = " or ".join(f'"{choice}"' for choice in choices)
            raise self.error("is not one of the known values", words)
        return self.raw

    def each(
        self,
        read: Callable[["Value"], Any],
        *,
        least: int = 0,
        most: int | None = None,
    ) -> tuple[Any, ...]:
        """Return what ``read`` makes of each value of an array."""
        return tuple(read(value) for value in self.array(least=least, most=most))

    def error(self, problem: str, expected: str) -> InputError:
        """Return an error about this value."""
        return InputError(problem, where=self.where, got=self.raw, expected=expected)

    def _inner(self, key: str) -> str:
        name = key if key.isprintable() and key else repr(key)
        return f"{self.where}.{name}" if self.where else name
