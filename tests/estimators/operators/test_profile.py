"""Profiles: files come back as they were written, times between measured ones fit."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.chain import build_layer_table
from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees, OperatorWork
from estimators.models.spec import TransformerSpec
from estimators.operators.profile import (
    Measurement,
    OperatorTiming,
    Profile,
    ProfiledTimes,
    is_profile,
    read_profile,
    write_profile,
)
from estimators.platform import Platform
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from tests import failures
from topologies.accelerators import load_accelerator
from topologies.errors import InputError

SPEC = TransformerSpec(
    family="llama",
    num_layers=2,
    hidden_size=256,
    num_attention_heads=4,
    vocab_size=1024,
    sequence_length=128,
    gated_linear_unit=True,
    normalization="rmsnorm",
    position_embedding_type="rope",
    add_bias_linear=False,
    tie_word_embeddings=False,
)
LAUNCH = 1e-6
A100 = load_accelerator("a100-80gb")


def timing(seconds):
    return OperatorTiming(seconds, seconds / 10, 5)


def product(m, n, k, batch=1, *, seconds, operation="linear", weight=None):
    return Measurement(
        operation=operation,
        precision="bf16",
        shape=(m, n, k, batch),
        flops=2.0 * m * n * k * batch,
        num_bytes=2.0 * batch * (m * k + k * n + m * n),
        forward=timing(seconds),
        backward=timing(2 * seconds),
        weight_gradient=timing(weight or seconds),
    )


def stream(operation, num_bytes, seconds):
    return Measurement(
        operation=operation,
        precision="bf16",
        shape=(int(num_bytes) // 4,),
        flops=0.0,
        num_bytes=float(num_bytes),
        forward=timing(seconds),
        backward=timing(3 * seconds),
    )


def profile(*measurements):
    return Profile(
        device="a device",
        driver="driver 1",
        date="2026-01-31",
        torch_version="2.5",
        num_threads=0,
        launch_time=LAUNCH,
        measurements=measurements,
    )


def times(*measurements, spec=SPEC):
    return ProfiledTimes.of(profile(*measurements), "bf16", spec)


def product_work(m, n, k, batch=1, operation="linear"):
    flops = 2.0 * m * n * k * batch
    traffic = 2.0 * batch * (m * k + k * n + m * n)
    weighted = flops if operation == "linear" else 0.0
    return OperatorWork(
        "p", "matmul", m, n, k, batch, flops, 2 * flops, traffic, 2 * traffic
    )._replace(operation=operation, weight_flops=weighted)


def stream_work(num_bytes, operation="dropout"):
    return OperatorWork(
        "s", "memory", 0, 0, 0, 0, 0.0, 0.0, num_bytes, 2.0 * num_bytes
    )._replace(operation=operation)


def works(kind="block 0"):
    graph = trace_model(SPEC)
    number = graph.kinds[graph.names.index(kind)]
    return layer_work(graph, number, Degrees(), 2).operators


def covering_profile(rate=1e12, memory_rate=1e11):
    """Return a device of constant rates on which every operator was measured."""
    graph = trace_model(SPEC)
    found = {}
    for kind in range(len(graph.layers)):
        for work in layer_work(graph, kind, Degrees(), 2).operators:
            name = {"norm": "rmsnorm", "activation": "silu"}.get(
                work.operation, work.operation
            )
            amount = work.forward_flops or work.forward_bytes
            seconds = amount / (rate if work.forward_flops else memory_rate)
            shape = (work.m, work.n, work.k, work.batch) if work.m else (1,)
            one = Measurement(
                operation=name,
                precision="bf16",
                shape=tuple(int(count) for count in shape),
                flops=work.forward_flops,
                num_bytes=work.forward_bytes,
                forward=timing(seconds),
                backward=timing(2 * seconds),
                weight_gradient=timing(seconds) if name == "linear" else None,
            )
            found[name, one.shape, one.num_bytes] = one
    return profile(*found.values())


def test_a_file_comes_back_as_it_was_written(tmp_path):
    written = covering_profile()
    file = tmp_path / "p.json"
    write_profile(written, file)
    assert read_profile(file) == written
    assert is_profile(file.read_bytes()[:100])


@failures.over(
    ("damage", "where"),
    [
        (lambda data: data.pop("device"), "device"),
        (lambda data: data.update(format="something else"), "format"),
        (lambda data: data["measurements"][0].pop("shape"), "measurements[0].shape"),
        (
            lambda data: data["measurements"][0].update(num_bytes=0.0),
            "measurements[0].num_bytes",
        ),
        (
            lambda data: data["measurements"][0].update(shape=[4, 4]),
            "measurements[0].shape",
        ),
        (
            lambda data: data["measurements"][0].update(forward=None),
            "measurements[0].forward",
        ),
        (
            lambda data: data["measurements"][0].update(precision=["bf16"]),
            "measurements[0].precision",
        ),
        (lambda data: data.update(measurements=3), "measurements"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, damage, where):
    file = tmp_path / "p.json"
    write_profile(profile(product(8, 8, 8, seconds=1e-3)), file)
    data = json.loads(file.read_text())
    damage(data)
    file.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        read_profile(file)
    assert caught.value.where == f"{file}: {where}"


@failures.over("content", ["", "[]", "{", "\x00", '{"format": "mine"}', "[" * 200_000])
def test_what_is_no_profile_is_refused(tmp_path, content):
    assert not is_profile(content.encode())
    file = tmp_path / "p.json"
    file.write_text(content)
    with pytest.raises(InputError):
        read_profile(file)


def test_a_missing_file_is_the_users_mistake(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_profile(tmp_path / "none.json")


def test_a_measured_shape_takes_the_time_that_was_measured():
    found = times(
        product(64, 64, 64, seconds=1e-3, weight=7e-4),
        product(128, 64, 64, seconds=3e-3),
        stream("dropout", 1e6, 2e-3),
        stream("dropout", 4e6, 5e-3),
    )
    assert found.operator_time(product_work(64, 64, 64)) == pytest.approx(
        (1e-3, 2e-3, 7e-4)
    )
    assert found.operator_time(stream_work(4e6)) == pytest.approx((5e-3, 15e-3, 0))


def test_between_two_streams_the_rate_is_interpolated_over_the_logarithm():
    found = times(stream("dropout", 1e6, 1e-3), stream("dropout", 4e6, 1e-3))
    # Rates of 1e9 and 4e9: halfway, at 2e6 bytes, their geometric mean 2e9.
    assert found.operator_time(stream_work(2e6)).forward == pytest.approx(1e-3)


def test_outside_the_measured_range_the_rate_is_kept_and_said_to_be():
    found = times(stream("dropout", 1e6, 1e-3), stream("dropout", 4e6, 2e-3))
    assert found.operator_time(stream_work(8e6)).forward == pytest.approx(4e-3)
    assert found.operator_time(stream_work(5e5)).forward == pytest.approx(5e-4)
    assert found.is_outside(stream_work(8e6))
    assert found.is_outside(stream_work(5e5))
    assert not found.is_outside(stream_work(4e6))
    products = times(product(64, 64, 64, seconds=1e-3))
    assert products.operator_time(product_work(64, 64, 128)).forward == pytest.approx(
        2e-3
    )


def test_no_pass_takes_less_than_a_launch():
    found = times(stream("dropout", 1e6, 1e-3))
    assert found.operator_time(stream_work(1.0)) == (LAUNCH, LAUNCH, 0.0)


def test_an_operator_without_work_takes_no_time():
    found = times(stream("dropout", 1e6, 1e-3))
    assert found.operator_time(stream_work(0.0)) == (0.0, 0.0, 0.0)


def test_only_products_with_a_weight_have_a_weight_gradient():
    found = times(
        product(64, 64, 64, 4, seconds=1e-3, operation="matmul"),
        product(64, 64, 64, 4, seconds=1e-3),
    )
    assert found.operator_time(product_work(64, 64, 64, 4)).weight_gradient > 0
    activations = product_work(64, 64, 64, 4, "matmul")
    assert found.operator_time(activations).weight_gradient == 0


def test_norm_and_activation_are_those_of_the_architecture():
    found = [stream(name, 1e6, i + 1.0) for i, name in enumerate(("gelu", "silu"))]
    found += [
        stream(name, 1e6, i + 3.0) for i, name in enumerate(("layernorm", "rmsnorm"))
    ]
    llama = times(*found)
    gpt = times(
        *found, spec=replace(SPEC, normalization="layernorm", gated_linear_unit=False)
    )
    norm, activation = stream_work(1e6, "norm"), stream_work(1e6, "activation")
    assert llama.operator_time(norm).forward == pytest.approx(4.0)
    assert llama.operator_time(activation).forward == pytest.approx(2.0)
    assert gpt.operator_time(norm).forward == pytest.approx(3.0)
    assert gpt.operator_time(activation).forward == pytest.approx(1.0)


def test_what_was_not_measured_is_refused_by_name():
    with pytest.raises(InputError, match="'rmsnorm' in bf16"):
        times(stream("dropout", 1e6, 1e-3)).operator_time(stream_work(1e6, "norm"))
    with pytest.raises(InputError) as caught:
        ProfiledTimes.of(profile(stream("dropout", 1e6, 1.0)), "fp32", SPEC)
    assert caught.value.expected == "one of bf16"


SIDE = st.integers(1, 14).map(lambda exponent: 2**exponent)
SHAPES = st.tuples(SIDE, SIDE, SIDE, st.sampled_from((1, 8, 64)))


@settings(max_examples=30)
@given(
    st.dictionaries(SHAPES, st.floats(1e9, 1e15), min_size=1, max_size=12),
    st.tuples(st.integers(1, 40000), st.integers(1, 40000), SIDE, SIDE),
)
def test_an_interpolated_rate_lies_between_measured_ones(rates, shape):
    def seconds(shape, rate):
        return 2.0 * float(np.prod(np.array(shape, dtype=float))) / rate

    measured = [
        product(*one, seconds=seconds(one, rate), operation="matmul")
        for one, rate in rates.items()
    ]
    found = replace(times(*measured), launch_time=0.0)
    work = product_work(*shape, "matmul")
    rate = work.forward_flops / found.operator_time(work).forward
    assert min(rates.values()) <= rate * (1 + 1e-9)
    assert rate <= max(rates.values()) * (1 + 1e-9)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(1, 10**9), st.floats(1e-6, 1.0)),
        min_size=1,
        max_size=8,
        unique_by=lambda row: row[0],
    ),
    st.integers(1, 10**9),
    st.sampled_from((0.5, 2.0, 4.0)),
)
def test_a_device_of_half_the_speed_takes_twice_the_time(rows, num_bytes, factor):
    slow = replace(
        times(*(stream("dropout", size, factor * time) for size, time in rows)),
        launch_time=0.0,
    )
    fast = replace(
        times(*(stream("dropout", size, time) for size, time in rows)),
        launch_time=0.0,
    )
    work = stream_work(num_bytes)
    assert slow.operator_time(work) == pytest.approx(
        [factor * time for time in fast.operator_time(work)]
    )


def test_a_profile_stands_in_for_the_roofline_of_a_layer_table():
    job = TrainingSpec(global_batch_size=8)
    table = build_layer_table(
        trace_model(SPEC),
        degrees=Degrees(),
        training=job,
        platform=Platform(accelerator=A100, profile=covering_profile()),
    )
    expected = sum(
        max(
            (one.forward_flops / 1e12) or (one.forward_bytes / 1e11),
            LAUNCH,
        )
        for one in works()
    )
    block = table.names.index("block 0")
    assert table.forward_time[block] == pytest.approx(expected)
    assert (table.weight_gradient_time < table.backward_time).all()
    without = build_layer_table(
        trace_model(SPEC),
        degrees=Degrees(),
        training=job,
        platform=Platform(accelerator=A100),
    )
    assert (table.saved_bytes["none"] == without.saved_bytes["none"]).all()
    assert (table.forward_time != without.forward_time).all()


def test_no_operator_of_a_covered_layer_lies_outside():
    found = ProfiledTimes.of(covering_profile(), "bf16", SPEC)
    for kind in ("embedding", "block 0", "head"):
        assert not any(found.is_outside(one) for one in works(kind))
