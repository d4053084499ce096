"""How long the planner's named figures take, model traced and kernels compiled.

`make bench-planner` measures the same cases in a process each, with their memory.
"""

import numpy as np
import pytest

from planner.search.best_first import LEFT, search
from planner.search.space import inner_configurations
from tests.benchmarks.planner_cases import figure_cases, powers_of_two, warm_up

CASES = tuple(figure_cases())
MOST_SECONDS = 120.0
"""Where a search is cut."""


@pytest.mark.benchmark(group="planner-figures")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_search_of_a_named_figure(benchmark, case):
    search(*warm_up(case).problem(MOST_SECONDS))

    def fresh():
        return case.problem(MOST_SECONDS), {}

    result = benchmark.pedantic(search, setup=fresh, rounds=3)
    best = result.plans[0]
    benchmark.extra_info["configurations"] = result.statistics["configurations"]
    benchmark.extra_info["gap"] = 1 - result.lower_bound / best.iteration_time
    left = result.statistics.get(LEFT, 0)
    benchmark.extra_info["left"] = left
    assert left or result.lower_bound == best.iteration_time


@pytest.mark.benchmark(group="planner-figures")
def test_the_powers_of_two_are_as_many_as_they_are_said_to_be():
    case = powers_of_two()
    _, workload, spec = case.problem(None)
    inner, _ = inner_configurations(workload, spec, case.network.num_devices)
    used = np.concatenate(
        [item.degrees.tp * item.degrees.cp * item.pp * item.dp for item in inner]
    )
    choices = len(spec.recompute) * len(spec.zero_stages) * 2
    assert len(used) == 2125
    assert np.count_nonzero(used == case.network.num_devices) * choices == 1840
