"""Mamba-2, and hybrids of it with attention: Nemotron-H and Nemotron Nano 2."""

from collections.abc import Mapping
from types import MappingProxyType

from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec

HYBRID_KINDS: Mapping[str, str] = MappingProxyType(
    {"M": "mamba", "*": "attention", "-": "dense", "E": "experts"}
)
"""Letter of Megatron's ``hybrid_override_pattern`` -> kind of block."""


def hybrid_pattern(letters: str) -> tuple[str, ...]:
    """Return the kind of each block; letters must be those of `HYBRID_KINDS`."""
    return tuple(HYBRID_KINDS[letter] for letter in letters)


def _nemotron(
    letters: str,
    hidden_size: int,
    ffn_hidden_size: int,
    heads: int,
    mamba: tuple[int, int, int],
) -> TransformerSpec:
    """Return a hybrid; `mamba` are its heads, their width, and the state's size."""
    return TransformerSpec(
        family="mamba",
        num_layers=len(letters),
        block_pattern=hybrid_pattern(letters),
        hidden_size=hidden_size,
        ffn_hidden_size=ffn_hidden_size,
        num_attention_heads=heads,
        num_query_groups=8,
        kv_channels=128,
        vocab_size=131072,
        sequence_length=8192,
        activation_func="squared_relu",
        normalization="rmsnorm",
        position_embedding_type="none",
        tie_word_embeddings=False,
        add_bias_linear=False,
        mamba_num_heads=mamba[0],
        mamba_head_dim=mamba[1],
        mamba_state_dim=mamba[2],
        mamba_num_groups=8,
    )


def _mamba2(num_layers: int, hidden_size: int) -> TransformerSpec:
    """Return a Mamba-2 without attention: one group, tied head."""
    heads = 2 * hidden_size // 64
    return TransformerSpec(
        family="mamba",
        num_layers=num_layers,
        block_pattern=("mamba",) * num_layers,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        kv_channels=64,
        vocab_size=50288,
        sequence_length=2048,
        normalization="rmsnorm",
        position_embedding_type="none",
        add_bias_linear=False,
        mamba_num_heads=heads,
        mamba_num_groups=1,
        mamba_chunk_size=256,
    )


_BEGIN = "M-M-M-M*-M-M-M-M-M*-"
_FIVE = "M-M-M-M-M*-"
_PATTERN_8B = f"{_BEGIN}{2 * _FIVE}M-M-M-M-M-"
_PATTERN_56B = f"{_BEGIN}{8 * _FIVE}M-M-M-M-M-"
_PATTERN_47B = (
    "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-"
    "M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-"
)
_PATTERN_NANO_9B = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
_PATTERN_NANO_12B = f"{6 * 'M-M-M-M*-'}M-M-M-M-"

_NEMOTRON_H = (
    "NVIDIA, Nemotron-H, 2025, section 2.1; config.json of nvidia/Nemotron-H and "
    "Megatron Bridge, models/nemotronh"
)
_NANO = (
    "NVIDIA, Nemotron Nano 2, 2025, section 2; Megatron Bridge, models/nemotronh; "
    "sequences of pre-training"
)
_MAMBA2 = "Dao and Gu, Transformers are SSMs, 2024; config.json of state-spaces/mamba2"

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "mamba2-130m": PublishedModel(_mamba2(24, 768), _MAMBA2),
        "mamba2-2.7b": PublishedModel(_mamba2(64, 2560), _MAMBA2),
        "nemotron-h-8b": PublishedModel(
            _nemotron(_PATTERN_8B, 4096, 21504, 32, (128, 64, 128)), _NEMOTRON_H
        ),
        "nemotron-nano-9b-v2": PublishedModel(
            _nemotron(_PATTERN_NANO_9B, 4480, 15680, 40, (128, 80, 128)), _NANO
        ),
        "nemotron-nano-12b-v2": PublishedModel(
            _nemotron(_PATTERN_NANO_12B, 5120, 20480, 40, (128, 80, 128)), _NANO
        ),
        "nemotron-h-47b": PublishedModel(
            _nemotron(_PATTERN_47B, 8192, 30720, 64, (256, 64, 256)), _NEMOTRON_H
        ),
        "nemotron-h-56b": PublishedModel(
            _nemotron(_PATTERN_56B, 8192, 32768, 64, (256, 64, 256)), _NEMOTRON_H
        ),
    }
)
"""Name -> architecture and source."""
