"""What frameworks do where a row of measurements is silent.

Each preset holds the framework's own defaults, as far as there is a setting for them
here; its source stands beside it. A row's own columns always win.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from estimators.software import IDEAL, Software
from planner.step.execution import NOTHING_HIDDEN, Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Defaults of one framework."""

    name: str
    """Name that reports give it."""

    zero_stage: int = 0
    """ZeRO stage where the row does not say what is sharded."""

    precision: str = "bf16"
    """Precision of the model where the row does not say."""

    gradients: Mapping[str, str]
    """Precision of the model -> that of the gradients that are reduced."""

    recompute: str = "none"
    """Recompute mode where the row does not say."""

    attention: str = "flash"
    """Attention implementation where the row does not say."""

    sequence_parallel: bool = False
    """Whether tensor parallelism divides sequences, too, where the row does not say."""

    dropout: float = 0.0
    """Probability of dropout in GPTs, hidden and attention."""

    gather: str = ""
    """Precision of weights on the wire, if not that of the model."""

    reduce: str = ""
    """Precision of gradients on the wire, if not that of the gradients."""

    weights_in_fp32: bool = False
    """Whether weights are kept in fp32 and cast when they are used."""

    gradient_copies: bool = False
    """Whether the optimizer works on copies of the gradients."""

    casts_gradients: bool = False
    """Whether the optimizer casts 16-bit gradients to fp32."""

    sends_tokens_once: bool = False
    """Whether a token goes once to each node that has experts for it."""

    software: Software
    """Kernels, and what the host costs."""

    execution: Execution
    """Overlaps of communication and compute."""


_FP32_IF_BF16 = MappingProxyType({"bf16": "fp32", "fp16": "bf16", "fp32": "fp32"})
_FP32 = MappingProxyType({"bf16": "fp32", "fp16": "fp32", "fp32": "fp32"})
_AS_WEIGHTS = MappingProxyType({"bf16": "bf16", "fp16": "bf16", "fp32": "fp32"})

# Transformer Engine keeps inputs of 8-bit products in 8 bits; SwiGLU is fused by
# default (bias_activation_fusion).
_MEGATRON_CORE = Software(
    name="megatron-core",
    attention_kernel="fused",
    fuses_activation=True,
    keeps_narrow_inputs=True,
)

# DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.2: 20 of the 132
# multiprocessors of an H800 send and receive tokens, the others compute beside them.
BESIDE_EXPERTS = 132.0 / 112.0
"""Factor on compute beside all-to-alls between experts."""

