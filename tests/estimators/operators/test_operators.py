"""The operator model against the rooflines that bound it."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.constants import load_constants
from estimators.layers.work import OperatorWork
from estimators.operators.roofline import GRAPH_LAUNCH_TIME, LAUNCH_TIME, OperatorModel
from estimators.software import Software
from estimators.training import TrainingSpec
from tests import failures
from topologies import InputError
from topologies.accelerators import accelerator_names, load_accelerator

A100 = load_accelerator("a100-80gb")
H100 = load_accelerator("h100-sxm")
JOB = TrainingSpec(global_batch_size=8)
SUMMED = TrainingSpec(global_batch_size=8, gradient_precision="fp32")
MODEL = OperatorModel.of(A100, JOB)
KNOWN = load_constants()
sizes = st.integers(1, 8192)


def matmul(m, n, k, batch=1, *, weighted=False):
    flops = 2.0 * m * n * k * batch
    sides = (float(m), float(n), float(k), float(batch))
    weight = flops if weighted else 0.0
    return OperatorWork(
        *("x", "matmul", *sides, flops, 2 * flops, 0.0, 0.0), weight_flops=weight
    )


def stream(operation, num_bytes=1e9, *, core=False):
    sizes = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, num_bytes, 2 * num_bytes)
    return OperatorWork("x", "memory", *sizes, core=core, operation=operation)


def model_with(**changes):
    """Return the A100 under a framework of our own, ideal but for some constants."""
    ideal = KNOWN.software("ideal")
    values = {field: getattr(ideal, field) for field in ideal.__slots__} | changes
    named = {f"software.ours.{name}": value for name, value in values.items()}
    return OperatorModel.of(A100, JOB, Software(name="ours"), KNOWN.replaced(named))


@given(sizes, sizes, sizes, st.integers(1, 64))
def test_no_product_beats_the_datasheet(m, n, k, batch):
    time = MODEL.matmul_time(m, n, k, batch)
    assert time >= 2 * m * n * k * batch / A100.peak_flops["bf16"]


@given(*[st.integers(128, 8192)] * 3)
def test_twice_the_work_is_hardly_ever_faster(m, n, k):
    once = 0.95 * MODEL.matmul_time(m, n, k, 1)  # tables hold measured noise
    for larger in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert MODEL.matmul_time(*larger, 1) >= once


@given(sizes, sizes, sizes, st.floats(0.3, 1.0))
def test_a_slower_clock_costs_what_computes_and_nothing_else(m, n, k, clock):
    kernels = replace(MODEL.products, sustained=1.0)
    slow = replace(kernels, sustained=clock)
    flops = 2.0 * m * n * k / A100.peak_flops["bf16"]
    lost = slow.time(m, n, k) - kernels.time(m, n, k)
    slowdown = kernels.table.slowdown(m, n, k)
    assert lost == pytest.approx(
        slowdown * flops * (1 / clock - 1), rel=1e-6, abs=1e-12
    )


MEASURED = (
    # A100 PCIe, fractions of 312 TF/s: SimuMax 1.2 (MooreThreads), its own kernels.
    ((4096, 5120, 1536), 0.738),
    ((4096, 24576, 1536), 0.697),
)


@failures.over(("shape", "share"), MEASURED)
def test_products_take_what_another_source_measured(shape, share):
    """The same chip at 300 W instead of 400, which costs up to a seventh."""
    isolated = replace(MODEL.products, sustained=1.0)
    reached = 2.0 * math.prod(shape) / isolated.time(*shape) / A100.peak_flops["bf16"]
    assert reached == pytest.approx(share, rel=0.2)


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


def test_a_format_without_a_rate_is_refused_with_those_that_have_one():
    with pytest.raises(InputError) as caught:
        OperatorModel.of(load_accelerator("v100"), JOB)
    assert "fp16" in caught.value.expected
    assert caught.value.where == "training.precision"


@failures.over(("name", "narrow"), [("a100-80gb", "fp8"), ("h200", "fp4")])
def test_a_narrow_format_without_a_rate_is_refused_by_its_own_setting(name, narrow):
    job = TrainingSpec(global_batch_size=8, matmul_precision=narrow)
    with pytest.raises(InputError) as caught:
        OperatorModel.of(load_accelerator(name), job)
    assert caught.value.where == "training.matmul_precision"
    assert caught.value.got == narrow


def test_narrow_formats_make_products_with_weights_faster_and_no_others():
    plain = OperatorModel.of(H100, JOB)
    narrow = OperatorModel.of(
        H100, TrainingSpec(global_batch_size=8, matmul_precision="fp8")
    )
    large = (8192, 8192, 8192, 1)
    ratio = plain.matmul_time(*large, weighted=True) / narrow.matmul_time(
        *large, weighted=True
    )
    assert 1.3 < ratio < H100.peak_flops["fp8"] / H100.peak_flops["bf16"]
    assert plain.matmul_time(*large) == narrow.matmul_time(*large)
    assert plain.attention_rate == narrow.attention_rate


@failures.over("name", accelerator_names())
def test_four_bits_are_no_slower_than_eight_and_eight_no_slower_than_sixteen(name):
    accelerator = load_accelerator(name)
    format_of = "bf16" if "bf16" in accelerator.peak_flops else "fp16"
    times = [
        OperatorModel.of(
            accelerator,
            TrainingSpec(
                global_batch_size=8, precision=format_of, matmul_precision=narrow
            ),
        ).matmul_time(8192, 8192, 8192, 1, weighted=True)
        for narrow in ("", "fp8", "fp4")
        if not narrow or narrow in accelerator.peak_flops
    ]
    assert times == sorted(times, reverse=True)


@given(sizes, sizes, sizes, st.integers(1, 64))
def test_an_ideal_host_has_no_penalty_for_any_shape_or_operator(m, n, k, batch):
    for weighted, products in ((False, batch), (True, 1)):
        work = matmul(m, n, k, products, weighted=weighted)
        time = MODEL.operator_time(work)
        assert time.forward == MODEL.matmul_time(m, n, k, products, weighted=weighted)
    for operation, core in (
        ("softmax", True),
        ("cross entropy", False),
        ("norm", False),
    ):
        work = stream(operation, float(m * n), core=core)
        assert MODEL.operator_time(work).forward == MODEL.memory_time(m * n)


@given(sizes, sizes, sizes, st.booleans())
def test_only_sizes_that_are_no_multiple_of_8_are_slowed(m, n, k, weighted):
    slow = model_with(unaligned_slowdown=18.0, unaligned_weight_slowdown=1.5)
    work = matmul(m, n, k, weighted=weighted)
    factor = 1.0
    if n % 8 or k % 8:
        factor = 1.5 if weighted else 18.0
    time, ideal = slow.operator_time(work), MODEL.operator_time(work)
    assert time == pytest.approx(tuple(factor * one for one in ideal))


def test_a_size_that_is_a_share_of_a_padded_one_is_not_slowed():
    slow = model_with(unaligned_slowdown=18.0)
    work = matmul(4096, 1024, 512)._replace(n=1000.5)
    assert slow.operator_time(work) == MODEL.operator_time(work)


@failures.over(
    ("constant", "operation", "core"),
    [
        ("elementwise_traffic", "norm", False),
        ("elementwise_traffic", "dropout", False),
        ("score_traffic", "softmax", True),
        ("loss_traffic", "cross entropy", False),
    ],
)
def test_fusion_takes_its_part_of_the_traffic_of_its_own_operators(
    constant, operation, core
):
    fused = model_with(**{constant: 0.5})
    operators = {("norm", False), ("softmax", True), ("cross entropy", False)}
    for other in operators | {(operation, core)}:
        work = stream(other[0], core=other[1])
        same = other == (operation, core) or (
            constant == "elementwise_traffic" and other == ("norm", False)
        )
        part = 0.5 if same else 1.0
        time = fused.operator_time(work)
        assert time.forward == fused.memory_time(part * 1e9)
        assert time.backward == fused.memory_time(part * 2e9)


def test_the_attention_kernel_is_that_of_the_software():
    reached = KNOWN.accelerator("h100-sxm")
    flash = OperatorModel.of(
        H100, JOB, Software(name="ideal", attention_kernel="flash")
    )
    fused = OperatorModel.of(
        H100, JOB, Software(name="ideal", attention_kernel="fused")
    )
    assert flash.attention_rate == reached.flash_attention
    assert fused.attention_rate == reached.fused_attention


def test_only_a_weights_gradient_can_be_put_off():
    activations = matmul(4096, 1024, 512)
    product = activations._replace(weight_flops=activations.forward_flops)
    time, whole = MODEL.operator_time(product), MODEL.operator_time(activations)
    assert time.weight_gradient == MODEL.matmul_time(1024, 512, 4096, 1)
    assert whole.weight_gradient == 0
    # Apart or not, it is a part of the backward pass.
    assert time.backward == whole.backward


def attention(length, heads=32, batch=1, groups=8):
    flops = 2.0 * length**2 * 128 * heads * batch
    sides = (float(length), float(length), 128.0, float(heads * batch))
    moved = 2.0 * length * batch * 128 * 2 * (heads + groups)
    return OperatorWork(
        *("x", "attention", *sides, flops, 2.5 * flops, moved, 2 * moved),
        heads_per_group=heads / groups,
    )


def attention_rate(model, work):
    return work.forward_flops / (model.operator_time(work).forward - LAUNCH_TIME)


def test_attention_gets_faster_with_keys_and_with_heads():
    rates = [attention_rate(MODEL, attention(s)) for s in (256, 512, 1024, 4096, 16384)]
    assert rates == sorted(rates)
    rates = [attention_rate(MODEL, attention(1024, heads)) for heads in (8, 16, 32, 64)]
    assert rates == sorted(rates)


@failures.over(
    ("heads", "groups", "share"),
    # Full-square fractions of 312 TF/s, forward, 4,096 tokens: SimuMax 1.2, A100 PCIe.
    [(8, 2, 0.777), (16, 4, 0.991), (32, 8, 1.132), (64, 8, 1.187)],
)
def test_attention_takes_what_another_source_measured(heads, groups, share):
    isolated = replace(MODEL, attention_rate=1.0)
    rate = attention_rate(isolated, attention(4096, heads, groups=groups))
    assert 2 * rate / A100.peak_flops["bf16"] == pytest.approx(share, rel=0.15)


@failures.over(
    ("chip", "heads", "forward", "backward"),
    # Microseconds of queries of 192 and values of 128 channels, 4,096 tokens: SimuMax
    # 1.2, A100 PCIe and B200.
    [("a100-80gb", 16, 601, 1830), ("b200", 32, 194, 626), ("b200", 128, 735, 2377)],
)
def test_latent_attention_takes_what_another_source_measured(
    chip: str, heads: int, forward: float, backward: float
) -> None:
    model = OperatorModel.of(load_accelerator(chip), JOB)
    isolated = replace(model, attention_rate=1.0, launch_time=0.0)
    flops, moved = 4096.0**2 * heads * 320, 2.0 * 4096 * heads * 640
    sides = (4096.0, 4096.0, 160.0, float(heads))
    work = OperatorWork(
        *("x", "attention", *sides, flops, 2.6 * flops, moved, 2 * moved),
        variant="latent",
    )
    time = isolated.operator_time(work)
    assert time.forward * 1e6 == pytest.approx(forward, rel=0.2)
    assert time.backward * 1e6 == pytest.approx(backward, rel=0.05)


def test_a_convolution_is_slower_than_its_traffic() -> None:
    model = OperatorModel.of(load_accelerator("b200"), JOB)
    time, streamed = (
        model.operator_time(stream(name)) for name in ("convolution", "multiply")
    )
    assert time.forward > 1.4 * streamed.forward
    assert time.backward == pytest.approx(2 * time.forward, rel=0.1)
    # None was measured on A100: it moves bytes like any other.
    assert MODEL.operator_time(stream("convolution")) == MODEL.operator_time(
        stream("multiply")
    )


def test_few_tokens_for_each_of_many_experts_waste_grouped_products():
    def rate(model, tokens, experts):
        work = matmul(tokens, 4096, 4096, experts, weighted=True)
        return work.forward_flops / model.operator_time(work).forward

    for model in (MODEL, OperatorModel.of(H100, JOB)):
        dense = rate(model, 1 << 16, 1)
        assert 0.8 * dense < rate(model, 1 << 13, 8) < 1.25 * dense
        assert rate(model, 1 << 6, 128) < 0.55 * rate(model, 1 << 13, 8)
    assert matmul(8, 8, 8, 2).is_grouped is False


SIMUMAX_GROUPED = (
    *(("a100-80gb", 20, 1232, 5120, 1536, 0, 0.675),),
    *(("a100-80gb", 40, 616, 5120, 1536, 1, 0.658),),
    *(
        ("b200", 20, 1232, 5120, 1536, 0, 0.393),
        ("b200", 64, 512, 4096, 7168, 1, 0.399),
    ),
    *(
        ("b200", 128, 256, 4096, 7168, 2, 0.183),
        ("b200", 256, 128, 4096, 7168, 2, 0.077),
    ),
)
"""Chip, experts, rows, columns, inner size, pass (forward, both gradients), and part of
312 and 2,250 TFLOP/s: of ``group_matmul`` in SimuMax 1.2's system files."""


