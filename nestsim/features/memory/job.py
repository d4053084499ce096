"""What a job holds in memory, and what would make it fit or still fits.

The plan is the one in the scenario's table [plan], or else, of what the scenario allows
to be searched, the configuration that needs the least memory. Sizes that are asked for
replace those of the plan, or fix those of the search.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from estimators.layers.saved_activations import keeping_of
from estimators.layers.sharding import KeptTensor, kept_tensors
from estimators.training import ParameterItem
from nestsim.evaluate.cluster import build_workload
from nestsim.evaluate.uncertainty import MemoryBand, MemoryNeed, room_band
from nestsim.scenario.defaults import checked_plan
from nestsim.scenario.load import Scenario
from planner.explain.infeasibility import SIZE_SETTINGS
from planner.explain.request import Request
from planner.frameworks.framework import FRAMEWORKS, PRESETS
from planner.frameworks.rules import LaunchRules
from planner.memory.account import MemoryJob, MemoryLimits, PlanMemory
from planner.memory.changes import (
    Change,
    Largest,
    joint_changes,
    largest_micro_batch,
    longest_sequence,
    single_changes,
)
from planner.memory.thrift import ThriftyPlan, fewest_devices, least_memory
from planner.plans.spec import PlanSpec
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.step.ledger import LEDGER, OPTIMIZER, WEIGHTS
from planner.step.memory import (
    RoomKind,
    Sharded,
    expert_group_size,
    is_within,
    judge_room,
    stage_share,
)
from planner.step.plan import Offload, Plan
from planner.step.recompute import saved_bytes
from planner.step.schedules import SCHEDULES
from planner.work import Progress
from topologies.errors import InputError, short_repr
from topologies.units import format_size

LOGITS = "logits"
"""Name of what the loss keeps: part of the last stage's activations."""


class BesideTensors(NamedTuple):
    """What the device's memory holds beside a peak of tensors."""

    workspace: float
    """Workspaces of libraries for products [byte]."""

    fragmentation: float
    """What the allocator cannot give out when the device is full [byte]."""

    context: float
    """The device's context and the communication library's buffers [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """The memory of one device of a stage, at its peak."""

    parts: Mapping[str, float]
    """What tensors are for -> their size [byte]."""

    beside: BesideTensors
    """What is there beside tensors."""

    host: Mapping[str, float]
    """What the host keeps for the device, by what it is [byte]."""

    shares: tuple[Sharded, Sharded]
    """Parameters outside and inside of routed experts, before ZeRO shards them, and
    who shares the shards."""

    sharded: frozenset[str]
    """Fields of `estimators.training.ParameterBytes` that are sharded."""

    @property
    def peak(self) -> float:
        """Tensors at their peak [byte]."""
        return sum(self.parts.values())

    @property
    def needed(self) -> float:
        """What has to be there of a device's memory [byte]."""
        return self.peak + sum(self.beside)


