"""Readers of Gemma, Gemma 2 and the text part of Gemma 3.

Defaults are those of transformers' configurations: files of Gemma 3 leave most out.
"""

from dataclasses import replace

from estimators.models.huggingface.config_file import GELUS, ConfigFile
from estimators.models.huggingface.windows import with_config_windows
from estimators.models.spec import TransformerSpec


def _gemma(
    config: ConfigFile, defaults: tuple[int, int, int, int, int], vocab_size: int
) -> TransformerSpec:
    """Read what all have in common; defaults are depth, widths, heads and groups."""
    activation = config.spelled("hidden_activation", "hidden_act")
    config.require(activation, default=None, allowed=(None, *GELUS))
    config.require("use_bidirectional_attention", default=None, allowed=(None, False))
    layers, hidden, inner, heads, groups = defaults
    length = config.integer("max_position_embeddings", 8192)
    return TransformerSpec(
        family="llama",
        num_layers=config.integer("num_hidden_layers", layers),
        hidden_size=config.integer("hidden_size", hidden),
        ffn_hidden_size=config.integer("intermediate_size", inner),
        num_attention_heads=config.integer("num_attention_heads", heads),
        num_query_groups=config.integer("num_key_value_heads", groups),
        kv_channels=config.integer("head_dim", 256),
        vocab_size=config.integer("vocab_size", vocab_size),
        sequence_length=length,
        gated_linear_unit=True,
        activation_func="gelu",
        normalization="rmsnorm",
        position_embedding_type="rope",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        add_bias_linear=False,
        add_attention_bias=config.flag("attention_bias", default=False),
        attention_dropout=config.number("attention_dropout", 0.0),
        scale_embeddings=True,
    )


def read_gemma(config: ConfigFile) -> TransformerSpec:
    """Read Gemma."""
    return _gemma(config, (28, 3072, 24576, 16, 16), 256_000)


def read_gemma2(config: ConfigFile) -> TransformerSpec:
    """Read Gemma 2: every second block has a window, scores and logits are capped."""
    spec = replace(
        _gemma(config, (26, 2304, 9216, 8, 4), 256_000),
        norm_placement="sandwich",
        attn_logit_softcapping=_cap(config, "attn_logit_softcapping", 50.0),
        final_logit_softcapping=_cap(config, "final_logit_softcapping", 30.0),
    )
    usual = [number % 2 != 0 for number in range(1, spec.num_layers + 1)]
    return with_config_windows(config, spec, usual, default=4096)


def read_gemma3_text(config: ConfigFile) -> TransformerSpec:
    """Read the text part of Gemma 3: every sixth block has no window."""
    spec = replace(
        _gemma(config, (26, 2304, 9216, 8, 4), 262_208),
        norm_placement="sandwich",
        qk_layernorm=True,
        attn_logit_softcapping=_cap(config, "attn_logit_softcapping", 0.0),
        final_logit_softcapping=_cap(config, "final_logit_softcapping", 0.0),
    )
    if "max_position_embeddings" not in config.values:
        spec = replace(spec, sequence_length=131_072, max_position_embeddings=131_072)
    every = config.integer("sliding_window_pattern", 6)
    usual = [number % every != 0 for number in range(1, spec.num_layers + 1)]
    return with_config_windows(config, spec, usual, default=4096)


def read_gemma3(config: ConfigFile) -> TransformerSpec:
    """Read the text part of a Gemma 3 that sees pictures; its eyes are left out."""
    return config.inside("text_config", read_gemma3_text)


def _cap(config: ConfigFile, key: str, default: float) -> float:
    """Return a bound; null, or the default 0, is none."""
    if key in config.values and config.values[key] is None:
        return 0.0
    return config.number(key, default)
