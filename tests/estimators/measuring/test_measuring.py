"""Measuring: statistics by a fake clock, the list of operators, and the real CPU."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.measuring.cases import SIZES, Given, Size, cases
from estimators.measuring.operators import (
    MOST_REPEATS,
    QUICK,
    Effort,
    EventStopwatch,
    LayerCheck,
    MeasuringSetup,
    WallStopwatch,
    available_device,
    check_layer,
    checked_layers,
    device_name,
    driver_of,
    measure_adam,
    measure_case,
    measure_profile,
    planned_cases,
    precisions_of,
    stopwatch_for,
    time_call,
)
from estimators.models.library import load_model
from estimators.operators.profile import OperatorTiming, Profile, ProfiledTimes
from estimators.tracing.trace import trace_model
from tests import failures
from topologies.errors import InputError

CPU = torch.device("cpu")
TINY = Size(tokens=32, hidden=32, heads=2, sequence=16, vocab=64)
ONCE = Effort(warm_up=1, samples=1, fewest_samples=1, seconds=0.0)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Keep threads from waiting for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class FakeStopwatch:
    """Says that calls take what a list says, one sample after the other."""

    def __init__(self, times: list[float], shortest: float = 0.0) -> None:
        self.times, self.shortest = iter(times), shortest
        self.repeats: list[int] = []

    def elapsed(self, call, repeats):
        self.repeats.append(repeats)
        for _ in range(repeats):
            call()
        return next(self.times) * repeats


def bench(stopwatch=None):
    return MeasuringSetup(
        device=CPU,
        stopwatch=stopwatch or replace(WallStopwatch(CPU), shortest=0.0),
        effort=ONCE,
        launch_time=1e-9,
        entry_time=0.0,
    )


def case_of(operation, size=TINY):
    return next(case for case in cases(size) if case.operation == operation)


def test_the_median_and_the_quartiles_are_reported():
    watch = FakeStopwatch([9.0, 5.0, 1.0, 2.0, 4.0, 3.0])
    effort = Effort(warm_up=0, samples=5, seconds=1e9)
    assert time_call(lambda: None, watch, effort) == OperatorTiming(3.0, 2.0, 5)


def test_warm_up_calls_are_not_timed():
    calls = []
    watch = FakeStopwatch([1.0] * 10)
    time_call(lambda: calls.append(len(watch.repeats)), watch, Effort(warm_up=4))
    assert calls[:5] == [0, 0, 0, 0, 1]


def test_short_calls_are_repeated_until_a_sample_is_long_enough():
    watch = FakeStopwatch([1e-5] * 20, shortest=2e-3)
    timing = time_call(lambda: None, watch, Effort(samples=3))
    assert watch.repeats == [1, 201, 201, 201]
    assert timing.seconds == pytest.approx(1e-5)
    endless = FakeStopwatch([0.0] * 20, shortest=2e-3)
    time_call(lambda: None, endless, Effort(samples=3))
    assert endless.repeats[1:] == [MOST_REPEATS] * 3


def test_sampling_stops_when_its_time_is_up_but_not_before_the_fewest():
    watch = FakeStopwatch([1.0] * 20)
    assert time_call(lambda: None, watch, Effort(seconds=4.5)).samples == 5
    watch = FakeStopwatch([1.0] * 20)
    assert time_call(lambda: None, watch, Effort(seconds=0.0)).samples == 3


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 10.0), min_size=3, max_size=15))
def test_the_median_lies_among_the_samples_and_the_spread_inside_their_range(times):
    effort = Effort(warm_up=0, samples=len(times), seconds=1e9)
    timing = time_call(lambda: None, FakeStopwatch([1.0, *times]), effort)
    assert min(times) <= timing.seconds <= max(times)
    assert 0 <= timing.spread <= max(times) - min(times)


def test_the_entry_into_autograd_is_taken_off_but_a_launch_is_left():
    def timed(seconds):
        watch = FakeStopwatch([seconds] * 5)
        one = replace(bench(watch), entry_time=2.0, launch_time=0.5)
        return one.time_backward(lambda: None).seconds

    assert timed(5.0) == 3.0
    assert timed(1.0) == 0.5


@failures.over("case", list(cases(TINY)), ids=lambda case: case.operation)
@failures.over("precision", ["fp32", "bf16"])
def test_every_operator_runs_forward_and_backward(case, precision):
    work = case.work(4 if precision == "fp32" else 2)
    one = measure_case(bench(), precision, case, work)
    assert one.forward.seconds > 0
    assert one.backward.seconds > 0
    assert (one.weight_gradient is not None) == (case.operation == "linear")
    assert one.work > 0


def test_shapes_flops_and_bytes_are_those_of_the_formulas():
    linear = measure_case(bench(), "bf16", case_of("linear"), case_of("linear").work(2))
    assert linear.shape == (32, 96, 32, 1)
    assert linear.flops == 2 * 32 * 96 * 32
    assert linear.num_bytes == 2 * (32 * 32 + 32 * 96 + 32 * 96)
    flash = case_of("attention").work(4)
    # Two products over half the pairs of 16 tokens, for 2 sequences, heads of 16.
    assert flash.forward_flops == 0.5 * 4 * 16 * 16 * 16 * (2 * 2)
    norm = case_of("layernorm").work(4)
    assert norm.forward_bytes == 2 * 4 * 32 * 32


def test_the_gradient_of_a_residual_sum_is_a_sum_of_gradients():
    one = measure_case(bench(), "fp32", case_of("add"), case_of("add").work(4))
    assert one.backward is not None
    assert one.weight_gradient is None
    assert case_of("add").sums_gradients


@failures.over("model", ["llama2-7b", "gpt3-1.3b", "mixtral-8x7b"])
@failures.over("attention", ["flash", "plain"])
def test_every_operator_of_the_model_library_is_on_the_list(model, attention):
    spec = replace(load_model(model), attention_implementation=attention)
    graph = trace_model(spec)
    listed = {case.operation for case in cases(TINY)}
    names = {
        "norm": spec.normalization,
        "activation": "silu" if spec.gated_linear_unit else "gelu",
    }
    for kind in range(len(graph.layers)):
        for work in layer_work(graph, kind, Degrees(), 2).operators:
            assert names.get(work.operation, work.operation) in listed


def test_the_list_is_the_same_every_time_and_begins_with_every_operator():
    def described(device):
        rows = planned_cases(SIZES[device], ("fp32", "bf16"))
        return [[(p, c.operation, c.inputs) for p, c in row] for row in rows]

    for device in SIZES:
        assert described(device) == described(device)
        kinds = [{operation for _, operation, _ in row} for row in described(device)]
        assert all(kind == kinds[0] for kind in kinds)


def test_shapes_that_are_said_to_be_the_same_do_the_same_work():
    known = {}
    for size in [size for sizes in SIZES.values() for size in sizes][:6]:
        for case in cases(size):
            work = case.work(2)
            key = case.operation, case.shape(work)
            amount = work.forward_flops, work.forward_bytes
            assert known.setdefault(key, amount) == amount


@failures.over("size", [s for sizes in SIZES.values() for s in sizes])
def test_sizes_divide(size):
    assert size.tokens % size.sequence == 0
    assert size.hidden % (2 * size.heads) == 0


def test_integers_stay_below_their_bound():
    made = Given((100,), below=3).make(CPU, torch.float32)
    assert made.dtype == torch.long
    assert set(made.tolist()) <= {0, 1, 2}


def test_an_adam_step_is_counted_as_28_bytes_a_parameter():
    one = measure_adam(bench(), 100)
    assert (one.shape, one.num_bytes, one.backward) == ((100,), 2800.0, None)


def test_an_unknown_device_is_the_users_mistake():
    with pytest.raises(InputError, match="no such device"):
        available_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no such device"):
            available_device("cuda")


@pytest.fixture(scope="module")
def measured() -> Profile:
    """Return a profile of this CPU, with no time for more than the first size."""
    told: list[float] = []
    state = torch.get_rng_state()
    profile = measure_profile(
        CPU,
        date="2026-01-31",
        budget=0.0,
        quick=True,
        progress=lambda _, share: told.append(share),
    )
    assert torch.equal(torch.get_rng_state(), state), "the caller's generator moved"
    assert told == sorted(told)
    assert told[0] == 0.0
    assert told[-1] < 1.0
    return profile


def test_the_first_size_is_measured_whatever_the_budget(measured):
    first, second = SIZES["cpu"][:2]
    precisions = precisions_of(CPU)
    expected = {
        (case.operation, precision, case.shape(case.work(4)))
        for case in cases(first)
        for precision in precisions
    }
    found = [(one.operation, one.precision, one.shape) for one in measured.measurements]
    assert len(found) == len(set(found))
    assert set(found) == expected | {("adam", "fp32", (4 * first.hidden**2,))}
    assert measured.num_skipped == len(precisions) * len(list(cases(second)))


def test_a_profile_says_what_it_was_measured_on(measured):
    assert measured.date == "2026-01-31"
    assert measured.torch_version == torch.__version__
    assert measured.num_threads == torch.get_num_threads()
    assert measured.device == device_name(CPU)
    assert measured.driver == driver_of(CPU)
    assert 0 < measured.launch_time < 1.0


@failures.over("name", list(checked_layers(CPU)))
def test_a_whole_layer_is_predicted_from_the_profile_and_measured(measured, name):
    check = check_layer(measured, CPU, name, "fp32", QUICK)
    assert isinstance(check, LayerCheck)
    spec, batch = checked_layers(CPU)[name]
    graph = trace_model(spec)
    operators = layer_work(graph, 1, Degrees(micro_batch_size=batch), 4).operators
    model = ProfiledTimes.of(measured, "fp32", spec)
    times = [model.operator_time(one) for one in operators]
    assert check.predicted_forward == pytest.approx(sum(one[0] for one in times))
    assert check.predicted_backward == pytest.approx(sum(one[1] for one in times))
    assert check.measured_forward.seconds > 0
    assert check.measured_backward.seconds > 0
    assert check.num_operators == len(operators)


def test_layers_for_an_accelerator_are_wide_ones_with_heads_of_its_size():
    for spec, _ in checked_layers(torch.device("cuda")).values():
        assert spec.hidden_size >= 3200
        assert spec.kv_channels == 128


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_is_timed_by_its_own_events():
    device = available_device("cuda")
    watch = stopwatch_for(device)
    assert isinstance(watch, EventStopwatch)
    one = MeasuringSetup.of(device, QUICK)
    assert one.entry_time == 0.0
    for precision in precisions_of(device):
        for case in cases(TINY):
            found = measure_case(one, precision, case, case.work(2))
            assert found.forward.seconds > 0
    assert "driver" in driver_of(device)


def test_a_cpu_is_timed_by_the_clock_of_the_host():
    assert isinstance(stopwatch_for(CPU), WallStopwatch)
    assert stopwatch_for(CPU).elapsed(lambda: sum(range(1000)), 10) > 0
