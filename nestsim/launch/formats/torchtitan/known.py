"""Options of torchtitan that no setting stands for, by name.

References
----------
.. [1] torchtitan 0.2.2, ``torchtitan/config/job_config.py``; 0.3.0,
   ``torchtitan/config/configs.py`` and ``torchtitan/trainer.py``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_TOML = """
activation_checkpoint.debug activation_checkpoint.determinism_check
activation_checkpoint.early_stop activation_checkpoint.memory_budget
activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns
activation_checkpoint.preserve_rng_state
activation_checkpoint.visualize_memory_budget_pareto checkpoint.async_mode
checkpoint.create_seed_checkpoint checkpoint.enable
checkpoint.enable_first_step_checkpoint checkpoint.enable_ft_dataloader_checkpoints
checkpoint.exclude_from_loading checkpoint.export_dtype checkpoint.folder
checkpoint.initial_load_in_hf checkpoint.initial_load_in_hf_quantized
checkpoint.initial_load_model_only checkpoint.initial_load_path checkpoint.interval
checkpoint.keep_latest_k checkpoint.last_save_in_hf checkpoint.last_save_model_only
checkpoint.load_only checkpoint.load_step comm.init_timeout_seconds comm.mode
comm.save_traces_file_prefix comm.save_traces_folder comm.trace_buf_size
comm.train_timeout_seconds compile.backend debug.deterministic
debug.deterministic_warn_only debug.moe_force_load_balance debug.seed
experimental.custom_args_module experimental.custom_import fault_tolerance.group_size
fault_tolerance.min_replica_size fault_tolerance.process_group
fault_tolerance.process_group_timeout_ms fault_tolerance.replica_id
fault_tolerance.semi_sync_method job.config_file job.custom_config_module
job.description job.dump_folder job.print_config job.save_config_file
lr_scheduler.decay_ratio lr_scheduler.decay_type lr_scheduler.min_lr_factor
lr_scheduler.total_steps lr_scheduler.warmup_steps memory_estimation.disable_fake_mode
memory_estimation.enable metrics.disable_color_printing metrics.enable_tensorboard
metrics.enable_wandb metrics.log_freq metrics.save_for_all_ranks metrics.save_tb_folder
model.hf_assets_path model.print_after_conversion model.tokenizer_path optimizer.beta1
optimizer.beta2 optimizer.early_step_in_backward optimizer.eps optimizer.implementation
optimizer.lr optimizer.weight_decay parallelism.context_parallel_load_balancer
parallelism.disable_loss_parallel profiling.enable_memory_snapshot
profiling.enable_profiling profiling.profile_freq profiling.profiler_active
profiling.profiler_warmup profiling.save_memory_snapshot_folder
profiling.save_traces_folder quantize.grouped_mm.float8.fqns quantize.grouped_mm.mx.fqns
quantize.grouped_mm.mx.recipe_name quantize.linear.float8.emulate
quantize.linear.float8.filter_fqns
quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp
quantize.linear.float8.recipe_name quantize.linear.mx.filter_fqns
quantize.linear.mx.mxfp8_dim1_cast_kernel_choice quantize.linear.mx.recipe_name
training.dataloader.num_workers training.dataloader.persistent_workers
training.dataloader.pin_memory training.dataloader.prefetch_factor training.dataset
training.dataset_path training.gc_debug training.gc_freq training.max_norm
training.steps validation.dataloader.num_workers
validation.dataloader.persistent_workers validation.dataloader.pin_memory
validation.dataloader.prefetch_factor validation.dataset validation.dataset_path
validation.enable validation.freq validation.local_batch_size validation.seq_len
validation.steps
"""

TOML_NAMES = frozenset(_TOML.split())
"""Options of 0.2.2 that no plan depends on; it refuses others [1]_."""

WITHOUT_EFFECT: Mapping[str, frozenset[str] | None] = MappingProxyType(
    {
        "training": frozenset(
            {
                *("dataset", "dataset_path", "dataloader", "max_norm", "steps"),
                *("gc_freq", "gc_debug", "seed", "deterministic", "warmup_steps"),
                *("deterministic_warn_only", "debug_moe_force_load_balance"),
            }
        ),
        "model": frozenset(
            {
                *("hf_assets_path", "tokenizer_path", "print_after_conversion"),
                "norm_type",
            }
        ),
        "optimizer": frozenset(
            {
                *("lr", "beta1", "beta2", "eps", "weight_decay", "implementation"),
                *("early_step_in_backward", "fused", "param_groups"),
            }
        ),
        "parallelism": frozenset(
            {
                *("disable_loss_parallel", "enable_compiled_autograd"),
                *("context_parallel_load_balancer", "context_parallel_ptrr_mask_key"),
                *("spmd_backend", "enable_fsdp_symm_mem"),
            }
        ),
        "activation_checkpoint": frozenset(
            {
                *("per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop"),
                *("preserve_rng_state", "determinism_check", "debug"),
                *("visualize_memory_budget_pareto", "memory_budget"),
                "force_recompute_mm_shapes_by_fqns",
            }
        ),
        "compile": frozenset({"backend"}),
        "experimental": frozenset(
            {"custom_import", "custom_args_module", "custom_model_path"}
        ),
        **dict.fromkeys(
            (
                *("job", "profiling", "profiler", "metrics", "lr_scheduler", "comm"),
                *("checkpoint", "validation", "validator", "debug", "dataloader"),
                *("memory_estimation", "fault_tolerance", "quantize", "float8", "mx"),
                *("tokenizer", "override", "loss", "hf_assets_path", "dump_folder"),
            ),
        ),
    }
)
"""Section -> options that make no difference to the plan; None for all that `OPTIONS`
does not have."""

_OF_ALL = "All products with weights are in the narrow format."
_SCALES = "Scales of products in 8 bits are those of the preset."
_FUSED = "The optimizer's kernels are fused."
_EAGER = "Kernels are those of PyTorch without torch.compile."
_SAVED = "Every second product of a block is saved."
_PYTHON = "Python of your own changes nothing of a step."
_FASTEST = "Kernels are the fastest, whether they are deterministic or not."

ASSUMED: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "parallelism.disable_loss_parallel": (
            False,
            "Logits of the loss are split over tensor-parallel ranks.",
        ),
        "parallelism.context_parallel_load_balancer": (
            "headtail",
            "Ranks that share a sequence have equal work.",
        ),
        "parallelism.enable_fsdp_symm_mem": (False, "Collectives copy what they send."),
        "parallelism.enable_compiled_autograd": (False, _EAGER),
        "parallelism.spmd_backend": ("spmd_types", "Tensors are split as by default."),
        "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns": (
            ["moe.router.gate"],
            _SAVED,
        ),
        "activation_checkpoint.force_recompute_mm_shapes_by_fqns": (
            ["moe.router.gate"],
            _SAVED,
        ),
        "activation_checkpoint.early_stop": (
            False,
            "A block is computed again to its end.",
        ),
        "optimizer.implementation": ("fused", _FUSED),
        "optimizer.fused": (True, _FUSED),
        "optimizer.early_step_in_backward": (
            False,
            "The optimizer steps behind the backward pass.",
        ),
        "training.deterministic": (False, _FASTEST),
        "debug.deterministic": (False, _FASTEST),
        "debug.batch_invariant": (False, _FASTEST),
        "debug.detect_anomaly": (False, _FASTEST),
        "comm.mode": ("default", "Ranks send over NCCL."),
        "override.imports": ([], _PYTHON),
        "job.custom_config_module": ("", _PYTHON),
        "experimental.custom_import": ("", _PYTHON),
        "experimental.custom_args_module": ("", _PYTHON),
        "experimental.custom_model_path": ("", _PYTHON),
        "float8.recipe_name": ("tensorwise", _SCALES),
        "float8.filter_fqns": ([], _OF_ALL),
        "mx.recipe_name": ("mxfp8_cublas", _SCALES),
        "mx.filter_fqns": (["output"], _OF_ALL),
        "quantize.linear.float8.recipe_name": ("tensorwise", _SCALES),
        "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp": (
            False,
            _SCALES,
        ),
        "quantize.linear.float8.filter_fqns": ([], _OF_ALL),
        "quantize.linear.float8.emulate": (False, "Products are in 8 bits for real."),
        "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice": ("triton", _SCALES),
        "quantize.linear.mx.recipe_name": ("mxfp8_cublas", _SCALES),
        "quantize.linear.mx.filter_fqns": (["output"], _OF_ALL),
        "quantize.grouped_mm.float8.fqns": ([], _OF_ALL),
        "quantize.grouped_mm.mx.fqns": ([], _OF_ALL),
    }
)
"""Options that make some difference that is not modelled -> the value that makes none,
and what is taken instead of others."""

OF_CONVERTERS = ("quantize.", "float8.", "mx.")
"""Beginnings of options without effect where nothing is converted."""
