"""What one device of a stage holds: parameters, activations in flight, and its peak.

    peak = W + F + G + O + staging + max(buffers + in_flight * saved + working, copies)

W weights, F those of a tower that is not trained, G gradients, O optimizer states,
copies what the optimizer makes for its step when activations are gone; all but F
divided by the devices that share its shards where the stage of ZeRO shards it; buffers
are whole layers beside them (`planner.step.ledger`).
What the host keeps of each is not there, but for what is on the way, the staging
(`planner.step.offload`); the host has it.

Between a backward pass and its weight gradients, where a schedule splits them, a device
keeps what the products need (`LayerTable.weight_gradient_bytes`) in place of what the
forward pass saved. While that backward pass runs both come and go layer by layer: it is
charged with the larger of the two.

Inside a pass a device has the most while it works on one of the layers. What the ends
of the chain behind that layer save is not there then: logits are gone when the blocks
before them are run again. Blocks are not told apart by their order.

Whether a plan has room is one judgement for all who ask, of devices and of hosts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from estimators.layers.work import LayerTable
from estimators.training import ParameterBytes
from planner.step import recompute
from planner.step.execution import Workload
from planner.step.instructions import ScheduleSizes
from planner.step.ledger import GRADIENTS, LEDGER, OPTIMIZER, WEIGHTS
from planner.step.offload import STAGING, on_the_way, staging_bytes
from planner.step.plan import NO_OFFLOAD, Offload, Plan, Stage
from planner.step.schedules import SCHEDULES
from topologies.accelerators import Host
from topologies.arrays import FloatArray
from topologies.units import format_size

FloatOrArray = FloatArray | float


class StaticBytes(NamedTuple):
    """Memory held for the whole step [byte]; floats or arrays alike."""

    weights: FloatOrArray
    """Weights [byte]."""
    gradients: FloatOrArray
    """Gradients that are accumulated [byte]."""
    optimizer: FloatOrArray
    """States of the optimizer [byte]."""
    buffers: FloatOrArray
    """Buffers of weights and gradients that are whole for a while [byte]."""
    copies: FloatOrArray
    """Copies of gradients, while the optimizer works and passes do not [byte]."""

    def total(self) -> FloatOrArray:
        """Return what is held while passes work [byte]."""
        return self.weights + self.gradients + self.optimizer + self.buffers


class Sharded(NamedTuple):
    """Parameters of a stage on one device, and who shares their shards."""

    parameters: FloatOrArray
    """Parameters held by one device before ZeRO shards them; a float or an array."""

    group_size: int | FloatOrArray
    """Devices that share the shards; an integer or an array."""


def static_bytes(
    dense: Sharded,
    expert: Sharded,
    largest_layer: FloatOrArray,
    *,
    parameter_bytes: ParameterBytes,
    zero_stage: int,
) -> StaticBytes:
    """Return what parameters cost a device.

    Parameters
    ----------
    dense, expert
        Parameters outside and inside of routed experts.
    largest_layer
        Parameters of the stage's largest layer.
    parameter_bytes
        Bytes per parameter.
    zero_stage
        0 to 3.
    """
    stage = LEDGER[zero_stage]
    whole = dense.parameters + expert.parameters
    shard = dense.parameters / dense.group_size + expert.parameters / expert.group_size
    shared = np.maximum(dense.group_size, expert.group_size) > 1
    layer = (
        stage.whole_gradients * parameter_bytes.gradients
        + stage.whole_weights * parameter_bytes.gather
    )

    def held(tensor: str) -> FloatOrArray:
        return shard if tensor in stage.sharded else whole

    return StaticBytes(
        weights=parameter_bytes.weights * held(WEIGHTS),
        gradients=parameter_bytes.gradients * held(GRADIENTS),
        optimizer=parameter_bytes.optimizer * held(OPTIMIZER),
        buffers=np.asarray(shared * layer * largest_layer),
        copies=parameter_bytes.copies * held(OPTIMIZER),
    )


STEP_END = "copies of gradients"
"""Name of the memory that the optimizer takes for its step, when activations are
gone."""


SECOND_COPY = "second copy of weights"
"""Name of the memory of what ranks next to each other share beside ZeRO-3's shards
(hpZ, `planner.step.ledger`). DeepSpeed 0.19.8 makes it in the weights' format
(``deepspeed/runtime/zero/partition_parameters.py:1912-1917``) and frees it behind the
optimizer step: passes have it from the first microbatch on."""


FROZEN = "frozen weights"
"""Name of the memory of a vision tower's weights that are not trained. They are whole
on each device, whatever ZeRO shards."""


class ParameterShare(NamedTuple):
    """Parameters of a stage on one device."""

    dense: float
    """Parameters of the stage outside of experts."""
    expert: float
    """Parameters of the stage's experts."""
    num_layers: int
    """Layers of the stage."""


