"""From a row to the table [model] of a scenario: the architecture that was trained."""

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from estimators.models.library import load_model, model_names, model_words
from nestsim.features.validation.columns import RowRefusedError
from nestsim.features.validation.reading import (
    Converter,
    JobReading,
    Table,
    fill_table,
    meaning,
    name_pattern,
    vocabulary,
)

GPT_VOCABULARY = 50257
"""GPT-2's, where a GPT's is not stated."""

LLAMA_VOCABULARY = 32000
"""Llama 2's, where that of a model with gated feed-forward layers is not stated."""

_GATED_NAMES = (
    r"llama|mistral|mixtral|qwen|internlm|deepseek|gemma|maxtext|yi-|gpt[ -]oss"
)
_OTHER_PARTS = (
    r"deepseek|mamba|jamba|zamba|rwkv|kimi|moonlight|qwen3[ _-]?next|[ _-]vl\b|[ _-]vl_"
    r"|nemotron[ _-]?h|nemotron.*(nano|super|ultra)"
)
"""Models with state spaces or linear attention, with a part that sees, or with latent
attention that `_LATENT` does not know. Nemotron-4 and what came before it are dense
transformers."""

_LATENT = (
    r"deepseek[ _-]?v2([ _-]?lite)?(?![.\d])|deepseek[ _-]?(v3|r1)(?!\.)"
    r"|kimi[ _-]?k2(?!\.)|moonlight"
)
_WHOLE_QUERIES = r"lite|moonlight"
"""Pattern of models whose queries are not compressed."""

_PLAIN_RELU = r"nemotron"
"""Models without gates and biases that have rotary positions: Parmar et al.,
"Nemotron-4 15B Technical Report", 2024, section 2."""

_BERT_LONGEST, _BERT_MEAN = 512, 256
"""Tokens of BERT's training sequences in their second phase, and on average, on
Wikipedia: half of them are padding (Krell et al., "Efficient Sequence Packing without
Cross-contamination", 2021, abstract)."""

_WITHOUT_PADDING = r"unpad|padding removal|packed sequences"

_BINNED, _BIN = r"\bdle\b|lddl", 64
"""NVIDIA's data loader for BERT deals out sequences of like length: those of the second
phase in bins of 64 tokens, half of which is padding on average
(DeepLearningExamples, PyTorch BERT, scripts/run_pretraining.sh, phase2_bin_size)."""

_ADAPTED = r"\b(lora|qlora|peft)\b(?!\.py)"
_TUNED = r"\bsft\b(?!\.py)"

_LOCAL_TEST = r"mcore_(?!te_|moe)"
_FUSED_TEST = r"_cp[0-9]|nondeterministic|memory_speed|resume"

_COMPARED = ("hidden_size", "moe_router_topk")
"""Sizes that a row must share with the published model to be that model, or the first
layers of it."""

_LOOKED_UP: Mapping[str, str] = MappingProxyType(
    {
        "layers": "num_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "moe_topk": "moe_router_topk",
        "moe_ffn": "moe_ffn_hidden_size",
    }
)
"""Column -> size of the model of the library that a row names, where it is empty."""

_PUBLISHED = (
    "moe_layer_freq",
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
    "window_attn_skip_freq",
)
"""What such a row takes from it: blocks, routers, windows, norms, which no column
says."""


def model_table(reading: JobReading) -> Table:
    """Return the table [model] of a row.

    Raises
    ------
    RowRefusedError
        If a size is missing or the model has parts that are not modelled.
    """
    _check_tuning(reading)
    if (hybrid := _hybrid(reading)) is not None:
        return hybrid
    _check_known(reading)
    table = fill_table(reading, _COLUMNS)
    if (name := _published_name(reading, table)) is not None:
        words = _published_words(name, table)
        table = {key: value for key, value in table.items() if key not in _PUBLISHED}
        table |= words
        if reading.says("model", "w/ mtp"):
            table["mtp_num_layers"] = load_model(name).mtp_num_layers
        reading.assume(f"blocks and routers of {name}")
    if (length := _mean_length(reading, table)) is not None:
        table["mean_sequence_length"] = length
    return table | reading.by_source("model")