_OVERLAPPED = Execution(overlap_grad_reduce=True, overlap_param_gather=True)
_MEGATRON_OVERLAPPED = replace(
    _OVERLAPPED, expert_communication_slowdown=BESIDE_EXPERTS
)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # megatron/training/arguments.py: dropout 0.1, no overlap unless it is asked
        # for; fp32 accumulation is forced with bf16. The device waits for each
        # message between stages (megatron/p2p_communication.py synchronizes it): that
        # is in its message_time, transfers are hidden beside it.
        "megatron-lm": Preset(
            name="megatron-lm",
            software=Software(
                name="megatron-lm",
                scatters_transfers=True,
                attention_kernel="flash",
                experts_within_data=True,
            ),
            gradients=_FP32,
            attention="plain",
            dropout=0.1,
            precision="fp16",
            execution=NOTHING_HIDDEN,
        ),
        # Megatron Core as recipes for large models start it: use_distributed_optimizer,
        # overlap_grad_reduce, overlap_param_gather, sequence_parallel. What it does not
        # do unless it is asked to is tp_comm_overlap
        # (core/model_parallel_config.py: False), which wants user buffers to be set up
        # for each shape of a product. Dropout 0.1 is its default; its optimizers keep
        # fp32 copies of 16-bit gradients (core/optimizer/optimizer.py,
        # _copy_model_grads_to_main_grads).
        "megatron-core": Preset(
            sends_tokens_once=True,
            name="megatron-core",
            software=_MEGATRON_CORE,
            casts_gradients=True,
            zero_stage=1,
            dropout=0.1,
            gradients=_FP32_IF_BF16,
            sequence_parallel=True,
            execution=_MEGATRON_OVERLAPPED,
        ),
        # The recipes that NVIDIA measures (NeMo, Megatron-Bridge, MLPerf): as above,
        # with tp_comm_overlap and its user buffers (perf_recipes/llama: userbuffers_..
        # for each device and model); gradients are accumulated and reduced in the
        # weights' 16 bits (grad_reduce_in_fp32 = False, grad_sync_dtype: bf16).
        # Experts' weights are applied inside their activation.
        "nemo": Preset(
            sends_tokens_once=True,
            name="nemo",
            software=replace(_MEGATRON_CORE, weighs_in_activation=True),
            casts_gradients=True,
            zero_stage=1,
            gradients=_AS_WEIGHTS,
            sequence_parallel=True,
            execution=replace(_MEGATRON_OVERLAPPED, tp_comm_overlap=True),
        ),
        # DeepSpeed's pipeline engine reduces after the last backward pass, in the
        # precision of the weights (deepspeed/runtime/pipe/engine.py,
        # _exec_reduce_grads). Its optimizers flatten and cast the gradients
        # of their shard (runtime/fp16/fused_optimizer.py, runtime/zero/
        # stage_1_and_2.py); runtime/bf16_optimizer.py keeps 16-bit gradients beside
        # those in fp32.
        "deepspeed": Preset(
            name="deepspeed",
            gradient_copies=True,
            software=Software(
                name="deepspeed", scatters_transfers=True, attention_kernel="flash"
            ),
            precision="fp16",
            gradients=_AS_WEIGHTS,
            attention="plain",
            dropout=0.1,
            execution=NOTHING_HIDDEN,
        ),
        # torch.distributed.fsdp: FULL_SHARD; backward_prefetch and the limiter keep one
        # gather ahead, reductions run on their own stream.
        # MixedPrecision casts fp32 parameters when it gathers them.
        "fsdp": Preset(
            name="fsdp",
            weights_in_fp32=True,
            software=Software(name="fsdp", attention_kernel="flash", plain_loss=True),
            # DTensor's tensor parallelism splits the sequence, too.
            sequence_parallel=True,
            zero_stage=3,
            gradients=_FP32,
            execution=_OVERLAPPED,
        ),
        # MosaicML's LLM Foundry: as above; the loss of its MPT models is
        # FlashAttention's fused one by default (loss_fn: fused_crossentropy).
        "llm-foundry": Preset(
            name="llm-foundry",
            weights_in_fp32=True,
            software=Software(name="fsdp", attention_kernel="flash", fuses_loss=True),
            zero_stage=3,
            gradients=_FP32,
            execution=_OVERLAPPED,
        ),
        # torchtitan's FSDP2: as above; selective recompute is by operators.
        "torchtitan": Preset(
            name="torchtitan",
            weights_in_fp32=True,
            software=Software(
                name="fsdp-torchtitan",
                attention_kernel="flash",
                saves_products=True,
                plain_loss=True,
                keeps_gathered=True,
            ),
            # DTensor's tensor parallelism splits the sequence, too.
            sequence_parallel=True,
            zero_stage=3,
            gradients=_FP32,
            execution=_OVERLAPPED,
        ),
        # MaxText: fully sharded by ici_fsdp_parallelism; XLA's latency-hiding
        # scheduler overlaps gathers and reductions; gradients in the weights' bf16.
        "maxtext": Preset(
            name="maxtext",
            software=Software(
                name="maxtext",
                attention_kernel="flash",
                compiled=True,
                fuses_activation=True,
                repeats_elementwise=True,
                gathers_by_weight=True,
                experts_within_data=True,
            ),
            weights_in_fp32=True,
            zero_stage=3,
            gradients=_AS_WEIGHTS,
            execution=_OVERLAPPED,
        ),
        # InternEvo's HybridZeroOptimizer: overlap_sync_grad and overlap_sync_param in
        # its published configurations.
        "internevo": Preset(
            name="internevo",
            software=Software(name="internevo", attention_kernel="flash"),
            zero_stage=1,
            gradients=_AS_WEIGHTS,
            execution=_OVERLAPPED,
        ),
        # torch.nn.parallel.DistributedDataParallel reduces buckets behind backward.
        "ddp": Preset(
            name="ddp",
            software=Software(name="ddp", attention_kernel="flash", plain_loss=True),
            gradients=_AS_WEIGHTS,
            attention="plain",
            dropout=0.1,
            execution=Execution(overlap_grad_reduce=True),
        ),
        # Aceso's runtime is Megatron-LM's with stages of their own; no dropout masks
        # are left in its logs' memory. Gradients are fp16 unless they are asked for in
        # fp32 (megatron/arguments.py).
        "aceso": Preset(
            name="aceso",
            software=Software(name="megatron-lm-aceso", attention_kernel="flash"),
            gradients=_AS_WEIGHTS,
            precision="fp16",
            attention="plain",
            execution=NOTHING_HIDDEN,
        ),
        # Mist: PyTorch modules of its own, fp16 with fp32 states, dropout off. What the
        # host keeps comes to the device for its update.
        "mist": Preset(
            name="mist",
            software=Software(name="mist", attention_kernel="flash"),
            gradients=_AS_WEIGHTS,
            precision="fp16",
            attention="plain",
            execution=Execution(cpu_adam=False),
        ),
    }
)
"""Name -> preset."""

