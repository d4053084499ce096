"""What a plan says and a launch of DeepSpeed does not: both read, and compared."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from estimators.layers.recompute_modules import ATTENTION_CORE
from nestsim.launch.formats.deepspeed.architecture import built_model
from nestsim.launch.formats.deepspeed.tables import PRESET, LaunchTables
from nestsim.launch.formats.usual import expert_group_gaps
from nestsim.launch.job import LaunchJob
from nestsim.launch.ranks import RANK_MAP
from nestsim.launch.written import LaunchGap
from nestsim.scenario.plan import PlanTable
from nestsim.scenario.search import TrainingTable
from nestsim.scenario.software import SoftwareTable
from planner.frameworks.framework import PRESETS
from planner.search.placements import name_parts
from topologies.errors import InputError

_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "virtual_pipeline_model_parallel_size": "DeepSpeed's pipeline engine has one "
        "chunk for each stage (runtime/pipe/schedule.py)",
        "num_microbatches": "DeepSpeed's batch is micro-batch x accumulation steps x "
        "replicas, none of it padded",
        "expert_tensor_parallel_size": "DeepSpeed splits experts over the tensor-"
        "parallel ranks or not at all",
        "cp_comm_type": "DeepSpeed's sequence parallelism is Ulysses, a2a",
        "hierarchical_context_parallel_sizes": "Ulysses exchanges heads among all "
        "ranks that share a sequence",
        "sequence_parallel": "Megatron-DeepSpeed has Ulysses or Megatron's sequence "
        "parallelism, not both",
        "schedule": "DeepSpeed's pipeline engine has 1F1B, and Megatron-DeepSpeed "
        "ZB-H1",
        "overlap_moe_expert_parallel_comm": "DeepSpeed does not pair the passes of "
        "microbatches",
        "recompute": "Megatron-DeepSpeed recomputes in all stages alike: blocks, or "
        "the core of attention",
        "zero_stage": "DeepSpeed has one stage of ZeRO for the job, with a pipeline 0 "
        "or 1, and 1 in bf16 (runtime/bf16_optimizer.py)",
        "sharding_group_size": "DeepSpeed 0.19 shards over all replicas; up to 0.18 "
        "zero_optimization.mics_shard_size says the group with ZeRO-3",
        "zero_hpz_partition_size": "DeepSpeed has one number for the job",
        "recompute_num_layers": "Megatron-DeepSpeed counts recomputed blocks only "
        "without a pipeline, and blocks as a whole",
        "offload_weights": "DeepSpeed's offload_param keeps all weights, with ZeRO-3",
        "offload_gradients": "DeepSpeed keeps gradients where it keeps the optimizer's "
        "states, without a setting of its own",
        "offload_optimizer": "DeepSpeed's offload_optimizer keeps a part of the states "
        "with ZeRO-3 only, all of them with ZeRO-1 and 2, none without",
        "offload_activations": "DeepSpeed's cpu_checkpointing keeps all inputs of "
        "recomputed blocks, of no others",
        "pipeline_model_parallel_layout": "DeepSpeed shares out blocks itself, by type "
        "of layer (runtime/pipe/module.py, partition_method)",
        "placement": "the launch numbers ranks by nesting the parallel dimensions",
        "order": "the launch numbers ranks by nesting the parallel dimensions",
        "gradient_algorithm": "NCCL chooses algorithms; NCCL_ALGO holds for all "
        "collectives, and knows Ring and Tree",
        "tensor_algorithm": "NCCL chooses algorithms; NCCL_ALGO holds for all "
        "collectives, and knows Ring and Tree",
        "training.global_batch_size": "a last microbatch that is padded has no words; "
        "the written batch is whole",
        "training.gradient_precision": "without ZeRO DeepSpeed accumulates gradients "
        "in the weights' format (runtime/engine.py, _do_optimizer_sanity_check)",
        "training.optimizer": "Megatron-DeepSpeed makes Adam or SGD itself",
        "training.matmul_precision": "Megatron-DeepSpeed has fp8 with one scale for a "
        "tensor (--fp8-hybrid)",
        "software.overlap_grad_reduce": "DeepSpeed overlaps reductions with ZeRO, and "
        "not with a pipeline (overlap_comm)",
        "software.overlap_param_gather": "DeepSpeed gathers ahead with ZeRO-3 only",
        "software.overlap_p2p_comm": "DeepSpeed's pipeline engine has no such choice",
        "software.tp_comm_overlap": "Megatron-DeepSpeed waits for tensor-parallel "
        "collectives",
        "software.cpu_adam": "DeepSpeed updates on the host what it keeps there",
        "software.recompute_modules": "selective recompute of Megatron-DeepSpeed is "
        "that of the attention core",
    }
)
"""Setting -> why DeepSpeed's launch says otherwise."""