@cache
def _library_names() -> tuple[tuple[str, str], ...]:
    """Return patterns of the library's models, long names first, and their names."""
    names = sorted(model_names(), key=len, reverse=True)
    return tuple((name_pattern(name), name) for name in names)


def library_name(reading: JobReading) -> str | None:
    """Return the model of the library that a row names, None if it has none."""
    patterns = (*vocabulary().published, *_library_names())
    return meaning(patterns, reading.words("model"))


def _hybrid(reading: JobReading) -> Table | None:
    """Return the hybrid of the library that a row names: no column says its blocks.

    None for others, and for rows whose width or depth is not the model's.
    """
    name = library_name(reading)
    if name is None or not load_model(name).has_mamba:
        return None
    model, row = load_model(name), reading.row
    if row.whole("hidden") not in {None, model.hidden_size}:
        return None
    if row.whole("layers") not in {None, model.num_layers}:
        return None
    reading.assume(f"all sizes of {name}")
    words = model_words(name)
    return {key: words[key] for key in words if key not in {"source", "note"}} | {
        "num_layers": model.num_layers,
        "sequence_length": reading.needed("seq_len"),
        "attention": _attention(reading, {}),
    }


def _published_name(reading: JobReading, table: Table) -> str | None:
    """Return the model of the library that a row with experts is about, if any.

    A row with fewer layers is about the first of that model, whatever experts it has.
    Layers of multi-token prediction are there if the row says so.
    """
    name = library_name(reading)
    if name is None or not reading.row.whole("num_experts"):
        return None
    published, depth = load_model(name), table["num_layers"]
    assert isinstance(depth, int)
    same = all(table[size] == getattr(published, size) for size in _COMPARED)
    same &= depth < published.num_layers or (
        depth == published.num_layers
        and table["num_moe_experts"] == published.num_moe_experts
    )
    return name if same else None


def _published_words(name: str, table: Table) -> Table:
    """Return what a row takes from a model, of the first layers that the row has."""
    words, published = model_words(name), load_model(name)
    taken: Table = {key: words[key] for key in _PUBLISHED if words.get(key)}
    depth = table["num_layers"]
    assert isinstance(depth, int)
    if published.block_pattern and depth < published.num_layers:
        kinds = published.block_pattern[:depth]
        taken["moe_layer_freq"] = [int("experts" in kind) for kind in kinds]
    if table["num_moe_experts"] != published.num_moe_experts:
        # Groups of experts are of as many as the model has.
        for key in ("moe_router_num_groups", "moe_router_group_topk"):
            taken.pop(key, None)
    return taken


def _mean_length(reading: JobReading, table: Table) -> int | None:
    """Return the tokens of BERT's sequences where the software skips their padding."""
    described = f"{reading.words('software')} {reading.words('notes')}"
    longest = table["sequence_length"]
    if table["family"] != "bert" or longest != _BERT_LONGEST:
        return None
    if re.search(_WITHOUT_PADDING, described):
        length = _BERT_MEAN
    elif re.search(_BINNED, described):
        length = _BERT_MEAN + _BIN // 2
    else:
        return None
    reading.assume(f"{length} of {longest} tokens on average, no padding")
    return length


def _check_known(reading: JobReading) -> None:
    """Refuse models with parts that there are no modules for."""
    is_latent = reading.says("model", _LATENT) and reading.row.whole("num_experts")
    if reading.says("model", _OTHER_PARTS) and not is_latent:
        raise RowRefusedError(
            "unknown-model",
            f"{reading.row.words('model')} has layers other than attention and "
            "feed-forward as they are modelled",
        )
    if reading.says("model", "distill"):
        raise RowRefusedError("unknown-model", "a teacher stands beside the model")


