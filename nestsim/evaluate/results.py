"""What jobs hand to their reports: plans, prices, replays, verdicts, assertions.

What a scenario asserts, held against what was found.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from estimators.training import ParameterBytes
from nestsim.evaluate.cost import ClusterCost, RunCost
from nestsim.evaluate.ramp import RampUp
from nestsim.evaluate.uncertainty import Band, MemoryNeed, Reason
from nestsim.evaluate.verdict import Verdict
from nestsim.scenario.assertions import Assertion
from nestsim.scenario.load import JobBasis
from nestsim.simulator.system import Replay
from planner.cost.objective import PricedPlan
from planner.explain.explain import Explanation
from planner.search.launchable import BrokenRule
from planner.step.memory import judge_room
from planner.step.plan import Plan
from planner.work import Spent
from topologies.errors import short_repr
from topologies.network import Network

if TYPE_CHECKING:
    from nestsim.simulator.changing import ChangedStep
    from nestsim.simulator.circuits import CircuitStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The same quantities for the plan and for the replay."""

    iteration_time: float
    """[s]"""

    tokens_per_second: float
    """[token/s]"""

    tokens_per_second_per_device: float
    """Over all devices of the cluster, idle ones included [token/s]."""

    flops_per_device: float
    """Model FLOPs (forward and backward, no recompute) per second and device."""

    mfu: float
    """`flops_per_device` over the device's peak; attention counts in full."""

    mfu_causal: float
    """The same with what a causal mask hides left out; `mfu` without such a mask."""

    peak_memory: float
    """Of the fullest device [byte]."""

    @property
    def tflops_per_device(self) -> float:
        """Model FLOPs per second and device [TFLOP/s]."""
        return self.flops_per_device / 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One plan, replayed."""

    rank: int
    """Position in the planner's order, from 1; 0 for a plan that was given."""

    priced: PricedPlan
    planned: Throughput
    replay: Replay
    simulated: Throughput
    verdict: Verdict

    broken_rules: tuple[BrokenRule, ...] = ()
    """Rules of the scenario's framework that the plan does not keep: it cannot be
    launched there."""

    ramp: RampUp | None = None
    """Steps of smaller batches in front; None where all are whole, or nobody asked."""

    changed: "ChangedStep | None" = None
    """The step in which links fail, slow down or come back; None without."""

    circuits: "CircuitStep | None" = None
    """The step over optical switches; None without any."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCandidate:
    """One of the k best plans, not replayed."""

    rank: int
    """Position in the planner's order, from 1."""

    priced: PricedPlan
    planned: Throughput

    replayed_time: float | None = None
    """Iteration time in the replay; None if the search did not replay it [s]."""

    __repr__ = short_repr


