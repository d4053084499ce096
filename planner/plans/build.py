"""Write a plan out that is given by its sizes and settings: devices, layers, names.

Ranks are numbered as Megatron-LM's ``RankGenerator`` does it (``megatron/core/
parallel_state.py``): the dimensions of an order, innermost first, each with the
product of those before it for its stride. Experts are spread over data-parallel
ranks, so that ``ep`` and the replicas of each expert together make ``dp``. Layers are
shared out as in ``get_num_layers_to_build`` (``megatron/core/transformer/
transformer_block.py``): equal numbers of blocks in each stage, after the first and the
last one have theirs, in as many equal rounds as there are chunks; the embedding
belongs to the first stage, final norm and head to the last.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from estimators.grouping import Grouping
from estimators.layers.work import Degrees
from estimators.training import ParallelismConfig
from planner.cost.pricing import rates_of
from planner.plans.checks import (
    AUTO,
    check_algorithms,
    check_model,
    check_outline,
    check_plan,
    check_sizes,
)
from planner.plans.spec import PlanSpec, order_names
from planner.search.device_kinds import DeviceOrder, device_orders
from planner.search.placements import (
    Extents,
    Placement,
    name_parts,
    placements,
    whole_dimensions,
)
from planner.step.execution import Workload
from planner.step.instructions import VirtualStages
from planner.step.plan import Plan, Stage
from planner.step.recompute import SENDING_AGAIN, sending_again
from planner.step.schedules import (
    SCHEDULES,
    deals_as_usual,
    find_schedule,
    grouped_name,
    schedule_name,
)
from planner.step.virtual import block_span
from topologies import InputError, Network

Chunks = tuple[tuple[tuple[int, int], ...], ...]
"""First and last layer of each chunk, by stage."""

_MOST_LISTED = 6


def build_plan(network: Network, workload: Workload, spec: PlanSpec) -> Plan:
    """Return the plan that sizes and settings stand for on a cluster.

    Raises
    ------
    InputError
        If they do not fit the cluster, the model or the batch, with the setting in
        ``where``.
    """
    outline = _outline(workload, spec, network.num_devices)
    placement = _placement(network, workload, spec, outline.parallel)
    plan = replace(
        outline,
        placement=placement.name,
        stages=tuple(
            replace(stage, devices=devices)
            for stage, devices in zip(outline.stages, placement.rows, strict=True)
        ),
    )
    try:
        check_plan(workload, plan, network.num_devices)
    except InputError as error:
        raise _as_a_setting(error) from None
    return with_algorithms(network, workload, plan)


def outline_plan(workload: Workload, spec: PlanSpec, num_devices: int) -> Plan:
    """Return the plan without the devices of its stages: enough to count memory.

    Nothing of it depends on how the devices are joined.

    Parameters
    ----------
    workload, spec
        As `build_plan` takes them; no placement is looked at.
    num_devices
        Devices of the cluster.

    Raises
    ------
    InputError
        As `build_plan`.
    """
    plan = _outline(workload, spec, num_devices)
    try:
        check_outline(workload, plan, num_devices)
    except InputError as error:
        raise _as_a_setting(error) from None
    return plan


def _outline(workload: Workload, spec: PlanSpec, num_devices: int) -> Plan:
    within_data = workload.software.experts_within_data
    parallel = _parallel(spec, num_devices, within_data=within_data)
    check_sizes(parallel, num_devices)
    sizes = parallel.sizes()
    degrees = Degrees(
        tp=sizes.tp,
        cp=sizes.cp,
        ep=sizes.ep,
        micro_batch_size=spec.micro_batch_size,
        sequence_parallel=parallel.sequence_parallel,
        grouping=parallel.grouping,
        recompute_modules=spec.recompute_modules or (),
    )
    check_model(workload.graph.spec, degrees)
    num_microbatches = _num_microbatches(workload, spec, sizes.dp)
    stages = zip(
        _chunks(workload, degrees, spec),
        spec.stage_settings(sizes.dp * sizes.cp),
        strict=True,
    )
    schedule = _schedule(spec)
    if deals_as_usual(schedule, sizes.pp, num_microbatches):
        schedule = _family(spec)
    pairs = SCHEDULES[schedule].pairs_passes
    if pairs and sizes.ep > 1:
        sending = sending_again(workload.software, degrees.recompute_modules)
        spec.refuse_sending_again(sending - SENDING_AGAIN)
    return Plan(
        parallel=parallel,
        virtual_pipeline_model_parallel_size=spec.virtual_pipeline_model_parallel_size,
        micro_batch_size=spec.micro_batch_size,
        num_microbatches=num_microbatches,
        schedule=schedule,
        placement="",
        gradient_algorithm=spec.gradient_algorithm,
        tensor_algorithm=spec.tensor_algorithm,
        stages=tuple(
            Stage(chunks=held, devices=(), **settings) for held, settings in stages
        ),
        recompute_modules=degrees.recompute_modules,
    )


def with_algorithms(network: Network, workload: Workload, plan: Plan) -> Plan:
    """Return the plan with ``"auto"`` replaced by what it stands for.

    Raises
    ------
    InputError
        If the network does not have an algorithm that the plan names.
    """
    check_algorithms(network, plan)
    if AUTO not in {plan.gradient_algorithm, plan.tensor_algorithm}:
        return plan
    rates = rates_of(network, workload, plan)
    return replace(
        plan,
        gradient_algorithm=rates.gradient_algorithm,
        tensor_algorithm=rates.tensor_algorithm,
    )


def _as_a_setting(error: InputError) -> InputError:
    """Name the setting that a stage's mistake comes from."""
    return InputError(
        error.problem,
        where=error.where.rpartition("].")[2],
        got=error.got,
        expected=error.expected,
        hint=error.hint,
    )


