"""What the figures of memory, links and the gap draw."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.evaluate.verdict import Gap
from nestsim.features.run.causes import gap_causes, gap_title, planned_causes
from nestsim.features.run.figures import (
    fullest_stage,
    level_rows,
    link_rows,
    links_title,
    memory_parts,
    memory_steps,
    memory_title,
)
from nestsim.simulator.system import MemoryTimeline
from tests.nestsim.features.run.examples import (
    FOUR_STAGES,
    ONE_STAGE,
    USABLE,
    Shape,
    cluster,
    make_candidate,
)

NETWORK = cluster(64)
CANDIDATE = make_candidate(FOUR_STAGES[0], NETWORK)
SILENT = make_candidate(Shape(p=1, d=1, t=8, m=4), cluster(8))


def timeline_of(totals: list[int]) -> MemoryTimeline:
    return MemoryTimeline(
        times=tuple(float(i) for i in range(len(totals))),
        total=tuple(float(total) for total in totals),
        peak=float(max(totals)),
        peak_time=float(totals.index(max(totals))),
        peak_parts={},
    )


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=120),
    st.sampled_from([10, 40, 400]),
)
def test_coarse_memory_never_hides_what_was_held(totals: list[int], most: int) -> None:
    end = float(len(totals))
    times, held = memory_steps(timeline_of(totals), end, most)
    assert times.shape == held.shape
    assert times[-1] == end
    assert held.max() == max(totals)
    assert set(held) <= {float(total) for total in totals}
    for moment in np.arange(0.0, end, 0.5):
        shown = held[np.searchsorted(times, moment, side="right") - 1]
        exact = totals[int(moment)]
        assert shown >= exact if len(totals) > most else shown == exact


def test_parts_of_the_peak_add_up_to_it() -> None:
    parts = memory_parts(CANDIDATE.replay)
    peaks = [timeline.peak for timeline in CANDIDATE.replay.memory]
    assert np.sum(list(parts.values()), axis=0) == pytest.approx(peaks, rel=1e-12)
    assert "buffers" not in parts


def test_the_memory_title_names_the_fullest_stage() -> None:
    assert fullest_stage(CANDIDATE.replay) == 0
    title = memory_title(CANDIDATE, USABLE)
    assert title == "Stage 0 is the fullest: 68.5 of 72 GiB usable"
    full = make_candidate(ONE_STAGE[0], NETWORK)
    title = memory_title(full, USABLE)
    assert title == "Stage 0 does not fit: 86 of 72 GiB usable"


def test_every_level_in_use_has_rows_outermost_first() -> None:
    replay = make_candidate(ONE_STAGE[0], NETWORK).replay
    rows = link_rows(replay, NETWORK, most=20)
    assert len(rows.names) == 20
    assert rows.utilisation.shape == (20, replay.links.bin_edges.size - 1)
    numbers = [[v.name for v in NETWORK.levels].index(name) for name in rows.levels]
    assert numbers == sorted(numbers, reverse=True)
    assert set(numbers) == set(NETWORK.links.level[replay.links.link_ids].tolist())
    assert np.all(rows.utilisation <= 1.0 + 1e-9)


def test_the_hottest_links_of_a_level_come_first() -> None:
    rows = link_rows(CANDIDATE.replay, NETWORK)
    means = rows.utilisation.mean(axis=1)
    for level in set(rows.levels):
        own = means[[name == level for name in rows.levels]]
        assert np.all(np.diff(own) <= 1e-12)


def test_the_mean_of_a_level_weighs_links_by_capacity() -> None:
    replay = CANDIDATE.replay
    rows = level_rows(replay, NETWORK)
    widths = np.diff(rows.bin_edges)
    for index, name in enumerate(rows.names):
        number = [level.name for level in NETWORK.levels].index(name)
        used = (NETWORK.links.level == number) & (replay.links.num_bytes > 0)
        carried = replay.links.num_bytes[used].sum()
        capacity = NETWORK.links.bandwidth[used].sum()
        total = (rows.utilisation[index] * widths).sum() * capacity
        assert total == pytest.approx(carried, rel=1e-9)


def test_without_traffic_there_are_no_rows() -> None:
    network = cluster(8)
    rows = link_rows(SILENT.replay, network)
    assert rows.names == ()
    assert level_rows(SILENT.replay, network).names == ()
    assert links_title(SILENT.replay, network) == "No link carried anything"


def test_the_links_title_names_the_hottest_link() -> None:
    title = links_title(CANDIDATE.replay, NETWORK)
    rows = link_rows(CANDIDATE.replay, NETWORK)
    hottest = rows.names[int(rows.utilisation.mean(axis=1).round(6).argmax())]
    assert hottest in title


def test_causes_add_up_to_the_planned_time() -> None:
    causes = planned_causes(CANDIDATE)
    planned = CANDIDATE.priced.iteration_time
    assert sum(causes.values()) == pytest.approx(planned, rel=1e-9)
    assert all(causes.values())


def test_planned_time_without_a_cause_is_shown_as_other() -> None:
    terms = {"compute": 0.9 * CANDIDATE.priced.iteration_time}
    candidate = replace(CANDIDATE, priced=replace(CANDIDATE.priced, terms=terms))
    assert list(planned_causes(candidate)) == ["compute", "other"]


def test_causes_of_the_gap_add_up_to_simulated_minus_planned() -> None:
    total = CANDIDATE.replay.iteration_time - CANDIDATE.priced.iteration_time
    assert sum(gap_causes(CANDIDATE).values()) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize(
    ("terms", "title"),
    [
        (
            {"schedule": -1.0, "contention": 4.0},
            "The replay is 3.0 % longer than planned; "
            "the largest cause is contention (+4.0 %)",
        ),
        (
            {"schedule": -3.0, "contention": 1.0},
            "The replay is 2.0 % shorter than planned; "
            "the largest cause is schedule (-3.0 %)",
        ),
        (
            {"schedule": 0.01, "contention": 0.0},
            "The replay takes as long as planned, within 0.1 %",
        ),
    ],
)
def test_the_gap_title_names_the_largest_cause(
    terms: dict[str, float], title: str
) -> None:
    gap = Gap(total=sum(terms.values()), terms=terms)
    candidate = replace(
        CANDIDATE,
        planned=replace(CANDIDATE.planned, iteration_time=100.0),
        verdict=replace(CANDIDATE.verdict, gap=gap),
    )
    assert gap_title(candidate) == title


def test_causes_that_are_rounding_are_left_out() -> None:
    planned = CANDIDATE.planned.iteration_time
    gap = Gap(total=1e-13, terms={"schedule": 1e-12 * planned, "contention": -1e-14})
    candidate = replace(CANDIDATE, verdict=replace(CANDIDATE.verdict, gap=gap))
    assert gap_causes(candidate) == {}
