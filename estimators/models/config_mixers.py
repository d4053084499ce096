"""Words of mixers that no single key of a ``config.json`` says, and of hybrids.

As those of `estimators.models.config_keys`: each function takes a configuration and the
words that are known already, and returns more words.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from estimators.models.config_file import ConfigFile
from estimators.models.config_keys import FULL, WINDOWED, Words, expert_groups
from estimators.models.library import HYBRID_KINDS
from estimators.models.limits import MAMBA_SIZES
from estimators.models.spec import DENSE_BLOCK, SHORTCUT_BLOCK
from topologies.errors import InputError

_MOST_FACTOR = 1000
"""Largest factor of a width."""

_MOST_SIZE = 10**7
"""Largest size that is counted."""

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
    kinds = config.kinds("layer_types", (linear, FULL), words["num_layers"])
    step = config.value(int, "full_attention_interval", every)
    marks = [
        int(kinds[index] == linear if kinds else (index + first) % step > 0)
        for index in range(words["num_layers"])
    ]
    if not any(marks):
        return {}
    return {"linear_attention_freq": marks, "linear_attention": mixer}


def shortcut_blocks(_: ConfigFile, words: Words) -> Words:
    """Return pairs of blocks with experts beside them."""
    return {"block_pattern": (SHORTCUT_BLOCK,) * words["num_layers"]}


def convolved_layers(
    config: ConfigFile, words: Words, *, windows: bool = False
) -> Words:
    """Return blocks with a short convolution; without kinds, some have attention.

    Parameters
    ----------
    config
        The file.
    words
        The model.
    windows
        Whether some attention has a window: LFM3.
    """
    blocks = range(words["num_layers"])
    mixer = "short_convolution"
    if windows:
        return _convolved_windows(config, words)
    if config.find("layer_types") is not None:
        found = linear_layers(config, words, mixer=mixer, linear="conv")
    else:
        listed = frozenset(config.marks("full_attn_idxs") or blocks)
        marks = [int(index not in listed) for index in blocks]
        found = {"linear_attention_freq": marks, "linear_attention": mixer}
    is_one = any(found.get("linear_attention_freq", ()))
    return found if is_one else {"short_convolution_width": 0}


def _convolved_windows(config: ConfigFile, words: Words) -> Words:
    """Return convolutions, windows in every fourth block, and attention in others."""
    blocks = range(words["num_layers"])
    known = ("conv", WINDOWED, FULL)
    kinds = config.kinds("layer_types", known, len(blocks)) or [
        {0: WINDOWED if index else "conv", 2: FULL}.get(index % 4, "conv")
        for index in blocks
    ]
    window = config.value(int, "sliding_window", 256)
    found: dict[str, Any] = {
        "block_pattern": tuple(
            "short_convolution+dense" if kind == "conv" else DENSE_BLOCK
            for kind in kinds
        )
    }
    if "conv" not in kinds:
        found["short_convolution_width"] = 0
    if WINDOWED in kinds:
        found |= {
            "window_size": window,
            "window_attn_skip_freq": [int(kind == WINDOWED) for kind in kinds],
        }
    return found


def adjusted_width(config: ConfigFile, words: Words) -> Words:
    """Return two thirds of a width, times a factor, rounded up, as LFM2 has it."""
    width = words["ffn_hidden_size"]
    if not config.value(bool, "block_auto_adjust_ff_dim", default=True):
        return {}
    width = 2 * width // 3
    factor = config.find("block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return {"ffn_hidden_size": width}
    if not isinstance(factor, int | float) or not 0 < factor <= _MOST_FACTOR:
        name, expected = "block_ffn_dim_multiplier", "a number above 0, e.g. 1.0"
        config.refuse("not a factor of a width", name, factor, expected)
        return {}
    step = config.value(int, "block_multiple_of", 256)
    return {"ffn_hidden_size": -(-int(factor * width) // step) * step}


def selective_scans(config: ConfigFile, words: Words, *, prefix: str = "") -> Words:
    """Return the sizes of selective scans, and blocks of them alone.

    Their heads are one channel wide (Dao and Gu, "Transformers are SSMs", 2024).

    Parameters
    ----------
    config
        The file.
    words
        The model.
    prefix
        Start of keys in files of hybrids, which say themselves which blocks are which.
    """
    hidden, auto = words["hidden_size"], -(-words["hidden_size"] // 16)
    key = "mamba_dt_rank" if prefix else "time_step_rank"
    named = config.find(key, "auto")
    rank = auto if named == "auto" else config.value(int, key)
    width = config.value(int, f"{prefix}expand", 2) * hidden
    width = width if prefix else config.value(int, "intermediate_size", width)
    sizes = {"selective_width": width, "selective_step_rank": rank}
    if prefix:
        return sizes
    pattern = ("selective_scan",) * words["num_layers"]
    heads = {"num_attention_heads": width, "kv_channels": 1}
    return {**sizes, **heads, "block_pattern": pattern}


def periodic_hybrid(config: ConfigFile, words: Words) -> Words:
    """Return blocks with attention and with experts, every which, as Jamba has them."""
    steps = [
        (
            config.value(int, f"{name}_layer_period", period),
            config.value(int, f"{name}_layer_offset", offset, may_be_zero=True),
        )
        for name, period, offset in (("attn", 8, 4), ("expert", 2, 1))
    ]
    routed = words["num_moe_experts"] > 1
    pattern = tuple(
        ("attention+" if block % steps[0][0] == steps[0][1] else "selective_scan+")
        + ("experts" if routed and block % steps[1][0] == steps[1][1] else "dense")
        for block in range(words["num_layers"])
    )
    plain = {} if routed else {"num_moe_experts": 0, "moe_router_topk": 0}
    return {"block_pattern": pattern, **plain}


def kimi_layers(config: ConfigFile, words: Words) -> Words:
    """Return blocks with Kimi Delta Attention, by numbers from 1 or by kinds."""
    mixer = "kimi_delta"
    full = frozenset(config.marks("linear_attn_config.full_attn_layers"))
    if not full:
        return linear_layers(config, words, mixer=mixer)
    marks = [int(number + 1 not in full) for number in range(words["num_layers"])]
    return {"linear_attention_freq": marks, "linear_attention": mixer}


_RATIOS: Mapping[int, str] = MappingProxyType(
    {0: "single", 4: "chosen", 128: "compressed"}
)
"""Tokens of a summary in the first files of DeepSeek-V4 -> what attention sees."""

_SEEN: Mapping[str, str] = MappingProxyType(
    {
        WINDOWED: "single",
        "compressed_sparse_attention": "chosen",
        "heavily_compressed_attention": "compressed",
    }
)
"""Kind of DeepSeek-V4's attention -> what it sees beside its window."""


