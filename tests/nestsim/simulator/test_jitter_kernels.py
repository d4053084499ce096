"""Moments that follow from random ones, against integrals over them."""

import numpy as np
import pytest

from nestsim.simulator.kernels.jitter import Operations, latest_cumulants

SCORES = np.linspace(-8.0, 8.0, 321)
WEIGHTS = np.exp(-0.5 * SCORES**2)
WEIGHTS /= WEIGHTS.sum()


def test_the_later_of_two_moments_is_the_larger_of_two_normal_variates() -> None:
    """Both follow a moment that they share; the means lie apart, or nearly not."""
    shared, first, second = (3.0, 0.5), (1.0, 0.25), 0.7
    # Slot 0 is the shared moment; slots 1 and 2 are what follows on it.
    operations = Operations(
        *(np.array([0, 0, 0]), np.array([0, 0, 0]), np.array([0, 1, 2])),
        ends=np.array([1, 2]),
        num_slots=3,
    )
    for ahead in (-4.0, -1.5, -0.3, 0.0, 0.8, 1.2, 2.0, 5.0):
        mean = first[0] - ahead
        cumulants = latest_cumulants(
            operations,
            np.array([shared[0], first[0], mean]),
            np.array([shared[1], first[1], second]),
            np.array([0.1, 0.2, 0.4]),
        )
        a = first[0] + first[1] ** 0.5 * SCORES[:, None]
        b = mean + second**0.5 * SCORES
        latest = np.maximum(a, b)
        expected = WEIGHTS @ latest @ WEIGHTS
        variance = WEIGHTS @ (latest - expected) ** 2 @ WEIGHTS
        is_first = WEIGHTS @ (np.sign(a - b) / 2 + 0.5) @ WEIGHTS
        assert cumulants[0] == pytest.approx(shared[0] + expected, abs=1e-4)
        assert cumulants[1] == pytest.approx(shared[1] + variance, abs=1e-4)
        assert cumulants[2] == pytest.approx(0.5 - 0.2 * is_first, abs=1e-3)


def test_moments_that_do_not_scatter_are_the_later_ones() -> None:
    operations = Operations(
        *(np.array([0, 0, 1]), np.array([0, 0, 2]), np.array([1, 2, 1])),
        ends=np.array([1]),
        num_slots=3,
    )
    for durations in ([1.0, 2.0, 4.0], [2.0, 1.0, 4.0], [2.0, 2.0, 4.0]):
        scatter = np.zeros(3)
        cumulants = latest_cumulants(operations, np.array(durations), scatter, scatter)
        assert cumulants.tolist() == [6.0, 0.0, 0.0]
