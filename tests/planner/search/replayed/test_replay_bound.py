"""The compiled bound against the same formulas in plain Python."""

import random
from dataclasses import replace

import pytest

from tests.planner.search.replayed.kernel_cases import NUM_OPTIONS, compiled, drawn_case
from tests.planner.search.replayed.naive_bounds import ZERO


def cases(count):
    """Yield cases of every ZeRO stage and sharding option."""
    rng = random.Random(12)
    for number in range(count):
        zero = number % len(ZERO)
        option = number // len(ZERO) % NUM_OPTIONS if zero else 0
        yield drawn_case(rng, zero, option)


def test_the_kernel_is_the_formulas():
    """Whole numbers, but for shards and shares: sums are nearly exact."""
    binding = set()
    for case in cases(1500):
        expected = case.bound()
        assert compiled(case) == pytest.approx(expected, rel=1e-11), case
        binding.add((case.v > 1, case.leaving() == expected, case.start() > 0.0))
    # Each kind of term is the largest now and then.
    assert len(binding) == 8


def test_a_cutoff_spares_work_but_keeps_bounds():
    rng = random.Random(3)
    for case in cases(300):
        whole = compiled(case)
        cutoff = whole * rng.choice((0.0, 0.3, 0.9, 1.1, 2.0))
        found = compiled(case, cutoff)
        assert found <= whole
        assert found == whole or found >= cutoff * (1.0 - 1e-11)


def test_a_tied_embedding_is_gathered_once_on_a_single_stage():
    """One stage holds both ends of the chain, and the weight that they share once."""
    rng = random.Random(0)
    tied = []
    while len(tied) < 20:
        case = drawn_case(rng, 1, 0)
        if case.p == 1 and case.gathers_ahead and case.tied and case.start():
            tied.append(case)
    for case in tied:
        apart = replace(case, tied=0.0)
        assert compiled(case) <= compiled(apart)
        assert compiled(case) == pytest.approx(case.bound(), rel=1e-11)
    assert any(compiled(case) < compiled(replace(case, tied=0.0)) for case in tied)
