"""What becomes of each type of causal language model that transformers has.

``python -m tests.estimators.models.hub_types`` prints a table: each type is read with
as many parameters and FLOPs as transformers' own modules have, or read and differs, or
refused, with the reason. Modules stand on the meta device, at the sizes that
transformers gives a type, with fewer layers.

torch's counter counts the full square of attention, whatever a mask hides; here windows
and chunks are as long as sequences. Angles of rotary embeddings are a product in
transformers, and a table here. Of scans transformers computes in plain PyTorch what
fused kernels do otherwise: they are left out of FLOPs. Sparse attention has keys of all
heads in transformers, and latents here. Modules of multi-token
prediction are in no model of transformers. Llama 4's reference sends all tokens to all
experts.
"""

import contextlib
import importlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.auto import modeling_auto

from estimators.models.huggingface import (
    load_huggingface,
    missing_operator,
    model_types,
    nearest_type,
)
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.recurrences import RECURRENCES
from estimators.tracing.trace import trace_model
from topologies.errors import InputError

LENGTH = 512
"""Tokens of a sequence: enough that scores of attention count, and no more than BERT
has positions for."""

LAYERS = 4
"""Layers of a model, which show every pattern of blocks that types have by default."""

GIVEN: Mapping[str, Mapping[str, Any]] = {
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 3,
        "vocab_size": 211,
    },
    "deepseek_v2": {"num_experts_per_tok": 6},
    "deepseek_v4": {
        "hidden_size": 96,
        "moe_intermediate_size": 48,
        "num_attention_heads": 4,
        "head_dim": 32,
        "partial_rotary_factor": 0.25,
        "qk_rope_head_dim": 8,
        "q_lora_rank": 24,
        "o_groups": 2,
        "o_lora_rank": 20,
        "index_n_heads": 3,
        "index_head_dim": 16,
        "n_routed_experts": 16,
        "vocab_size": 211,
        "layer_types": [
            "sliding_attention",
            *["heavily_compressed_attention", "compressed_sparse_attention"],
            "heavily_compressed_attention",
        ],
    },
    "dots1": {"n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "gemma3n_text": {
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 12,
        "num_kv_shared_layers": 5,
        "num_attention_heads": 4,
        "head_dim": 16,
        "vocab_size": 211,
        "vocab_size_per_layer_input": 199,
        "hidden_size_per_layer_input": 24,
        "laurel_rank": 10,
    },
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "lfm2": {"full_attn_idxs": [2]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "longcat_flash": {
        "hidden_size": 96,
        "ffn_hidden_size": 128,
        "expert_ffn_hidden_size": 48,
        "num_attention_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "n_routed_experts": 16,
        "zero_expert_num": 8,
        "moe_topk": 6,
        "vocab_size": 211,
    },
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e4}
        }
    },
}
"""Type -> values without which transformers makes no module of it."""

VARIANTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("afmoe", {"num_dense_layers": 3, "mup_enabled": True}),
    ("apertus", {"attention_bias": True, "num_key_value_heads": 8}),
    ("arcee", {"mlp_bias": True}),
    ("bamba", {"attn_layer_indices": [1, 3]}),
    (
        "cohere2_moe",
        {
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
            "first_k_dense_replace": 2,
            "prefix_dense_intermediate_size": 4096,
        },
    ),
    ("ernie4_5", {"use_bias": True}),
    ("ernie4_5_moe", {"moe_layer_start_index": 2, "moe_layer_interval": 2}),
    ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * LAYERS}),
    ("exaone_moe", {"n_group": 4, "topk_group": 2, "num_shared_experts": 2}),
    ("granite", {"mlp_bias": True, "attention_bias": True}),
    ("granite_swa", {"layer_rope_theta": [0, 1e4, 1e4, 1e4] * (LAYERS // 4)}),
    (
        "granitemoehybrid",
        {
            "layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2),
            "position_embedding_type": "rope",
            "attention_bias": True,
        },
    ),
    (
        "granitemoehybrid",
        {"num_local_experts": 0, "layer_types": ["full_attention"] * LAYERS},
    ),
    ("granitemoeshared", {"shared_intermediate_size": 512}),
    ("hyperclovax", {"use_post_norm": False}),
    ("internlm3", {"qkv_bias": True, "bias": True}),
    ("jais2", {"mlp_bias": False, "attention_bias": True}),
    (
        "laguna",
        {
            "layer_types": ["full_attention", *["sliding_attention"] * (LAYERS - 1)],
            "num_attention_heads_per_layer": [48, *[64] * (LAYERS - 1)],
        },
    ),
    ("lfm3", {"use_sandwich_norm": False, "use_attention_gate": False}),
    ("llama", {"mlp_bias": True}),
    ("mistral4", {}),
    (
        "mellum",
        {"layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2)},
    ),
    (
        "nemotron_h",
        {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    ),
    ("persimmon", {"qk_layernorm": False}),
    ("phimoe", {"attention_bias": True, "lm_head_bias": True}),
    ("smollm3", {"no_rope_layers": [1, 0] * (LAYERS // 2), "mlp_bias": True}),
    ("solar_open", {"n_shared_experts": 2, "n_group": 4, "topk_group": 2}),
)
"""Types at other values than their usual ones."""


SCANS = ("A_log", "slope_rate", "forget_gate", "conv_kernel_size")
"""What modules with scans and convolutions have in transformers."""


class Counted(NamedTuple):
    """What a model has."""

    parameters: int
    """Parameters that are trained."""

    flops: int
    """FLOPs of one forward pass of one sequence."""

    blocks: tuple[int, ...]
    """Parameters of each block."""


class Outcome(NamedTuple):
    """What becomes of a type."""

    model_type: str
    """Name of the type."""

    word: str
    """``"exact"``, ``"differs"``, ``"refused"`` or ``"no module"``."""

    detail: str
    """Ours beside theirs, or the reason."""


def causal_types() -> list[str]:
    """Return the types of causal language models that transformers has."""
    return list(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def hub_config(model_type: str, given: Mapping[str, Any]) -> Any:
    """Return transformers' configuration of a type, with few layers where it may be.

    Of models that see pictures, that of the language model.
    """
    config = _few_layers(model_type, {**GIVEN.get(model_type, {}), **given})
    inner = config.get_text_config()
    if inner is config:
        return config
    return _few_layers(inner.model_type, GIVEN.get(inner.model_type, {}))


def _few_layers(model_type: str, values: Mapping[str, Any]) -> Any:
    make = transformers.AutoConfig.for_model
    with contextlib.suppress(TypeError, ValueError, StrictDataclassError):
        return make(model_type, **{"num_hidden_layers": LAYERS, **values})
    return make(model_type, **values)


def hub_model(model_type: str, config: Any) -> Any:
    """Return transformers' model of a type and its configuration, without memory."""
    kind = hub_class(model_type, config)
    with torch.device("meta"):
        model = kind._from_config(config, attn_implementation="eager").eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")
    return model


def hub_class(model_type: str, config: Any) -> Any:
    """Return transformers' class of a type and its configuration.

    Of some language models beside others there is none with a head.
    """
    names = {
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    inner = config.model_type
    name = names.get(inner) or (names.get(model_type) if inner == model_type else None)
    if name is not None:
        return getattr(transformers, name)
    module = type(config).__module__.replace("configuration_", "modeling_")
    kinds = [
        kind
        for kind in vars(importlib.import_module(module)).values()
        if getattr(kind, "config_class", None) is type(config)
    ]
    heads = [kind for kind in kinds if kind.__name__.endswith("ForCausalLM")]
    bodies = [kind for kind in kinds if kind.__name__.endswith("TextModel")]
    return (heads or bodies)[0]


def has_head(model: nn.Module) -> bool:
    """Return whether a model of transformers makes logits."""
    return not type(model).__name__.endswith("TextModel")


def hub_counts(model: nn.Module) -> Counted:
    """Return what transformers' model has."""
    trained, blocks = _trained(model), _blocks(model)
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    square = torch.zeros(1, 1, LENGTH, LENGTH, device="meta")
    for mask in (torch.ones_like(tokens), square):
        counter = FlopCounterMode(display=False)
        try:
            with counter, torch.no_grad():
                model(tokens, attention_mask=mask, use_cache=False)
        except (RuntimeError, NotImplementedError):  # what depends on values
            continue
        flops = counter.get_total_flops() - _apart(model, counter)
        return Counted(trained, flops, blocks)
    return Counted(trained, _flops_with_values(model), blocks)


def _trained(model: nn.Module) -> int:
    """Return parameters that are trained, but for those of experts without work.

    transformers has the first weight of each, which nothing reads.
    """
    unread = sum(
        module.zero_expert_num * module.gate_up_proj[0].numel()
        for module in model.modules()
        if hasattr(module, "zero_expert_num")
    )
    return sum(p.numel() for p in model.parameters() if p.requires_grad) - unread


def _blocks(model: nn.Module) -> tuple[int, ...]:
    """Return the parameters of each member of the longest list that has the most."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    return tuple(_trained(block) for block in max(lists, key=_trained, default=()))


def _flops_with_values(model: nn.Module) -> int:
    """Return FLOPs of a small model whose experts are found from values."""
    model = model.to_empty(device="cpu").requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        for parameter in model.parameters():
            parameter.normal_(std=0.02, generator=generator)
        for buffer in model.buffers():
            buffer.zero_()
        model(torch.zeros(1, LENGTH, dtype=torch.long), use_cache=False)
    return int(counter.get_total_flops()) - _apart(model, counter)


def _apart(model: nn.Module, counter: FlopCounterMode) -> int:
    """Return FLOPs of angles, and of scans beside their projections.

    And of experts beside those without work, which are as many as a router chooses.
    """
    counts, root = counter.get_flop_counts(), type(model).__name__
    projections = {torch.ops.aten.mm, torch.ops.aten.addmm}
    total = 0
    for path, module in model.named_modules():
        part: Mapping[Any, int] = counts.get(f"{root}.{path}", {})
        if path.split(".")[-1].startswith("rotary_emb"):
            total += sum(part.values())
        if any(hasattr(module, name) for name in SCANS):
            total += sum(part[op] for op in part if op not in projections)
        if hasattr(module, "zero_expert_num"):
            total += sum(part.values())
    return total


def spec_counts(spec: TransformerSpec, *, headless: bool = False) -> Counted:
    """Return what our model has, or all of it but its head."""
    spec = replace(spec, mtp_num_layers=0)
    if spec.window_size:
        spec = replace(spec, window_size=LENGTH)
    if spec.attention_chunk_size:
        experts = spec.num_moe_experts
        spec = replace(spec, attention_chunk_size=LENGTH, moe_router_topk=experts)
    counted = graph_counts(trace_model(spec))
    if headless:
        row = spec.hidden_size * spec.vocab_size
        counted = counted._replace(
            parameters=counted.parameters - row * (not spec.tie_word_embeddings),
            flops=counted.flops - 2 * LENGTH * row,
        )
    beside = _of_whole_heads(spec) - _beside_zero_experts(spec)
    return counted._replace(flops=counted.flops + beside)


def _beside_zero_experts(spec: TransformerSpec) -> int:
    """Return what experts do beside those without work: their part of all choices."""
    if not spec.moe_num_zero_experts:
        return 0
    every = spec.num_moe_experts + spec.moe_num_zero_experts
    rows = LENGTH * spec.moe_router_topk * spec.num_moe_experts // every
    work = 6 * rows * spec.hidden_size * spec.moe_ffn_hidden_size
    return spec.num_layers * work


def _of_whole_heads(spec: TransformerSpec) -> int:
    """Return what transformers' sparse attention does more than on latents.

    It has keys and values of all heads, which are narrower than latents, and sums the
    heads of an indexer by a product.
    """
    mixers = [kind.partition("+")[0] for kind in spec.block_pattern]
    sparse = mixers.count("sparse") + mixers.count("reusing")
    turned = spec.qk_pos_emb_head_dim
    narrow = spec.kv_channels + turned + spec.v_head_dim
    wider = spec.num_attention_heads * (narrow - 2 * spec.kv_lora_rank - turned)
    summed = mixers.count("sparse") * spec.dsa_indexer_n_heads
    return 2 * LENGTH**2 * (sparse * wider + summed)


def graph_counts(graph: LayerGraph) -> Counted:
    """Return what a chain of layers has, without scans."""
    by_kind = [
        sum(
            op.model_flops
            for op in layer.operators
            if op.operation in {"linear", "attention"}
            or not any(
                other.operation in {"scan", *RECURRENCES} for other in layer.operators
            )
        )
        for layer in graph.layers
    ]
    sizes = [sum(p.elements for p in layer.parameters) for layer in graph.layers]
    blocks = tuple(
        sizes[kind]
        for name, kind in zip(graph.names, graph.kinds, strict=True)
        if name.startswith("block ")
    )
    flops = sum(by_kind[kind] for kind in graph.kinds)
    return Counted(graph.num_parameters, flops, blocks)


def _as_layers(counted: Counted, num_layers: int) -> Counted:
    """Return a hybrid's mixers with the feed-forward layers behind them."""
    blocks = counted.blocks
    if len(blocks) == 2 * num_layers:
        pairs = zip(blocks[::2], blocks[1::2], strict=True)
        return counted._replace(blocks=tuple(map(sum, pairs)))
    return counted


def read_back(
    folder: Path, model_type: str, values: Mapping[str, Any]
) -> TransformerSpec:
    """Return what the reader makes of a configuration.

    Raises
    ------
    InputError
        If it refuses it.
    """
    file = folder / "config.json"
    written = {**values, "model_type": model_type}
    file.write_text(json.dumps(written, default=str), encoding="utf-8")
    return load_huggingface(file, sequence_length=LENGTH)


def outcome(folder: Path, model_type: str, given: Mapping[str, Any]) -> Outcome:
    """Return what becomes of a type, at the values that are given."""
    if model_type not in model_types():
        near, reason = nearest_type(model_type), missing_operator(model_type)
        detail = "; ".join(
            part for part in (reason, near and f"nearest: {near}") if part
        )
        return Outcome(model_type, "refused", detail)
    config = hub_config(model_type, given)
    model = hub_model(model_type, config)
    values = {**config.to_dict(), "architectures": [type(model).__name__]}
    if config.model_type not in {model_type, "gpt2"}:
        values = {"text_config": {**values, "model_type": config.model_type}}
    try:
        spec = read_back(folder, model_type, values)
        ours = spec_counts(spec, headless=not has_head(model))
    except InputError as error:
        return Outcome(model_type, "refused", f"{error.where}: {error.problem}")
    theirs = hub_counts(model)
    ours = _as_layers(ours, len(theirs.blocks))
    return Outcome(
        model_type,
        "exact" if ours == theirs else "differs",
        f"{ours.parameters:,} parameters of {theirs.parameters:,}, "
        f"{ours.flops:,} FLOPs of {theirs.flops:,}; "
        + ("blocks alike" if ours.blocks == theirs.blocks else "blocks differ"),
    )


def outcomes() -> Iterator[Outcome]:
    """Yield what becomes of each type."""
    with tempfile.TemporaryDirectory() as folder:
        for model_type in causal_types():
            yield outcome(Path(folder), model_type, {})


def main() -> None:
    """Print the table, and how many types have each outcome."""
    rows = list(outcomes())
    for row in rows:
        sys.stdout.write(f"{row.model_type:26} {row.word:10} {row.detail}\n")
    sys.stdout.write(f"{dict(Counter(row.word for row in rows))}\n")


if __name__ == "__main__":
    main()
