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

_IGNORED = """
run_name override_model_config override_logical_axis_rules debug base_config
normalization_layer_epsilon load_parameters_path lora_input_adapters_path
load_full_state_path enable_checkpointing save_checkpoint_on_completion
async_checkpointing checkpoint_period max_num_checkpoints_to_keep force_unroll
enable_continuous_checkpointing enable_single_replica_ckpt_restoring
checkpoint_storage_target_data_file_size_bytes checkpoint_storage_use_ocdbt
checkpoint_storage_use_zarr3 checkpoint_storage_concurrent_gb enable_orbax_v1
checkpoint_conversion_fn source_checkpoint_layout reuse_example_batch metrics_file
gcs_metrics save_config_to_gcs matmul_precision activations_in_float32
constant_bound_config replicate_quant_scale quant_cfg_path checkpoint_is_quantized
save_quantized_params_path use_qwix_quantization quantization_local_shard_count
weight_quantization_calibration_method act_quantization_calibration_method
bwd_quantization_calibration_method normalize_embedding_logits logits_dot_in_fp32
cast_logits_to_fp32 float32_qk_product float32_logits float32_weight_sum
mtp_loss_scaling_factor mtp_eval_target_module load_balance_loss_weight
use_random_routing use_custom_sort_vjp norm_topk_prob scan_pipeline_iterations
scan_layers_per_stage set_remat_policy_on_pipeline_iterations
set_remat_policy_on_layers_per_stage param_scan_axis record_internal_nn_metrics
base_output_directory jax_cache_dir shard_mode sharding_tolerance num_slices
tokenizer_path tokenizer_type use_chat_template chat_template_path tokenize_train_data
tokenize_eval_data add_bos add_eos use_truncation expansion_factor_real_data
eval_per_device_batch_size max_corpus_chars train_data_columns eval_data_columns
num_epoch max_segments_per_seq dataset_type dataset_path dataset_name
eval_dataset_name train_split eval_split hf_path hf_name hf_data_dir hf_train_files
hf_eval_split hf_eval_files hf_access_token grain_train_files grain_eval_files
grain_file_type grain_worker_count colocated_python_data_input steps log_period
jax_distributed_initialization_timeout jax_debug_log_modules
skip_jax_distributed_system learning_rate lr_schedule_type
learning_rate_final_fraction warmup_steps_fraction learning_rate_schedule_steps
cosine_learning_rate_final_fraction max_prefill_predict_length prompt profiler
upload_all_profiler_results skip_first_n_steps_for_profiler profiler_steps
hide_profiler_step_metric profile_cleanly profile_periodically_period dump_hlo
dump_step dump_hlo_local_dir dump_hlo_gcs_dir dump_hlo_module_name dump_hlo_xla_flags
dump_hlo_upload_all enable_data_shuffling data_shuffle_seed init_weights_seed
gradient_clipping_threshold adam_b1 adam_b2 adam_eps adam_eps_root adam_weight_decay
muon_beta muon_weight_decay muon_consistent_rms collect_stack_trace
stack_trace_to_cloud stack_trace_interval_seconds use_iota_embed rope_type
rope_linear_scaling_factor rope_use_scale rope_min_timescale rope_max_timescale
compiled_trainstep_file eval_interval eval_steps target_eval_loss
enable_goodput_recording monitor_goodput goodput_upload_interval_seconds
enable_tensorboard use_vertex_tensorboard vertex_tensorboard_project
vertex_tensorboard_region max_checkify log_config debug_sharding
enable_checkpoint_cloud_logger enable_single_controller custom_mesh
allow_split_physical_axes optimize_mesh_for_tpu_v6e shardy sa_block_q sa_block_kv
sa_block_kv_compute sa_block_q_dkv sa_block_kv_dkv sa_block_kv_dkv_compute
sa_block_q_dq sa_block_kv_dq sa_use_fused_bwd_kernel sa_q_layout sa_k_layout
sa_v_layout enable_padding_causal_mask managed_mldiagnostics use_tokamax_splash
use_jax_splash
"""

WITHOUT_EFFECT = frozenset(_IGNORED.split())
"""Options of ``base.yml`` that make no difference to the plan; of those that do only
for inference, for models with images or for fine-tuning, none [1]_."""

ASSUMED: Mapping[str, str] = MappingProxyType(
    {
        "megablox": "Products of experts are grouped.",
        "sparse_matmul": "Products of experts are grouped.",
        "use_tokamax_gmm": "Products of experts are grouped.",
        "capacity_factor": "No token is dropped.",
        "fused_qkv": "Queries, keys and values come of one product.",
        "fused_mlp": "Gate and first product of a block are one.",
        "num_vocab_tiling": "Logits of all tokens are there at once.",
        "mu_dtype": "The optimizer's states are in fp32.",
        "packing": "Sequences are full.",
        "context_parallel_load_balance": "Ranks that share a sequence have equal work.",
        "enable_dropout": "Dropout is the model's.",
        "scan_layers": "Blocks are compiled once.",
    }
)
"""Options that make some difference that is not modelled -> what is taken instead."""
