"""Options that a script is started with, sorted by what they stand for.

They have hyphens here; scripts may write underscores. With them the model that options
of Megatron-DeepSpeed build, and the options of a model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimators.models.limits import MAX_LAYERS, MAX_VOCABULARY
from estimators.models.spec import DENSE_BLOCK, EXPERT_BLOCK, TransformerSpec
from nestsim.launch.carried import stored_words
from nestsim.launch.formats.usual import decoder_family, gated_width
from nestsim.launch.read import OptionEffects, Settings
from nestsim.launch.shell.marks import known_word, readable, without_unknown
from nestsim.scenario.errors import nearest
from nestsim.scenario.model import build_model
from planner.frameworks.options import LaunchOption, option_table
from topologies.errors import InputError
from topologies.input_file import Value

FORMAT = "deepspeed"
"""Name of the format that the options are of."""

TABLE = option_table("deepspeed")
"""Options of Megatron-DeepSpeed."""

TRAINERS = option_table("deepspeed", "trainer")
"""Options of other trainers."""

_YES = frozenset({"", "true", "True", "1", "yes"})
_NO = frozenset({"false", "False", "0", "no"})
_CONFIG = "--deepspeed-config"
_MOST = 1_000_000_000_000


@dataclass(slots=True)
class TrainerOptions:
    """What the options of a training script say, under the names of a scenario."""

    is_megatron: bool = False
    """Whether it is a script of Megatron-DeepSpeed."""
    model: Settings = field(default_factory=dict)
    """Settings of [model]."""
    training: Settings = field(default_factory=dict)
    """Settings of [training]."""
    plan: Settings = field(default_factory=dict)
    """Settings of [plan]."""
    launch: Settings = field(default_factory=dict)
    """What several settings follow from."""
    ignored: list[str] = field(default_factory=list)
    """Options that make no difference to a plan."""
    replaced: dict[str, str] = field(default_factory=dict)
    """Options in whose place something else is assumed, and what."""
    given: list[str] = field(default_factory=list)
    """All options."""
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Words behind each option, without its dashes."""

    @property
    def effects(self) -> OptionEffects:
        """What became of each option."""
        others = {*self.ignored, *self.replaced}
        read = [name for name in self.given if name not in others]
        return OptionEffects.of(self.given, read=read, assumed=self.replaced)

    def kept(self) -> Settings:
        """Return the options that no setting holds, as a scenario has them."""
        others = {*self.ignored, *self.replaced}
        return {
            name: stored_words(words)
            for name, words in self.words.items()
            if f"--{name}" in others or (self.is_megatron and name in TABLE.finer)
        }


Words = Mapping[str, Sequence[str]]
"""Name of an option, with hyphens and without dashes before it -> its values."""


