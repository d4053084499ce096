"""Words that no single key of a Hugging Face ``config.json`` says.

Each function takes a configuration and the words that are known already, which have no
more blocks than a model may have, and returns more words.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from estimators.models.config_file import ConfigFile
from estimators.models.library import HYBRID_KINDS
from estimators.models.limits import MAMBA_SIZES
from topologies.errors import InputError

Words = Mapping[str, Any]

_WINDOWED = "sliding_attention"
_FULL = "full_attention"
_DENSE, _SPARSE = "dense", "sparse"

_LETTERS: Mapping[str, str] = MappingProxyType(
    {
        "mamba": "M",
        "linear_attention": "M",
        "attention": "*",
        "full_attention": "*",
        "mlp": "-",
        "moe": "E",
    }
)
"""Element of ``layers_block_type`` -> letter of the block's kind."""


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
    kinds = _kinds_of_blocks(config, "layer_types", (_WINDOWED, _FULL), len(marks))
    if kinds is not None:
        marks = [int(kind == _WINDOWED) for kind in kinds]
    return {"window_size": window, "window_attn_skip_freq": marks}


def _kinds_of_blocks(
    config: ConfigFile, key: str, known: Sequence[str], num_blocks: int
) -> Sequence[str] | None:
    """Return the kind of each block that a list has, or None if there is no list.

    Raises
    ------
    InputError
        If it is no list of known kinds for all blocks.
    """
    kinds = config.find(key)
    if kinds is None:
        return None
    is_known = isinstance(kinds, list) and all(kind in known for kind in kinds)
    if not is_known or len(kinds) != num_blocks:
        raise InputError(
            "not one known kind for each block",
            where=key,
            got=kinds,
            expected=f"{num_blocks} of " + " or ".join(f'"{kind}"' for kind in known),
        )
    return tuple(kinds)


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
    kinds = _kinds_of_blocks(config, "mlp_layer_types", (_DENSE, _SPARSE), len(blocks))
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


def linear_layers(
    config: ConfigFile,
    words: Words,
    *,
    mixer: str,
    first: int = 1,
    every: int = 4,
    linear: str = "linear_attention",
) -> Words:
    """Return blocks with linear attention among those with attention.

    Parameters
    ----------
    config
        The file, whose ``layer_types`` say which blocks are which, if it has them.
    words
        The model.
    mixer
        What linear attention is, a key of `estimators.models.families.MIXERS`.
    first, every
        Number, from 0, that all others are counted from, and every which block has
        attention where the file does not say so or has a ``full_attention_interval``.
    linear
        What ``layer_types`` calls linear attention.
    """
    kinds = _kinds_of_blocks(
        config, "layer_types", (linear, _FULL), words["num_layers"]
    )
    step = config.value(int, "full_attention_interval", every)
    marks = [
        int(kinds[index] == linear if kinds else (index + first) % step > 0)
        for index in range(words["num_layers"])
    ]
    if not any(marks):
        return {}
    return {"linear_attention_freq": marks, "linear_attention": mixer}


def kimi_layers(config: ConfigFile, words: Words) -> Words:
    """Return blocks with Kimi Delta Attention, by numbers from 1 or by kinds."""
    mixer = "kimi_delta"
    full = frozenset(config.marks("linear_attn_config.full_attn_layers"))
    if not full:
        return linear_layers(config, words, mixer=mixer)
    marks = [int(number + 1 not in full) for number in range(words["num_layers"])]
    return {"linear_attention_freq": marks, "linear_attention": mixer}


def kimi_groups(config: ConfigFile, words: Words) -> Words:
    """Return groups of experts, under the key that Kimi Linear has for them."""
    groups = config.value(int, "num_expert_group", 0, may_be_zero=True)
    if groups <= 1:
        return expert_groups(config, words, groups=1, topk=1)
    topk = config.value(int, "topk_group", 1)
    return {"moe_router_num_groups": groups, "moe_router_group_topk": topk}


def indexed_layers(config: ConfigFile, words: Words) -> Words:
    """Return which blocks have an indexer, by words, by letters, or every which."""
    blocks = range(words["num_layers"])
    kinds = _kinds_of_blocks(config, "indexer_types", ("full", "shared"), len(blocks))
    letters = config.find("index_topk_pattern")
    if kinds is None and isinstance(letters, str) and set(letters) <= {"F", "S"}:
        kinds = [{"F": "full", "S": "shared"}[letter] for letter in letters]
    freq = config.value(int, "index_topk_freq", 1)
    offset = config.value(int, "index_skip_topk_offset", 2, may_be_zero=True)
    marks = [
        int(kinds[index] == "full" if kinds else max(index - offset + 1, 0) % freq == 0)
        for index in blocks[: len(kinds) if kinds else None]
    ]
    return {"dsa_indexer_layers": marks}


