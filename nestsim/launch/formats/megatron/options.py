"""Options of Megatron-LM and the settings that they are here: the one table of both.

The writer reads it from right to left, the reader from left to right. What is one
option on either side stands here; what takes several options for one setting (norms of
recompute, sharding, number formats) is written in `settings` and read in `composed`,
under names that `COMPOSED` lists.

Facts: ``megatron/training/arguments.py`` of NVIDIA/Megatron-LM at ``000c4ac`` (Core
0.15 and 0.16) and the configuration classes of megatron-core 0.16.1. A default is what
Megatron-LM does where the option is not given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from nestsim.launch.formats.megatron.assumed import ASSUMED, REFUSED

FORMAT = "megatron"
"""Name of the format that the options are of."""

FLAG, OFF, WHOLE, REAL, WORD = "flag", "off", "whole", "real", "word"
"""Kinds of options: present or not; present where a setting is off; a whole number; a
number; a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of Megatron-LM that is one setting here."""

    name: str
    """Its name without dashes."""

    setting: str
    """The setting, as the tables of a scenario and the specifications have it."""

    kind: str = WHOLE
    """`FLAG`, `OFF`, `WHOLE`, `REAL` or `WORD`."""

    default: object = None
    """What Megatron-LM does without it; None for what follows from other options."""

    words: Mapping[str, str] = field(default_factory=dict)
    """Of a word: Megatron-LM's -> ours, where they differ."""

    older: tuple[str, ...] = ()
    """Names that it had in older versions."""

    core: str = ""
    """Field of megatron-core's configuration, if not called like the option."""

    always: bool = False
    """Whether it is written even where it is Megatron-LM's default."""


def _flag(name: str, setting: str, core: str = "") -> Option:
    return Option(name=name, setting=setting, kind=FLAG, default=False, core=core)


def _off(name: str, setting: str, core: str = "") -> Option:
    return Option(name=name, setting=setting, kind=OFF, default=True, core=core)


def _sizes(*names: str) -> tuple[Option, ...]:
    """Return whole numbers that are called alike on both sides."""
    return tuple(Option(name=one.replace("_", "-"), setting=one) for one in names)


ARCHITECTURE: tuple[Option, ...] = (
    Option(name="num-layers", setting="num_layers", older=("encoder-num-layers",)),
    *_sizes("hidden_size", "num_attention_heads"),
    Option(name="ffn-hidden-size", setting="ffn_hidden_size"),
    Option(name="kv-channels", setting="kv_channels"),
    Option(
        name="seq-length",
        setting="sequence_length",
        older=("encoder-seq-length",),
    ),
    Option(name="max-position-embeddings", setting="max_position_embeddings"),
    Option(
        name="normalization",
        setting="normalization",
        kind=WORD,
        default="layernorm",
        words={"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"},
    ),
    Option(
        name="position-embedding-type",
        setting="position_embedding_type",
        kind=WORD,
        default="learned",
        words={
            "learned_absolute": "learned",
            "rope": "rope",
            "none": "none",
            "relative": "relative",
            # Megatron-DeepSpeed's names.
            "absolute": "learned",
            "rotary": "rope",
            "alibi": "alibi",
        },
    ),
    Option(name="rotary-percent", setting="rotary_percent", kind=REAL, default=1.0),
    _off(
        "untie-embeddings-and-output-weights",
        "tie_word_embeddings",
        core="share_embeddings_and_output_weights",
    ),
    _off("disable-bias-linear", "add_bias_linear", core="add_bias_linear"),
    _flag("add-qkv-bias", "add_qkv_bias"),
    _flag("qk-layernorm", "qk_layernorm"),
    Option(
        name="softmax-type",
        setting="softmax_type",
        kind=WORD,
        default="vanilla",
        words={"vanilla": "vanilla", "learnable": "learnable"},
    ),
    Option(
        name="embed-layernorm",
        setting="embedding_layernorm",
        kind=FLAG,
        default=False,
    ),
    Option(name="hidden-dropout", setting="hidden_dropout", kind=REAL, default=0.1),
    Option(
        name="attention-dropout", setting="attention_dropout", kind=REAL, default=0.1
    ),
    Option(name="mtp-num-layers", setting="mtp_num_layers"),
)
"""What all decoders have."""

