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
_OTHER_PARTS = re.compile(r"deepseek|nemotron|mamba|jamba|kimi")
_LOCAL_TEST = re.compile(r"mcore_(?!te_|moe)")
_FUSED_TEST = re.compile(r"_cp[0-9]|nondeterministic|memory_speed|resume")

_TUNED = re.compile(r"\b(LoRA|LORA|SFT)\b(?!\.py)")


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
        "moe_router_topk": reading.needed("moe_topk") if experts else 0,
        "num_token_types": 2 if family == "bert" else 0,
    }
    with refusing("no-such-model"):
        return TransformerSpec(
            family=family,
            gated_linear_unit=gated,
            normalization="rmsnorm" if gated else "layernorm",
            position_embedding_type="rope" if gated else "learned",
            tie_word_embeddings=not gated and not grouped,
            add_bias_linear=not gated,
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
    tuned = _TUNED.search(notes) or _TUNED.search(reading.row.words("model"))
    if tuned is not None:
        raise RowRefusedError("fine-tuning", f"{tuned[1]} is not modelled")


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


def _inner_width(reading: Reading, experts: int | None, *, gated: bool) -> int:
    if experts:
        width = reading.row.whole("moe_ffn")
        return reading.needed("ffn") if width is None else width
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
