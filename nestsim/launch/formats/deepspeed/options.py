"""Options of the scripts that DeepSpeed starts, and the settings that they stand for.

Those of Megatron-DeepSpeed (github.com/deepspeedai/Megatron-DeepSpeed, commit f1feb88,
``megatron/arguments.py``; BigScience's fork adds ``--pp-partition-method``,
``--embed-layernorm`` and ``--position-embedding-type``), written and read; those of
trainers of the Hugging Face hub (transformers, ``training_args.py``; DeepSpeedExamples,
``applications/DeepSpeed-Chat``), read. Names have hyphens here; scripts may write
underscores.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Option(NamedTuple):
    """What an option with a value stands for."""

    table: str
    """Table of the scenario: ``"model"``, ``"training"``, ``"plan"``; ``"launch"`` for
    what several settings follow from."""
    setting: str
    """Its name there."""
    kind: type
    """Type of the value."""


class Flag(NamedTuple):
    """What an option without a value stands for."""

    table: str
    """As in `Option`."""
    setting: str
    """As in `Option`."""
    value: object
    """Value of the setting where the option is there."""


VALUES: Mapping[str, Option] = MappingProxyType(
    {
        "num-layers": Option("model", "num_layers", int),
        "hidden-size": Option("model", "hidden_size", int),
        "ffn-hidden-size": Option("model", "ffn_hidden_size", int),
        "num-attention-heads": Option("model", "num_attention_heads", int),
        "num-key-value-heads": Option("model", "num_query_groups", int),
        "kv-channels": Option("model", "kv_channels", int),
        "seq-length": Option("model", "sequence_length", int),
        "max-position-embeddings": Option("model", "max_position_embeddings", int),
        "vocab-size": Option("model", "vocab_size", int),
        "normalization": Option("model", "normalization", str),
        "rotary-percent": Option("model", "rotary_percent", float),
        "hidden-dropout": Option("model", "hidden_dropout", float),
        "attention-dropout": Option("model", "attention_dropout", float),
        "num-experts": Option("model", "num_moe_experts", int),
        "topk": Option("model", "moe_router_topk", int),
        "expert-interval": Option("launch", "expert_interval", int),
        "position-embedding-type": Option("launch", "position_embedding_type", str),
        "micro-batch-size": Option("plan", "micro_batch_size", int),
        "global-batch-size": Option("training", "global_batch_size", int),
        "tensor-model-parallel-size": Option("plan", "tensor_model_parallel_size", int),
        "pipeline-model-parallel-size": Option(
            "plan", "pipeline_model_parallel_size", int
        ),
        "ds-sequence-parallel-size": Option("plan", "context_parallel_size", int),
        "moe-expert-parallel-size": Option("plan", "expert_model_parallel_size", int),
        "optimizer": Option("training", "optimizer", str),
        "zero-stage": Option("launch", "zero_stage", int),
        "checkpoint-num-layers": Option("launch", "checkpoint_num_layers", int),
        "recompute-granularity": Option("launch", "recompute_granularity", str),
        "recompute-method": Option("launch", "recompute_method", str),
        "recompute-num-layers": Option("launch", "recompute_num_layers", int),
        "pp-partition-method": Option("launch", "partition_method", str),
        "deepspeed-config": Option("launch", "config", str),
    }
)
"""Name of an option of Megatron-DeepSpeed with a value -> what it stands for."""

FLAGS: Mapping[str, Flag] = MappingProxyType(
    {
        "swiglu": Flag("model", "gated_linear_unit", True),
        "squared-relu": Flag("model", "activation_func", "squared_relu"),
        "untie-embeddings-and-output-weights": Flag(
            "model", "tie_word_embeddings", False
        ),
        "disable-bias-linear": Flag("model", "add_bias_linear", False),
        "embed-layernorm": Flag("model", "embedding_layernorm", True),
        "use-rotary-position-embeddings": Flag(
            "model", "position_embedding_type", "rope"
        ),
        "no-position-embedding": Flag("launch", "no_position_embedding", True),
        "use-flash-attn-v2": Flag("model", "attention", "flash"),
        "use-flash-attn": Flag("model", "attention", "flash"),
        "use-flash-attn-v1": Flag("model", "attention", "flash"),
        "use-flash-attn-triton": Flag("model", "attention", "flash"),
        "use-flash-attn-builder": Flag("model", "attention", "flash"),
        "sequence-parallel": Flag("plan", "sequence_parallel", True),
        "enable-zbh1-pipeline": Flag("plan", "schedule", "zb-h1"),
        "enable-expert-tensor-parallelism": Flag("launch", "expert_tensor", True),
        "checkpoint-activations": Flag("launch", "checkpoint_activations", True),
        "recompute-activations": Flag("launch", "recompute_granularity", "selective"),
        "checkpoint-in-cpu": Flag("launch", "checkpoint_in_cpu", True),
        "bf16": Flag("training", "precision", "bf16"),
        "fp16": Flag("training", "precision", "fp16"),
        "fp8-hybrid": Flag("training", "matmul_precision", "fp8"),
        "no-pipeline-parallel": Flag("launch", "no_pipeline", True),
        "cpu-optimizer": Flag("launch", "cpu_optimizer", True),
        "deepspeed": Flag("launch", "deepspeed", True),
        "deepspeed-activation-checkpointing": Flag(
            "launch", "deepspeed_checkpointing", True
        ),
        "accumulate-allreduce-grads-in-fp32": Flag(
            "training", "gradient_precision", "fp32"
        ),
    }
)
"""Name of an option of Megatron-DeepSpeed without a value -> what it stands for. Of
several for one setting the first is written."""

TRAINER_VALUES: Mapping[str, Option] = MappingProxyType(
    {
        "per-device-train-batch-size": Option("plan", "micro_batch_size", int),
        "gradient-accumulation-steps": Option("launch", "accumulation", int),
        "max-seq-len": Option("launch", "sequence_length", int),
        "max-seq-length": Option("launch", "sequence_length", int),
        "max-length": Option("launch", "sequence_length", int),
        "model-max-length": Option("launch", "sequence_length", int),
        "cutoff-len": Option("launch", "sequence_length", int),
        "block-size": Option("launch", "sequence_length", int),
        "model-name-or-path": Option("launch", "model", str),
        "zero-stage": Option("launch", "zero_stage", int),
        "deepspeed": Option("launch", "config", str),
        "deepspeed-config": Option("launch", "config", str),
        "gradient-checkpointing": Option("launch", "gradient_checkpointing", bool),
        "bf16": Option("training", "bf16", bool),
        "fp16": Option("training", "fp16", bool),
        "dtype": Option("training", "precision", str),
        "offload": Option("launch", "offload", bool),
    }
)
"""Name of an option of other trainers -> what it stands for. Flags are yes or no, and
may have no value."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "random-ltd": "tokens that layers leave out",
        "use-tutel": "Tutel's experts",
        "mos": "a student and its teacher",
        "kd": "a student and its teacher",
        "memory-centric-tiled-linear": "matrices in tiles",
        "split-transformers": "layers in two parts",
        "standalone-embedding-stage": "a stage of the embedding alone",
        "ds-sequence-parallel-fpdt": "sequences in chunks (FPDT)",
        "encoder-num-layers": "an encoder and a decoder",
        "decoder-num-layers": "an encoder and a decoder",
        "retro-add-retriever": "a retriever",
        "partition-activations": "saved activations shared by tensor-parallel ranks",
        "distribute-checkpointed-activations": "saved activations shared by "
        "tensor-parallel ranks",
        "distribute-saved-activations": "saved activations shared by tensor-parallel "
        "ranks",
        "num-experts-switch": "a switch transformer",
        "apply-residual-connection-post-layernorm": "residuals behind norms",
    }
)
"""Name of an option -> what it is about, that plans here do not have."""