class Activations(NamedTuple):
    """Memory of a stage's passes [byte]."""

    saved: tuple[float, ...]
    """Activations kept by each chunk for each microbatch from its forward pass to the
    end of its backward pass [byte]."""

    forward_working: float
    """Memory used inside a forward pass only, beside all that it saves [byte]."""

    backward_working: float
    """Memory used inside a backward pass only, beside all that was saved [byte]."""

    kept: tuple[float, ...]
    """Memory kept by each chunk for each microbatch from the end of its backward pass
    to the end of its weight gradients; 0 unless the schedule splits them off [byte]."""


def stage_share(table: LayerTable, stage: Stage, plan: Plan) -> ParameterShare:
    """Return what a stage's device holds, a tied embedding once."""
    held = [slice(first, last + 1) for first, last in stage.chunks]
    expert = sum(float(table.expert_parameters[span].sum()) for span in held)
    total = sum(float(table.parameters[span].sum()) for span in held)
    if stage.chunks[0][0] == 0 and plan.joins_ends:
        total -= table.tied_parameters
    return ParameterShare(
        dense=total - expert,
        expert=expert,
        num_layers=sum(last - first + 1 for first, last in stage.chunks),
    )


def expert_group_size(plan: Plan) -> int:
    """Return how many ranks hold the same experts."""
    return plan.parallel.expert_data_size


def stage_activations(
    table: LayerTable,
    stage: Stage,
    *,
    splits_backward: bool = False,
    pairs_layers: bool = False,
) -> Activations:
    """Return what passes keep, and what is alive inside one [byte].

    With pairs of passes that go through their layers in step, the forward pass keeps a
    layer already while the backward pass works on another.
    """
    held = [slice(first, last + 1) for first, last in stage.chunks]
    kept = (0.0,) * len(held)
    if splits_backward:
        kept = tuple(float(table.weight_gradient_bytes[span].sum()) for span in held)
    if stage.recompute == "stage":
        return _redone_from_the_input(table, stage, kept, splits_backward)
    saves = recompute.saved_bytes(table, stage)
    works = recompute.working_bytes(table, stage)
    saved = tuple(float(saves[span].sum()) for span in held)
    working = beside = _most_inside(table, works, stage, splits_backward)
    if pairs_layers:
        works = recompute.paired_bytes(table, works, saves)
        beside = _most_inside(table, works, stage, splits_backward)
    return Activations(
        saved=saved,
        forward_working=working,
        backward_working=beside + _most_added(saved, kept),
        kept=kept,
    )


def _redone_from_the_input(
    table: LayerTable, stage: Stage, kept: tuple[float, ...], splits: bool
) -> Activations:
    """Return the memory of a stage that saves its input only."""
    held = [slice(first, last + 1) for first, last in stage.chunks]
    entering = float(table.boundary_bytes[1:-1].max(initial=0.0))
    working = _most_inside(table, table.working_bytes["none"], stage, splits)
    redone = max(float(table.saved_bytes["none"][span].sum()) for span in held)
    saved = tuple(0.0 if first == 0 else entering for first, _ in stage.chunks)
    return Activations(
        saved=saved,
        forward_working=working,
        backward_working=max(redone, _most_added(saved, kept)) + working,
        kept=kept,
    )


def _most_inside(
    table: LayerTable, works: FloatArray, stage: Stage, splits: bool
) -> float:
    inside = (
        recompute.alive_inside(table, works, chunk, splits_backward=splits)
        for chunk in stage.chunks
    )
    return max(float(shares.max()) for shares in inside)


