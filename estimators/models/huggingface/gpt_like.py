"""Readers of decoders that are a GPT but for positions, biases, heads or nonlinearity.

Defaults are those of transformers' configurations of each type. What a file of BLOOM
does not say is the length of its training sequences: 2,048 tokens (Le Scao et al.,
"BLOOM", 2022, table 3).
"""

from dataclasses import replace
from types import MappingProxyType

from estimators.models.huggingface.config_file import GELUS, ConfigFile
from estimators.models.huggingface.windows import rotary_percent, with_config_windows
from estimators.models.spec import TransformerSpec
from topologies.errors import InputError

_BLOOM_LENGTH = 2048
_NONLINEARITIES = MappingProxyType(
    {**dict.fromkeys(GELUS, "gelu"), "relu": "relu", "relu2": "squared_relu"}
)


def _nonlinearity(config: ConfigFile, key: str, default: str) -> str:
    value = config.values.get(key, default)
    config.require(key, default=default, allowed=tuple(_NONLINEARITIES))
    known = isinstance(value, str) and value in _NONLINEARITIES
    return _NONLINEARITIES[value] if known else "gelu"


def read_bloom(config: ConfigFile) -> TransformerSpec:
    """Read BLOOM: ALiBi, and a norm behind the word embedding."""
    config.require(
        "apply_residual_connection_post_layernorm", default=False, allowed=(False,)
    )
    length = config.integer("seq_length", _BLOOM_LENGTH)
    return TransformerSpec(
        family="gpt",
        num_layers=config.integer(config.spelled("n_layer", "num_hidden_layers")),
        hidden_size=config.integer(config.spelled("hidden_size", "n_embed")),
        num_attention_heads=config.integer(
            config.spelled("n_head", "num_attention_heads")
        ),
        vocab_size=config.integer("vocab_size"),
        sequence_length=length,
        position_embedding_type="alibi",
        embedding_layernorm=True,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        hidden_dropout=config.number("hidden_dropout", 0.0),
        attention_dropout=config.number("attention_dropout", 0.0),
    )


def read_falcon(config: ConfigFile) -> TransformerSpec:
    """Read Falcon: one key for all heads, or groups; parallel branches, or serial."""
    heads = config.integer(config.spelled("num_attention_heads", "n_head"))
    newer = config.flag("new_decoder_architecture", default=False)
    parallel = config.flag("parallel_attn", default=True) or newer
    norms = config.values.get("num_ln_in_parallel_attn") or (2 if newer else 1)
    single = config.flag("multi_query", default=True)
    groups = heads
    if newer:
        groups = config.integer(config.spelled("num_kv_heads", "n_head_kv"), heads)
    elif single:
        groups = 1
    if newer and not config.flag("parallel_attn", default=True):
        raise InputError(
            "value is not supported",
            where="parallel_attn",
            got=False,
            expected="true with new_decoder_architecture",
        )
    hidden = config.integer("hidden_size")
    alibi = config.flag("alibi", default=False)
    return TransformerSpec(
        family="gpt",
        num_layers=config.integer(config.spelled("num_hidden_layers", "n_layer")),
        hidden_size=hidden,
        ffn_hidden_size=config.integer("ffn_hidden_size", 4 * hidden),
        activation_func=_nonlinearity(config, "activation", "gelu"),
        num_attention_heads=heads,
        num_query_groups=groups,
        vocab_size=config.integer("vocab_size"),
        sequence_length=config.integer("max_position_embeddings", 2048),
        position_embedding_type="alibi" if alibi else "rope",
        parallel_residual=parallel,
        norm_placement="shared" if parallel and norms == 1 else "pre",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        add_bias_linear=config.flag("bias", default=False),
        hidden_dropout=config.number("hidden_dropout", 0.0),
        attention_dropout=config.number("attention_dropout", 0.0),
    )


