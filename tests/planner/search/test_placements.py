"""The placement space: every placement valid, none missing that should be there."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.nestings import _even_extents
from planner.search.placements import Extents, placements, whole_dimensions


@st.composite
def cases(draw):
    fan_outs = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    blocks = np.cumprod(fan_outs).tolist()
    sizes = Extents(
        tp=draw(st.sampled_from([1, 2, 3, 4])),
        cp=draw(st.sampled_from([1, 1, 2])),
        ep=draw(st.sampled_from([1, 1, 2])),
        dp=draw(st.integers(1, 8)),
        pp=draw(st.integers(1, 8)),
    )
    return {
        "extents": sizes,
        "num_devices": blocks[-1],
        "block_sizes": tuple(blocks),
    }


@given(cases())
@settings(max_examples=80)
def test_every_device_of_a_placement_is_used_once(case):
    for placement in placements(**case):
        devices = placement.devices
        tp, cp, ep, dp, pp = case["extents"]
        assert devices.shape == (pp, dp * ep, cp * tp)
        assert np.unique(devices).size == devices.size
        assert devices.min() >= 0
        assert devices.max() < case["num_devices"]


@given(cases())
@settings(max_examples=80)
def test_tensor_groups_stand_on_consecutive_devices(case):
    for placement in placements(**case):
        steps = np.diff(placement.grid, axis=4)
        assert (steps == 1).all()


@given(cases())
@settings(max_examples=50)
def test_there_is_a_placement_whenever_the_devices_suffice(case):
    fits = np.prod(case["extents"]) <= case["num_devices"]
    assert bool(placements(**case)) == fits


@given(cases())
@settings(max_examples=50)
def test_no_placement_comes_twice(case):
    found = [placement.grid.tobytes() for placement in placements(**case)]
    assert len(set(found)) == len(found)


def test_both_nestings_and_a_hybrid_of_them_are_there():
    found = {
        placement.name: placement.devices[:, :, 0].tolist()
        for placement in placements(
            Extents(1, 1, 1, 4, 4), num_devices=16, block_sizes=(2, 8, 16)
        )
    }
    assert found["tp1 dp4 pp4"][0] == [0, 1, 2, 3]
    assert found["tp1 pp4 dp4"][0] == [0, 4, 8, 12]
    assert found["tp1 dp2 pp4 dp2"][1] == [2, 3, 10, 11]


def test_padding_aligns_replicas_to_nodes():
    """Three stages in nodes of four: one device of each node stays idle."""
    found = {
        placement.name: placement.devices
        for placement in placements(
            Extents(1, 1, 1, 2, 3), num_devices=8, block_sizes=(4, 8)
        )
    }
    assert found["tp1 pp3/4 dp2"][:, :, 0].tolist() == [[0, 4], [1, 5], [2, 6]]


@given(st.tuples(*[st.integers(1, 3)] * 5), st.permutations(Extents._fields[1:]))
@settings(max_examples=25)
def test_whole_dimensions_number_devices_by_their_digits(sizes, outer):
    """And are the placement of that name in the space."""
    extents = Extents(*sizes)
    order = ("tp", *outer)
    axes = [order.index(name) for name in Extents._fields]
    digits = np.arange(np.prod(sizes)).reshape(
        np.take(sizes, np.argsort(axes)), order="F"
    )
    whole = whole_dimensions(order, extents)
    assert (whole.grid == digits.transpose(axes).T).all()
    short = [name for name in outer if getattr(extents, name) > 1]
    assert whole_dimensions(("tp", *short), extents).place == whole.place
    space = placements(extents, digits.size, (digits.size,))
    assert [nested.place for nested in space if nested.name == whole.name] == [
        whole.place
    ]


@given(st.integers(1, 24), st.lists(st.integers(1, 48), min_size=1, max_size=3))
def test_extents_above_divide_a_block_or_fill_whole_ones(extent, blocks):
    above = {-(-extent // block) * block for block in blocks if block < extent}
    for block in blocks:
        divisors = (
            block // parts for parts in range(1, block + 1) if not block % parts
        )
        above |= {divisor for divisor in divisors if divisor >= extent}
    extents = _even_extents(extent, np.array(blocks))
    assert extents.tolist() == sorted(above - {extent})
