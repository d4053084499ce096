"""The operator model against the rooflines that bound it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.layer_work import OperatorWork
from estimators.operators import (
    LAUNCH_TIME,
    MEMORY_EFFICIENCY,
    OperatorModel,
    efficiency_of,
)
from topologies import InputError
from topologies.accelerators import accelerator_names, load_accelerator

A100 = load_accelerator("a100-80gb")
MODEL = OperatorModel.of(A100, "bf16", 2)
sizes = st.integers(1, 8192)


def matmul(m, n, k, batch=1):
    flops = 2.0 * m * n * k * batch
    return OperatorWork("x", "matmul", m, n, k, batch, flops, 2 * flops, 0.0, 0.0)


@given(sizes, sizes, sizes, st.integers(1, 64))
@settings(deadline=None)
def test_no_product_beats_the_roofline(m, n, k, batch):
    time = MODEL.matmul_time(m, n, k, batch)
    assert time >= 2 * m * n * k * batch / MODEL.matmul_rate
    traffic = 2 * batch * (m * k + k * n + m * n)
    assert time >= traffic / (A100.memory_bandwidth * MEMORY_EFFICIENCY)


@given(sizes, sizes, sizes)
@settings(deadline=None)
def test_a_longer_inner_dimension_is_never_faster(m, n, k):
    assert MODEL.matmul_time(m, n, k + 1, 1) >= MODEL.matmul_time(m, n, k, 1)


def test_large_products_reach_the_stated_fraction_of_the_peak():
    """Tiles fill the device: 8192 cubed runs within 2 % of e times the peak."""
    time = MODEL.matmul_time(8192, 8192, 8192, 1)
    reached = 2 * 8192**3 / time / A100.peak_flops["bf16"]
    assert reached == pytest.approx(efficiency_of("a100-80gb").matmul, rel=0.02)


def test_one_tile_takes_one_unit_and_not_the_whole_device():
    small = MODEL.matmul_time(64, 64, 4096, 1) - LAUNCH_TIME
    one_unit = MODEL.matmul_rate * 0.5 / A100.num_compute_units
    assert small == pytest.approx(2 * 64 * 64 * 4096 / one_unit)


def test_backward_of_a_product_is_two_products():
    work = matmul(4096, 1024, 512)
    time = MODEL.operator_time(work)
    both = MODEL.matmul_time(4096, 512, 1024, 1) + MODEL.matmul_time(1024, 512, 4096, 1)
    assert time.forward == MODEL.matmul_time(4096, 1024, 512, 1)
    assert time.backward == both


def test_memory_operators_cost_their_bytes_and_a_launch():
    work = OperatorWork("norm", "memory", 0, 0, 0, 0, 0.0, 0.0, 1e9, 2e9)
    time = MODEL.operator_time(work)
    assert time.forward == pytest.approx(1e9 / MODEL.memory_rate + LAUNCH_TIME)
    assert time.backward == pytest.approx(2e9 / MODEL.memory_rate + LAUNCH_TIME)


@pytest.mark.parametrize("name", accelerator_names())
def test_every_accelerator_has_plausible_efficiencies(name):
    efficiency = efficiency_of(name)
    assert 0.2 < efficiency.attention <= efficiency.matmul < 1.0


def test_the_longest_name_wins():
    assert efficiency_of("tpu-v5p").matmul != efficiency_of("tpu-v5e").matmul
    assert efficiency_of("gb200") == efficiency_of("gb200-nvl72")
    assert efficiency_of("something else").source.startswith("between")


def test_a_format_without_a_rate_is_refused_with_those_that_have_one():
    with pytest.raises(InputError) as caught:
        OperatorModel.of(load_accelerator("v100"), "bf16", 2)
    assert "fp16" in caught.value.expected


def test_only_a_weights_gradient_can_be_put_off():
    activations = matmul(4096, 1024, 512)
    product = activations._replace(weight_flops=activations.forward_flops)
    time, whole = MODEL.operator_time(product), MODEL.operator_time(activations)
    assert time.weight_gradient == MODEL.matmul_time(1024, 512, 4096, 1)
    assert whole.weight_gradient == 0
    # Apart or not, it is a part of the backward pass.
    assert time.backward == whole.backward
