"""Options of torchtitan that the plan depends on, and what they are called here.

One table for writing and reading. Versions up to 0.2 read a TOML file into
``torchtitan.config.JobConfig``; 0.3 has no such file any more, but a function of a
registry in Python and a command line (``--module``, ``--config``, then
``--section.option value``). Names are those of 0.2.2; the others stand beside them.

References
----------
.. [1] torchtitan 0.1.0, ``torchtitan/config_manager.py``, and before it 0.0.2.
.. [2] torchtitan 0.2.2, ``torchtitan/config/job_config.py``.
.. [3] torchtitan 0.3.0, ``torchtitan/config/configs.py`` and ``torchtitan/trainer.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

TOML_VERSION = "0.2.2"
"""Version whose TOML is written."""

COMMAND_VERSION = "0.3.0"
"""Version whose command line is written."""

TOML, COMMAND = "toml", "command"
"""The two ways to configure it: up to 0.2, and since 0.3."""

TOML_FORMAT, COMMAND_FORMAT = "torchtitan", "torchtitan-command"
"""What a scenario calls options of either, which come back where they are of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanOption:
    """One option."""

    ours: str
    """Settings that say the same here; empty if the option has no effect on them."""

    default: Any
    """What the framework takes where it is silent."""

    older: tuple[str, ...] = ()
    """Names in earlier versions [1]_."""

    newer: str | None = None
    """Name in 0.3 [3]_, None for the same one, empty if it is gone."""

    since: str = TOML
    """`COMMAND` if 0.3 is the first to have it."""

    choices: tuple[str, ...] = ()
    """Values that it takes, where these are few texts."""


def _parallel(
    name: str, ours: str, default: Any = 1, **more: Any
) -> dict[str, TitanOption]:
    return {f"parallelism.{name}": TitanOption(ours=ours, default=default, **more)}


_BATCHES = "plan.micro_batch_size, plan.num_microbatches"
_SHARDS = "plan.data_parallel_size, plan.zero_stage, plan.sharding_group_size"
_LAYOUT = "plan.pipeline_model_parallel_layout"

