import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from nestsim.simulator.compiled import (
    end_of_compiled_run,
    simulate_compiled,
)
from nestsim.simulator.jittered import (
    JitteredModel,
    jittered_replay,
    jittered_times,
)
from nestsim.simulator.kernels.jitter import uniforms
from nestsim.simulator.noise import PERIODS, Delay, Jitter, Noise
from nestsim.simulator.replay import replay
from nestsim.simulator.simpy_engine import simulate
from nestsim.simulator.system import (
    NONE,
    SPAN_KINDS,
    TICK,
    TRANSFER_KINDS,
    ReplaySettings,
    quantise,
)
from nestsim.simulator.work import (
    Bucket,
    LayerTraffic,
    LockstepRingPhase,
    LockstepTraffic,
    Move,
    RingPhase,
)
from planner.step.instructions import BACKWARD, FORWARD
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.nestsim.simulator.cases import (
    contended_step,
    full_mesh,
    pipeline,
    slowed,
    step_sizes,
    switch,
)
from tests.nestsim.simulator.systems import (
    Builder,
    assert_same,
    random_systems,
    wire,
)

AUTO = ReplaySettings()
COMPILED = ReplaySettings(engine="compiled")
RUNS = 1500


def num_messages(system):
    """Count the messages of each channel by running it."""
    return np.array([log.size for log in simulate(system).posts], np.int64)


@st.composite
def delayed_systems(draw):
    system = draw(random_systems())
    number = int(num_messages(system).sum())
    assume(number)
    values = st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.7])
    delays = draw(st.lists(values, min_size=number, max_size=number))
    return replace(system, delays=quantise(np.array(delays), TICK))


@settings(max_examples=40)
@given(delayed_systems())
def test_both_engines_delay_messages_alike(system):
    run, compiled = simulate(system), simulate_compiled(system, skipping=True)
    assert_same(run, compiled)
    assert run.num_events == compiled.num_events
    assert not compiled.skips
    assert_same(run, simulate(system, skipping=True))
    assert run.end == end_of_compiled_run(system)
    begin = 0
    for channel, arrivals in enumerate(run.arrivals):
        # First in, first out; none earlier than its own delay allows.
        size = run.posts[channel].size
        more = system.delays[begin : begin + size][: arrivals.size]
        begin += size
        assert (np.diff(arrivals) >= 0.0).all()
        starts = run.departures[channel][: arrivals.size]
        assert (arrivals >= starts + system.latency[channel] + more).all()


@settings(max_examples=30)
@given(random_systems())
def test_delays_of_zero_change_no_bit(system):
    zeros = np.zeros(int(num_messages(system).sum()))
    delayed = replace(system, delays=zeros)
    for engine in (simulate, simulate_compiled):
        plain, other = engine(system), engine(delayed)
        assert_same(plain, other)
        assert plain.num_events == other.num_events


def test_messages_wait_for_the_one_before_them():
    builder = Builder(2, [wire(0, latency=0.5)])
    for _ in range(3):
        builder.step(0, 1.0, target=0)
    for need in range(3):
        builder.step(1, 0.0, source=0, lag=2 - need)
    system = replace(builder.system([1.0]), delays=np.array([0.25, 2.0, 0.0]))
    for engine in (simulate, simulate_compiled):
        run = engine(system)
        # Ready at 1, 2 and 3: without the second one the third would come at 3.5.
        assert run.arrivals[0].tolist() == [1.75, 4.5, 4.5]


@failures.over("schedule", SCHEDULES)
@settings(max_examples=6)
@given(data=st.data())
def test_jittered_steps_agree_in_both_engines(schedule, data):
    p, m, v = data.draw(step_sizes(schedule, most_stages=4, most_microbatches=8))
    net, work = contended_step(
        num_replicas=2, num_stages=2 * p, num_microbatches=m * 2, num_chunks=v
    )
    jitter = Jitter(
        compute=Noise("gamma", 0.3),
        per=data.draw(st.sampled_from(PERIODS)),
        links=Delay("lognormal", 1e-4, 1.0),
        seed=data.draw(st.integers(0, 2**63 - 1)),
    )
    work = replace(work, schedule=schedule)
    system = JitteredModel.of(net, work, jitter).run(data.draw(st.integers(0, 99)))
    assert_same(simulate(system), simulate_compiled(system))