def _most_added(saved: tuple[float, ...], kept: tuple[float, ...]) -> float:
    """Return by how much a backward pass leaves more than it found [byte]."""
    return max(
        0.0, *(after - before for before, after in zip(saved, kept, strict=True))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStage:
    """Some blocks and ends of a chain, where stages are not cut between layers."""

    num_blocks: float
    """Blocks whose activations the stage keeps."""

    num_weights: float
    """Blocks whose parameters the stage holds."""

    selective: float = 0.0
    """Blocks of the stage that repeat their attention core."""

    half_selective: float = 0.0
    """Blocks of the stage that repeat half of their attention core, and keep what they
    would without."""

    recomputed: float
    """Blocks of the stage that keep their input only."""

    ends: tuple[int, ...]
    """Layers of the chain that the stage holds beside blocks."""

    in_flight: int
    """Microbatches whose activations are kept at once."""

    zero_stage: int = 0
    """Stage of ZeRO, 0 to 3."""

    group_size: int = 1
    """Devices that share the shards of ZeRO."""

    offload: Offload = NO_OFFLOAD
    """What the host keeps."""


def block_stage_memory(
    parameter_bytes: ParameterBytes, table: LayerTable, stage: BlockStage
) -> Mapping[str, float]:
    """Return an upper bound of a stage's peak by what it is for [byte].

    As `stage_memory` does for stages of whole layers; blocks are all alike.
    """
    block = int(np.argmax(table.is_block))
    ends = list(stage.ends)
    again, core = stage.recomputed, stage.selective
    parameters = stage.num_weights * float(table.parameters[block])
    parameters += float(table.parameters[ends].sum())
    if table.num_layers - 1 in ends and 0 in ends:
        parameters -= table.tied_parameters
    static = static_bytes(
        Sharded(parameters, stage.group_size),
        Sharded(0.0, 1),
        float(table.largest_parameters[[block, *ends]].max()),
        parameter_bytes=parameter_bytes,
        zero_stage=stage.zero_stage,
    )
    saved = {mode: float(column[block]) for mode, column in table.saved_bytes.items()}
    alive = (stage.num_blocks - again - core) * saved["none"]
    alive += again * saved["full"] + core * saved["selective"]
    alive += float(table.saved_bytes["none"][ends].sum())
    mode = "full" if again > 0 else "selective" if core > 0 else "none"
    parts = {
        "weights": float(static.weights),
        "gradients": float(static.gradients),
        "optimizer": float(static.optimizer),
        "buffers": float(static.buffers),
        "activations": stage.in_flight * alive,
        "working": _blocks_inside(table, mode, block, ends),
    }
    if frozen := float(table.frozen_weights[ends].sum()):
        parts[FROZEN] = frozen
    sharded = LEDGER[stage.zero_stage].sharded
    largest = float(table.largest_parameters[[block, *ends]].max())
    layer = (
        parameter_bytes.weights
        * largest
        / (stage.group_size if WEIGHTS in sharded else 1.0),
        parameter_bytes.gradients
        * largest
        / (stage.group_size if GRADIENTS in sharded else 1.0),
        float(
            on_the_way(table, table.saved_bytes["none"])[[block, *ends]].max(initial=0)
        ),
    )
    return _beside_host(parts, float(static.copies), stage.offload, layer).device


def _blocks_inside(table: LayerTable, mode: str, block: int, ends: list[int]) -> float:
    """Return `_most_inside` of blocks that are alike, and some ends of their chain."""
    works, saves = table.working_bytes[mode], table.saved_bytes["none"]
    behind = float(saves[[end for end in ends if end > block]].sum())
    inside = float(works[block]) - behind
    for end in ends:
        behind -= float(saves[end]) if end > block else 0.0
        inside = max(inside, float(works[end]) - behind)
    return inside


class StageAccount(NamedTuple):
    """Where a stage's device has what it needs, by what it is for [byte]."""

    device: Mapping[str, float]
    """Upper bound of the peak of the device's memory by what it is for [byte]."""

    host: Mapping[str, float]
    """Most that the host keeps for the device by what it is, empty where it keeps
    nothing [byte]."""


def stage_memory(
    workload: Workload, table: LayerTable, plan: Plan, index: int
) -> Mapping[str, float]:
    """Return an upper bound of the stage's peak by what it is for [byte]."""
    return memory_of_stage(workload, table, plan, index).device


def memory_of_stage(
    workload: Workload, table: LayerTable, plan: Plan, index: int
) -> StageAccount:
    """Return what a stage holds on its device and on the host [byte]."""
    stage = plan.stages[index]
    share = stage_share(table, stage, plan)
    held = [slice(first, last + 1) for first, last in stage.chunks]
    sizes = plan.parallel.sizes()
    group = stage.sharding_group_size if stage.zero_stage else sizes.dp * sizes.cp
    largest = max(
        float(table.largest_parameters[span].max(initial=0.0)) for span in held
    )
    static = static_bytes(
        Sharded(share.dense, group),
        Sharded(share.expert, expert_group_size(plan)),
        largest,
        parameter_bytes=workload.parameter_bytes,
        zero_stage=stage.zero_stage,
    )
    whole = _whole_gradients(table, plan, index)
    reduces_once = LEDGER[stage.zero_stage].sharded == {OPTIMIZER}
    if workload.execution.frees_gradients and reduces_once and whole:
        shard = share.dense / group + share.expert / expert_group_size(plan)
        gradient_bytes = workload.parameter_bytes.gradients
        static = static._replace(gradients=gradient_bytes * (shard + whole))
    schedule = SCHEDULES[plan.schedule]
    splits = schedule.splits_backward
    activations = stage_activations(
        table, stage, splits_backward=splits, pairs_layers=schedule.pairs_layers
    )
    in_flight = _waiting_bytes if splits else _in_flight_bytes
    parts = {
        "weights": float(static.weights),
        "gradients": float(static.gradients),
        "optimizer": float(static.optimizer),
        "buffers": float(static.buffers),
        "activations": in_flight(table, plan, index, activations),
        "working": activations.backward_working,
    }
    if frozen := sum(float(table.frozen_weights[span].sum()) for span in held):
        parts[FROZEN] = frozen
    if stage.zero_hpz_partition_size > 1:
        copied = (share.dense + share.expert) / stage.zero_hpz_partition_size
        parts[SECOND_COPY] = workload.parameter_bytes.weights * copied
    if stage.reshard_after_forward is not None:
        # Cut from what was gathered, in its format; all layers' before the backward.
        part = (share.dense + share.expert) / stage.reshard_after_forward
        parts[SECOND_COPY] = workload.parameter_bytes.gather * part
    layer = _largest_layer(workload, table, plan, index, largest)
    return _beside_host(parts, float(static.copies), stage.offload, layer)


def _whole_gradients(table: LayerTable, plan: Plan, index: int) -> float:
    """Return how many gradients are whole at once if chunks free them; 0 for all.

    One round of microbatches goes back through one chunk after the other: one fills up
    while those of the chunk before are reduced.
    """
    rounds = plan.num_microbatches / len(plan.stages)
    if plan.schedule != "interleaved-1f1b" or rounds > 1.0:
        return 0.0
    chunks = (
        float(table.parameters[first : last + 1].sum())
        for first, last in plan.stages[index].chunks
    )
    return sum(sorted(chunks)[-2:])


def _beside_host(
    parts: dict[str, float],
    copies: float,
    offload: Offload,
    layer: tuple[float, float, float],
) -> StageAccount:
    """Divide memory between a device and its host.

    Parameters
    ----------
    parts
        What the device would hold alone, by what it is for [byte].
    copies
        What the optimizer makes for its step [byte].
    offload
        Fractions that the host keeps.
    layer
        Weights, gradients and `on_the_way` of the largest layer [byte].
    """
    if offload == NO_OFFLOAD:
        return StageAccount(_with_copies(parts, copies), {})
    shares = offload._asdict()
    host = {name: shares[name] * parts[name] for name in shares}
    left = {name: size - host.get(name, 0.0) for name, size in parts.items()}
    left[STAGING] = staging_bytes(offload, *layer)
    copies *= 1.0 - offload.optimizer
    return StageAccount(_with_copies(left, copies), host)


def _largest_layer(
    workload: Workload, table: LayerTable, plan: Plan, index: int, largest: float
) -> tuple[float, float, float]:
    """Return weights, gradients and `on_the_way` of the largest layer [byte]."""
    stage, sizes = plan.stages[index], workload.parameter_bytes
    sharded = LEDGER[stage.zero_stage].sharded
    # The smaller group has the larger shards; a layer may be all experts.
    group = float(stage.sharding_group_size)
    if stage_share(table, stage, plan).expert > 0.0:
        group = min(group, float(expert_group_size(plan)))
    saved = 0.0
    if stage.offload.activations:
        column = on_the_way(table, recompute.saved_bytes(table, stage))
        saved = max(
            float(column[first : last + 1].max()) for first, last in stage.chunks
        )
    return (
        sizes.weights * largest / (group if WEIGHTS in sharded else 1.0),
        sizes.gradients * largest / (group if GRADIENTS in sharded else 1.0),
        saved,
    )


_IN_PASSES = ("buffers", "activations", "working")


def _with_copies(parts: dict[str, float], copies: float) -> Mapping[str, float]:
    """Add by how much the optimizer's copies exceed what passes held before [byte]."""
    more = copies - sum(parts[name] for name in _IN_PASSES)
    return {**parts, STEP_END: more} if more > 0.0 else parts


def _waiting_bytes(
    _table: LayerTable, plan: Plan, index: int, activations: Activations
) -> float:
    """Return the most that is saved and kept during any forward or backward pass."""
    waiting = SCHEDULES[plan.schedule].waiting(
        index,
        len(plan.stages),
        plan.num_microbatches,
        plan.virtual_pipeline_model_parallel_size,
    )
    per_microbatch = np.array([activations.saved, activations.kept])
    return float((waiting * per_microbatch).sum(axis=(1, 2)).max())


def _in_flight_bytes(
    table: LayerTable, plan: Plan, index: int, activations: Activations
) -> float:
    """Bound what the passes in flight keep [byte].

    With virtual stages any mixture of chunks may be in flight, so each block counts by
    the largest of its rounds; what follows the blocks by the passes of the last
    virtual stage that wait for their backward pass.
    """
    v = plan.virtual_pipeline_model_parallel_size
    schedule = SCHEDULES[plan.schedule]
    sizes = ScheduleSizes(len(plan.stages), plan.num_microbatches, v)
    count = schedule.in_flight(index, *sizes)
    count += schedule.bubbles_kept(len(plan.stages))
    if v == 1:
        return count * activations.saved[0]
    column = recompute.saved_bytes(table, plan.stages[index])
    chunks = [slice(first, last + 1) for first, last in plan.stages[index].chunks]
    ends = [column[chunk] * (1.0 - table.is_block[chunk]) for chunk in chunks]
    blocks = [column[chunk][table.is_block[chunk] > 0] for chunk in chunks]
    # The embedding belongs to the first chunk, final norm and head to the last; where
    # they count as blocks, chunks differ in length.
    most = max(len(block) for block in blocks)
    laid = [np.pad(block, (0, most - len(block))) for block in blocks]
    per_microbatch = float(np.max(laid, axis=0).sum())
    leads = float(ends[0].sum()) if chunks[0].start == 0 else 0.0
    trails = float(sum(end.sum() for end in ends)) - leads
    trailing = schedule.last_in_flight(sizes)
    return count * (per_microbatch + leads) + trailing * trails


ROUNDING = 1.0 + 1e-9
"""Memory and times that differ by less are equal."""


def is_within(needed: float, room: float) -> bool:
    """Tell whether there is as much as is needed, but for rounding."""
    return needed <= room * ROUNDING


RoomKind = Literal["fits", "doubtful", "infeasible"]
"""What is said of room: there is enough by the estimate; not by the estimate, but by
the lower end of its band; not even by that."""


def judge_room(needed: float, low: float, room: float) -> RoomKind:
    """Judge an estimate and the lower end of its band by what there is [byte]."""
    if is_within(needed, room):
        return "fits"
    return "doubtful" if is_within(low, room) else "infeasible"


def host_room(host: Host | None) -> float:
    """Return what a host may keep for each device, nothing without one [byte]."""
    return 0.0 if host is None else host.memory


def host_sentence(kept: float, host: Host | None) -> str:
    """Say that a host is to keep more for a device than it has [byte]."""
    return (
        f"the host is to keep {format_size(kept)} for a device, and has "
        f"{format_size(host_room(host))} for each."
    )


def stage_rooms(workload: Workload, plan: Plan, reserve: float) -> list[float]:
    """Return what tensors may take of a device of each stage [byte].

    Parameters
    ----------
    workload, plan
        The job, and who works on what.
    reserve
        What plans leave free of each device [byte].
    """
    return [workload.memory_on(stage.devices, reserve) for stage in plan.stages]


def has_room(
    workload: Workload, plan: Plan, rooms: Sequence[float], on_host: float
) -> bool:
    """Tell whether all stages have room, and look at no more stages than that takes.

    Parameters
    ----------
    workload, plan
        The job, and a plan or the outline of one.
    rooms
        What a device of each stage has for tensors [byte].
    on_host
        What its host may keep for each device [byte].
    """
    table = workload.table(plan.degrees)
    for index, room in enumerate(rooms):
        held = memory_of_stage(workload, table, plan, index)
        if not is_within(sum(held.device.values()), room):
            return False
        if not is_within(sum(held.host.values()), on_host):
            return False
    return True