OPTIONS: Mapping[str, TitanOption] = MappingProxyType(
    {
        "model.name": TitanOption(ours="model", default="llama3", newer=""),
        "model.flavor": TitanOption(ours="model", default="debugmodel", newer=""),
        "model.converters": TitanOption(
            ours="training.matmul_precision", default=[], newer=""
        ),
        "optimizer.name": TitanOption(
            ours="training.optimizer", default="AdamW", newer=""
        ),
        "training.seq_len": TitanOption(ours="model.sequence_length", default=2048),
        "training.local_batch_size": TitanOption(
            ours=_BATCHES, default=8, older=("training.batch_size",)
        ),
        "training.global_batch_size": TitanOption(
            ours="training.global_batch_size", default=-1
        ),
        "training.dtype": TitanOption(
            ours="training.weights_in_fp32",
            default="float32",
            choices=("bfloat16", "float32"),
        ),
        "training.mixed_precision_param": TitanOption(
            ours="training.precision",
            default="bfloat16",
            choices=("bfloat16", "float32"),
        ),
        "training.mixed_precision_reduce": TitanOption(
            ours="training.gradient_precision", default="float32", choices=("float32",)
        ),
        "training.enable_cpu_offload": TitanOption(
            ours="plan.offload_weights, offload_gradients, offload_optimizer",
            default=False,
        ),
        "training.disable_cuda_graphs": TitanOption(
            ours="software.cuda_graphs", default=False, since=COMMAND
        ),
        **_parallel(
            "data_parallel_replicate_degree",
            _SHARDS,
            older=("training.data_parallel_replicate_degree",),
        ),
        **_parallel(
            "data_parallel_shard_degree",
            _SHARDS,
            -1,
            older=(
                "training.data_parallel_shard_degree",
                "training.data_parallel_degree",
            ),
        ),
        **_parallel(
            "fsdp_reshard_after_forward",
            "plan.zero_stage",
            "default",
            older=("training.fsdp_reshard_after_forward",),
            choices=("default", "always", "never"),
        ),
        **_parallel(
            "tensor_parallel_degree",
            "plan.tensor_model_parallel_size",
            older=("training.tensor_parallel_degree",),
        ),
        **_parallel(
            "enable_sequence_parallel", "plan.sequence_parallel", True, since=COMMAND
        ),
        **_parallel(
            "enable_async_tensor_parallel",
            "software.tp_comm_overlap",
            False,
            older=("experimental.enable_async_tensor_parallel",),
            newer="compile.enable_async_tensor_parallel",
        ),
        **_parallel(
            "expert_parallel_comm_backend",
            "software.moe_token_dispatcher_type",
            "standard",
            newer="",
            choices=("standard", "deepep", "hybridep"),
        ),
        **_parallel(
            "pipeline_parallel_degree",
            "plan.pipeline_model_parallel_size",
            older=("experimental.pipeline_parallel_degree",),
        ),
        **_parallel(
            "pipeline_parallel_schedule",
            "plan.schedule",
            "1F1B",
            older=("experimental.pipeline_parallel_schedule",),
        ),
        **_parallel("pipeline_parallel_schedule_csv", "plan.schedule", ""),
        **_parallel("pipeline_parallel_microbatch_size", _BATCHES),
        **_parallel("pipeline_parallel_layers_per_stage", _LAYOUT, None),
        **_parallel("pipeline_parallel_first_stage_less_layers", _LAYOUT),
        **_parallel("pipeline_parallel_last_stage_less_layers", _LAYOUT),
        **_parallel("module_fqns_per_model_part", _LAYOUT, None),
        **_parallel(
            "pipeline_parallel_split_points",
            _LAYOUT,
            [],
            older=("experimental.pipeline_parallel_split_points",),
            newer="",
        ),
        **_parallel(
            "pipeline_parallel_expert_parallel_overlap",
            "plan.overlap_moe_expert_parallel_comm",
            True,
            newer="",
        ),
        **_parallel(
            "context_parallel_degree",
            "plan.context_parallel_size",
            older=("experimental.context_parallel_degree",),
        ),
        **_parallel(
            "context_parallel_rotate_method",
            "plan.cp_comm_type",
            "allgather",
            older=("experimental.context_parallel_rotate_method",),
            newer="",
            choices=("allgather", "alltoall"),
        ),
        **_parallel("expert_parallel_degree", "plan.expert_model_parallel_size"),
        **_parallel(
            "expert_tensor_parallel_degree",
            "plan.expert_tensor_parallel_size",
            newer="",
        ),
        "activation_checkpoint.mode": TitanOption(
            ours="plan.recompute",
            default="selective",
            newer="",
            choices=("none", "selective", "full", "memory_budget"),
        ),
        "activation_checkpoint.selective_ac_option": TitanOption(
            ours="plan.recompute, plan.recompute_num_layers", default="2", newer=""
        ),
        "compile.enable": TitanOption(
            ours="software.tp_comm_overlap",
            default=False,
            older=("training.compile",),
        ),
        "compile.components": TitanOption(
            ours="software.tp_comm_overlap", default=["model", "loss"]
        ),
        "quantize.linear.float8.enable_fsdp_float8_all_gather": TitanOption(
            ours="training.gather_precision",
            default=False,
            older=("float8.enable_fsdp_float8_all_gather",),
            newer="",
        ),
        "fault_tolerance.enable": TitanOption(
            ours="plan.data_parallel_size", default=False, newer=""
        ),
    }
)
"""Name in 0.2.2 -> option [2]_; ``since=COMMAND`` has its name of 0.3.0."""

SCHEDULE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "1F1B": "1f1b",
        "GPipe": "gpipe",
        "Interleaved1F1B": "interleaved-1f1b",
        "ZBVZeroBubble": "zb-v",
        "DualPipeV": "dualpipe-v",
    }
)
"""Schedule of ``torch.distributed.pipelining`` (torch 2.13, ``schedules.py``,
``get_schedule_class``) -> name here."""

OTHER_SCHEDULES = ("LoopedBFS", "InterleavedZeroBubble")
"""Schedules that it has and we have not."""

CONVERTERS: Mapping[str, str] = MappingProxyType(
    {
        "quantize.linear.float8": "fp8",
        "quantize.dense.float8": "fp8",
        "float8": "fp8",
        "quantize.linear.mx": "mxfp8",
        "quantize.dense.mx": "mxfp8",
        "mx": "mxfp8",
    }
)
"""Entry of ``model.converters``, the newer name of each first -> number format."""

GROUPED_CONVERTERS = (
    *("quantize.grouped_mm.float8", "quantize.grouped_mm.mx"),
    *("quantize.moe.float8", "quantize.moe.mx"),
)
"""Converters of the experts' products, which go with those of the others."""

DTYPES: Mapping[str, str] = MappingProxyType({"bfloat16": "bf16", "float32": "fp32"})
"""Its number formats -> ours."""


def toml_names() -> dict[str, str]:
    """Return the name in 0.2.2 of every name that a TOML file may have."""
    return {
        written: name
        for name, option in OPTIONS.items()
        if option.since == TOML
        for written in (name, *option.older)
    }


def command_names() -> dict[str, str]:
    """Return the name in 0.2.2 of every name that the command line of 0.3 has."""
    return {
        name if option.newer is None else option.newer: name
        for name, option in OPTIONS.items()
        if option.newer != ""
    }
