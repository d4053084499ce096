"""How much longer or shorter things take from one training step to the next.

A *factor* on compute has the mean 1, so that durations stay what they are on average;
an extra *delay* of a message is never negative. Both are given by a distribution and
its coefficient of variation ``c``, the standard deviation over the mean:

- ``"normal"``: a normal distribution truncated at 0, up to the half-normal, ``c =
  0.7555`` (Johnson, Kotz, Balakrishnan, *Continuous Univariate Distributions*, volume
  1, 2nd edition, Wiley 1994, chapter 13). With ``a`` deviations ``s`` from 0 to the
  parent's mode and ``h = phi(a) / Phi(a)`` its mean is ``s (a + h)`` and its variance
  ``s**2 (1 - a h - h**2)``; both are solved for mean 1 and variance ``c**2``.
- ``"lognormal"``: ``exp(N(-v / 2, v))`` with ``v = ln(1 + c**2)`` (same, chapter 14).
- ``"gamma"``: shape ``1 / c**2``, scale ``c**2`` (same, chapter 17).
- ``"exponential"``: ``1 - c + c E``, where ``E`` is exponential of mean 1: shifted, as
  stragglers are modelled (Lee, Lam, Pedarsani, Papailiopoulos, Ramchandran, "Speeding
  up distributed machine learning using codes", IEEE Trans. Inf. Theory 64(3) 2018,
  section III); ``c <= 1``, and 1 is the plain exponential.
- ``"uniform"``: from ``1 - sqrt(3) c`` to ``1 + sqrt(3) c``; ``c <= 1 / sqrt(3)``.

The slowest of ``t`` independent draws has the distribution function ``F(x)**t``; so one
uniform number ``u`` gives it exactly, as the quantile of ``u**(1 / t)``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError


class _Family(NamedTuple):
    """Distributions of mean 1, one for each positive coefficient of variation."""

    highest: float
    """The largest coefficient of variation."""

    cdf: Callable[[float, FloatArray], FloatArray]
    """Probability that a draw is at most ``x``."""

    exceeded: Callable[[float, FloatArray], FloatArray]
    """The value that a draw exceeds with probability ``q``."""


@cache
def _truncation(cv: float) -> tuple[float, float]:
    """Return how far 0 is below the parent's mode, and the parent's deviation."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    def moments(a: float) -> tuple[float, float]:
        hazard = math.exp(-a * a / 2) / math.sqrt(2 * math.pi) / float(ndtr(a))
        return a + hazard, 1.0 - a * hazard - hazard * hazard

    def excess(a: float) -> float:
        mean, variance = moments(a)
        return math.sqrt(variance) / mean - cv

    # Beyond nine standard deviations nothing is cut off that a float64 would notice.
    a = 1.0 / cv
    if a < 9.0:
        a = 0.0 if excess(0.0) <= 0.0 else float(brentq(excess, 0.0, a, xtol=1e-15))
    return a, 1.0 / moments(a)[0]


def _normal_cdf(cv: float, x: FloatArray) -> FloatArray:
    from scipy.special import ndtr

    a, s = _truncation(cv)
    below, above = ndtr(-a), ndtr(a)
    return np.where(x < 0.0, 0.0, (ndtr(x / s - a) - below) / above)


def _normal_exceeded(cv: float, q: FloatArray) -> FloatArray:
    from scipy.special import ndtr, ndtri

    a, s = _truncation(cv)
    return np.maximum(0.0, s * (a - ndtri(q * ndtr(a))))


def _lognormal_cdf(cv: float, x: FloatArray) -> FloatArray:
    from scipy.special import ndtr

    variance = math.log1p(cv * cv)
    with np.errstate(divide="ignore"):
        logarithm = np.log(np.maximum(x, 0.0))
    return np.asarray(ndtr((logarithm + variance / 2) / math.sqrt(variance)))


def _lognormal_exceeded(cv: float, q: FloatArray) -> FloatArray:
    from scipy.special import ndtri

    variance = math.log1p(cv * cv)
    return np.asarray(np.exp(-variance / 2 - math.sqrt(variance) * ndtri(q)))


_SCORES = np.linspace(-9.0, 10.0, 1901)
"""Normal scores between which quantiles of gamma distributions are interpolated."""

_NARROW = 1e-3
"""Coefficient of variation of gamma distributions below which Wilson and Hilferty are
right to 1e-6 of it, and scipy's incomplete gamma functions are not."""


def _gamma_cdf(cv: float, x: FloatArray) -> FloatArray:
    from scipy.special import gammainc, ndtr

    if cv < _NARROW:
        score = (np.cbrt(x) - 1.0 + cv * cv / 9.0) * (3.0 / cv)
        return np.asarray(ndtr(score))
    shape = 1.0 / (cv * cv)
    return np.asarray(gammainc(shape, np.maximum(x, 0.0) * shape))


