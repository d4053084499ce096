"""Words that are computed from a Hugging Face ``config.json``.

What words no single key of a configuration says.

Each function takes a configuration and the words that are known already, which have no
more blocks than a model may have, and returns more words.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from estimators.models.library import HYBRID_KINDS
from estimators.models.limits import MAMBA_SIZES
from estimators.models.spec import TransformerSpec
from topologies.errors import InputError, Problems, located
from topologies.input_file import read_json

MAX_FILE = 1_000_000
"""Longest file that is read as a configuration, which has some kB [byte]."""

_EXPECTED = "a config.json of the Hugging Face hub"
_MISSING = object()


class _ValueKind(NamedTuple):
    """What a value can be."""

    matches: Callable[[Any], bool]
    """Whether a value that the JSON parser returned is of the kind."""

    problem: str
    """What is wrong with a value that is not."""

    expected: str
    """What the value should be, with an example."""

    usual: Any
    """Value where a file has none; None if it must have one."""

    stand_in: Any
    """What stands for a wrong value until the file is refused."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_SIZE = "a positive whole number, e.g. 32"
_NUMBER = "a number, e.g. 0.1"
_TEXT = 'a text in quotes, e.g. "llama"'

_KINDS: Mapping[type, _ValueKind] = MappingProxyType(
    {
        int: _ValueKind(_is_size, "not a positive whole number", _SIZE, None, 1),
        float: _ValueKind(_is_number, "not a number", _NUMBER, 0.0, 0.0),
        bool: _ValueKind(
            lambda value: isinstance(value, bool),
            "not a truth value",
            "true or false",
            usual=False,
            stand_in=False,
        ),
        str: _ValueKind(
            lambda value: isinstance(value, str), "not a text", _TEXT, None, ""
        ),
    }
)


class ConfigFile:
    """A parsed file whose look-ups explain themselves.

    A key with dots is that of an object inside the file. A wrong value is noted, and
    something of its kind stands for it until the file is refused.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.problems = Problems()

    def read(
        self, reader: "Callable[[ConfigFile], TransformerSpec]"
    ) -> TransformerSpec:
        """Return what a reader makes of the file, or raise all that is wrong with it.

        Mistakes that only follow from a wrong value are not listed.
        """
        try:
            spec = reader(self)
        except InputError:
            self.problems.refuse()
            raise
        self.problems.refuse()
        return spec

    def inside(
        self, key: str, reader: "Callable[[ConfigFile], TransformerSpec]"
    ) -> TransformerSpec:
        """Return what a reader makes of an object in the file.

        Raises
        ------
        InputError
            If it is no object, or the reader says so.
        """
        values = self.values.get(key)
        if not isinstance(values, dict):
            raise InputError(
                "not an object",
                where=key,
                got=values,
                expected='an object, e.g. {"hidden_size": 2560, ...}',
            )
        with located(key):
            return ConfigFile(values).read(reader)

    def find(self, key: str, default: Any = None) -> Any:
        """Return what stands under a key, or the default if there is no such key."""
        value: Any = self.values
        for name in key.split("."):
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
        return default if value is _MISSING else value

    def spelled(self, *keys: str) -> str:
        """Return the first of some names of a key that the file has, else the first."""
        return next((key for key in keys if self.find(key) is not None), keys[0])

    def value(
        self, kind: type, key: str, default: Any = None, *, may_be_zero: bool = False
    ) -> Any:
        """Return a value of some kind.

        Parameters
        ----------
        kind
            `int` for a positive whole number, `float`, `bool` or `str`.
        key
            Its key.
        default
            Value where there is none, or it is null. Without a default, numbers are 0
            and truth values false; whole numbers and texts must be there.
        may_be_zero
            Whether 0 is a value, and null stands for it.
        """
        rules = _KINDS[kind]
        value = self.find(key, _MISSING)
        if may_be_zero and (value is None or (value == 0 and value is not False)):
            return kind(0)
        if value is None or value is _MISSING:
            value = rules.usual if default is None else default
            if value is not None:
                return value
            self.refuse("key is missing", key, None, rules.expected)
        elif not rules.matches(value):
            self.refuse(rules.problem, key, value, rules.expected)
        else:
            return kind(value)
        return rules.stand_in

    def marks(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers; none where there is no list."""
        value = self.find(key)
        if value is None:
            return ()
        if isinstance(value, list) and all(type(item) is int for item in value):
            return tuple(value)
        expected = "a list of whole numbers, e.g. [0, 1]"
        self.refuse("not a list of whole numbers", key, value, expected)
        return ()

    def require(self, key: str, allowed: Sequence[Any]) -> bool:
        """Refuse a value that is not allowed; return whether it is, or is not there."""
        value = self.find(key, allowed[0])
        known = value in allowed
        if not known:
            expected = " or ".join(json.dumps(choice) for choice in allowed)
            self.refuse("value is not supported", key, value, expected)
        return known

    def refuse(self, problem: str, key: str, value: Any, expected: str) -> None:
        """Note what is wrong with a key, once."""
        if key not in {error.where for error in self.problems.errors}:
            self.problems.errors.append(
                InputError(problem, where=key, got=value, expected=expected)
            )


