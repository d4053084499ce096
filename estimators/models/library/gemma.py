"""Gemma 2, and the text part of Gemma 3."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimators.models.library.llama import llama_spec
from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec, with_windows


def _gemma2(
    num_layers: int,
    hidden_size: int,
    ffn_hidden_size: int,
    heads: int,
    groups: int,
    kv_channels: int,
) -> TransformerSpec:
    """Return a Gemma 2: windows in every second block, capped scores and logits."""
    llama = llama_spec(
        num_layers, hidden_size, ffn_hidden_size, heads, groups, 256_000, 8192
    )
    plain = replace(
        _gemma(llama, kv_channels),
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )
    return with_windows(plain, 4096, skip_freq=2)


def _gemma3(  # noqa: PLR0913  # the columns of the paper's table
    num_layers: int,
    hidden_size: int,
    ffn_hidden_size: int,
    heads: int,
    groups: int,
    kv_channels: int = 256,
    *,
    window_size: int = 1024,
    vocab_size: int = 262_208,
) -> TransformerSpec:
    """Return a Gemma 3: no window in every sixth block, queries and keys normalised."""
    llama = llama_spec(
        num_layers, hidden_size, ffn_hidden_size, heads, groups, vocab_size, 32_768
    )
    plain = replace(_gemma(llama, kv_channels), qk_layernorm=True)
    return with_windows(plain, window_size, skip_freq=6)


def _gemma(llama: TransformerSpec, kv_channels: int) -> TransformerSpec:
    """Return what both have in common: GeGLU, sandwich norms, scaled, tied."""
    return replace(
        llama,
        kv_channels=kv_channels,
        activation_func="gelu",
        norm_placement="sandwich",
        scale_embeddings=True,
        tie_word_embeddings=True,
    )


_GEMMA2_SOURCE = (
    "Gemma Team, Gemma 2, 2024, table 1; config.json of google/gemma-2: every block of "
    "odd number has the window"
)
_GEMMA3_SOURCE = (
    "Gemma Team, Gemma 3 Technical Report, 2025, section 2; config.json of "
    "google/gemma-3, text part; sequences before it is lengthened, 32,768"
)

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "gemma2-2b": PublishedModel(_gemma2(26, 2304, 9216, 8, 4, 256), _GEMMA2_SOURCE),
        "gemma2-9b": PublishedModel(
            _gemma2(42, 3584, 14336, 16, 8, 256), _GEMMA2_SOURCE
        ),
        "gemma2-27b": PublishedModel(
            _gemma2(46, 4608, 36864, 32, 16, 128), _GEMMA2_SOURCE
        ),
        "gemma3-1b": PublishedModel(
            _gemma3(26, 1152, 6912, 4, 1, window_size=512, vocab_size=262_144),
            _GEMMA3_SOURCE,
        ),
        "gemma3-4b": PublishedModel(_gemma3(34, 2560, 10240, 8, 4), _GEMMA3_SOURCE),
        "gemma3-12b": PublishedModel(_gemma3(48, 3840, 15360, 16, 8), _GEMMA3_SOURCE),
        "gemma3-27b": PublishedModel(
            _gemma3(62, 5376, 21504, 32, 16, 128), _GEMMA3_SOURCE
        ),
    }
)
"""Name -> architecture and source."""
