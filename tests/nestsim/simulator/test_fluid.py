import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from nestsim.simulator.compiled import Fluid, max_min_rates
from nestsim.simulator.kernels import fluid as kernels
from nestsim.simulator.system import TICK, Incidence, System, quantise


@st.composite
def shared_links(draw, *, most_flows=5, most_links=6, most_weight=3):
    """Weights of flows on links, shape (F, L), and capacities."""
    num_flows = draw(st.integers(1, most_flows))
    num_links = draw(st.integers(1, most_links))
    weights = draw(
        st.lists(
            st.lists(
                st.integers(0, most_weight), min_size=num_links, max_size=num_links
            ),
            min_size=num_flows,
            max_size=num_flows,
        )
    )
    capacity = draw(
        st.lists(st.floats(0.5, 10.0), min_size=num_links, max_size=num_links)
    )
    weights = np.array(weights, dtype=np.float64)
    assume(np.all(weights.sum(axis=1) > 0))
    return weights, np.array(capacity)


def incidence(weights):
    flows, links = map(np.ascontiguousarray, np.nonzero(weights))
    counts = np.bincount(flows, minlength=len(weights))
    indptr = np.concatenate(([0], np.cumsum(counts)))
    return Incidence(indptr, links, weights[flows, links])


def flows_alone(links, capacity, sizes, num_recorded=1):
    """Return a system of channels that no actor uses."""
    return System(
        programs=(),
        program=np.zeros(0, np.int64),
        ports=np.zeros((0, 0), np.int64),
        num_sources=np.ones(sizes.size, np.int64),
        latency=np.zeros(sizes.size),
        num_bytes=sizes,
        incidence=links,
        capacity=capacity,
        tick=TICK,
        num_recorded=num_recorded,
    )


def largest(objective, weights, capacity, bounds):
    result = linprog(-objective, A_ub=weights, b_ub=capacity, bounds=bounds)
    assert result.status == 0
    return -result.fun


def lexicographic(weights, capacity):
    """Raise the least level as far as it goes, fix who cannot do better, repeat."""
    num_flows = len(weights)
    fixed = {}
    while len(fixed) < num_flows:
        # Columns: the levels, and the common level of those that are not fixed.
        rows = [np.append(column, 0.0) for column in weights.T]
        limits = list(capacity)
        for f in set(range(num_flows)) - set(fixed):
            row = np.zeros(num_flows + 1)
            row[f], row[-1] = -1.0, 1.0
            rows.append(row)
            limits.append(0.0)
        bounds = [(fixed.get(f, 0.0), fixed.get(f)) for f in range(num_flows)]
        common = np.zeros(num_flows + 1)
        common[-1] = 1.0
        level = largest(common, np.array(rows), limits, [*bounds, (0, None)])
        floor = level * (1 - 1e-9)
        found = {}
        for f in set(range(num_flows)) - set(fixed):
            bounds = [(fixed.get(g, floor), fixed.get(g)) for g in range(num_flows)]
            bounds = [(low * (1 - 1e-9), high) for low, high in bounds]
            alone = np.zeros(num_flows)
            alone[f] = 1.0
            if largest(alone, weights.T, capacity, bounds) <= level * (1 + 1e-6):
                found[f] = level
        assert found
        fixed.update(found)
    return np.array([fixed[f] for f in range(num_flows)])


@settings(max_examples=25)
@given(shared_links(most_flows=4, most_links=4))
def test_levels_are_the_lexicographic_optimum(network):
    weights, capacity = network
    levels = max_min_rates(incidence(weights), capacity)
    np.testing.assert_allclose(levels, lexicographic(weights, capacity), rtol=1e-5)


@settings(max_examples=100)
@given(shared_links(most_flows=12, most_links=12, most_weight=8))
def test_each_flow_has_a_full_link_where_nobody_is_faster(network):
    # Bertsekas and Gallager, section 6.5.2: this is what max-min fair means.
    weights, capacity = network
    levels = max_min_rates(incidence(weights), capacity)
    load = levels @ weights
    assert np.all(load <= capacity * (1 + 1e-12))
    for f, level in enumerate(levels):
        full = (weights[f] > 0) & (load >= capacity * (1 - 1e-10))
        rivals = np.where(weights > 0, levels[:, None], 0.0).max(axis=0)
        assert np.any(full & (rivals <= level * (1 + 1e-10)))


