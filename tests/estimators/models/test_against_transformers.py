"""Dense decoders against transformers' own modules: parameters and FLOPs.

Both are built small on the meta device from one ``config.json``. torch's counter counts
the full square of attention, whatever a mask hides, and so does `model_flops`, but for
sliding windows: those are widened here to whole sequences, and counted pair by pair in
`test_windows`. Angles of rotary embeddings are a product in transformers, and a table
here: they are not compared.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from estimators.models.changed import (
    with_windows,
)
from estimators.models.huggingface import load_huggingface
from estimators.models.spec import (
    TransformerSpec,
)
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import build_layers

transformers = pytest.importorskip("transformers")

LENGTH = 32
SMALL = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "vocab_size": 211,
    "max_position_embeddings": LENGTH,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
GEMMA = {**GROUPED, "head_dim": 24, "sliding_window": 8}
FALCON = {
    key: value
    for key, value in SMALL.items()
    if key not in {"intermediate_size", "num_key_value_heads"}
}
BLOOM = {"n_layer": 3, "hidden_size": 64, "n_head": 4, "vocab_size": 211}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "llama, biases of attention": (
        "LlamaConfig",
        {**GROUPED, "attention_bias": True},
    ),
    "llama, all biases": (
        "LlamaConfig",
        {**GROUPED, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": 8}),
    "qwen2": ("Qwen2Config", GROUPED),
    "qwen2, tied": ("Qwen2Config", {**GROUPED, "tie_word_embeddings": True}),
    "qwen2, late windows": (
        "Qwen2Config",
        {
            **GROUPED,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 4,
        },
    ),
    "qwen3": ("Qwen3Config", {**GROUPED, "head_dim": 24}),
    "qwen3, biases": ("Qwen3Config", {**GROUPED, "attention_bias": True}),
    "gemma": ("GemmaConfig", {**GROUPED, "head_dim": 24}),
    "gemma2": ("Gemma2Config", GEMMA),
    "gemma3": ("Gemma3TextConfig", GEMMA),
    "phi3": ("Phi3Config", {**GROUPED, "pad_token_id": None, "sliding_window": 8}),
    "phi3, partial": (
        "Phi3Config",
        {**GROUPED, "pad_token_id": None, "partial_rotary_factor": 0.75},
    ),
    "olmo": ("OlmoConfig", SMALL),
    "olmo2": ("Olmo2Config", GROUPED),
    "olmo3": ("Olmo3Config", {**GROUPED, "sliding_window": 8}),
    "glm": ("GlmConfig", {**GROUPED, "head_dim": 24, "pad_token_id": None}),
    "glm4": (
        "Glm4Config",
        {**GROUPED, "head_dim": 24, "pad_token_id": None, "attention_bias": False},
    ),
    "stablelm": ("StableLmConfig", {**GROUPED, "use_qkv_bias": True}),
    "stablelm, parallel": (
        "StableLmConfig",
        {**GROUPED, "use_parallel_residual": True},
    ),
    "cohere": ("CohereConfig", GROUPED),
    "gpt_neox": ("GPTNeoXConfig", SMALL),
    "gpt_neox, serial": ("GPTNeoXConfig", {**SMALL, "use_parallel_residual": False}),
    "gpt2": (
        "GPT2Config",
        {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 211},
    ),
    "gpt_bigcode": (
        "GPTBigCodeConfig",
        {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 211},
    ),
    "bloom": ("BloomConfig", BLOOM),
    "falcon 7b": ("FalconConfig", FALCON),
    "falcon 40b": (
        "FalconConfig",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon 11b": (
        "FalconConfig",
        {
            **FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
        },
    ),
    "falcon rw": (
        "FalconConfig",
        {
            **FALCON,
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
        },
    ),
    "mpt": (
        "MptConfig",
        {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 211},
    ),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "ffn_dim": 96,
            "num_attention_heads": 4,
            "vocab_size": 211,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 64,
        },
    ),
    "starcoder2": ("Starcoder2Config", {**GROUPED, "sliding_window": 8}),
    "nemotron": ("NemotronConfig", {**GROUPED, "head_dim": 24}),
}


def hub_model(kind: str) -> Any:
    """Return transformers' model on the meta device."""
    name, values = CONFIGS[kind]
    config = getattr(transformers, name)(**values)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager"
        ).eval()


