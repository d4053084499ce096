"""What bounds read of lists: that short ones say it all, and what it is by hand."""

import numpy as np

from planner.search.replayed.orders import ENOUGH_LISTED, pass_counts, read_lists
from planner.step.instructions import BACKWARD, FORWARD, WEIGHT
from planner.step.schedules import SCHEDULES
from tests import failures

SPLIT = [name for name, one in SCHEDULES.items() if one.splits_backward]


def chunks(schedule):
    return SCHEDULES[schedule].num_chunks or 1


@failures.over("schedule", SPLIT)
@failures.over("p", [2, 3, 4, 7, 12])
def test_lists_say_nothing_new_with_more_microbatches(schedule, p):
    v = chunks(schedule)
    short = read_lists(schedule, p, ENOUGH_LISTED * p, v)
    counts = pass_counts(schedule, p, ENOUGH_LISTED * p, v)
    for more in (1, p, 3 * p + 1):
        long = read_lists(schedule, p, ENOUGH_LISTED * p + more, v)
        for one, other in zip(short, long, strict=True):
            assert np.array_equal(one, other)
        stages = range(p)
        longer = [
            SCHEDULES[schedule].in_flight(i, p, ENOUGH_LISTED * p + more, v)
            for i in stages
        ]
        assert counts[0].tolist() == longer


@failures.over("schedule", SPLIT)
@failures.over(("p", "m"), [(2, 4), (3, 7), (4, 8), (4, 16), (5, 21)])
def test_lists_are_read_as_they_are_written(schedule, p, m):
    v = chunks(schedule)
    found = read_lists(schedule, p, m, v)
    number = SCHEDULES[schedule].virtual_stages(p, v).number
    for stage in range(p):
        columns = SCHEDULES[schedule].instructions(stage, p, m, v)
        passes = list(zip(*(one.tolist() for one in columns), strict=True))
        first = next(k for k, one in enumerate(passes) if one[0] == BACKWARD)
        last = max(k for k, one in enumerate(passes) if one[0] == BACKWARD)
        filled = min(
            max(k for k, one in enumerate(passes) if one[::2] == (WEIGHT, c))
            for c in range(v)
        )
        assert found.first_backward[stage] == number[stage, passes[first][2]]
        assert found.last_backward[stage] == number[stage, passes[last][2]]
        assert {kind for kind, *_ in passes[:first]} == {FORWARD}
        assert {kind for kind, *_ in passes[last + 1 :]} == {WEIGHT}
        for c in range(v):
            assert found.done[stage, c] == sum(one[2] == c for one in passes[:first])
            assert found.after[stage, c] == sum(
                one[2] == c for one in passes[last + 1 :]
            )
            for kind in (FORWARD, BACKWARD, WEIGHT):
                assert found.behind[stage, kind, c] == sum(
                    one[0] == kind and one[2] == c for one in passes[filled:]
                )


def test_what_is_read_of_zb_v_by_hand():
    # Two stages, four microbatches: F0 F0 F0 F1 B1 W1 F1 B1 W1, and so on.
    lists = read_lists("zb-v", 2, 4, 2)
    assert lists.first_backward.tolist() == [3, 2]
    assert lists.last_backward.tolist() == [0, 1]
    assert lists.done.tolist() == [[3, 1], [2, 2]]
    assert lists.after.tolist() == [[1, 0], [2, 1]]
