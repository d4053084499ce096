"""How far off predictions are, and whether they put configurations in order.

The error of a row is (predicted - measured) / measured. Percentiles interpolate
linearly between order statistics.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from topologies.arrays import FloatArray

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Errors(NamedTuple):
    """Errors of some rows; NaN where there are too few of them."""

    rows: int
    """Rows that were predicted."""

    mape: float
    """Mean absolute error, relative."""
    median_ape: float
    """Median absolute error, relative."""

    p90_ape: float
    """90th percentile of the absolute errors, relative."""

    max_ape: float
    """Largest absolute error, relative."""

    bias: float
    """Mean error with its sign, relative: positive if predictions are too large."""
    kendall_tau: float
    """Kendall's tau-b of predicted against measured values; NaN if either is
    constant."""


class Ranking(NamedTuple):
    """How well groups of comparable rows are put in order."""

    groups: int
    """Groups of at least two rows each."""
    rows: int
    """Rows in the groups."""
    kendall_tau: float
    """Mean over the groups, each weighted with its pairs."""
    top1_regret: float
    """Mean over the groups: how much slower the configuration that was predicted to
    be the fastest is than the fastest one, relative."""
    max_top1_regret: float
    """Largest such regret of a group, relative."""


def errors_of(measured: Sequence[float], predicted: Sequence[float]) -> Errors:
    """Return the errors of rows, given measured and predicted values of each."""
    if not measured:
        nan = math.nan
        return Errors(0, nan, nan, nan, nan, nan, nan)
    truth, prediction = np.array(measured), np.array(predicted)
    signed = (prediction - truth) / truth
    absolute = np.abs(signed)
    return Errors(
        rows=len(measured),
        mape=float(absolute.mean()),
        median_ape=float(np.median(absolute)),
        p90_ape=float(np.percentile(absolute, 90)),
        max_ape=float(absolute.max()),
        bias=float(signed.mean()),
        kendall_tau=kendall_tau(truth, prediction),
    )


def kendall_tau(first: FloatArray, second: FloatArray) -> float:
    """Return Kendall's tau-b of two lists of values; NaN if either is constant.

    tau-b = (C - D) / sqrt((C + D + T1) (C + D + T2)) with C concordant and D discordant
    pairs, T1 and T2 pairs that are tied in the other list alone (Kendall,
    "The Treatment of Ties in Ranking Problems", Biometrika 33, 1945). O(n^2) time,
    O(n) memory.
    """
    agreement, untied_first, untied_second = 0.0, 0, 0
    for index in range(len(first) - 1):
        order = np.sign(first[index + 1 :] - first[index])
        other = np.sign(second[index + 1 :] - second[index])
        agreement += float(order @ other)
        untied_first += int(np.count_nonzero(order))
        untied_second += int(np.count_nonzero(other))
    if not (untied_first and untied_second):
        return math.nan
    return agreement / math.sqrt(float(untied_first) * float(untied_second))


def ranking_of(
    groups: Iterable[tuple[Sequence[float], Sequence[float]]],
) -> Ranking:
    """Return how well groups of comparable rows are put in order.

    Parameters
    ----------
    groups
        Measured and predicted times of each group; those of one row are left out. Of
        rows predicted to be equally fast the first is taken.
    """
    taus: list[float] = []
    weights: list[float] = []
    regrets: list[float] = []
    rows = 0
    for measured, predicted in groups:
        count = len(measured)
        if count < 2:
            continue
        truth, prediction = np.array(measured), np.array(predicted)
        rows += count
        regrets.append(float(truth[np.argmin(prediction)] / truth.min()) - 1.0)
        tau = kendall_tau(truth, prediction)
        if not math.isnan(tau):
            taus.append(tau)
            weights.append(count * (count - 1) / 2)
    return Ranking(
        groups=len(regrets),
        rows=rows,
        kendall_tau=float(np.average(taus, weights=weights)) if taus else math.nan,
        top1_regret=float(np.mean(regrets)) if regrets else math.nan,
        max_top1_regret=max(regrets, default=math.nan),
    )


def grouped(items: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the items of each key, keys and items in the order of appearance."""
    groups: dict[K, list[T]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return groups