_WORDS = (
    # Meta's own, of Llama 3: one reduction a step and interleaved chunks, as Megatron
    # Core has them.
    (r"\bmeta\b.*fsdp", "megatron-core"),
    (r"aceso", "aceso"),
    (r"\bmist\b", "mist"),
    (r"megatron-bridge|\bnemo\b", "nemo"),
    # NVIDIA's repository has been that of Megatron Core since 2023.
    (r"megatron(?:-lm)?[-/(]*core|mcore|megatron-fsdp", "megatron-core"),
    (r"nvidia/megatron-lm", "megatron-core"),
    (r"megatron.*deepspeed|deepspeed.*megatron", "deepspeed"),
    (r"gpt-neox|bigscience", "deepspeed"),
    (r"megatron-lm|megatron-ptd", "megatron-lm"),
    (r"deepspeed", "deepspeed"),
    (r"internevo", "internevo"),
    (r"maxtext|levanter|\bjax\b|\bxla\b|pathways", "maxtext"),
    (r"torchtitan", "torchtitan"),
    (r"composer|foundry", "llm-foundry"),
    (r"fsdp|fully-sharded", "fsdp"),
    (r"\bddp\b", "ddp"),
    (r"litgpt|metaseq|torchtune", "fsdp"),
)
"""What a description of the software contains, as a pattern, with hyphens for blanks
and underscores -> its preset, the first that does."""


def find_preset(software: str) -> tuple[Preset, str]:
    """Return the preset of a framework, and what was assumed to find it."""
    written = re.sub(r"[ _]+", "-", software.lower())
    for words, name in _WORDS:
        if re.search(words, written):
            return PRESETS[name], ""
    what = f"software {software} as" if software else "software ="
    return PRESETS["megatron-lm"], f"{what} megatron-lm"


IDEAL_PRESET = Preset(
    name="ideal",
    gradients=_FP32,
    software=IDEAL,
    execution=NOTHING_HIDDEN,
)
"""The device's own time: nothing of any framework."""

NAMED_PRESETS: Mapping[str, Preset] = MappingProxyType(
    {"ideal": IDEAL_PRESET, **PRESETS}
)
"""What a scenario may name."""

REMAT_POLICIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        # MaxText's remat_policy (src/maxtext/layers/decoders.py): which results of a
        # block are kept. What repeats less than half of a block's products is
        # "selective" here, what repeats more is "full".
        "minimal": ("selective", "MaxText's minimal: all products are kept"),
        "minimal_flash": (
            "selective",
            "MaxText's minimal_flash: all products are kept",
        ),
        "minimal_with_context": (
            "selective",
            "MaxText's minimal_with_context: all products are kept",
        ),
        "save_dot_except_mlpwi": (
            "selective",
            "MaxText's save_dot_except_mlpwi as if all products were kept",
        ),
        "save_dot_except_mlp": (
            "full",
            "MaxText's save_dot_except_mlp as full recompute",
        ),
        "save_dot_with_context_except_mlp": (
            "full",
            "MaxText's save_dot_with_context_except_mlp as full recompute",
        ),
        "save_qkv_proj": ("full", "MaxText's save_qkv_proj as full recompute"),
        "save_out_proj": ("full", "MaxText's save_out_proj as full recompute"),
        "qkv_proj_offloaded": (
            "full",
            "full recompute but for products kept in the host's memory",
        ),
    }
)
"""MaxText's rematerialisation policies -> the nearest mode, and what is noted."""
