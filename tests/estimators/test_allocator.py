"""What memory holds beside tensors."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.constants import AllocatorConstants, constant_entries, load_constants
from estimators.platform import Allocator

GIB = 2.0**30

allocators = st.builds(
    lambda context, workspace, part, least, tensors: Allocator(
        constants=AllocatorConstants(
            tensors=tensors,
            context=context,
            workspace=workspace,
            fragmentation=max(part, least),
            full_fragmentation=min(part, least),
        )
    ),
    st.floats(0.0, 4e9),
    st.floats(0.0, 1e9),
    st.floats(0.0, 0.5),
    st.floats(0.0, 0.5),
    st.floats(1.0, 1.5),
)
sizes = st.floats(0.0, 200e9)


def test_ideal_software_keeps_tensors_and_nothing_else():
    ideal = Allocator(constants=load_constants().allocator("ideal"))
    for size in (0.0, 1.0, 80 * GIB):
        assert ideal.allocated(size) == size
        assert ideal.reserved(size) == size
        assert ideal.device(size) == size
        assert ideal.needed(size) == size
        assert ideal.usable(size) == size


@given(allocators, sizes)
def test_each_reading_holds_what_the_one_before_it_holds(allocator, tensors):
    readings = (
        tensors,
        allocator.allocated(tensors),
        allocator.reserved(tensors),
        allocator.device(tensors),
    )
    assert list(readings) == sorted(readings)


@given(allocators, sizes, st.floats(1e9, 300e9))
def test_tensors_fit_the_device_just_if_they_fit_what_is_usable(
    allocator, tensors, capacity
):
    usable = allocator.usable(capacity)
    assert allocator.needed(usable) == pytest.approx(capacity)
    if abs(tensors - usable) > 1e-6 * capacity:
        assert (allocator.needed(tensors) <= capacity) == (tensors <= usable)
    assert allocator.needed(tensors) <= allocator.device(tensors)


def test_every_framework_has_all_constants_and_each_names_its_source():
    for name in ("deepspeed", "megatron-lm", "megatron-lm-aceso", "fsdp", "new"):
        found = load_constants().allocator(name)
        assert found.context > 0
        assert 0 < found.full_fragmentation <= found.fragmentation < 0.5
        grown = load_constants().allocator(name, expandable=True)
        assert replace(grown, full_fragmentation=found.full_fragmentation) == found
        assert 0 < grown.full_fragmentation < found.full_fragmentation
    ideal = load_constants().allocator("ideal")
    assert load_constants().allocator("ideal", expandable=True) == ideal
    for name, entry in constant_entries().items():
        if name.startswith("allocator."):
            assert entry["source"]
