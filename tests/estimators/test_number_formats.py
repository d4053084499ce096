"""Narrow number formats: bytes of elements, weights, states, and what is sent."""

from dataclasses import replace

import numpy as np
import pytest

from estimators.chain import build_layer_table
from estimators.layers.saved_activations import block_matrices, keeping_of
from estimators.layers.work import Degrees
from estimators.models.library import load_model
from estimators.operators.roofline import OperatorModel
from estimators.platform import Platform, optimizer_step_bytes
from estimators.software import IDEAL
from estimators.tracing.trace import trace_model
from estimators.training import NARROW, NARROW_FORMATS, OPTIMIZER_BYTES, TrainingSpec
from planner.step.execution import Workload
from tests import failures
from topologies.accelerators import load_accelerator

JOB = TrainingSpec(global_batch_size=8)
B200 = load_accelerator("b200")
GPT = replace(load_model("gpt3-175b"), num_layers=2)
MIXTRAL = replace(load_model("mixtral-8x7b"), num_layers=2)


@failures.over(
    ("name", "activation", "weight"),
    [
        ("fp8", 1.0, 1.0),
        ("fp8-blockwise", 1 + 4 / 128, 1 + 4 / 128**2),
        ("mxfp8", 1 + 1 / 32, 1 + 1 / 32),
        ("int8", 1.0, 1.0),
        ("fp4", 0.5 + 1 / 16, 0.5 + 1 / 16),
        ("nvfp4", 0.5 + 1 / 16, 0.5 + 1 / 16),
    ],
)
def test_an_element_has_its_bits_and_its_part_of_a_scale(name, activation, weight):
    assert NARROW_FORMATS[name].activation_bytes == activation
    assert NARROW_FORMATS[name].weight_bytes == weight


@failures.over("name", [name for name in NARROW if name != "int8"])
def test_products_keep_their_inputs_with_their_scales(name):
    software = replace(IDEAL, keeps_narrow_inputs=True)
    keeping = keeping_of(software, replace(JOB, matmul_precision=name))
    assert keeping.input_bytes == NARROW_FORMATS[name].activation_bytes


@failures.over("name", NARROW)
def test_narrow_products_are_as_fast_as_their_rate(name):
    device = load_accelerator("mi355x" if name == "int8" else "b200")
    model = OperatorModel.of(device, replace(JOB, matmul_precision=name))
    side = 16384.0
    rate = 2 * side**3 / model.matmul_time(side, side, side, 1, weighted=True)
    plain = OperatorModel.of(device, JOB).products.large_rate
    assert plain < rate < device.peak_flops[NARROW_FORMATS[name].rate]


def test_products_that_are_no_faster_in_8_bits_are_no_slower_either():
    gaudi = load_accelerator("gaudi3")
    assert gaudi.peak_flops["fp8"] == gaudi.peak_flops["bf16"]
    narrow = OperatorModel.of(gaudi, replace(JOB, matmul_precision="fp8"))
    plain = OperatorModel.of(gaudi, JOB)
    for shape in ((4096, 4096, 4096, 1), (64, 8192, 512, 1)):
        both = [model.matmul_time(*shape, weighted=True) for model in (narrow, plain)]
        assert both[0] <= both[1]


@failures.over(
    ("states", "expected"),
    [
        ({}, 12),
        ({"main_params_dtype": "fp16"}, 10),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, 8),  # DeepSeek-V3
        ({"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8"}, 6),
        ({"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp16"}, 7),
        ({"optimizer": "adam8bit"}, 2 + 8 / 256),
        ({"optimizer": "adam8bit", "weights_in_fp32": True}, 2 + 8 / 256),
        ({"optimizer": "sgd", "exp_avg_dtype": "bf16"}, 6),
        ({"optimizer": "muon"}, 8),
        ({"optimizer": "muon", "exp_avg_dtype": "bf16"}, 6),
        ({"weights_in_fp32": True, "exp_avg_dtype": "bf16"}, 6),
        ({"optimizer": "muon", "weights_in_fp32": True}, 4),
    ],
)
def test_states_take_the_bytes_of_their_formats(states, expected):
    assert replace(JOB, **states).parameter_bytes.optimizer == expected


def test_states_in_fewer_bits_never_take_more():
    widths = [
        replace(JOB, exp_avg_dtype=one, exp_avg_sq_dtype=one).parameter_bytes.optimizer
        for one in ("fp32", "bf16", "fp8")
    ]
    assert widths == sorted(widths, reverse=True)


@failures.over(
    ("name", "kept", "sent"),
    [
        ("fp8", 2.0, 1.0),
        ("fp8-blockwise", 2 * (1 + 4 / 128**2), 1 + 4 / 128**2),
        ("mxfp8", 2 * (1 + 1 / 32), 2),
        ("nvfp4", 2 * (0.5 + 1 / 16), 2),
    ],
)
def test_weights_in_a_narrow_format_are_kept_twice_and_gathered_in_it(name, kept, sent):
    job = replace(JOB, matmul_precision=name, fp8_param_gather=True)
    assert job.parameter_bytes.weights == kept
    assert job.parameter_bytes.gather == sent
    assert job.parameter_bytes.optimizer == 12
    once = replace(job, keep_fp8_transpose_cache=False)
    assert once.parameter_bytes.weights == kept / 2
    assert once.parameter_bytes.gather == sent


