"""Attention by document, against streams of documents that are cut into sequences."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.layers.documents import MOST_TERMS, document_share
from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees, model_flops_per_sequence
from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from tests import failures
from topologies.errors import InputError

LLAMA = load_model("llama3-8b", sequence_length=2048)
SAMPLE = (30, 200, 200, 5000, 1, 777)


@cache
def graph() -> LayerGraph:
    return trace_model(LLAMA)


def model(**changes: Any) -> TransformerSpec:
    return replace(LLAMA, **changes)


def drawn(kind: str, rng: np.random.Generator, count: int) -> Any:
    """Return lengths of documents in a stream, in tokens."""
    if kind == "fixed":
        return np.full(count, 700)
    if kind == "measured":
        return rng.choice(SAMPLE, size=count)
    return np.maximum(np.round(rng.lognormal(np.log(500.0), 1.1, count)), 1).astype(int)


KINDS: dict[str, dict[str, Any]] = {
    "fixed": {"document_length": 700},
    "log-normal": {"document_length": 500, "document_length_sigma": 1.1},
    "measured": {"document_length_samples": SAMPLE},
}


@failures.over("kind", sorted(KINDS))
@failures.over("window", [0, 300])
def test_the_share_is_that_of_a_stream_that_is_cut(kind: str, window: int) -> None:
    length, rng = 2048, np.random.default_rng(6)
    lengths = drawn(kind, rng, 4000)
    ends = np.cumsum(lengths)
    tokens = ends[-1] // length * length
    first = np.repeat(ends - lengths, lengths)[:tokens]
    place = np.arange(tokens)
    begins = np.maximum(first, place // length * length)
    seen = place - begins + 1
    alone = place % length + 1
    if window:
        seen, alone = np.minimum(seen, window), np.minimum(alone, window)
    found = document_share(model(documents=kind, **KINDS[kind]), window)
    assert found == pytest.approx(seen.mean() / alone.mean(), rel=0.04)


def test_long_sequences_are_added_up_in_strides() -> None:
    long = 4 * MOST_TERMS
    wide = {"sequence_length": long, "max_position_embeddings": long}
    for kind, lengths in KINDS.items():
        spec = model(documents=kind, **lengths, **wide)
        # All distances, one by one.
        places = np.arange(1.0, long)
        if kind == "fixed":
            together = np.maximum(1 - places / 700, 0)
        elif kind == "measured":
            sample = np.array(SAMPLE)
            each = np.array([np.maximum(size - places, 0) for size in sample])
            together = each.sum(axis=0) / sample.sum()
        else:
            continue
        pairs = long + ((long - places) * together).sum()
        exact = pairs / (long * (long + 1) / 2)
        assert document_share(spec) == pytest.approx(exact, rel=1e-3)


def test_a_sequence_that_is_one_document_is_as_it_was() -> None:
    assert document_share(LLAMA) == 1.0
    work = layer_work(graph(), 1, Degrees(), 2)
    (attention,) = (op for op in work.operators if op.kind == "attention")
    assert (attention.m, attention.n, attention.batch) == (2048, 2048, 32)


def test_attention_of_documents_is_that_of_so_many_shorter_sequences() -> None:
    spec = model(documents="fixed", document_length=256)
    share = document_share(spec)
    packed = replace(graph(), spec=spec)
    even, short = (layer_work(some, 1, Degrees(), 2) for some in (graph(), packed))
    for before, after in zip(even.operators, short.operators, strict=True):
        part = share if before.kind == "attention" else 1.0
        assert after.forward_flops == pytest.approx(part * before.forward_flops)
        assert after.backward_flops == pytest.approx(part * before.backward_flops)
        assert after.forward_bytes == before.forward_bytes
    assert dict(short.saved_bytes) == dict(even.saved_bytes)
    lost = model_flops_per_sequence(graph()) - model_flops_per_sequence(packed)
    whole = 32 * 3 * 4 * 2048 * 2048 * 4096
    assert lost == pytest.approx((1 - share) * whole)
    (attention,) = (op for op in short.operators if op.kind == "attention")
    assert attention.m * attention.n * attention.batch == pytest.approx(
        share * 2048 * 2048 * 32
    )


@given(
    st.lists(st.integers(1, 20_000), min_size=2, max_size=2).map(sorted),
    st.sampled_from([0.0, 0.3, 1.5, 4.0]),
)
@settings(max_examples=40, deadline=None)
def test_longer_documents_never_take_less(lengths: list[int], sigma: float) -> None:
    spread = {"document_length_sigma": sigma} if sigma else {}
    kind = "log-normal" if sigma else "fixed"
    shares = [
        document_share(model(documents=kind, document_length=length, **spread))
        for length in lengths
    ]
    assert 0.0 < shares[0] <= shares[1] * (1 + 1e-12)
    assert shares[1] <= 1.0


@failures.over(
    ["changes", "where"],
    [
        ({"documents": "fixed"}, "document_length"),
        ({"document_length": 100}, "document_length"),
        ({"documents": "log-normal", "document_length": 100}, "document_length_sigma"),
        ({"documents": "measured"}, "document_length_samples"),
        ({"document_length_samples": (3,)}, "document_length_samples"),
        ({"documents": "some"}, "documents"),
        (
            {
                "documents": "fixed",
                "document_length": 9,
                "attention_implementation": "plain",
            },
            "documents",
        ),
    ],
)
def test_documents_that_are_not_all_said_are_refused(
    changes: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        model(**changes)
    assert caught.value.where == where