def _check_tuning(reading: JobReading) -> None:
    """Refuse unknown adapters, and note jobs that tune all weights."""
    described = f"{reading.words('model')} {reading.words('notes')}"
    adapted = re.search(_ADAPTED, described)
    if adapted is not None and "adapter" not in reading.habit.training:
        raise RowRefusedError(
            "fine-tuning", f"rank and targets of {adapted[1]} are not stated"
        )
    if re.search(_TUNED, described):
        # All weights are trained, on sequences that are packed to their full length.
        reading.assume("fine-tuning as training on full sequences")


def _family(reading: JobReading, _table: Table) -> str:
    if reading.row.whole("num_experts"):
        return "mixtral"
    if reading.says("model", r"\bbert\b"):
        return "bert"
    gated = reading.words("gated_mlp")
    if gated.startswith(("yes", "no")):
        return "llama" if gated.startswith("yes") else "gpt"
    is_llama = reading.says("model", _GATED_NAMES)
    reading.assume(f"gated_mlp = {'yes' if is_llama else 'no'}, by the model's name")
    return "llama" if is_llama else "gpt"


def _is_gated(table: Table) -> bool:
    return table["family"] in {"llama", "mixtral"}


def _size(reading: JobReading, column: str) -> int:
    """Return a size; where it is not stated, that of the published model it names.

    Not if the row's width is another: then it is another model of that name.
    """
    if reading.row.whole(column) is None and (name := library_name(reading)):
        model = load_model(name)
        known = getattr(model, _LOOKED_UP[column])
        if known and reading.row.whole("hidden") in {None, model.hidden_size}:
            return reading.given(column, known)
    return reading.needed(column)


def _dropout(reading: JobReading, table: Table) -> float | None:
    dropout = reading.preset.dropout
    if _is_gated(table) or not dropout:
        return None
    reading.assume(f"dropout {dropout:g}")
    return dropout


def _positions(reading: JobReading, table: Table) -> str | None:
    if _is_gated(table) or not reading.says("model", _PLAIN_RELU):
        return None
    reading.assume("rotary positions, no biases, squared ReLU as costly as GELU")
    return "rope"


def _ties(reading: JobReading, table: Table) -> bool | None:
    # Recipes with grouped queries are of a time that no longer ties the head.
    grouped = reading.row.whole("kv_heads") not in {
        None,
        table["num_attention_heads"],
    }
    return False if grouped or "position_embedding_type" in table else None


def _depth(reading: JobReading, _table: Table) -> int:
    """Return the depth; where it is not stated, what makes a GPT's parameters.

    ``P = 12 L h^2 (1 + 13 / (12 h)) + (V + s) h`` (Narayanan et al.,
    SC'21, equation 2).
    """
    stated = reading.row.whole("layers")
    count, words = reading.row.number("params_b"), reading.row.whole("vocab")
    if stated is not None or count is None or words is None:
        return _size(reading, "layers")
    hidden = _size(reading, "hidden")
    outside = (words + reading.needed("seq_len")) * hidden
    depth = (count * 1e9 - outside) / (12 * hidden**2 + 13 * hidden)
    if reading.words("gated_mlp").startswith("yes") or depth < 1:
        return reading.needed("layers")
    reading.assume(f"layers = {round(depth)}, as {count:g} billion parameters make")
    return round(depth)


def _inner_width(reading: JobReading, table: Table) -> int:
    if table["family"] == "mixtral":
        # Never `ffn`, the width of dense layers.
        return _size(reading, "moe_ffn")
    if _is_gated(table):
        return reading.needed("ffn")
    return reading.given("ffn", 4 * reading.needed("hidden"))


def _shared_width(reading: JobReading, table: Table) -> int | None:
    """Return the width of the experts that all tokens go to, by the model's name."""
    count = meaning(vocabulary().shared_experts, reading.words("model"))
    if table["family"] != "mixtral" or count is None:
        return None
    reading.assume(f"{count} shared experts, dense layers as if they had experts, too")
    return count * _inner_width(reading, table)


