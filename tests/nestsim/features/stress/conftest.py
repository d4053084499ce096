"""The result that the tests of its numbers and those of its pictures share."""

import pytest

from nestsim.features.stress.job import stress_job
from nestsim.features.stress.results import StressResult
from tests.nestsim.features.stress.clusters import CONDITIONS, small

STRESS = {
    "oversubscription": {"leaf": (2.0, 4.0, 16.0), "node": (10.0, 40.0)},
    "ecmp_seeds": (0, 1),
}


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> StressResult:
    """Return the small job under both axes, two seeds and two conditions."""
    folder = tmp_path_factory.mktemp("stress")
    return stress_job(small(folder, CONDITIONS, keep=0.8, **STRESS))