_MODEL_REASON = "Megatron-DeepSpeed's pretrain_gpt.py has no option for it"
_OTHER_REASON = "DeepSpeed has no setting for it"

_TRAINING = (
    "global_batch_size",
    "precision",
    "optimizer",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "gradient_precision",
    "matmul_precision",
    "fp8_param_gather",
    "moe_dispatch_precision",
    "weights_in_fp32",
    "gather_precision",
    "reduce_precision",
)
_EXECUTION = (
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_p2p_comm",
    "tp_comm_overlap",
    "cpu_adam",
)

_GPTS = frozenset({"gpt", "llama", "mixtral"})
"""Families that are the same modules under the same settings."""


def differences(job: LaunchJob, read: LaunchTables) -> tuple[LaunchGap, ...]:
    """Return each setting of a job that its launch, read back, does not give again.

    Parameters
    ----------
    job
        What was to be written.
    read
        What the written launch says.
    """
    return (
        *_plan_gaps(job, read),
        *expert_group_gaps(job, "DeepSpeed"),
        *_model_gaps(job, read),
        *_training_gaps(job, read),
        *_software_gaps(job, read),
    )


def _gap(setting: str, wanted: object, found: object, reason: str) -> LaunchGap:
    value = list(wanted) if isinstance(wanted, tuple) else wanted
    instead = list(found) if isinstance(found, tuple) else found
    if found in (None, "", ()):
        instead = "none"
    return LaunchGap(
        setting=setting,
        value=value,
        reason=f"{reason}; the launch has {instead}.",
    )


def _plan_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    found = PlanTable.model_validate(read.plan).build(PRESETS[PRESET])
    for field in fields(found):
        name = field.name
        wanted, has = getattr(job.settings, name), getattr(found, name)
        if name == "placement" and name_parts(job.plan.placement)[1]:
            yield LaunchGap(
                setting=name,
                value=wanted,
                reason=f"{RANK_MAP} has the nodes in this order, and the launch takes "
                "them so; no import can tell which of them are slow.",
            )
        elif wanted != has:
            yield _gap(name, wanted, has, _REASONS.get(name, _OTHER_REASON))


def _model_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    wanted = job.model
    if wanted.family not in _GPTS:
        yield LaunchGap(
            setting="model.family",
            value=wanted.family,
            reason="Megatron-DeepSpeed's pretrain_gpt.py builds no such model; the "
            "launch has the sizes of a GPT.",
        )
        return
    try:
        found = built_model(read.model, Path())
    except InputError as error:
        yield LaunchGap(setting="model", value=wanted.family, reason=f"{error}.")
        return
    for field in fields(wanted):
        value, has = getattr(wanted, field.name), getattr(found, field.name)
        if value != has and field.name != "family":
            yield _gap(f"model.{field.name}", value, has, _MODEL_REASON)


def _training_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    try:
        table = TrainingTable.model_validate(read.training)
    except ValidationError as error:
        yield LaunchGap(
            setting="training", value=str(read.training), reason=f"{error}."
        )
        return
    found = table.build(PRESETS[PRESET])
    for name in _TRAINING:
        wanted, has = getattr(job.training, name), getattr(found, name)
        if wanted != has:
            setting = f"training.{name}"
            yield _gap(setting, wanted, has, _REASONS.get(setting, _OTHER_REASON))


def _software_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    found = SoftwareTable.model_validate(read.software).build_execution({})
    for name in _EXECUTION:
        wanted, has = getattr(job.workload.execution, name), getattr(found, name)
        if wanted != has:
            setting = f"software.{name}"
            yield _gap(setting, wanted, has, _REASONS.get(setting, _OTHER_REASON))
    modules = tuple(job.workload.software.recompute_modules)
    if modules != tuple(ATTENTION_CORE):
        setting = "software.recompute_modules"
        yield _gap(setting, modules, tuple(ATTENTION_CORE), _REASONS[setting])