EXPERTS: tuple[Option, ...] = (
    Option(name="num-experts", setting="num_moe_experts", core="num_moe_experts"),
    Option(name="moe-router-topk", setting="moe_router_topk", default=2, always=True),
    *_sizes("moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    _flag("moe-shared-expert-gate", "moe_shared_expert_gate"),
    Option(
        name="moe-router-score-function",
        setting="moe_router_score_function",
        kind=WORD,
        default="softmax",
        words={"softmax": "softmax", "sigmoid": "sigmoid"},
    ),
    _flag("moe-router-pre-softmax", "moe_router_pre_softmax"),
    _flag("moe-router-enable-expert-bias", "moe_router_enable_expert_bias"),
    *_sizes("moe_router_num_groups", "moe_router_group_topk"),
)
"""What mixtures of experts have."""

LATENT: tuple[Option, ...] = (
    Option(name="q-lora-rank", setting="q_lora_rank"),
    Option(name="kv-lora-rank", setting="kv_lora_rank", default=32),
    Option(name="qk-head-dim", setting="kv_channels", default=128),
    Option(name="qk-pos-emb-head-dim", setting="qk_pos_emb_head_dim", default=64),
    Option(name="v-head-dim", setting="v_head_dim", default=128),
)
"""What multi-head latent attention has."""

MAMBA: tuple[Option, ...] = (
    Option(name="mamba-state-dim", setting="mamba_state_dim", default=128),
    Option(name="mamba-head-dim", setting="mamba_head_dim", default=64),
    Option(name="mamba-num-groups", setting="mamba_num_groups", default=8),
    Option(name="mamba-num-heads", setting="mamba_num_heads"),
)
"""What Mamba-2 has."""

TRAINING: tuple[Option, ...] = (
    Option(name="global-batch-size", setting="global_batch_size"),
    Option(
        name="optimizer",
        setting="optimizer",
        kind=WORD,
        default="adam",
        words={"adam": "adam", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"},
    ),
    *(
        Option(
            name=name.replace("_", "-"),
            setting=name,
            kind=WORD,
            default="fp32",
            words={one: one for one in ("fp32", "fp16", "bf16", "fp8")},
        )
        for name in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    ),
    _flag("fp8-param-gather", "fp8_param_gather", core="fp8_param"),
)
"""Batch, optimizer and formats of what is kept."""

PARALLEL: tuple[Option, ...] = (
    Option(name="micro-batch-size", setting="micro_batch_size", older=("batch-size",)),
    Option(
        name="tensor-model-parallel-size",
        setting="tensor_model_parallel_size",
        default=1,
        always=True,
        older=("model-parallel-size", "intra-layer-model-parallel-size"),
    ),
    Option(
        name="pipeline-model-parallel-size",
        setting="pipeline_model_parallel_size",
        default=1,
        always=True,
        older=("inter-layer-model-parallel-size",),
    ),
    Option(
        name="context-parallel-size",
        setting="context_parallel_size",
        default=1,
        older=("ds-sequence-parallel-size",),
    ),
    Option(
        name="expert-model-parallel-size",
        setting="expert_model_parallel_size",
        default=1,
    ),
    Option(name="expert-tensor-parallel-size", setting="expert_tensor_parallel_size"),
    _flag("sequence-parallel", "sequence_parallel"),
    _flag("overlap-moe-expert-parallel-comm", "overlap_moe_expert_parallel_comm"),
    Option(
        name="decoder-first-pipeline-num-layers",
        setting="num_layers_in_first_pipeline_stage",
        core="num_layers_in_first_pipeline_stage",
    ),
    Option(
        name="decoder-last-pipeline-num-layers",
        setting="num_layers_in_last_pipeline_stage",
        core="num_layers_in_last_pipeline_stage",
    ),
    _flag(
        "account-for-embedding-in-pipeline-split",
        "account_for_embedding_in_pipeline_split",
    ),
    _flag("account-for-loss-in-pipeline-split", "account_for_loss_in_pipeline_split"),
)
"""Parallel sizes, and how blocks are shared out."""

OVERLAPS: tuple[Option, ...] = (
    _flag("overlap-grad-reduce", "overlap_grad_reduce"),
    _flag("overlap-param-gather", "overlap_param_gather"),
    _flag("tp-comm-overlap", "tp_comm_overlap"),
    _off("no-overlap-p2p-communication", "overlap_p2p_comm", core="overlap_p2p_comm"),
)
"""What the framework hides behind compute."""

TABLES: Mapping[str, tuple[Option, ...]] = MappingProxyType(
    {
        "architecture": ARCHITECTURE,
        "experts": EXPERTS,
        "latent": LATENT,
        "mamba": MAMBA,
        "training": TRAINING,
        "parallel": PARALLEL,
        "overlaps": OVERLAPS,
    }
)
"""All of them, by what they are about."""

NARROW: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "fp8": (("fp8-format", "hybrid"), ("fp8-recipe", "tensorwise")),
        "fp8-blockwise": (("fp8-format", "e4m3"), ("fp8-recipe", "blockwise")),
        "mxfp8": (("fp8-format", "e4m3"), ("fp8-recipe", "mxfp8")),
        "nvfp4": (("fp4-format", "e2m1"), ("fp4-recipe", "nvfp4")),
    }
)
"""Format of products with weights -> its options."""

