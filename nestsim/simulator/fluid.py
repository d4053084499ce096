"""Flows that share links fairly: the state that the kernels work on.

The engine says which flows start and asks when the next one ends; everything between
is arithmetic on arrays. Flows and links are plain numbers here, with weights: a class
of flows with a multiplicity is just a flow of that weight.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from nestsim.simulator.kernels import fluid as kernels
from nestsim.simulator.system import Incidence, System
from topologies.arrays import FloatArray
from topologies.compiling import check_once

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
        num_recent = min(_DEPOSITS_PER_FLOW * num_flows, _MOST_DEPOSITS)
        self.most_deposits = num_recent if remember and recording else 0
        """Deposits that are remembered."""
        self.bins = np.zeros((num_flows, num_bins if recording else 0))
        self.kernel_state = kernels.FluidState(
            tick=system.tick,
            crossings=_crossings(system.incidence, num_links),
            flows=kernels.FlowState(
                np.array(system.num_bytes, dtype=np.float64),
                *np.zeros((4, num_flows)),
                *np.zeros((2, num_flows), np.int64),
            ),
            links=_links(system.capacity),
            ends=empty_calendar(num_flows),
            bookings=kernels.Bookings(
                bins=self.bins,
                bin_width=np.full(1, _FIRST_BIN_WIDTH),
                delay=np.zeros(1),
                recent=kernels.Deposits(
                    np.zeros(self.most_deposits, np.int64),
                    *np.zeros((3, self.most_deposits)),
                ),
                num_deposits=np.zeros(1, np.int64),
            ),
            started=np.zeros(num_flows, np.int64),
            num_started=np.zeros(1, np.int64),
            ended=np.zeros(num_flows, np.int64),
            num_ended=np.zeros(1, np.int64),
            num_searches=np.zeros(1, np.int64),
        )
        """What the kernels work on."""

    @property
    def bin_width(self) -> float:
        """Width of the time bins at this moment [s]."""
        return float(self.kernel_state.bookings.bin_width[0])

    def start(self, flow: int) -> None:
        """Start an idle flow; its rate is known after the next `solve_rates`."""
        started, num_started = self.kernel_state.started, self.kernel_state.num_started
        started[num_started[0]] = flow
        num_started[0] += 1

    def solve_rates(self, now: float) -> float:
        """Solve the rates after starts and ends; return the next end [s].

        Infinite when no flow is active. Call once per instant, after everything that
        starts at it has been started.
        """
        following = self._solve_rates(now, self.kernel_state)
        assert following >= 0, "filling made no progress"
        return following

    def pop_finished(self, now: float) -> list[int]:
        """End the flows whose time has come; then `solve_rates` must be called."""
        first = int(self.kernel_state.num_ended[0])
        count = self._pop_finished(now, self.kernel_state)
        ended: list[int] = self.kernel_state.ended[first : first + count].tolist()
        return ended

    @cached_property
    def _solve_rates(self) -> Callable[[float, kernels.FluidState], float]:
        return check_once(kernels.solve_rates, 0.0, self.kernel_state)

    @cached_property
    def _pop_finished(self) -> Callable[[float, kernels.FluidState], int]:
        return check_once(kernels.pop_finished, 0.0, self.kernel_state)

    @property
    def num_deposits(self) -> int:
        """Times that traffic was booked; repeated ones not counted."""
        return int(self.kernel_state.bookings.num_deposits[0])

    def state(self, now: float) -> FloatArray:
        """Return bytes left, rate and time since both were true, shape ``(3, F)``.

        Zeros for flows that are not active.
        """
        flows = self.kernel_state.flows
        values = np.stack((flows.remaining, flows.rate, now - flows.since))
        return np.asarray(values * flows.is_active)

    def repeat(self, first: int, count: int, period: float) -> None:
        """Book all deposits from ``first`` on ``count`` times more.

        Each time a period later; from now on the clock is that much behind.
        """
        assert self.num_deposits - first <= self.most_deposits
        bookings = self.kernel_state.bookings
        kernels.repeat_deposits(first, count, period, bookings)
        bookings.delay[0] += count * period


def max_min_rates(incidence: Incidence, capacity: FloatArray) -> FloatArray:
    """Return the max-min fair level of each flow when all are active [byte/s].

    Every flow must cross a link, and capacities must be positive.
    """
    num_flows, num_links = incidence.indptr.shape[0] - 1, capacity.shape[0]
    level = np.full(num_flows, -1.0)
    links = _links(capacity)
    links.listed[:] = np.arange(num_links)
    crossings = _crossings(incidence, num_links)
    status = kernels.fill(
        crossings, links, num_links, np.arange(num_flows), num_flows, level
    )
    assert status == 0, "filling made no progress"
    return level


def empty_calendar(num_items: int) -> kernels.Calendar:
    """Return a calendar without items, and with room for so many."""
    return kernels.Calendar(
        heap=np.full(num_items, -1),
        place=np.full(num_items, -1),
        due=np.zeros(num_items),
        size=np.zeros(1, np.int64),
    )


def _links(capacity: FloatArray) -> kernels.LinkState:
    """Return links that no flow uses yet."""
    reals = np.zeros((3, capacity.size))
    integers = np.zeros((4, capacity.size), np.int64)
    return kernels.LinkState(
        capacity=np.array(capacity, dtype=np.float64),
        used=reals[0],
        open_weight=reals[1],
        frozen_weight=reals[2],
        open_count=integers[0],
        frozen_count=integers[1],
        mark=integers[2],
        listed=integers[3],
    )


def _crossings(incidence: Incidence, num_links: int) -> kernels.Crossings:
    """Return the incidence by flow, and its pattern by link, writeable."""
    counts = np.bincount(incidence.links, minlength=num_links)
    flows = np.repeat(np.arange(incidence.indptr.size - 1), np.diff(incidence.indptr))
    order = np.argsort(incidence.links, kind="stable")
    return kernels.Crossings(
        flow_indptr=np.array(incidence.indptr, dtype=np.int64),
        flow_links=np.array(incidence.links, dtype=np.int64),
        flow_weights=np.array(incidence.weights, dtype=np.float64),
        link_indptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        link_flows=flows[order].astype(np.int64),
    )