def _latent(setting: str) -> Converter:
    """Return the converter of a width of latent attention, by the model's name."""

    def width(reading: JobReading, table: Table) -> int | None:
        if table["family"] != "mixtral" or not reading.says("model", _LATENT):
            return None
        reading.assume("latent attention of the published widths")
        if not reading.says("model", "w/o? mtp"):
            reading.assume("no multi-token prediction")
        if setting == "q_lora_rank" and reading.says("model", _WHOLE_QUERIES):
            return None
        return vocabulary().latent_widths[setting]

    return width


def _head_width(reading: JobReading, table: Table) -> int | None:
    """Return the width of heads, that of the published model of these sizes if unsaid.

    None for what heads and hidden size make.
    """
    latent = _latent("kv_channels")(reading, table)
    stated = reading.row.whole("head_dim") if latent is None else latent
    name = library_name(reading)
    if stated is not None or name is None:
        return stated  # type: ignore[return-value]  # a width
    model = load_model(name)
    heads, hidden = (table[size] for size in ("num_attention_heads", "hidden_size"))
    if (model.num_attention_heads, model.hidden_size) != (heads, hidden):
        return None
    if model.kv_channels * model.num_attention_heads == model.hidden_size:
        return None
    return reading.given("head_dim", model.kv_channels)


def _vocabulary(reading: JobReading, table: Table) -> int:
    usual = LLAMA_VOCABULARY if _is_gated(table) else GPT_VOCABULARY
    return reading.given("vocab", usual)


def _topk(reading: JobReading, table: Table) -> int | None:
    if table["family"] != "mixtral":
        return None
    if reading.says("model", "mixtral"):
        return reading.given("moe_topk", 2)
    return _size(reading, "moe_topk")


def _is_unfused_test(reading: JobReading) -> bool:
    """Return whether the row is a test of Megatron-LM without fused attention.

    Megatron's own layers (``--transformer-impl local``) have none; with those of
    Transformer Engine, which the test's name says, tests of type "regular" that are to
    be deterministic ask for ``--attention-backend: unfused`` (their model_config.yaml).
    """
    if not reading.says("model", "mcore_"):
        return False
    if reading.says("model", _LOCAL_TEST):
        return True
    is_regular = reading.says("notes", "test type regular")
    return is_regular and not reading.says("model", _FUSED_TEST)


def _attention(reading: JobReading, _table: Table) -> str:
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


_COLUMNS: Mapping[str, Converter] = MappingProxyType(
    {
        "family": _family,
        "hidden_size": lambda reading, _: _size(reading, "hidden"),
        "num_attention_heads": lambda reading, _: _size(reading, "heads"),
        "hidden_dropout": _dropout,
        "attention_dropout": _dropout,
        "position_embedding_type": _positions,
        "add_bias_linear": lambda _, table: (
            False if "position_embedding_type" in table else None
        ),
        "tie_word_embeddings": _ties,
        "num_layers": _depth,
        "sequence_length": lambda reading, _: reading.needed("seq_len"),
        "ffn_hidden_size": _inner_width,
        "num_query_groups": lambda reading, _: reading.given(
            "kv_heads", _size(reading, "heads")
        ),
        "moe_shared_expert_intermediate_size": _shared_width,
        "kv_channels": _head_width,
        **{
            setting: _latent(setting)
            for setting in (
                "kv_lora_rank",
                "qk_pos_emb_head_dim",
                "v_head_dim",
                "q_lora_rank",
            )
        },
        "vocab_size": _vocabulary,
        "num_moe_experts": lambda reading, _: reading.row.whole("num_experts"),
        "moe_router_topk": _topk,
        "attention": _attention,
    }
)
"""Setting of [model] -> what makes it of a row."""
