"""The settings that stand for a plan: the inverse of `build_plan`, as an oracle of it.

For every plan whose virtual stages hold blocks in the order of the chain, the embedding
with the first and the head with the last. Settings are those of the scenario's table
[plan], as plain values; defaults of a framework are written out.
"""

from collections.abc import Sequence
from typing import Any

from planner.frameworks.rules import has_other_ends, is_even
from planner.plans.spec import DEFAULT_ORDER
from planner.search.launchable import block_counts, ends_together, rank_order
from planner.step.plan import Plan
from topologies.errors import InputError

_ENDS = (
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)


def plan_table(
    plan: Plan, is_block: Sequence[bool], *, global_batch_size: int
) -> dict[str, Any]:
    """Return the table [plan] that stands for a plan.

    Parameters
    ----------
    plan
        Must be possible: each layer in one chunk, each device in one stage.
    is_block
        Of each layer of the chain, whether it is a transformer block.
    global_batch_size
        Sequences per optimizer step.

    Raises
    ------
    InputError
        If final norm and head, or the layers before the first block, are apart:
        nothing in the table says that.
    """
    if not ends_together(plan, is_block):
        raise InputError(
            "the ends of the chain are not with the ends of the pipeline",
            where="stages",
            expected="the embedding on the first virtual stage, final norm and head "
            "on the last",
            hint="a plan in JSON can say it",
        )
    return {
        **_sizes(plan, global_batch_size),
        **_savings(plan),
        **_split(plan, is_block),
        **_placement(plan),
        "gradient_algorithm": plan.gradient_algorithm,
        "tensor_algorithm": plan.tensor_algorithm,
    }


def _sizes(plan: Plan, global_batch_size: int) -> dict[str, Any]:
    parallel, dp = plan.parallel, plan.parallel.data_parallel_size
    table: dict[str, Any] = {
        "micro_batch_size": plan.micro_batch_size,
        "tensor_model_parallel_size": parallel.tensor_model_parallel_size,
        "pipeline_model_parallel_size": parallel.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": (
            plan.virtual_pipeline_model_parallel_size
        ),
        "data_parallel_size": dp,
        "context_parallel_size": parallel.context_parallel_size,
        "expert_model_parallel_size": parallel.expert_model_parallel_size,
        "sequence_parallel": parallel.sequence_parallel,
        "schedule": plan.schedule,
    }
    m = plan.num_microbatches
    if m * dp * plan.micro_batch_size != global_batch_size:
        table["num_microbatches"] = m
    return table


def _savings(plan: Plan) -> dict[str, Any]:
    """Return what stages save memory with, one value where they agree."""
    stages, sizes = plan.stages, plan.parallel.sizes()
    table: dict[str, Any] = {
        "recompute": _one_or_each([stage.recompute for stage in stages]),
        "zero_stage": _one_or_each([stage.zero_stage for stage in stages]),
    }
    groups = [
        stage.sharding_group_size if stage.zero_stage else sizes.dp * sizes.cp
        for stage in stages
    ]
    if any(group != sizes.dp * sizes.cp for group in groups):
        table["sharding_group_size"] = _one_or_each(groups)
    return table


def _one_or_each(values: list[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else values


def _split(plan: Plan, is_block: Sequence[bool]) -> dict[str, Any]:
    """Return how blocks are shared out, the plainest way that fits."""
    counts, pp = block_counts(plan, is_block), len(plan.stages)
    if is_even(counts, pp):
        return {}
    for ends in ((1, 1), (1, 0), (0, 1)):
        parts = [counts[0] + ends[0], *counts[1:-1], counts[-1] + ends[1]]
        if is_even(parts, pp):
            return {name: True for name, end in zip(_ENDS, ends, strict=True) if end}
    stages = [sum(counts[stage::pp]) for stage in range(pp)]
    if pp > 2 and has_other_ends(counts, pp) and counts[0] and counts[-1]:
        first, middle, last = stages[0], stages[1], stages[-1]
        table = {
            "num_layers_in_first_pipeline_stage": first,
            "num_layers_in_last_pipeline_stage": last,
        }
        return {name: count for name, count in table.items() if count != middle}
    return {"pipeline_model_parallel_layout": list(counts)}


def _placement(plan: Plan) -> dict[str, Any]:
    """Return the order of ranks, or the nesting where no order gives the devices."""
    order = rank_order(plan)
    if order is None:
        return {"placement": plan.placement}
    written = "-".join(order)
    return {} if written == DEFAULT_ORDER else {"order": written}
