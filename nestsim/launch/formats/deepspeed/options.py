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


class TrainerOption(NamedTuple):
    """What an option with a value stands for."""

    table: str
    """Table of the scenario: ``"model"``, ``"training"``, ``"plan"``; ``"launch"`` for
    what several settings follow from."""
    setting: str
    """Its name there."""
    kind: type
    """Type of the value."""


class TrainerFlag(NamedTuple):
    """What an option without a value stands for."""

    table: str
    """As in `TrainerOption`."""
    setting: str
    """As in `TrainerOption`."""
    value: object
    """Value of the setting where the option is there."""


VALUES: Mapping[str, TrainerOption] = MappingProxyType(
    {
        "num-layers": TrainerOption("model", "num_layers", int),
        "hidden-size": TrainerOption("model", "hidden_size", int),
        "ffn-hidden-size": TrainerOption("model", "ffn_hidden_size", int),
        "num-attention-heads": TrainerOption("model", "num_attention_heads", int),
        "num-key-value-heads": TrainerOption("model", "num_query_groups", int),
        "kv-channels": TrainerOption("model", "kv_channels", int),
        "seq-length": TrainerOption("model", "sequence_length", int),
        "max-position-embeddings": TrainerOption(
            "model", "max_position_embeddings", int
        ),
        "vocab-size": TrainerOption("model", "vocab_size", int),
        "normalization": TrainerOption("model", "normalization", str),
        "rotary-percent": TrainerOption("model", "rotary_percent", float),
        "hidden-dropout": TrainerOption("model", "hidden_dropout", float),
        "attention-dropout": TrainerOption("model", "attention_dropout", float),
        "num-experts": TrainerOption("model", "num_moe_experts", int),
        "topk": TrainerOption("model", "moe_router_topk", int),
        "expert-interval": TrainerOption("launch", "expert_interval", int),
        "position-embedding-type": TrainerOption(
            "launch", "position_embedding_type", str
        ),
        "micro-batch-size": TrainerOption("plan", "micro_batch_size", int),
        "global-batch-size": TrainerOption("training", "global_batch_size", int),
        "tensor-model-parallel-size": TrainerOption(
            "plan", "tensor_model_parallel_size", int
        ),
        "pipeline-model-parallel-size": TrainerOption(
            "plan", "pipeline_model_parallel_size", int
        ),
        "ds-sequence-parallel-size": TrainerOption(
            "plan", "context_parallel_size", int
        ),
        "moe-expert-parallel-size": TrainerOption(
            "plan", "expert_model_parallel_size", int
        ),
        "optimizer": TrainerOption("training", "optimizer", str),
        "zero-stage": TrainerOption("launch", "zero_stage", int),
        "checkpoint-num-layers": TrainerOption("launch", "checkpoint_num_layers", int),
        "recompute-granularity": TrainerOption("launch", "recompute_granularity", str),
        "recompute-method": TrainerOption("launch", "recompute_method", str),
        "recompute-num-layers": TrainerOption("launch", "recompute_num_layers", int),
        "pp-partition-method": TrainerOption("launch", "partition_method", str),
        "deepspeed-config": TrainerOption("launch", "config", str),
    }
)
"""Name of an option of Megatron-DeepSpeed with a value -> what it stands for."""

