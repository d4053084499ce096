"""Readers of decoders that are a Llama but for norms, biases, heads or positions.

Defaults are those of transformers' configurations of each type.
"""

from dataclasses import replace

from estimators.models.huggingface.config_file import ConfigFile
from estimators.models.huggingface.llama import read_llama
from estimators.models.huggingface.windows import rotary_percent, with_config_windows
from estimators.models.spec import TransformerSpec


def _with_late_windows(config: ConfigFile, spec: TransformerSpec) -> TransformerSpec:
    """Give windows to the last blocks of a Qwen, if it uses any."""
    if not config.flag("use_sliding_window", default=False):
        return spec
    first = config.values.get("max_window_layers", 28)
    first = config.integer("max_window_layers", 28) if first != 0 else 0
    late = [number >= first for number in range(spec.num_layers)]
    return with_config_windows(config, spec, late, default=4096)


def read_qwen2(config: ConfigFile) -> TransformerSpec:
    """Read Qwen 1.5, 2 and 2.5: queries, keys and values have biases."""
    config.require("attention_bias", default=False, allowed=(False,))
    spec = replace(read_llama(config), add_qkv_bias=True)
    return _with_late_windows(config, spec)


def read_qwen3(config: ConfigFile) -> TransformerSpec:
    """Read Qwen 3: each head of queries and keys is normalised."""
    spec = read_llama(config)
    spec = replace(spec, qk_layernorm=True, kv_channels=config.integer("head_dim", 128))
    return _with_late_windows(config, spec)


def read_phi3(config: ConfigFile) -> TransformerSpec:
    """Read Phi-3 and Phi-4."""
    spec = replace(
        read_llama(config),
        hidden_dropout=config.number("resid_pdrop", 0.0),
        rotary_percent=rotary_percent(config, "partial_rotary_factor", default=1.0),
    )
    return with_config_windows(config, spec, [True] * spec.num_layers)


def read_olmo(config: ConfigFile) -> TransformerSpec:
    """Read OLMo: its LayerNorm has no weights."""
    config.require("attention_bias", default=False, allowed=(False,))
    return replace(
        read_llama(config), normalization="layernorm", layernorm_affine=False
    )


def read_olmo2(config: ConfigFile) -> TransformerSpec:
    """Read OLMo 2: norms behind branches, and of all queries and keys together."""
    return replace(
        read_llama(config),
        norm_placement="post",
        qk_layernorm=True,
        qk_layernorm_whole=True,
    )


def read_olmo3(config: ConfigFile) -> TransformerSpec:
    """Read OLMo 3: an OLMo 2 whose every fourth block has no window."""
    spec = read_olmo2(config)
    usual = [number % 4 != 0 for number in range(1, spec.num_layers + 1)]
    return with_config_windows(config, spec, usual, default=4096)


def read_glm(config: ConfigFile) -> TransformerSpec:
    """Read GLM-4 of 2024: biases of queries, keys and values, half of a head turned."""
    bias = config.flag("attention_bias", default=True)
    spec = read_llama(config, default_groups=2)
    return replace(
        spec,
        kv_channels=config.integer("head_dim", 128),
        add_attention_bias=False,
        add_qkv_bias=bias,
        rotary_percent=rotary_percent(config, "partial_rotary_factor", default=0.5),
    )


def read_glm4(config: ConfigFile) -> TransformerSpec:
    """Read GLM-4 of 2025: a GLM with norms before and behind branches."""
    return replace(read_glm(config), norm_placement="sandwich")


def read_stablelm(config: ConfigFile) -> TransformerSpec:
    """Read StableLM: LayerNorm, a quarter of a head turned, serial or parallel."""
    config.require("qk_layernorm", default=False, allowed=(False,))
    parallel = config.flag("use_parallel_residual", default=False)
    return replace(
        read_llama(config),
        normalization="layernorm",
        add_qkv_bias=config.flag("use_qkv_bias", default=False),
        hidden_dropout=config.number("hidden_dropout", 0.0),
        parallel_residual=parallel,
        norm_placement="shared" if parallel else "pre",
        rotary_percent=rotary_percent(
            config, "partial_rotary_factor", "rope_pct", default=0.25
        ),
    )


def read_cohere(config: ConfigFile) -> TransformerSpec:
    """Read Command R: parallel branches that share a LayerNorm without bias."""
    config.require("use_qk_norm", default=False, allowed=(False,))
    return replace(
        read_llama(config),
        normalization="layernorm",
        layernorm_bias=False,
        parallel_residual=True,
        norm_placement="shared",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
    )