def read_config(file: Path) -> ConfigFile:
    """Read a file.

    Raises
    ------
    InputError
        If it cannot be read, or is not a JSON object.
    """
    # Limits of time steps in configurations of Mamba-2 end in Infinity.
    values = read_json(file, expected=_EXPECTED, most_bytes=MAX_FILE, infinities=True)
    if not isinstance(values, dict):
        raise InputError(
            "not a JSON object",
            got=type(values).__name__,
            expected='an object, e.g. {"model_type": "llama", ...}',
        )
    return ConfigFile(values)


Words = Mapping[str, Any]

_WINDOWED = "sliding_attention"
_FULL = "full_attention"

_LETTERS: Mapping[str, str] = MappingProxyType(
    {
        "mamba": "M",
        "linear_attention": "M",
        "attention": "*",
        "full_attention": "*",
        "mlp": "-",
    }
)
"""Element of ``layers_block_type`` -> letter of the block's kind."""


def biases(config: ConfigFile, _: Words) -> Words:
    """Refuse biases of feed-forward layers without those of attention."""
    bias = config.value(bool, "mlp_bias")
    if bias and not config.value(bool, "attention_bias"):
        config.require("mlp_bias", (False,))
    return {}


def windows(
    config: ConfigFile,
    words: Words,
    *,
    default: int | None = None,
    skip_freq: int = 0,
    skip_key: str = "",
) -> Words:
    """Return sliding windows.

    Parameters
    ----------
    config
        The file, whose ``layer_types`` say which blocks have a window.
    words
        The model without windows.
    default
        Window where the file has no ``sliding_window``; None for no window.
    skip_freq
        Every which block has none where the file does not say so; 0 for no block.
    skip_key
        Key that says it instead.
    """
    if skip_key:
        skip_freq = config.value(int, skip_key, skip_freq)
    numbers = range(1, words["num_layers"] + 1)
    marks = [int(not skip_freq or number % skip_freq > 0) for number in numbers]
    return _windows(config, marks, default)


def late_windows(config: ConfigFile, words: Words, *, default: int) -> Words:
    """Return the sliding windows of the last blocks of a Qwen, if it uses any."""
    if not config.value(bool, "use_sliding_window"):
        return {}
    first = 0
    if config.find("max_window_layers") != 0:
        first = config.value(int, "max_window_layers", 28)
    marks = [int(index >= first) for index in range(words["num_layers"])]
    return _windows(config, marks, default)


def _windows(config: ConfigFile, marks: list[int], default: int | None) -> Words:
    """Return windows of blocks with the mark 1, unless the file says which."""
    if config.find("sliding_window", default) is None:
        return {}
    window = config.value(int, "sliding_window", default)
    types = config.find("layer_types")
    if types is not None:
        kinds = (_WINDOWED, _FULL)
        known = isinstance(types, list) and all(kind in kinds for kind in types)
        if not known or len(types) != len(marks):
            raise InputError(
                "not one known kind for each block",
                where="layer_types",
                got=types,
                expected=f'{len(marks)} of "{_WINDOWED}" or "{_FULL}"',
            )
        marks = [int(kind == _WINDOWED) for kind in types]
    return {"window_size": window, "window_attn_skip_freq": marks}


def end_at_window(_: ConfigFile, words: Words) -> Words:
    """Return sequences that end where a window does."""
    length = words["sequence_length"]
    if not any(words.get("window_attn_skip_freq", ())):
        return {}
    ends = min(words["window_size"], length)
    return {"sequence_length": ends, "max_position_embeddings": length}


def experts_from(
    config: ConfigFile, words: Words, *, first: int, every: str = ""
) -> Words:
    """Return blocks with experts behind some without: all, or every which.

    Parameters
    ----------
    config
        The file.
    words
        The model.
    first
        Blocks without experts where the file does not say how many.
    every
        Key that says every which block has experts.
    """
    dense = config.value(int, "first_k_dense_replace", first, may_be_zero=True)
    step = config.value(int, every, 1) if every else 1
    blocks = range(words["num_layers"])
    marks = [int(index >= dense and index % step == 0) for index in blocks]
    return {"moe_layer_freq": marks}


def experts_by_step(config: ConfigFile, words: Words) -> Words:
    """Return the last of so many blocks as those with experts, but for some."""
    step = config.value(int, "decoder_sparse_step", 1)
    dense = frozenset(config.marks("mlp_only_layers"))
    blocks = range(words["num_layers"])
    marks = [int(index not in dense and (index + 1) % step == 0) for index in blocks]
    return {"moe_layer_freq": marks}