FLAGS: Mapping[str, TrainerFlag] = MappingProxyType(
    {
        "swiglu": TrainerFlag("model", "gated_linear_unit", True),
        "squared-relu": TrainerFlag("model", "activation_func", "squared_relu"),
        "untie-embeddings-and-output-weights": TrainerFlag(
            "model", "tie_word_embeddings", False
        ),
        "disable-bias-linear": TrainerFlag("model", "add_bias_linear", False),
        "embed-layernorm": TrainerFlag("model", "embedding_layernorm", True),
        "use-rotary-position-embeddings": TrainerFlag(
            "model", "position_embedding_type", "rope"
        ),
        "no-position-embedding": TrainerFlag("launch", "no_position_embedding", True),
        "use-flash-attn-v2": TrainerFlag("model", "attention", "flash"),
        "use-flash-attn": TrainerFlag("model", "attention", "flash"),
        "use-flash-attn-v1": TrainerFlag("model", "attention", "flash"),
        "use-flash-attn-triton": TrainerFlag("model", "attention", "flash"),
        "use-flash-attn-builder": TrainerFlag("model", "attention", "flash"),
        "sequence-parallel": TrainerFlag("plan", "sequence_parallel", True),
        "enable-zbh1-pipeline": TrainerFlag("plan", "schedule", "zb-h1"),
        "enable-expert-tensor-parallelism": TrainerFlag(
            "launch", "expert_tensor", True
        ),
        "checkpoint-activations": TrainerFlag("launch", "checkpoint_activations", True),
        "recompute-activations": TrainerFlag(
            "launch", "recompute_granularity", "selective"
        ),
        "checkpoint-in-cpu": TrainerFlag("launch", "checkpoint_in_cpu", True),
        "bf16": TrainerFlag("training", "precision", "bf16"),
        "fp16": TrainerFlag("training", "precision", "fp16"),
        "fp8-hybrid": TrainerFlag("training", "matmul_precision", "fp8"),
        "no-pipeline-parallel": TrainerFlag("launch", "no_pipeline", True),
        "cpu-optimizer": TrainerFlag("launch", "cpu_optimizer", True),
        "deepspeed": TrainerFlag("launch", "deepspeed", True),
        "deepspeed-activation-checkpointing": TrainerFlag(
            "launch", "deepspeed_checkpointing", True
        ),
        "accumulate-allreduce-grads-in-fp32": TrainerFlag(
            "training", "gradient_precision", "fp32"
        ),
    }
)
"""Name of an option of Megatron-DeepSpeed without a value -> what it stands for. Of
several for one setting the first is written."""

TRAINER_VALUES: Mapping[str, TrainerOption] = MappingProxyType(
    {
        "per-device-train-batch-size": TrainerOption("plan", "micro_batch_size", int),
        "gradient-accumulation-steps": TrainerOption("launch", "accumulation", int),
        "max-seq-len": TrainerOption("launch", "sequence_length", int),
        "max-seq-length": TrainerOption("launch", "sequence_length", int),
        "max-length": TrainerOption("launch", "sequence_length", int),
        "model-max-length": TrainerOption("launch", "sequence_length", int),
        "cutoff-len": TrainerOption("launch", "sequence_length", int),
        "block-size": TrainerOption("launch", "sequence_length", int),
        "model-name-or-path": TrainerOption("launch", "model", str),
        "zero-stage": TrainerOption("launch", "zero_stage", int),
        "deepspeed": TrainerOption("launch", "config", str),
        "deepspeed-config": TrainerOption("launch", "config", str),
        "gradient-checkpointing": TrainerOption(
            "launch", "gradient_checkpointing", bool
        ),
        "bf16": TrainerOption("training", "bf16", bool),
        "fp16": TrainerOption("training", "fp16", bool),
        "dtype": TrainerOption("training", "precision", str),
        "offload": TrainerOption("launch", "offload", bool),
    }
)
"""Name of an option of other trainers -> what it stands for. Flags are yes or no, and
may have no value."""

TRAINER_ASSUMED: Mapping[str, str] = MappingProxyType(
    {
        r"lora|peft|adapter|freeze|finetuning-type": "All weights are trained.",
        r"bits$|load-in-|quant": "Weights are in the precision of training.",
        r"compile|liger|kernel|fused|tf32|jit": "Kernels are those of the preset.",
        r"attn|attention|flash": "Attention is that of the model and the preset.",
        r"pack|group-by-length|pad-to": "Sequences are full.",
        r"optim$|optimizer|adafactor": "The optimizer is what the JSON says, or Adam.",
        r"fsdp|parallel": "Ranks share the work as the JSON says.",
        r"auto-find-batch-size|dropout": "Batch and model are as they are given.",
    }
)
"""Words in names of options of other trainers that make some difference which is not
modelled -> what is taken instead."""

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
        *("deepspeed-mpi",),
        *("disable-moe-top2-2nd-expert-sampling",),
        *(
            "distributed-backend",
            "distributed-timeout-minutes",
        ),
        *(
            "end-weight-decay",
            "eod-mask-loss",
        ),
        *(
            "exit-duration-in-mins",
            "exit-interval",
            "exit-signal-handler",
        ),
        *("finetune",),
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
            "mmap-warmup",
        ),
        *(
            "moe-eval-capacity-factor",
            "moe-loss-coeff",
        ),
        *("no-contiguous-buffers-in-local-ddp",),
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
            "no-query-key-layer-scaling",
            "no-save-optim",
            "no-save-rng",
        ),
        *("num-workers",),
        *("override-lr-scheduler",),
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
        *(),
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
        *("train-weighted-split-paths-path",),
        *(
            "trust-remote-code",
            "universal-checkpoint",
        ),
        *(
            "use-checkpoint-opt-param-scheduler",
            "use-cpu-initialization",
        ),
        *(
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
        *("weight-decay-incr-style",),
        *(),
    }
)
"""Options of Megatron-DeepSpeed that make no difference to a plan."""