WITHOUT_EFFECT = frozenset(
    {
        *(
            "abort-on-unmet-fused-kernel-constraints",
            "adam-beta1",
            "adam-beta2",
        ),
        *(
            "adam-eps",
            "adlr-autoresume",
            "adlr-autoresume-interval",
        ),
        *(
            "aml-data-download-path",
            "apply-layernorm-1p",
        ),
        *(
            "attention-softmax-in-fp32",
            "barrier-with-l1-time",
            "clip-grad",
        ),
        *(
            "codecarbon-dir",
            "contigious-checkpointing",
            "create-moe-param-group",
        ),
        *(
            "data-cache-path",
            "data-impl",
            "data-parallel-random-init",
            "data-path",
        ),
        *(
            "dataloader-type",
            "ddp-impl",
            "deepscale",
            "deepscale-config",
        ),
        *(
            "deepspeed-mpi",
            "disable-mem-efficient-ln",
        ),
        *(
            "disable-moe-token-dropping",
            "disable-moe-top2-2nd-expert-sampling",
        ),
        *(
            "distributed-backend",
            "distributed-timeout-minutes",
            "ds-fused-adam",
        ),
        *(
            "embedding-weights-in-fp32",
            "end-weight-decay",
            "eod-mask-loss",
        ),
        *(
            "exit-duration-in-mins",
            "exit-interval",
            "exit-signal-handler",
        ),
        *(
            "finetune",
            "force-ds-sequence-parallel",
            "fp16-lm-cross-entropy",
        ),
        *(
            "fp8-amax-compute-algo",
            "fp8-amax-history-len",
            "fp8-interval",
        ),
        *(
            "fp8-margin",
            "hysteresis",
            "inference",
            "init-method-std",
        ),
        *(
            "init-method-xavier-uniform",
            "initial-loss-scale",
            "kill-switch-file",
        ),
        *(
            "kill-switch-path",
            "layernorm-epsilon",
            "lazy-mpu-init",
            "load",
        ),
        *(
            "load-tag",
            "local-rank",
            "log-interval",
            "loss-scale",
        ),
        *(
            "loss-scale-window",
            "make-vocab-size-divisible-by",
            "max-tokens-to-oom",
        ),
        *(
            "merge-file",
            "min-loss-scale",
            "min-lr",
            "mlp-type",
            "mmap-warmup",
        ),
        *(
            "moe-eval-capacity-factor",
            "moe-loss-coeff",
            "moe-min-capacity",
        ),
        *(
            "moe-train-capacity-factor",
            "no-async-tensor-model-parallel-allreduce",
        ),
        *(
            "no-bias-dropout-fusion",
            "no-bias-gelu-fusion",
        ),
        *(
            "no-contiguous-buffers-in-local-ddp",
            "no-gradient-accumulation-fusion",
        ),
        *(
            "no-initialization",
            "no-load-lr-state",
            "no-load-optim",
            "no-load-rng",
        ),
        *(
            "no-log-learnig-rate-to-tensorboard",
            "no-log-loss-scale-to-tensorboard",
        ),
        *(
            "no-masked-softmax-fusion",
            "no-persist-layer-norm",
        ),
        *(
            "no-query-key-layer-scaling",
            "no-save-optim",
            "no-save-rng",
        ),
        *(
            "no-scatter-gather-tensors-in-pipeline",
            "num-workers",
            "onnx-safe",
        ),
        *(
            "openai-gelu",
            "overlap-p2p-communication",
            "override-lr-scheduler",
        ),
        *(
            "override-opt-param-scheduler",
            "pad-vocab-size-to",
            "profile",
        ),
        *(
            "profile-backward",
            "profile-steps",
            "reset-attention-mask",
        ),
        *(
            "reset-position-ids",
            "rotary-position-embeddings-theta",
            "save",
        ),
        *(
            "save-interval",
            "seed",
            "sgd-momentum",
            "skip-train",
        ),
        *(
            "skip-train-iteration-range",
            "split",
            "start-weight-decay",
        ),
        *(
            "sync-tp-duplicated-parameters",
            "synchronize-each-layer",
        ),
        *(
            "tensorboard-dir",
            "test-data-path",
            "test-weighted-split-paths",
        ),
        *(
            "test-weighted-split-paths-path",
            "tokenizer-model",
        ),
        *(
            "tokenizer-name-or-path",
            "tokenizer-type",
            "torch-adam",
        ),
        *(
            "train-data-path",
            "train-idx-path",
            "train-iters",
            "train-samples",
        ),
        *(
            "train-tokens",
            "train-weighted-split-paths",
        ),
        *(
            "train-weighted-split-paths-path",
            "transformer-impl",
        ),
        *(
            "trust-remote-code",
            "universal-checkpoint",
        ),
        *(
            "use-checkpoint-opt-param-scheduler",
            "use-cpu-initialization",
        ),
        *(
            "use-pin-memory",
            "valid-data-path",
            "valid-num-workers",
        ),
        *(
            "valid-weighted-split-paths",
            "valid-weighted-split-paths-path",
        ),
        *(
            "vocab-extra-ids",
            "vocab-file",
            "weight-decay",
        ),
        *(
            "weight-decay-incr-style",
            "zero-allgather-bucket-size",
        ),
        *(
            "zero-contigious-gradients",
            "zero-reduce-bucket-size",
        ),
        *("zero-reduce-scatter",),
    }
)
"""Options of Megatron-DeepSpeed that make no difference to a plan."""

WITHOUT_EFFECT_PREFIXES = ("lr", "log-", "eval-", "tensorboard-", "wandb-", "timing-")
"""Beginnings of the names of more such options."""


def option_of(setting: str) -> str:
    """Return the option of Megatron-DeepSpeed that gives a setting its value."""
    return next(name for name, option in VALUES.items() if option.setting == setting)


def flag_of(setting: str, value: object) -> str | None:
    """Return the option without a value that sets a setting to a value, if any."""
    for name, flag in FLAGS.items():
        if flag.setting == setting and flag.value == value:
            return name
    return None