def own_spec(folder: Path, kind: str) -> TransformerSpec:
    """Return what our reader makes of the same configuration."""
    name, values = CONFIGS[kind]
    config = getattr(transformers, name)(**values)
    file = folder / "config.json"
    file.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    return load_huggingface(file, sequence_length=LENGTH)


def hub_flops(model: Any) -> int:
    """Return the forward FLOPs of one sequence, angles of rotary embeddings left out.

    Models with ALiBi add up scores and slopes in products of another name.
    """
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    by_module = counter.get_flop_counts()
    angles = sum(
        sum(counts.values())
        for path, counts in by_module.items()
        if path.split(".")[-1].startswith("rotary_emb")
    )
    return counter.get_total_flops() - angles


def own_flops(graph: LayerGraph) -> int:
    """Return the forward FLOPs of one sequence."""
    by_kind = [sum(op.model_flops for op in one.operators) for one in graph.layers]
    return sum(by_kind[kind] for kind in graph.kinds)


@failures.over("kind", CONFIGS)
def test_parameters_and_flops_are_those_of_transformers(
    tmp_path: Path, kind: str
) -> None:
    model, spec = hub_model(kind), own_spec(tmp_path, kind)
    graph = trace_model(spec)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert graph.num_parameters == counted
    if spec.window_size:
        graph = trace_model(replace(spec, window_size=LENGTH))
    assert own_flops(graph) == hub_flops(model)


