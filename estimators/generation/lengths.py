"""How long prompts and responses are: distributions with a long tail, and samples.

A sample of ``n`` lengths is the distribution's quantiles at ``(i + 1/2) / n`` in an
order that a seed draws: as deterministic as a seed, and nearer to the distribution than
draws of its own would be.

A log-normal length of mean ``M`` and deviation ``s`` of its logarithm has the median
``M exp(-s^2 / 2)``; what is longer than ``cap`` ends there, as an engine cuts responses
at ``max_tokens``, so that the mean of a capped distribution is less than ``M``.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from estimators.models.document_lengths import histogram, read_lengths
from topologies.arrays import IntVector
from topologies.errors import InputError

DISTRIBUTIONS = ("fixed", "log-normal", "measured")
"""Kinds of distributions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of whole numbers of tokens, each at least 1."""

    distribution: str = "fixed"
    """One of `DISTRIBUTIONS`."""

    mean: float = 0.0
    """Mean before the cap, of "fixed" and "log-normal" [tokens]."""

    sigma: float = 0.0
    """Standard deviation of the natural logarithm, of "log-normal"."""

    cap: int = 0
    """Longest length; 0 for none [tokens]."""

    lengths: tuple[int, ...] = ()
    """Distinct lengths in order, of "measured" [tokens]."""

    counts: tuple[int, ...] = ()
    """How many there are of each of `lengths`."""

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise InputError(
                "is no distribution of lengths",
                where="distribution",
                got=self.distribution,
                expected=f"one of {', '.join(DISTRIBUTIONS)}",
            )
        if self.distribution == "measured":
            lengths, counts = histogram(self.lengths, self.counts)
            object.__setattr__(self, "lengths", lengths)
            object.__setattr__(self, "counts", counts)
            if not lengths or lengths[0] < 1:
                raise InputError(
                    "has no lengths, or some below 1",
                    where="lengths",
                    got=str(lengths[:1]),
                    expected="at least one, each of 1 token or more",
                )
        elif not 1.0 <= self.mean < float("inf"):
            raise InputError(
                "is not possible", where="mean", got=self.mean, expected="at least 1"
            )
        if not 0.0 <= self.sigma <= 10.0:
            raise InputError(
                "is not possible", where="sigma", got=self.sigma, expected="0 to 10"
            )
        if self.cap < 0:
            raise InputError(
                "is not possible", where="cap", got=self.cap, expected="0 or more"
            )

    @classmethod
    def fixed(cls, length: int) -> "Lengths":
        """Return the distribution of one length."""
        return cls(mean=float(length))

    @classmethod
    def log_normal(cls, mean: float, sigma: float, cap: int = 0) -> "Lengths":
        """Return a log-normal distribution, of a mean before its cap."""
        return cls(distribution="log-normal", mean=mean, sigma=sigma, cap=cap)

    @classmethod
    def measured(cls, path: Path, cap: int = 0) -> "Lengths":
        """Read a file of lengths and counts (`estimators.models.document_lengths`).

        Raises
        ------
        InputError
            If it is no such file.
        """
        lengths, counts = read_lengths(path)
        return cls(distribution="measured", lengths=lengths, counts=counts, cap=cap)

    def sample(self, number: int, seed: int = 0) -> IntVector:
        """Return lengths whose order a seed draws, shape ``(number,)`` [tokens]."""
        ordered = self.quantiles((np.arange(number) + 0.5) / max(number, 1))
        return np.random.default_rng(seed).permutation(ordered)

    def quantiles(
        self, parts: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    ) -> IntVector:
        """Return the lengths that parts of the distribution lie below [tokens]."""
        if self.distribution == "measured":
            reached = np.cumsum(np.array(self.counts, dtype=np.float64))
            places = np.searchsorted(reached / reached[-1], parts, side="left")
            known = np.array(self.lengths, dtype=np.int64)
            values = known[np.minimum(places, len(known) - 1)]
        elif self.distribution == "fixed" or self.sigma == 0.0:
            values = np.full(len(parts), round(self.mean), dtype=np.int64)
        else:
            normal = NormalDist(np.log(self.mean) - self.sigma**2 / 2, self.sigma)
            exact = np.exp([normal.inv_cdf(part) for part in parts.tolist()])
            values = np.maximum(1, np.rint(exact)).astype(np.int64)
        return np.minimum(values, self.cap) if self.cap else values