@settings(max_examples=30)
@given(shared_links(), st.data())
def test_equal_flows_get_bit_for_bit_what_one_of_their_weight_gets(network, data):
    weights, capacity = network
    copies = data.draw(
        st.lists(st.integers(1, 9), min_size=len(weights), max_size=len(weights))
    )
    # A weight counts the pairs, so w n pairs are n flows of weight w only if all flows
    # of a class use the same links.
    together = max_min_rates(
        incidence(weights * np.array(copies, dtype=np.float64)[:, None]), capacity
    )
    apart = max_min_rates(incidence(np.repeat(weights, copies, axis=0)), capacity)
    assert apart.tolist() == np.repeat(together, copies).tolist()


@settings(max_examples=30)
@given(shared_links(most_flows=8), st.randoms(use_true_random=False))
def test_levels_do_not_depend_on_the_numbering_of_flows(network, random):
    weights, capacity = network
    order = list(range(len(weights)))
    random.shuffle(order)
    levels = max_min_rates(incidence(weights), capacity)
    assert (
        max_min_rates(incidence(weights[order]), capacity).tolist()
        == levels[order].tolist()
    )


def play(weights, capacity, sizes, starts):
    """Start flows at given moments; return when each ended, and the time bins."""
    fluid = Fluid(flows_alone(incidence(weights), capacity, sizes))
    ends, pending = {}, sorted((t, f) for f, t in enumerate(starts))
    following = np.inf
    while pending or following < np.inf:
        now = min(following, pending[0][0] if pending else np.inf)
        for flow in fluid.pop_finished(now) if now == following else []:
            ends[flow] = now
        while pending and pending[0][0] == now:
            fluid.start(pending.pop(0)[1])
        following = fluid.solve_rates(now)
    return ends, fluid.bins, fluid.bin_width


def stepped(weights, capacity, sizes, starts):
    """Do the same with all rates solved anew at every event, in plain floats."""
    remaining, ends, now = dict(enumerate(sizes)), {}, 0.0
    while len(ends) < len(sizes):
        active = [f for f in remaining if starts[f] <= now]
        coming = min((t for t in starts if t > now), default=np.inf)
        levels = max_min_rates(incidence(weights[active]), capacity) if active else []
        finish = [now + remaining[f] / x for f, x in zip(active, levels, strict=True)]
        following = min([*finish, coming])
        for f, x, moment in zip(active, levels, finish, strict=True):
            remaining[f] -= x * (following - now)
            if moment <= following + 1e-9:
                ends[f] = following
                del remaining[f]
        now = following
    return ends


moments = st.integers(0, 40).map(lambda n: n / 8)


@settings(max_examples=30)
@given(shared_links(most_flows=8), st.data())
def test_flows_that_come_and_go_end_when_stepping_says(network, data):
    weights, capacity = network
    n = len(weights)
    starts = data.draw(st.lists(moments, min_size=n, max_size=n))
    sizes = np.array(data.draw(st.lists(st.floats(0.1, 20.0), min_size=n, max_size=n)))
    ends, bins, width = play(weights, capacity, sizes, starts)
    expected = stepped(weights, capacity, sizes, starts)
    for flow in range(n):
        assert ends[flow] == pytest.approx(expected[flow], rel=1e-7)
        # All bytes are booked, and between start and end.
        assert bins[flow].sum() == pytest.approx(sizes[flow], rel=1e-12)
        busy = np.flatnonzero(bins[flow]) * width
        assert busy.min() >= starts[flow] - width
        assert busy.max() <= ends[flow]