@failures.over("name", ["fp8", "fp8-blockwise", "mxfp8"])
def test_fsdp_gathers_in_8_bits_what_it_keeps_in_fp32(name):
    job = replace(JOB, weights_in_fp32=True, gather_precision=name)
    assert job.parameter_bytes.weights == 4
    assert job.parameter_bytes.gather == NARROW_FORMATS[name].weight_bytes


def test_matrices_of_blocks_are_the_weights_of_products_but_for_the_head():
    graph = trace_model(GPT)
    h, f, layers = GPT.hidden_size, GPT.ffn_hidden_size, GPT.num_layers
    found = block_matrices(graph)
    expected = layers * (4 * h * h + 2 * h * f)
    assert found.share * graph.num_parameters == pytest.approx(expected, rel=1e-12)


def test_muon_works_five_iterations_on_each_matrix():
    graph = trace_model(GPT)
    h, layers = GPT.hidden_size, GPT.num_layers
    # Queries, keys and values 3h x h; what leaves attention h x h; twice 4h x h.
    each = [4 * h**2 * long + 2 * h**3 for long in (3 * h, h, 4 * h, 4 * h)]
    expected = 5 * layers * sum(each)
    found = block_matrices(graph).orthogonalisation_flops * graph.num_parameters
    assert found == pytest.approx(expected, rel=1e-12)


def test_experts_are_matrices_of_their_own():
    graph = trace_model(MIXTRAL)
    found = block_matrices(graph)
    assert 0.9 < found.share < 1.0
    h, f, experts = MIXTRAL.hidden_size, MIXTRAL.ffn_hidden_size, 8
    each = 4 * h**2 * (2 * f) + 2 * h**3 + 4 * h**2 * f + 2 * h**3
    at_least = 5 * MIXTRAL.num_layers * experts * each
    flops = found.orthogonalisation_flops * graph.num_parameters
    assert at_least < flops < 1.1 * at_least


def _workload(**changes):
    return Workload(
        graph=trace_model(GPT), training=replace(JOB, **changes), accelerator=B200
    )


def test_muon_keeps_less_and_computes_more_than_adam():
    adam, muon = _workload(), _workload(optimizer="muon")
    share = block_matrices(muon.graph).share
    assert muon.parameter_bytes.optimizer == pytest.approx(12 - 4 * share)
    assert muon.parameter_bytes.weights == adam.parameter_bytes.weights
    moved = optimizer_step_bytes(muon.parameter_bytes) / muon.memory_rate()
    flops = block_matrices(muon.graph).orthogonalisation_flops
    rate = OperatorModel.of(B200, JOB).products.large_rate
    assert muon.step_time() == pytest.approx(moved + flops / rate, rel=1e-12)
    assert adam.orthogonalisation_time() == 0.0
    assert adam.step_time() == optimizer_step_bytes(adam.parameter_bytes) / (
        adam.memory_rate()
    )


def test_embeddings_stay_in_16_bits():
    whole = _workload(matmul_precision="fp8", fp8_param_gather=True)
    share = block_matrices(whole.graph).share
    assert whole.parameter_bytes.gather == pytest.approx(2 - share)
    assert whole.parameter_bytes.weights == pytest.approx(2.0)


@failures.over("name", ["fp8", "fp8-blockwise", "mxfp8"])
def test_one_of_two_all_to_alls_is_dispatched_in_8_bits(name):
    graph, degrees = trace_model(MIXTRAL), Degrees(ep=4)
    platform = Platform(accelerator=B200)
    narrow = replace(JOB, moe_dispatch_precision=name)
    tables = [
        build_layer_table(graph, degrees=degrees, training=job, platform=platform)
        for job in (JOB, narrow)
    ]
    wide, thin = (
        next(row for row in table.traffic if row.operation == "all_to_all")
        for table in tables
    )
    part = (NARROW_FORMATS[name].activation_bytes + 2) / 4
    for moment in ("forward_bytes", "backward_bytes"):
        np.testing.assert_allclose(
            getattr(thin, moment), part * getattr(wide, moment), rtol=1e-12
        )
    assert np.array_equal(wide.forward_count, thin.forward_count)
    assert np.array_equal(tables[0].forward_time, tables[1].forward_time)


@failures.over(("optimizer", "mixed"), OPTIMIZER_BYTES)
def test_no_optimizer_keeps_more_than_adam(optimizer, mixed):
    assert OPTIMIZER_BYTES[optimizer, mixed] <= OPTIMIZER_BYTES["adam", mixed]
