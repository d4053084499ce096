"""From a row to the architecture that was trained."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from estimators.models.spec import TransformerSpec, without_padding
from nestsim.features.validation.rows.columns import Reading, RowRefusedError, refusing
from nestsim.features.validation.rows.published import as_published

GPT_VOCABULARY = 50257
"""GPT-2's, where a GPT's is not stated."""

LLAMA_VOCABULARY = 32000
"""Llama 2's, where that of a model with gated feed-forward layers is not stated."""

_GATED_NAMES = re.compile(
    r"llama|mistral|mixtral|qwen|internlm|deepseek|gemma|maxtext|yi-|gpt[ -]oss"
)
_OTHER_PARTS = re.compile(
    r"deepseek|mamba|jamba|zamba|rwkv|kimi|moonlight|qwen3[ _-]?next|[ _-]vl\b|[ _-]vl_"
    r"|nemotron[ _-]?h|nemotron.*(nano|super|ultra)"
)
"""Models with state spaces or linear attention, with a part that sees, or with latent
attention that `_LATENT` does not know. Nemotron-4 and what came before it are dense
transformers."""

_LATENT = re.compile(
    r"deepseek[ _-]?v2([ _-]?lite)?(?![.\d])|deepseek[ _-]?(v3|r1)(?!\.)"
    r"|kimi[ _-]?k2(?!\.)|moonlight"
)
_LATENT_WIDTHS: Mapping[str, int] = MappingProxyType(
    {
        "kv_lora_rank": 512,
        "kv_channels": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
    }
)
"""DeepSeek-V2 and V3 and Kimi K2 have the same (DeepSeek-AI, "DeepSeek-V2", 2024,
section 3.1.2; "DeepSeek-V3", 2024, section 4.2; Moonshot AI, "Kimi K2", 2025)."""

_QUERY_RANK = 1536
"""Rank of the queries of the models of `_LATENT_WIDTHS`, but for the small ones of
`_WHOLE_QUERIES` ("DeepSeek-V2", appendix B)."""

_WHOLE_QUERIES = re.compile(r"lite|moonlight")
"""Pattern of models whose queries are not compressed."""

_SHARED_EXPERTS = (
    (re.compile(r"deepseek[ _-]?v2|moonlight"), 2),
    (re.compile(r"deepseek|kimi"), 1),
    # Meta, Llama 4 model card, 2025: one, as wide as a routed one.
    (re.compile(r"llama[ _-]?4"), 1),
    # Zhipu AI, "GLM-4.5", 2025, table 1.
    (re.compile(r"glm[ _-]?4\.[56]"), 1),
)
"""Name -> experts of each layer that all tokens go to."""

_SIZES = (
    (
        re.compile(r"deepseek[ _-]?v2"),
        {"hidden": 5120, "heads": 128, "moe_topk": 6, "moe_ffn": 1536},
    ),
    (
        re.compile(r"deepseek[ _-]?(v3|r1)"),
        {"hidden": 7168, "heads": 128, "moe_topk": 8, "moe_ffn": 2048},
    ),
)
"""Name -> sizes that it stands for where columns are empty, from the same reports."""

_PLAIN_RELU = re.compile(r"nemotron")
"""Models without gates and biases that have rotary positions: Parmar et al.,
"Nemotron-4 15B Technical Report", 2024, section 2."""

_BERT_LONGEST, _BERT_MEAN = 512, 256
"""Tokens of BERT's training sequences in their second phase, and on average, on
Wikipedia: half of them are padding (Krell et al., "Efficient Sequence Packing without
Cross-contamination", 2021, abstract)."""

_WITHOUT_PADDING = re.compile(r"unpad|padding removal|packed sequences")

_BINNED, _BIN = re.compile(r"\bdle\b|lddl"), 64
"""NVIDIA's data loader for BERT deals out sequences of like length: those of the second
phase in bins of 64 tokens, half of which is padding on average
(DeepLearningExamples, PyTorch BERT, scripts/run_pretraining.sh, phase2_bin_size)."""

_ADAPTED = re.compile(r"\b(lora|qlora|peft)\b(?!\.py)")
_TUNED = re.compile(r"\bsft\b(?!\.py)")