NARROW_RECIPES: Mapping[str, str] = MappingProxyType(
    {
        "delayed": "fp8",
        "tensorwise": "fp8",
        "blockwise": "fp8-blockwise",
        "mxfp8": "mxfp8",
    }
)
"""``--fp8-recipe`` -> format of products with weights."""

FLASH = tuple(f"use-flash-attn{end}" for end in ("", "-triton", "-v1", "-v2"))
"""Options of older versions that ask for FlashAttention."""

SHARDING: Mapping[str, int] = MappingProxyType(
    {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
)
"""``--data-parallel-sharding-strategy`` of Megatron FSDP -> stage of ZeRO."""

COMM_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "p2p": "p2p",
        "all_gather": "all_gather",
        "allgather": "all_gather",
        "a2a": "a2a",
        "a2a+p2p": "a2a+p2p",
    }
)
"""``--cp-comm-type`` -> setting."""

USUAL_ORDER = "tp-cp-ep-dp-pp"
"""Order of ranks by default."""

PP_INSIDE_ORDER = "tp-cp-ep-pp-dp"
"""Order of ranks with ``--use-tp-pp-dp-mapping``."""

SCRIPTS: Mapping[str, str] = MappingProxyType(
    {
        "bert": "pretrain_bert.py",
        "t5": "pretrain_t5.py",
        "vit": "pretrain_vision_classify.py",
        "mamba": "pretrain_mamba.py",
    }
)
"""Family -> program of Megatron-LM; all others have `GPT_SCRIPT`."""

GPT_SCRIPT = "pretrain_gpt.py"

MAMBA_SPEC = ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")
"""``--spec`` of Mamba-2 and its hybrids."""

_COMPOSED = """
" DDP-impl accumulate-allreduce-grads-in-fp32 activations-checkpoint-granularity
activations-checkpoint-method activations-checkpoint-num-layers attention-backend
bert-no-binary-head bf16 checkpoint-activations checkpoint-num-layers cp-comm-type
cpu-offloading-num-layers cuda-graph-impl cuda-graph-scope cuda-graph-warmup-steps
data-parallel-sharding-strategy ddp-impl decoder-num-layers decoder-seq-length deepspeed
deepspeed-activation-checkpointing encoder-num-layers encoder-seq-length fp16 fp4-format
fp4-recipe fp8-e4m3 fp8-format fp8-hybrid fp8-recipe grad-reduce-in-bf16
group-query-attention hierarchical-context-parallel-sizes hybrid-attention-ratio
hybrid-mlp-ratio hybrid-override-pattern img-h keep-fp8-transpose-cache main-grads-dtype
moe-enable-deepep moe-flex-dispatcher-backend moe-grouped-gemm moe-layer-freq
moe-token-dispatcher-type multi-latent-attention no-position-embedding num-classes
num-distributed-optimizer-instances num-layers-per-virtual-pipeline-stage
num-query-groups num-virtual-stages-per-pipeline-rank optimizer-cpu-offload
optimizer-offload-fraction pad-vocab-size-to padded-vocab-size patch-dim
pipeline-model-parallel-layout pp-partition-method quick-geglu rampup-batch-size
recompute-activations recompute-granularity recompute-method recompute-modules
recompute-num-layers spec squared-relu swiglu tokenizer-model tokenizer-type
torch-fsdp2-no-reshard-after-forward transformer-impl use-custom-fsdp
use-distributed-optimizer use-flash-attn use-flash-attn-triton use-flash-attn-v1
use-flash-attn-v2 use-legacy-models use-megatron-fsdp use-rotary-position-embeddings
use-torch-fsdp2 use-tp-pp-dp-mapping vocab-size window-attn-skip-freq window-size
zero-stage
"""

COMPOSED = frozenset(_COMPOSED.split())
"""Options that are settings together with others, or under a condition."""

_CARRIED = """
attention-backend bert-no-binary-head cuda-graph-impl cuda-graph-scope
cuda-graph-warmup-steps fp4-recipe fp8-recipe keep-fp8-transpose-cache moe-enable-deepep
moe-flex-dispatcher-backend moe-grouped-gemm moe-token-dispatcher-type
no-position-embedding padded-vocab-size rampup-batch-size recompute-modules spec
tokenizer-model tokenizer-type use-flash-attn vocab-size
"""

CARRIED = frozenset(_CARRIED.split())
"""Those of `COMPOSED` that say more than the settings that they are read into."""


def by_name() -> Mapping[str, Option]:
    """Return the options of the table by their names, older ones included."""
    return {
        name: option
        for options in TABLES.values()
        for option in options
        for name in (option.name, *option.older)
    }


def known_names() -> frozenset[str]:
    """Return all options that are read, assumed about or refused."""
    return frozenset(by_name()) | COMPOSED | frozenset(ASSUMED) | frozenset(REFUSED)