@cache
def _gamma_cubics(cv: float) -> FloatArray:
    """Return cubics of the cube root of a draw, by score, shape ``(4, scores - 1)``."""
    from scipy.interpolate import CubicSpline
    from scipy.special import gammainccinv, gammaincinv, ndtr

    shape = 1.0 / (cv * cv)
    below, above = _SCORES[_SCORES < 0.0], _SCORES[_SCORES >= 0.0]
    draws = np.concatenate(
        (gammaincinv(shape, ndtr(below)), gammainccinv(shape, ndtr(-above)))
    )
    return np.ascontiguousarray(CubicSpline(_SCORES, np.cbrt(draws / shape)).c)


def _gamma_exceeded(cv: float, q: FloatArray) -> FloatArray:
    """Return quantiles; their cube roots are nearly normal scores themselves.

    (Wilson, Hilferty, "The distribution of chi-square", PNAS 17(12) 1931.) So up to the
    variation of the exponential they are interpolated, right to 1e-9 at a tenth of the
    price. Which way is taken depends on nothing but the values.
    """
    from scipy.special import gammainccinv, ndtri

    score = -ndtri(q)
    if cv < _NARROW:
        root = 1.0 - cv * cv / 9.0 + cv / 3.0 * score
        return np.asarray(root * root * root)
    shape = 1.0 / (cv * cv)
    if cv > 1.0:
        return np.asarray(gammainccinv(shape, q) / shape)
    is_inside = (score >= _SCORES[0]) & (score < _SCORES[-1])
    score = np.where(is_inside, score, 0.0)
    width = (_SCORES[-1] - _SCORES[0]) / (_SCORES.size - 1)
    place = ((score - _SCORES[0]) / width).astype(np.int64)
    place = np.minimum(place, _SCORES.size - 2)
    a, b, c, d = _gamma_cubics(cv)
    rest = score - _SCORES[place]
    root = ((a[place] * rest + b[place]) * rest + c[place]) * rest + d[place]
    exceeded = root * root * root
    if not is_inside.all():
        exceeded = np.where(is_inside, exceeded, gammainccinv(shape, q) / shape)
    return np.asarray(exceeded)


def _exponential_cdf(cv: float, x: FloatArray) -> FloatArray:
    return -np.expm1(-np.maximum(0.0, (x - (1.0 - cv)) / cv))


