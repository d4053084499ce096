"""What a lowered step has in its durations or leaves out, in words."""

from collections.abc import Iterator

import numpy as np

from estimators.collectives.algorithms import HIERARCHICAL, IN_NETWORK
from estimators.collectives.messages import uneven_blocks
from estimators.layers.routing import EVEN, ExpertLoad
from nestsim.simulator.system import ReplaySettings
from planner.cost.objective import PricedPlan
from planner.cost.pricing import plan_groups
from planner.step.execution import Execution, Workload
from planner.step.fleet import Fleet
from planner.step.ledger import NEARBY, dense_members
from planner.step.plan import Plan
from planner.step.schedules import SCHEDULES
from topologies.arrays import IntArray
from topologies.network import Network
from topologies.units import format_duration

_NAMES = {
    "tensor collectives": "Tensor-parallel collectives",
    "context ring": "The context-parallel ring",
    "expert all-to-all": "The expert-parallel all-to-all",
}
"""Part of a stage's time -> what a sentence calls it."""

_LEVEL_BY_LEVEL = frozenset({*HIERARCHICAL, *IN_NETWORK})
"""Algorithms that go level by level."""

_MOST_STAGES = 8
"""Stages that a sentence names."""

_MOST_DEVICES = 8
"""Slow devices that a sentence names."""


def execution_notes(
    priced: PricedPlan, settings: ReplaySettings, workload: Workload
) -> tuple[str, ...]:
    """Return one sentence for each thing that is not simulated event by event."""
    execution = workload.execution
    by_layer = settings.granularity == "layer"
    notes = _by_layer(priced) if by_layer else _by_stage(priced, execution)
    if not execution.overlap_p2p_comm and len(priced.plan.stages) > 1:
        notes.append(
            "A sender waits until its message has arrived; whether the receiver is "
            "ready for it is not modelled."
            if SCHEDULES[priced.plan.schedule].interleaves
            else "Transfers between stages start when both sides are ready, and both "
            "wait for them."
        )
    if execution.communication_slowdown > 1.0:
        notes.append(
            "Compute is slowed down beside gradient buckets, beside parameter buckets "
            "on the first stage, and beside collectives of layers that overlap it; not "
            "beside transfers between stages."
        )
    late = max(stage.crowding_time for stage in priced.stages)
    if late > 0.0:
        notes.append(
            "Hidden collectives of parameters lengthen the step by "
            f"{format_duration(late)} because they span nodes, charged after its last "
            "pass."
        )
    if priced.plan.overlap_moe_expert_parallel_comm:
        compute, sending = workload.beside_experts
        schedule = SCHEDULES[priced.plan.schedule]
        when = "in all of it" if schedule.reserves_processors else "meanwhile"
        notes.append(
            "Once the pipeline is full, all-to-alls between experts go on beside as "
            "much compute of another microbatch as their own pass has, half of them "
            f"beside its experts. It takes {compute:.3g} times as long {when}, what is "
            f"sent {sending:.3g} times."
        )
    if priced.plan.has_second_copies:
        notes.append(
            "The first forward pass of a step gathers weights among all ranks that "
            "share shards, and leaves a second copy to ranks next to each other; all "
            "other passes gather from that, as DeepSpeed has it."
        )
    if any(stage.reshard_after_forward for stage in priced.plan.stages):
        notes.append(
            "Forward passes gather weights among all ranks that share shards, and "
            "leave them to ranks next to each other until the backward pass, which "
            "gathers from these, as FSDP2 has it; the root module is no exception "
            "here, and what they keep is counted for the whole step."
        )
    load = workload.expert_load(priced.plan.degrees)
    if load != EVEN:
        notes.append(_expert_note(load, workload.graph.spec.moe_expert_placement))
    return tuple(notes)


def _expert_note(load: ExpertLoad, placement: str) -> str:
    """Return what is taken of ranks that experts keep busier or idler."""
    mean = "" if load.mean == 1.0 else f" ({load.mean:.3g} times on average)"
    does = "compute and keep" if load.layers is None else "compute"
    note = (
        "The first rank of each expert-parallel group is the busiest in every layer: "
        f"its experts {does} {load.busiest:.3g} times an even share of the "
        f"tokens{mean}."
    )
    if load.layers is not None:
        least, most = load.layers
        below, above = least / load.busiest - 1.0, most / load.busiest - 1.0
        note += (
            f" Layers have {least:.3g} to {most:.3g} times, of which that is the mean: "
            "what experts of a stage compute differs from it by "
            f"{below:+.0%} to {above:+.0%} at most. They keep {most:.3g} times in all."
        )
    if placement == "balanced":
        note += (
            " Ranks hold experts by load, as if loads were known and stayed: a what-if,"
            " as no framework with a preset is known to place them so."
        )
    return note