_LOCAL_TEST = re.compile(r"mcore_(?!te_|moe)")
_FUSED_TEST = re.compile(r"_cp[0-9]|nondeterministic|memory_speed|resume")


def read_model(reading: Reading) -> TransformerSpec:
    """Return the architecture of a row.

    Raises
    ------
    RowRefusedError
        If a size is missing or the model has parts that are not modelled.
    """
    _check_known(reading)
    experts = reading.row.whole("num_experts")
    family = _family(reading, experts)
    hidden, heads = _size(reading, "hidden"), _size(reading, "heads")
    vocabulary = LLAMA_VOCABULARY if family in {"llama", "mixtral"} else GPT_VOCABULARY
    gated = family in {"llama", "mixtral"}
    dropout = 0.0 if gated else reading.preset.dropout
    if dropout:
        reading.assume(f"dropout {dropout:g}")
    # Recipes with grouped queries are of a time that no longer ties the head.
    grouped = reading.row.whole("kv_heads") not in {None, heads}
    rotary = gated or _PLAIN_RELU.search(reading.words("model")) is not None
    if rotary and not gated:
        reading.assume("rotary positions, no biases, squared ReLU as costly as GELU")
    values = {
        "num_layers": _num_layers(reading, hidden),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "sequence_length": reading.needed("seq_len"),
        "ffn_hidden_size": _inner_width(reading, experts, gated=gated),
        "num_query_groups": reading.given("kv_heads", heads),
        "kv_channels": reading.row.whole("head_dim") or 0,
        "moe_shared_expert_intermediate_size": _shared_width(reading, experts),
        **_latent(reading, experts),
        "vocab_size": reading.given("vocab", vocabulary),
        "num_moe_experts": experts or 0,
        "moe_router_topk": _topk(reading) if experts else 0,
        "num_token_types": 2 if family == "bert" else 0,
    }
    with refusing("no-such-model"):
        spec = TransformerSpec(
            family=family,
            gated_linear_unit=gated,
            normalization="rmsnorm" if gated else "layernorm",
            position_embedding_type="rope" if rotary else "learned",
            tie_word_embeddings=not rotary and not grouped,
            add_bias_linear=not rotary,
            hidden_dropout=dropout,
            attention_dropout=dropout,
            attention_implementation=_attention(reading),
            causal=family != "bert",
            **values,  # type: ignore[arg-type]  # whole numbers, all of them
        )
        return _unpadded(reading, as_published(reading, spec))


def _unpadded(reading: Reading, spec: TransformerSpec) -> TransformerSpec:
    """Leave out the padding of a BERT's sequences where the software does."""
    described = f"{reading.words('software')} {reading.words('notes')}"
    if spec.family != "bert" or spec.sequence_length != _BERT_LONGEST:
        return spec
    if _WITHOUT_PADDING.search(described):
        length = _BERT_MEAN
    elif _BINNED.search(described):
        length = _BERT_MEAN + _BIN // 2
    else:
        return spec
    reading.assume(f"{length} of {spec.sequence_length} tokens on average, no padding")
    return without_padding(spec, length)


def _num_layers(reading: Reading, hidden: int) -> int:
    """Return the depth; where it is not stated, what makes a GPT's parameters.

    ``P = 12 L h^2 (1 + 13 / (12 h)) + (V + s) h`` (Narayanan et al.,
    SC'21, equation 2).
    """
    stated = reading.row.whole("layers")
    count, vocabulary = reading.row.number("params_b"), reading.row.whole("vocab")
    if stated is not None or count is None or vocabulary is None:
        return reading.needed("layers")
    outside = (vocabulary + reading.needed("seq_len")) * hidden
    depth = (count * 1e9 - outside) / (12 * hidden**2 + 13 * hidden)
    if reading.words("gated_mlp").startswith("yes") or depth < 1:
        return reading.needed("layers")
    reading.assume(f"layers = {round(depth)}, as {count:g} billion parameters make")
    return round(depth)


