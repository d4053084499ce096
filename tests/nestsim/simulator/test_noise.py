import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from nestsim.simulator.kernels.jitter import uniforms
from nestsim.simulator.noise import DISTRIBUTIONS, Delay, Jitter, Noise
from tests import failures
from topologies.errors import InputError

whole = st.integers(0, 2**63 - 1)
CASES = [
    (name, cv)
    for name, family in DISTRIBUTIONS.items()
    for cv in (1e-4, 0.01, 0.12, 0.3, 0.57, 0.75, 1.0, 3.0)
    if cv <= family.highest
]


@given(whole, whole, whole, whole, st.integers(0, 40))
def test_uniform_numbers_are_those_of_numpys_philox(seed, run, purpose, owner, count):
    ours = uniforms(seed, run, purpose, np.array([owner]), np.array([count]))
    key = np.array([seed, run], np.uint64)
    counter = np.array([0, owner, purpose, 0], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(count)
    theirs = ((words >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52
    assert ours.tolist() == theirs.tolist()


def test_what_an_owner_draws_does_not_depend_on_the_others():
    owners, counts = np.array([7, 3, 2**40]), np.array([5, 0, 9])
    together = uniforms(1, 2, 3, owners, counts)
    alone = [uniforms(1, 2, 3, owners[k : k + 1], counts[k : k + 1]) for k in (0, 1, 2)]
    assert together.tolist() == np.concatenate(alone).tolist()
    reverse = uniforms(1, 2, 3, owners[::-1].copy(), counts[::-1].copy())
    assert reverse[:9].tolist() == alone[2].tolist()


@failures.over(("name", "cv"), CASES)
def test_distributions_have_the_mean_and_variance_that_they_say(name, cv):
    noise = Noise(name, cv)
    # Moments are integrals of the quantile: over log q, for the upper tail.
    moments = [
        integrate.quad(
            lambda y, k=k: (
                (float(noise.exceeded(math.exp(-y))) - 1.0) ** k * math.exp(-y)
            ),
            0.0,
            100.0,
            limit=500,
            points=[1e-6, 1e-3, 0.1, 1.0, 5.0, 20.0],
        )[0]
        for k in (1, 2)
    ]
    assert noise.mean == 1.0
    assert moments[0] == pytest.approx(0.0, abs=1e-5 * cv)
    assert moments[1] == pytest.approx(noise.variance, rel=1e-4)


@failures.over(("name", "cv"), CASES)
def test_quantiles_invert_the_distribution_function(name, cv):
    noise = Noise(name, cv)
    q = np.array([1e-6, 0.01, 0.3, 0.5, 0.9, 0.999])
    assert np.allclose(noise.cdf(noise.ppf(q)), q, rtol=1e-9, atol=1e-12)
    assert np.allclose(noise.cdf(noise.exceeded(q)), 1.0 - q, rtol=1e-9)
    assert noise.cdf(-0.1) == 0.0
    assert (noise.ppf(q) >= 0.0).all()


def test_distributions_are_those_of_scipy():
    x = np.linspace(0.01, 4.0, 50)
    assert np.allclose(Noise("gamma", 0.5).cdf(x), stats.gamma.cdf(x, 4.0, scale=0.25))
    sigma = math.sqrt(math.log(1.25))
    assert np.allclose(
        Noise("lognormal", 0.5).cdf(x),
        stats.lognorm.cdf(x, sigma, scale=math.exp(-sigma * sigma / 2)),
    )
    assert np.allclose(
        Noise("exponential", 0.5).cdf(x), stats.expon.cdf(x, loc=0.5, scale=0.5)
    )
    # The half-normal is where the truncated normal ends.
    highest = DISTRIBUTIONS["normal"].highest
    assert np.allclose(
        Noise("normal", highest).cdf(x),
        stats.halfnorm.cdf(x, scale=math.sqrt(math.pi / 2)),
    )
    small = np.linspace(0.7, 1.3, 50)
    assert np.allclose(Noise("normal", 0.1).cdf(small), stats.norm.cdf(small, 1, 0.1))


@failures.over("cv", [0.001, 0.01, 0.05, 0.3, 0.7, 1.0, 2.0])
def test_quantiles_of_gamma_distributions_are_scipys(cv):
    q = stats.norm.sf(np.random.default_rng(0).uniform(-8.0, 10.5, 5000))
    q = np.append(q, [0.5, 1.0])
    gamma = stats.gamma(1 / cv**2, scale=cv**2)
    # Near 1 scipy's inverse loses what 1 - q has.
    exact = np.where(q < 0.5, gamma.isf(q), gamma.ppf(1.0 - q))
    assert np.allclose(Noise("gamma", cv).exceeded(q), exact, rtol=2e-9, atol=1e-15)
    assert Noise("gamma", cv).exceeded(0.0) == math.inf


def test_gamma_distributions_that_hardly_vary_are_nearly_normal():
    # Cornish-Fisher: the score, and a third of the coefficient of variation times
    # score**2 - 1 (Abramowitz, Stegun, 26.2.49, of skewness 2 c).
    scores = np.linspace(-5.0, 5.0, 101)
    for cv in (1e-5, 9e-4):
        draws = Noise("gamma", cv).exceeded(stats.norm.sf(scores))
        expected = scores + cv / 3.0 * (scores**2 - 1.0)
        assert np.allclose((draws - 1.0) / cv, expected, atol=1e-5)


@failures.over("name", DISTRIBUTIONS)
@failures.over("num_draws", [1, 2, 8, 64])
def test_the_slowest_of_some_is_the_largest_of_so_many_draws(name, num_draws):
    noise = Noise(name, 0.3)
    u = uniforms(1, 2, 3, np.array([4]), np.array([4000]))
    slowest = noise.slowest(u, num_draws)
    assert stats.kstest(slowest, lambda x: noise.cdf(x) ** num_draws).pvalue > 0.001
    drawn = noise.draw(np.random.default_rng(1), 4000 * num_draws)
    largest = drawn.reshape(-1, num_draws).max(axis=1)
    assert stats.ks_2samp(slowest, largest).pvalue > 0.001
    # Far out, too, and never endless.
    ends = noise.slowest(np.array([2.0**-53, 1.0 - 2.0**-53]), num_draws)
    assert np.isfinite(ends).all()
    assert ends[0] >= slowest.max()


@failures.over("name", DISTRIBUTIONS)
@given(st.floats(0.0, 1e-6), st.floats(0.0, 1.0, exclude_min=True, exclude_max=True))
def test_factors_that_hardly_vary_are_near_one(name, cv, q):
    noise = Noise(name, cv)
    assert abs(float(noise.exceeded(q)) - 1.0) < 1000.0 * cv + 1e-15
    assert 0.0 <= noise.cdf(1.0) <= 1.0


def test_delays_are_factors_times_their_mean():
    delay = Delay("gamma", 5e-6, 2.0)
    q = np.array([0.1, 0.9])
    assert (delay.ppf(q) == 5e-6 * Noise("gamma", 2.0).ppf(q)).all()
    assert np.allclose(delay.cdf(delay.ppf(q)), q)
    assert delay.variance == pytest.approx(1e-10)
    rng = np.random.default_rng(0)
    assert delay.draw(rng, 20_000).mean() == pytest.approx(5e-6, rel=0.06)
    assert Delay("gamma", 0.0, 1.0).cdf(0.0) == 1.0


def test_without_variation_every_draw_is_the_mean():
    noise = Noise("normal", 0.0)
    assert noise.draw(np.random.default_rng(0), 3).tolist() == [1.0, 1.0, 1.0]
    assert noise.slowest(np.array([0.1, 0.9]), 8).tolist() == [1.0, 1.0]
    assert noise.cdf(np.array([0.999, 1.0])).tolist() == [0.0, 1.0]
    assert not Jitter(compute=noise, links=Delay("gamma", 0.0, 1.0)).varies
    assert Jitter(compute=Noise("gamma", 0.1)).varies
    assert Jitter(links=Delay("gamma", 1e-6, 0.0)).varies


@failures.over(
    ("make", "where"),
    [
        (lambda: Noise("cauchy", 0.1), "distribution"),
        (lambda: Noise("normal", 0.8), "cv"),
        (lambda: Noise("uniform", 0.6), "cv"),
        (lambda: Noise("exponential", 1.1), "cv"),
        (lambda: Noise("gamma", -0.1), "cv"),
        (lambda: Noise("gamma", math.nan), "cv"),
        (lambda: Delay("gamma", -1e-6, 0.1), "mean"),
        (lambda: Delay("gamma", math.inf, 0.1), "mean"),
        (lambda: Delay("uniform", 1e-6, 0.9), "cv"),
        (lambda: Jitter(per="epoch"), "per"),
        (lambda: Jitter(seed=-1), "seed"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, where):
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.where == where
