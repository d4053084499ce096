"""A plan as people write it: the settings that it can be built of again.

What `planner.plans.build` does, backwards. Where the devices stand in an order of whole
dimensions, as Megatron numbers its ranks, it is written as one; other nestings keep
their names.
"""

from planner.plans.spec import DEFAULT_ORDER, DIMENSIONS, PlanSpec, T
from planner.step.plan import Plan
from planner.step.recompute import SENDING_AGAIN
from planner.step.schedules import find_schedule, schedule_name
from planner.step.virtual import block_span
from topologies.arrays import FloatArray


def plan_settings(plan: Plan, is_block: FloatArray, global_batch_size: int) -> PlanSpec:
    """Return the settings of a plan, as few as tell it.

    `planner.plans.build.build_plan` makes the same plan of them on the same cluster, if
    the plan stands in a placement of its space and its last microbatch is not half
    empty.

    Parameters
    ----------
    plan
        The plan.
    is_block
        Whether each layer of the chain is a block, shape ``(L,)``.
    global_batch_size
        Sequences per optimizer step.
    """
    parallel, v = plan.parallel, plan.virtual_pipeline_model_parallel_size
    pairs = _hides_experts(plan)
    in_order = order_of(plan.placement)
    stages = plan.stages
    ranks = parallel.data_parallel_size * parallel.context_parallel_size
    full = plan.micro_batch_size * parallel.data_parallel_size * plan.num_microbatches
    return PlanSpec(
        micro_batch_size=plan.micro_batch_size,
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=v,
        data_parallel_size=parallel.data_parallel_size,
        num_microbatches=None if full == global_batch_size else plan.num_microbatches,
        context_parallel_size=parallel.context_parallel_size,
        expert_model_parallel_size=parallel.expert_model_parallel_size,
        expert_tensor_parallel_size=parallel.grouping.etp or None,
        cp_comm_type=parallel.cp_comm_type,
        hierarchical_context_parallel_sizes=(
            parallel.hierarchical_context_parallel_sizes
        ),
        sequence_parallel=parallel.sequence_parallel,
        schedule=(
            None if plan.schedule == schedule_name(v, pairs=pairs) else plan.schedule
        ),
        overlap_moe_expert_parallel_comm=pairs,
        recompute=_one_or_each([stage.recompute for stage in stages]),
        zero_stage=_one_or_each([stage.zero_stage for stage in stages]),
        sharding_group_size=_sharding_group(plan, ranks),
        zero_hpz_partition_size=_one_or_each(
            [stage.zero_hpz_partition_size for stage in stages]
        ),
        recompute_num_layers=_recomputed(plan),
        offload_weights=_one_or_each([one.offload.weights for one in stages]),
        offload_gradients=_one_or_each([one.offload.gradients for one in stages]),
        offload_optimizer=_one_or_each([one.offload.optimizer for one in stages]),
        offload_activations=_one_or_each([one.offload.activations for one in stages]),
        pipeline_model_parallel_layout=_layout(plan, is_block),
        order=None if in_order == DEFAULT_ORDER else in_order,
        placement=plan.placement if in_order is None else None,
        gradient_algorithm=plan.gradient_algorithm,
        tensor_algorithm=plan.tensor_algorithm,
    )


def order_of(placement: str) -> str | None:
    """Return the order of ranks that a placement is, innermost dimension first.

    Returns
    -------
    str or None
        All dimensions joined by dashes; None where one of them is split or padded.

    Examples
    --------
    >>> order_of("tp8 pp4 dp2")
    'tp-cp-ep-pp-dp'
    >>> order_of("tp8 dp2 pp4 dp4") is None
    True
    """
    names = [factor.rstrip("0123456789") for factor in placement.split()]
    if len(set(names)) < len(names) or not set(names) <= set(DIMENSIONS):
        return None
    # A dimension of size 1 may stand anywhere: before those that it precedes by
    # default, so that the default order is found wherever it is meant.
    order = list(names)
    for place, name in enumerate(DIMENSIONS):
        if name not in order:
            before = [order.index(one) for one in DIMENSIONS[:place]]
            order.insert(max(before, default=-1) + 1, name)
    return "-".join(order)


def _hides_experts(plan: Plan) -> bool:
    """Return whether settings may say that all-to-alls of experts are hidden.

    A schedule that pairs passes may be there by its name alone: without experts, or
    with passes that send their tokens again (`planner.plans.spec.PlanSpec`).
    """
    again = any(stage.recompute in SENDING_AGAIN for stage in plan.stages)
    has_experts = plan.parallel.expert_model_parallel_size > 1
    return plan.overlap_moe_expert_parallel_comm and has_experts and not again


def _one_or_each(values: list[T]) -> T | tuple[T, ...]:
    """Return the value of all stages if there is one, else that of each."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _sharding_group(plan: Plan, ranks: int) -> int | tuple[int, ...] | None:
    """Return how many ranks share the shards; None for all, or if nobody does."""
    groups = [
        stage.sharding_group_size if stage.zero_stage else ranks
        for stage in plan.stages
    ]
    return None if set(groups) == {ranks} else _one_or_each(groups)


def _recomputed(plan: Plan) -> int | tuple[int, ...] | None:
    """Return how many blocks are recomputed; None for all."""
    counts = [stage.recompute_num_layers for stage in plan.stages]
    if set(counts) == {None}:
        return None
    return _one_or_each([count or 0 for count in counts])


def _layout(plan: Plan, is_block: FloatArray) -> tuple[int, ...] | None:
    """Return the blocks of each virtual stage; None if all have equally many."""
    first, last = block_span(is_block)
    number = (
        find_schedule(plan.schedule)
        .virtual_stages(len(plan.stages), plan.virtual_pipeline_model_parallel_size)
        .number
    )
    counts = [0] * number.size
    for stage, held in zip(plan.stages, number.tolist(), strict=True):
        for (begin, end), k in zip(stage.chunks, held, strict=True):
            counts[k] = max(min(end + 1, last) - max(begin, first), 0)
    return None if len(set(counts)) == 1 else tuple(counts)
