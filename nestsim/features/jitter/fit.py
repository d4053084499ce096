"""The table [jitter] that fits compute times, and ranks that are always slow.

A rank's time over the median of all ranks in that step leaves out what makes a step
longer for everybody. The median of that over the steps is how fast the rank is; what is
left over it is jitter: a lognormal factor, and steps in which a rank is slow, by a
factor of its own, if two such normal distributions of the logarithm are so much
likelier than one that the Bayesian information criterion takes them (Schwarz, Annals of
Statistics 6(2), 1978).

A rank is always slow where its median is so far above that of all, in robust standard
deviations (1.4826 times the median absolute deviation, or the error of a median where
that is larger), that of all ranks named so no more than `FALSE_SHARE` are expected to
be wrong (Benjamini and Hochberg, Journal of the Royal Statistical Society B 57(1),
1995).

Bands are those of steps drawn again with a fixed seed (bootstrap).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from nestsim.features.jitter.step_times import StepTimes
from topologies.arrays import FloatArray

FALSE_SHARE = 0.05
"""Share of the ranks that are named which may be wrong, as expected."""

NORMAL_MAD = 1.482602
"""Standard deviation over the median absolute deviation of a normal distribution."""

_MEDIAN_ERROR = math.sqrt(math.pi / 2.0)
"""Standard error of a median over that of a mean, of normal draws."""

_SHRINKS = 2.0 - math.pi / 2.0
"""Part of the variance that the median of ``n`` draws takes from each, times ``n``."""

_BINS_OF_DEVIATION = 40
"""Bins of a robust standard deviation, of logarithms that are counted."""

_MOST_BINS = 20_000

_DRAWS, _BAND = 200, (0.025, 0.975)
"""Times that steps are drawn again, and the quantiles of a band."""

_ROUNDS = 60
"""Rounds of expectation and maximisation."""


class FittedBand(NamedTuple):
    """A parameter, and from where to where it is in 95 % of drawn samples."""

    value: float
    low: float
    high: float


class SlowRank(NamedTuple):
    """A rank that is always slow."""

    rank: int
    """Its number."""

    node: str
    """Node that it is on; empty if nobody says."""

    factor: float
    """Its compute time over the median of all ranks."""

    deviations: float
    """How many robust standard deviations it is above the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JitterFit:
    """What fits compute times."""

    times: StepTimes
    """What was measured."""

    median: float
    """Median compute time [s]."""

    cv: FittedBand
    """Coefficient of variation of the lognormal factor."""

    fraction: FittedBand | None
    """Share of ranks that are slow in a step, others each time; None for none."""

    factor: FittedBand | None
    """What their time is multiplied by."""

    slow: tuple[SlowRank, ...]
    """Ranks that are always slow, the slowest first."""


class _TwoParts(NamedTuple):
    """Two normal distributions of one width; the second holds no or few draws."""

    deviation: float
    fraction: float
    shift: float


def fit_jitter(times: StepTimes) -> JitterFit:
    """Fit the table [jitter] to compute times."""
    num_ranks, num_steps = times.times.shape
    relative = times.times / np.median(times.times, axis=0)
    speeds = np.median(relative, axis=1)
    logs = np.log(relative / speeds[:, None])
    widest = NORMAL_MAD * float(np.median(np.abs(logs)))
    counts, centers = _counted(logs, widest)
    weights = np.ones(num_steps)
    fitted = _mixture(weights @ counts, centers)
    grown = math.sqrt((1 - _SHRINKS / num_ranks) * (1 - _SHRINKS / num_steps))
    rng = np.random.Generator(np.random.PCG64(0))
    drawn = [
        _mixture(
            rng.multinomial(num_steps, weights / num_steps) @ counts,
            centers,
            is_mixed=fitted.fraction > 0.0,
        )
        for _ in range(_DRAWS)
    ]
    cvs = [_cv(mixture.deviation / grown) for mixture in (fitted, *drawn)]
    shares = [mixture.fraction for mixture in (fitted, *drawn)]
    factors = [math.exp(mixture.shift) for mixture in (fitted, *drawn)]
    is_mixed = fitted.fraction > 0.0
    return JitterFit(
        times=times,
        median=float(np.median(times.times)),
        cv=_band(cvs),
        fraction=_band(shares) if is_mixed else None,
        factor=_band(factors) if is_mixed else None,
        slow=_always_slow(times, speeds, widest),
    )


def _cv(deviation: float) -> float:
    return math.sqrt(math.expm1(deviation * deviation))


def _band(values: list[float]) -> FittedBand:
    low, high = np.quantile(values[1:], _BAND).tolist()
    return FittedBand(values[0], min(low, values[0]), max(high, values[0]))


def _counted(logs: FloatArray, width: float) -> tuple[FloatArray, FloatArray]:
    """Return how many logarithms of each step are in each bin, and its middle."""
    low, high = float(logs.min()), float(logs.max())
    step = max(width / _BINS_OF_DEVIATION, (high - low) / _MOST_BINS, 1e-12)
    places = np.floor((logs - low) / step).astype(np.int64)
    num_bins = int(places.max()) + 1
    counts: FloatArray = np.zeros((logs.shape[1], num_bins))
    np.add.at(counts, (np.arange(logs.shape[1])[None, :], places), 1.0)
    centers = np.asarray(low + (np.arange(num_bins) + 0.5) * step, dtype=np.float64)
    return counts, centers


