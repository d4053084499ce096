"""Llama 2 and 3, and Mixtral."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec


def llama_spec(  # noqa: PLR0913, PLR0917  # the columns of the papers' tables
    num_layers: int,
    hidden_size: int,
    ffn_hidden_size: int,
    heads: int,
    groups: int,
    vocab_size: int,
    sequence_length: int,
) -> TransformerSpec:
    """Return a Llama: RMSNorm, SwiGLU, rotary positions, no biases, untied head."""
    return TransformerSpec(
        family="llama",
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_hidden_size=ffn_hidden_size,
        num_attention_heads=heads,
        num_query_groups=groups,
        vocab_size=vocab_size,
        sequence_length=sequence_length,
        gated_linear_unit=True,
        normalization="rmsnorm",
        position_embedding_type="rope",
        tie_word_embeddings=False,
        add_bias_linear=False,
    )


def _mixtral(num_layers: int, hidden_size: int, heads: int) -> TransformerSpec:
    """Return a Mixtral: Mistral's proportions, the best 2 of 8 experts per token."""
    dense = llama_spec(
        num_layers, hidden_size, hidden_size * 7 // 2, heads, heads // 4, 32000, 4096
    )
    return replace(dense, family="mixtral", num_moe_experts=8, moe_router_topk=2)


_LLAMA2_SOURCE = "Touvron et al., Llama 2, 2023; config.json of meta-llama/Llama-2"
_LLAMA3_SOURCE = "Grattafiori et al., The Llama 3 Herd of Models, 2024, table 3"

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "llama2-7b": PublishedModel(
            llama_spec(32, 4096, 11008, 32, 32, 32000, 4096), _LLAMA2_SOURCE
        ),
        "llama2-13b": PublishedModel(
            llama_spec(40, 5120, 13824, 40, 40, 32000, 4096), _LLAMA2_SOURCE
        ),
        "llama2-70b": PublishedModel(
            llama_spec(80, 8192, 28672, 64, 8, 32000, 4096), _LLAMA2_SOURCE
        ),
        "llama3-8b": PublishedModel(
            llama_spec(32, 4096, 14336, 32, 8, 128256, 8192), _LLAMA3_SOURCE
        ),
        "llama3-70b": PublishedModel(
            llama_spec(80, 8192, 28672, 64, 8, 128256, 8192), _LLAMA3_SOURCE
        ),
        "llama3-405b": PublishedModel(
            llama_spec(126, 16384, 53248, 128, 8, 128256, 8192), _LLAMA3_SOURCE
        ),
        "mixtral-8x7b": PublishedModel(
            _mixtral(32, 4096, 32),
            "Jiang et al., Mixtral of Experts, 2024, table 1; trained with up to "
            "32,768 tokens, set to the NEST paper's 4,096",
        ),
        "mixtral-790m": PublishedModel(
            replace(_mixtral(8, 1024, 16), sequence_length=1024),
            "Wang et al., NEST, 2026, appendix C.2.1, table 5; vocabulary and query "
            "groups, a quarter of the heads, as in Mixtral 8x7B",
        ),
    }
)
"""Name -> architecture and source."""
