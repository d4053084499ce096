"""Words that no single key of a Hugging Face ``config.json`` says.

Each function takes a configuration and the words that are known already, which have no
more blocks than a model may have, and returns more words.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from estimators.models.config_file import ConfigFile
from topologies.errors import InputError

Words = Mapping[str, Any]

WINDOWED = "sliding_attention"
"""Kind of a block whose attention has a window."""

FULL = "full_attention"
"""Kind of a block whose attention sees all tokens before a token."""

_DENSE, _SPARSE = "dense", "sparse"


def biases(config: ConfigFile, words: Words) -> Words:
    """Return biases of feed-forward layers alone, where attention has none."""
    alone = config.value(bool, "mlp_bias") and not words["add_attention_bias"]
    return {"add_bias_linear": False, "add_mlp_bias": True} if alone else {}


def windows(
    config: ConfigFile,
    words: Words,
    *,
    default: int | None = None,
    skip_freq: int = 0,
    skip_key: str = "",
    first: bool = False,
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
    first
        Whether the first block is such a block, and not the last of so many.
    """
    if skip_key and config.find("layer_types") is None:
        skip_freq = config.value(int, skip_key, skip_freq)
    numbers = [index + int(not first) for index in range(words["num_layers"])]
    marks = [int(not skip_freq or number % skip_freq > 0) for number in numbers]
    return _windows(config, marks, default)


def listed_windows(config: ConfigFile, _: Words) -> Words:
    """Refuse a window of blocks that the file does not list."""
    if config.find("layer_types") is None:
        config.require("sliding_window", (None,))
    return {}


def unturned_full(_: ConfigFile, words: Words) -> Words:
    """Return blocks without a window as those without positions, beside others."""
    windowed = words.get("window_attn_skip_freq", ())
    return {"no_rope_freq": [1 - mark for mark in windowed]} if any(windowed) else {}


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
    kinds = config.kinds("layer_types", (WINDOWED, FULL), len(marks))
    if kinds is not None:
        marks = [int(kind == WINDOWED) for kind in kinds]
    return {"window_size": window, "window_attn_skip_freq": marks}


def end_at_window(_: ConfigFile, words: Words) -> Words:
    """Return sequences that end where a window does."""
    length = words["sequence_length"]
    if not any(words.get("window_attn_skip_freq", ())):
        return {}
    ends = min(words["window_size"], length)
    return {"sequence_length": ends, "max_position_embeddings": length}


def experts_from(
    config: ConfigFile,
    words: Words,
    *,
    first: int,
    every: str = "",
    key: str = "first_k_dense_replace",
) -> Words:
    """Return blocks with experts behind some without: all, or every which.

    Parameters
    ----------
    config
        The file, whose ``mlp_layer_types`` say which blocks have experts, if it has
        them.
    words
        The model.
    first
        Blocks without experts where the file does not say how many.
    every
        Key that says every which block has experts.
    key
        Key that says how many blocks have none.
    """
    blocks = range(words["num_layers"])
    kinds = config.kinds("mlp_layer_types", (_DENSE, _SPARSE), len(blocks))
    if kinds is not None:
        return {"moe_layer_freq": [int(kind == _SPARSE) for kind in kinds]}
    dense = config.value(int, key, first, may_be_zero=True)
    step = config.value(int, every, 1) if every else 1
    marks = [int(index >= dense and index % step == 0) for index in blocks]
    return {"moe_layer_freq": marks}


def experts_between(config: ConfigFile, words: Words) -> Words:
    """Return blocks of a part of the model as those with experts, or every which."""
    last = words["num_layers"] - 1
    start = config.value(int, "moe_layer_start_index", 1, may_be_zero=True)
    if config.find("moe_layer_end_index") not in (None, -1):
        last = config.value(int, "moe_layer_end_index")
    step = config.value(int, "moe_layer_interval", 1)
    marks = [
        int((index + 1) % step == 0 and start <= index <= last)
        for index in range(words["num_layers"])
    ]
    return {"moe_layer_freq": marks}


def unturned(config: ConfigFile, words: Words) -> Words:
    """Return which blocks have no positions: a 0 for each, or every which."""
    return {"no_rope_freq": _unturned(config, words)}


def _unturned(config: ConfigFile, words: Words) -> list[int]:
    turned = config.marks("no_rope_layers")
    skip = config.value(int, "no_rope_layer_interval", 4)
    return [
        int(turned[index] == 0 if index < len(turned) else (index + 1) % skip == 0)
        for index in range(words["num_layers"])
    ]


def unturned_bases(config: ConfigFile, words: Words) -> Words:
    """Return blocks whose base of angles is 0 as those without positions."""
    key = "layer_rope_theta"
    bases = config.find(key)
    if bases is None:
        return {}
    windowed = words.get("window_attn_skip_freq", [0] * words["num_layers"])
    expected = f"{len(windowed)} numbers, above 0 in blocks with a window"
    if not isinstance(bases, list) or len(bases) != len(windowed):
        config.refuse("not a number for each block", key, bases, expected)
        return {}
    bare = [int(base == 0) for base in bases]
    if any(map(min, windowed, bare)):
        config.refuse("a block with a window has no positions", key, bases, expected)
    return {"no_rope_freq": bare} if any(bare) else {}