class KeptActivations(NamedTuple):
    """What one kind of layer keeps of a microbatch on one device."""

    layer: str
    """Name of the first such layer of the chain."""

    num_layers: int
    """Such layers of the model."""

    mode: str
    """Recompute mode."""

    total: float
    """All that such a layer keeps [byte]."""

    tensors: tuple[KeptTensor, ...]
    """Tensors that it keeps, largest first."""

    rest: str
    """What the rest is, if tensors are not all; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryResult:
    """Everything that was found about the memory of a job."""

    scenario_name: str
    """What the user calls the scenario."""

    accelerator_name: str
    """Name of the device."""

    framework: str
    """Framework whose rules hold."""

    num_devices: int
    """Devices of the cluster."""

    device_memory: float
    """Memory of one device [byte]."""

    reserve: float
    """What plans leave free of it [byte]."""

    limits: MemoryLimits
    """What tensors may take of a device, and what a host may keep for it."""

    layer_names: tuple[str, ...]
    """Names of the chain's layers."""

    is_given: bool
    """Whether the plan was given; else it is the one that a user of the framework
    starts with, or the one that needs the least memory."""

    is_start: bool = False
    """Whether it is the one that a user of the framework starts with."""

    memory: PlanMemory | None = None
    """The plan and its accounts; None where nothing can be launched."""

    stages: tuple[StageNeeds, ...] = ()
    """What each stage holds."""

    items: tuple[ParameterItem, ...] = ()
    """What a device keeps for each parameter, one by one."""

    changes: tuple[Change, ...] = ()
    """Single changes that save memory, where the plan does not fit."""

    together: tuple[Change, ...] = ()
    """Changes of several kinds that make the plan fit together, where no single one
    does."""

    least: ThriftyPlan | None = None
    """The least that the same devices can do with, where a plan that is given, or to
    start with, does not fit."""

    fewest: ThriftyPlan | None = None
    """A plan on the fewest devices that hold any; None if there is none."""

    fewest_with_hosts: ThriftyPlan | None = None
    """The same where hosts keep all that the framework can leave there; None where that
    takes no fewer devices."""

    micro_batch: Largest | None = None
    """The largest micro-batch, where the plan fits."""

    sequence: Largest | None = None
    """The longest sequence, where the plan fits and the model's is a number."""

    band: MemoryBand | None = None
    """How far off what plans need may be; None for exact."""

    kept: tuple[KeptActivations, ...] = ()
    """What layers keep, if that was asked for."""

    __repr__ = short_repr

    @property
    def need(self) -> MemoryNeed | None:
        """What the fullest stage needs, with its band; None for exact."""
        if self.memory is None or self.band is None:
            return None
        return self.band.need(self.memory.needed, self.limits.device)

    @property
    def judgement(self) -> RoomKind:
        """What `nestsim simulate` says of the room for it."""
        if self.memory is None or not is_within(self.memory.host, self.limits.host):
            return "infeasible"
        needed, need = self.memory.needed, self.need
        low = needed if need is None else need.low
        return judge_room(needed, low, self.limits.device)

    @property
    def fits(self) -> bool:
        """Whether all stages have room by the estimate."""
        return self.memory is not None and self.memory.fits(self.limits)


