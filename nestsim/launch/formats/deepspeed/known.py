"""Keys of DeepSpeed's JSON that no setting stands for.

Facts of DeepSpeed 0.19.8, as in `config`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

ZERO_WITHOUT_EFFECT = frozenset(
    {
        *("contiguous_gradients", "reduce_scatter", "reduce_bucket_size"),
        *("allgather_partitions", "allgather_bucket_size", "sub_group_size"),
        *("use_multi_rank_bucket_allreduce", "load_from_fp32_weights"),
        *("elastic_checkpoint", "round_robin_gradients", "ignore_unused_parameters"),
        *("legacy_stage1", "parameter_alignment", "compute_grad_norm", "leaf_module"),
        *("cpu_offload_use_pin_memory", "memory_efficient_linear"),
        *("pipeline_loading_checkpoint", "override_module_apply"),
        *("log_trace_cache_warnings", "enable_sanity_checks"),
        *("save_muon_momentum_buffer_in_memory", "mics_hierarchical_params_gather"),
        *("stage3_param_persistence_threshold", "stage3_max_live_parameters"),
        *("stage3_model_persistence_threshold", "stage3_max_reuse_distance"),
        *("stage3_gather_16bit_weights_on_model_save",),
        *("stage3_gather_fp16_weights_on_model_save",),
        *("stage3_module_granularity_threshold",),
        *("stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential"),
        *("zero_quantized_nontrainable_weights", "max_live_parameters"),
        *("max_reuse_distance", "prefetch_bucket_size", "param_persistence_threshold"),
    }
)
"""Keys of ``zero_optimization`` that make no difference to a plan: sizes of buckets,
thresholds, checkpoints."""

WITHOUT_EFFECT = frozenset(
    {
        *("steps_per_print", "wall_clock_breakdown", "scheduler", "dump_state"),
        *("gradient_clipping", "prescale_gradients", "gradient_predivide_factor"),
        *("gradient_allreduce_op", "zero_allow_untested_optimizer", "checkpoint"),
        *("zero_force_ds_cpu_optimizer", "tensorboard", "wandb", "csv_monitor"),
        *("comet", "comms_logger", "flops_profiler", "aio", "memory_breakdown"),
        *("data_efficiency", "curriculum_learning", "autotuning", "elasticity"),
        *("disable_allgather", "disable_python_gc", "dataloader_drop_last"),
        *("log_level", "timers", "monitor_config", "nebula", "compile", "datastates"),
        *("managed_gradient_accumulation", "vocabulary_size", "amp", "comment"),
        *("seq_parallel_communication_data_type", "use_data_before_expert_parallel"),
        *("sparse_gradients", "hybrid_engine"),
    }
)
"""Keys that make no difference to a plan."""

CHANGES = {
    "compression_training": "compressed training",
    "progressive_layer_drop": "layers that are dropped",
    "sparse_attention": "sparse attention",
    "weight_quantization": "quantised weights",
    "quantize_training": "quantised training",
}
"""Keys that change the work of a step in a way that plans here do not have."""

FINER = frozenset({"optimizer.type", "zero_optimization.stage3_prefetch_bucket_size"})
"""Keys that say more than the settings that they are read into."""

_BUCKETS = "Buckets are as large as by default."
_KERNELS = "Kernels are those of PyTorch without a compiler."
_LIVE = "ZeRO-3 keeps as many gathered weights as by default."
_REDUCED = "Gradients are reduced as by default."
_SAMPLES = "Sequences and batches are full from the beginning."

ASSUMED: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "amp.enabled": (False, "Precision is what bf16 and fp16 say."),
        "compile.enabled": (False, _KERNELS),
        "compile.deepcompile": (False, _KERNELS),
        "elasticity.enabled": (False, _SAMPLES),
        "curriculum_learning.enabled": (False, _SAMPLES),
        "data_efficiency.enabled": (False, _SAMPLES),
        "hybrid_engine.enabled": (False, "All passes are those of training."),
        "flops_profiler.enabled": (False, "Nothing is measured beside the step."),
        "comms_logger.enabled": (False, "Nothing is measured beside the step."),
        "wall_clock_breakdown": (False, "Nothing is measured beside the step."),
        "sparse_gradients": (False, _REDUCED),
        "disable_allgather": (False, "Weights are gathered, not broadcast."),
        "seq_parallel_communication_data_type": (
            "fp32",
            "Gradients travel in one format.",
        ),
        "use_data_before_expert_parallel": (
            False,
            "Experts are spread over neighbours among replicas.",
        ),
        **{
            f"zero_optimization.{name}": value
            for name, value in {
                "contiguous_gradients": (True, _BUCKETS),
                "reduce_bucket_size": (500_000_000, _BUCKETS),
                "allgather_bucket_size": (500_000_000, _BUCKETS),
                "sub_group_size": (1_000_000_000, _BUCKETS),
                "reduce_scatter": (True, _REDUCED),
                "allgather_partitions": (True, "Weights are gathered, not broadcast."),
                "round_robin_gradients": (False, _REDUCED),
                "use_multi_rank_bucket_allreduce": (True, _REDUCED),
                "memory_efficient_linear": (
                    True,
                    "Linear layers keep their inputs alone.",
                ),
                "mics_hierarchical_params_gather": (
                    False,
                    "Shards are gathered in one ring.",
                ),
                "zero_quantized_nontrainable_weights": (
                    False,
                    "Weights are in 16 bits.",
                ),
                "stage3_param_persistence_threshold": (100_000, _LIVE),
                "stage3_model_persistence_threshold": (2**63 - 1, _LIVE),
                "stage3_max_live_parameters": (1_000_000_000, _LIVE),
                "stage3_max_reuse_distance": (1_000_000_000, _LIVE),
                "prefetch_bucket_size": (50_000_000, _LIVE),
                "param_persistence_threshold": (100_000, _LIVE),
                "max_live_parameters": (1_000_000_000, _LIVE),
                "max_reuse_distance": (1_000_000_000, _LIVE),
                "stage3_module_granularity_threshold": (0, _LIVE),
                "stage3_use_all_reduce_for_fetch_params": (False, _LIVE),
                "stage3_allgather_sequential": (False, _LIVE),
            }.items()
        },
    }
)
"""Keys that make some difference that is not modelled -> DeepSpeed's default, and what
is taken instead of others."""
