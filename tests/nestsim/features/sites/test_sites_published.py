"""What others published of training on sites far apart, and what is predicted."""

import pytest

from nestsim.features.sites.closed_form import OuterLoop
from nestsim.features.sites.job import SHARES
from tests.nestsim.features.sites.published_sites import (
    FITTED_BITS,
    GRID,
    INTELLECT_1,
    published_rows,
)

WITHIN = 0.10
"""How far off tokens a day may be."""


def test_published_bandwidths_are_those_of_the_grid() -> None:
    for row in published_rows():
        for printed in row.published:
            assert min(abs(GRID - printed)) < 0.06, printed


def test_least_bandwidths_are_a_step_of_the_grid_from_the_published_ones() -> None:
    offs = [off for row in published_rows() for off in row.steps_off()]
    assert len(offs) == 15 * len(SHARES)
    assert sum(abs(off) <= 1 for off in offs) >= 0.75 * len(offs)
    assert max(map(abs, offs)) <= 3


def test_with_a_sixth_less_most_are_the_published_ones() -> None:
    size = FITTED_BITS / 16.0
    offs = [off for row in published_rows() for off in row.steps_off(size)]
    assert offs.count(0) >= 0.7 * len(offs)
    whole = [row for row in published_rows() if row.loop.fragments == 1]
    near = [off for row in whole for off in row.steps_off(size)]
    assert near.count(0) >= 0.95 * len(near)


@pytest.mark.parametrize("run", INTELLECT_1, ids=lambda run: run.region)
def test_tokens_a_day_of_intellect_1_are_within_ten_percent(run) -> None:
    answer = run.predicted()
    measured = run.compute_share * answer.spec.count * answer.alone_per_day
    predicted = answer.tokens_per_day(answer.given)
    assert predicted == pytest.approx(measured, rel=WITHIN)
    # The published share is what the published times give.
    inner = answer.given.loop.sync_every * answer.step_time
    assert inner / (inner + run.all_reduce) == pytest.approx(
        run.compute_share, abs=2e-3
    )


def test_maxtexts_example_is_what_many_sites_need() -> None:
    streaming = OuterLoop(
        num_sites=1000,
        step_time=0.5,
        num_bytes=16e9,
        latency=0.0,
        sync_every=37,
        fragments=37,
        delay=1,
    )
    assert streaming.least_rate(1 - 1e-9) == pytest.approx(1.7e9, rel=0.02)
    two = OuterLoop(num_sites=2, step_time=0.5, num_bytes=16e9, latency=0.0)
    whole = OuterLoop(num_sites=1000, step_time=0.5, num_bytes=16e9, latency=0.0)
    # Half of the time in steps: the exchange takes one, too.
    assert whole.least_rate(0.5) == pytest.approx(64e9, rel=0.002)
    assert two.least_rate(0.5) == pytest.approx(32e9)
