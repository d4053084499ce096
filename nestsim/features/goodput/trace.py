"""Failures as they were: a log of them, and the rates that fit it.

A log is CSV with the columns ``time``, ``node`` and ``cause``, and ``replaced`` if some
failures leave the node in the job. Times are dates (ISO 8601) or quantities ("12.5 h").
A cause whose failures all name a node is one of nodes; any other stops the whole job.

Each node, or the job, is taken to be new when the log begins and behind each of its
failures of a cause, as runs do it (`nestsim.features.goodput.draws`); what has not
failed until the end is censored there. A cause has a constant rate unless a Weibull
distribution is so much likelier that chance would give it in one of 20 logs.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from nestsim.features.goodput.draws import FailureKind
from topologies.arrays import FloatArray
from topologies.csv_file import CsvLine, csv_lines
from topologies.errors import InputError, located
from topologies.input_file import read_text
from topologies.units import parse_quantity

COLUMNS = ("time", "node", "cause")
"""Columns that a log has; ``replaced`` may be beside them."""

MOST_BYTES = 100_000_000
"""Longest log that is read [byte]."""

FEWEST = 10
"""Failures of a cause that may speak against a constant rate: a likelihood ratio is
known for many only."""

SHAPES = (0.2, 10.0)
"""Shapes that are looked at, as `FailureRate.shape` takes them."""

CONFIDENCE = 0.9
"""Of bands."""

FIRST_STREAM = 100
"""Number of the random numbers of the first cause, behind those of components."""

_EXPECTED = "CSV with the columns time, node and cause"

_YES_OR_NO = {"yes": True, "no": False, "": True}


@dataclass(frozen=True, slots=True)
class LoggedFailure:
    """A line of a log."""

    time: float
    """Since the log began [s]."""

    node: str
    """Name of the node; empty where the whole job failed."""

    cause: str
    """As it is called there."""

    is_replaced: bool
    """Whether the node was out for repair."""


@dataclass(frozen=True, slots=True)
class FailureLog:
    """What failed in a while."""

    failures: tuple[LoggedFailure, ...]
    """By time."""

    time: float
    """How long failures were counted [s]."""

    num_nodes: int
    """Nodes that were watched."""

    source: str
    """Name of the file."""


@dataclass(frozen=True, slots=True)
class CauseFit:
    """The distribution of times between failures of one of the things that fail."""

    rate: float
    """How often it fails on average: 1 over the mean time [1/s]."""

    rate_band: tuple[float, float]
    """That of 90 of 100 logs: Garwood's exact limits of the number of failures, in
    proportion [1/s]."""

    shape: float
    """Of the Weibull distribution; 1 for a constant rate."""

    shape_band: tuple[float, float]
    """Shapes that are not so much less likely than the best one that chance would do
    so in more than 10 of 100 logs; (1, 1) for a constant rate."""


def read_log(path: Path, *, time: float | None, num_nodes: int) -> FailureLog:
    """Return the failures of a log.

    Parameters
    ----------
    path
        The file.
    time
        How long failures were counted; None until the last one [s].
    num_nodes
        Nodes that were watched.

    Raises
    ------
    InputError
        If it is no such log, or something in it cannot be.
    """
    with located(str(path), ": "):
        text = read_text(path, expected=_EXPECTED, most_bytes=MOST_BYTES)
        failures = _failures(text)
        last = failures[-1].time
        if time is None:
            time = last
        if last > time or not time:
            raise InputError(
                "fails behind the end of the log",
                where="time",
                got=f"{last:.6g} s",
                expected=f"at most goodput.trace_time, {time:.6g} s"
                if time
                else "more than one moment, or goodput.trace_time",
            )
        named = {failure.node for failure in failures if failure.node}
        if len(named) > num_nodes:
            raise InputError(
                "names more nodes than were watched",
                where="node",
                got=f"{len(named):,} names",
                expected=f"at most {num_nodes:,}",
                hint="goodput.trace_nodes says how many were watched",
            )
    return FailureLog(failures, time, num_nodes, path.name)


def _failures(text: str) -> tuple[LoggedFailure, ...]:
    lines = csv_lines(text, COLUMNS, _EXPECTED)
    if not lines:
        raise InputError("has no failures", expected="at least one")
    moments = [_moment(line.where, line.values["time"]) for line in lines]
    is_date = {moment[0] for moment in moments}
    if len(is_date) > 1:
        raise InputError(
            "has dates and times",
            where="time",
            expected='either dates ("2026-03-01T12:30") or times ("12.5 h")',
        )
    # Dates begin with the first: nobody knows how long before it they were counted.
    start = min(moment[1] for moment in moments) if True in is_date else 0.0
    failures = [
        _failure(line, moment[1] - start)
        for line, moment in zip(lines, moments, strict=True)
    ]
    return tuple(sorted(failures, key=lambda failure: failure.time))


def _failure(line: CsvLine, time: float) -> LoggedFailure:
    word = line.values.get("replaced", "").lower()
    node, cause = line.values["node"], line.values["cause"]
    if not cause:
        raise InputError("names no cause", where=line.where, expected="a word or two")
    if word not in _YES_OR_NO:
        raise InputError(
            "is neither yes nor no",
            where=line.place("replaced"),
            got=word,
            expected="yes, no, or nothing for yes",
        )
    return LoggedFailure(time, node, cause, bool(node) and _YES_OR_NO[word])


def _moment(where: str, text: str) -> tuple[bool, float]:
    """Return whether it is a date, and seconds since an epoch or the beginning."""
    try:
        date = datetime.fromisoformat(text.strip())
    except ValueError:
        with located(f"{where}: time", ": "):
            return False, parse_quantity(text, "lifetime")
    zoned = date if date.tzinfo else date.replace(tzinfo=UTC)
    return True, zoned.timestamp()


def logged_kinds(log: FailureLog, num_nodes: int, *, fits: bool) -> list[FailureKind]:
    """Return what fails of a job as a log says.

    Parameters
    ----------
    log
        The log.
    num_nodes
        Of the job; those of the log if failures come as they were.
    fits
        Whether they come at fitted rates in place of the moments at which they were.

    Raises
    ------
    InputError
        If failures shall come as they were on another number of nodes, or a cause
        does and does not take its node out.
    """
    if not fits and num_nodes != log.num_nodes:
        raise InputError(
            "was logged on another number of nodes",
            where="goodput.trace",
            got=f"{log.num_nodes:,} nodes, of goodput.trace_nodes",
            expected=f"{num_nodes:,}, as the job has",
            hint="goodput.fit_trace = true takes rates of each node from it",
        )
    by_cause: dict[str, list[LoggedFailure]] = defaultdict(list)
    for failure in log.failures:
        by_cause[failure.cause].append(failure)
    kinds = []
    for stream, (cause, failures) in enumerate(sorted(by_cause.items()), FIRST_STREAM):
        of_nodes = all(failure.node for failure in failures)
        watched = log.num_nodes if of_nodes else 1
        fit = fitted(_histories(failures, log.time, watched, of_nodes=of_nodes))
        if not fits:
            rate = len(failures) / (watched * log.time)
            fit = CauseFit(rate, fit.rate_band, 1.0, (1.0, 1.0))
        kinds.append(
            FailureKind(
                name=cause,
                stream=stream,
                count=num_nodes if of_nodes else 1,
                rate=fit.rate,
                shape=fit.shape,
                breaks_node=of_nodes and _takes_nodes(cause, failures),
                source=log.source,
                counted=len(failures),
                rate_band=fit.rate_band,
                shape_band=fit.shape_band,
                moments=None if fits else tuple(failure.time for failure in failures),
            )
        )
    return kinds


def _takes_nodes(cause: str, failures: Iterable[LoggedFailure]) -> bool:
    taken = {failure.is_replaced for failure in failures}
    if len(taken) > 1:
        raise InputError(
            "takes some nodes out and leaves others in the job",
            where=f"goodput.trace: cause {cause!r}",
            got="replaced = yes and no",
            expected="two causes, of which each does the same always",
        )
    return taken.pop()


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """Times from one failure of a thing to its next, and until the log's end."""

    failed: FloatArray
    """Times that ended with a failure, shape ``(F,)`` [s]."""

    censored: FloatArray
    """Times that the end of the log cut off, shape ``(C,)`` [s]."""

    weights: FloatArray
    """Things that each of those is of, shape ``(C,)``."""

    @property
    def exposure(self) -> float:
        """Time for which things were watched, all together [s]."""
        return float(self.failed.sum() + self.weights @ self.censored)


