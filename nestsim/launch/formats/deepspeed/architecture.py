"""The model that options of Megatron-DeepSpeed build, and the options of a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from estimators.models.limits import MAX_LAYERS, MAX_VOCABULARY
from estimators.models.spec import DENSE_BLOCK, EXPERT_BLOCK, TransformerSpec
from nestsim.launch.formats.deepspeed.options import flag_of, option_of
from nestsim.launch.formats.deepspeed.script import TrainerOptions
from nestsim.scenario.model import HuggingFaceModel, LibraryModel, SpelledOutModel
from topologies.errors import InputError

GPT2_VOCABULARY = 50257
"""Entries of GPT-2's vocabulary, that of ``--tokenizer-type GPT2BPETokenizer``."""

LLAMA_VOCABULARY = 32000
"""Entries of the vocabulary of Llama and Llama 2."""

DROPOUT = 0.1
"""``--hidden-dropout`` and ``--attention-dropout`` of Megatron-DeepSpeed."""

EXPERT_INTERVAL = 2
"""``--expert-interval`` of Megatron-DeepSpeed."""

_POSITIONS = {
    "absolute": "learned",
    "learned": "learned",
    "alibi": "alibi",
    "rotary": "rope",
    "rope": "rope",
}
"""``--position-embedding-type`` of BigScience's fork -> ours."""

_POSITION_WORDS: Mapping[str, dict[str, tuple[str, ...]]] = {
    "alibi": {"position-embedding-type": ("alibi",)},
    "none": {"no-position-embedding": ()},
}
"""Our way to tell positions apart -> its options, unless it is a flag's value."""

_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length")

_ALWAYS = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "sequence_length",
    "max_position_embeddings",
    "vocab_size",
    "normalization",
    "hidden_dropout",
    "attention_dropout",
)
"""Settings that are always written."""


def architecture(options: TrainerOptions, assumptions: list[str]) -> dict[str, Any]:
    """Return the table [model] of a script's options.

    Raises
    ------
    InputError
        If they do not say what the model is.
    """
    if not options.is_megatron:
        raise InputError(
            "nothing says what the model is",
            where="--model",
            expected="a name that `nestsim models` lists, or a config.json",
        )
    table: dict[str, Any] = {
        "attention": "plain",
        "gated_linear_unit": False,
        "normalization": "layernorm",
        "position_embedding_type": "learned",
        "tie_word_embeddings": True,
        "add_bias_linear": True,
        "hidden_dropout": DROPOUT,
        "attention_dropout": DROPOUT,
        **options.model,
    }
    for name in _NEEDED:
        if name not in table:
            raise InputError(
                "is missing", where=f"--{option_of(name)}", expected="a whole number"
            )
    launch = options.launch
    _set_positions(table, launch)
    if table["gated_linear_unit"] and "ffn_hidden_size" not in table:
        # megatron/arguments.py, validate_args: a multiple of 64.
        table["ffn_hidden_size"] = int(4 * table["hidden_size"] * 2 / 3 / 64) * 64
    _add_vocabulary(table, launch, assumptions)
    _add_experts(table, launch)
    if table["position_embedding_type"] != "learned":
        table.pop("max_position_embeddings", None)
    is_llama = table["gated_linear_unit"] and table["normalization"] == "rmsnorm"
    family = "llama" if is_llama else "gpt"
    table["family"] = "mixtral" if "num_moe_experts" in table else family
    return table


def _set_positions(table: dict[str, Any], launch: Mapping[str, Any]) -> None:
    """Say how positions are told apart; rotary ones are asked for by themselves."""
    named = launch.get("position_embedding_type")
    if named is not None:
        if named not in _POSITIONS:
            raise InputError(
                "is not one of the known values",
                where="--position-embedding-type",
                got=named,
                expected=", ".join(_POSITIONS),
            )
        table["position_embedding_type"] = _POSITIONS[named]
        return
    if launch.get("no_position_embedding"):
        rotary = table["position_embedding_type"] == "rope"
        table["position_embedding_type"] = "rope" if rotary else "none"