def parallel_mixers(_: ConfigFile, words: Words) -> Words:
    """Return blocks of which all have Mamba-2 beside attention."""
    marks = [1] * words["num_layers"]
    return {"linear_attention_freq": marks, "linear_attention": "mamba_attention"}


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


def hybrid_blocks(config: ConfigFile, _: Words) -> Words:
    """Return the kinds of blocks, by letters or by words, and experts if there are any.

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
        if not letters or set(letters) - set(HYBRID_KINDS):
            raise InputError(
                "value is not supported",
                where="hybrid_override_pattern",
                got=letters,
                expected='Mamba-2 "M", attention "*", feed-forward "-" and experts '
                '"E", e.g. "M-M-M*-"',
            )
    experts = _nemotron_experts(config) if "E" in letters else {}
    return {**_hybrid(letters), **experts}


def _hybrid(letters: str) -> Words:
    sizes = {} if "M" in letters else dict.fromkeys(MAMBA_SIZES, 0)
    return {"hybrid_override_pattern": letters, **sizes}


def _nemotron_experts(config: ConfigFile) -> Words:
    """Return the experts of a hybrid; latent ones are refused."""
    if latent := config.find("moe_latent_size"):
        problem = "experts of fewer channels (latent experts) are not modelled"
        config.refuse(problem, "moe_latent_size", latent, "null")
    shared = config.value(int, "moe_shared_expert_intermediate_size", may_be_zero=True)
    return {
        "num_moe_experts": config.value(int, "n_routed_experts"),
        "moe_router_topk": config.value(int, "num_experts_per_tok"),
        "moe_ffn_hidden_size": config.value(int, "moe_intermediate_size"),
        "moe_shared_expert_intermediate_size": shared,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        **expert_groups(config, {}, groups=1, topk=1),
    }


def mamba_head(config: ConfigFile, words: Words, *, key: str = "") -> Words:
    """Return the width of a head of Mamba-2, by default of all heads together.

    Parameters
    ----------
    config
        The file.
    words
        The model.
    key
        Key of the width of all heads, for files that have one.
    """
    width = config.value(int, "mamba_expand", 2) * words["hidden_size"]
    width = config.value(int, key, width) if key else width
    head = max(width // words["mamba_num_heads"], 1)
    if config.find("mamba_d_head") not in (None, "auto"):
        head = config.value(int, "mamba_d_head")
    return {"mamba_head_dim": head}


def hybrid_layers(
    config: ConfigFile, words: Words, *, key: str, indices: str = ""
) -> Words:
    """Return layers of Mamba-2 or attention, a feed-forward layer behind each.

    Either half of such a layer is a block with a norm of its own.

    Parameters
    ----------
    config
        The file.
    words
        The model.
    key
        Key of the kinds of layers.
    indices
        Key of the numbers of layers with attention, for files without kinds.
    """
    layers = range(words["num_layers"])
    mixers = tuple(name for name, letter in _LETTERS.items() if letter in "M*")
    kinds = _kinds_of_blocks(config, key, mixers, len(layers))
    if kinds is None:
        listed = frozenset(config.marks(indices)) if indices else frozenset()
        kinds = [mixers[-1] if index in listed else mixers[0] for index in layers]
    feed_forward = "E" if words.get("num_moe_experts") else "-"
    letters = "".join(_LETTERS[kind] + feed_forward for kind in kinds)
    return {"num_layers": len(letters), **_hybrid(letters)}


def granite_experts(config: ConfigFile, words: Words) -> Words:
    """Return feed-forward layers of a hybrid: experts and a shared one, or that."""
    shared = config.value(int, "shared_intermediate_size", 1024, may_be_zero=True)
    if not words["num_moe_experts"]:
        return {"moe_router_topk": 0, "ffn_hidden_size": shared}
    return {"moe_shared_expert_intermediate_size": shared}


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
            expert_groups,
            unturned,
            unturned_bases,
            turned_channels,
            llama4,
            falcon,
            linear_layers,
            indexed_layers,
            parallel_mixers,
            kimi_layers,
            kimi_groups,
            square_embedding,
            bert_heads,
            labelled_classes,
            hybrid_blocks,
            mamba_head,
            granite_experts,
            hybrid_layers,
        )
    }
)
"""Name -> function."""