_INSTANT = 1.0
"""Shortest time between two failures that a log can tell [s]."""


def _histories(
    failures: Sequence[LoggedFailure], time: float, watched: int, *, of_nodes: bool
) -> Histories:
    """Return the histories of nodes, or of the job, under one cause."""
    moments: dict[str, list[float]] = defaultdict(list)
    for failure in failures:
        moments[failure.node if of_nodes else ""].append(failure.time)
    failed, censored = [], []
    for of_thing in moments.values():
        failed.append(np.diff([0.0, *of_thing]))
        censored.append(time - of_thing[-1])
    never = watched - len(moments)
    return Histories(
        failed=np.maximum(np.concatenate(failed), _INSTANT),
        censored=np.array([*censored, time]),
        weights=np.array([*np.ones(len(censored)), never]),
    )


def fitted(histories: Histories) -> CauseFit:
    """Return the likeliest constant rate, or the Weibull distribution if it is better.

    Parameters
    ----------
    histories
        With one failure at least.

    Notes
    -----
    With censored times the likeliest scale of a shape k is (S / n)**(1 / k), S being
    the sum of all times to the power of k and n the failures; what is left is one
    equation for k (Lawless, "Statistical Models and Methods for Lifetime Data", 2003,
    section 5.2). Limits of a number of failures: Garwood, Biometrika 28, 1936.
    """
    from scipy import stats  # of this command alone

    count = len(histories.failed)
    rate = count / histories.exposure
    tail = (1.0 - CONFIDENCE) / 2.0
    low = stats.chi2.ppf(tail, 2 * count) / (2 * count)
    high = stats.chi2.ppf(1.0 - tail, 2 * count + 2) / (2 * count)
    shape, band = 1.0, (1.0, 1.0)
    best = _likeliest_shape(histories)
    most = log_likelihood(histories, best)
    gain = 2.0 * (most - log_likelihood(histories, 1.0))
    if count >= FEWEST and gain > stats.chi2.ppf(0.95, 1):
        shape = best
        least = most - stats.chi2.ppf(CONFIDENCE, 1) / 2.0
        band = _shapes_above(histories, best, least)
        rate = 1.0 / (_scale(histories, best) * math.gamma(1.0 + 1.0 / best))
    return CauseFit(rate, (rate * low, rate * high), shape, band)


