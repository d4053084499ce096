"""What the timeline draws."""

import numpy as np

from nestsim.document.wording import time_unit
from nestsim.features.run.timeline import (
    BAR_KINDS,
    timeline_bars,
    timeline_title,
    timeline_windows,
)
from nestsim.simulator.system import TRANSFER_KINDS
from tests.nestsim.features.run.examples import (
    FOUR_STAGES,
    INTERLEAVED,
    Shape,
    cluster,
    make_candidate,
)

REPLAY = make_candidate(FOUR_STAGES[0], cluster(64)).replay


def test_one_replica_shows_each_pass_once() -> None:
    bars = timeline_bars(REPLAY, replica=1)
    for kind in ("forward", "backward"):
        rows = bars.kind == BAR_KINDS.index(kind)
        passes = zip(bars.stage[rows], bars.microbatch[rows], strict=True)
        assert sorted(passes) == [(stage, k) for stage in range(4) for k in range(8)]


def test_one_replica_shows_each_pass_of_each_chunk_once() -> None:
    replay = make_candidate(INTERLEAVED[0], cluster(64)).replay
    bars = timeline_bars(replay, replica=1)
    assert bars.num_chunks == 2
    assert timeline_bars(REPLAY).num_chunks == 1
    for kind in ("forward", "backward"):
        rows = bars.kind == BAR_KINDS.index(kind)
        columns = (bars.stage[rows], bars.microbatch[rows], bars.chunk[rows])
        assert sorted(zip(*columns, strict=True)) == [
            (stage, k, c) for stage in range(4) for k in range(8) for c in range(2)
        ]
    collectives = bars.kind > BAR_KINDS.index("send")
    assert set(bars.chunk[collectives].tolist()) == {-1}


def test_compute_of_a_stage_never_overlaps() -> None:
    bars = timeline_bars(REPLAY)
    for stage in range(4):
        rows = (bars.stage == stage) & (bars.kind < BAR_KINDS.index("send"))
        order = np.argsort(bars.start[rows])
        assert np.all(bars.end[rows][order][:-1] <= bars.start[rows][order][1:])


def test_a_tied_collective_shows_at_both_ends() -> None:
    bars = timeline_bars(REPLAY)
    rows = bars.kind == BAR_KINDS.index("tied")
    assert sorted(bars.stage[rows].tolist()) == [0, 3]
    record = REPLAY.transfers.kind == TRANSFER_KINDS.index("tied")
    assert set(bars.end[rows]) == set(REPLAY.transfers.end[record])


def test_a_short_step_is_shown_whole() -> None:
    (window,) = timeline_windows(REPLAY)
    assert (window.start, window.end) == (0.0, REPLAY.iteration_time)


def test_a_long_step_is_enlarged_at_its_ends() -> None:
    replay = make_candidate(Shape(m=100), cluster(64)).replay
    whole, warm_up, tail = timeline_windows(replay)
    backward = replay.spans.end[(replay.spans.kind == 1) & (replay.spans.stage == 0)]
    assert warm_up.start == 0.0
    assert backward.min() < warm_up.end < tail.start < backward.max()
    assert tail.end == whole.end == replay.iteration_time


def test_time_axes_have_units_of_a_handy_size() -> None:
    assert time_unit(90.0) == (1.0, "s")
    assert time_unit(0.37) == (1e-3, "ms")
    assert time_unit(1.9e-3) == (1e-3, "ms")
    assert time_unit(0.9e-3) == (1e-6, "us")
    assert time_unit(1e-9) == (1e-9, "ns")


def test_the_title_says_where_the_time_goes() -> None:
    title = timeline_title(REPLAY)
    shares = [float(word) for word in title.split() if word.replace(".", "").isdigit()]
    compute, _, waiting, synchronisation = shares
    assert abs(compute + waiting + synchronisation - 100.0) < 0.2