def _has(priced: PricedPlan, part: str) -> bool:
    return any(stage.parts[part] > 0 for stage in priced.stages)


def _by_stage(priced: PricedPlan, execution: Execution) -> list[str]:
    notes = []
    for part, name in _NAMES.items():
        if _has(priced, part):
            verb = "are" if name.endswith("s") else "is"
            notes.append(
                f"{name} {verb} part of the stage times, priced with all groups active "
                "at once."
            )
    if _has(priced, "zero gathers"):
        hidden = execution.overlap_param_gather or execution.overlap_grad_reduce
        notes.append(
            "What ZeRO-2 and ZeRO-3 send in every microbatch is part of the stage "
            f"times, {'partly' if hidden else 'not'} hidden behind compute."
        )
    return notes


def _by_layer(priced: PricedPlan) -> list[str]:
    notes = []
    if any(_has(priced, part) for part in _NAMES):
        notes.append(
            "The compute of a layer is divided evenly between its collectives, which "
            "take turns by kind."
        )
    if _has(priced, "zero gathers") or any(_has(priced, part) for part in _NAMES):
        notes.append(
            "Groups that have replicas of a stage in common do their collectives as "
            "one flow, at the rate of the slowest."
        )
    return notes


def left_out_level_notes(network: Network, plan: Plan) -> tuple[str, ...]:
    """Return which levels of the network hierarchical collectives of a plan leave out.

    One sentence for each kind of group and size of blocks.
    """
    left_out: dict[tuple[str, int], list[int]] = {}
    for kind, stage, groups in _hierarchical_groups(plan):
        for block in uneven_blocks(groups, network.block_sizes):
            left_out.setdefault((kind, block), []).append(stage)
    names = {level.block_size: f"{level.name} level" for level in network.levels}
    return tuple(
        f"{kind} of {_stages(stages)} leave out the "
        f"{names.get(block, f'level of {block} devices')}: its blocks do not hold as "
        "many members of a group each."
        for (kind, block), stages in left_out.items()
    )


def _hierarchical_groups(plan: Plan) -> Iterator[tuple[str, int, IntArray]]:
    """Yield the groups of each stage that go level by level, shape ``(G, n)``."""
    together = plan_groups(plan)
    if plan.tensor_algorithm in _LEVEL_BY_LEVEL and plan.parallel.sizes().tp > 1:
        for number, groups in enumerate(together.tensor()):
            yield "Tensor-parallel collectives", number, groups
    if plan.gradient_algorithm not in _LEVEL_BY_LEVEL:
        return
    dense, experts = together.dense(), together.expert_data()
    for number, stage in enumerate(plan.stages):
        groups = np.sort(dense[number], axis=1)
        if stage.nearby_size > 1:
            nearby = dense_members(stage, NEARBY, groups)
            yield "Gathers of weights among neighbours", number, nearby
        if stage.zero_stage > 0 and stage.sharding_group_size < groups.shape[1]:
            parts = groups.reshape(len(groups), -1, stage.sharding_group_size)
            yield "Collectives in blocks", number, parts.reshape(-1, parts.shape[2])
            across = np.swapaxes(parts, 1, 2).reshape(-1, parts.shape[1])
            yield "Collectives across blocks", number, across
        else:
            yield "Data-parallel collectives", number, groups
        if together.spreads_experts:
            yield "Collectives of expert parameters", number, experts[number]


def _stages(stages: list[int]) -> str:
    if len(stages) == 1:
        return f"stage {stages[0]}"
    shown = ", ".join(map(str, stages[:_MOST_STAGES]))
    more = len(stages) - _MOST_STAGES
    return f"stages {shown}" + (f" and {more} more" if more > 0 else "")


def mixed_device_notes(priced: PricedPlan, fleet: Fleet | None) -> tuple[str, ...]:
    """Return which devices of a plan differ from the others.

    Parameters
    ----------
    priced
        The plan.
    fleet
        Kinds of the network's devices; None for one.
    """
    if fleet is None:
        return ()
    used = np.unique([stage.devices for stage in priced.plan.stages])
    notes = []
    names = [
        kind.accelerator.name
        for kind in (fleet.kinds[number] for number in fleet.kinds_of(used))
    ]
    if len(set(names)) > 1:
        among = " and ".join(dict.fromkeys(names))
        notes.append(
            f"Devices are of {among}: ranks that share a stage of a replica go at the "
            "pace of the slowest of them."
        )
    factors = fleet.factors()
    slow = used[factors[used] > 1.0].tolist()
    if slow:
        shown = [f"{device} ({factors[device]:g}x)" for device in slow[:_MOST_DEVICES]]
        more = len(slow) - len(shown)
        listed = ", ".join(shown) + (f" and {more} more" if more else "")
        notes.append(
            f"Compute takes longer on slow devices, as the plan knows: {listed}."
        )
    return tuple(notes)
