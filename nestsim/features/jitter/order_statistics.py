"""The slowest of many: means, quantiles and bands of largest values.

A *variate* is a random number with a distribution function ``F``. The largest of ``n``
independent ones has the distribution function ``F(x)**n`` (David, Nagaraja, *Order
Statistics*, 3rd edition 2003, section 2.1), and that of several kinds the product. So
nothing is simulated here: moments are integrals over ``x``,

    E[(X - a)**k] = integral from a to infinity of k (x - a)**(k - 1) (1 - F) dx
                  - integral from -infinity to a of k (x - a)**(k - 1) F dx,

for ``a = 0`` and ``k = 1`` that of ``1 - F**n``. Gauss-Legendre quadrature takes them
between quantiles, so that neither a narrow distribution nor a long tail is missed.

A sum of independent variates has the sum of their cumulants; its distribution is taken
to be the Pearson type III (a shifted gamma distribution) of the same mean, variance and
skewness. For equal weights that is exact where one of them is a gamma or a shifted
exponential distribution. Elsewhere the first term left out of the Edgeworth series is
that of the fourth cumulant, which is the error of ``F`` in the limit of many (Johnson,
Kotz, Balakrishnan, *Continuous Univariate Distributions* volume 1, 2nd edition 1994,
sections 12.4.1 and 12.4.5).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from topologies.arrays import FloatArray


class Variate(Protocol):
    """A random number."""

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the probability that it is at most ``x``."""
        ...


class Moments(NamedTuple):
    """The first four cumulants, scaled."""

    mean: float
    variance: float

    skewness: float
    """Third central moment over the third power of the standard deviation."""

    excess: float
    """Excess kurtosis: fourth central moment over the variance's square, less 3."""


_BORDERS = np.array(
    [
        *(10.0**-power for power in range(15, 1, -1)),
        *(0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95),
        *(1.0 - 10.0**-power for power in range(2, 16)),
    ]
)
"""Probabilities between whose quantiles is integrated."""

_BISECTIONS = 120
"""Halvings of a bracket: more than a float64 has bits."""


@lru_cache(maxsize=1)
def _nodes() -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights of a Gauss-Legendre rule on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    return (nodes + 1.0) / 2.0, weights / 2.0


def quantiles(variate: Variate, probabilities: FloatArray) -> FloatArray:
    """Return the smallest values that are not exceeded with some probabilities.

    By bisection, to the last bits.

    Parameters
    ----------
    variate
        Not below 0.
    probabilities
        Inside of (0, 1).
    """
    low = np.zeros_like(probabilities)
    high = np.ones_like(probabilities)
    while (short := variate.cdf(high) < probabilities).any():
        low = np.where(short, high, low)
        high = np.where(short, 2.0 * high, high)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        short = variate.cdf(middle) < probabilities
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return high


def moments(variate: Variate) -> Moments:
    """Return mean, variance, skewness and excess kurtosis of what is not below 0."""
    borders = np.unique(quantiles(variate, _BORDERS))
    start = float(borders[0])
    if borders.size == 1:
        return Moments(start, 0.0, 0.0, 0.0)
    x, mass = _rule(borders)
    mean = start + float((mass * (1.0 - variate.cdf(x))).sum())
    # Around the mean, so that nothing cancels: below it F counts, above it 1 - F.
    x, mass = _rule(np.unique([*borders, mean]))
    side = np.where(x > mean, 1.0, 0.0) - variate.cdf(x)
    central = [
        math.fsum((mass * power * (x - mean) ** (power - 1) * side).ravel())
        for power in (2, 3, 4)
    ]
    variance = central[0]
    return Moments(
        mean,
        variance,
        central[1] / variance**1.5,
        central[2] / variance**2 - 3.0,
    )