def read_mpt(config: ConfigFile) -> TransformerSpec:
    """Read MPT: ALiBi, and no biases at all."""
    attention = config.values.get("attn_config")
    own = ConfigFile(attention if isinstance(attention, dict) else {})
    own.require("qk_ln", default=False, allowed=(False,))
    own.require("alibi", default=True, allowed=(True,))
    own.require(
        "attn_type", default="multihead_attention", allowed=("multihead_attention",)
    )
    dropout = own.number("attn_pdrop", 0.0)
    try:
        own.problems.refuse()
    except InputError as error:
        raise error.at("attn_config") from None
    config.require("no_bias", default=True, allowed=(True,))
    hidden = config.integer("d_model")
    return TransformerSpec(
        family="gpt",
        num_layers=config.integer("n_layers"),
        hidden_size=hidden,
        ffn_hidden_size=config.integer("expansion_ratio", 4) * hidden,
        num_attention_heads=config.integer("n_heads"),
        vocab_size=config.integer("vocab_size"),
        sequence_length=config.integer("max_seq_len"),
        position_embedding_type="alibi",
        layernorm_bias=False,
        add_bias_linear=False,
        hidden_dropout=config.number("resid_pdrop", 0.0),
        attention_dropout=dropout,
    )


def read_opt(config: ConfigFile) -> TransformerSpec:
    """Read OPT: ReLU, and two more rows of positions than there are tokens."""
    config.require("do_layer_norm_before", default=True, allowed=(True,))
    config.require("enable_bias", default=True, allowed=(True,))
    hidden = config.integer("hidden_size")
    config.require("word_embed_proj_dim", default=hidden, allowed=(None, hidden))
    length = config.integer("max_position_embeddings")
    return TransformerSpec(
        family="gpt",
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=hidden,
        ffn_hidden_size=config.integer("ffn_dim"),
        activation_func=_nonlinearity(config, "activation_function", "relu"),
        num_attention_heads=config.integer("num_attention_heads"),
        vocab_size=config.integer("vocab_size"),
        sequence_length=length,
        max_position_embeddings=length + 2,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        hidden_dropout=config.number("dropout", 0.1),
        attention_dropout=config.number("attention_dropout", 0.0),
    )


def read_gpt_bigcode(config: ConfigFile) -> TransformerSpec:
    """Read SantaCoder and StarCoder: a GPT-2 with one key for all heads."""
    config.require("add_cross_attention", default=False, allowed=(False,))
    single = config.flag("multi_query", default=True)
    heads, hidden = config.integer("n_head"), config.integer("n_embd")
    return TransformerSpec(
        family="gpt",
        num_layers=config.integer("n_layer"),
        hidden_size=hidden,
        ffn_hidden_size=config.integer("n_inner", 4 * hidden),
        activation_func=_nonlinearity(
            config, "activation_function", "gelu_pytorch_tanh"
        ),
        num_attention_heads=heads,
        num_query_groups=1 if single else heads,
        vocab_size=config.integer("vocab_size"),
        sequence_length=config.integer("n_positions"),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        hidden_dropout=config.number("resid_pdrop", 0.1),
        attention_dropout=config.number("attn_pdrop", 0.1),
    )


def _rotary_gpt(config: ConfigFile, activation: str) -> TransformerSpec:
    """Read what StarCoder2 and Nemotron have in common."""
    heads = config.integer("num_attention_heads")
    return TransformerSpec(
        family="gpt",
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=config.integer("hidden_size"),
        ffn_hidden_size=config.integer("intermediate_size"),
        activation_func=_nonlinearity(config, "hidden_act", activation),
        num_attention_heads=heads,
        num_query_groups=config.integer("num_key_value_heads", heads),
        kv_channels=config.integer("head_dim") if config.values.get("head_dim") else 0,
        vocab_size=config.integer("vocab_size"),
        sequence_length=config.integer("max_position_embeddings"),
        position_embedding_type="rope",
        attention_dropout=config.number("attention_dropout", 0.0),
    )


def read_starcoder2(config: ConfigFile) -> TransformerSpec:
    """Read StarCoder2."""
    spec = replace(
        _rotary_gpt(config, "gelu_pytorch_tanh"),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        add_bias_linear=config.flag("use_bias", default=True),
        hidden_dropout=config.number("residual_dropout", 0.0),
    )
    return with_config_windows(config, spec, [True] * spec.num_layers)


def read_nemotron(config: ConfigFile) -> TransformerSpec:
    """Read Nemotron-4 and Minitron: squared ReLU, no biases, half of a head turned."""
    config.require("attention_bias", default=False, allowed=(False,))
    config.require("mlp_bias", default=False, allowed=(False,))
    percent = rotary_percent(
        config, "partial_rotary_factor", "rope_percent", default=0.5
    )
    return replace(
        _rotary_gpt(config, "relu2"),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        add_bias_linear=False,
        rotary_percent=percent,
    )