def compressed_layers(config: ConfigFile, words: Words) -> Words:
    """Return what attention of each block sees, and the sizes of summaries.

    Without a list, every second block behind the first two has an indexer.
    """
    blocks, ratios = words["num_layers"], config.marks("compress_ratios")
    kinds = config.kinds("layer_types", tuple(_SEEN), blocks)
    if kinds is None and ratios:
        seen = [_RATIOS.get(ratio, "") for ratio in ratios[:blocks]]
        if len(seen) < blocks or not all(seen):
            expected = f"{blocks} of 0, 4 and 128"
            problem = "not a rate for each block"
            config.refuse(problem, "compress_ratios", list(ratios), expected)
            return {}
    else:
        usual = ("compressed", "chosen")
        seen = [_SEEN[kind] for kind in kinds or ()] or [
            usual[block > 1 and block % 2] for block in range(blocks)
        ]
    rates = "compress_rates.{}_attention"
    names = {
        "q_lora_rank": 1024,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        rates.format("compressed_sparse"): 4,
        rates.format("heavily_compressed"): 128,
        "index_topk": 512,
        "index_n_heads": 64,
        "index_head_dim": 128,
    }
    sizes = _sizes(config, names)
    heads, groups = words["num_attention_heads"], sizes[1]
    if heads % groups:
        expected = f"a divisor of num_attention_heads = {heads}"
        config.refuse("does not divide the heads", "o_groups", groups, expected)
    pattern = tuple(f"attention_{beside}+experts" for beside in seen)
    return {"compression": sizes, "block_pattern": pattern}


def kimi_groups(config: ConfigFile, words: Words) -> Words:
    """Return groups of experts, under the key that Kimi Linear has for them."""
    groups = config.value(int, "num_expert_group", 0, may_be_zero=True)
    if groups <= 1:
        return expert_groups(config, words, groups=1, topk=1)
    topk = config.value(int, "topk_group", 1)
    return {"moe_router_num_groups": groups, "moe_router_group_topk": topk}