def memory_job(
    scenario: Scenario,
    *,
    sizes: Request | None = None,
    explain: bool = False,
    progress: Progress | None = None,
) -> MemoryResult:
    """Count the memory of a job, and look for what would fit.

    Parameters
    ----------
    scenario
        The job; no network is looked at.
    sizes
        Sizes in place of the plan's, or of those that may be searched.
    explain
        Whether to list the tensors that layers keep.
    progress
        Told what is done.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    _check_one_memory(scenario)
    workload = build_workload(scenario, scenario.software, progress)
    rules = scenario.search.rules or FRAMEWORKS["ideal"].rules
    reserve = scenario.search.memory_reserve
    job = MemoryJob(
        workload=workload,
        rules=rules,
        num_devices=scenario.network_spec.num_devices,
        limits=MemoryLimits(
            max(workload.tensor_memory(reserve), 0.0), scenario.host.memory
        ),
        retraces=scenario.module is None,
    )
    if progress is not None:
        progress("memory: count", None)
    sizes = sizes or Request(values={})
    start = _start(job, scenario, sizes) if scenario.plan is None else None
    spec, memory = start or _plan(job, scenario, sizes)
    fewest = fewest_devices(job, scenario.search)
    empty = replace(
        _empty(job, scenario, rules),
        is_start=start is not None,
        fewest=fewest,
        fewest_with_hosts=_fewest_with_hosts(job, scenario.search, fewest),
    )
    if spec is None or memory is None:
        return empty
    found = replace(
        empty,
        memory=memory,
        stages=tuple(
            _stage(workload, memory, index) for index in range(len(memory.stages))
        ),
        items=workload.parameter_items,
        kept=_kept(workload, memory) if explain else (),
    )
    if not found.fits:
        is_least = not (found.is_given or found.is_start)
        least = None if is_least else least_memory(job, scenario.search)
        singles = single_changes(job, spec)
        together = joint_changes(job, spec, singles)
        return replace(found, changes=singles, together=together, least=least)
    if progress is not None:
        progress("memory: longest sequence", None)
    return replace(
        found,
        micro_batch=largest_micro_batch(job, spec),
        sequence=longest_sequence(job, spec) if scenario.module is None else None,
    )


def _check_one_memory(scenario: Scenario) -> None:
    """Refuse devices with several sizes of memory: there is one answer for all."""
    sizes = {group.accelerator.memory_bytes for group in scenario.groups}
    if len(sizes) > 1:
        listed = " and ".join(map(format_size, sorted(sizes)))
        raise InputError(
            "has devices with several sizes of memory",
            where="cluster.groups",
            got=listed,
            expected="one size, as this command answers for every device at once",
            hint="nestsim plan holds each stage to the memory of its own devices",
        )


def _empty(job: MemoryJob, scenario: Scenario, rules: LaunchRules) -> MemoryResult:
    return MemoryResult(
        scenario_name=scenario.name,
        accelerator_name=scenario.accelerator.name,
        framework=rules.framework,
        num_devices=job.num_devices,
        device_memory=scenario.accelerator.memory_bytes,
        reserve=scenario.search.memory_reserve,
        limits=job.limits,
        layer_names=tuple(job.workload.graph.names),
        is_given=scenario.plan is not None,
        band=room_band(
            scenario.software_preset, job.workload.software, job.workload.constants
        ),
    )


def _plan(
    job: MemoryJob, scenario: Scenario, sizes: Request
) -> tuple[PlanSpec | None, PlanMemory | None]:
    """Return the plan that is looked at, and what it needs."""
    if scenario.plan is None:
        space = sizes.narrowed(scenario.search) if sizes.values else scenario.search
        found = least_memory(job, space)
        return (None, None) if found is None else (found.spec, found.memory)
    try:
        spec = replace(scenario.plan, **_settings(sizes))
        return spec, job.memory(spec)
    except InputError as error:
        raise error.at("plan") from None


def _start(
    job: MemoryJob, scenario: Scenario, sizes: Request
) -> tuple[PlanSpec, PlanMemory] | None:
    """Return the plan that a user of a framework starts with that shards everything.

    Its own defaults on all devices; None where there are no such defaults, or where
    they, or the model, allow nothing of the kind.
    """
    preset = PRESETS[scenario.software_preset]
    if WEIGHTS not in LEDGER[preset.zero_stage].sharded:
        return None
    search = scenario.search
    table = {"micro_batch_size": min(search.micro_batch_sizes or (1,))}
    spec = replace(checked_plan(table, preset), **_settings(sizes))
    allowed = (
        (spec.zero_stage, search.zero_stages),
        (spec.recompute, search.recompute),
        (spec.tensor_model_parallel_size, search.tensor_model_parallel_sizes),
        (spec.context_parallel_size, search.context_parallel_sizes),
    )
    if any(some is not None and one not in some for one, some in allowed):
        return None
    try:
        return spec, job.memory(spec)
    except InputError:
        return None


def _fewest_with_hosts(
    job: MemoryJob, search: SearchSpec, fewest: ThriftyPlan | None
) -> ThriftyPlan | None:
    """Return the fewest devices with all on hosts that can be, if those are fewer."""
    parts = job.rules.offload_of(1)
    if not parts:
        return None
    states = [part for part in parts if part != "activations"]
    ways = {Offload(**dict.fromkeys(some, 1.0)) for some in (states, parts)}
    found = fewest_devices(job, replace(search, offload=tuple(sorted(ways))))
    if found is None or fewest is None:
        return found
    fewer = found.memory.plan.parallel.num_devices
    return found if fewer < fewest.memory.plan.parallel.num_devices else None


_PLAN_SETTINGS: Mapping[str, str] = {
    **{key: name.removesuffix("s") for key, name in SIZE_SETTINGS.items()},
    "recompute": "recompute",
    "zero": "zero_stage",
}
"""Name that a request may have -> the setting of the table [plan]."""


def _settings(sizes: Request) -> dict[str, Any]:
    """Return the settings of a plan that get other values."""
    values = dict(sizes.values)
    settings: dict[str, Any] = {_PLAN_SETTINGS[key]: values[key] for key in values}
    if {"tp", "cp", "pp", "ep"} & {*values}:
        settings.setdefault("data_parallel_size", None)
    if {"tp", "cp", "pp", "ep", "dp", "b"} & {*values}:
        settings["num_microbatches"] = None
    if "recompute" in values:
        settings["recompute_num_layers"] = None
    return settings


def _stage(workload: Workload, memory: PlanMemory, index: int) -> StageNeeds:
    plan, account = memory.plan, memory.stages[index]
    table = workload.table(plan.degrees)
    stage, share = plan.stages[index], stage_share(table, plan.stages[index], plan)
    parts = _with_logits(workload, plan, index, dict(account.device))
    peak = sum(account.device.values())
    allocator = workload.allocator
    sharded = LEDGER[stage.zero_stage].sharded
    return StageNeeds(
        parts=parts,
        beside=BesideTensors(
            workspace=allocator.allocated(peak) - peak,
            fragmentation=(
                allocator.constants.full_fragmentation * allocator.allocated(peak)
            ),
            context=allocator.constants.context,
        ),
        host=account.host,
        shares=(
            Sharded(share.dense, stage.sharding_group_size),
            Sharded(share.expert, expert_group_size(plan)),
        ),
        sharded=frozenset({*sharded, *(["copies"] if OPTIMIZER in sharded else [])}),
    )


def _with_logits(
    workload: Workload, plan: Plan, index: int, parts: dict[str, float]
) -> dict[str, float]:
    """Set apart what the loss keeps of the last stage's activations."""
    stage, schedule = plan.stages[index], SCHEDULES[plan.schedule]
    last = len(workload.graph.names) - 1
    holds_head = any(end == last for _, end in stage.chunks)
    if not holds_head or stage.recompute == "stage" or schedule.splits_backward:
        return parts
    v = plan.virtual_pipeline_model_parallel_size
    count = schedule.in_flight(index, len(plan.stages), plan.num_microbatches, v)
    table = workload.table(plan.degrees)
    kept = float(saved_bytes(table, stage)[last]) * (count if v == 1 else 1)
    kept *= 1.0 - stage.offload.activations
    if not 0.0 < kept <= parts["activations"]:
        return parts
    largest = {}
    for name, size in parts.items():
        largest[name] = size - kept if name == "activations" else size
        if name == "activations":
            largest[LOGITS] = kept
    return largest


def _kept(workload: Workload, memory: PlanMemory) -> tuple[KeptActivations, ...]:
    """Return what each kind of layer keeps, in the mode of the fullest stage."""
    plan, graph = memory.plan, workload.graph
    table, mode = workload.table(plan.degrees), plan.stages[memory.fullest].recompute
    if mode == "stage" or not graph.layers:
        return ()
    keeping = keeping_of(workload.software, workload.training, plan.recompute_modules)
    found = []
    for kind in range(len(graph.layers)):
        first = graph.kinds.index(kind)
        used = mode if table.is_block[first] else "none"
        listed = kept_tensors(
            graph, kind, plan.degrees, workload.training.element_bytes, keeping
        )[used]
        total, rest = float(table.saved_bytes[used][first]), ""
        if used == "selective" and workload.software.saves_products:
            listed, rest = (), "results of products that are not made again"
        elif abs(total - sum(tensor.num_bytes for tensor in listed)) > 0.5:
            rest = "gathered inputs of products"
        found.append(
            KeptActivations(
                layer=graph.names[first],
                num_layers=graph.kinds.count(kind),
                mode=used,
                total=total,
                tensors=listed,
                rest=rest,
            )
        )
    return tuple(found)
