"""The search of pools against brute force, and which pools there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.features.rl.pools import (
    BEHIND,
    MOST_SIZES,
    TOLERANCE,
    PoolChoice,
    engine_sizes,
    pool_sizes,
    search_pools,
)
from topologies.errors import InputError

TIMES = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 50), st.just("no room")),
        st.integers(0, 50),
    ),
    min_size=1,
    max_size=12,
)


@given(TIMES, st.integers(0, 10))
def test_the_best_is_that_of_brute_force(
    drawn: list[tuple[int | str, int]], guessed: int
) -> None:
    """Whatever the bounds, as long as they are bounds, and whatever is guessed."""
    choices = [PoolChoice(place, 1) for place in range(len(drawn))]

    def bound(choice: PoolChoice) -> float:
        time, slack = drawn[choice.rollout_devices]
        return float(slack if isinstance(time, str) else max(time - slack, 0))

    def evaluate(choice: PoolChoice, _: float) -> float | str:
        time = drawn[choice.rollout_devices][0]
        return time if isinstance(time, str) else float(time)

    search = search_pools(
        choices, bound, evaluate, lambda choice: guessed * choice.rollout_devices % 7
    )
    known = [float(time) for time, _ in drawn if not isinstance(time, str)]
    assert len(search.explored) == len(choices)
    if not known:
        assert search.best is None
        return
    assert search.best is not None
    best = drawn[search.best.rollout_devices][0]
    assert not isinstance(best, str)
    assert (1.0 - TOLERANCE) * best <= min(known)
    for entry in search.explored:
        if entry.reason == BEHIND:
            assert bound(entry.choice) >= (1.0 - TOLERANCE) * min(known)


def test_a_search_says_what_it_has_seen() -> None:
    choices = [PoolChoice(8, 1), PoolChoice(16, 1), PoolChoice(24, 1)]
    times = {8: 3.0, 16: 2.0, 24: 4.0}
    every = search_pools(choices, lambda _: 0.0, lambda entry, _: times[entry[0]])
    assert every.proof() == "All 3 choices of pools were evaluated."
    some = search_pools(
        choices, lambda entry: times[entry[0]], lambda entry, _: times[entry[0]]
    )
    assert some.proof() == (
        "1 of 3 choices of pools were evaluated, 2 excluded: none is faster by more "
        "than 1 % if a larger trainer is never slower."
    )


@pytest.mark.parametrize("num_devices", [16, 64, 1024, 16384])
def test_pools_are_whole_nodes_and_leave_some_to_the_trainer(num_devices: int) -> None:
    sizes = pool_sizes(num_devices, 8, None)
    assert len(sizes) <= MOST_SIZES
    assert all(0 < size < num_devices and size % 8 == 0 for size in sizes)
    assert list(sizes) == sorted(set(sizes))


def test_a_node_is_divided_by_powers_of_two() -> None:
    assert pool_sizes(8, 8, None) == (1, 2, 4)
    assert pool_sizes(8, 8, 3) == (3,)
    with pytest.raises(InputError, match="leaves no device to the trainer"):
        pool_sizes(8, 8, 8)


def test_engines_divide_pool_and_heads() -> None:
    assert engine_sizes(24, 16, 1, None) == (1, 2, 4, 8)
    assert engine_sizes(24, 4, 1, None) == (1, 2, 4)
    assert engine_sizes(32, 16, 4, None) == (1, 2, 4, 8)
    assert engine_sizes(24, 16, 1, 3) == (3,)
    with pytest.raises(InputError, match="does not divide"):
        engine_sizes(24, 16, 1, 5)