def log_likelihood(histories: Histories, shape: float) -> float:
    """Return that of a shape with the scale that suits it best."""
    count, scale = len(histories.failed), _scale(histories, shape)
    logs = float(np.log(histories.failed).sum())
    # The exponents sum to the number of failures at that scale.
    density = math.log(shape) - shape * math.log(scale)
    return count * density + (shape - 1.0) * logs - count


def _scale(histories: Histories, shape: float) -> float:
    total = (histories.failed**shape).sum()
    total += histories.weights @ histories.censored**shape
    return float((total / len(histories.failed)) ** (1.0 / shape))


def _likeliest_shape(histories: Histories) -> float:
    from scipy import optimize

    found = optimize.minimize_scalar(
        lambda log: -log_likelihood(histories, math.exp(log)),
        bounds=(math.log(SHAPES[0]), math.log(SHAPES[1])),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return math.exp(found.x)


def _shapes_above(
    histories: Histories, best: float, least: float
) -> tuple[float, float]:
    """Return the ends of the shapes that are as likely as that."""
    from scipy import optimize

    def above(shape: float) -> float:
        return log_likelihood(histories, shape) - least

    low, high = (
        end if above(end) >= 0.0 else float(optimize.brentq(above, end, best))
        for end in SHAPES
    )
    return low, high
