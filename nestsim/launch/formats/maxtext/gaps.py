"""What a plan, its training and its software say and MaxText has no words for."""

from collections.abc import Iterator
from typing import Any

from nestsim.launch.formats.maxtext.mesh import AxisMesh, placed_factors
from nestsim.launch.formats.maxtext.names import OPTIMIZERS, QUANTIZATIONS
from nestsim.launch.formats.usual import (
    differing_training,
    expert_group_gaps,
    full_batch,
    plain_mixed_precision,
)
from nestsim.launch.job import LaunchJob
from nestsim.launch.written import LaunchGap
from planner.frameworks.framework import FRAMEWORKS, PRESETS
from planner.plans.spec import DEFAULT_ORDER
from planner.search.placements import name_parts
from planner.step.plan import Offload

_ONE_FOR_ALL = "MaxText has one for the whole job: that of the first stage is taken."


def plan_gaps(job: LaunchJob, mesh: AxisMesh) -> Iterator[LaunchGap]:
    """Yield what of the plan cannot be expressed."""
    yield from _pipeline_gaps(job)
    yield from _group_gaps(job)
    yield from _saving_gaps(job)
    yield from _offload_gaps(job)
    yield from _sharding_gaps(job)
    settings = job.settings
    nesting, nodes = name_parts(job.plan.placement)
    if nodes or mesh.factors != placed_factors(nesting):
        name = "order" if settings.placement is None else "placement"
        yield LaunchGap(
            setting=name,
            value=getattr(settings, name) or DEFAULT_ORDER,
            reason="The axes of MaxText nest as data, fsdp, context, tensor, expert, "
            "the last innermost, with stages outermost, inside slices and among them; "
            "nodes stand in the order of their numbers.",
        )
    for name in ("gradient_algorithm", "tensor_algorithm"):
        if getattr(settings, name) != "auto":
            yield LaunchGap(
                setting=name,
                value=getattr(settings, name),
                reason="XLA and its collective library choose by themselves.",
            )


def _pipeline_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    settings, plan = job.settings, job.plan
    count, pp = plan.num_microbatches, len(plan.stages)
    if settings.num_microbatches is not None:
        yield LaunchGap(
            setting="num_microbatches",
            value=count,
            reason="All microbatches are full in MaxText: the global batch is that of "
            "full ones.",
        )
    if pp > 1 and count % pp:
        yield LaunchGap(
            setting="num_microbatches",
            value=count,
            reason=f"MaxText takes multiples of the {pp} stages only, and refuses it.",
        )
    if pp > 1 and plan.schedule not in FRAMEWORKS["maxtext"].rules.schedules:
        yield LaunchGap(
            setting="schedule",
            value=plan.schedule,
            reason="MaxText goes forward with all microbatches before it goes "
            "backward.",
        )
    if plan.overlap_moe_expert_parallel_comm:
        yield LaunchGap(
            setting="overlap_moe_expert_parallel_comm",
            value=True,
            reason="MaxText hides all-to-alls in the blocks of DeepSeek only "
            "(use_batch_split_schedule).",
        )
    if settings.pipeline_model_parallel_layout is not None:
        yield LaunchGap(
            setting="pipeline_model_parallel_layout",
            value=list(settings.pipeline_model_parallel_layout),
            reason="Stages of MaxText hold equally many blocks; what is left over "
            "stays outside of the pipeline.",
        )


def _group_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    settings, parallel = job.settings, job.plan.parallel
    if parallel.context_parallel_size > 1 and parallel.cp_comm_type not in (
        "p2p",
        "all_gather",
    ):
        yield LaunchGap(
            setting="cp_comm_type",
            value=parallel.cp_comm_type,
            reason="MaxText gathers keys and values, or has a ring.",
        )
    if parallel.hierarchical_context_parallel_sizes is not None:
        yield LaunchGap(
            setting="hierarchical_context_parallel_sizes",
            value=list(parallel.hierarchical_context_parallel_sizes),
            reason="MaxText does not share sequences in two ways at once.",
        )
    if settings.expert_tensor_parallel_size is not None:
        yield LaunchGap(
            setting="expert_tensor_parallel_size",
            value=settings.expert_tensor_parallel_size,
            reason="The tensor axis of MaxText splits experts as other layers.",
        )
    yield from expert_group_gaps(job, "MaxText", within_data=True)