def ngram_tables(config: ConfigFile, words: Words) -> Words:
    """Return tables of n-grams; their rows are a multiple of the vocabulary's."""
    longest = config.value(int, "emb_neighbor_num", 4)
    splits = config.value(int, "emb_split_num", 4)
    rows = config.value(int, "ngram_vocab_size_ratio", 78) * words["vocab_size"]
    return {"ngram_embedding": (longest, splits, rows)}


def _sizes(config: ConfigFile, usual: Mapping[str, int]) -> tuple[int, ...]:
    """Return sizes that are none of Megatron's, by their keys, as usual if left out."""
    sizes = {name: config.value(int, name, size) for name, size in usual.items()}
    for name, size in sizes.items():
        if size > _MOST_SIZE:
            config.refuse("too large", name, size, f"at most {_MOST_SIZE}")
    return tuple(sizes.values())


def block_embeddings(config: ConfigFile, words: Words) -> Words:
    """Return an embedding of blocks, few gates in some, and borrowed keys in the last.

    Those of the last block before them that has a window, or none, as they have.
    """
    blocks, sparsity = words["num_layers"], "activation_sparsity_pattern"
    names = ("vocab_size_per_layer_input", "hidden_size_per_layer_input", "laurel_rank")
    usual = dict(zip(names, (262144, 256, 64), strict=True))
    rows, width, rank = _sizes(config, usual)
    shared = config.value(int, "num_kv_shared_layers", 15, may_be_zero=True)
    windowed = words.get("window_attn_skip_freq", [0] * blocks)
    if shared >= blocks or {*windowed[: blocks - shared]} != {*windowed}:
        expected = "fewer blocks than have both keys and values, or 0"
        config.refuse("no keys to borrow", "num_kv_shared_layers", shared, expected)
    listed = config.find(sparsity)
    few = [0.95] * 10 * (blocks > 10) if listed is None else listed
    if not isinstance(few, list) or (listed not in (None, []) and len(few) != blocks):
        expected = "a number for each block"
        config.refuse("not a number for each block", sparsity, listed, expected)
        few = []
    pattern = tuple(
        ("attention" if block < blocks - shared else "borrowing_attention")
        + ("+thresholded" if block < len(few) and few[block] else "+dense")
        for block in range(blocks)
    )
    return {"block_embedding": (rows, blocks, width, rank), "block_pattern": pattern}


def indexed_layers(config: ConfigFile, words: Words, *, freq: int = 1) -> Words:
    """Return which blocks have an indexer, by words, by letters, or every which.

    Parameters
    ----------
    config
        The file.
    words
        The model.
    freq
        Every which block of those behind the first has one, if the file is silent.
    """
    blocks = range(words["num_layers"])
    kinds = config.kinds("indexer_types", ("full", "shared"), len(blocks))
    letters = config.find("index_topk_pattern")
    if kinds is None and isinstance(letters, str) and set(letters) <= {"F", "S"}:
        kinds = [{"F": "full", "S": "shared"}[letter] for letter in letters]
    offset = 2 if freq == 1 else 1
    freq = config.value(int, "index_topk_freq", freq)
    offset = config.value(int, "index_skip_topk_offset", offset, may_be_zero=True)
    marks = [
        int(kinds[index] == "full" if kinds else max(index - offset + 1, 0) % freq == 0)
        for index in blocks[: len(kinds) if kinds else None]
    ]
    return {"dsa_indexer_layers": marks}


def parallel_mixers(_: ConfigFile, words: Words) -> Words:
    """Return blocks of which all have Mamba-2 beside attention."""
    marks = [1] * words["num_layers"]
    return {"linear_attention_freq": marks, "linear_attention": "mamba_attention"}


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
    kinds = config.kinds(key, mixers, len(layers))
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


COMPUTED_MIXERS: Mapping[str, Callable[..., Words]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            linear_layers,
            shortcut_blocks,
            convolved_layers,
            adjusted_width,
            selective_scans,
            periodic_hybrid,
            kimi_layers,
            kimi_groups,
            compressed_layers,
            block_embeddings,
            ngram_tables,
            indexed_layers,
            parallel_mixers,
            hybrid_blocks,
            mamba_head,
            hybrid_layers,
            granite_experts,
        )
    }
)
"""Name -> function."""
