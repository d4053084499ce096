"""A Hugging Face ``config.json`` as a parsed file whose look-ups explain themselves."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from estimators.models.spec import TransformerSpec
from topologies.errors import InputError, Problems, located
from topologies.input_file import read_json

MAX_FILE = 10_000_000
"""Longest file that is read as a configuration, which has some kB, or some MB where it
lists the modules that are quantised [byte]."""

_EXPECTED = "a config.json of the Hugging Face hub"
_MISSING = object()


class _ValueKind(NamedTuple):
    """What a value can be."""

    matches: Callable[[Any], bool]
    """Whether a value that the JSON parser returned is of the kind."""

    problem: str
    """What is wrong with a value that is not."""

    expected: str
    """What the value should be, with an example."""

    usual: Any
    """Value where a file has none; None if it must have one."""

    stand_in: Any
    """What stands for a wrong value until the file is refused."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_SIZE = "a positive whole number, e.g. 32"
_NUMBER = "a number, e.g. 0.1"
_TEXT = 'a text in quotes, e.g. "llama"'

_KINDS: Mapping[type, _ValueKind] = MappingProxyType(
    {
        int: _ValueKind(_is_size, "not a positive whole number", _SIZE, None, 1),
        float: _ValueKind(_is_number, "not a number", _NUMBER, 0.0, 0.0),
        bool: _ValueKind(
            lambda value: isinstance(value, bool),
            "not a truth value",
            "true or false",
            usual=False,
            stand_in=False,
        ),
        str: _ValueKind(
            lambda value: isinstance(value, str), "not a text", _TEXT, None, ""
        ),
    }
)


class ConfigFile:
    """A parsed file whose look-ups explain themselves.

    A key with dots is that of an object inside the file. A wrong value is noted, and
    something of its kind stands for it until the file is refused.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.problems = Problems()

    def read(
        self, reader: "Callable[[ConfigFile], TransformerSpec]"
    ) -> TransformerSpec:
        """Return what a reader makes of the file, or raise all that is wrong with it.

        Mistakes that only follow from a wrong value are not listed.
        """
        try:
            spec = reader(self)
        except InputError:
            self.problems.refuse()
            raise
        self.problems.refuse()
        return spec

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
        with located(key):
            return ConfigFile(values).read(reader)

    def find(self, key: str, default: Any = None) -> Any:
        """Return what stands under a key, or the default if there is no such key."""
        value: Any = self.values
        for name in key.split("."):
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
        return default if value is _MISSING else value

    def spelled(self, *keys: str) -> str:
        """Return the first of some names of a key that the file has, else the first."""
        return next((key for key in keys if self.find(key) is not None), keys[0])

    def value(
        self,
        kind: type,
        key: str,
        default: Any = None,
        *,
        may_be_zero: bool = False,
        repeated: bool = False,
    ) -> Any:
        """Return a value of some kind.

        Parameters
        ----------
        kind
            `int` for a positive whole number, `float`, `bool` or `str`.
        key
            Its key.
        default
            Value where there is none, or it is null. Without a default, numbers are 0
            and truth values false; whole numbers and texts must be there.
        may_be_zero
            Whether 0 is a value, and null stands for it.
        repeated
            Whether a list of values that are all alike stands for one of them.
        """
        rules = _KINDS[kind]
        value = self.find(key, _MISSING)
        if repeated and isinstance(value, list) and value:
            value = value[0] if value == value[:1] * len(value) else value
        if may_be_zero and (value is None or (value == 0 and value is not False)):
            return kind(0)
        if value is None or value is _MISSING:
            value = rules.usual if default is None else default
            if value is not None:
                return value
            self.refuse("key is missing", key, None, rules.expected)
        elif not rules.matches(value):
            self.refuse(rules.problem, key, value, rules.expected)
        else:
            return kind(value)
        return rules.stand_in

    def kinds(
        self, key: str, known: Sequence[str], num_blocks: int
    ) -> Sequence[str] | None:
        """Return the kind of each block that a list has, or None if there is no list.

        A list may have those of layers that predict further ahead, too.

        Raises
        ------
        InputError
            If it is no list of known kinds for all blocks.
        """
        kinds = self.find(key)
        if kinds is None:
            return None
        is_known = isinstance(kinds, list) and all(kind in known for kind in kinds)
        ahead = self.find("num_nextn_predict_layers", 0)
        if is_known and len(kinds) - num_blocks == ahead:
            kinds = kinds[:num_blocks]
        if not is_known or len(kinds) != num_blocks:
            expected = " or ".join(f'"{kind}"' for kind in known)
            raise InputError(
                "not one known kind for each block",
                where=key,
                got=kinds,
                expected=f"{num_blocks} of {expected}",
            )
        return tuple(kinds)

    def marks(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers; none where there is no list."""
        value = self.find(key)
        if value is None:
            return ()
        if isinstance(value, list) and all(type(item) is int for item in value):
            return tuple(value)
        expected = "a list of whole numbers, e.g. [0, 1]"
        self.refuse("not a list of whole numbers", key, value, expected)
        return ()

    def require(self, key: str, allowed: Sequence[Any]) -> bool:
        """Refuse a value that is not allowed; return whether it is, or is not there."""
        value = self.find(key, allowed[0])
        known = value in allowed
        if not known:
            expected = " or ".join(json.dumps(choice) for choice in allowed)
            self.refuse("value is not supported", key, value, expected)
        return known

    def refuse(self, problem: str, key: str, value: Any, expected: str) -> None:
        """Note what is wrong with a key, once."""
        if key not in {error.where for error in self.problems.errors}:
            self.problems.errors.append(
                InputError(problem, where=key, got=value, expected=expected)
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
    if isinstance(values.get("_class_name"), str):  # diffusers' files have no type
        values = {"model_type": values["_class_name"], **values}
    return ConfigFile(values)
