"""The table [assert]: what must come out, for use in continuous integration."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import CoreSchema, core_schema

from nestsim.scenario.base import Table
from planner.step.schedules import SCHEDULES
from topologies.errors import InputError
from topologies.settings import Count, NameChoice
from topologies.units import NUMBER_PATTERN, UNIT_PATTERN, parse_quantity

OPERATORS = ("<=", ">=", "<", ">")

_BOUND = re.compile(r"\s*(<=|>=|<|>)(.*)", re.DOTALL)
_NUMBER = re.compile(rf"\s*(?P<number>-?{NUMBER_PATTERN})\s*(?P<percent>%)?\s*")
_TOKENS = re.compile(rf"\s*({NUMBER_PATTERN})\s*tokens?\s*/\s*s\s*")


def _share(text: str) -> float:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise InputError("not a number")
    return float(found["number"]) / (100.0 if found["percent"] else 1.0)


def _tokens(text: str) -> float:
    found = _TOKENS.fullmatch(text)
    if found is None:
        raise InputError("not a number of tokens/s")
    return float(found[1])


_READERS: Mapping[str, Callable[[str], float]] = MappingProxyType(
    {
        "share": _share,
        "throughput": _tokens,
        "duration": lambda text: parse_quantity(text.strip(), "duration"),
        "size": lambda text: parse_quantity(text.strip(), "size"),
    }
)
_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "share": rf"-?{NUMBER_PATTERN}\s*%?",
        "throughput": rf"{NUMBER_PATTERN}\s*tokens?\s*/\s*s",
        "duration": rf"{NUMBER_PATTERN}\s*{UNIT_PATTERN}",
        "size": rf"{NUMBER_PATTERN}\s*{UNIT_PATTERN}",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """One thing that must come out."""

    name: str
    """The setting of the table [assert]."""

    quantity: str
    """What is compared: a key of `nestsim.evaluate.results.found_values`."""

    operator: str
    """``"<="``, ``">="``, ``"<"``, ``">"`` or ``"=="``."""

    value: float | str
    """What it is compared with, in base units."""

    written: str
    """The comparison as people write it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a number is compared with, as written and in base units."""

    operator: str
    """One of `OPERATORS`."""

    value: float
    """[base unit]"""

    written: str
    """As the scenario has it."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Marks a setting that is written as an operator and a bound.

    Parameters
    ----------
    dimension
        A key of `_READERS`.
    example
        As people write it.
    """

    dimension: str
    example: str

    def parse(self, value: object) -> Limit:
        """Return the comparison; refuse what is none."""
        expected = f'an operator ({", ".join(OPERATORS)}) and a bound: "{self.example}"'
        found = _BOUND.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise InputError("is not a comparison", got=value, expected=expected)
        try:
            number = _READERS[self.dimension](found[2])
        except InputError as error:
            raise InputError(error.problem, got=value, expected=expected) from None
        written = f"{found[1]} {' '.join(found[2].split())}"
        return Limit(found[1], number, written)

    def __get_pydantic_core_schema__(
        self, source: object, handler: object
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: object
    ) -> dict[str, Any]:
        pattern = rf"^\s*(<=|>=|<|>)\s*{_PATTERNS[self.dimension]}\s*$"
        return {"type": "string", "pattern": pattern, "examples": [self.example]}


Share = Annotated[Limit, Compared("share", ">= 0.4")]
Time = Annotated[Limit, Compared("duration", "<= 12.5 s")]
Memory = Annotated[Limit, Compared("size", "<= 70 GiB")]
Throughput = Annotated[Limit, Compared("throughput", ">= 1.2e6 tokens/s")]


class AssertTable(Table):
    """What must come out: `nestsim run`, `simulate` and `plan` check it at their end.

    Numbers are those of the replay where there is one, else those of the plan.
    """

    verdict: Literal["confirmed", "slower", "doubtful", "infeasible"] | None = Field(
        None, examples=["confirmed"]
    )
    """What the replay must say of the plan. A verdict that is asserted and found makes
    exit status 0, whichever it is."""

    iteration_time: Time | None = None
    """Bound on the time of a step [s]."""

    throughput: Throughput | None = None
    """Bound on the throughput of the whole cluster [tokens/s]."""

    mfu: Share | None = None
    """Bound on the share of the devices' peak that the model's FLOPs take, attention
    counted in full."""

    peak_memory: Memory | None = None
    """Bound on the memory that the fullest device needs [byte]."""

    gap: Share | None = None
    """Bound on what the replay takes longer than planned, as a share of the planned
    time."""

    min_mfu: float | None = Field(None, ge=0, le=1, examples=[0.4])
    """Least MFU, as `mfu = ">= 0.4"` bounds it."""

    max_memory_fraction: float | None = Field(None, ge=0, le=1, examples=[0.9])
    """Largest part of a device's memory that the fullest device may need."""

    max_plan_gap: float | None = Field(None, ge=-1, le=1000, examples=[0.05])
    """Largest gap between planned and replayed time, as `gap = "<= 0.05"` bounds it."""

    tensor_model_parallel_size: Count | None = Field(None, examples=[8])
    """Tensor-parallel size that the reported plan must have."""

    pipeline_model_parallel_size: Count | None = Field(None, examples=[4])
    """Number of stages that the reported plan must have."""

    data_parallel_size: Count | None = Field(None, examples=[2])
    """Data-parallel size that the reported plan must have."""

    context_parallel_size: Count | None = Field(None, examples=[1])
    """Context-parallel size that the reported plan must have."""

    expert_model_parallel_size: Count | None = Field(None, examples=[1])
    """Expert-parallel size that the reported plan must have."""

    virtual_pipeline_model_parallel_size: Count | None = Field(None, examples=[1])
    """Number of chunks of each stage that the reported plan must have."""

    micro_batch_size: Count | None = Field(None, examples=[2])
    """Sequences of a microbatch that the reported plan must have."""

    schedule: Annotated[str, NameChoice(tuple(SCHEDULES))] | None = Field(
        None, examples=["1f1b"]
    )
    """Schedule that the reported plan must have."""

    def build(self) -> tuple[Assertion, ...]:
        """Return what is asserted, in the order of the settings above."""
        given = ((name, getattr(self, name)) for name in type(self).model_fields)
        return tuple(
            _assertion(name, value) for name, value in given if value is not None
        )


_BOUNDED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "min_mfu": ("mfu", ">="),
        "max_memory_fraction": ("memory_fraction", "<="),
        "max_plan_gap": ("gap", "<="),
    }
)
"""Setting -> what it compares, and how."""


def _assertion(name: str, value: object) -> Assertion:
    if isinstance(value, Limit):
        return Assertion(
            name=name,
            quantity=name,
            operator=value.operator,
            value=value.value,
            written=value.written,
        )
    assert isinstance(value, int | float | str)
    quantity, operator = _BOUNDED.get(name, (name, "=="))
    written = str(value) if operator == "==" else f"{operator} {value}"
    return Assertion(
        name=name, quantity=quantity, operator=operator, value=value, written=written
    )
