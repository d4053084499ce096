"""Drawn packed sequences, against the expected attention and a stream that is cut."""

from dataclasses import replace

import numpy as np
import pytest

from estimators.layers.documents import document_share
from estimators.layers.packing import drawn_attention
from estimators.tracing.graph import LayerGraph
from tests import failures
from tests.estimators.layers.test_documents import KINDS, drawn, graph
from topologies.arrays import FloatArray


def packed(kind: str, **more: object) -> LayerGraph:
    traced = graph()
    spec = replace(traced.spec, documents=kind, **KINDS[kind] | more)
    return replace(traced, spec=spec)


def pairs_of_stream(kind: str, sequences: int) -> FloatArray:
    """Return the share of pairs of each sequence of a stream, token by token."""
    length, rng = 2048, np.random.default_rng(11)
    lengths = drawn(kind, rng, 400 + sequences * length // 200)
    ends = np.cumsum(lengths)
    # From a place far inside, where no document's beginning is near by construction.
    first = np.repeat(ends - lengths, lengths)[100_000:][: sequences * length]
    place = np.arange(100_000, 100_000 + first.size)
    begins = np.maximum(first, 100_000 + (place - 100_000) // length * length)
    seen = (place - begins + 1).reshape(-1, length).sum(axis=1)
    return np.asarray(seen / (length * (length + 1) / 2))


@failures.over("kind", ["log-normal", "measured"])
def test_sequences_scatter_as_those_of_a_stream_that_is_cut(kind: str) -> None:
    spec = packed(kind).spec
    stream = pairs_of_stream(kind, 6000)
    share = document_share(spec)
    sample = share + drawn_attention(packed(kind)) * (1.0 - share)
    # The mean of so many scattered sequences is off by that much.
    error = stream.std() / np.sqrt(stream.size) + sample.std() / np.sqrt(sample.size)
    assert stream.mean() == pytest.approx(share, abs=4 * error)
    assert sample.std() == pytest.approx(stream.std(), rel=0.05)
    for quantile in (0.1, 0.5, 0.9):
        found = np.quantile(sample, quantile)
        assert found == pytest.approx(np.quantile(stream, quantile), rel=0.05)


def test_an_average_sequence_is_0_and_one_document_is_1() -> None:
    for kind in KINDS:
        attention = drawn_attention(packed(kind))
        assert abs(attention.mean()) < 1e-12
        assert attention.max() <= 1.0
        assert (np.diff(attention) >= 0.0).all()
    # Of documents of 5,000 tokens most fill a sequence of 2,048.
    long = packed("measured", document_length_samples=(5000,))
    assert drawn_attention(long).max() == pytest.approx(1.0)


def test_where_the_fixed_cut_falls_is_uniform() -> None:
    # Documents as long as sequences: the cut is at u, pieces of u and 1 - u are left,
    # so that shares are u^2 + (1 - u)^2, with mean 2 / 3 and variance 1 / 45.
    fixed = packed("fixed", document_length=2048)
    attention = drawn_attention(fixed)
    assert attention.std() * (1.0 / 3.0) == pytest.approx(np.sqrt(1 / 45), rel=0.02)


def test_operators_with_windows_count_by_their_work() -> None:
    traced = graph()

    def of(*windows: int) -> FloatArray:
        """Return the attention of a model whose layers have these windows."""
        layers = tuple(
            replace(
                layer,
                operators=tuple(
                    operator._replace(window=window)
                    if operator.operation == "attention"
                    else operator
                    for operator in layer.operators
                ),
            )
            for window in windows
            for layer in traced.layers
            if any(operator.operation == "attention" for operator in layer.operators)
        )
        spec = packed("log-normal").spec
        return drawn_attention(
            replace(traced, spec=spec, kinds=tuple(range(len(layers))), layers=layers)
        )

    assert (of(0) == of(0, 2048)).all()
    assert (of(0) == of(0, 0)).all()
    # A short window sees as much of most documents, however long they are.
    whole, spec = 0.0, packed("log-normal").spec
    for window in (64, 512, 2048):
        scatter = of(window).std() * (1.0 - document_share(spec, window))
        assert scatter > 1.5 * whole
        whole = scatter
