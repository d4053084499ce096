"""From a row to the architecture that was trained."""

import re

from estimators.models.spec import TransformerSpec
from nestsim.validation.reading import Reading
from nestsim.validation.refusals import RowRefusedError, refusing

GPT_VOCABULARY = 50257
"""GPT-2's, where a GPT's is not stated."""

LLAMA_VOCABULARY = 32000
"""Llama 2's, where that of a model with gated feed-forward layers is not stated."""

_GATED_NAMES = re.compile(
    r"llama|mistral|mixtral|qwen|internlm|deepseek|gemma|maxtext|yi-|gpt[ -]oss"
)
_OTHER_PARTS = re.compile(
    r"deepseek|mamba|jamba|kimi|nemotron[ _-]?h|nemotron.*(nano|super|ultra)"
)
"""Models with state spaces or latent attention. Nemotron-4 and what came before it are
dense transformers."""

_PLAIN_RELU = re.compile(r"nemotron")
"""Models without gates and biases that have rotary positions: Parmar et al.,
"Nemotron-4 15B Technical Report", 2024, section 2."""

_ADAPTED = re.compile(r"\b(lora|qlora|peft)\b(?!\.py)")
_TUNED = re.compile(r"\bsft\b(?!\.py)")


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
    hidden, heads = reading.needed("hidden"), reading.needed("heads")
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
        "vocab_size": reading.given("vocab", vocabulary),
        "num_moe_experts": experts or 0,
        "moe_router_topk": _topk(reading) if experts else 0,
        "num_token_types": 2 if family == "bert" else 0,
    }
    with refusing("no-such-model"):
        return TransformerSpec(
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
    if _OTHER_PARTS.search(model):
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


def _topk(reading: Reading) -> int:
    if "mixtral" in reading.words("model"):
        return reading.given("moe_topk", 2)
    return reading.needed("moe_topk")


def _inner_width(reading: Reading, experts: int | None, *, gated: bool) -> int:
    if experts:
        width = reading.row.whole("moe_ffn")
        return reading.needed("ffn") if width is None else width
    if gated:
        return reading.needed("ffn")
    return reading.given("ffn", 4 * reading.needed("hidden"))


def _attention(reading: Reading) -> str:
    written = reading.words("flash_attention")
    if written.startswith("yes"):
        return "flash"
    if written.startswith("no") and "not stated" not in written:
        return "plain"
    if re.search(r"\bte\b|cudnn", written):
        # Transformer Engine chooses a fused kernel where there is one.
        reading.assume("flash attention")
        return "flash"
    reading.assume(f"{reading.preset.attention} attention")
    return reading.preset.attention
