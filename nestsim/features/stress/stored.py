"""What the document of a stress test reads of ``stress.json``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Matrix = tuple[tuple[float | None, ...], ...]
"""Rows of numbers; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A plan of a stress test."""

    name: str
    """Short name of the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenRecord:
    """What is said in one sentence."""

    in_words: str
    """The sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRecord:
    """Throughput over two levels' ratios."""

    rows: str
    """Level whose ratios are the rows."""

    columns: str
    """Level whose ratios are the columns."""

    tokens_per_s: Mapping[str, Matrix]
    """Planner -> throughput of its plans [token/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedRecord:
    """What plans cost where they were not made for."""

    in_words: str
    """Title of the matrix."""

    conditions: tuple[str, ...]
    """Conditions of rows and columns."""

    regret: Mapping[str, Matrix]
    """Planner -> regret of plans: rows made for, columns run at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLinkRecord:
    """A link under the condition that keeps it busiest."""

    link: str
    """Ends of the link."""

    level: str
    """Level of the link."""

    share: float
    """Share of the step in which the link is busy."""

    condition: str
    """The condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLinksRecord:
    """The busiest links of a plan."""

    in_words: str
    """Title of the figure."""

    links: tuple[BusyLinkRecord, ...]
    """The links, the busiest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToKeepRecord:
    """What share of the throughput is to be kept."""

    tokens_per_s: float
    """That throughput [token/s]."""

    in_words: str
    """What it is, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseRecord:
    """How far a level can be worsened."""

    to_keep: ToKeepRecord | None
    """What is to be kept; None without a plan."""

    answers: tuple[SpokenRecord, ...]
    """The answers, with plans kept and re-made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRecord:
    """A plan for all conditions."""

    plan: str
    """Key of the plan."""

    worst_regret: float
    """Regret under the worst condition."""

    in_words: str
    """Sentence about the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustRecord:
    """The plans that are best under all conditions together."""

    least_worst: ChoiceRecord
    """Plan of the least worst regret."""

    least_mean: ChoiceRecord
    """Plan of the least mean regret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StressCostRecord:
    """What clusters cost."""

    currency: str | None
    """Currency of all prices; None without."""

    assumptions: tuple[str, ...]
    """What cost and power rest on, in sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StressRecord:
    """A stress test."""

    headline: str
    """The answer."""

    scenario: str
    """Name of the scenario."""

    planners: tuple[str, ...]
    """Names of the planners."""

    built_oversubscription: Mapping[str, float]
    """Level -> ratio as built."""

    oversubscription: Mapping[str, tuple[float, ...]]
    """Level -> ratios that are tried."""

    plans: Mapping[str, NamedPlan]
    """Key of a plan -> the plan."""

    made: Mapping[str, Mapping[str, str | None]]
    """Planner -> condition -> key of the plan made for it; None without."""

    cells: Mapping[str, Any]
    """Condition -> what becomes of each plan under it."""

    rows: tuple[Mapping[str, Any], ...]
    """A row for each planner and condition, as ``stress.csv`` has it."""

    shown: tuple[str, ...]
    """Conditions that are drawn."""

    lines: Mapping[str, tuple[str, ...]]
    """Level -> condition at each of its ratios."""

    map: MapRecord | None
    """Throughput over two levels' ratios; None where fewer vary."""

    crossed: CrossedRecord
    """What plans cost where they were not made for."""

    busiest_links: BusyLinksRecord
    """The busiest links of the first planner's plan."""

    changes: tuple[SpokenRecord, ...]
    """Where the best plan changes."""

    inverse: InverseRecord | None
    """How far a level can be worsened; None where that was not asked."""

    robust: RobustRecord | None
    """Plans for all conditions; None without any."""

    cost: StressCostRecord | None = None
    """What clusters cost; None without prices."""

    problems: tuple[str, ...]
    """What has no results, in sentences."""
