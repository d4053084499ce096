"""The model that options of Megatron-DeepSpeed build, and the options of a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from estimators.models.limits import MAX_LAYERS, MAX_VOCABULARY
from estimators.models.spec import DENSE_BLOCK, EXPERT_BLOCK, TransformerSpec
from nestsim.launch.formats.deepspeed.script import TABLE, TrainerOptions
from nestsim.launch.formats.usual import decoder_family, gated_width
from nestsim.scenario.model import HuggingFaceModel, LibraryModel, SpelledOutModel
from topologies.errors import InputError

GPT2_VOCABULARY: int = TABLE.facts["gpt2_vocabulary"]
"""Entries of GPT-2's vocabulary, that of ``--tokenizer-type GPT2BPETokenizer``."""

LLAMA_VOCABULARY: int = TABLE.facts["llama_vocabulary"]
"""Entries of the vocabulary of Llama and Llama 2."""

_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length")


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
    table: dict[str, Any] = {**TABLE.facts["model"], **options.model}
    for option in TABLE.part("model"):
        if option.key in _NEEDED and option.key not in table:
            raise InputError(
                "is missing", where=f"--{option.name}", expected="a whole number"
            )
    launch = options.launch
    _set_positions(table, launch)
    if table["gated_linear_unit"] and "ffn_hidden_size" not in table:
        table["ffn_hidden_size"] = gated_width(table["hidden_size"])
    _add_vocabulary(table, launch, assumptions)
    _add_experts(table, launch)
    if table["position_embedding_type"] != "learned":
        table.pop("max_position_embeddings", None)
    return {**table, "family": decoder_family(table)}


def _set_positions(table: dict[str, Any], launch: Mapping[str, Any]) -> None:
    """Say how positions are told apart; rotary ones are asked for by themselves."""
    named = launch.get("position_embedding_type")
    if named is not None:
        words = TABLE.options["position-embedding-type"].words
        if named not in words:
            raise InputError(
                "is not one of the known values",
                where="--position-embedding-type",
                got=named,
                expected=", ".join(words),
            )
        table["position_embedding_type"] = words[named]
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
    every = launch.get("expert_interval", TABLE.options["expert-interval"].default)
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
    left_out = {
        "num_query_groups": spec.num_query_groups == spec.num_attention_heads,
        "kv_channels": spec.kv_channels * spec.num_attention_heads == spec.hidden_size,
        "rotary_percent": spec.position_embedding_type != "rope"
        or spec.rotary_percent == 1.0,
    }
    words: dict[str, tuple[str, ...]] = {}
    for key in dict.fromkeys(option.key for option in TABLE.part("model")):
        name = "attention_implementation" if key == "attention" else key
        if not left_out.get(key):
            words |= TABLE.saying(f"model.{key}", getattr(spec, name))
    if spec.position_embedding_type == "alibi":
        words["position-embedding-type"] = ("alibi",)
    elif spec.position_embedding_type == "none":
        words["no-position-embedding"] = ()
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
        **TABLE.saying("model.num_moe_experts", spec.num_moe_experts),
        **TABLE.saying("model.moe_router_topk", spec.moe_router_topk),
        **TABLE.saying("launch.expert_interval", interval),
        "disable-moe-token-dropping": (),
    }
