"""Published jobs, predicted from the failures of other clusters."""

import pytest

from tests.nestsim.features.goodput.published_jobs import published_jobs

BAND = 0.04
"""Most that a prediction may be off."""

ABOVE_ITS_BOUND = {"Meta's RSC-1, jobs of 2,048 to 4,096"}
"""Jobs of which only "more than" is published, and which are predicted well above."""

MISSED = {"BLOOM 176B", "OPT-175B"}
"""Jobs that were stopped for hours by bugs and by hand, which no source counts."""


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    return {job.name: job.predicted() - job.published for job in published_jobs()}


def test_no_job_is_predicted_from_its_own_failures() -> None:
    own = {"Llama 3": "llama3", "Meta's RSC-1": "meta-rsc1"}
    for job in published_jobs():
        for start, failures in own.items():
            assert not (job.name.startswith(start) and job.failures == failures)


def test_published_jobs_are_within_four_points(errors: dict[str, float]) -> None:
    """Five of eight; one is above its bound, and those that are missed are known."""
    near = {name for name, error in errors.items() if abs(error) <= BAND}
    assert len(near) >= 5
    assert errors.keys() - near == MISSED | ABOVE_ITS_BOUND
    assert all(errors[name] > 0.0 for name in MISSED | ABOVE_ITS_BOUND)
