"""How much of a packed sequence a token attends to: that of its own document.

Documents follow each other in one stream that is cut into sequences of ``s`` tokens,
wherever the cut falls, and a token attends to its own document alone. Of two tokens
``d`` places apart the chance that they are of one document of length ``L`` is

    P(d) = E[max(L - d, 0)] / E[L]

since a document of ``L`` tokens has ``L - d`` such pairs for each of its ``L`` tokens
(renewal theory: Cox, "Renewal Theory", 1962, chapter 5). So the expected pairs of a
sequence are ``s + sum_d (s - d) P(d)`` looking back, of which attention without
documents has ``s (s + 1) / 2``; a window of ``w`` tokens has those with ``d < w``.

* ``fixed``: ``P(d) = max(1 - d / L, 0)``;
* ``log-normal`` with median ``M`` and a standard deviation ``a`` of the logarithm: with
  the normal distribution function ``F`` and ``E[L] = M exp(a^2 / 2)``::

      E[max(L - d, 0)] = E[L] F(a + ln(M / d) / a) - d F(ln(M / d) / a)

* ``measured``: the mean over the lengths of a sample, by how many have each.
"""

import math
from functools import lru_cache

import numpy as np

from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import TracedOperator
from topologies.arrays import FloatArray

MOST_TERMS = 1 << 16
"""Distances that are added up one by one; of more a trapezium stands for several."""


def attended_share(spec: TransformerSpec, operator: TracedOperator) -> float:
    """Return the part of an operator's pairs of tokens that documents leave to it.

    Fused attention of a sequence to itself leaves out the others; plain products do
    not.
    """
    if operator.operation != "attention" or operator.sees_all:
        return 1.0
    return document_share(spec, operator.window)


def worked_flops(spec: TransformerSpec, operator: TracedOperator) -> float:
    """Return an operator's forward products of one sequence, by documents [FLOP]."""
    return operator.model_flops * attended_share(spec, operator)


def document_share(spec: TransformerSpec, window: int = 0) -> float:
    """Return the pairs of tokens of one document over those of one sequence.

    Parameters
    ----------
    spec
        The model, which says how long documents are.
    window
        Tokens that a token sees at most, itself included; 0 for all.
    """
    if spec.documents == "whole":
        return 1.0
    length = spec.sequence_length
    return _share(
        spec.documents,
        (spec.document_length, spec.document_length_sigma),
        (spec.document_length_samples, spec.document_length_counts),
        length,
        min(window or length, length),
    )


@lru_cache(maxsize=256)
def _share(
    kind: str,
    settings: tuple[float, float],
    sample: tuple[tuple[int, ...], tuple[int, ...]],
    length: int,
    reach: int,
) -> float:
    """Return the share of pairs that are less than ``reach`` apart."""
    middle, spread = settings
    if reach <= MOST_TERMS:
        places = np.arange(1.0, reach)
        weights = np.ones(places.size)
    else:
        places = np.unique(np.round(np.geomspace(1.0, reach - 1.0, MOST_TERMS)))
        gaps = np.diff(places)
        weights = np.empty(places.size)
        weights[0], weights[-1] = (gaps[0] + 1.0) / 2.0, (gaps[-1] + 1.0) / 2.0
        weights[1:-1] = (gaps[1:] + gaps[:-1]) / 2.0
    if kind == "fixed":
        together = np.maximum(1.0 - places / middle, 0.0)
    elif kind == "log-normal":
        together = _log_normal(places, middle, spread)
    else:
        lengths, counts = np.array(sample, dtype=np.float64)
        together = _measured(places, lengths, counts)
    pairs = weights * (length - places)
    return float((length + pairs @ together) / (length + pairs.sum()))


def _log_normal(places: FloatArray, median: float, spread: float) -> FloatArray:
    if spread == 0.0:
        return np.asarray(np.maximum(1.0 - places / median, 0.0))
    above = np.log(median / places) / spread
    mean = median * math.exp(spread**2 / 2.0)
    left = _normal(above + spread) - places / mean * _normal(above)
    return np.asarray(np.clip(left, 0.0, 1.0))


def _normal(values: FloatArray) -> FloatArray:
    """Return the normal distribution function."""
    scaled = (-values / math.sqrt(2.0)).tolist()
    return np.array([0.5 * math.erfc(value) for value in scaled])


def _measured(
    places: FloatArray, lengths: FloatArray, counts: FloatArray
) -> FloatArray:
    """Return the chance from a sample's lengths, in order, and their counts."""
    first = np.searchsorted(lengths, places, side="right")
    tokens = lengths * counts
    beyond = np.append(np.cumsum(tokens[::-1])[::-1], 0.0)[first]
    longer = np.append(np.cumsum(counts[::-1])[::-1], 0.0)[first]
    return np.asarray((beyond - places * longer) / tokens.sum())
