"""Flows that share links fairly: the state that the kernels work on.

The engine says which flows start and asks when the next one ends; everything between
is arithmetic on arrays. Flows and links are plain numbers here, with weights: a class
of flows with a multiplicity is just a flow of that weight.
"""

import numpy as np

from nestsim.simulator.kernels import fluid as kernels
from nestsim.simulator.system import Incidence, System
from topologies.arrays import FloatArray, IntArray

NUM_BINS = 256
"""Time bins of the recorded traffic; between half of them and all are used, since
their width doubles as the run goes on. A power of two."""

_MAX_RECORD = 2**24
"""Numbers kept of the traffic: large networks get wider bins instead."""

_DEPOSITS_PER_FLOW = 64
"""Changes of rate that are remembered, on average; those of one period are needed."""

_MOST_DEPOSITS = 2**20

_FIRST_BIN_WIDTH = 2.0**-30
"""About a nanosecond; a power of two, so that merged bins keep exact edges [s]."""


class Fluid:
    """Max-min fair flows over links, with a calendar of their ends.

    Each channel of a system is a flow; none without a link may be started.

    Parameters
    ----------
    system
        The flows and links.
    remember
        Whether what was moved lately can be booked again with `repeat`.
    recording
        Whether what is moved is booked at all; without it there are no bins.
    """

    def __init__(
        self, system: System, *, remember: bool = False, recording: bool = True
    ) -> None:
        num_flows, num_links = system.num_bytes.size, system.capacity.size
        num_bins = NUM_BINS
        while num_bins > 16 and num_bins * system.num_recorded > _MAX_RECORD:
            num_bins //= 2
        self._started = 0
        self._flow_state = np.zeros((kernels.NUM_FLOW_ROWS, num_flows))
        self._flow_ints = np.zeros((kernels.NUM_FLOW_INT_ROWS, num_flows), np.int64)
        self._flow_ints[kernels.PLACE] = -1
        self._starting = self._flow_ints[kernels.STARTED]
        self._ended = self._flow_ints[kernels.ENDED]
        self._counters = np.zeros(kernels.NUM_COUNTERS, np.int64)
        self._scalars = np.zeros(kernels.NUM_SCALARS)
        self._scalars[kernels.TICK] = system.tick
        self._scalars[kernels.BIN_WIDTH] = _FIRST_BIN_WIDTH
        self.bins = np.zeros((num_flows, num_bins if recording else 0))
        num_recent = min(_DEPOSITS_PER_FLOW * num_flows, _MOST_DEPOSITS)
        recent = np.zeros(
            (kernels.NUM_DEPOSIT_ROWS, num_recent if remember and recording else 0)
        )
        self.most_deposits = recent.shape[1]
        """Deposits that are remembered."""
        self._booking = (self._counters, self._scalars, self.bins, recent)
        self.arguments = (
            *_both_ways(system.incidence, num_links),
            np.array(system.capacity, dtype=np.float64),
            np.array(system.num_bytes, dtype=np.float64),
            self._flow_state,
            self._flow_ints,
            np.zeros((kernels.NUM_LINK_ROWS, num_links)),
            np.zeros((kernels.NUM_LINK_INT_ROWS, num_links), np.int64),
            *self._booking,
        )
        """What the kernels `settle` and `advance` work on."""

    @property
    def flows(self) -> tuple[FloatArray, IntArray]:
        """What the flows are doing, by the rows of the kernels."""
        return self._flow_state, self._flow_ints

    @property
    def bin_width(self) -> float:
        """Width of the time bins at this moment [s]."""
        return float(self._scalars[kernels.BIN_WIDTH])

    def start(self, flow: int) -> None:
        """Start an idle flow; its rate is known after the next `settle`."""
        self._starting[self._started] = flow
        self._started += 1

    def settle(self, now: float) -> float:
        """Solve the rates after starts and ends; return the next end [s].

        Infinite when no flow is active. Call once per instant, after everything that
        starts at it has been started.
        """
        following: float = kernels.settle(now, self._started, *self.arguments)
        assert following >= 0, "filling made no progress"
        self._started = 0
        return following

    def harvest(self, now: float) -> list[int]:
        """End the flows whose time has come, and return them; `settle` must follow."""
        first = int(self._counters[kernels.NUM_ENDED])
        count = kernels.harvest(now, self._flow_state, self._flow_ints, *self._booking)
        ended: list[int] = self._ended[first : first + count].tolist()
        return ended

    @property
    def num_deposits(self) -> int:
        """Times that traffic was booked; repeated ones not counted."""
        return int(self._counters[kernels.NUM_DEPOSITS])

    def state(self, now: float) -> FloatArray:
        """Return bytes left, rate and time since both were true, shape ``(3, F)``.

        Zeros for flows that are not active.
        """
        values = self._flow_state[[kernels.REMAINING, kernels.RATE, kernels.SINCE]]
        values[2] = now - values[2]
        return np.asarray(values * self._flow_ints[kernels.ACTIVE])

    def repeat(self, first: int, count: int, period: float) -> None:
        """Book all deposits from ``first`` on ``count`` times more.

        Each time a period later; from now on the clock is that much behind.
        """
        assert self.num_deposits - first <= self.most_deposits
        counters, scalars, bins, recent = self._booking
        kernels.repeat_deposits(first, count, period, bins, scalars, counters, recent)
        scalars[kernels.DELAY] += count * period


def max_min_rates(incidence: Incidence, capacity: FloatArray) -> FloatArray:
    """Return the max-min fair level of each flow when all are active [byte/s].

    Every flow must cross a link, and capacities must be positive.
    """
    num_flows, num_links = incidence.indptr.shape[0] - 1, capacity.shape[0]
    level = np.full(num_flows, -1.0)
    link_ints = np.zeros((kernels.NUM_LINK_INT_ROWS, num_links), np.int64)
    links = link_ints[kernels.LINK_LIST]
    links[:] = np.arange(num_links)
    status = kernels.fill(
        np.arange(num_flows),
        num_flows,
        links,
        num_links,
        *_both_ways(incidence, num_links),
        np.array(capacity, dtype=np.float64),
        level,
        np.zeros((kernels.NUM_LINK_ROWS, num_links)),
        link_ints,
    )
    assert status == 0, "filling made no progress"
    return level


def _both_ways(
    incidence: Incidence, num_links: int
) -> tuple[IntArray, IntArray, FloatArray, IntArray, IntArray]:
    """Return the incidence by flow, and its pattern by link, writeable."""
    counts = np.bincount(incidence.links, minlength=num_links)
    flows = np.repeat(np.arange(incidence.indptr.size - 1), np.diff(incidence.indptr))
    order = np.argsort(incidence.links, kind="stable")
    return (
        np.array(incidence.indptr, dtype=np.int64),
        np.array(incidence.links, dtype=np.int64),
        np.array(incidence.weights, dtype=np.float64),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        flows[order].astype(np.int64),
    )