@dataclass(frozen=True, kw_only=True)
class Assumptions(JobBasis):
    """What times rest on beside the plan: software, number formats, measurements."""

    preset: str
    """Framework whose defaults held where the scenario was silent."""

    parameter_bytes: ParameterBytes
    """Bytes of each of the model's parameters by use, on average [byte]."""

    network: tuple[str, ...] = ()
    """What a file of another program does not say of the network."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class SimplestPlan:
    """The simplest confirmed plan that is nearly as fast as the reported one."""

    plan: Plan
    """The plan; the reported one where none is simpler."""

    iteration_time: float
    """Replayed iteration time [s]."""

    peak_memory: float
    """Memory of the fullest device in the replay [byte]."""

    slower_by: float
    """How much longer than the reported plan it takes, relative."""

    within: float
    """How much longer it may take, relative."""

    spared: tuple[str, ...]
    """What the reported plan has and it has not, in words."""

    added: tuple[str, ...]
    """What it has and the reported plan has not, in words."""

    __repr__ = short_repr

    @property
    def is_reported(self) -> bool:
        """Whether the reported plan is itself the simplest."""
        return not (self.spared or self.added)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The same plan with a single thing changed."""

    change: str
    """What is changed, as people call it."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted paths in the scenario and their new values; empty for other hardware."""

    iteration_time: float = math.nan
    """Replayed iteration time; NaN where there is too little memory [s]."""

    gain: float = math.nan
    """Share of today's iteration time that it saves; NaN as `iteration_time`."""

    below_model_error: bool = False
    """Whether that is less than predictions of a gain err."""

    __repr__ = short_repr

    @property
    def fits(self) -> bool:
        """Whether there is memory for it."""
        return not math.isnan(self.gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCause:
    """Something that a step waits for."""

    cause: str
    """What it waits for, as people call it."""

    seconds: float
    """How long, of the replayed iteration [s]."""

    share: float
    """The same as a share of the iteration."""

    what_if: WhatIf | None = None
    """The single change that shortens the step most; None where none is known that
    the framework can be told and that gains anything."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPlan:
    """The user's own plan beside the one that a search found."""

    plan: Plan
    """The plan of the scenario's table [plan]."""

    iteration_time: float
    """Its replayed iteration time [s]."""

    planned_time: float
    """Its iteration time as planned [s]."""

    peak_memory: float
    """Most that a device holds in its replay [byte]."""

    verdict: str
    """What its replay says of it: a kind of `nestsim.evaluate.verdict.Verdict`."""

    longer: Mapping[str, float]
    """How much longer than the reported plan it takes by cause of the step, the largest
    differences first; they add up to the difference of the iterations [s]."""

    __repr__ = short_repr


C = TypeVar("C", Candidate, PlannedCandidate)
"""Plans that were replayed, or not."""

JobKind = Literal["plan", "run", "simulate"]
"""What was done: a search, a search and replays, or the replay of a given plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(Generic[C]):
    """Everything that a report on one scenario needs."""

    kind: JobKind
    """What was done."""

    scenario_name: str
    """What the user calls the scenario."""

    assumptions: Assumptions
    """What times rest on beside the plan."""

    network: Network
    """The cluster."""

    layer_names: tuple[str, ...]
    """Names of the chain's layers."""

    device_memory: float
    """Memory of one device; where devices differ, of those of the fullest stage of the
    plan that is reported [byte]."""

    usable_memory: float
    """What tensors may take of a device's memory: what the library keeps and the
    scenario's reserve are left out [byte]."""

    band: Band | None = None
    """Factors on a simulated time, the ends of its 80 % band; None where times are
    not those of software that was measured."""

    band_reasons: tuple[Reason, ...] = ()
    """Reasons why the band is wider than those of jobs that were measured."""

    cost: ClusterCost | None = None
    """What the cluster costs and draws; None if the scenario does not say."""

    candidates: tuple[C, ...]
    """Of a search, best first; replayed ones by simulated throughput, confirmed or
    not; or the plan that was given."""

    chosen: int | None = None
    """Index into `candidates` of the first confirmed one; None if there is none."""

    simplest: SimplestPlan | None = None
    """The simplest plan that is nearly as fast; None where none was looked for, or
    nothing is confirmed."""

    why: tuple[StepCause, ...] = ()
    """What the reported plan's step waits for, the longest first."""

    given: GivenPlan | None = None
    """The plan of the scenario beside that of the search; None where it has none or
    nothing was found."""

    max_trace_events: int = 100_000
    """The most events that an exported trace may hold: keeps it small enough for a
    browser."""

    objective: str = "planned"
    """What the search minimised, one of `planner.search.space.OBJECTIVES`."""

    lower_bound: float = math.nan
    """No plan of the search space is faster than this: in the replay, or by the
    planner's model, as `objective` says; NaN without a search [s]."""

    proposed_time: float = math.nan
    """Fastest replay of the plans that the dynamic program proposed to the search; NaN
    if there was none [s]."""

    search_statistics: Mapping[str, int] = field(default_factory=dict)
    """Configurations considered, priced, and why the others were dropped."""

    shortfall: str = ""
    """Why there is no plan, in one sentence; empty if there is one."""

    spent: Spent = field(default_factory=Spent)
    """The work of the search, and which limit stopped it, if one did."""

    covers_space: bool = True
    """Whether finding nothing means that nothing of the space fits."""

    least_need: MemoryNeed | None = None
    """What the least demanding plan needs where none fits, with its band; None where
    that is not known."""

    __repr__ = short_repr

    @property
    def no_plan(self) -> str:
        """The verdict where there is no plan."""
        if self.spent.is_stopped:
            return "stopped"
        if not self.covers_space:
            return "not found"
        need = self.least_need
        if need is None:
            return "infeasible"
        return judge_room(need.estimate, need.low, need.room)

    def cost_of(self, candidate: Candidate) -> RunCost | None:
        """Return what a replayed plan costs, None if the scenario does not say."""
        if self.cost is None:
            return None
        return RunCost(
            cluster=self.cost,
            iteration_time=candidate.simulated.iteration_time,
            tokens_per_second=candidate.simulated.tokens_per_second,
            ramp=candidate.ramp,
        )

    def is_within_error(self, difference: float) -> bool:
        """Tell whether a relative difference of times is below the model's error.

        That is unknown, and so the answer no, where the band is.
        """
        return self.band is not None and abs(difference) < self.band.high - 1.0

    def memory_of(self, devices: ArrayLike) -> float:
        """Return the least memory of some devices [byte]."""
        groups = self.assumptions.groups
        if not groups:
            return self.device_memory
        ends = np.cumsum([group.num_devices for group in groups])
        used: list[int] = np.unique(
            np.searchsorted(ends, devices, side="right")
        ).tolist()
        return min(groups[number].accelerator.memory_bytes for number in used)

    @property
    def candidate(self) -> C:
        """The plan that was given, the only candidate."""
        (only,) = self.candidates
        return only


PlanResult = JobResult[PlannedCandidate]
"""What the search alone has to say: the k best plans without a replay."""

ReplayedResult = JobResult[Candidate]
"""What a folder of results can be written of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResult:
    """What became of a configuration that a user named."""

    scenario_name: str
    network: Network
    layer_names: tuple[str, ...]
    device_name: str
    explanation: Explanation

    __repr__ = short_repr


_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "<=": operator.le,
        ">=": operator.ge,
        "<": operator.lt,
        ">": operator.gt,
        "==": operator.eq,
    }
)
"""Operator -> whether a value stands in this relation to the asserted one."""

NO_PLAN = "no plan"
"""Value found where nothing fits."""

NO_REPLAY = "no replay"
"""Value found where no replay was asked for."""

_OF_REPLAY = ("verdict", "gap")
"""Quantities that only a replay has."""

FAILED = 1
"""Exit status when an assertion of the scenario does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One assertion, checked."""

    assertion: Assertion
    """Assertion of the scenario."""

    value: float | str
    """Value found, in base units; `NO_PLAN` where nothing fits, `NO_REPLAY` where no
    replay was asked for."""

    holds: bool | None
    """Whether it is as asserted; None for what only a replay could tell."""


def check_assertions(
    assertions: Sequence[Assertion], result: PlanResult | ReplayedResult
) -> tuple[Checked, ...]:
    """Return each assertion with what was found, in their order."""
    values = found_values(result)
    return tuple(
        _checked(assertion, values.get(assertion.quantity, NO_PLAN))
        for assertion in assertions
    )


def _checked(assertion: Assertion, value: float | str) -> Checked:
    if value == NO_REPLAY:
        return Checked(assertion=assertion, value=value, holds=None)
    compare = _HOLDS[assertion.operator]
    holds = value != NO_PLAN and compare(value, assertion.value)
    return Checked(assertion=assertion, value=value, holds=holds)


def found_values(
    result: PlanResult | ReplayedResult,
) -> dict[str, float | str]:
    """Return every quantity that may be asserted, of the plan that is reported.

    Numbers are those of the replay where there is one, else those of the plan. Of
    no plan there is but the verdict: nothing fits. Of a search that does not
    prove it there is not even that.
    """
    if not result.candidates:
        if result.kind == "plan":
            return {"verdict": NO_REPLAY}
        return {"verdict": result.no_plan if result.covers_space else NO_PLAN}
    best = result.candidates[result.chosen or 0]
    if isinstance(best, PlannedCandidate):
        values = dict.fromkeys(_OF_REPLAY, NO_REPLAY)
        peaks = [stage.peak_memory for stage in best.priced.stages]
        return {**values, **_numbers(best, _fraction(result, best.priced.plan, peaks))}
    peaks = [timeline.peak for timeline in best.replay.memory]
    gap = best.simulated.iteration_time / best.planned.iteration_time - 1.0
    return {
        "verdict": best.verdict.kind,
        "gap": gap,
        **_numbers(best, _fraction(result, best.priced.plan, peaks)),
    }


def _fraction(
    result: PlanResult | ReplayedResult, plan: Plan, peaks: Sequence[float]
) -> float:
    """Return the largest part of their memory that devices of a stage need."""
    return max(
        peak / result.memory_of(stage.devices)
        for peak, stage in zip(peaks, plan.stages, strict=True)
    )


def _numbers(
    candidate: Candidate | PlannedCandidate, memory_fraction: float
) -> dict[str, float | str]:
    reached = (
        candidate.simulated if isinstance(candidate, Candidate) else candidate.planned
    )
    plan = candidate.priced.plan
    return {
        "iteration_time": reached.iteration_time,
        "throughput": reached.tokens_per_second,
        "mfu": reached.mfu,
        "peak_memory": reached.peak_memory,
        "memory_fraction": memory_fraction,
        "virtual_pipeline_model_parallel_size": (
            plan.virtual_pipeline_model_parallel_size
        ),
        "micro_batch_size": plan.micro_batch_size,
        "schedule": plan.schedule_family,
        **plan.settings_json()["parallel"],
    }


def exit_status(status: int, checked: Sequence[Checked]) -> int:
    """Return the exit status that assertions make of a command's own.

    Parameters
    ----------
    status
        0 done and confirmed, or 1.
    checked
        What was asserted.

    Returns
    -------
    int
        `FAILED` if one does not hold; 0 if the verdict, or that there is none, is what
        was asserted; else ``status``.
    """
    if any(item.holds is False for item in checked):
        return FAILED
    named = any(item.assertion.name == "verdict" and item.holds for item in checked)
    return 0 if named else status