def _check_known(reading: Reading) -> None:
    """Refuse models and jobs with parts that there are no modules for."""
    model, notes = reading.words("model"), reading.row.words("notes")
    is_latent = _LATENT.search(model) and reading.row.whole("num_experts")
    if _OTHER_PARTS.search(model) and not is_latent:
        raise RowRefusedError(
            "unknown-model",
            f"{reading.row.words('model')} has layers other than attention and "
            "feed-forward as they are modelled",
        )
    described = f"{model} {notes.lower()}"
    adapted = _ADAPTED.search(described)
    if adapted is not None:
        raise RowRefusedError("fine-tuning", f"{adapted[1]} is not modelled")
    if _TUNED.search(described):
        # All weights are trained, on sequences that are packed to their full length.
        reading.assume("fine-tuning as training on full sequences")


def _family(reading: Reading, experts: int | None) -> str:
    if experts:
        return "mixtral"
    if re.search(r"\bbert\b", reading.words("model")):
        return "bert"
    gated = reading.words("gated_mlp")
    if gated.startswith(("yes", "no")):
        return "llama" if gated.startswith("yes") else "gpt"
    is_llama = _GATED_NAMES.search(reading.words("model")) is not None
    reading.assume(f"gated_mlp = {'yes' if is_llama else 'no'}, by the model's name")
    return "llama" if is_llama else "gpt"


def _size(reading: Reading, column: str) -> int:
    """Return a size; where it is not stated, that of the published model it names."""
    if reading.row.whole(column) is None:
        for names, sizes in _SIZES:
            if names.search(reading.words("model")) and column in sizes:
                return reading.given(column, sizes[column])
    return reading.needed(column)


def _latent(reading: Reading, experts: int | None) -> dict[str, int]:
    """Return the widths of latent attention, by the model's name."""
    name = reading.words("model")
    if not experts or not _LATENT.search(name):
        return {}
    reading.assume("latent attention of the published widths")
    if "w/o mtp" not in name and "w/ mtp" not in name:
        reading.assume("no multi-token prediction")
    rank = 0 if _WHOLE_QUERIES.search(name) else _QUERY_RANK
    return {**_LATENT_WIDTHS, "q_lora_rank": rank}


def _shared_width(reading: Reading, experts: int | None) -> int:
    """Return the width of the experts that all tokens go to, by the model's name."""
    name = reading.words("model")
    counts = [count for names, count in _SHARED_EXPERTS if names.search(name)]
    if not experts or not counts:
        return 0
    reading.assume(
        f"{counts[0]} shared experts, dense layers as if they had experts, too"
    )
    return counts[0] * _inner_width(reading, experts, gated=True)


def _topk(reading: Reading) -> int:
    if "mixtral" in reading.words("model"):
        return reading.given("moe_topk", 2)
    return _size(reading, "moe_topk")


def _inner_width(reading: Reading, experts: int | None, *, gated: bool) -> int:
    if experts:
        if reading.row.whole("moe_ffn") is None and reading.row.whole("ffn"):
            return reading.needed("ffn")
        return _size(reading, "moe_ffn")
    if gated:
        return reading.needed("ffn")
    return reading.given("ffn", 4 * reading.needed("hidden"))


def _is_unfused_test(reading: Reading) -> bool:
    """Return whether the row is a test of Megatron-LM without fused attention.

    Megatron's own layers (``--transformer-impl local``) have none; with those of
    Transformer Engine, which the test's name says, tests of type "regular" that are to
    be deterministic ask for ``--attention-backend: unfused`` (their model_config.yaml).
    """
    model = reading.words("model")
    if "mcore_" not in model:
        return False
    is_regular = "test type regular" in reading.words("notes")
    if _LOCAL_TEST.search(model):
        return True
    return is_regular and _FUSED_TEST.search(model) is None


def _attention(reading: Reading) -> str:
    written = reading.words("flash_attention")
    if written.startswith("yes"):
        return "flash"
    if written.startswith("no") and "not stated" not in written:
        return "plain"
    if _is_unfused_test(reading):
        reading.assume("plain attention, as Megatron-LM's test has it")
        return "plain"
    if re.search(r"\bte\b|cudnn", written):
        # Transformer Engine chooses a fused kernel where there is one.
        reading.assume("flash attention")
        return "flash"
    reading.assume(f"{reading.preset.attention} attention")
    return reading.preset.attention
