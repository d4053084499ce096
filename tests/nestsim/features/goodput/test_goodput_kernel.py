"""The kernel of the failures: held to plain Python, tick by tick."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.features.goodput.kernels import (
    DRAINS,
    ENDS_SLOW,
    HANGS,
    LOSES_MEMORY,
    NUM_COUNTS,
    NUM_STATES,
    PLANNED,
    SLOWS,
    SPEED,
    TAKES_NODE,
    WARM,
    Events,
    JobHabits,
    Ledger,
    run_job,
)
from tests.nestsim.features.goodput.reference import Event, ReferenceJob

KEPT = [1.0, 0.9, 0.5]


def run(habits: JobHabits, events: list[Event], marks: list[int]) -> Ledger:
    replicas = habits.num_replicas
    speeds = np.arange(replicas + 1) / replicas
    ledger = Ledger(
        causes=np.zeros(NUM_STATES, np.int64),
        trained=np.zeros(replicas + 1, np.int64),
        counts=np.zeros(NUM_COUNTS, np.int64),
        progress=np.zeros(len(marks)),
    )
    times, kinds, repairs = (
        np.array([event[place] for event in events], dtype=np.int64)
        for place in range(3)
    )
    luck = np.array([event[3] for event in events], dtype=np.float64)
    table = Events(times, kinds, repairs, luck)
    run_job(habits, table, np.array(KEPT), np.array(marks), speeds, ledger)
    return ledger


@st.composite
def all_habits(draw: st.DrawFn, *, replicas: int = 4, peers: bool = False) -> JobHabits:
    def time(least: int = 0, most: int = 12) -> int:
        return draw(st.integers(least, most))

    peer_interval = time(1) if peers and draw(st.booleans()) else 0
    num_replicas = 1 if peer_interval else draw(st.integers(1, replicas))
    speed = draw(st.sampled_from([SPEED, 7 * SPEED // 9])) if peer_interval else SPEED
    nodes = draw(st.integers(1, 3))
    copy = time()
    return JobHabits(
        interval=time(1, 40),
        copy=copy,
        write=time(copy, copy + 20),
        is_asynchronous=draw(st.integers(0, 1)),
        peer_interval=peer_interval,
        peer_write=time(0, peer_interval),
        speed=speed,
        slow_speed=draw(st.sampled_from([speed, speed // 3])),
        detection=time(),
        hang_detection=time(),
        diagnosis=time(),
        restart=time(),
        hot_restart=time(),
        warm_restart=time(),
        read=time(),
        peer_read=time(),
        maintenance=time(),
        num_nodes=num_replicas * nodes + draw(st.integers(0, 3)),
        nodes_per_replica=nodes,
        num_replicas=num_replicas,
        fewest_replicas=draw(st.integers(1, num_replicas)),
        outlook=draw(st.sampled_from([0, 50, 10**6])),
    )


KINDS = st.sampled_from(
    [
        0,
        TAKES_NODE,
        HANGS,
        TAKES_NODE | HANGS,
        PLANNED,
        WARM,
        WARM | HANGS,
        TAKES_NODE | LOSES_MEMORY,
    ]
)
LUCK = st.sampled_from([0.0, 0.7, 0.95])
REPAIRS = st.sampled_from([1, 3, 40, 200])
FAILED = st.tuples(st.integers(0, 1500), KINDS, REPAIRS, LUCK).map(
    lambda event: [event]
)


@st.composite
def slow_nodes(draw: st.DrawFn) -> list[Event]:
    """A node that is slow until it fails, or until it is left out before."""
    begin, length = draw(st.integers(0, 1500)), draw(st.integers(0, 200))
    bits = TAKES_NODE | ENDS_SLOW | draw(st.sampled_from([0, DRAINS, HANGS]))
    end = (begin + length, bits, draw(REPAIRS), draw(LUCK))
    return [(begin, SLOWS, 0, 0.0), end]


def by_time(parts: list[list[Event]]) -> list[Event]:
    return sorted((event for part in parts for event in part), key=lambda one: one[0])


EVENTS = st.lists(FAILED | slow_nodes(), max_size=40).map(by_time)
MARKS = [100, 500, 1000, 1500]


@settings(max_examples=400)
@given(all_habits(peers=True), EVENTS)
def test_every_tick_is_that_of_plain_python(
    habits: JobHabits, events: list[Event]
) -> None:
    ledger = run(habits, events, MARKS)
    speeds = [one / habits.num_replicas for one in range(habits.num_replicas + 1)]
    reference = ReferenceJob(habits, speeds, KEPT)
    reference.run(events, MARKS)
    assert ledger.causes.tolist() == reference.causes
    assert ledger.trained.tolist() == reference.trained
    assert ledger.counts.tolist() == reference.counts
    assert ledger.progress.tolist() == reference.progress


@settings(max_examples=200)
@given(all_habits(peers=True), EVENTS)
def test_all_time_is_accounted_for(habits: JobHabits, events: list[Event]) -> None:
    ledger = run(habits, events, MARKS)
    assert ledger.trained.sum() + ledger.causes.sum() == MARKS[-1]


FAILURES = st.lists(
    st.tuples(
        st.integers(0, 1500),
        st.sampled_from([0, TAKES_NODE]),
        st.just(200),
        st.just(0.0),
    ),
    max_size=40,
).map(sorted)


@settings(max_examples=200)
@given(all_habits(replicas=1), FAILURES, st.sets(st.integers(0, 7)))
def test_fewer_failures_never_train_less(
    habits: JobHabits, events: list[Event], left_out: set[int]
) -> None:
    """Unless the earlier of two is noticed before the later one, or nodes run out."""
    events = events[:8]
    habits = habits._replace(
        detection=0,
        diagnosis=0,
        hot_restart=habits.restart,
        nodes_per_replica=8,
        num_nodes=habits.num_nodes - habits.nodes_per_replica + 8,
    )
    fewer = [one for place, one in enumerate(events) if place not in left_out]
    more = run(habits, events, MARKS).trained.sum()
    assert run(habits, fewer, MARKS).trained.sum() >= more


@settings(max_examples=200)
@given(all_habits(replicas=1), FAILURES, st.integers(1, 3))
def test_more_spares_never_train_less(
    habits: JobHabits, events: list[Event], more: int
) -> None:
    """If each node is back before the next failure.

    Else a job that stands still for lack of nodes may be spared a failure.
    """
    apart = habits.detection + habits.diagnosis + habits.maintenance + habits.read
    apart += max(habits.restart, habits.hot_restart) + 200
    events = [
        (when + place * apart, *others) for place, (when, *others) in enumerate(events)
    ]
    spared = habits._replace(num_nodes=habits.num_nodes + more)
    few = run(habits, events, MARKS).trained.sum()
    assert run(spared, events, MARKS).trained.sum() >= few


@settings(max_examples=200)
@given(all_habits(replicas=1), FAILURES)
def test_writing_beside_the_training_never_trains_less(
    habits: JobHabits, events: list[Event]
) -> None:
    """If the writing does not make the next one late."""
    slack = habits.write - habits.copy
    habits = habits._replace(interval=max(habits.interval, slack))
    waits = run(habits._replace(is_asynchronous=0), events, MARKS).trained.sum()
    assert run(habits._replace(is_asynchronous=1), events, MARKS).trained.sum() >= waits


@settings(max_examples=100)
@given(all_habits())
def test_without_failures_only_checkpoints_take_time(habits: JobHabits) -> None:
    ledger = run(habits, [], [10_000])
    stall = habits.copy if habits.is_asynchronous else habits.write
    background = habits.write - habits.copy if habits.is_asynchronous else 0
    period = max(habits.interval, background) + stall
    # The first one need not wait for another.
    first = habits.interval + stall
    whole, rest = divmod(10_000 - first, period)
    stalls = stall * (1 + whole) + max(0, rest - (period - stall))
    assert ledger.causes.sum() == stalls
    assert ledger.trained.sum() == 10_000 - stalls
