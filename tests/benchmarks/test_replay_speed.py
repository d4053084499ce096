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
@pytest.mark.parametrize("replicas", [1, 8, 32])
def test_replay_per_instruction(benchmark, replicas):
    # 8 stages and 192 microbatches; 8 replicas are 64 actors, 24,640 instructions.
    net, work = contended_step(
        num_replicas=replicas, num_stages=8, num_microbatches=192, lanes=1
    )
    replay(net, work)
    result = benchmark.pedantic(replay, args=(net, work), rounds=5)
    instructions = result.spans.start.size
    seconds = benchmark.stats.stats.median
    benchmark.extra_info["us_per_instruction"] = seconds / instructions * 1e6


def test_recurrence_of_16_stages_and_192_microbatches(benchmark):
    p, m = 16, 192
    program = SCHEDULES["1f1b"].program(p, m)
    stages, boundaries = np.linspace(1.0, 1.2, p), np.full(p - 1, 0.1)
    arguments = (*program, m, stages, 2 * stages, *[boundaries] * 4)
    timeline(*arguments)
    benchmark(timeline, *arguments)
