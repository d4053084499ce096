"""Models that a CPU runs in milliseconds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec

SmallModel = Callable[..., TransformerSpec]


@pytest.fixture(scope="session")
def small() -> SmallModel:
    """Return a function that shrinks a model of the library, keeping its kind."""

    def shrink(name: str, **changes: Any) -> TransformerSpec:
        spec = load_model(name)
        grouped = spec.num_query_groups < spec.num_attention_heads
        sizes = {
            "num_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 8,
            "num_query_groups": 2 if grouped else 8,
            "kv_channels": 8,
            "ffn_hidden_size": 96,
            "vocab_size": 101,
            "sequence_length": 16,
            "max_position_embeddings": 20,
        }
        return replace(spec, **{**sizes, **changes})

    return shrink