def _saving_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    settings = job.settings
    for name in ("recompute", "zero_stage", "sharding_group_size"):
        value = getattr(settings, name)
        if isinstance(value, tuple):
            yield LaunchGap(setting=name, value=list(value), reason=_ONE_FOR_ALL)
    if settings.recompute == "stage":
        yield LaunchGap(
            setting="recompute",
            value="stage",
            reason="MaxText computes blocks again one by one: full is written.",
        )
    if settings.recompute_num_layers is not None:
        value = settings.recompute_num_layers
        yield LaunchGap(
            setting="recompute_num_layers",
            value=list(value) if isinstance(value, tuple) else value,
            reason="The policy of MaxText is that of all blocks.",
        )


def _offload_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    for part in Offload._fields:
        value = getattr(job.settings, f"offload_{part}")
        whole = value == 1.0 and (
            part in ("weights", "optimizer")
            or (part == "activations" and job.settings.recompute == "full")
        )
        if value != 0.0 and not whole:
            yield LaunchGap(
                setting=f"offload_{part}",
                value=list(value) if isinstance(value, tuple) else value,
                reason="MaxText keeps all weights, all optimizer states, or all "
                "inputs of blocks that are computed again on the host, no parts of "
                "them and no gradients.",
            )


def _sharding_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    parallel, stage = job.plan.parallel, job.plan.stages[0]
    cp = parallel.context_parallel_size
    ep, zero = parallel.placed_expert_size, stage.zero_stage
    if isinstance(job.settings.zero_stage, tuple):
        return
    reason = _sharding_reason(job)
    if reason:
        yield LaunchGap(setting="zero_stage", value=zero, reason=reason)
    if zero > 1 and stage.sharding_group_size % (cp * ep):
        yield LaunchGap(
            setting="sharding_group_size",
            value=stage.sharding_group_size,
            reason="Shards of MaxText are those of whole context and expert axes.",
        )


def _sharding_reason(job: LaunchJob) -> str:
    """Return why the ZeRO stage cannot be had; empty if it can."""
    parallel, stage = job.plan.parallel, job.plan.stages[0]
    cp, dp = parallel.context_parallel_size, parallel.data_parallel_size
    ep, zero = parallel.placed_expert_size, stage.zero_stage
    reason = ""
    if zero and dp * cp == 1:
        reason = "There is nobody to share with."
    elif zero == 1 and cp * ep == 1 and stage.sharding_group_size < dp:
        reason = "Optimizer states are shared over the whole data axis, or not."
    elif zero < 2 and cp * ep > 1:
        reason = "MaxText shards weights over the context and expert axes."
    elif zero == 2 and len(job.plan.stages) == 1:
        reason = "Weights that are sharded are gathered in each pass: ZeRO-3."
    elif zero > 1 and stage.sharding_group_size == 1:
        reason = "A group of one shares nothing."
    return reason


def training_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    """Yield what of training and execution MaxText does otherwise."""
    yield from differing_training(job.training, _usual_training(job), "MaxText")
    precision, count = job.training.matmul_precision, job.plan.num_microbatches
    if precision == "fp8" and len(job.plan.stages) == 1 < count:
        yield LaunchGap(
            setting="training.matmul_precision",
            value=precision,
            reason="MaxText would refuse it: products in fp8 do not go with "
            f"gradient_accumulation_steps, here {count} (maxtext/configs/types.py).",
        )
    usual, execution = PRESETS["maxtext"].execution, job.workload.execution
    for name in (
        *("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm"),
        *("tp_comm_overlap", "cpu_adam"),
    ):
        if getattr(execution, name) != getattr(usual, name):
            yield LaunchGap(
                setting=f"software.{name}",
                value=getattr(execution, name),
                reason="What goes on behind compute is up to XLA's scheduler.",
            )


def _usual_training(job: LaunchJob) -> dict[str, Any]:
    """Return what MaxText trains with, as far as the file does not say otherwise."""
    training = job.training
    narrow = training.optimizer == "adam-bf16"
    optimizer = training.optimizer
    known = {*OPTIMIZERS.values(), "adam-bf16"}
    return plain_mixed_precision(training, QUANTIZATIONS.values()) | {
        "global_batch_size": full_batch(job),
        "optimizer": optimizer if optimizer in known else "adam",
        "weights_in_fp32": not narrow,
    }