def _add_vocabulary(
    table: dict[str, Any], launch: Mapping[str, Any], assumptions: list[str]
) -> None:
    if "vocab_size" in table:
        return
    padded = str(launch.get("pad-vocab-size-to", ""))
    if padded.isdecimal() and len(padded) < len(str(MAX_VOCABULARY)):
        table["vocab_size"] = int(padded)
    elif launch.get("tokenizer-type", "GPT2BPETokenizer") == "GPT2BPETokenizer":
        table["vocab_size"] = GPT2_VOCABULARY
        assumptions.append(f"The vocabulary is GPT-2's, {GPT2_VOCABULARY:,} entries.")
    elif "SentencePiece" in str(launch["tokenizer-type"]):
        table["vocab_size"] = LLAMA_VOCABULARY
        assumptions.append(
            f"The vocabulary has {LLAMA_VOCABULARY:,} entries, as that of Llama 2: the "
            "tokenizer's file is not read."
        )
    else:
        raise InputError(
            "nothing says how many entries the vocabulary has",
            where="--vocab-size",
            expected="--vocab-size in the script: its tokenizer is not read",
        )


def _add_experts(table: dict[str, Any], launch: Mapping[str, Any]) -> None:
    if table.get("num_moe_experts", 1) == 1:
        table.pop("num_moe_experts", None)
        table.pop("moe_router_topk", None)
        return
    table.setdefault("moe_router_topk", 1)
    every = launch.get("expert_interval", EXPERT_INTERVAL)
    blocks = table["num_layers"]
    if not 1 <= every <= blocks <= MAX_LAYERS:
        raise InputError(
            "leaves no block with experts",
            where="--expert-interval",
            got=every,
            expected=f"1 to {blocks}, of at most {MAX_LAYERS} blocks",
        )
    if every > 1:
        table["moe_layer_freq"] = [
            int((block + 1) % every == 0) for block in range(blocks)
        ]


def built_model(table: Mapping[str, Any], folder: Path) -> TransformerSpec:
    """Return the architecture of a table [model].

    Raises
    ------
    InputError
        If it makes none.
    """
    chosen: type[LibraryModel | HuggingFaceModel | SpelledOutModel] = SpelledOutModel
    if "name" in table:
        chosen = LibraryModel
    elif "config" in table:
        chosen = HuggingFaceModel
    try:
        return chosen(**table).build(folder)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"is no model: {first['msg']}",
            where=".".join(str(part) for part in first["loc"]),
        ) from None


def num_blocks_of(table: Mapping[str, Any], folder: Path) -> int:
    """Return the blocks of the model of a table [model]."""
    return built_model(table, folder).num_layers


def ties_of(table: Mapping[str, Any], folder: Path) -> bool:
    """Return whether the head of the model of a table [model] is its embedding."""
    return built_model(table, folder).tie_word_embeddings


def model_words(spec: TransformerSpec) -> dict[str, tuple[str, ...]]:
    """Return the options of an architecture, as far as there are any."""
    values: dict[str, object] = {name: getattr(spec, name) for name in _ALWAYS}
    if spec.num_query_groups != spec.num_attention_heads:
        values["num_query_groups"] = spec.num_query_groups
    if spec.kv_channels * spec.num_attention_heads != spec.hidden_size:
        values["kv_channels"] = spec.kv_channels
    if spec.position_embedding_type == "rope" and spec.rotary_percent != 1.0:
        values["rotary_percent"] = spec.rotary_percent
    words: dict[str, tuple[str, ...]] = {
        option_of(name): (str(value),) for name, value in values.items()
    }
    flags = {
        "gated_linear_unit": spec.gated_linear_unit,
        "activation_func": spec.activation_func,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "add_bias_linear": spec.add_bias_linear,
        "embedding_layernorm": spec.embedding_layernorm,
        "attention": spec.attention_implementation,
        "position_embedding_type": spec.position_embedding_type,
    }
    found = (flag_of(setting, value) for setting, value in flags.items())
    words |= {flag: () for flag in found if flag is not None}
    words |= _POSITION_WORDS.get(spec.position_embedding_type, {})
    return words | (_expert_words(spec) if spec.num_moe_experts else {})


def _expert_words(spec: TransformerSpec) -> dict[str, tuple[str, ...]]:
    """Return the options of experts: they stand in every so many-th block."""
    pattern = spec.block_pattern or (EXPERT_BLOCK,) * spec.num_layers
    interval = next(
        (
            every
            for every in range(1, spec.num_layers + 1)
            if pattern
            == tuple(
                EXPERT_BLOCK if (block + 1) % every == 0 else DENSE_BLOCK
                for block in range(spec.num_layers)
            )
        ),
        1,
    )
    return {
        option_of("num_moe_experts"): (str(spec.num_moe_experts),),
        option_of("moe_router_topk"): (str(spec.moe_router_topk),),
        option_of("expert_interval"): (str(interval),),
        "disable-moe-token-dropping": (),
    }