def _exponential_exceeded(cv: float, q: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return 1.0 - cv - cv * np.log(q)


_HALF_WIDTH = math.sqrt(3.0)
"""Half of a uniform distribution's width over its standard deviation."""


def _uniform_cdf(cv: float, x: FloatArray) -> FloatArray:
    return np.clip(0.5 + (x - 1.0) / (2.0 * _HALF_WIDTH * cv), 0.0, 1.0)


def _uniform_exceeded(cv: float, q: FloatArray) -> FloatArray:
    return np.maximum(0.0, 1.0 + _HALF_WIDTH * cv * (1.0 - 2.0 * q))


DISTRIBUTIONS: Mapping[str, _Family] = MappingProxyType(
    {
        "normal": _Family(math.sqrt(math.pi / 2 - 1), _normal_cdf, _normal_exceeded),
        "lognormal": _Family(10.0, _lognormal_cdf, _lognormal_exceeded),
        "gamma": _Family(10.0, _gamma_cdf, _gamma_exceeded),
        "exponential": _Family(1.0, _exponential_cdf, _exponential_exceeded),
        "uniform": _Family(1.0 / _HALF_WIDTH, _uniform_cdf, _uniform_exceeded),
    }
)
"""Name -> distributions."""


_LEAST = 2.0**-53
"""Coefficient of variation below which factors are 1."""


class _Draws:
    """What all records of a distribution, a mean and a variation answer."""

    __slots__ = ()

    distribution: str
    mean: float
    cv: float

    def _check(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            names = ", ".join(f'"{name}"' for name in DISTRIBUTIONS)
            raise InputError(
                "no such distribution",
                where="distribution",
                got=self.distribution,
                expected=names,
            )
        highest = DISTRIBUTIONS[self.distribution].highest
        if not 0.0 <= self.cv <= highest:
            raise InputError(
                f"no {self.distribution} distribution above 0 varies like this",
                where="cv",
                got=self.cv,
                expected=f"0 to {math.floor(highest * 1e4) / 1e4:g}, e.g. 0.05",
            )

    @property
    def _scatters(self) -> bool:
        """Whether a float64 can tell a draw from the mean."""
        return self.cv >= _LEAST

    @property
    def variance(self) -> float:
        """Variance of a draw, in the square of its unit."""
        return self.mean * self.mean * (self.cv * self.cv)

    def cdf(self, x: FloatArray | float) -> FloatArray:
        """Return the probability that a draw is at most ``x``."""
        values = np.asarray(x, dtype=np.float64)
        if self.mean == 0.0 or not self._scatters:
            return np.where(values >= self.mean, 1.0, 0.0)
        return DISTRIBUTIONS[self.distribution].cdf(self.cv, values / self.mean)

    def ppf(self, probability: FloatArray | float) -> FloatArray:
        """Return the value that a draw does not exceed with a probability."""
        return self.exceeded(1.0 - np.asarray(probability, dtype=np.float64))

    def exceeded(self, probability: FloatArray | float) -> FloatArray:
        """Return the value that a draw exceeds with a probability.

        More exact than `ppf` far out in the upper tail.
        """
        tail = np.asarray(probability, dtype=np.float64)
        if not self._scatters:
            return self.mean * np.ones_like(tail)
        return self.mean * DISTRIBUTIONS[self.distribution].exceeded(self.cv, tail)

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Return independent draws, shape ``(size,)``."""
        return self.exceeded(1.0 - rng.random(size))


@dataclass(frozen=True, slots=True)
class Noise(_Draws):
    """A random factor of mean 1, never negative.

    Raises
    ------
    InputError
        If there is no such distribution, or none that varies so much.
    """

    distribution: str
    """A name of `DISTRIBUTIONS`."""

    cv: float
    """Coefficient of variation, the standard deviation over the mean; with 0 the
    factor is always 1."""

    def __post_init__(self) -> None:
        self._check()

    @property
    def mean(self) -> float:  # type: ignore[override]  # no field of this record
        """Mean of the factor."""
        return 1.0

    @property
    def varies(self) -> bool:
        """Whether a float64 can tell the factor from 1."""
        return self._scatters

    def slowest(self, uniform: FloatArray, num_draws: int) -> FloatArray:
        """Return the largest of ``num_draws`` draws, for each of some uniform numbers.

        Exactly distributed so, at the price of one draw. The number is the probability
        that something still larger comes.

        Parameters
        ----------
        uniform
            Random numbers inside of (0, 1).
        num_draws
            At least 1.
        """
        if num_draws == 1:
            return self.exceeded(uniform)
        # 1 - (1 - u)**(1 / t), without cancellation.
        return self.exceeded(-np.expm1(np.log1p(-uniform) / num_draws))


@dataclass(frozen=True, slots=True)
class Delay(_Draws):
    """A random extra time of a message, never negative; draws are in seconds.

    Raises
    ------
    InputError
        If there is no such distribution, or none that varies so much.
    """

    distribution: str
    """A name of `DISTRIBUTIONS`."""

    mean: float
    """Mean of the extra time [s]."""

    cv: float
    """Coefficient of variation, the standard deviation over the mean; with 0 all
    messages take `mean` longer."""

    def __post_init__(self) -> None:
        self._check()
        if not 0.0 <= self.mean < math.inf:
            raise InputError(
                "a delay cannot be negative or endless",
                where="mean",
                got=self.mean,
                expected="a time, e.g. 5e-6 for 5 us",
            )


COMPUTE_DRAW, LINK_DRAW, SLOW_DRAW, DOCUMENT_DRAW = 0, 1, 2, 3
"""Purposes of the counted draws of a run (`nestsim.simulator.kernels.jitter`): factors
on compute, delays of messages, which devices are slow, sequences of documents or of
pictures."""


PERIODS = ("operator", "pass", "step")
"""Values of `Jitter.per`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """What differs at random from one training step to the next.

    Raises
    ------
    InputError
        If ``per`` or the seed cannot be what it is.
    """

    compute: Noise | None = None
    """Factor on the compute of each device; None for always 1."""

    per: str = "pass"
    """How long a factor lasts: ``"operator"``, drawn anew for each segment of a pass
    between two collectives; ``"pass"``, for each pass; ``"step"``, once a step."""

    links: Delay | None = None
    """Extra time of each message; None for none."""

    documents: bool = False
    """Whether each microbatch has the attention of documents that are drawn; else all
    have that of an average sequence."""

    images: bool = False
    """Whether each microbatch has pictures that are drawn; else all have as many."""

    seed: int = 0
    """Seed of all draws, below 2**63."""

    def __post_init__(self) -> None:
        if self.per not in PERIODS:
            names = ", ".join(f'"{name}"' for name in PERIODS)
            raise InputError(
                "no such period", where="per", got=self.per, expected=names
            )
        if not 0 <= self.seed < 2**63:
            raise InputError(
                "no such seed", where="seed", got=self.seed, expected="0 to 2**63 - 1"
            )

    @property
    def draws_sequences(self) -> bool:
        """Whether microbatches differ by what their sequences hold."""
        return self.documents or self.images

    @property
    def varies(self) -> bool:
        """Whether any run can differ from a replay without jitter."""
        stretches = self.compute is not None and self.compute.varies
        delays = self.links is not None and self.links.mean > 0.0
        return stretches or delays or self.draws_sequences
