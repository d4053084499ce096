"""Which models are alike: frameworks have models by name, and Llamas of any size."""

from collections.abc import Collection
from dataclasses import fields

from estimators.models.library.catalog import load_model
from estimators.models.spec import TransformerSpec

_SOME_LLAMA = "llama3-8b"

_SIZES = frozenset(
    {
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"),
        *("num_query_groups", "vocab_size", "sequence_length", "kv_channels"),
        *("max_position_embeddings", "attention_implementation"),
    }
)

_OF_TRAINING = frozenset(
    {
        *("sequence_length", "max_position_embeddings", "attention_implementation"),
        "mtp_num_layers",
    }
)
"""What a job may have otherwise than the library, with the same weights otherwise."""


def is_published(spec: TransformerSpec, name: str) -> bool:
    """Whether a model is one of the library but for how it is trained.

    Its length of sequences, its kernel of attention, and layers that predict further
    ahead may be others.
    """
    return _differ_in(spec, load_model(name), _OF_TRAINING)


def is_llama(spec: TransformerSpec, *, tied: bool = False) -> bool:
    """Whether a model differs from Llama 3 in its sizes only.

    Parameters
    ----------
    spec
        The model.
    tied
        Whether the output layer may share the word embedding's weight.
    """
    others = _SIZES | ({"tie_word_embeddings"} if tied else set())
    return _differ_in(spec, load_model(_SOME_LLAMA), others)


def _differ_in(
    spec: TransformerSpec, known: TransformerSpec, names: Collection[str]
) -> bool:
    """Whether two models are alike in all but some fields."""
    return all(
        field.name in names or getattr(spec, field.name) == getattr(known, field.name)
        for field in fields(spec)
    )
