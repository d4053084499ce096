"""What ``stress.json`` holds."""

from collections.abc import Mapping
from typing import Annotated, Any

from nestsim.document.dumps import ABSENT, Of, Record
from nestsim.features.stress.results import LinkBar

Matrix = tuple[tuple[float | None, ...], ...]
"""Rows of numbers; None where there is none."""


class NamedPlan(Record):
    """A plan of a stress test."""

    name: str
    """Short name of the plan."""


class SpokenRecord(Record):
    """What is said in one sentence."""

    in_words: str
    """The sentence."""


class MapRecord(Record):
    """Throughput over two levels' ratios."""

    rows: str
    """Level whose ratios are the rows."""

    columns: str
    """Level whose ratios are the columns."""

    tokens_per_s: Mapping[str, Matrix]
    """Planner -> throughput of its plans [token/s]."""


class CrossedRecord(Record):
    """What plans cost where they were not made for."""

    in_words: str
    """Title of the matrix."""

    conditions: tuple[str, ...]
    """Conditions of rows and columns."""

    regret: Mapping[str, Matrix]
    """Planner -> regret of plans: rows made for, columns run at."""


class BusyLinksRecord(Record):
    """The busiest links of a plan."""

    in_words: str
    """Title of the figure."""

    links: tuple[LinkBar, ...]
    """The links, the busiest first."""


class ToKeepRecord(Record):
    """What share of the throughput is to be kept."""

    tokens_per_s: float
    """That throughput [token/s]."""

    in_words: str
    """What it is, in words."""


class AnswerRecord(Record):
    """How far a level can be worsened, with plans kept or re-made."""

    plan: Annotated[str, Of("policy")]
    """Whether the plan is kept or re-made."""

    kept: float | None
    """A worsening that keeps the share; None if none does."""

    lost: float | None
    """The lowest that was tried beyond it and does not; None if all do."""

    kept_bytes_per_s: Annotated[float | None, Of("bandwidths.0")]
    """Bandwidth that the worsening `kept` leaves [byte/s]."""

    lost_bytes_per_s: Annotated[float | None, Of("bandwidths.1")]
    """Bandwidth that the worsening `lost` leaves [byte/s]."""

    is_monotone: bool
    """Whether throughput never rose where the network got worse."""

    tried: tuple[tuple[float, float], ...]
    """Worsening and share of the throughput, rising."""

    in_words: str
    """Sentence about it."""

    full_cost_per_s: Annotated[float | None, Of("costs.0.rate", ABSENT)] = None
    """Cost of the cluster at 1:1 [currency/s]."""

    kept_cost_per_s: Annotated[float | None, Of("costs.1.rate", ABSENT)] = None
    """Cost of the cluster where the share is still kept [currency/s]."""

    full_network_cost_per_s: Annotated[
        float | None, Of("costs.0.network_rate", ABSENT)
    ] = None
    """Cost of the network at 1:1 [currency/s]."""

    kept_network_cost_per_s: Annotated[
        float | None, Of("costs.1.network_rate", ABSENT)
    ] = None
    """Cost of the network where the share is still kept [currency/s]."""


class InverseRecord(Record):
    """How far a level can be worsened."""

    level: str
    """Name of the level."""

    quantity: str
    """What is worsened: ``"oversubscription"`` or ``"bandwidth"``."""

    keep: float
    """Share of the throughput that is to be kept."""

    to_keep: ToKeepRecord | None
    """What is to be kept; None without a plan."""

    answers: tuple[AnswerRecord, ...]
    """The answers, with plans kept and re-made."""


class ChoiceRecord(Record):
    """A plan for all conditions."""

    plan: str
    """Key of the plan."""

    worst_regret: Annotated[float, Of("worst")]
    """Regret under the worst condition."""

    worst_condition: str
    """The worst condition."""

    mean_regret: Annotated[float, Of("mean")]
    """Mean regret over the conditions."""

    in_words: str
    """Sentence about the plan."""


class RobustRecord(Record):
    """The plans that are best under all conditions together."""

    least_worst: ChoiceRecord
    """Plan of the least worst regret."""

    least_mean: ChoiceRecord
    """Plan of the least mean regret."""


class StressCostRecord(Record):
    """What clusters cost."""

    currency: str | None
    """Currency of all prices; None without."""

    conditions: Mapping[str, Mapping[str, float | None]]
    """Condition -> what its cluster and its network cost and draw."""

    pareto: tuple[Mapping[str, str], ...]
    """Planners and conditions that nothing dominates."""

    assumptions: tuple[str, ...]
    """What cost and power rest on, in sentences."""


class StressRecord(Record):
    """A stress test."""

    headline: str
    """The answer."""

    scenario: Annotated[str, Of("scenario_name")]
    """Name of the scenario."""

    planners: tuple[str, ...]
    """Names of the planners."""

    objective: str
    """What plans were chosen by."""

    built_oversubscription: Annotated[Mapping[str, float], Of("built")]
    """Level -> ratio as built."""

    oversubscription: Annotated[Mapping[str, tuple[float, ...]], Of("axes")]
    """Level -> ratios that are tried."""

    conditions: tuple[Mapping[str, object], ...]
    """The conditions: ratios, what is degraded, traffic of others."""

    plans: Mapping[str, NamedPlan]
    """Key of a plan -> the plan."""

    made: Mapping[str, Mapping[str, str | None]]
    """Planner -> condition -> key of the plan made for it; None without."""

    cells: Mapping[str, object]
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

    why_not: tuple[Mapping[str, str], ...]
    """Planners and conditions without a plan, with the reason."""

    cost: StressCostRecord | None = None
    """What clusters cost; None without prices."""

    failed: Mapping[str, str]
    """Condition -> why plans could not be run under it."""

    stopped: tuple[tuple[str, str], ...]
    """Planners and conditions whose search a limit ended."""

    problems: tuple[str, ...]
    """What has no results, in sentences."""

    reproducible: bool
    """Whether searches find the same in every run."""