def turned_channels(config: ConfigFile, words: Words, *, default: int = 0) -> Words:
    """Return the part of a head that positions turn, from how many channels it is.

    Parameters
    ----------
    config
        The file, whose ``rotary_dim`` says it.
    words
        The model, with the width of a head unless that follows from others.
    default
        Channels where the file does not say how many; 0 for all.
    """
    key = "rotary_dim"
    if config.find(key, default or None) is None:
        return {}
    channels = config.value(int, key, default)
    width = words.get("kv_channels", 0)
    width = width or max(words["hidden_size"] // words["num_attention_heads"], 1)
    if channels > width:
        problem = "more channels than a head has"
        config.refuse(problem, key, channels, f"at most {width}")
        return {}
    return {"rotary_percent": channels / width}


def experts_by_step(config: ConfigFile, words: Words) -> Words:
    """Return the last of so many blocks as those with experts, but for some."""
    step = config.value(int, "decoder_sparse_step", 1)
    dense = frozenset(config.marks("mlp_only_layers"))
    blocks = range(words["num_layers"])
    marks = [int(index not in dense and (index + 1) % step == 0) for index in blocks]
    return {"moe_layer_freq": marks}


def listed_experts(config: ConfigFile, words: Words, *, key: str, first: int) -> Words:
    """Return blocks with experts by their numbers, or by kinds, or behind some.

    Parameters
    ----------
    config
        The file.
    words
        The model.
    key
        Key of the numbers: a list, or a text with commas.
    first
        Blocks without experts where the file does not say which.
    """
    listed = config.find(key)
    if listed is None or config.find("mlp_layer_types") is not None:
        return experts_from(config, words, first=first)
    if isinstance(listed, str):
        numbers = [part.strip() for part in listed.split(",") if part.strip()]
        if not all(part.isdigit() for part in numbers):
            expected = 'numbers of blocks from 0, e.g. "3,4,5"'
            config.refuse("not numbers of blocks", key, listed, expected)
        listed = [int(part) for part in numbers if part.isdigit()]
    else:
        listed = config.marks(key)
    every = frozenset(listed)
    blocks = range(words["num_layers"])
    return {"moe_layer_freq": [int(index in every) for index in blocks]}


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
    bare = _unturned(config, words)
    chunk = config.value(int, "attention_chunk_size", 8192, may_be_zero=True)
    norm = config.value(bool, "use_qk_norm", default=True)
    blocks, length = range(words["num_layers"]), words["sequence_length"]
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


def window_heads(config: ConfigFile, words: Words) -> Words:
    """Return the heads of blocks with a window, where they are not as many."""
    marks = words.get("window_attn_skip_freq", ())
    if listed := config.marks("num_attention_heads_per_layer"):
        return _listed_heads(config, listed, words)
    given = config.find("attention_other_setting.num_attention_heads")
    key = "num_sliding_attention_heads"
    if given is not None:
        key = "attention_other_setting.num_attention_heads"
    heads = config.value(int, key, words["num_attention_heads"])
    unlike = any(marks) and heads != words["num_attention_heads"]
    return {"window_num_attention_heads": heads if unlike else 0}


def _listed_heads(config: ConfigFile, listed: Sequence[int], words: Words) -> Words:
    """Return the heads of all blocks, and of those with a window, of a list."""
    marks = words.get("window_attn_skip_freq") or [0] * len(listed)
    pairs = zip(listed, marks, strict=False)
    kinds: dict[int, set[int]] = {0: set(), 1: set()}
    for heads, mark in pairs:
        kinds[mark].add(heads)
    whole, windowed = (sorted(kinds[mark]) for mark in (0, 1))
    if len(listed) != words["num_layers"] or len(whole) > 1 or len(windowed) > 1:
        key = "num_attention_heads_per_layer"
        expected = "one number for blocks with a window, and one for all others"
        config.refuse("heads of blocks differ otherwise", key, list(listed), expected)
        return {}
    usual = (whole or windowed)[0]
    other = windowed[0] if windowed and windowed[0] != usual else 0
    return {"num_attention_heads": usual, "window_num_attention_heads": other}


def square_embedding(config: ConfigFile, words: Words) -> Words:
    """Refuse word embeddings of another width than hidden states."""
    config.require("word_embed_proj_dim", (None, words["hidden_size"]))
    return {}


def bert_heads(config: ConfigFile, _: Words, *, without: bool = False) -> Words:
    """Return which heads a BERT has; types without one for next sentences never do."""
    alone = ("ForMaskedLM", "LMHeadModel", "ForCausalLM")
    named = config.find("architectures")
    is_one = isinstance(named, list) and len(named) == 1
    without = without or (is_one and str(named[0]).endswith(alone))
    return {"bert_binary_head": not without}


def labelled_classes(config: ConfigFile, _: Words) -> Words:
    """Return as many classes as there are labels, if there are any."""
    labels = config.find("id2label")
    return {"vocab_size": len(labels)} if isinstance(labels, dict) and labels else {}


COMPUTED: Mapping[str, Callable[..., Words]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            biases,
            windows,
            late_windows,
            listed_windows,
            unturned_full,
            end_at_window,
            experts_from,
            experts_by_step,
            experts_between,
            listed_experts,
            expert_groups,
            unturned,
            unturned_bases,
            turned_channels,
            llama4,
            falcon,
            window_heads,
            square_embedding,
            bert_heads,
            labelled_classes,
        )
    }
)
"""Name -> function."""
