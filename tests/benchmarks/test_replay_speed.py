"""How long the replay takes per instruction, compile time apart."""

import time

import numpy as np
import pytest

from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import replay
from planner.kernels.timeline import BoundaryTimes, InstructionLists, timeline
from planner.step.schedules import SCHEDULES
from tests.benchmarks.simulator_cases import figure_cases
from tests.nestsim.simulator.cases import contended_step

# CPU seconds: other work on the machine does not count.
pytestmark = pytest.mark.benchmark(timer=time.process_time)


# A lone replica has an instant of its own for nearly every event.
@pytest.mark.parametrize(
    ("replicas", "chunks"), [(1, 1), (8, 1), (32, 1), (1, 4), (8, 4)]
)
def test_replay_per_instruction(benchmark, replicas, chunks):
    # 8 stages and 192 passes of each kind; 8 replicas are 64 actors, 24,640
    # instructions.
    net, work = contended_step(
        num_replicas=replicas,
        num_stages=8,
        num_microbatches=192 // chunks,
        ranks=1,
        num_chunks=chunks,
    )
    replay(net, work)
    result = benchmark.pedantic(replay, args=(net, work), rounds=5)
    instructions = result.spans.start.size
    seconds = benchmark.stats.stats.median
    benchmark.extra_info["us_per_instruction"] = seconds / instructions * 1e6


@pytest.mark.parametrize(
    ("schedule", "v"),
    [("1f1b", 1), ("zb-h1", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 6)],
)
def test_recurrence_of_16_stages_and_192_microbatches(benchmark, schedule, v):
    p, m = 16, 192
    program = SCHEDULES[schedule].program(p, m, v)
    stages, boundaries = np.linspace(1.0, 1.2, v * p) / v, np.full(v * p - 1, 0.1)
    durations = np.stack([stages, 2 * stages, stages])
    lists, wires = InstructionLists(*program), BoundaryTimes(*[boundaries] * 4)
    arguments = (lists, m, durations, wires)
    timeline(*arguments)
    benchmark(timeline, *arguments)


@pytest.mark.parametrize("case", list(figure_cases()), ids=lambda case: case.name)
def test_replay_of_a_named_figure(benchmark, case):
    # `make bench-simulator` measures the same in a process each, with memory.
    network, workload, priced = case.problem()

    def whole():
        work = lower_plan(network, workload, priced, case.settings)
        return replay(network, work, case.settings)

    whole()
    result = benchmark.pedantic(whole, rounds=3)
    benchmark.extra_info["events"] = result.num_events
    benchmark.extra_info["classes"] = result.num_classes
