import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.replay import replay
from nestsim.simulator.work import RingPhase
from tests.nestsim.simulator.cases import contended_step, pipeline, switch


def messages(work):
    """List every message and ring edge of the step: source, target, bytes."""
    p = work.devices.shape[0]
    for boundary, volume in enumerate(work.boundary_bytes):
        low, high = work.devices[boundary % p], work.devices[(boundary + 1) % p]
        for one, other in zip(low.ravel(), high.ravel(), strict=True):
            yield one, other, work.num_microbatches * volume
            yield other, one, work.num_microbatches * volume
    stages = (work.tied_phases, *work.reduce_phases, *work.gather_phases)
    for phase in itertools.chain(*stages):
        for ring in phase.rings:
            for one, other in zip(ring, np.roll(ring, -1), strict=True):
                yield one, other, phase.bytes_per_member


def expected_bytes(net, work):
    """Add every message to the links of its route, one by one."""
    total = np.zeros(len(net.links))
    for source, target, num_bytes in messages(work):
        for link in net.route(int(source), int(target)):
            total[link] += num_bytes
    return total


@settings(max_examples=25)
@given(
    replicas=st.integers(1, 4),
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 5),
    ranks=st.sampled_from([4, 8]),
    chunks=st.integers(1, 3),
)
def test_links_carry_every_byte_and_never_more_than_they_can(
    replicas, stages, microbatches, ranks, chunks
):
    interleaves = stages > 1 and chunks > 1
    net, work = contended_step(
        num_replicas=replicas,
        num_stages=stages,
        num_microbatches=microbatches * (stages if interleaves else 1),
        ranks=ranks,
        num_chunks=chunks if interleaves else 1,
    )
    use = replay(net, work).links
    np.testing.assert_allclose(use.num_bytes, expected_bytes(net, work), rtol=1e-12)
    used = np.flatnonzero(use.num_bytes)
    assert np.flatnonzero(use.row >= 0).tolist() == used.tolist()
    assert use.row[use.link_ids].tolist() == list(range(use.link_ids.size))
    integral = use.rates @ np.diff(use.bin_edges)
    np.testing.assert_allclose(integral[use.row[used]], use.num_bytes[used], rtol=1e-12)
    capacity = net.links.bandwidth[use.link_ids]
    # The clock's ticks may hurry a flow by half a tick.
    assert np.all(use.rates <= capacity[:, None] * (1 + 1e-6))


def test_bins_cover_the_step_from_beginning_to_end():
    net, work = contended_step(num_microbatches=40)
    result = replay(net, work)
    use = result.links
    assert use.bin_edges[0] == 0.0
    assert use.bin_edges[-1] == result.iteration_time
    assert np.all(np.diff(use.bin_edges) > 0)
    assert 128 <= use.rates.shape[1] <= 256


def test_rates_show_when_a_message_was_on_its_way():
    # Forward passes end at 1 s; one message takes 2 s; the gradient leaves at 5 s.
    work = pipeline([[[0]], [[1]]], 1, boundary_bytes=[2.0])
    use = replay(switch(2, bandwidth=1.0), work).links
    centres = (use.bin_edges[1:] + use.bin_edges[:-1]) / 2
    assert np.flatnonzero(use.row >= 0).tolist() == [0, 1, 2, 3]
    rates = use.rates[use.row]
    on_the_way = ((centres > 1) & (centres < 3)).astype(float)
    coming_back = ((centres > 5) & (centres < 7)).astype(float)
    for link, expected in ((0, on_the_way), (3, on_the_way), (1, coming_back)):
        assert rates[link] == pytest.approx(expected, abs=1e-9)


def test_bytes_too_few_for_a_tick_are_counted_even_at_the_very_end():
    # The step ends on the edge between two bins.
    work = pipeline(
        [[[0], [1]]],
        1,
        forward_time=[0.25],
        backward_time=[0.5],
        reduce_phases=((RingPhase(np.array([[0, 1]]), 1e-14, 1),),),
    )
    result = replay(switch(2, bandwidth=1.0), work)
    use = result.links
    assert result.iteration_time == use.bin_edges[-1] == 0.75
    assert use.rates @ np.diff(use.bin_edges) == pytest.approx(1e-14, rel=1e-9, abs=0)


def test_a_message_that_ends_with_the_step_is_within_its_last_bin():
    size = 2.0**-10
    work = pipeline(
        [[[0], [1]]],
        1,
        forward_time=[0.0],
        backward_time=[0.0],
        reduce_phases=((RingPhase(np.array([[0, 1]]), size, 1),),),
    )
    use = replay(switch(2, bandwidth=1.0), work).links
    assert use.bin_edges[-1] == size
    assert use.rates == pytest.approx(1.0)
