"""Packing against brute force, and what a trainer then has."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.generation.lengths import Lengths
from nestsim.features.rl.batch import ROW_MULTIPLE, num_rows, packed_batch
from nestsim.scenario.rl import RlSpec
from tests.nestsim.features.rl.small import small


def fewest_rows(lengths: list[int], capacity: int) -> int:
    """Return the fewest rows, by trying all ways."""
    for count in range(1, len(lengths) + 1):
        for places in product(range(count), repeat=len(lengths)):
            filled = np.bincount(places, lengths, count)
            if filled.max() <= capacity:
                return count
    return len(lengths)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10), min_size=1, max_size=6))
def test_rows_are_nearly_as_few_as_can_be(lengths: list[int]) -> None:
    """Best fit decreasing needs at most 11/9 of the fewest rows and 4 more, and never
    fewer."""
    rows, fewest = num_rows(lengths, 10), fewest_rows(lengths, 10)
    assert fewest <= rows <= 11 / 9 * fewest + 4
    assert rows == num_rows(lengths[::-1], 10)


def test_equal_lengths_fill_rows_as_often_as_they_fit() -> None:
    assert num_rows([300] * 10, 1000) == 4


def spec(**values: object) -> RlSpec:
    given_values = {"prompts": 16, "samples": 8, "prompt_length": 100, **values}
    return RlSpec(**{"response_length": 400, **given_values})  # type: ignore[arg-type]


def test_a_batch_holds_all_tokens() -> None:
    model, lengths = small().spec, Lengths.log_normal(400, 0.7, 924)
    asked = spec(mini_batches=4)
    batch = packed_batch(asked, model, lengths)
    drawn = lengths.sample(128, 0)
    assert batch.num_tokens == drawn.sum() + 128 * 100
    capacity = batch.num_rows * batch.mini_batches * batch.row_length
    assert capacity >= batch.num_tokens
    assert batch.row_length <= model.sequence_length
    assert batch.row_length % ROW_MULTIPLE == 0
    assert batch.model.documents == "measured"


def test_single_responses_are_whole_rows() -> None:
    """Two responses of 900 tokens do not fit into a row of 1,024."""
    batch = packed_batch(spec(), small().spec, Lengths.fixed(800))
    assert batch.num_rows == 128
    assert batch.row_length == -(-900 // ROW_MULTIPLE) * ROW_MULTIPLE
    assert batch.model.documents == "whole"
    assert batch.fill == 900 / 1024
