"""What a plan, its training and its software say and torchtitan has no words for."""

from collections.abc import Iterator
from typing import Any

from nestsim.launch.carried import carried_options
from nestsim.launch.formats.torchtitan.names import (
    COMMAND_VERSION,
    CONVERTERS,
    SCHEDULE_NAMES,
    TOML_FORMAT,
    TOML_VERSION,
)
from nestsim.launch.formats.torchtitan.splits import EVERY_NTH, blocks_again
from nestsim.launch.formats.usual import (
    differing_training,
    expert_group_gaps,
    full_batch,
    plain_mixed_precision,
)
from nestsim.launch.job import LaunchJob
from nestsim.launch.written import LaunchGap
from planner.frameworks.framework import PRESETS
from planner.plans.spec import DEFAULT_ORDER
from planner.step.plan import Offload

_ONE_FOR_ALL = "torchtitan has one for the whole job: that of the first stage is taken."


def every_nth(job: LaunchJob) -> str:
    """Return which blocks are computed again; empty if torchtitan cannot say it.

    "2" for every second one.
    """
    settings, blocks = job.settings, job.num_blocks
    if settings.recompute != "full" or settings.recompute_num_layers is None:
        return ""
    chunks = len(job.blocks_by_virtual_stage())
    fitting = [
        str(every)
        for every in range(2, blocks + 1)
        if blocks_again(blocks, chunks, every) == settings.recompute_num_layers
    ]
    named = str((carried_options(job, TOML_FORMAT) or {}).get(EVERY_NTH[1], ""))
    return named if named in fitting else next(iter(fitting), "")


def plan_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    """Yield what of the plan cannot be expressed."""
    settings = job.settings
    if settings.num_microbatches is not None:
        yield LaunchGap(
            setting="num_microbatches",
            value=settings.num_microbatches,
            reason="All microbatches are full in torchtitan: the global batch is that "
            "of full ones.",
        )
    yield from _pipeline_gaps(job)
    yield from _group_gaps(job)
    yield from _saving_gaps(job)
    yield from _sharding_gaps(job)
    if not job.is_in_order(DEFAULT_ORDER):
        name = "order" if settings.placement is None else "placement"
        yield LaunchGap(
            setting=name,
            value=getattr(settings, name) or DEFAULT_ORDER,
            reason="torchtitan numbers its ranks in one order, tp-cp-ep-dp-pp. "
            "rank_map.csv says on which node and device each must run: "
            "number the nodes so, and their devices with CUDA_VISIBLE_DEVICES, if no "
            "node has ranks of two.",
        )
    for name in ("gradient_algorithm", "tensor_algorithm"):
        if getattr(settings, name) != "auto":
            yield LaunchGap(
                setting=name,
                value=getattr(settings, name),
                reason="NCCL chooses by itself; NCCL_ALGO would bind all collectives "
                "of the job.",
            )


def _pipeline_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    plan = job.plan
    pairs = plan.overlap_moe_expert_parallel_comm
    if len(plan.stages) > 1 and plan.schedule not in SCHEDULE_NAMES.values():
        yield LaunchGap(
            setting="schedule",
            value=plan.schedule,
            reason="torchtitan has no such schedule; 1F1B is written, interleaved if "
            "stages have several chunks.",
        )
    if len(plan.stages) == 1 and plan.schedule != "1f1b" and not pairs:
        yield LaunchGap(
            setting="schedule",
            value=plan.schedule,
            reason="Without a pipeline torchtitan accumulates gradients in turn.",
        )
    if pairs:
        has = plan.schedule == "dualpipe-v" and len(plan.stages) > 1
        yield LaunchGap(
            setting="overlap_moe_expert_parallel_comm",
            value=True,
            reason=f"torchtitan {COMMAND_VERSION} has no such option"
            + (
                f"; {TOML_VERSION} has it."
                if has
                else f", {TOML_VERSION} has it with the schedule DualPipeV only."
            ),
        )


def _group_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    parallel = job.plan.parallel
    tp, cp = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    ep, etp = parallel.expert_model_parallel_size, parallel.grouping.etp
    if cp > 1 and parallel.cp_comm_type != "all_gather":
        ring = parallel.cp_comm_type == "p2p"
        yield LaunchGap(
            setting="cp_comm_type",
            value=parallel.cp_comm_type,
            reason=f"torchtitan {COMMAND_VERSION} gathers keys and values"
            + (
                f"; {TOML_VERSION} has rings."
                if ring
                else f", {TOML_VERSION} has rings, too, but exchanges no heads."
            ),
        )
    if parallel.hierarchical_context_parallel_sizes is not None:
        yield LaunchGap(
            setting="hierarchical_context_parallel_sizes",
            value=list(parallel.hierarchical_context_parallel_sizes),
            reason="torchtitan does not share sequences in two ways at once.",
        )
    if tp > 1 and not parallel.sequence_parallel:
        yield LaunchGap(
            setting="sequence_parallel",
            value=False,
            reason=f"Tensor parallelism of torchtitan {TOML_VERSION} always splits "
            f"sequences, too; {COMMAND_VERSION} has an option.",
        )
    if ep == 1 and etp:
        yield LaunchGap(
            setting="expert_tensor_parallel_size",
            value=etp,
            reason="Without expert parallelism torchtitan shards experts as the other "
            "layers.",
        )
    if ep > 1 and tp > 1 and etp != 1:
        yield LaunchGap(
            setting="expert_tensor_parallel_size",
            value=etp or tp,
            reason=f"torchtitan {COMMAND_VERSION} does not split experts where it "
            f"spreads them; {TOML_VERSION} has 1 and the tensor-parallel size.",
        )
    yield from expert_group_gaps(job, "torchtitan", within_data=False)