FORMAT = "deepspeed"
"""Name of the format that the options are of."""

FINER = frozenset({"tokenizer-type", "pad-vocab-size-to"})
FINER |= {"use-flash-attn", "use-flash-attn-v1", "use-flash-attn-triton"}
FINER |= {"use-flash-attn-builder", "checkpoint-num-layers"}
"""Options of Megatron-DeepSpeed that say more than the settings that they are read
into."""

_BUCKETS = "Buckets and shards are as by default."
_FUSED = "Kernels are fused as in the preset."
_STAGES = "Ranks wait for each other as in the preset."

ASSUMED: Mapping[str, str] = MappingProxyType(
    {
        "attention-softmax-in-fp32": _FUSED,
        "disable-mem-efficient-ln": _FUSED,
        "fp16-lm-cross-entropy": _FUSED,
        "no-gradient-accumulation-fusion": _FUSED,
        "no-persist-layer-norm": _FUSED,
        "onnx-safe": _FUSED,
        "openai-gelu": _FUSED,
        "ds-fused-adam": _FUSED,
        "torch-adam": _FUSED,
        "transformer-impl": _FUSED,
        "embedding-weights-in-fp32": "The embedding is in the weights' precision.",
        "no-async-tensor-model-parallel-allreduce": _STAGES,
        "no-scatter-gather-tensors-in-pipeline": _STAGES,
        "overlap-p2p-communication": _STAGES,
        "force-ds-sequence-parallel": _STAGES,
        "sync-tp-duplicated-parameters": _STAGES,
        "synchronize-each-layer": _STAGES,
        "zero-allgather-bucket-size": _BUCKETS,
        "zero-reduce-bucket-size": _BUCKETS,
        "zero-contigious-gradients": _BUCKETS,
        "zero-reduce-scatter": _BUCKETS,
        "use-pin-memory": "Memory of the host is pinned.",
        "mlp-type": "Experts stand in place of a dense layer, not beside it.",
        "rampup-batch-size": "The batch is that after its ramp.",
        "no-bias-gelu-fusion": _FUSED,
        "no-bias-dropout-fusion": _FUSED,
        "no-masked-softmax-fusion": _FUSED,
        "disable-moe-token-dropping": "No token is dropped.",
        "moe-train-capacity-factor": "No token is dropped.",
        "moe-min-capacity": "No token is dropped.",
    }
)
"""Options that make some difference that is not modelled -> what is taken instead."""

WITHOUT_EFFECT_PREFIXES = ("lr", "log-", "eval-", "tensorboard-", "wandb-", "timing-")
"""Beginnings of the names of more such options."""


def is_option(name: str) -> bool:
    """Whether Megatron-DeepSpeed has an option of a name, that scripts may have."""
    known = {*VALUES, *FLAGS, *FINER, *ASSUMED, *WITHOUT_EFFECT}
    return name in known or name.startswith(WITHOUT_EFFECT_PREFIXES)


def option_of(setting: str) -> str:
    """Return the option of Megatron-DeepSpeed that gives a setting its value."""
    return next(name for name, option in VALUES.items() if option.setting == setting)


def flag_of(setting: str, value: object) -> str | None:
    """Return the option without a value that sets a setting to a value, if any."""
    for name, flag in FLAGS.items():
        if flag.setting == setting and flag.value == value:
            return name
    return None
