"""Llamas of any size: what frameworks build whose models are code of their own."""

from dataclasses import replace

from estimators.models.library.catalog import load_model
from estimators.models.spec import TransformerSpec

_SOME_LLAMA = "llama3-8b"

_SIZES = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"),
    *("num_query_groups", "vocab_size", "sequence_length", "kv_channels"),
    *("max_position_embeddings", "attention_implementation"),
)


def is_llama(spec: TransformerSpec) -> bool:
    """Whether a model differs from Llama 3 in its sizes only."""
    known = load_model(_SOME_LLAMA)
    return replace(spec, **{name: getattr(known, name) for name in _SIZES}) == known
