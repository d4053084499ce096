"""What stays visible of a transfer, worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.dispatch import ALONE, Sharing
from planner.step.exposure import (
    Behind,
    InLayers,
    LayerPassTimes,
    PairedCompute,
    PassProgress,
    TimedBucket,
    beside_each_other,
    bucket_parameters,
    first_pass_end,
    gathered_at,
    layer_times,
    paired_compute,
    parameter_buckets,
    pass_times,
    reduced_at,
    slowed,
)

NOTHING = Behind(gathers_ahead=False, reduces_behind=False, slowdown=1.0)


def column(*values):
    return np.array(values, dtype=np.float64)


def one_layer(price, *, hidden, slowdown=1.0):
    """Twelve seconds of compute between two collectives."""
    sent = InLayers(column(2), column(price), hidden)
    return layer_times(column(12), [sent], slowdown)


def test_a_collective_follows_its_part_of_the_compute_or_goes_on_beside_it():
    assert one_layer(2, hidden=False) == (16, 12)
    assert one_layer(2, hidden=True) == (12, 12)
    assert one_layer(8, hidden=True) == (16, 12)
    assert layer_times(column(12), []) == (12, 12)


def test_compute_is_slower_for_as_long_as_it_is_beside_communication():
    # Two of three seconds beside it are compute's own: one more in each half.
    assert one_layer(3, hidden=True, slowdown=1.5) == (14, 14)
    # All of the compute: half as long again, and the rest of the collective.
    assert one_layer(20, hidden=True, slowdown=1.5) == (40, 18)
    assert one_layer(3, hidden=False, slowdown=1.5) == (18, 12)
    assert slowed(6.0, 3.0, 1.5) == 1.0


def test_collectives_of_several_kinds_share_the_compute():
    kinds = [
        InLayers(column(2), column(5), is_hidden=True),
        InLayers(column(1), column(1), is_hidden=False),
    ]
    # Thirds of four seconds: five, five, and four and one.
    assert layer_times(column(12), kinds) == (15, 12)


FORWARD = LayerPassTimes(column(1, 4, 2), column(1, 4, 2))
BACKWARD = LayerPassTimes(column(4, 8, 2), column(4, 8, 2))
GATHERS = column(2.25, 3.5, 2.25)[:, None]
REDUCES = column(3.5, 6, 3.5)[:, None]
NONE = np.zeros((3, 0))


def test_what_goes_on_beside_a_layer_shows_where_it_is_longer():
    layers = LayerPassTimes(column(16, 16), column(12, 12))
    whole, worked = beside_each_other(layers, column(3, 20), ALONE)
    assert (whole.tolist(), worked.tolist()) == ([16, 20], [12, 12])
    # Half as fast for as long as it goes on: 4 s of it do 2 s of work.
    slower = Sharing(2.0, 1.0)
    whole, worked = beside_each_other(layers, column(4, 40), slower)
    assert (whole.tolist(), worked.tolist()) == ([18, 40], [14, 24])
    # Half as fast in all of a layer that sends.
    whole, worked = beside_each_other(layers, column(4, 0), slower, reserves=True)
    assert (whole.tolist(), worked.tolist()) == ([28, 16], [24, 12])


def raced(compute: float, beside: float, contention: Sharing) -> float:
    """Let both go on until one is done, and what is left of the other alone."""
    together = min(compute * contention.compute, beside * contention.sending)
    return together + max(
        compute - together / contention.compute, beside - together / contention.sending
    )


@given(
    compute=st.floats(0.1, 10.0),
    beside=st.floats(0.1, 10.0),
    contention=st.builds(Sharing, st.floats(1.0, 1.9), st.floats(1.0, 1.9)),
)
def test_what_slows_each_other_down_ends_when_both_have_raced_to_their_ends(
    compute, beside, contention
):
    layers = LayerPassTimes(column(compute), column(compute))
    whole, worked = beside_each_other(layers, column(beside), contention)
    assert whole[0] == pytest.approx(raced(compute, beside, contention))
    assert compute <= worked[0] <= whole[0] * (1.0 + 1e-12)


@given(
    times=st.tuples(*[st.floats(0.0, 10.0)] * 4),
    share=st.floats(0.0, 1.0),
    contention=st.builds(Sharing, st.floats(1.0, 1.3), st.floats(1.0, 1.3)),
)
def test_weight_gradients_wait_for_what_they_can_hide_and_no_longer(
    times, share, contention
):
    forward, backward, beside, inside = times
    compute = np.array([[forward], [backward], [share * backward]])
    experts = np.minimum(inside, compute)
    now, later = (
        paired_compute(compute, experts, column(beside), contention, delays=delays)
        for delays in (False, True)
    )
    both = [np.sum(pair, axis=0) for pair in (now, later)]
    assert both[0] == pytest.approx(both[1])

    def lasts(pair: PairedCompute) -> float:
        passes = [
            beside_each_other(
                LayerPassTimes(window, window), column(beside), contention
            ).whole
            for compute in pair
            for window in compute
        ]
        return float(np.sum(passes))

    assert lasts(later) <= lasts(now) * (1.0 + 1e-9)
    if contention == ALONE:
        # What both passes compute in a window, or both things sent, is the least.
        least = [max(w, 2.0 * beside) for w in both[0][:, 0]]
        assert lasts(later) >= sum(least) * (1.0 - 1e-9)


def test_weights_are_gathered_before_a_layer_or_beside_the_one_before():
    ahead = NOTHING._replace(gathers_ahead=True)
    assert pass_times(FORWARD, GATHERS, NONE, NOTHING).whole == 7 + 8
    assert pass_times(FORWARD, GATHERS, NONE, ahead).whole == 2.25 + 3.5 + 4 + 2


def test_gradients_are_reduced_after_a_layer_or_beside_the_next_one():
    whole = pass_times(BACKWARD, GATHERS, REDUCES, NOTHING).whole
    assert whole == 14 + 8 + 13
    both = NOTHING._replace(gathers_ahead=True, reduces_behind=True)
    whole = pass_times(BACKWARD, GATHERS, REDUCES, both).whole
    assert whole == 2.25 + 4 + 8 + 6 + 3.5


def test_with_recompute_of_the_whole_stage_all_weights_come_first():
    ahead = NOTHING._replace(gathers_ahead=True)
    found = pass_times(BACKWARD, GATHERS, NONE, ahead, before=FORWARD)
    assert found.whole == 8 + 7 + 14
    assert found.worked == 7 + 14
    assert found.begin.tolist() == [7, 11, 19]
    assert found.end.tolist() == [11, 19, 21]


def test_compute_beside_gathers_is_slower():
    ahead = Behind(gathers_ahead=True, reduces_behind=False, slowdown=2.0)
    found = pass_times(FORWARD, GATHERS, NONE, ahead)
    # Beside 3.5 s of the second layer's weights: 1 s more of 1 s. Beside 2.25 s of
    # the third one's: half of them more of 4 s.
    assert found.worked == 2 + 5.125 + 2
    assert found.whole == 2.25 + 3.5 + 5.125 + 2


def progress(dense, expert, times):
    end = np.cumsum(times) / sum(times)
    return PassProgress(0, dense, expert, [0, *end[:-1]], end)


def test_buckets_are_reached_where_their_parameters_are():
    backward = progress((10, 20, 10), (0, 0, 0), (4, 8, 2))
    found = parameter_buckets(backward, 16, first=False)
    assert [one.at * 14 for one in found] == pytest.approx([6.4, 12.4, 14])
    assert [one.dense for one in found] == [16, 16, 8]
    forward = progress((10, 20, 10), (0, 0, 0), (1, 4, 2))
    found = parameter_buckets(forward, 16, first=True)
    assert [one.at * 7 for one in found] == pytest.approx([0, 2.2, 5.4])


def test_experts_have_buckets_of_their_own():
    found = parameter_buckets(progress((10, 0), (0, 30), (1, 1)), 20, first=False)
    sizes = [(one.dense, one.expert) for one in found]
    assert sizes == [(10, 0), (0, 20), (0, 10)]
    assert [one.at for one in found] == pytest.approx([0.5, 0.5 + 1 / 3, 1.0])


def test_buckets_are_as_large_as_megatrons():
    assert bucket_parameters(1) == bucket_parameters(40) == 40e6
    assert bucket_parameters(128) == 128e6


BUCKETS = TimedBucket(0, 0.0, 2.0), TimedBucket(0, 0.5, 10.0), TimedBucket(1, 0.0, 1.0)


def test_a_first_pass_waits_where_it_needs_a_bucket():
    arrivals = gathered_at(BUCKETS)
    assert arrivals.tolist() == [2, 12, 13]
    assert first_pass_end(10.0, BUCKETS, arrivals, 0) == 12 + 5
    assert first_pass_end(30.0, BUCKETS, arrivals, 0) == 2 + 30
    assert first_pass_end(10.0, BUCKETS, arrivals, 1) == 13 + 10
    assert first_pass_end(10.0, BUCKETS, arrivals, 2) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1))
def test_buckets_leave_one_after_another(drawn):
    filled, times = zip(*sorted(drawn), strict=True)
    buckets = [TimedBucket(0, 0.0, float(time)) for time in times]
    found = reduced_at(buckets, column(*filled), 7.0)
    # Whichever bucket was not waited for, all that follow leave without a pause.
    last = [moment + sum(times[place:]) for place, moment in enumerate(filled)]
    assert found == max(7 + sum(times), *last)
