"""What published models have that no column says: blocks, routers, windows, norms."""

import re
from dataclasses import replace

from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec
from nestsim.features.validation.rows.columns import Reading

_NAMES = (
    (re.compile(r"deepseek[ _-]?v2[ _-]?lite"), "deepseek-v2-lite"),
    (re.compile(r"deepseek[ _-]?v2"), "deepseek-v2"),
    (re.compile(r"deepseek[ _-]?(v3|r1)"), "deepseek-v3"),
    (re.compile(r"kimi[ _-]?k2"), "kimi-k2"),
    (re.compile(r"qwen3[ _-]?30b"), "qwen3-30b-a3b"),
    (re.compile(r"qwen3[ _-]?235b"), "qwen3-235b-a22b"),
    (re.compile(r"gpt[ -]oss[ _-]?20b"), "gpt-oss-20b"),
    (re.compile(r"gpt[ -]oss[ _-]?120b"), "gpt-oss-120b"),
    (re.compile(r"glm[ _-]?4\.5[ _-]?air"), "glm-4.5-air"),
    (re.compile(r"glm[ _-]?4\.5"), "glm-4.5"),
    (re.compile(r"llama[ _-]?4.*scout"), "llama4-scout"),
    (re.compile(r"llama[ _-]?4.*maverick"), "llama4-maverick"),
)
"""Names of models with experts -> that of the library, the first that fits."""

_COMPARED = ("num_layers", "hidden_size", "num_moe_experts", "moe_router_topk")
"""Sizes that a row must share with the published model to be that model."""

_TAKEN = (
    "block_pattern",
    "ffn_hidden_size",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_gate",
    "moe_router_score_function",
    "moe_router_pre_softmax",
    "moe_router_enable_expert_bias",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "add_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "rotary_percent",
    "softmax_type",
    "window_size",
)
"""What such a row takes from it."""


def as_published(reading: Reading, spec: TransformerSpec) -> TransformerSpec:
    """Return the architecture with what its published model has beside its sizes.

    Only where the sizes are those of the model: a row with fewer layers is a cut of its
    author's. Layers of multi-token prediction are there if the row says so.
    """
    name = reading.words("model")
    found = [model for names, model in _NAMES if names.search(name)]
    if not found or not spec.num_moe_experts:
        return spec
    published = load_model(found[0])
    if any(getattr(spec, size) != getattr(published, size) for size in _COMPARED):
        return spec
    taken = {field: getattr(published, field) for field in _TAKEN}
    depths = published.mtp_num_layers if "w/ mtp" in name else 0
    reading.assume(f"blocks and routers of {found[0]}")
    return replace(spec, **taken, mtp_num_layers=depths)
