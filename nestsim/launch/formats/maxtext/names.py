"""Options of MaxText that the plan depends on, and what they are called here.

MaxText is on no package index: names and defaults are facts of its repository [1]_. Its
reader [2]_ refuses names that ``base.yml`` does not have, takes values from a YAML file
whose ``base_config`` is another one, then from the command line (typed as ``base.yml``
has them: text, whole number, number, or true and false), and refuses settings of the
model's own file that the command line sets, too.

References
----------
.. [1] AI-Hypercomputer/maxtext, ``src/MaxText/configs/base.yml`` at 003b4169 (2025).
.. [2] The same, ``MaxText/pyconfig.py`` at 0045bf83: ``_HyperParameters``,
   ``set_and_validate_pipeline_config``, ``get_individual_scales``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

FORMAT = "maxtext"
"""Name of the format that the options are of."""

VERSION = "base.yml at 003b4169 (2025)"
"""What the names were taken from."""


@dataclass(frozen=True, slots=True)
class MaxTextOption:
    """One option."""

    ours: str
    """Settings that say the same here."""

    default: Any
    """What ``base.yml`` has."""

    choices: tuple[str, ...] = ()
    """Values that it takes, where these are few texts."""


AXES: Mapping[str, str] = MappingProxyType(
    {
        "data": "plan.data_parallel_size",
        "pipeline": "plan.pipeline_model_parallel_size",
        "fsdp": "plan.data_parallel_size, zero_stage, sharding_group_size",
        "context": "plan.context_parallel_size",
        "tensor": "plan.tensor_model_parallel_size",
        "tensor_sequence": "plan.tensor_model_parallel_size, sequence_parallel",
        "expert": "plan.expert_model_parallel_size",
    }
)
"""Axis of the mesh, outermost first where there is no pipeline -> settings. Every one
has a size among the devices of a slice (``ici_..``) and one among slices (``dcn_..``).
"""

OTHER_AXES = (
    *("fsdp_transpose", "sequence", "context_autoregressive", "tensor_transpose"),
    "autoregressive",
)
"""Axes that no plan has."""

AXIS_OPTIONS: Mapping[str, int] = MappingProxyType(
    {
        **{
            f"{kind}_{axis}_parallelism": 1
            for kind in ("ici", "dcn")
            for axis in (*AXES, *OTHER_AXES)
        },
        "ici_fsdp_parallelism": -1,
        "dcn_data_parallelism": -1,
    }
)
"""Option of an axis -> size by default, -1 for what is left."""

REMAT_TENSORS = (
    *("context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "query_proj", "key_proj"),
    *("value_proj", "qkv_proj", "out_proj", "mla_q", "mla_kv"),
)
"""Results of a block that ``remat_policy: custom`` tells apart."""

MODEL_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "decoder_block": "llama2",
        "global_parameter_scale": 1,
        "base_emb_dim": 2048,
        "base_num_query_heads": 16,
        "base_num_kv_heads": 16,
        "base_mlp_dim": 7168,
        "base_num_decoder_layers": 16,
        "head_dim": 128,
        "vocab_size": 32_000,
        "logits_via_embedding": False,
    }
)
"""Sizes of a model that has no name, as in ``base.yml``."""

OPTIONS: Mapping[str, MaxTextOption] = MappingProxyType(
    {
        "model_name": MaxTextOption("model", "default"),
        "hardware": MaxTextOption(
            "cluster.accelerator", "tpu", ("tpu", "gpu", "gpu_multiprocess", "cpu")
        ),
        "compile_topology": MaxTextOption("cluster.num_devices", ""),
        "compile_topology_num_slices": MaxTextOption("cluster.num_devices", -1),
        "mtp_num_layers": MaxTextOption("model.mtp_num_layers", 0),
        "max_target_length": MaxTextOption("model.sequence_length", 2048),
        "per_device_batch_size": MaxTextOption(
            "training.global_batch_size, plan.micro_batch_size", 12.0
        ),
        "gradient_accumulation_steps": MaxTextOption("plan.num_microbatches", 1),
        "dtype": MaxTextOption(
            "training.precision", "bfloat16", ("bfloat16", "float32", "float16")
        ),
        "weight_dtype": MaxTextOption(
            "training.weights_in_fp32", "float32", ("float32", "bfloat16")
        ),
        "grad_dtype": MaxTextOption(
            "training.gradient_precision", "float32", ("float32", "bfloat16")
        ),
        "quantization": MaxTextOption("training.matmul_precision", ""),
        "opt_type": MaxTextOption(
            "training.optimizer", "adamw", ("adamw", "adam_pax", "sgd", "muon")
        ),
        "attention": MaxTextOption(
            "model.attention, software.attention_kernel",
            "autoselected",
            ("autoselected", "dot_product", "flash", "cudnn_flash_te"),
        ),
        "remat_policy": MaxTextOption("plan.recompute", "full"),
        **{name: MaxTextOption("plan.recompute", "remat") for name in REMAT_TENSORS},
        "decoder_layer_input": MaxTextOption("plan.offload_activations", "device"),
        "optimizer_memory_host_offload": MaxTextOption("plan.offload_optimizer", False),
        "parameter_memory_host_offload": MaxTextOption("plan.offload_weights", False),
        "shard_optimizer_over_data": MaxTextOption("plan.zero_stage", False),
        "context_parallel_strategy": MaxTextOption(
            "plan.cp_comm_type", "all_gather", ("all_gather", "ring")
        ),
        "num_layers_per_pipeline_stage": MaxTextOption(
            "plan.virtual_pipeline_model_parallel_size", 1
        ),
        "num_pipeline_repeats": MaxTextOption(
            "plan.virtual_pipeline_model_parallel_size", -1
        ),
        "pipeline_parallel_layers": MaxTextOption("plan", -1),
        "num_pipeline_microbatches": MaxTextOption("plan.num_microbatches", -1),
        "pipeline_delay_activation_forwarding": MaxTextOption(
            "plan.num_microbatches", False
        ),
        "pipeline_fsdp_ag_once": MaxTextOption("plan.zero_stage", False),
        **{name: MaxTextOption("plan", size) for name, size in AXIS_OPTIONS.items()},
        **{name: MaxTextOption("model", size) for name, size in MODEL_OPTIONS.items()},
    }
)
"""Name -> option."""

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "llama2-7b": "llama2-7b",
        "llama2-13b": "llama2-13b",
        "llama2-70b": "llama2-70b",
        "llama3.1-8b": "llama3-8b",
        "llama3.1-70b": "llama3-70b",
        "llama3.1-405b": "llama3-405b",
        "llama3-8b": "llama3-8b",
        "llama3-70b": "llama3-70b",
        "llama3-405b": "llama3-405b",
        "llama3.3-70b": "llama3-70b",
        "mistral-7b": "mistral-7b",
        "mixtral-8x7b": "mixtral-8x7b",
        "mixtral-8x22b": "mixtral-8x22b",
        "deepseek2-16b": "deepseek-v2-lite",
        "deepseek2-236b": "deepseek-v2",
        "deepseek3-671b": "deepseek-v3",
        "kimi-k2-1t": "kimi-k2",
        "gemma2-2b": "gemma2-2b",
        "gemma2-9b": "gemma2-9b",
        "gemma2-27b": "gemma2-27b",
        "gemma3-4b": "gemma3-4b",
        "gemma3-12b": "gemma3-12b",
        "gemma3-27b": "gemma3-27b",
        "gpt3-175b": "gpt3-175b",
        "gpt-oss-20b": "gpt-oss-20b",
        "gpt-oss-120b": "gpt-oss-120b",
        "qwen3-0.6b": "qwen3-0.6b",
        "qwen3-4b": "qwen3-4b",
        "qwen3-8b": "qwen3-8b",
        "qwen3-14b": "qwen3-14b",
        "qwen3-32b": "qwen3-32b",
        "qwen3-30b-a3b": "qwen3-30b-a3b",
        "qwen3-235b-a22b": "qwen3-235b-a22b",
        "llama4-17b-16e": "llama4-scout",
        "llama4-17b-128e": "llama4-maverick",
    }
)
"""``model_name``, a file of ``configs/models`` -> name in the model library; of names
for one model the first is written."""

IN_PAIRS = "gemma2-"
"""What names of models begin with whose layers are two blocks each in MaxText, one with
windows and one without (``configs/models/gemma2-9b.yml``: 21 of 42)."""


def blocks_of_layer(name: str | None) -> int:
    """Return how many blocks a layer of one of MaxText's models is."""
    return 2 if name is not None and name.startswith(IN_PAIRS) else 1


QUANTIZATIONS: Mapping[str, str] = MappingProxyType(
    {"": "", "int8": "int8", "fp8": "fp8", "fp8_full": "fp8", "nanoo_fp8": "fp8"}
)
"""``quantization`` -> number format of products with weights."""

OPTIMIZERS: Mapping[str, str] = MappingProxyType(
    {"adamw": "adam", "adam_pax": "adam", "sgd": "sgd", "muon": "muon"}
)
"""``opt_type`` -> optimizer."""

DTYPES: Mapping[str, str] = MappingProxyType(
    {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
)
"""Its number formats -> ours."""

CORES_PER_CHIP: Mapping[str, int] = MappingProxyType(
    {"v4": 2, "v5p": 2, "v5e": 1, "v6e": 1}
)
"""Generation of TPU -> what the number in ``compile_topology`` counts of a chip."""
