"""Statistics of hand-made replays whose answers are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.features.run.statistics import (
    bubble_fraction,
    hottest_links,
    level_uses,
    link_utilisation,
    mean_breakdown,
    stage_breakdowns,
    union_length,
)
from nestsim.simulator.system import (
    SPAN_KINDS,
    TRANSFER_KINDS,
    LinkUse,
    MemoryTimeline,
    Replay,
    Spans,
    Transfers,
)
from tests import failures
from tests.nestsim.features.run.examples import (
    FOUR_STAGES,
    SIXTEEN_STAGES,
    Shape,
    cluster,
    make_candidate,
    rows_of,
)

Span = tuple[int, int, str, float, float]
Collective = tuple[str, int, float, float]


def replay_of(
    spans: list[Span],
    collectives: list[Collective] = [],  # noqa: B006 (never changed)
    *,
    pipeline_time: float,
    iteration_time: float,
    num_stages: int = 1,
    links: LinkUse | None = None,
) -> Replay:
    """Return a replay of which only times matter."""
    empty = np.zeros(0)
    stage, replica, kind, start, end = zip(*spans, strict=True)
    names, owner, begin, until = (
        zip(*collectives, strict=True) if collectives else ((), (), (), ())
    )
    whole = np.full(len(names), -1)
    return Replay(
        schedule="1f1b",
        iteration_time=iteration_time,
        pipeline_time=pipeline_time,
        spans=Spans(
            np.array(stage),
            np.array(replica),
            np.array([SPAN_KINDS.index(name) for name in kind]),
            np.zeros(len(stage), dtype=np.int64),
            np.zeros(len(stage), dtype=np.int64),
            np.array(start, dtype=float),
            np.array(end, dtype=float),
        ),
        span_multiplicity=np.ones(len(stage), dtype=np.int64),
        transfers=Transfers(
            np.array([TRANSFER_KINDS.index(name) for name in names], dtype=np.int64),
            np.array(owner, dtype=np.int64),
            whole,
            whole,
            whole,
            np.array(begin, dtype=float),
            np.array(begin, dtype=float),
            np.array(until, dtype=float),
            np.zeros(len(names)),
        ),
        transfer_multiplicity=np.ones(len(names), dtype=np.int64),
        representative=np.tile(np.arange(max(replica) + 1), (num_stages, 1)),
        memory=tuple(
            MemoryTimeline(
                times=(0.0,), total=(1.0,), peak=1.0, peak_time=0.0, peak_parts={}
            )
            for _ in range(num_stages)
        ),
        links=links
        or LinkUse(
            num_bytes=empty,
            bin_edges=np.zeros(1),
            rates=np.zeros((0, 0)),
            link_ids=np.zeros(0, dtype=np.int64),
            row=np.zeros(0, dtype=np.int64),
        ),
        engine="simpy",
        num_events=0,
        num_skipped=0,
        notes=(),
    )


@failures.over("num_stages", [1, 2, 5])
@failures.over("m", [1, 4, 9])
def test_equal_stages_give_the_bubble_of_the_closed_form(
    num_stages: int, m: int
) -> None:
    spans: list[Span] = []
    for stage in range(num_stages):
        spans += [(stage, 0, "forward", stage + k, stage + k + 1.0) for k in range(m)]
    total = float(num_stages - 1 + m)
    replay = replay_of(
        spans, pipeline_time=total, iteration_time=total, num_stages=num_stages
    )
    expected = (num_stages - 1) / (m + num_stages - 1)
    assert bubble_fraction(replay) == pytest.approx(expected, abs=1e-12)


def test_compute_after_the_pipeline_does_not_fill_the_bubble() -> None:
    spans: list[Span] = [
        (0, 0, "forward", 0.0, 4.0),
        (0, 0, "optimizer", 8.0, 12.0),
        (0, 0, "optimizer", 14.0, 16.0),
    ]
    replay = replay_of(spans, pipeline_time=10.0, iteration_time=16.0)
    assert bubble_fraction(replay) == 1.0 - 6.0 / 10.0


def test_breakdown_is_the_mean_over_replicas() -> None:
    spans: list[Span] = [
        (0, 0, "forward", 0.0, 2.0),
        (0, 0, "backward", 2.0, 6.0),
        (0, 1, "forward", 0.0, 2.0),
        (0, 1, "backward", 4.0, 10.0),
        (0, 0, "optimizer", 13.0, 14.0),
        (0, 1, "optimizer", 13.0, 14.0),
    ]
    collectives: list[Collective] = [
        ("reduce", 0, 10.0, 13.0),
        ("gather", 0, 14.0, 16.0),
    ]
    replay = replay_of(spans, collectives, pipeline_time=10.0, iteration_time=16.0)
    (row,) = stage_breakdowns(replay)
    assert row.forward == 2.0
    assert row.backward == 5.0
    assert row.optimizer == 1.0
    assert row.synchronisation == 5.0
    assert row.waiting == 3.0


def test_collectives_hidden_by_compute_are_not_synchronisation() -> None:
    spans: list[Span] = [(0, 0, "backward", 0.0, 6.0)]
    collectives: list[Collective] = [
        ("reduce", 0, 4.0, 8.0),
        ("reduce", 0, 5.0, 9.0),
        ("gather", 0, 1.0, 2.0),
    ]
    replay = replay_of(spans, collectives, pipeline_time=6.0, iteration_time=10.0)
    (row,) = stage_breakdowns(replay)
    assert row.synchronisation == 3.0
    assert row.waiting == 1.0


def test_a_tied_embedding_counts_for_the_first_and_the_last_stage_only() -> None:
    spans: list[Span] = [(stage, 0, "forward", 0.0, 1.0) for stage in range(3)]
    replay = replay_of(
        spans,
        [("tied", 0, 1.0, 3.0)],
        pipeline_time=1.0,
        iteration_time=3.0,
        num_stages=3,
    )
    shares = [row.synchronisation for row in stage_breakdowns(replay)]
    assert shares == [2.0, 0.0, 2.0]


@failures.over("shape", [*FOUR_STAGES, *SIXTEEN_STAGES, Shape(p=3, d=5, t=1)])
def test_breakdown_parts_add_up_to_the_iteration(shape: Shape) -> None:
    small = Shape(p=shape.p, d=shape.d, t=shape.t, m=min(shape.m, 20))
    replay = make_candidate(small, cluster(shape.p * shape.d * shape.t)).replay
    rows = stage_breakdowns(replay)
    assert len(rows) == shape.p
    for row in (*rows, mean_breakdown(rows)):
        assert min(row) >= 0.0
        assert sum(row) == pytest.approx(replay.iteration_time, rel=1e-12)


def test_weight_gradients_are_passes_and_part_of_the_sum() -> None:
    spans: list[Span] = [
        (0, 0, "forward", 0.0, 1.0),
        (0, 0, "backward", 1.0, 3.0),
        (0, 0, "weight", 4.0, 8.0),
    ]
    replay = replay_of(spans, pipeline_time=8.0, iteration_time=8.0)
    (row,) = stage_breakdowns(replay)
    assert (row.weight_gradient, row.passes, row.waiting) == (4.0, 7.0, 1.0)
    assert sum(row) == 8.0


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=0, max_size=12)
)
def test_union_length_counts_every_covered_moment_once(
    pairs: list[tuple[int, int]],
) -> None:
    start = np.array([a for a, _ in pairs], dtype=float)
    end = np.array([a + n for a, n in pairs], dtype=float)
    covered = {x for a, n in pairs for x in range(a, a + n)}
    assert union_length(start, end) == len(covered)


def use_of(num_bytes: list[float], bins: int = 1) -> LinkUse:
    carried = np.zeros(len(cluster(32).links))
    carried[: len(num_bytes)] = num_bytes
    used = np.flatnonzero(carried)
    return LinkUse(
        num_bytes=carried,
        bin_edges=np.linspace(0.0, 2.0, bins + 1),
        rates=np.repeat(carried[used, None] / 2.0, bins, axis=1),
        link_ids=used,
        row=rows_of(carried),
    )


def test_utilisation_is_bytes_over_what_the_link_could_have_carried() -> None:
    network = cluster(32)
    bandwidth = network.links.bandwidth
    use = use_of([0.5 * 2.0 * bandwidth[0], 0.0, 2.0 * bandwidth[2]])
    spans: list[Span] = [(0, 0, "forward", 0.0, 2.0)]
    replay = replay_of(spans, pipeline_time=2.0, iteration_time=2.0, links=use)
    assert link_utilisation(replay, network)[:4].tolist() == [0.5, 0.0, 1.0, 0.0]
    first, second = hottest_links(replay, network)
    assert (first.link, first.utilisation) == (2, 1.0)
    assert (second.link, second.utilisation) == (0, 0.5)
    ends = network.links.source[2], network.links.target[2]
    assert first.name == " -> ".join(network.vertex_names[end] for end in ends)
    assert first.level == network.levels[int(network.links.level[2])].name


def test_equally_hot_links_are_listed_by_number() -> None:
    network = cluster(32)
    replay = replay_of(
        [(0, 0, "forward", 0.0, 2.0)],
        pipeline_time=2.0,
        iteration_time=2.0,
        links=use_of((2.0 * 0.25 * network.links.bandwidth).tolist()),
    )
    assert [row.link for row in hottest_links(replay, network, 4)] == [0, 1, 2, 3]


def test_levels_share_out_all_bytes() -> None:
    network = cluster(64)
    replay = make_candidate(FOUR_STAGES[0], network).replay
    uses = level_uses(replay, network)
    total = sum(use.num_bytes for use in uses)
    assert total == pytest.approx(float(replay.links.num_bytes.sum()), rel=1e-12)
    assert all(0 < use.mean_utilisation <= use.max_utilisation <= 1.0 for use in uses)
    assert all(use.num_used <= use.num_links for use in uses)
