"""How long the replay takes per instruction, compile time apart."""

import time

import numpy as np
import pytest

from nestsim.simulator.replay import replay
from planner.kernels.timeline import timeline
from planner.schedules import SCHEDULES
from tests.nestsim.simulator.cases import contended_step

# CPU seconds: other work on the machine does not count.
pytestmark = pytest.mark.benchmark(timer=time.process_time)


# A lone replica has an instant of its own for nearly every event.
@pytest.mark.parametrize(("replicas", "most"), [(1, 30e-6), (8, 15e-6), (32, 15e-6)])
def test_replay_takes_some_microseconds_per_instruction(benchmark, replicas, most):
    # 8 stages and 192 microbatches; 8 replicas are 64 actors, 24,640 instructions.
    net, work = contended_step(
        num_replicas=replicas, num_stages=8, num_microbatches=192, lanes=1
    )
    replay(net, work)
    result = benchmark.pedantic(replay, args=(net, work), rounds=5)
    instructions = result.spans.start.size
    seconds = benchmark.stats.stats.min
    benchmark.extra_info["us_per_instruction"] = seconds / instructions * 1e6
    assert seconds / instructions < most


def test_the_recurrence_takes_at_most_a_tenth_of_a_microsecond(benchmark):
    p, m = 16, 192
    program = SCHEDULES["1f1b"].program(p, m)
    stages, boundaries = np.linspace(1.0, 1.2, p), np.full(p - 1, 0.1)
    arguments = (*program, m, stages, 2 * stages, *[boundaries] * 4)
    timeline(*arguments)
    benchmark(timeline, *arguments)
    assert benchmark.stats.stats.min / program.kind.size < 1e-7