def _rule(borders: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return where a function is looked at between borders, and how much it counts."""
    nodes, weights = _nodes()
    width = np.diff(borders)[:, None]
    return borders[:-1, None] + width * nodes, width * weights


@dataclass(frozen=True, slots=True)
class Shifted:
    """A variate, stretched and then moved."""

    of: Variate
    """What is stretched."""

    scale: float
    """Factor, more than 0."""

    offset: float
    """What is added."""

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the probability that it is at most ``x``."""
        return self.of.cdf((x - self.offset) / self.scale)


@dataclass(frozen=True)
class Slowest:
    """The largest of independent variates."""

    of: tuple[tuple[Variate, float], ...]
    """Each kind, and how many there are of it; expected numbers need not be whole."""

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the probability that all of them are at most ``x``."""
        total = np.zeros_like(x)
        with np.errstate(divide="ignore"):
            for variate, count in self.of:
                total += count * np.log(variate.cdf(x))
        return np.exp(total)

    @cached_property
    def moments(self) -> Moments:
        """Mean, variance, skewness and excess kurtosis."""
        return moments(self)


@dataclass(frozen=True, eq=False)
class Sampled:
    """A variate of some equally probable values; it need not be above 0."""

    values: FloatArray
    """The values, rising."""

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the probability that it is at most ``x``."""
        return np.searchsorted(self.values, x, side="right") / self.values.size

    @cached_property
    def moments(self) -> Moments:
        """Mean, variance, skewness and excess kurtosis."""
        mean = float(self.values.mean())
        second, third, fourth = (
            float(((self.values - mean) ** power).mean()) for power in (2, 3, 4)
        )
        if second == 0.0:
            return Moments(mean, 0.0, 0.0, 0.0)
        return Moments(mean, second, third / second**1.5, fourth / second**2 - 3.0)


def slowest_of(variate: Variate, num: float) -> Variate:
    """Return the largest of ``num`` independent variates of one kind."""
    return variate if num == 1.0 else Slowest(((variate, num),))


@dataclass(frozen=True, slots=True)
class PearsonThree:
    """A shifted gamma distribution, by its first three moments."""

    mean: float
    """Mean."""

    variance: float
    """Variance; 0 for what is always the mean."""

    skewness: float
    """Skewness; 0 for a normal distribution, below 0 for a reflected one."""

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the probability that it is at most ``x``."""
        from scipy.special import gammainc, gammaincc, ndtr

        if self.variance == 0.0:
            return np.where(x >= self.mean, 1.0, 0.0)
        z = (x - self.mean) / math.sqrt(self.variance)
        if abs(self.skewness) < _NORMAL:
            # Beside the normal one by the first term of its Edgeworth series.
            density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
            return np.asarray(ndtr(z) - self.skewness / 6.0 * (z * z - 1.0) * density)
        shape = 4.0 / self.skewness**2
        inside = np.maximum(shape + 2.0 / self.skewness * z, 0.0)
        lower = gammainc if self.skewness > 0.0 else gammaincc
        return np.asarray(lower(shape, inside))


_NORMAL = 1e-4
"""A smaller skewness is a term beside the normal distribution: shapes of gamma
distributions would be too large to be computed with."""


class Sum(NamedTuple):
    """The distribution of a sum of independent variates."""

    variate: Variate
    """The distribution."""

    left_out: float
    """Excess kurtosis of the sum, less that of the distribution; 0 if it is exact."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """A sum with the Edgeworth term of the excess kurtosis that it leaves out.

    No distribution in the strict sense: far out it may fall. It says how much there is
    to what is left out.
    """

    of: Sum
    """The sum."""

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return about the probability that it is at most ``x``."""
        plain = self.of.variate
        assert isinstance(plain, PearsonThree)
        z = (x - plain.mean) / math.sqrt(plain.variance)
        density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        term = self.of.left_out / 24.0 * (z**3 - 3.0 * z) * density
        return np.clip(plain.cdf(x) - term, 0.0, 1.0)


def weighted_sum(terms: Sequence[tuple[Variate, float, int]]) -> Sum:
    """Return the distribution of a sum of independent variates.

    Parameters
    ----------
    terms
        Variate, weight, and how many of them are added.

    Returns
    -------
    Sum
        Exact for one variate, and for any number of gamma or shifted exponential ones
        of one kind and weight.
    """
    kept = [term for term in terms if term[1] > 0.0 and term[2] > 0]
    if len(kept) == 1 and kept[0][2] == 1:
        variate, weight, _ = kept[0]
        return Sum(Shifted(variate, weight, 0.0), 0.0)
    found = [
        (
            variate.moments if isinstance(variate, Sampled) else moments(variate),
            weight,
            count,
        )
        for variate, weight, count in kept
    ]

    def total(cumulant: Callable[[Moments], float], power: int) -> float:
        return math.fsum(
            count * weight**power * cumulant(each) for each, weight, count in found
        )

    mean, variance = total(lambda m: m.mean, 1), total(lambda m: m.variance, 2)
    if variance == 0.0:
        return Sum(PearsonThree(mean, 0.0, 0.0), 0.0)
    skewness = total(lambda m: m.skewness * m.variance**1.5, 3) / variance**1.5
    excess = total(lambda m: m.excess * m.variance**2, 4) / variance**2
    # Of a Pearson type III distribution it is 1.5 times the squared skewness.
    left_out = excess - 1.5 * skewness**2
    if abs(left_out) < _ROUNDING:
        left_out = 0.0
    return Sum(PearsonThree(mean, variance, skewness), left_out)


_ROUNDING = 1e-9
"""An excess kurtosis below it is rounding."""


class QuantileBand(NamedTuple):
    """A quantile of a sample, and where that of all steps lies."""

    share: float
    """The quantile's probability."""

    value: float
    """The smallest value of the sample that so many do not exceed."""

    low: float | None
    """Lower end; None where the sample is too small for one."""

    high: float | None
    """Upper end; None where the sample is too small for one."""


CONFIDENCE = 0.95
"""Probability that a band holds the quantile, at least."""


def sample_quantile(ordered: FloatArray, share: float) -> QuantileBand:
    """Return a quantile of a sample with a band that supposes no distribution.

    The number of values below a quantile is binomial, so that two order statistics
    enclose it with a probability that depends on nothing else (David, Nagaraja, as
    above, section 7.1). Either side is left out with half of the rest at most.

    Parameters
    ----------
    ordered
        The sample, rising.
    share
        The quantile's probability, inside of (0, 1).
    """
    from scipy.special import bdtr

    size = ordered.size
    below = bdtr(np.arange(size, dtype=np.float64), size, share)
    rest = (1.0 - CONFIDENCE) / 2.0
    # P(at most k - 1 below) <= rest: the k-th smallest is still a lower end.
    low = int(np.searchsorted(below, rest, side="right"))
    # P(at least k below) <= rest: the k-th smallest is an upper end.
    high = int(np.searchsorted(below, 1.0 - rest, side="left")) + 1
    place = min(max(math.ceil(share * size - 1e-9), 1), size)
    return QuantileBand(
        share=share,
        value=float(ordered[place - 1]),
        low=float(ordered[low - 1]) if low > 0 else None,
        high=float(ordered[high - 1]) if high <= size else None,
    )