def _saving_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    settings = job.settings
    yield from _recompute_gaps(job)
    for name in ("zero_stage", "sharding_group_size"):
        value = getattr(settings, name)
        if isinstance(value, tuple):
            yield LaunchGap(setting=name, value=list(value), reason=_ONE_FOR_ALL)
    kept = {stage.offload for stage in job.plan.stages}
    for part in Offload._fields:
        value = getattr(settings, f"offload_{part}")
        if value != 0.0 and kept != {Offload(1.0, 1.0, 1.0, 0.0)}:
            yield LaunchGap(
                setting=f"offload_{part}",
                value=list(value) if isinstance(value, tuple) else value,
                reason="torchtitan keeps weights, gradients and optimizer states on "
                "the host all together (enable_cpu_offload), or nothing.",
            )


def _recompute_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    settings = job.settings
    if isinstance(settings.recompute, tuple):
        yield LaunchGap(
            setting="recompute",
            value=list(settings.recompute),
            reason="torchtitan has one for the whole job: the one that computes most "
            "again is taken.",
        )
    if settings.recompute == "stage":
        yield LaunchGap(
            setting="recompute",
            value="stage",
            reason="torchtitan computes blocks again one by one: full is written.",
        )
    selective = settings.recompute == "selective"
    if selective and not job.workload.software.saves_products:
        yield LaunchGap(
            setting="recompute",
            value="selective",
            reason="torchtitan saves every second product and computes the rest of a "
            "block again, the plan computes the core of attention again only.",
        )
    if settings.recompute_num_layers is not None:
        value = settings.recompute_num_layers
        has = f"{COMMAND_VERSION} computes all blocks again, or none"
        every = f"; {TOML_VERSION} every n-th." if every_nth(job) else "."
        yield LaunchGap(
            setting="recompute_num_layers",
            value=list(value) if isinstance(value, tuple) else value,
            reason=f"torchtitan {has}{every}",
        )


def _sharding_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    parallel, stage = job.plan.parallel, job.plan.stages[0]
    cp, dp = parallel.context_parallel_size, parallel.data_parallel_size
    if isinstance(job.settings.zero_stage, tuple) or dp * cp == 1:
        return
    if stage.zero_stage == 1:
        yield LaunchGap(
            setting="zero_stage",
            value=1,
            reason="FSDP2 shards gradients and weights, too: ZeRO-3 or, with weights "
            "kept after the forward pass, ZeRO-2.",
        )
    if stage.zero_stage == 0:
        others = parallel.tensor_model_parallel_size * len(job.plan.stages)
        if cp > 1:
            yield LaunchGap(
                setting="zero_stage",
                value=0,
                reason="torchtitan shards weights over the ranks that share a "
                "sequence.",
            )
        elif others > 1:
            yield LaunchGap(
                setting="zero_stage",
                value=0,
                reason=f"torchtitan {TOML_VERSION} refuses replicas that share nothing "
                f"beside tp or pp; {COMMAND_VERSION} has them.",
            )
    group = stage.sharding_group_size
    whole = group % cp == 0 and dp % max(group // cp, 1) == 0
    if stage.zero_stage and (not whole or group == 1):
        yield LaunchGap(
            setting="sharding_group_size",
            value=group,
            reason="Shards of torchtitan are those of whole groups of ranks that share "
            "a sequence.",
        )


def training_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    """Yield what of training and execution torchtitan does otherwise."""
    yield from differing_training(job.training, _usual_training(job), "torchtitan")
    usual = PRESETS["torchtitan"].execution
    execution = job.workload.execution
    for name in ("overlap_grad_reduce", "overlap_param_gather", "cpu_adam"):
        if getattr(execution, name) != getattr(usual, name):
            yield LaunchGap(
                setting=f"software.{name}",
                value=getattr(execution, name),
                reason=f"FSDP2 has it {'on' if getattr(usual, name) else 'off'}.",
            )
    if not execution.overlap_p2p_comm:
        yield LaunchGap(
            setting="software.overlap_p2p_comm",
            value=False,
            reason="Transfers between stages of torch.distributed.pipelining do not "
            "stop their work.",
        )
    parallel = job.plan.parallel
    if job.workload.software.ranks_per_node and parallel.expert_model_parallel_size > 1:
        yield LaunchGap(
            setting="software.moe_token_dispatcher_type",
            value="flex",
            reason=f"torchtitan {COMMAND_VERSION} says it in the model's function, not "
            f"in an option; {TOML_VERSION} has one.",
        )
    graphs = job.workload.software.cuda_graphs
    if graphs:
        also = " or with a pipeline" if len(job.plan.stages) > 1 else ""
        yield LaunchGap(
            setting="software.cuda_graphs",
            value=True,
            reason=f"torchtitan {TOML_VERSION} does not capture steps{also}.",
        )


def _usual_training(job: LaunchJob) -> dict[str, Any]:
    """Return what torchtitan trains with, as far as the files do not say otherwise."""
    training = job.training
    pure = training.optimizer == "adam-bf16" and not training.weights_in_fp32
    precision = training.precision if training.precision != "fp16" else "bf16"
    return plain_mixed_precision(training, CONVERTERS.values()) | {
        "global_batch_size": full_batch(job),
        "precision": precision,
        "optimizer": "adam-bf16" if pure else "adam",
        "gradient_precision": "bf16" if pure else "fp32",
        "weights_in_fp32": not pure,
        "gather_precision": "fp8" if training.gather_precision == "fp8" else "",
    }