@failures.over("schedule", SCHEDULES)
@settings(max_examples=5)
@given(data=st.data())
def test_every_span_is_stretched_by_its_own_factor(schedule, data):
    p, m, v = data.draw(step_sizes(schedule, most_stages=3, most_microbatches=6))
    net, work = contended_step(
        num_replicas=2, num_stages=2 * p, num_microbatches=2 * m, num_chunks=v
    )
    slowdown = np.ones((2 * p, 2))
    slowdown[0, 1], slowdown[p, 0] = 1.5, 2.0
    work = slowed(replace(work, schedule=schedule), slowdown)
    per = data.draw(st.sampled_from(["pass", "step"]))
    jitter = Jitter(compute=Noise("lognormal", 0.4), per=per, seed=8)
    plain = replay(net, work, ReplaySettings(folding=False), every_actor=True).spans
    spans = jittered_replay(net, work, AUTO, jitter, 4).spans
    num_ranks = work.devices.shape[2]
    for stage in range(2 * p):
        for replica in range(2):
            before, after = (
                np.flatnonzero((one.stage == stage) & (one.replica == replica))
                for one in (plain, spans)
            )
            number = before.size if per == "pass" else 1
            owner = np.array([stage * 2**32 + replica])
            u = uniforms(8, 4, 0, owner, np.array([number]))
            factors = jitter.compute.ppf((1.0 - u) ** (1.0 / num_ranks))
            assert (spans.kind[after] == plain.kind[before]).all()
            lengths = (plain.end - plain.start)[before]
            assert (spans.end - spans.start)[after] == pytest.approx(
                lengths * factors, abs=2.0**-40
            )


STEADY = [
    Jitter(),
    Jitter(compute=Noise("normal", 0.0), links=Delay("gamma", 0.0, 1.0)),
]


