"""Options of MaxText that no setting stands for, by name.

Facts of ``base.yml``, as in `names`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nestsim.launch.formats.maxtext.names import REMAT_TENSORS

FINER = frozenset(
    {
        *("model_name", "quantization", "opt_type", "attention", "hardware"),
        *("remat_policy", "decoder_layer_input", *REMAT_TENSORS),
    }
)
"""Options that say more than the settings that they are read into."""

_IGNORED = """
run_name override_model_config debug base_config normalization_layer_epsilon
load_parameters_path lora_input_adapters_path load_full_state_path enable_checkpointing
save_checkpoint_on_completion async_checkpointing checkpoint_period
max_num_checkpoints_to_keep force_unroll enable_continuous_checkpointing
enable_single_replica_ckpt_restoring checkpoint_storage_target_data_file_size_bytes
checkpoint_storage_use_ocdbt checkpoint_storage_use_zarr3
checkpoint_storage_concurrent_gb enable_orbax_v1 checkpoint_conversion_fn
source_checkpoint_layout reuse_example_batch metrics_file gcs_metrics save_config_to_gcs
constant_bound_config replicate_quant_scale quant_cfg_path checkpoint_is_quantized
save_quantized_params_path quantization_local_shard_count
weight_quantization_calibration_method act_quantization_calibration_method
bwd_quantization_calibration_method normalize_embedding_logits mtp_loss_scaling_factor
mtp_eval_target_module load_balance_loss_weight use_random_routing norm_topk_prob
param_scan_axis record_internal_nn_metrics base_output_directory jax_cache_dir
sharding_tolerance num_slices tokenizer_path tokenizer_type use_chat_template
chat_template_path tokenize_train_data tokenize_eval_data add_bos add_eos use_truncation
expansion_factor_real_data eval_per_device_batch_size max_corpus_chars
train_data_columns eval_data_columns num_epoch max_segments_per_seq dataset_type
dataset_path dataset_name eval_dataset_name train_split eval_split hf_path hf_name
hf_data_dir hf_train_files hf_eval_split hf_eval_files hf_access_token grain_train_files
grain_eval_files grain_file_type grain_worker_count colocated_python_data_input steps
log_period jax_distributed_initialization_timeout jax_debug_log_modules
skip_jax_distributed_system learning_rate lr_schedule_type learning_rate_final_fraction
warmup_steps_fraction learning_rate_schedule_steps cosine_learning_rate_final_fraction
max_prefill_predict_length prompt profiler upload_all_profiler_results
skip_first_n_steps_for_profiler profiler_steps hide_profiler_step_metric profile_cleanly
profile_periodically_period dump_hlo dump_step dump_hlo_local_dir dump_hlo_gcs_dir
dump_hlo_module_name dump_hlo_xla_flags dump_hlo_upload_all enable_data_shuffling
data_shuffle_seed init_weights_seed gradient_clipping_threshold adam_b1 adam_b2 adam_eps
adam_eps_root adam_weight_decay muon_beta muon_weight_decay muon_consistent_rms
collect_stack_trace stack_trace_to_cloud stack_trace_interval_seconds rope_type
rope_linear_scaling_factor rope_use_scale rope_min_timescale rope_max_timescale
compiled_trainstep_file eval_interval eval_steps target_eval_loss
enable_goodput_recording monitor_goodput goodput_upload_interval_seconds
enable_tensorboard use_vertex_tensorboard vertex_tensorboard_project
vertex_tensorboard_region max_checkify log_config debug_sharding
enable_checkpoint_cloud_logger enable_single_controller shardy
enable_padding_causal_mask managed_mldiagnostics quantize_kvcache kv_quant_axis
kv_quant_dtype
"""

WITHOUT_EFFECT = frozenset(_IGNORED.split())
"""Options of ``base.yml`` that make no difference to the plan; of those that do only
for inference, for models with images or for fine-tuning, none."""

BUILT = frozenset({"base_config"})
"""What is said by the files that a file builds on."""

_ATTENTION = "Kernels of attention are those of the preset."
_COMPILED = "Blocks are compiled once."
_GROUPED = "Products of experts are grouped."
_PRODUCTS = "Products run at the speed of their formats."
_REMAT = "Loops over blocks keep what the policy of recompute says."
_SHARDS = "Shards are those of the axes."
_TORUS = "Axes are laid out as by default."

_BLOCKS = """
sa_block_q sa_block_kv sa_block_kv_compute sa_block_q_dkv sa_block_kv_dkv
sa_block_kv_dkv_compute sa_block_q_dq sa_block_kv_dq
"""
_LAYOUTS = "sa_q_layout sa_k_layout sa_v_layout"

ASSUMED: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "megablox": (True, _GROUPED),
        "sparse_matmul": (True, _GROUPED),
        "use_tokamax_gmm": (False, _GROUPED),
        "capacity_factor": (-1.0, "No token is dropped."),
        "fused_qkv": (False, "Queries, keys and values come of one product."),
        "fused_mlp": (False, "Gate and first product of a block are one."),
        "num_vocab_tiling": (1, "Logits of all tokens are there at once."),
        "mu_dtype": ("", "The optimizer's states are in fp32."),
        "packing": (True, "Sequences are full."),
        "context_parallel_load_balance": (
            True,
            "Ranks that share a sequence have equal work.",
        ),
        "enable_dropout": (True, "Dropout is the model's."),
        "scan_layers": (True, _COMPILED),
        "matmul_precision": ("default", _PRODUCTS),
        "logits_dot_in_fp32": (False, _PRODUCTS),
        "activations_in_float32": (False, "Activations are kept as dtype has them."),
        "cast_logits_to_fp32": (True, "Logits are cast to fp32."),
        "float32_qk_product": (False, _ATTENTION),
        "float32_logits": (False, _ATTENTION),
        "float32_weight_sum": (True, "Results of experts are added up in fp32."),
        "use_custom_sort_vjp": (
            True,
            "Tokens are put in order by kernels of the preset.",
        ),
        "scan_pipeline_iterations": (True, _COMPILED),
        "scan_layers_per_stage": (False, _COMPILED),
        "set_remat_policy_on_pipeline_iterations": (True, _REMAT),
        "set_remat_policy_on_layers_per_stage": (False, _REMAT),
        "override_logical_axis_rules": (False, _SHARDS),
        "custom_mesh": ("", _SHARDS),
        "shard_mode": ("auto", _SHARDS),
        "allow_split_physical_axes": (False, _TORUS),
        "optimize_mesh_for_tpu_v6e": (False, _TORUS),
        "use_iota_embed": (False, "The embedding is looked up."),
        "use_qwix_quantization": (False, "Scales of products are those of the preset."),
        "sa_use_fused_bwd_kernel": (False, _ATTENTION),
        "use_tokamax_splash": (False, _ATTENTION),
        "use_jax_splash": (False, _ATTENTION),
        **dict.fromkeys(_BLOCKS.split(), (512, _ATTENTION)),
        **dict.fromkeys(_LAYOUTS.split(), ("HEAD_DIM_MINOR", _ATTENTION)),
    }
)
"""Options that make some difference that is not modelled -> what ``base.yml`` has, and
what is taken instead of others."""
