"""What all tables of a scenario share: strict settings, counts, quantities, lists.

Every type here checks one value and describes it in the JSON Schema; none of them
knows the file or the setting, which `nestsim.scenario.errors` adds.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import CoreSchema, core_schema

from topologies.errors import InputError
from topologies.input_file import file_problem
from topologies.units import EXAMPLES, NUMBER_PATTERN, UNIT_PATTERN, parse_quantity

MAX_COUNT = 1_000_000
"""No cluster has more devices, and no model more layers or a wider one."""

_SMALL_B = re.compile(r"(?<![A-Za-z])([kMGTPE]i?)b(?![a-z])")

T = TypeVar("T")


Argument = str | int | float | bool | list[str | int | float | bool]
"""What an option of a command, or of a user's function, takes."""


class Table(BaseModel):
    """A table of a scenario: nothing converted silently, nothing unknown accepted."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


@dataclass(frozen=True, slots=True)
class Quantity:
    """Marks a float that is written as a number with a unit.

    Parameters
    ----------
    dimension
        A key of `topologies.units.BASE_UNITS`.
    examples
        As people write it.
    may_be_zero
        Whether 0 is a value, as for latencies.
    """

    dimension: str
    examples: tuple[str, ...]
    may_be_zero: bool = False

    def parse(self, value: object) -> float:
        """Return the value in base units; refuse what no hardware has."""
        try:
            number = parse_quantity(value, self.dimension)
        except InputError as error:
            raise _with_hint(error) from None
        if number == 0 and not self.may_be_zero:
            expected = f"more than 0, e.g. {EXAMPLES[self.dimension]}"
            raise InputError("must be more than 0", got=value, expected=expected)
        return number

    def __get_pydantic_core_schema__(
        self, source: object, handler: object
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: object
    ) -> dict[str, Any]:
        return {
            "type": "string",
            "pattern": rf"^\s*{NUMBER_PATTERN}\s*{UNIT_PATTERN}$",
            "examples": list(self.examples),
        }


def _with_hint(error: InputError) -> InputError:
    """Add what was probably meant where people mix units up."""
    text = error.got if isinstance(error.got, str) else ""
    if found := _SMALL_B.search(text):
        prefix = found.group(1)
        hint = f"write {prefix}bit for bits or {prefix}B for bytes"
    elif "FLOPS" in text.upper():
        hint = "write FLOP/s for a rate"
    else:
        return error
    return InputError(error.problem, got=text, expected=error.expected, hint=hint)


Bandwidth = Annotated[float, Quantity("bandwidth", ("450 GB/s", "400 Gbit/s"))]
"""More than 0, in one direction [byte/s]."""

Latency = Annotated[float, Quantity("duration", ("2 us", "500 ns"), may_be_zero=True)]
"""0 or more [s]."""

Duration = Annotated[float, Quantity("duration", ("60 s", "5 min"))]
"""More than 0 [s]."""

Size = Annotated[float, Quantity("size", ("80 GiB", "80 GB"))]
"""More than 0 [byte]."""

SizeOrNothing = Annotated[float, Quantity("size", ("2 GiB", "0 B"), may_be_zero=True)]
"""0 or more [byte]."""

Rate = Annotated[float, Quantity("rate", ("989 TFLOP/s", "1.98 PFLOP/s"))]
"""More than 0 [FLOP/s]."""

Power = Annotated[float, Quantity("power", ("700 W", "1.2 kW"), may_be_zero=True)]
"""0 or more [W]."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
"""A whole number of things."""

Factor = Annotated[float, Field(ge=1, le=1e6)]
"""At least 1."""

Fraction = Annotated[float, Field(ge=0, le=1)]
"""A share, none and all included."""

Seed = Annotated[int, Field(ge=0, le=2**63 - 1, examples=[0])]
"""Of what is drawn at random."""


@dataclass(frozen=True, slots=True)
class NameChoice:
    """Marks a string that is one of some names, which a registry holds."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: object, handler: object
    ) -> CoreSchema:
        return core_schema.literal_schema(list(self.names))


def _printable(value: str) -> str:
    if not value.strip() or not value.isprintable():
        expected = "one line of readable text"
        raise InputError("is not readable text", got=value, expected=expected)
    return value


Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
"""One line for people."""


def _distinct(values: list[T]) -> list[T]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise InputError(
                "stands in the list twice",
                where=f"[{index}]",
                got=value,
                expected="every value once",
            )
    return values


Distinct = Annotated[
    list[T],
    Field(min_length=1, max_length=1000, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_distinct),
]
"""A list with at least one entry and no entry twice."""


def input_file(folder: Path, name: str, where: str, expected: str) -> Path:
    """Return the path of a file that a scenario names.

    Parameters
    ----------
    folder
        The scenario file's; relative names start there.
    name
        As written in the scenario.
    where
        The setting that names it.
    expected
        What kind of file it is.

    Raises
    ------
    InputError
        If there is no such file, it is not a regular one, or its folder cannot be
        read.
    """
    path = folder / name
    problem = file_problem(path)
    if problem:
        raise InputError(problem, where=where, got=name, expected=expected)
    return path