def test_passes_of_experts_take_what_was_measured() -> None:
    """Once the chips sustain what their dense products do in the same files.

    The last ones add to gradients in fp32: with 128 rows an expert, ten bytes are moved
    for each 256 FLOP.
    """
    sustained, peaks = {"a100": 0.92, "b200": 0.71}, {"a100": 312e12, "b200": 2250e12}
    ratios = []
    for name, experts, rows, columns, inner, number, part in SIMUMAX_GROUPED:
        chip = name[:4]
        known = KNOWN.replaced({f"accelerator.{chip}.matmul": sustained[chip]})
        software = Software(name="ideal", cuda_graphs="full_iteration")
        model = OperatorModel.of(load_accelerator(name), SUMMED, software, known)
        work = matmul(rows, columns, inner, experts, weighted=True)
        time = model.operator_time(work)
        first = time.backward - time.weight_gradient
        taken = (time.forward, first, time.weight_gradient)[number]
        ratios.append(taken / (work.forward_flops / (part * peaks[chip])))
    assert max(ratios) < 1.6, ratios
    assert min(ratios) > 0.7, ratios
    assert math.prod(ratios) ** (1 / len(ratios)) == pytest.approx(1.0, abs=0.15)


def test_kernels_of_a_graph_follow_each_other_faster():
    graph = OperatorModel.of(
        A100, JOB, Software(name="ideal", cuda_graphs="full_iteration")
    )
    saved = LAUNCH_TIME - GRAPH_LAUNCH_TIME
    assert MODEL.memory_time(1e6) - graph.memory_time(1e6) == pytest.approx(saved)