def expert_groups(
    config: ConfigFile, _: Words, *, groups: int, topk: int, method: str = ""
) -> Words:
    """Return groups that experts are chosen from, if there are several.

    Parameters
    ----------
    config
        The file.
    groups
        Groups where the file does not say how many.
    topk
        Groups of one token where the file does not say how many.
    method
        Key that says how experts are chosen: ``"greedy"`` for without groups.
    """
    groups = config.value(int, "n_group", groups, may_be_zero=True)
    is_greedy = method and config.value(str, method, "noaux_tc") == "greedy"
    if groups <= 1 or is_greedy:
        return {}
    topk = config.value(int, "topk_group", topk)
    return {"moe_router_num_groups": groups, "moe_router_group_topk": topk}


def llama4(config: ConfigFile, words: Words) -> Words:
    """Return chunks, blocks without positions, and which blocks have experts."""
    every = config.value(int, "interleave_moe_layer_step", 1)
    listed = frozenset(config.marks("moe_layers"))
    turned = config.marks("no_rope_layers")
    skip = config.value(int, "no_rope_layer_interval", 4)
    chunk = config.value(int, "attention_chunk_size", 8192, may_be_zero=True)
    norm = config.value(bool, "use_qk_norm", default=True)
    blocks, length = range(words["num_layers"]), words["sequence_length"]
    bare = [
        int(turned[index] == 0 if index < len(turned) else (index + 1) % skip == 0)
        for index in blocks
    ]
    is_chunked = chunk > 0 and not all(bare)
    return {
        "moe_layer_freq": [
            int(index in listed if listed else (index + 1) % every == 0)
            for index in blocks
        ],
        "no_rope_freq": bare,
        "attention_chunk_size": chunk if is_chunked else 0,
        "qk_l2_norm": norm and is_chunked,
        # The longest sequence that chunks fill.
        "sequence_length": length // chunk * chunk if 0 < chunk < length else length,
        "max_position_embeddings": length,
    }


def falcon(config: ConfigFile, _: Words) -> Words:
    """Return groups of heads, and norms: one key for all heads of older models."""
    newer = config.value(bool, "new_decoder_architecture")
    parallel = config.value(bool, "parallel_attn", default=True)
    norms = config.find("num_ln_in_parallel_attn") or (2 if newer else 1)
    groups = int(config.value(bool, "multi_query", default=True))
    if newer:
        key = config.spelled("num_kv_heads", "n_head_kv")
        groups = config.value(int, key, 0)
        if not parallel:
            raise InputError(
                "value is not supported",
                where="parallel_attn",
                got=False,
                expected="true with new_decoder_architecture",
            )
    return {
        "num_query_groups": groups,
        "parallel_residual": parallel,
        "norm_placement": "shared" if parallel and norms == 1 else "pre",
    }


def square_embedding(config: ConfigFile, words: Words) -> Words:
    """Refuse word embeddings of another width than hidden states."""
    config.require("word_embed_proj_dim", (None, words["hidden_size"]))
    return {}


def bert_heads(config: ConfigFile, _: Words) -> Words:
    """Return which heads a BERT has."""
    return {"bert_binary_head": config.find("architectures") != ["BertForMaskedLM"]}


def labelled_classes(config: ConfigFile, _: Words) -> Words:
    """Return as many classes as there are labels, if there are any."""
    labels = config.find("id2label")
    return {"vocab_size": len(labels)} if isinstance(labels, dict) and labels else {}


def hybrid_blocks(config: ConfigFile, _: Words) -> Words:
    """Return the kinds of blocks, by letters or by words; none with experts.

    Raises
    ------
    InputError
        If a kind is not known.
    """
    kinds = config.find("layers_block_type")
    if kinds is not None:
        names = tuple(_LETTERS)
        known = isinstance(kinds, list) and all(kind in names for kind in kinds)
        if not known or not kinds:
            raise InputError(
                "value is not supported",
                where="layers_block_type",
                got=kinds,
                expected="a list of " + ", ".join(f'"{name}"' for name in names),
            )
        letters = "".join(_LETTERS[kind] for kind in kinds)
    else:
        letters = config.value(str, "hybrid_override_pattern")
        if not letters or set(letters) - (set(HYBRID_KINDS) - {"E"}):
            raise InputError(
                "value is not supported",
                where="hybrid_override_pattern",
                got=letters,
                expected='Mamba-2 "M", attention "*" and feed-forward "-", e.g. '
                '"M-M-M*-"',
            )
    sizes = {} if "M" in letters else dict.fromkeys(MAMBA_SIZES, 0)
    return {"hybrid_override_pattern": letters, **sizes}


COMPUTED: Mapping[str, Callable[..., Words]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            biases,
            windows,
            late_windows,
            end_at_window,
            experts_from,
            experts_by_step,
            expert_groups,
            llama4,
            falcon,
            square_embedding,
            bert_heads,
            labelled_classes,
            hybrid_blocks,
        )
    }
)
"""Name -> function."""