def option_words(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the options among the words of a command and their values.

    The last of several of one name counts, as `argparse` has it.
    """
    options: dict[str, tuple[str, ...]] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            options[name] = (value,) if equals else ()
        elif name is not None:
            options[name] = (*options[name], word)
    return options


def read_options(words: Words) -> TrainerOptions:
    """Sort the options of a script.

    Raises
    ------
    InputError
        If one has no value or another type, or changes the work of a step in a way that
        plans here do not have.
    """
    is_megatron = "num-layers" in words and "hidden-size" in words
    read = TrainerOptions(is_megatron=is_megatron)
    read.words = words
    read.given = [f"--{name}" for name in words]
    for name, values in words.items():
        where = f"--{name}"
        if is_megatron:
            _read_megatron(read, name, where, values)
        else:
            _read_trainer(read, name, where, values)
    return read


def _read_megatron(
    read: TrainerOptions, name: str, where: str, values: Sequence[str]
) -> None:
    if name in TABLE.refused:
        raise InputError(
            f"is about {TABLE.refused[name]}, which plans here do not have",
            where=where,
            expected="a script without it",
        )
    option = TABLE.options.get(name)
    if option is not None and option.part != "tokens":
        value = option.words[""] if option.is_flag else _value(option, where, values)
        getattr(read, option.table)[option.key] = value
    elif option is not None and values:
        read.launch[name] = readable(values[0])
    elif name in TABLE.assumed:
        read.replaced[where] = f"{where}: {TABLE.assumed[name][1]}"
    elif option is not None or TABLE.is_silent(name):
        read.ignored.append(where)
    else:
        known = sorted(TABLE.options.keys() | TABLE.silent)
        raise InputError(
            "is no option of Megatron-DeepSpeed that is known here",
            where=where,
            expected="an option of its megatron/arguments.py",
            hint=nearest(where, [f"--{name}" for name in known if name[-1] != "*"]),
        )


def _read_trainer(
    read: TrainerOptions, name: str, where: str, values: Sequence[str]
) -> None:
    option = TRAINERS.options.get(name)
    if option is None:
        _leave_out(read, name, where, values)
        return
    table = getattr(read, option.table)
    if option.default is not False:
        if values or option.key != "config":
            table[option.key] = _value(option, where, values)
        return
    is_on = _yes(where, values)
    if not option.words:
        table[option.key] = is_on
    elif is_on:
        table[option.key] = option.words["yes"]


def _leave_out(
    read: TrainerOptions, name: str, where: str, values: Sequence[str]
) -> None:
    """Note an option that nothing here stands for, and what is taken instead."""
    for words, sentence in TRAINERS.facts["instead"].items():
        if re.search(words, name) and not {*values[:1]} & _NO:
            read.replaced[where] = f"{where}: {sentence}"
            return
    read.ignored.append(where)


def _yes(where: str, values: Sequence[str]) -> bool:
    text = known_word(values[0], where) if values else ""
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise Value(text, where).error("is neither on nor off", "True")


def _value(option: LaunchOption, where: str, values: Sequence[str]) -> Any:
    """Return the value of an option; all of several must be the same."""
    texts = {text.strip() for text in values} - {""}
    if len(texts) > 1:  # a variable that nothing sets is no word for a shell
        texts = {text for text in texts if without_unknown(text)}
    if len(texts) != 1:
        raise Value(readable(" ".join(values))[:60] or None, where).error(
            "has no value" if not texts else "has several values", "one value"
        )
    (text,) = texts
    # A file may be called by a name that only the running shell knows.
    if where != _CONFIG:
        text = known_word(text, where)
    if isinstance(option.default, str):
        return text
    try:
        is_whole = not isinstance(option.default, float)
        number = int(text.replace("_", "")) if is_whole else float(text)
    except ValueError:
        raise Value(text[:60], where).error("is no number", "a number") from None
    if not 0 <= number <= _MOST:  # also NaN
        raise Value(text[:60], where).error("is out of range", f"0 to {_MOST:,}")
    return number


GPT2_VOCABULARY: int = TABLE.facts["gpt2_vocabulary"]
"""Entries of GPT-2's vocabulary, that of ``--tokenizer-type GPT2BPETokenizer``."""

LLAMA_VOCABULARY: int = TABLE.facts["llama_vocabulary"]
"""Entries of the vocabulary of Llama and Llama 2."""

_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length")


def architecture(options: TrainerOptions, assumptions: list[str]) -> Settings:
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
    table: Settings = {**TABLE.facts["model"], **options.model}
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


def _set_positions(table: Settings, launch: Mapping[str, Any]) -> None:
    """Say how positions are told apart; rotary ones are asked for by themselves."""
    named = launch.get("position_embedding_type")
    if named is not None:
        words = TABLE.options["position-embedding-type"].words
        if named not in words:
            raise Value(named, "--position-embedding-type").error(
                "is not one of the known values", ", ".join(words)
            )
        table["position_embedding_type"] = words[named]
        return
    if launch.get("no_position_embedding"):
        rotary = table["position_embedding_type"] == "rope"
        table["position_embedding_type"] = "rope" if rotary else "none"


def _add_vocabulary(
    table: Settings, launch: Mapping[str, Any], assumptions: list[str]
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


def _add_experts(table: Settings, launch: Mapping[str, Any]) -> None:
    if table.get("num_moe_experts", 1) == 1:
        table.pop("num_moe_experts", None)
        table.pop("moe_router_topk", None)
        return
    table.setdefault("moe_router_topk", 1)
    every = launch.get("expert_interval", TABLE.options["expert-interval"].default)
    blocks = table["num_layers"]
    if not 1 <= every <= blocks <= MAX_LAYERS:
        raise Value(every, "--expert-interval").error(
            "leaves no block with experts",
            f"1 to {blocks}, of at most {MAX_LAYERS} blocks",
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
    try:
        return build_model(table, folder)
    except InputError as error:
        raise InputError(f"is no model: {error.problem}", where=error.where) from None


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
