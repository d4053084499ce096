"""A Hugging Face ``config.json`` whose look-ups explain themselves."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from estimators.models.spec import TransformerSpec
from topologies.errors import InputError, Problems
from topologies.input_file import read_json

MAX_FILE = 1_000_000
"""Longest file that is read as a configuration, which has some kB [byte]."""

_WHOLE = "a positive whole number, e.g. 32"
_EXPECTED = "a config.json of the Hugging Face hub"

GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
"""Names of GELU and its approximations."""


class ConfigFile:
    """A parsed file whose look-ups explain themselves."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.problems = Problems()

    def _value(self, key: str, default: Any, expected: str) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise InputError("key is missing", where=key, expected=expected)
        return default

    def read(
        self, reader: "Callable[[ConfigFile], TransformerSpec]"
    ) -> TransformerSpec:
        """Return what a reader makes of the file, or raise all that is wrong with it.

        A wrong value is noted and stands for 1, nothing or no; what else that makes
        wrong is not told.
        """
        try:
            spec = reader(self)
        except InputError:
            self.problems.refuse()
            raise
        self.problems.refuse()
        return spec

    def spelled(self, *keys: str) -> str:
        """Return the first of some names of a key that the file has, else the first."""
        given = [key for key in keys if self.values.get(key) is not None]
        return given[0] if given else keys[0]

    def inside(
        self, key: str, reader: "Callable[[ConfigFile], TransformerSpec]"
    ) -> TransformerSpec:
        """Return what a reader makes of an object in the file.

        Raises
        ------
        InputError
            If it is no object, or the reader says so.
        """
        values = self.values.get(key)
        if not isinstance(values, dict):
            raise InputError(
                "not an object",
                where=key,
                got=values,
                expected='an object, e.g. {"hidden_size": 2560, ...}',
            )
        try:
            return ConfigFile(values).read(reader)
        except InputError as error:
            raise error.at(key) from None

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive whole number; without a default it must be there."""
        with self.problems.noted():
            value = self._value(key, default, _WHOLE)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(
                    "not a positive whole number",
                    where=key,
                    got=value,
                    expected=_WHOLE,
                )
            return value
        return 1

    def count(self, key: str, default: int) -> int:
        """Return a whole number that may be 0, as it is where the file has null."""
        value = self.values.get(key, default)
        is_zero = isinstance(value, int) and not isinstance(value, bool) and value == 0
        return 0 if value is None or is_zero else self.integer(key, default)

    def indices(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers; none where there is no list."""
        expected = "a list of whole numbers, e.g. [0, 1]"
        with self.problems.noted():
            value = self._value(key, [], expected)
            if not isinstance(value, list) or not all(
                isinstance(item, int) and not isinstance(item, bool) for item in value
            ):
                raise InputError(
                    "not a list of whole numbers",
                    where=key,
                    got=value,
                    expected=expected,
                )
            return tuple(value)
        return ()

    def number(self, key: str, default: float) -> float:
        """Return a number."""
        with self.problems.noted():
            value = self._value(key, default, "a number, e.g. 0.1")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(
                    "not a number", where=key, got=value, expected="a number, e.g. 0.1"
                )
            return float(value)
        return 0.0

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a truth value."""
        with self.problems.noted():
            value = self._value(key, default, "true or false")
            if not isinstance(value, bool):
                raise InputError(
                    "not a truth value", where=key, got=value, expected="true or false"
                )
            return value
        return default

    def text(self, key: str, default: str | None) -> str:
        """Return a text; without a default it must be there."""
        expected = 'a text in quotes, e.g. "llama"'
        value = self._value(key, default, expected)
        if not isinstance(value, str):
            raise InputError("not a text", where=key, got=value, expected=expected)
        return value

    def require(self, key: str, *, default: Any, allowed: tuple[Any, ...]) -> None:
        """Refuse a key that changes the model in a way that is not modelled."""
        value = self.values.get(key, default)
        with self.problems.noted():
            if value not in allowed:
                raise InputError(
                    "value is not supported",
                    where=key,
                    got=value,
                    expected=" or ".join(json.dumps(choice) for choice in allowed),
                )


def read_config(file: Path) -> ConfigFile:
    """Read a file.

    Raises
    ------
    InputError
        If it cannot be read, or is not a JSON object.
    """
    # Limits of time steps in configurations of Mamba-2 end in Infinity.
    values = read_json(file, expected=_EXPECTED, most_bytes=MAX_FILE, infinities=True)
    if not isinstance(values, dict):
        raise InputError(
            "not a JSON object",
            got=type(values).__name__,
            expected='an object, e.g. {"model_type": "llama", ...}',
        )
    return ConfigFile(values)
