"""What a trainer sees of the responses of a step: rows of tokens without padding.

Prompts with their responses are packed into rows no longer than a sequence of the
model, the longest first, each into the fullest row that has room for it (best fit
decreasing: Johnson, "Near-optimal bin packing algorithms", MIT, 1973), as trainers do
that pack sequences. All rows of a mini-batch then count as equally long, the mean of
them: a pass of a trainer that balances its rows. Where most rows hold a single
response, attention is that of whole rows; where they hold several, each attends to
itself alone.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from estimators.generation.lengths import Lengths
from estimators.models.spec import TransformerSpec
from nestsim.scenario.rl import RlSpec
from topologies.arrays import IntArray

ROW_MULTIPLE = 64
"""Tokens of a row are a multiple of this, so that tensor-parallel ranks have equal
parts of them (NeMo RL, ``examples/configs/grpo_math_1B.yaml``,
``sequence_length_round``)."""

LENGTH_MULTIPLE = 16
"""Lengths of documents are told apart in multiples of this [tokens]."""

SINGLE = 1.5
"""Responses in a row, on average, below which attention is that of whole rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """The prompts and responses of a step as a trainer has them."""

    num_tokens: int
    """Tokens of all prompts with their responses."""

    num_rows: int
    """Rows of a mini-batch, the mean rounded up."""

    row_length: int
    """Tokens of a row."""

    mini_batches: int
    """Mini-batches of a step."""

    fill: float
    """Part of the rows' tokens that belongs to responses and prompts, before rows count
    as equally long."""

    model: TransformerSpec
    """The model with sequences as long as rows, and the documents that they hold."""

    mean_response: float
    """Mean length of a response [tokens]."""

    longest_response: int
    """Longest response [tokens]."""


def packed_batch(
    spec: RlSpec, model: TransformerSpec, responses: Lengths
) -> PackedBatch:
    """Return what the trainer has of a step.

    Parameters
    ----------
    spec
        Prompts, samples and mini-batches.
    model
        Whose sequence length is that of the longest row.
    responses
        How long they are.
    """
    drawn = responses.sample(spec.num_responses, spec.seed)
    lengths = drawn + spec.prompt_length
    parts = [lengths[start :: spec.mini_batches] for start in range(spec.mini_batches)]
    counts = [num_rows(part, model.sequence_length) for part in parts]
    rows, total = sum(counts), int(lengths.sum())
    mean = -(-total // rows)
    row_length = min(-(-mean // ROW_MULTIPLE) * ROW_MULTIPLE, model.sequence_length)
    return PackedBatch(
        num_tokens=total,
        num_rows=-(-rows // spec.mini_batches),
        row_length=row_length,
        mini_batches=spec.mini_batches,
        fill=total / (rows * model.sequence_length),
        model=_packed_model(model, row_length, lengths, len(lengths) / rows),
        mean_response=float(drawn.mean()),
        longest_response=int(drawn.max()),
    )


def _packed_model(
    model: TransformerSpec, row_length: int, lengths: IntArray, in_a_row: float
) -> TransformerSpec:
    """Return the model with rows as its sequences."""
    positions = max(model.max_position_embeddings, row_length)
    model = replace(
        model,
        sequence_length=row_length,
        max_position_embeddings=positions,
        documents="whole",
        document_length=0,
        document_length_sigma=0.0,
        document_length_samples=(),
        document_length_counts=(),
    )
    if in_a_row < SINGLE:
        return model
    rounded = -(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    known, counts = np.unique(rounded, return_counts=True)
    return replace(
        model,
        documents="measured",
        document_length_samples=tuple(known.tolist()),
        document_length_counts=tuple(counts.tolist()),
    )


def num_rows(lengths: Sequence[int] | IntArray, capacity: int) -> int:
    """Return how many rows hold all lengths: best fit, the longest first.

    Examples
    --------
    >>> num_rows([60, 50, 40, 30, 20], 100)
    2
    """
    room: list[int] = []
    count = 0
    for length in sorted((int(length) for length in lengths), reverse=True):
        assert length <= capacity
        place = bisect_left(room, length)
        if place < len(room):
            left = room.pop(place) - length
        else:
            left, count = capacity - length, count + 1
        insort(room, left)
    return count