def _mixture(
    counts: FloatArray, centers: FloatArray, *, is_mixed: bool | None = None
) -> _TwoParts:
    """Return the likeliest distribution: of one part, or of two if that is likelier."""
    total = counts.sum()
    middle = float(counts @ centers) / total
    alone = math.sqrt(max(float(counts @ (centers - middle) ** 2) / total, 1e-24))
    if is_mixed is False:
        return _TwoParts(alone, 0.0, 0.0)
    shown = counts > 0.0
    counts, centers = counts[shown], centers[shown]
    order = np.cumsum(counts) / total
    half = 0.5 * (np.interp(0.84, order, centers) - np.interp(0.16, order, centers))
    deviation = max(float(half), 1e-12)
    outside = centers > 3.0 * deviation
    if not outside.any():
        return _TwoParts(alone, 0.0, 0.0)
    base = 0.0
    fraction = float(counts[outside].sum() / total)
    shift = float(counts[outside] @ centers[outside] / counts[outside].sum())
    for _ in range(_ROUNDS):
        first = (1.0 - fraction) * np.exp(-0.5 * ((centers - base) / deviation) ** 2)
        second = fraction * np.exp(-0.5 * ((centers - shift) / deviation) ** 2)
        late = counts * second / np.maximum(first + second, 1e-300)
        soon = counts - late
        fraction = min(max(float(late.sum()) / total, 1e-9), 0.5)
        base = float(soon @ centers) / float(soon.sum())
        shift = float(late @ centers) / max(float(late.sum()), 1e-9)
        spread = soon @ (centers - base) ** 2 + late @ (centers - shift) ** 2
        deviation = math.sqrt(max(float(spread) / total, 1e-24))
    both = np.maximum(first + second, 1e-300) / deviation
    single = np.exp(-0.5 * ((centers - middle) / alone) ** 2) / alone
    gain = float(counts @ (np.log(both) - np.log(np.maximum(single, 1e-300))))
    if is_mixed or (2.0 * gain > 2.0 * math.log(total) and shift - base > deviation):
        return _TwoParts(deviation, fraction, shift - base)
    return _TwoParts(alone, 0.0, 0.0)


def _always_slow(
    times: StepTimes, speeds: FloatArray, width: float
) -> tuple[SlowRank, ...]:
    """Return the ranks that are always slow, the slowest first."""
    num_ranks, num_steps = times.times.shape
    middle = float(np.median(speeds))
    spread = NORMAL_MAD * float(np.median(np.abs(speeds - middle)))
    error = _MEDIAN_ERROR * width * middle / math.sqrt(num_steps)
    deviations = (speeds - middle) / max(spread, error, 1e-12)
    chance = ndtr(-deviations)
    order = np.argsort(chance, kind="stable")
    allowed = FALSE_SHARE * np.arange(1, num_ranks + 1) / num_ranks
    passed = np.flatnonzero(chance[order] <= allowed)
    kept = order[: int(passed[-1]) + 1] if passed.size else order[:0]
    slow = [
        SlowRank(
            times.ranks[at],
            times.nodes[at],
            float(speeds[at] / middle),
            float(deviations[at]),
        )
        for at in kept.tolist()
    ]
    return tuple(sorted(slow, key=lambda slower: (-slower.factor, slower.rank)))


def fit_toml(fit: JitterFit) -> str:
    """Return the tables to paste into a scenario."""
    lines = [
        f"# Fitted to {' '.join(fit.times.source.split())}",
        "[jitter]",
        f'compute = {{ distribution = "lognormal", cv = {fit.cv.value:.4g}, '
        f'per = "{fit.times.per}" }}',
    ]
    if fit.fraction is not None and fit.factor is not None:
        lines.append(
            f"slow = [{{ fraction = {fit.fraction.value:.4g}, "
            f"factor = {fit.factor.value:.4g} }}]"
        )
    if fit.slow:
        lines += ["", "[cluster.degraded]", "slow_devices = ["]
        lines += [
            f"  {{ device = {rank.rank}, factor = {rank.factor:.4g} }},"
            for rank in fit.slow
        ]
        lines.append("]")
    return "\n".join(lines) + "\n"


def fit_json(fit: JitterFit) -> dict[str, object]:
    """Return the fit under stable keys, in SI units."""
    return {
        "source": fit.times.source,
        "num_ranks": fit.times.times.shape[0],
        "num_steps": fit.times.times.shape[1],
        "median_time_s": fit.median,
        "per": fit.times.per,
        "cv": fit.cv._asdict(),
        "slow_fraction": fit.fraction and fit.fraction._asdict(),
        "slow_factor": fit.factor and fit.factor._asdict(),
        "always_slow": [rank._asdict() for rank in fit.slow],
        "toml": fit_toml(fit),
    }