@settings(max_examples=10)
@given(shared_links(most_flows=6), st.data())
def test_compiled_kernels_are_their_python_functions(network, data):
    weights, capacity = network
    n = len(weights)
    starts = data.draw(st.lists(moments, min_size=n, max_size=n))
    sizes = np.linspace(1.0, 9.0, n)
    compiled = play(weights, capacity, sizes, starts)
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "fill",
            "_precedes",
            "_sift",
            "_deposit",
            "solve_rates",
            "pop_finished",
        ):
            patch.setattr(kernels, name, getattr(kernels, name).py_func)
        interpreted = play(weights, capacity, sizes, starts)
    assert compiled[0] == interpreted[0]
    assert compiled[1].tobytes() == interpreted[1].tobytes()
    assert compiled[2] == interpreted[2]


def test_a_lone_flow_takes_its_bytes_over_its_narrowest_link():
    weights = np.array([[1.0, 2.0]])
    ends, *_ = play(weights, np.array([5.0, 7.0]), np.array([3.0]), [0.25])
    assert ends == {0: 0.25 + quantise(3.0 / 3.5, TICK)}


def test_large_networks_get_fewer_time_bins():
    one = incidence(np.ones((1, 1)))
    fluid = Fluid(flows_alone(one, np.ones(1), np.ones(1), num_recorded=1_000_000))
    assert fluid.bins.shape[1] == 16


def test_spread_adds_weighted_rows():
    weights = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
    values = np.array([[1.0, 2.0], [10.0, 20.0]])
    for spread in (kernels.spread, kernels.spread.py_func):
        out = np.zeros((3, 2))
        spread(*incidence(weights), values, out)
        assert out.tolist() == (weights.T @ values).tolist()


def moving(num_links=1):
    """Return a network that remembers, one of whose two flows is under way."""
    links = incidence(np.ones((2, num_links)))
    sizes = np.array([6.0, 4.0])
    fluid = Fluid(flows_alone(links, np.full(num_links, 2.0), sizes), remember=True)
    fluid.start(0)
    assert fluid.solve_rates(0.25) == 3.25
    return fluid


def test_the_state_of_a_network_is_that_of_its_active_flows():
    fluid = moving()
    assert fluid.state(0.25).tolist() == [[6.0, 0.0], [2.0, 0.0], [0.0, 0.0]]
    assert fluid.state(1.0).tolist() == [[6.0, 0.0], [2.0, 0.0], [0.75, 0.0]]
    fluid.start(1)
    fluid.solve_rates(1.25)
    assert fluid.state(1.5).tolist() == [[4.0, 4.0], [1.0, 1.0], [0.25, 0.25]]
    fluid.pop_finished(5.25)
    fluid.solve_rates(5.25)
    assert fluid.state(9.0).tolist() == [[0.0, 0.0]] * 3


def test_repeated_traffic_is_booked_as_if_it_had_come_again():
    # From 1 to 3, then twice more a period of 4 later, then on with the clock behind.
    played, repeated = (
        Fluid(
            flows_alone(incidence(np.ones((1, 1))), np.array([0.7]), np.array([1.4])),
            remember=True,
        )
        for _ in range(2)
    )
    for begin in (1.0, 5.0, 9.0, 13.0):
        played.start(0)
        end = played.solve_rates(begin)
        assert played.pop_finished(end) == [0]
        played.solve_rates(end)
    for begin in (1.0, 5.0):
        repeated.start(0)
        end = repeated.solve_rates(begin)
        assert repeated.pop_finished(end) == [0]
        repeated.solve_rates(end)
        if begin == 1.0:
            assert repeated.num_deposits == 1
            repeated.repeat(0, 2, 4.0)
    assert repeated.bin_width == played.bin_width
    assert repeated.bins.tobytes() == played.bins.tobytes()
    assert played.bins.sum() == pytest.approx(4 * 1.4)


def test_a_network_that_does_not_remember_cannot_repeat():
    fluid = Fluid(flows_alone(incidence(np.ones((1, 1))), np.ones(1), np.ones(1)))
    fluid.start(0)
    fluid.pop_finished(fluid.solve_rates(0.0))
    assert fluid.most_deposits == 0
    with pytest.raises(AssertionError):
        fluid.repeat(0, 1, 1.0)
