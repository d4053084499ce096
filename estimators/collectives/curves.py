"""Collectives inside a node as they were measured: time by operation, ranks and size.

NCCL takes for each call the algorithm and the protocol whose latency and bandwidth give
the least time by its own tables [1]_: rings and trees in LL, LL128 or Simple, sums in
the switch (NVLS), parallel trees (PAT) where each node has one rank. Its tables are not
the hardware, so a curve has steps where it changes over, which no law of few constants
has. What a curve has at a size is therefore taken as it was measured; sizes between two
knots lie on a line in the logarithms of both.

A curve is over the bytes of the full tensor at the port's bandwidth ``B0`` that it was
measured with. A port of bandwidth ``B`` needs for ``S`` bytes what that one needs for
``S B0 / B``: time depends on bytes through the time of the bytes alone, as in
`estimators.collectives.transports`. Curves never fall, so neither larger messages nor
less bandwidth are ever faster. Below the first knot the time is that of the first;
beyond the last, bytes take what `TimeCurve.slope` says.

Between two numbers of ranks the logarithm of time is a line over that of the number.
Beyond the largest, latency and bytes of the law are added
(`estimators.collectives.transports.collective_time`).

Curves stand in ``collective_curves.toml``, which `nestsim.features.calibration.curves`
writes from measurements.

References
----------
.. [1] NCCL 2.29, ``src/graph/tuning.cc``: ``ncclTopoTuneModel`` (latency and bandwidth
   by algorithm and protocol) and ``ncclTopoGetAlgoTime``.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import tomli


@dataclass(frozen=True, slots=True)
class TimeCurve:
    """Time of one collective among so many ranks over the size of its tensor."""

    sizes: tuple[float, ...]
    """Bytes of the full tensor at the knots, rising [byte]."""

    times: tuple[float, ...]
    """Time at the knots, never falling [s]."""

    slope: float = field(init=False, compare=False)
    """Time of a byte of large messages [s/byte].

    That of the last interval, but no more than the least time over bytes: bytes at this
    rate never take longer than the curve.
    """

    def __post_init__(self) -> None:
        assert len(self.sizes) == len(self.times) > 1
        assert self.sizes[0] > 0.0
        assert self.times[0] > 0.0
        assert all(a < b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        assert all(a <= b for a, b in zip(self.times, self.times[1:], strict=False))
        last = (self.times[-1] - self.times[-2]) / (self.sizes[-1] - self.sizes[-2])
        knots = zip(self.sizes, self.times, strict=True)
        slope = min(last, *(time / size for size, time in knots))
        object.__setattr__(self, "slope", slope)

    def time(self, num_bytes: float) -> float:
        """Return the time for a full tensor of ``num_bytes`` [s]."""
        sizes, times = self.sizes, self.times
        if num_bytes <= sizes[0]:
            return times[0]
        if num_bytes >= sizes[-1]:
            return times[-1] + (num_bytes - sizes[-1]) * self.slope
        right = bisect_right(sizes, num_bytes)
        left = right - 1
        share = math.log(num_bytes / sizes[left]) / math.log(sizes[right] / sizes[left])
        between = times[left] * math.pow(times[right] / times[left], share)
        return min(times[right], between)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurves:
    """All curves of one interconnect."""

    bandwidth: float
    """Bandwidth of a rank's port by its datasheet, one direction [byte/s]."""

    curves: tuple[tuple[str, int, TimeCurve], ...]
    """Operation, number of ranks, and curve, by rising number of ranks."""

    _by_operation: dict[str, dict[int, TimeCurve]] = field(
        init=False, compare=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for name, ranks, curve in self.curves:
            self._by_operation.setdefault(name, {})[ranks] = curve

    def of(self, operation: str) -> Mapping[int, TimeCurve]:
        """Return an operation's curves by the number of ranks; none if not measured."""
        return self._by_operation.get(operation, {})

    def neighbours(
        self, operation: str, num_ranks: int
    ) -> tuple[tuple[int, TimeCurve], tuple[int, TimeCurve], float] | None:
        """Return the curves next to a number of ranks, and the place between them.

        The place is in the logarithm of the number, 0 at the first and 1 at the second;
        a number outside has the nearest curve twice.
        """
        known = list(self.of(operation).items())
        if not known:
            return None
        right = bisect_right([ranks for ranks, _ in known], num_ranks)
        if right in {0, len(known)} or known[right - 1][0] == num_ranks:
            nearest = known[max(right - 1, 0)]
            return nearest, nearest, 0.0
        low, high = known[right - 1], known[right]
        return low, high, math.log(num_ranks / low[0]) / math.log(high[0] / low[0])

    def time(
        self, operation: str, num_ranks: int, num_bytes: float, bandwidth: float
    ) -> float | None:
        """Return the time at the nearest numbers of ranks [s]; None if not measured.

        ``bandwidth`` is that of the port [byte/s].
        """
        found = self.neighbours(operation, num_ranks)
        if found is None:
            return None
        (_, low), (_, high), place = found
        size = num_bytes * self.bandwidth / bandwidth
        first = low.time(size)
        return first * math.pow(high.time(size) / first, place) if place else first

    def byte_time(self, operation: str, num_ranks: int) -> float | None:
        """Return the time of a byte of large messages [s/byte]; None if not measured.

        At the bandwidth that was measured with.
        """
        found = self.neighbours(operation, num_ranks)
        if found is None:
            return None
        (_, low), (_, high), place = found
        return low.slope * math.pow(high.slope / low.slope, place)


@cache
def measured_curves() -> Mapping[str, MeasuredCurves]:
    """Return all of ``collective_curves.toml`` by the name of the transport."""
    file = files("estimators").joinpath("collective_curves.toml")
    tables = tomli.loads(file.read_text(encoding="utf-8"))
    return MappingProxyType({name: read_curves(tables[name]) for name in tables})


def read_curves(table: Mapping[str, Any]) -> MeasuredCurves:
    """Return the curves of one table: ``{operation: {ranks: [[bytes, us], ..]}}``."""
    found = [
        (operation, int(ranks), knots)
        for operation, by_ranks in table["curves"].items()
        for ranks, knots in by_ranks.items()
    ]
    found.sort(key=lambda item: (item[0], item[1]))
    return MeasuredCurves(
        bandwidth=float(table["bandwidth"]),
        curves=tuple(
            (
                operation,
                ranks,
                TimeCurve(
                    tuple(float(size) for size, _ in knots),
                    tuple(float(time) * 1e-6 for _, time in knots),
                ),
            )
            for operation, ranks, knots in found
        ),
    )
