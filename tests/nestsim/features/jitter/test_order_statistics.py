"""The slowest of many, against closed forms, quadrature of another kind, and draws."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from nestsim.features.jitter.order_statistics import (
    CONFIDENCE,
    Corrected,
    Moments,
    PearsonThree,
    Slowest,
    Variate,
    moments,
    quantiles,
    sample_quantile,
    slowest_of,
    weighted_sum,
)
from nestsim.simulator.noise import Noise
from tests import failures

NOISES = [
    Noise("normal", 0.03),
    Noise("normal", 0.7),
    Noise("lognormal", 0.03),
    Noise("lognormal", 0.5),
    Noise("gamma", 0.3),
    Noise("exponential", 0.2),
    Noise("uniform", 0.3),
]


def names(noise: Noise) -> str:
    return f"{noise.distribution} {noise.cv}"


@failures.over("num", [1, 2, 16, 1000])
def test_the_slowest_of_exponentials_is_a_harmonic_number(num: int) -> None:
    found = moments(slowest_of(Noise("exponential", 1.0), num))
    places = range(1, num + 1)
    assert found.mean == pytest.approx(sum(1 / k for k in places), rel=1e-12)
    assert found.variance == pytest.approx(sum(1 / k**2 for k in places), rel=1e-10)


@pytest.mark.parametrize("num", [1, 7, 500])
def test_the_slowest_of_uniforms_is_a_beta_variate(num: int) -> None:
    cv = 0.2
    low, width = 1 - math.sqrt(3) * cv, 2 * math.sqrt(3) * cv
    beta = stats.beta(num, 1)
    mean, variance, skewness, excess = beta.stats(moments="mvsk")
    found = moments(slowest_of(Noise("uniform", cv), num))
    expected = Moments(low + width * mean, width**2 * variance, skewness, excess)
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_slowest_of_normals_is_that_of_the_tables() -> None:
    # Harter, "Expected values of normal order statistics", Biometrika 48, 1961,
    # table 1: the largest of 2, 10 and 100 standard normal variates.
    cv = 0.01
    for num, expected in ((2, 0.56419), (10, 1.53875), (100, 2.50759)):
        found = moments(slowest_of(Noise("normal", cv), num)).mean
        assert (found - 1) / cv == pytest.approx(expected, abs=5e-6)


@failures.over("noise", NOISES, ids=names)
@failures.over("num", [1, 8, 1024, 100_000])
def test_means_are_integrals_of_one_less_the_distribution_of_the_largest(
    noise: Noise, num: int
) -> None:
    slowest = slowest_of(noise, num)
    tails = [num / 2, 30.0, 5.0, 0.5, 0.9, 1e-3, 1e-6, 1e-9, 1e-12]
    points = sorted(float(noise.exceeded(tail / num)) for tail in tails if tail < num)
    borders = [0.0, *points, 2 * points[-1]]
    expected = sum(
        integrate.quad(lambda x: 1.0 - float(noise.cdf(x)) ** num, a, b, limit=200)[0]
        for a, b in itertools.pairwise(borders)
    )
    assert moments(slowest).mean == pytest.approx(expected, rel=1e-7)


@failures.over("noise", NOISES, ids=names)
def test_means_and_deviations_of_noise_are_what_it_says(noise: Noise) -> None:
    found = moments(noise)
    assert found.mean == pytest.approx(1.0, rel=1e-9)
    assert found.variance == pytest.approx(noise.variance, rel=1e-7)


@failures.over("noise", NOISES, ids=names)
def test_quantiles_are_those_of_the_distribution(noise: Noise) -> None:
    shares = np.array([0.01, 0.5, 0.95, 0.99])
    assert quantiles(noise, shares) == pytest.approx(noise.ppf(shares), rel=1e-9)
    largest = quantiles(slowest_of(noise, 100), shares)
    assert largest == pytest.approx(noise.ppf(shares**0.01), rel=1e-9)


@given(num=st.integers(1, 10_000), more=st.integers(0, 10_000), at=st.integers(0, 6))
@settings(max_examples=20)
def test_more_of_them_are_never_faster(num: int, more: int, at: int) -> None:
    noise = NOISES[at]
    few, many = (moments(slowest_of(noise, n)).mean for n in (num, num + more))
    assert few <= many * (1 + 1e-12)


def test_what_never_varies_is_its_mean() -> None:
    assert moments(Noise("gamma", 0.0)) == (1.0, 0.0, 0.0, 0.0)
    both = Slowest(((Noise("gamma", 0.0), 3.0), (PearsonThree(2.0, 0.0, 0.0), 1.0)))
    assert both.moments.mean == 2.0


@pytest.mark.parametrize("count", [2, 10, 500])
def test_sums_of_gamma_and_shifted_exponential_variates_are_exact(count: int) -> None:
    cv, weight = 0.4, 0.25
    x = weight * np.linspace(0.2 * count, 2.5 * count, 200)
    scale = weight * cv**2
    for noise, exact in (
        (Noise("gamma", cv), stats.gamma(count / cv**2, scale=scale)),
        (
            Noise("exponential", cv),
            stats.gamma(count, weight * count * (1 - cv), weight * cv),
        ),
    ):
        found = weighted_sum([(noise, weight, count)])
        assert found.left_out == 0.0
        assert found.variate.cdf(x) == pytest.approx(exact.cdf(x), abs=1e-9)


@failures.over("noise", NOISES, ids=names)
def test_the_term_that_a_sum_leaves_out_is_the_error_of_its_distribution(
    noise: Noise,
) -> None:
    terms: list[tuple[Variate, float, int]] = [(noise, 1.0, 6), (noise, 2.5, 6)]
    found = weighted_sum(terms)
    rng = np.random.default_rng(1)
    size = 400_000
    drawn = sum(
        weight * noise.draw(rng, count * size).reshape(count, size).sum(axis=0)
        for _, weight, count in terms
    )
    assert isinstance(drawn, np.ndarray)
    x = np.quantile(drawn, np.linspace(0.02, 0.999, 40))
    empirical = np.searchsorted(np.sort(drawn), x, side="right") / size
    noise_of_draws = 5 * 0.5 / math.sqrt(size)
    error = np.abs(found.variate.cdf(x) - empirical).max()
    left_out = 0.0
    if found.left_out:
        corrected = Corrected(found).cdf(x)
        left_out = np.abs(corrected - found.variate.cdf(x)).max()
    assert error <= left_out + noise_of_draws
    assert left_out < 0.02


def test_a_reflected_gamma_and_the_normal_between_them_join() -> None:
    x = np.linspace(-3.0, 3.0, 31)
    for skewness in (2e-4, -2e-4):
        beside = PearsonThree(0.0, 1.0, skewness * 0.4).cdf(x)
        assert PearsonThree(0.0, 1.0, skewness).cdf(x) == pytest.approx(
            stats.pearson3(skewness).cdf(x), abs=1e-9
        )
        assert beside == pytest.approx(stats.norm().cdf(x), abs=2e-5)
    negative = PearsonThree(1.0, 4.0, -1.5).cdf(x)
    assert negative == pytest.approx(stats.pearson3(-1.5, 1.0, 2.0).cdf(x), abs=1e-12)


@failures.over("size", [20, 100, 1000])
@failures.over("share", [0.5, 0.95, 0.99])
def test_bands_hold_the_quantile_as_often_as_they_say_whatever_the_distribution(
    size: int, share: float
) -> None:
    band = sample_quantile(np.arange(1.0, size + 1.0), share)
    below = stats.binom(size, share)
    least = 0.0 if band.low is None else below.cdf(band.low - 1)
    most = 0.0 if band.high is None else below.sf(band.high - 1)
    assert max(least, most) <= (1 - CONFIDENCE) / 2
    if band.low is not None:
        assert below.cdf(band.low) > (1 - CONFIDENCE) / 2
    if band.high is not None:
        assert below.sf(band.high - 2) > (1 - CONFIDENCE) / 2
    assert band.value == math.ceil(share * size - 1e-9)
    assert (band.high is None) == (share**size > (1 - CONFIDENCE) / 2)
