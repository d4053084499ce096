"""How much faster sweeps are on two workers, processes or Dask's, than on one.

The points are plans of a small job and their replays. Workers of Dask have begun and
have loaded everything; processes begin with the sweep, which is part of it. Times are
those of a clock on the wall: on a machine that others use, only their ratio says
something.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from nestsim.features.sweep.axes import axis
from nestsim.features.sweep.executors.dask import DaskWorkers
from nestsim.features.sweep.executors.processes import Processes
from nestsim.features.sweep.executors.protocol import Executor
from nestsim.features.sweep.job import (
    ScenarioSweep,
    csv_text,
    run_scenario_sweep,
    scenario_sweep,
)
from nestsim.scenario import load_scenario
from tests.benchmarks.measured import tell
from tests.nestsim.features.compare.small import write
from tests.nestsim.features.sweep.dask_cluster import DaskCluster

pytestmark = pytest.mark.benchmark(group="sweep")

POINTS = 200
RUNS = 5


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[int], Executor]]:
    """Return what starts a scheduler with so many workers."""
    with ExitStack() as stack:

        def start(workers: int) -> Executor:
            folder = tmp_path / f"cluster of {workers}"
            cluster = stack.enter_context(DaskCluster(folder))
            cluster.start_workers(workers)
            return stack.enter_context(DaskWorkers(cluster.address))

        yield start


def sweep_of(folder: Path, points: int, *, plan: bool) -> ScenarioSweep:
    """Return a sweep that replays a plan, or makes one at each point."""
    scenario = load_scenario(write(folder, plan=plan))
    seeds = axis("simulation.seed", range(1, points + 1))
    return scenario_sweep(scenario, [seeds])


def measured(sweep: ScenarioSweep, executors: Sequence[Executor]) -> list[float]:
    """Return how long a sweep takes on each, after one that warms caches [s].

    Medians of runs in turn: what slows the machine for a minute slows all of them.
    """
    for executor in executors:
        run_scenario_sweep(sweep, executor=executor)
    seconds: list[list[float]] = [[] for _ in executors]
    for _ in range(RUNS):
        for taken, executor in zip(seconds, executors, strict=True):
            begun = time.perf_counter()
            run_scenario_sweep(sweep, executor=executor)
            taken.append(time.perf_counter() - begun)
    return [statistics.median(taken) for taken in seconds]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_two_workers_do_1_7_times_as_much_as_one(
    kind: str, tmp_path: Path, cluster: Callable[[int], Executor]
) -> None:
    start = Processes if kind == "processes" else cluster
    sweep = sweep_of(tmp_path, POINTS, plan=False)
    one, two = measured(sweep, [start(workers) for workers in (1, 2)])
    tell(f"{kind}: {POINTS} points {one:.2f} s and {two:.2f} s: {one / two:.2f} times")
    assert one / two >= 1.7


@pytest.mark.timeout(1800)
def test_1000_points_on_two_dask_workers_have_the_bytes_of_one_process(
    tmp_path: Path, cluster: Callable[[int], Executor]
) -> None:
    sweep, stored = sweep_of(tmp_path, 1000, plan=True), []
    for name, executor in (("here", Processes(1)), ("there", cluster(2))):
        folder = tmp_path / name
        folder.mkdir()
        begun = time.perf_counter()
        result = run_scenario_sweep(sweep, folder, executor=executor)
        tell(f"{name}: 1,000 points in {time.perf_counter() - begun:.1f} s")
        stored.append(result)
    assert len(stored[0].outcomes) == 1000
    assert stored[0] == stored[1]
    assert csv_text(stored[0].outcomes) == csv_text(stored[1].outcomes)
