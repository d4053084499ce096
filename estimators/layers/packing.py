"""Sequences, drawn: how much attention one has beside another, how many pictures.

A stream of documents is cut into sequences of ``s`` tokens. A sequence begins inside of
a document, which is one of length ``L`` with a probability in proportion to ``L``, and
at any of its places alike (the inspection paradox; Cox, "Renewal Theory", 1962, section
5.4); then whole documents follow, and the last one is cut off. Sequences are shuffled
before they are trained, as Megatron-LM's ``GPTDataset`` does
(``core/datasets/gpt_dataset.py``, the shuffle index), so that those of a batch are
independent of each other.

Lengths are real numbers here. A piece of ``l`` tokens has ``l (l + 1) / 2`` pairs; with
a window of ``w`` tokens ``w (w + 1) / 2 + (l - w) w`` where ``l`` is more.

Pictures are drawn with the sequences of a data set, each alike; what a sequence has of
them it has in place of words.
"""

import math
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import numpy as np

from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from topologies.arrays import FloatArray
from topologies.errors import InputError

MOST_SEQUENCES = 1 << 14
"""Sequences that are drawn, if documents are long."""

_LEAST_SEQUENCES = 1 << 8
_MOST_DOCUMENTS = 1 << 23


def drawn_documents(graph: LayerGraph) -> tuple[LayerGraph, FloatArray]:
    """Return a model whose sequences are whole documents, and `drawn_attention`.

    Raises
    ------
    InputError
        If they are so already.
    """
    if graph.spec.documents == "whole":
        raise InputError(
            "draws documents, and a sequence of this model is one document",
            where="jitter.documents",
            got="drawn",
            expected='"expected", or model.documents, e.g. "log-normal"',
        )
    whole = replace(
        graph.spec,
        documents="whole",
        document_length=0,
        document_length_sigma=0.0,
        document_length_samples=(),
        document_length_counts=(),
    )
    return replace(graph, spec=whole), drawn_attention(graph)


def drawn_pictures(graph: LayerGraph) -> tuple[LayerGraph, FloatArray]:
    """Return a model with the most pictures, without adapters, and drawn sequences.

    On a scale from sequences with as many pictures as plans are made for, 0, to those
    with the most, 1; shape ``(N,)``, rising.

    Raises
    ------
    InputError
        If all sequences have as many.
    """
    tower = graph.spec.vision
    if tower is None or not tower.image_counts:
        raise InputError(
            "draws pictures, and all sequences of this model have as many",
            where="jitter.images",
            got="drawn",
            expected='"expected", or model.images_sigma or model.image_counts',
        )
    most = max(*tower.image_counts, tower.images + 1)
    seeing = replace(graph.spec, vision=replace(tower, images=most))
    counts = np.array(tower.image_counts, dtype=np.float64)
    return trace_model(seeing), (counts - tower.images) / (most - tower.images)


def drawn_attention(graph: LayerGraph) -> FloatArray:
    """Return how much more attention drawn sequences have than the mean of them.

    Over what a sequence of one document has beyond the mean: 0 is an average sequence,
    1 one of a single document; their mean is 0. Operators count by their work, each
    with its window. Always the same numbers, rising.

    Parameters
    ----------
    graph
        A model whose sequences are not "whole" documents.

    Returns
    -------
    array
        Shape ``(N,)``; all 0 where every sequence is one document.
    """
    work = Counter[int]()
    for kind, count in Counter(graph.kinds).items():
        for operator in graph.layers[kind].operators:
            if operator.operation == "attention" and not operator.sees_all:
                work[operator.window] += count * operator.model_flops
    length = graph.spec.sequence_length
    reaches = {window: min(window or length, length) for window in work}
    windows = tuple(sorted({*reaches.values()}))
    if not windows:
        return np.zeros(1)
    shares = _drawn_shares(graph.spec, windows)
    weights = np.zeros(len(windows))
    for window, flops in work.items():
        weights[windows.index(reaches[window])] += flops
    attended = shares @ (weights / weights.sum())
    mean = float(attended.mean())
    if mean >= 1.0:
        return np.zeros_like(attended)
    return np.sort((attended - mean) / (1.0 - mean))


@lru_cache(maxsize=16)
def _drawn_shares(spec: TransformerSpec, windows: tuple[int, ...]) -> FloatArray:
    """Return the pairs of sequences over those of whole ones, shape ``(N, windows)``.

    The random words are those of ``numpy.random.Philox`` with the key 0, which does not
    change from one version to the next.
    """
    length = float(spec.sequence_length)
    per_sequence = 1.0 + length / _mean_length(spec)
    count = int(np.clip(_MOST_DOCUMENTS / per_sequence, _LEAST_SEQUENCES, 1e9))
    count = min(count, MOST_SEQUENCES)
    words = np.random.Philox(key=0)
    left = np.full(count, length)
    pairs = np.zeros((count, len(windows)))
    rest = _lengths(spec, words, count, cut=True) * _uniforms(words, count)
    pieces = np.maximum(rest, 1.0)
    while (left > 0.0).any():
        pieces = np.minimum(pieces, left)
        for place, window in enumerate(windows):
            pairs[:, place] += _pairs(pieces, float(window))
        left -= pieces
        pieces = _lengths(spec, words, count)
    whole = np.array([float(_pairs(np.array(length), float(w))) for w in windows])
    pairs /= whole
    pairs.flags.writeable = False
    return pairs


def _pairs(tokens: FloatArray, window: float) -> FloatArray:
    """Return the pairs of tokens of pieces of documents."""
    near = np.minimum(tokens, window)
    return np.asarray(near * (near + 1.0) / 2.0 + (tokens - near) * window)


def _mean_length(spec: TransformerSpec) -> float:
    if spec.documents == "measured":
        counts = spec.document_length_counts
        return float(np.average(spec.document_length_samples, weights=counts))
    return spec.document_length * math.exp(spec.document_length_sigma**2 / 2.0)


def _uniforms(words: np.random.Philox, count: int) -> FloatArray:
    """Return numbers inside of (0, 1)."""
    upper = words.random_raw(count) >> np.uint64(12)
    return np.asarray((upper + 0.5) * 2.0**-52)


def _lengths(
    spec: TransformerSpec, words: np.random.Philox, count: int, *, cut: bool = False
) -> FloatArray:
    """Return lengths of documents, or of those that sequences begin inside of."""
    if spec.documents == "fixed":
        return np.full(count, float(spec.document_length))
    uniform = _uniforms(words, count)
    if spec.documents == "measured":
        lengths = np.array(spec.document_length_samples, dtype=np.float64)
        counts = np.array(spec.document_length_counts, dtype=np.float64)
        ends = np.cumsum(lengths * counts if cut else counts)
        return np.asarray(lengths[np.searchsorted(ends, uniform * ends[-1])])
    # Box and Muller's normal numbers; by length, the median is exp(sigma^2) longer.
    angle = 2.0 * math.pi * _uniforms(words, count)
    normal = np.sqrt(-2.0 * np.log(uniform)) * np.cos(angle)
    sigma = spec.document_length_sigma
    exponent = sigma * normal + (sigma * sigma if cut else 0.0)
    return np.asarray(np.maximum(spec.document_length * np.exp(exponent), 1.0))