@failures.over("jitter", STEADY)
def test_without_variation_it_is_the_plain_replay(jitter):
    net, work = contended_step()
    plain = replay(net, work)
    same = jittered_replay(net, work, AUTO, jitter, 3)
    for name in ("iteration_time", "num_events", "notes", "memory"):
        assert getattr(same, name) == getattr(plain, name)
    for ours, theirs in zip(same.spans, plain.spans, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    times = jittered_times(net, work, AUTO, jitter, range(3))
    assert times.tolist() == [plain.iteration_time] * 3


@failures.over("per", PERIODS)
def test_factors_of_one_give_the_bits_of_the_plain_replay(per):
    net, work = contended_step()
    jitter = Jitter(compute=Noise("uniform", 0.0), per=per)
    system = JitteredModel.of(net, work, jitter).run(0)
    settings = ReplaySettings(folding=False, skipping=False)
    plain = replay(net, work, settings)
    assert simulate_compiled(system).end == plain.iteration_time
    # And through the arithmetic of factors, with all that does not vary.
    none = replace(
        work, sent_time=dict.fromkeys((FORWARD, BACKWARD), work.forward_time * 9)
    )
    none = replace(none, optimizer_time=np.zeros_like(none.optimizer_time))
    jitter = replace(jitter, compute=Noise("gamma", 0.5))
    system = JitteredModel.of(net, none, jitter).run(0)
    assert simulate_compiled(system).end == replay(net, none, settings).iteration_time


def test_runs_are_the_same_alone_and_among_others():
    net, work = contended_step()
    jitter = Jitter(
        compute=Noise("normal", 0.2), links=Delay("exponential", 1e-4, 1.0), seed=5
    )
    times = jittered_times(net, work, AUTO, jitter, range(20))
    parts = [
        jittered_times(net, work, AUTO, jitter, r) for r in (range(10), range(10, 20))
    ]
    assert times.tobytes() == np.concatenate(parts).tobytes()
    backwards = jittered_times(net, work, AUTO, jitter, range(19, -1, -1))
    assert backwards[::-1].tobytes() == times.tobytes()
    for engine in ("simpy", "compiled"):
        told = ReplaySettings(engine=engine, folding=False, skipping=False)
        assert jittered_times(net, work, told, jitter, range(20)).tobytes() == (
            times.tobytes()
        )
    assert np.unique(times).size == 20
    other = jittered_times(net, work, AUTO, replace(jitter, seed=6), range(20))
    assert not (other == times).any()
    whole = jittered_replay(net, work, AUTO, jitter, 7)
    assert whole.iteration_time == times[7]
    assert whole.num_classes == whole.num_actors
    assert sum("run 7 of seed 5" in note for note in whole.notes) == 2


def assert_quantiles(times, cdf, probabilities=(0.5, 0.95, 0.99)):
    """Hold order statistics to a distribution, within 4 standard errors.

    The rank of a quantile among ``n`` draws has the variance ``n q (1 - q)``.
    """
    for q in probabilities:
        error = math.sqrt(q * (1.0 - q) / times.size)
        assert abs(cdf(np.quantile(times, q)) - q) < 4.0 * error


@failures.over(
    "noise",
    [Noise("gamma", 0.5), Noise("exponential", 1.0)],
    ids=lambda n: n.distribution,
)
def test_one_stage_takes_the_slowest_replicas_sum_of_passes(noise):
    m, d = 3, 4
    work = pipeline([[[0], [1], [2], [3]]], m, reduce_phases=((),))
    # Replicas of one stage do not wait for each other: the step ends with the last.
    jitter = Jitter(compute=noise, per="pass", seed=1)
    times = jittered_times(switch(4), work, COMPILED, jitter, range(RUNS))
    shape = 2 * m / noise.variance

    def cdf(x):
        return stats.gamma.cdf(x, shape, scale=noise.variance) ** d

    assert_quantiles(times, cdf)


def test_lockstep_ranks_take_the_slowest_draw_of_each_pass():
    # One pass each way, three ranks: the sum of two maxima of three.
    work = pipeline([[[0, 1, 2]]], 1, backward_time=[0.0])
    noise = Noise("gamma", 0.7)
    jitter = Jitter(compute=noise, per="pass")
    times = jittered_times(switch(3), work, COMPILED, jitter, range(RUNS))
    assert_quantiles(times, lambda x: noise.cdf(x) ** 3)


def test_devices_that_are_slow_for_a_step_cost_the_largest_of_all():
    d, t, m, cv = 4, 2, 5, 0.1
    devices = np.arange(d * t).reshape(1, d, t)
    work = pipeline(devices, m, optimizer_time=[3.0])
    jitter = Jitter(compute=Noise("normal", cv), per="step", seed=2)
    times = jittered_times(switch(d * t), work, COMPILED, jitter, range(RUNS))
    n = d * t

    def density(z):
        return z * n * stats.norm.cdf(z) ** (n - 1) * stats.norm.pdf(z)

    largest = integrate.quad(density, -10.0, 10.0)[0]
    expected = (2 * m + 3.0) * (1.0 + cv * largest)
    assert times.mean() == pytest.approx(
        expected, abs=4 * times.std() / math.sqrt(times.size)
    )
    assert_quantiles(
        times, lambda x: stats.norm.cdf((x / (2 * m + 3.0) - 1.0) / cv) ** n
    )


@failures.over("num_ranks", [1, 4])
def test_operators_average_over_the_segments_of_a_pass(num_ranks):
    segments, noise = 6, Noise("exponential", 1.0)
    work = pipeline(
        [[[*range(num_ranks)]]],
        1,
        backward_time=[0.0],
        segments={FORWARD: np.array([segments]), BACKWARD: np.array([segments])},
    )
    jitter = Jitter(compute=noise, per="operator")
    times = jittered_times(switch(num_ranks), work, COMPILED, jitter, range(RUNS))
    # The largest of t exponentials is a sum of independent ones of mean 1 / i [Renyi].
    parts = 1.0 / np.arange(1, num_ranks + 1)
    error = times.std() / math.sqrt(times.size)
    assert times.mean() == pytest.approx(parts.sum(), abs=4 * error)
    variance = (parts**2).sum() / segments
    assert times.var() == pytest.approx(variance, rel=0.15)
    if num_ranks == 1:
        assert_quantiles(
            times, lambda x: stats.gamma.cdf(x, segments, scale=1 / segments)
        )


def test_communication_inside_of_passes_is_not_stretched():
    work = pipeline(
        [[[0]]],
        4,
        sent_time={FORWARD: np.array([0.25]), BACKWARD: np.array([0.5])},
        slowdown=[[2.0]],
    )
    plain = replay(switch(1), work).iteration_time
    assert plain == 4 * (2 * 0.75 + 0.25 + 2 * 0.5 + 0.5)
    jitter = Jitter(compute=Noise("uniform", 0.3), per="step")
    done = jittered_replay(switch(1), work, AUTO, jitter, 0)
    spans = done.spans
    lengths = spans.end - spans.start
    forward, backward = (
        lengths[spans.kind == SPAN_KINDS.index(kind)]
        for kind in ("forward", "backward")
    )
    factor = (forward[0] - 0.25) / 1.5
    assert factor != 1.0
    assert forward == pytest.approx(0.25 + 1.5 * factor)
    assert backward == pytest.approx(0.5 + 1.0 * factor)


def test_two_stages_wait_for_two_delays_a_step():
    # One microbatch: forward, delay, forward, backward, delay, backward.
    work = pipeline([[[0]], [[1]]], 1, boundary_bytes=[1e6])
    net = full_mesh(2, latency=1e-3)
    plain = replay(net, work).iteration_time
    jitter = Jitter(links=Delay("gamma", 0.05, 0.8), seed=3)
    times = jittered_times(net, work, COMPILED, jitter, range(RUNS))
    extra = times - plain
    error = extra.std() / math.sqrt(extra.size)
    assert extra.mean() == pytest.approx(0.1, abs=4 * error)
    shape = 2 / 0.8**2
    assert_quantiles(extra, lambda x: stats.gamma.cdf(x, shape, scale=0.1 / shape))


def test_a_chain_of_two_stages_hides_delays_behind_microbatches():
    # Constant delays are latency: the bits of a network that has so much more.
    m, delay = 6, 2.0**-6
    work = pipeline([[[0]], [[1]]], m, boundary_bytes=[1e6])
    jitter = Jitter(links=Delay("gamma", delay, 0.0))
    times = jittered_times(full_mesh(2), work, AUTO, jitter, range(2))
    longer = replay(full_mesh(2, latency=delay), work).iteration_time
    assert times.tolist() == [longer, longer]


@settings(max_examples=25)
@given(data=st.data())
def test_larger_delays_never_make_a_step_faster(data):
    schedule = data.draw(st.sampled_from(sorted(SCHEDULES)))
    p, m, v = data.draw(step_sizes(schedule, most_stages=4))
    devices = np.arange(2 * p).reshape(p, 2, 1)
    work = pipeline(
        devices,
        m,
        num_chunks=v,
        schedule=schedule,
        boundary_bytes=[1e6] * (v * p - 1),
        weight_time=[0.5] * (v * p),
    )
    # Every pair of devices has a link of its own.
    net = full_mesh(2 * p, latency=1e-6)
    small = Delay("lognormal", data.draw(st.floats(1e-6, 1.0)), 1.0)
    large = replace(small, mean=small.mean * data.draw(st.floats(1.0, 10.0)))
    seed = data.draw(st.integers(0, 1000))
    noise = Noise("gamma", 0.3)
    fast, slow = (
        jittered_times(
            net, work, AUTO, Jitter(compute=noise, links=one, seed=seed), range(3)
        )
        for one in (small, large)
    )
    assert (slow >= fast).all()


def test_moves_of_a_pass_have_factors_of_their_own():
    # Three moves around collectives of two ranks that take no time.
    traffic = LockstepTraffic(
        "tensor",
        np.array([0]),
        (LockstepRingPhase(np.array([[0, 1]]), np.array([0]), 0.0, 0),),
    )
    moves = (
        Move(NONE, 0.25, 0),
        Move(0, 0.25, 0),
        Move(0, 0.5, NONE),
    )
    layers = LayerTraffic(
        collectives=((traffic,),),
        passes={FORWARD: (moves,), BACKWARD: ((Move(NONE, 0.0, NONE),),)},
    )
    work = pipeline([[[0, 1]]], 1, backward_time=[0.0], layers=layers)
    jitter = Jitter(compute=Noise("exponential", 1.0), per="operator")
    times = jittered_times(switch(2), work, COMPILED, jitter, range(RUNS))
    error = times.std() / math.sqrt(times.size)
    assert times.mean() == pytest.approx(1.5, abs=4 * error)
    # The largest of two exponentials has the variance 1 + 1 / 4.
    variance = 1.25 * (0.25**2 + 0.25**2 + 0.5**2)
    assert times.var() == pytest.approx(variance, rel=0.15)
    # Each has the next draw of its actor.
    model = JitteredModel.of(switch(2), work, jitter)
    u = uniforms(0, 3, 0, np.array([0]), np.array([3]))
    factors = jitter.compute.slowest(u, 2)
    expected = factors @ [0.25, 0.25, 0.5]
    assert simulate(model.run(3)).end == pytest.approx(expected, abs=1e-11)


def test_buckets_in_a_pass_divide_its_segments():
    # The gradients of three quarters of the pass are reduced behind the last quarter.
    bucket = Bucket(0, 0.75, (RingPhase(np.array([[0, 1]]), 0.0, 0),))
    work = pipeline(
        [[[0], [1]]],
        1,
        forward_time=[0.0],
        reduce_buckets=((bucket,),),
        segments={BACKWARD: np.array([8])},
    )
    jitter = Jitter(compute=Noise("gamma", 0.5), per="operator")
    model = JitteredModel.of(switch(2), work, jitter)
    assert model.timing.num_draws.tolist() == [6, 2, 6, 2]
    alone = JitteredModel.of(switch(2), replace(work, segments={}), jitter)
    assert alone.timing.num_draws.tolist() == [1, 1, 1, 1]


def test_signals_and_messages_that_stay_on_a_device_are_not_late():
    bucket = Bucket(0, 0.5, (RingPhase(np.array([[0, 1]]), 1.0, 2),))
    work = pipeline([[[0], [1]]], 2, reduce_buckets=((bucket,),))
    jitter = Jitter(links=Delay("gamma", 2.0, 0.0))
    model = JitteredModel.of(full_mesh(2), work, jitter)
    (late,) = model.channels
    assert TRANSFER_KINDS[model.model.flows.kind[late]] == "reduce"
    # One phase of a collective is one message, however many rounds it has.
    system = model.run(0)
    assert system.delays.sum() == 2.0
    plain = replay(full_mesh(2), work).iteration_time
    assert simulate(system).end == pytest.approx(max(plain, 3.5 + 2.0), abs=1e-9)


def test_very_long_runs_get_a_coarser_clock():
    work = pipeline([[[0]]], 2, forward_time=[5e3], backward_time=[1.0])
    jitter = Jitter(compute=Noise("gamma", 1.5), links=Delay("gamma", 1.0, 1.0))
    model = JitteredModel.of(switch(1), work, jitter)
    systems = [model.run(number) for number in range(20)]
    assert all(one.tick >= TICK for one in systems)
    for one in systems:
        end = simulate_compiled(one).end
        assert end / one.tick < 2.0**53
        assert_same(simulate(one), simulate_compiled(one))
