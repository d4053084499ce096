"""Named models, each with the place where its architecture was published.

Parameter counts that follow from these entries are tested against the published
ones to the unit, where one was published to the unit.
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from estimators.models.spec import TransformerSpec
from topologies.errors import InputError


class PublishedModel(NamedTuple):
    """An entry of the library."""

    spec: TransformerSpec
    """Architecture of the model, at the sequence length that it was mainly trained
    with."""

    source: str
    """Publication of the model, and what was chosen where it is silent."""


def _gpt3(num_layers: int, hidden_size: int, heads: int) -> TransformerSpec:
    """Return a GPT-3: 2,048 tokens, the vocabulary of GPT-2, dropout as Megatron-LM."""
    return TransformerSpec(
        family="gpt",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        vocab_size=50257,
        sequence_length=2048,
        hidden_dropout=0.1,
        attention_dropout=0.1,
    )


def _llama(  # noqa: PLR0913, PLR0917  # the columns of the papers' tables
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
    dense = _llama(
        num_layers, hidden_size, hidden_size * 7 // 2, heads, heads // 4, 32000, 4096
    )
    return replace(dense, family="mixtral", num_moe_experts=8, moe_router_topk=2)


_BERT_LARGE = TransformerSpec(
    family="bert",
    num_layers=24,
    hidden_size=1024,
    num_attention_heads=16,
    vocab_size=30522,
    sequence_length=512,
    hidden_dropout=0.1,
    attention_dropout=0.1,
    causal=False,
    num_token_types=2,
)

_GPT3_SOURCE = (
    "Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1; dropout 0.1 "
    "is Megatron-LM's default"
)
_LLAMA2_SOURCE = "Touvron et al., Llama 2, 2023; config.json of meta-llama/Llama-2"
_LLAMA3_SOURCE = "Grattafiori et al., The Llama 3 Herd of Models, 2024, table 3"

LIBRARY: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "bert-large": PublishedModel(
            _BERT_LARGE,
            "Devlin et al., BERT, 2019, section 3; vocabulary of bert-large-uncased",
        ),
        "gpt3-125m": PublishedModel(_gpt3(12, 768, 12), _GPT3_SOURCE),
        "gpt3-350m": PublishedModel(_gpt3(24, 1024, 16), _GPT3_SOURCE),
        "gpt3-760m": PublishedModel(_gpt3(24, 1536, 16), _GPT3_SOURCE),
        "gpt3-1.3b": PublishedModel(
            _gpt3(24, 2048, 16),
            f"{_GPT3_SOURCE}; 16 heads of 128, since the table's 24 x 128 is not 2048",
        ),
        "gpt3-2.7b": PublishedModel(_gpt3(32, 2560, 32), _GPT3_SOURCE),
        "gpt3-6.7b": PublishedModel(_gpt3(32, 4096, 32), _GPT3_SOURCE),
        "gpt3-13b": PublishedModel(
            _gpt3(40, 5120, 40),
            f"{_GPT3_SOURCE}; width 40 x 128 = 5120, where the table has 5140",
        ),
        "gpt3-35b": PublishedModel(
            replace(_gpt3(64, 8192, 64), ffn_hidden_size=16384),
            "Wang et al., NEST, 2026, appendix C.1.1, table 3: its feed-forward is "
            "twice as wide as the model, not four times; vocabulary of GPT-2",
        ),
        "gpt3-175b": PublishedModel(_gpt3(96, 12288, 96), _GPT3_SOURCE),
        "llama2-7b": PublishedModel(
            _llama(32, 4096, 11008, 32, 32, 32000, 4096), _LLAMA2_SOURCE
        ),
        "llama2-13b": PublishedModel(
            _llama(40, 5120, 13824, 40, 40, 32000, 4096), _LLAMA2_SOURCE
        ),
        "llama2-70b": PublishedModel(
            _llama(80, 8192, 28672, 64, 8, 32000, 4096), _LLAMA2_SOURCE
        ),
        "llama3-8b": PublishedModel(
            _llama(32, 4096, 14336, 32, 8, 128256, 8192), _LLAMA3_SOURCE
        ),
        "llama3-70b": PublishedModel(
            _llama(80, 8192, 28672, 64, 8, 128256, 8192), _LLAMA3_SOURCE
        ),
        "llama3-405b": PublishedModel(
            _llama(126, 16384, 53248, 128, 8, 128256, 8192), _LLAMA3_SOURCE
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


def model_names() -> tuple[str, ...]:
    """Return the names that `load_model` knows, families together, small to large."""
    return tuple(LIBRARY)


def load_model(
    name: str,
    *,
    sequence_length: int | None = None,
    attention_implementation: str | None = None,
) -> TransformerSpec:
    """Return a model of the library.

    Parameters
    ----------
    name
        One of `model_names`; upper case and underscores are forgiven.
    sequence_length
        Instead of the library's. A learned position embedding has as many rows as
        published, or as many as are needed if that is more.
    attention_implementation
        ``"flash"`` or ``"plain"`` instead of the library's ``"flash"``.

    Raises
    ------
    InputError
        If there is no such model, or a value is not possible.
    """
    key = name.lower().replace("_", "-")
    if key not in LIBRARY:
        near = difflib.get_close_matches(key, LIBRARY, n=1, cutoff=0.5)
        raise InputError(
            "no such model",
            where="name",
            got=name,
            expected="one of " + ", ".join(LIBRARY),
            hint=f'did you mean "{near[0]}"?' if near else "",
        )
    spec = LIBRARY[key].spec
    if attention_implementation is not None:
        spec = replace(spec, attention_implementation=attention_implementation)
    if sequence_length is not None:
        spec = with_sequence_length(spec, sequence_length)
    return spec


def with_sequence_length(
    spec: TransformerSpec, sequence_length: int
) -> TransformerSpec:
    """Return the same model for other sequences.

    A learned position embedding grows where the sequences are longer than it.

    Raises
    ------
    InputError
        If the length is not a positive whole number.
    """
    checked = replace(spec, sequence_length=sequence_length, max_position_embeddings=0)
    rows = max(spec.max_position_embeddings, checked.sequence_length)
    return replace(checked, max_position_embeddings=rows)