def test_sinks_are_those_of_gpt_oss() -> None:
    """Attention of GPT-OSS with a window, both with the same weights, no positions."""
    from transformers.models.gpt_oss import modeling_gpt_oss

    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        **{**GROUPED, "num_hidden_layers": 2, "head_dim": 24, "sliding_window": 8},
        num_local_experts=2,
        num_experts_per_tok=1,
        attn_implementation="eager",
    )
    theirs = modeling_gpt_oss.GptOssAttention(config, 0)
    torch.nn.init.normal_(theirs.sinks)
    spec = TransformerSpec(
        family="llama",
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_query_groups=2,
        kv_channels=24,
        vocab_size=211,
        sequence_length=LENGTH,
        position_embedding_type="none",
        add_bias_linear=False,
        add_attention_bias=True,
        softmax_type="learnable",
    )
    spec = with_windows(spec, 8, skip_freq=2)
    ours = build_layers(spec, "cpu")["block window+dense"].self_attention
    parts = (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    weights = {
        "linear_qkv.weight": torch.cat([one.weight for one in parts]),
        "linear_qkv.bias": torch.cat([one.bias for one in parts]),
        "linear_proj.weight": theirs.o_proj.weight,
        "linear_proj.bias": theirs.o_proj.bias,
        "core_attention.softmax_offset": theirs.sinks,
    }
    ours.load_state_dict(weights)
    sizes = [sum(p.numel() for p in one.parameters()) for one in (ours, theirs)]
    assert sizes[0] == sizes[1]
    hidden = torch.randn(1, LENGTH, 64)
    angles = torch.ones(1, LENGTH, 12), torch.zeros(1, LENGTH, 12)
    every = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    hidden_pairs = every.triu(1) | every.tril(-8)
    mask = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(hidden_pairs, float("-inf"))
    expected, _ = theirs(hidden, position_embeddings=angles, attention_mask=mask)
    torch.testing.assert_close(ours(hidden), expected)


NORMS = {
    "llama": {
        "input_norm": "input_layernorm",
        "pre_mlp_norm": "post_attention_layernorm",
    },
    "olmo2": {
        "post_attention_norm": "post_attention_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    "gemma2": {
        "input_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "pre_mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    "stablelm, parallel": {"input_norm": "input_layernorm"},
}
"""Names of the norms of a block here, and in transformers."""

SAME = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "rms_norm_eps": 1e-5,
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
    "hidden_activation": "gelu",
    "hidden_act": "silu",
}
"""Values that do not change what a model costs, and that the modules here have."""

ALIKE = {
    "llama": ("llama", {}),
    "qwen3": ("llama", {"head_dim": 24}),
    "olmo2": ("olmo2", {}),
    "gemma2": ("gemma2", {"head_dim": 24}),
    "stablelm, parallel": ("stablelm, parallel", {}),
}


def block_weights(
    layer: Any, norms: dict[str, str], *, adds_one: bool
) -> dict[str, Any]:
    """Return the weights of transformers' block under the names of ours."""
    attention, mlp = layer.self_attn, layer.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    gates = (mlp.gate_proj, mlp.up_proj)
    found = {
        "self_attention.linear_qkv.weight": torch.cat([one.weight for one in parts]),
        "self_attention.linear_proj.weight": attention.o_proj.weight,
        "mlp.linear_fc1.weight": torch.cat([one.weight for one in gates]),
        "mlp.linear_fc2.weight": mlp.down_proj.weight,
    }
    of_heads = {"query_norm": "q_norm", "key_norm": "k_norm"}
    scaled = [(own, getattr(layer, name)) for own, name in norms.items()]
    scaled += [
        (f"self_attention.{own}", getattr(attention, name))
        for own, name in of_heads.items()
        if hasattr(attention, name)
    ]
    for own, norm in scaled:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        found[f"{own}.weight"] = norm.weight + (1 if adds_one else 0)
        if getattr(norm, "bias", None) is not None:
            found[f"{own}.bias"] = norm.bias
    return found


@failures.over("kind", ALIKE)
def test_blocks_compute_what_those_of_transformers_do(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same weights: two blocks, with and without windows where they differ."""
    torch.manual_seed(0)
    norms, changes = ALIKE[kind]
    name, values = CONFIGS[kind]
    own = {**values, **SAME, **changes, "num_hidden_layers": 3}
    monkeypatch.setitem(CONFIGS, kind, (name, own))
    spec = own_spec(tmp_path, kind)
    theirs = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, name)(**own), attn_implementation="eager"
    ).eval()
    weights = [
        block_weights(one, NORMS[norms], adds_one=kind == "gemma2")
        for one in theirs.model.layers
    ]
    tokens = torch.randint(211, (1, LENGTH))
    states = theirs(tokens, output_hidden_states=True, use_cache=False).hidden_states
    layers = build_layers(spec, "cpu")
    for place in range(2):
        alternates = len(spec.block_kinds) > 1
        block = f"block {spec.block_pattern[place]}" if alternates else "block"
        layers[block].load_state_dict(weights[place])
        found = layers[block](states[place])
        torch.testing.assert_close(found, states[place + 1], rtol=1e-4, atol=1e-5)


WINDOWED = ("mistral", "gemma2", "gemma3", "phi3", "olmo3", "qwen2, late windows")


@failures.over("kind", WINDOWED)
def test_windows_are_in_the_blocks_that_transformers_has_them_in(
    tmp_path: Path, kind: str
) -> None:
    spec, layers = own_spec(tmp_path, kind), hub_model(kind).model.layers
    windows = [getattr(one.self_attn, "sliding_window", None) for one in layers]
    if kind in {"mistral", "phi3"}:  # their modules take it from the configuration
        windows = [spec.window_size] * len(layers)
    assert [one is not None for one in windows] == [
        one.startswith("window") for one in spec.block_pattern
    ]
    assert spec.window_size == 8
