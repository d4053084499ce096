"""The compiled bound against the same formulas in plain Python."""

import random
from dataclasses import replace

import numpy as np
import pytest

from planner.kernels.stage_terms import exit_bound, stage_terms
from tests.planner.search.replayed.kernel_cases import (
    NUM_OPTIONS,
    arguments,
    compiled,
    drawn_case,
)
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


def test_what_timelines_read_is_the_formulas():
    for case in cases(400):
        family, variants = arguments(case)
        terms = stage_terms(family, variants, 0)
        expected = [
            [each(k) for k in range(case.num_virtual)] for each in (case.f, case.b)
        ]
        assert terms.durations[:2] == pytest.approx(np.array(expected)), case
        for i in range(case.p):
            tied = case.tied_time if case.p > 1 and i in {0, case.p - 1} else 0.0
            assert terms.updates[i] + tied == pytest.approx(case.optimizer(i))
            time = 0.0
            for kind, size in enumerate(case.held(i)):
                once, more = terms.reduction[i, 2 * kind : 2 * kind + 2]
                time += (once + more * size) * (size > 0.0)
            assert time == pytest.approx(case.reduction(i, *case.held(i)))
            for chunk, k in enumerate(case.chunks(i)):
                held = case.held(i, range(k, k + 1))
                ahead = case.gathering(i, *held) if case.gathers_ahead else 0.0
                assert terms.sizes[:, i, chunk].tolist() == list(held)
                assert terms.gathers[i, chunk] == pytest.approx(ahead)
        released = [float(7 * case.p - 5 * i) for i in range(case.p)]
        found = exit_bound(family, variants, terms.sizes, np.array(released))
        assert found == pytest.approx(case.leaving(released), rel=1e-11)