def _parallel(
    spec: PlanSpec, num_devices: int, *, within_data: bool
) -> ParallelismConfig:
    tp, pp = spec.tensor_model_parallel_size, spec.pipeline_model_parallel_size
    cp, ep = spec.context_parallel_size, spec.expert_model_parallel_size
    levels = spec.hierarchical_context_parallel_sizes
    grouping = Grouping.of(
        (tp, cp, ep),
        etp=spec.expert_tensor_parallel_size or 0,
        within_data=within_data,
        cp_comm_type=spec.cp_comm_type,
    )
    dp = spec.data_parallel_size
    if dp is None:
        dp = max(num_devices // (tp * cp * pp), 1)
        # Of what is left, what every expert-parallel group can have.
        unit = grouping.replica_unit((tp, cp, ep))
        dp = max(dp // unit, 1) * unit
    settings = grouping.settings(cp, ep)
    settings["hierarchical_context_parallel_sizes"] = levels
    return ParallelismConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        data_parallel_size=dp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        sequence_parallel=spec.sequence_parallel and tp > 1,
        **settings,
    )


def _num_microbatches(workload: Workload, spec: PlanSpec, dp: int) -> int:
    """Return the microbatches of a replica, all of them full if none are given."""
    if spec.num_microbatches is not None:
        return spec.num_microbatches
    batch, per_round = workload.training.global_batch_size, spec.micro_batch_size * dp
    if batch % per_round:
        raise InputError(
            "the global batch does not split into full microbatches",
            where="micro_batch_size",
            got=spec.micro_batch_size,
            expected=f"micro_batch_size x data_parallel_size ({dp}) to divide "
            f"global_batch_size {batch}",
            hint=f"num_microbatches = {-(-batch // per_round)} pads the last ones",
        )
    for size in workload.training.batch_sizes:
        if size % per_round:
            raise InputError(
                "a batch of the ramp does not split into full microbatches",
                where="micro_batch_size",
                got=spec.micro_batch_size,
                expected=f"micro_batch_size x data_parallel_size ({dp}) to divide "
                f"{size:,} sequences, of training.rampup_batch_size",
            )
    return batch // per_round


def _schedule(spec: PlanSpec) -> str:
    return grouped_name(_family(spec), spec.microbatch_group_size_per_vp_stage)


def _family(spec: PlanSpec) -> str:
    pairs = spec.overlap_moe_expert_parallel_comm
    if spec.schedule is None:
        return schedule_name(spec.virtual_pipeline_model_parallel_size, pairs=pairs)
    known = SCHEDULES.get(spec.schedule)
    if pairs and known is not None and not known.pairs_passes:
        expected = ", ".join(
            f'"{name}"' for name, one in SCHEDULES.items() if one.pairs_passes
        )
        raise InputError(
            "does not have passes of two microbatches beside each other",
            got=spec.schedule,
            expected=f"one of {expected}, as overlap_moe_expert_parallel_comm asks for",
        )
    return spec.schedule


def _chunks(workload: Workload, degrees: Degrees, spec: PlanSpec) -> Chunks:
    """Return the intervals of the chain that each stage holds."""
    is_block = workload.table(degrees).is_block
    first, last = block_span(is_block)
    counts = _counts(spec, last - first)
    starts = first + np.cumsum(counts[:-1])
    bounds = [0, *starts.tolist(), len(is_block)]
    intervals = [(start, end - 1) for start, end in pairwise(bounds)]
    virtual = _virtual_stages(spec)
    return tuple(tuple(intervals[k] for k in held) for held in virtual.number.tolist())


def _virtual_stages(spec: PlanSpec) -> VirtualStages:
    try:
        schedule = find_schedule(_schedule(spec))
    except InputError as error:
        raise (error if error.where else error.at("schedule")) from None
    return schedule.virtual_stages(
        spec.pipeline_model_parallel_size, spec.virtual_pipeline_model_parallel_size
    )


def _counts(spec: PlanSpec, num_layers: int) -> tuple[int, ...]:
    """Return how many transformer blocks each virtual stage holds."""
    layout = spec.pipeline_model_parallel_layout
    if layout is not None:
        _check_sum(layout, num_layers, "pipeline_model_parallel_layout")
        _check_inner(layout)
        return layout
    if (
        spec.account_for_embedding_in_pipeline_split
        or spec.account_for_loss_in_pipeline_split
    ):
        return _accounted_blocks(spec, num_layers)
    blocks, v = _blocks(spec, num_layers), spec.virtual_pipeline_model_parallel_size
    return tuple(blocks[stage] // v for stage in _virtual_stages(spec).stage.tolist())


def _check_inner(layout: tuple[int, ...]) -> None:
    """Refuse virtual stages without work: the ends have embedding and head."""
    if 0 in layout[1:-1]:
        raise InputError(
            "a virtual stage between the ends has no block",
            where="pipeline_model_parallel_layout",
            got=list(layout),
            expected="at least 1 for each but the first and the last",
        )


def _check_sum(counts: tuple[int, ...], num_layers: int, where: str) -> None:
    if sum(counts) != num_layers:
        raise InputError(
            "does not add up to the model's layers",
            where=where,
            got=list(counts),
            expected=f"numbers that add up to {num_layers}, not {sum(counts)}",
        )


def _accounted_blocks(spec: PlanSpec, num_layers: int) -> tuple[int, ...]:
    """Share blocks evenly, the ends of the chain counting as one each where asked."""
    parts = (
        spec.pipeline_model_parallel_size * spec.virtual_pipeline_model_parallel_size
    )
    leads = int(spec.account_for_embedding_in_pipeline_split)
    trails = int(spec.account_for_loss_in_pipeline_split)
    total = num_layers + leads + trails
    if total % parts or total < parts:
        raise InputError(
            "the layers do not split evenly over the stages",
            where="account_for_embedding_in_pipeline_split",
            got=f"{total} layers, ends of the chain included",
            expected=f"a multiple of {parts}: {spec.pipeline_model_parallel_size} "
            f"stages x {spec.virtual_pipeline_model_parallel_size} chunks",
        )
    counts = [total // parts] * parts
    counts[0] -= leads
    counts[-1] -= trails
    return tuple(counts)


def _blocks(spec: PlanSpec, num_layers: int) -> tuple[int, ...]:
    """Return how many transformer blocks each stage holds."""
    if spec.num_layers_per_pipeline_stage is not None:
        blocks = spec.num_layers_per_pipeline_stage
        where = "num_layers_per_pipeline_stage"
        _check_sum(blocks, num_layers, where)
    else:
        blocks, where = _even_blocks(spec, num_layers)
    _check_blocks(spec, blocks, where)
    return blocks


def _even_blocks(spec: PlanSpec, num_layers: int) -> tuple[tuple[int, ...], str]:
    """Share the layers evenly, and name the setting that decides how."""
    pp = spec.pipeline_model_parallel_size
    names = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    first, last = (getattr(spec, name) for name in names)
    given = [name for name in names if getattr(spec, name) is not None]
    where = given[0] if given else "pipeline_model_parallel_size"
    others, left = pp - len(given), num_layers - (first or 0) - (last or 0)
    even = left == 0 if others == 0 else left >= 0 and left % others == 0
    if not even:
        ends = (
            f", {num_layers - left} of them in the first and the last" if given else ""
        )
        raise InputError(
            "the layers do not split evenly over the stages",
            where=where,
            got=getattr(spec, where),
            expected=f"{others} stages to share {left} layers{ends} evenly"
            if left >= 0
            else f"at most {num_layers} layers in the first and the last stage",
            hint=""
            if given
            else "list num_layers_per_pipeline_stage, or with chunks "
            "pipeline_model_parallel_layout",
        )
    middle = left // others if others else 0
    blocks = [middle] * pp
    if first is not None:
        blocks[0] = first
    if last is not None:
        blocks[-1] = last
    return tuple(blocks), where


def _check_blocks(spec: PlanSpec, blocks: tuple[int, ...], where: str) -> None:
    """Refuse stages without work, and blocks that do not make equal chunks."""
    v = spec.virtual_pipeline_model_parallel_size
    # The embedding and the head are work enough for the first and the last stage.
    ends = {0, len(blocks) - 1} if v == 1 else set()
    for stage, count in enumerate(blocks):
        if count % v or count < (0 if stage in ends else 1):
            chunks = f"a multiple of the {v} chunks" if v > 1 else "at least one layer"
            raise InputError(
                f"stage {stage} does not get layers for every chunk",
                where=where,
                got=list(blocks),
                expected=f"{chunks} in each stage",
            )


def _placement(
    network: Network, workload: Workload, spec: PlanSpec, parallel: ParallelismConfig
) -> Placement:
    """Return the devices of every rank."""
    sizes, ep = parallel.sizes(), parallel.placed_expert_size
    extents = Extents(sizes.tp, sizes.cp, ep, sizes.dp // ep, sizes.pp)
    if spec.placement is None:
        return _order_placement(spec.order, extents)
    found = placements(extents, network.num_devices, tuple(network.block_sizes))
    nesting, order = name_parts(spec.placement)
    for placement in found:
        if placement.name == nesting:
            return placement.ordered(_device_order(network, workload, spec, order))
    some = ", ".join(f'"{placement.name}"' for placement in found[:_MOST_LISTED])
    more = ", .." if len(found) > _MOST_LISTED else ""
    raise InputError(
        "no such placement of these sizes on this network",
        where="placement",
        got=spec.placement,
        expected=f"one of {some}{more}",
    )


def _device_order(
    network: Network, workload: Workload, spec: PlanSpec, name: str
) -> DeviceOrder | None:
    """Return the order of the nodes that a placement's name ends in."""
    if not name:
        return None
    group = spec.tensor_model_parallel_size
    orders = [one for one in device_orders(network, workload, group) if one is not None]
    for order in orders:
        if order.name == name:
            return order
    raise InputError(
        "no such order of the nodes of this cluster",
        where="placement",
        got=spec.placement,
        expected=" or ".join(
            ["nothing after the dimensions", *(f'", {one.name}"' for one in orders)]
        ),
    )


def _order_placement(order: str | None, extents: Extents) -> Placement:
    """Nest whole dimensions into each other, as Megatron numbers its ranks."""
    size_of = extents._asdict()
    names = order_names(order)
    for name, size in size_of.items():
        if size > 1 and name not in names:
            raise InputError(
                "leaves out a dimension",
                where="order",
                got=order,
                expected=f"{name} in it, whose size is {size}",
            )
    return whole_dimensions(names, extents)
