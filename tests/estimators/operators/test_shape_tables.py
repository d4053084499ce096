"""Tables of measured kernels against the definition of multilinear interpolation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.operators.shape_tables import (
    GRIDS,
    ShapeTable,
    attention_table,
    backward_slowdown,
    convolution_table,
    eight_bit_attention,
    measured_relative,
    product_roofline,
    product_table,
    recurrence_roofline,
    recurrence_table,
)
from estimators.tracing.recurrences import RECURRENCES
from tests import failures
from topologies.accelerators import accelerator_names, load_accelerator

GRID = ((0.0, 1.0, 3.0), (2.0, 4.0))
NODES = (0.0, 0.5, -0.25, 1.0, 0.75, 0.1)
TABLE = ShapeTable(GRID, NODES)


def interpolated(places):
    """Return the mean of a cell's corners, each weighed by the opposite volume."""
    total = volume = 0.0
    cell = []
    for axis, place in zip(GRID, places, strict=True):
        left = max(i for i in range(len(axis) - 1) if axis[i] <= place or i == 0)
        cell.append((axis[left], axis[left + 1], left))
    for corner in itertools.product((0, 1), repeat=len(GRID)):
        weight = math.prod(
            (place - low) if side else (high - place)
            for side, place, (low, high, _) in zip(corner, places, cell, strict=True)
        )
        index = [left + side for side, (*_, left) in zip(corner, cell, strict=True)]
        node = np.ravel_multi_index(index, [len(axis) for axis in GRID])
        total += weight * NODES[node]
        volume += weight
    return total / volume


@given(st.floats(0.0, 3.0), st.floats(2.0, 4.0))
def test_between_nodes_a_table_is_multilinear(first, second):
    reached = math.log(TABLE.slowdown(2.0**first, 2.0**second))
    assert reached == pytest.approx(interpolated((first, second)), abs=1e-9)


@given(st.floats(-9.0, 9.0), st.floats(-9.0, 9.0))
def test_beyond_the_grid_the_nearest_node_counts(first, second):
    inside = (min(max(first, 0.0), 3.0), min(max(second, 2.0), 4.0))
    outside = TABLE.slowdown(2.0**first, 2.0**second)
    assert outside == pytest.approx(TABLE.slowdown(*(2.0**place for place in inside)))


@failures.over("name", accelerator_names())
def test_every_accelerator_has_tables_of_a_measured_chip(name):
    chip = measured_relative(name)
    assert measured_relative(chip) == chip
    for number_format in ("bf16", "fp32", "fp8", "mxfp8", "nvfp4"):
        table = product_table(name, number_format)
        assert table is product_table(chip, number_format)
        assert len(table.nodes) == math.prod(len(axis) for axis in GRIDS["product"])
        assert table.slowdown(8192, 8192, 8192) > 1.0
    for size, variant in itertools.product(
        (64, 80, 128, 576), ("all", "window", "latent")
    ):
        assert attention_table(name, size, variant).slowdown(8, 4096, 4) > 0.9


def test_twice_the_measured_keys_gain_half_of_the_doubling_before() -> None:
    for name, variant in itertools.product(
        ("a100", "h100", "gb300"), ("all", "latent")
    ):
        table = attention_table(name, 128, variant)
        logs = [math.log(table.slowdown(64, 2**place, 1)) for place in range(13, 19)]
        before, gained, *beyond = np.diff(logs)
        assert gained == pytest.approx(before / 2)
        assert beyond == pytest.approx([0.0] * 3)


def test_latent_attention_and_windows_have_tables_where_they_were_measured() -> None:
    tables = [attention_table("h100-sxm", 128, v) for v in ("all", "window", "latent")]
    assert len({id(table) for table in tables}) == 3
    # No window was measured on A100.
    plain = attention_table("a100-80gb", 128, "all")
    assert attention_table("a100-80gb", 128, "window") is plain
    assert backward_slowdown("a100-40gb", "latent") == backward_slowdown("l4", "all")
    factors = [backward_slowdown(name, "latent") for name in ("a100", "h100", "gb200")]
    assert factors == sorted(factors)


def test_attention_in_8_bits_takes_what_cudnn_s_kernels_took() -> None:
    """Causal, 4,096 tokens, two sequences on GB300: milliseconds in 16 and 8 bits."""
    times = {"latent": ((0.864, 0.546), (3.127, 2.348)), "all": ((0.323, 0.242),)}
    for variant, passes in times.items():
        parts = eight_bit_attention("gb300", variant)
        for (wide, narrow), part in zip(passes, parts, strict=False):
            assert part == pytest.approx(narrow / wide, rel=0.05)
    assert eight_bit_attention("h100-sxm", "latent") == (1.0, 1.0)


def test_the_convolution_of_mamba_2_is_slower_than_the_memory() -> None:
    """By a third on H100 and twice on B200, with many tokens; A100 was not measured."""
    for name, ratio in (("h100-sxm", 1.35), ("b200", 2.2)):
        table = convolution_table(name)
        assert table is not None
        assert table.slowdown(2.0**30) == pytest.approx(ratio, rel=0.1)
    assert convolution_table("a100-80gb") is None


MEASURED_RULES = (
    ("h100-sxm", 8192, 16, 0.426218),
    ("h100-sxm", 8192, 32, 0.648688),
    ("h100-sxm", 8192, 64, 1.085427),
    ("h100-sxm", 8192, 4, 0.272111),
    ("b200", 4096, 32, 0.275056),
)
"""Chip, tokens, heads of values and time of the gated delta rule [ms]: AIConfigurator,
TensorRT-LLM 1.3.0rc20, of few heads SGLang 0.5.14."""


@failures.over(("chip", "tokens", "heads", "measured"), MEASURED_RULES)
def test_the_gated_delta_rule_takes_what_was_measured(
    chip: str, tokens: int, heads: int, measured: float
) -> None:
    accelerator, rule = load_accelerator(chip), RECURRENCES["gated delta rule"]
    roofline = recurrence_roofline(
        heads * rule.flops(rule.forward, tokens, 128, 128),
        2.0 * heads * tokens * rule.elements(rule.forward, 128, 128),
        accelerator.peak_flops["bf16"],
        accelerator.memory_bandwidth,
    )
    time = roofline * recurrence_table(chip).slowdown(float(tokens), float(heads))
    assert time * 1e3 == pytest.approx(measured, rel=0.12)


def test_recurrences_borrow_an_h100_where_none_was_measured() -> None:
    assert recurrence_table("a100-80gb") is recurrence_table("h100-sxm")
    assert recurrence_table("gb200") is not recurrence_table("h100-sxm")


def test_an_unmeasured_format_has_the_shape_of_16_bits():
    assert product_table("a100-80gb", "fp8") is (product_table("a100-80gb", "bf16"))
    assert product_table("h100-sxm", "fp8") is not (product_table("h100-sxm", "bf16"))


def test_the_roofline_is_the_longer_of_compute_and_traffic():
    compute, both = product_roofline((4, 8, 16, 2), 1e12, 1e9, (1.0, 2.0))
    assert compute == pytest.approx(2 * 4 * 8 * 16 * 2 / 1e12)
    moved = 2 * (4 * 16 + 16 * 8 + 2 * 4 * 8) / 1e9
    assert both == pytest.approx(moved + 3e-6)
    arrays = product_roofline((np.array([4.0]), 8, 16, 2), 1e12, 1e9, (1.0, 2.0))
    assert arrays[1] == pytest.approx([both])
