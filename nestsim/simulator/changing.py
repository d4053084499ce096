"""A step in which links fail, slow down or come back, in SimPy.

At each moment at which links or routes change, flows in flight keep the bytes that they
have left. Those whose route crosses a dead link stand still, and so does what is sent
there later; when routes go round it, they go on over the new ones, at the rates that
all flows share then, with the latency of the new route. Nothing is sent twice.

What devices are alike as long as nothing happens are so no more: every actor, channel
and link is simulated by itself, and no period is skipped. Collectives that are part of
the times of passes (`granularity = "stage"`) do not notice.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from simpy import Event, Timeout

from nestsim.simulator.build import draft_step, latest_end, port_table
from nestsim.simulator.compiled import Fluid, crossings_of, links_of
from nestsim.simulator.flows import build_flows
from nestsim.simulator.replay import forecast_seconds
from nestsim.simulator.simpy_engine import Engine
from nestsim.simulator.system import TICK, Incidence, System, quantise, tick_for
from nestsim.simulator.work import PipelineWork
from topologies.arrays import BoolArray, FloatArray
from topologies.errors import InputError
from topologies.link_events import LinkEvent, link_moments
from topologies.network import Network

MOST_SECONDS = 120.0
"""Forecast of SimPy's running time above which a step is refused [s]."""


class FlowChange(NamedTuple):
    """What flows and links are from a moment on."""

    time: float
    """When it begins, a multiple of the tick [s]."""

    incidence: Incidence
    """Links that each channel's flow crosses."""

    capacity: FloatArray
    """Capacity of each link, shape ``(L,)`` [byte/s]."""

    latency: FloatArray
    """Of each channel, multiples of the tick, shape ``(C,)`` [s]."""

    held: BoolArray
    """Channels whose flow cannot move, shape ``(C,)``."""


class Hit(NamedTuple):
    """What was in flight when links or routes changed."""

    time: float
    """When [s]."""

    num_flows: int
    """Flows that stood still from then on, or went on elsewhere."""

    num_bytes: float
    """What they had left, between each pair of their devices [byte]."""


class ChangedStep(NamedTuple):
    """A step in which links change."""

    iteration_time: float
    """Time until the last actor is done [s]."""

    plain_time: float
    """The same if nothing happens [s]."""

    hits: tuple[Hit, ...]
    """What was in flight at each moment of the step at which something changed."""


class ChangingFluid(Fluid):
    """Flows over links that change; what moves is not booked."""

    def __init__(self, system: System) -> None:
        super().__init__(system, recording=False)
        self._held = np.zeros(system.num_bytes.size, dtype=np.bool_)
        self._waiting: dict[int, float] = {}
        self._resumed: dict[int, float] = {}
        self._rows = _rows(system.incidence)

    def start(self, flow: int) -> None:
        """Start an idle flow, or let it wait for its route."""
        if self._held[flow]:
            self._waiting[flow] = float(self.kernel_state.flows.num_bytes[flow])
        else:
            super().start(flow)

    def solve_rates(self, now: float) -> float:
        """Solve the rates; flows that were under way go on with what they had left."""
        num_bytes = self.kernel_state.flows.num_bytes
        whole = {flow: num_bytes[flow] for flow in self._resumed}
        for flow, left in self._resumed.items():
            num_bytes[flow] = left
        following = super().solve_rates(now)
        for flow, size in whole.items():
            num_bytes[flow] = size
        self._resumed = {}
        return following

    def change(self, now: float, change: FlowChange) -> Hit:
        """Go on over other routes and links; `solve_rates` must be called."""
        state = self.kernel_state
        flows = state.flows
        left = {**self._waiting, **self._resumed}
        begun = state.started[: state.num_started[0]].tolist()
        left |= {flow: left.get(flow, float(flows.num_bytes[flow])) for flow in begun}
        done = set()
        for flow in np.flatnonzero(flows.is_active).tolist():
            moved = flows.rate[flow] * (now - flows.since[flow])
            left[flow] = max(0.0, float(flows.remaining[flow] - moved))
            if state.ends.due[flow] <= now:
                left[flow] = 0.0
                done.add(flow)
        for idle in (flows.is_active, flows.rate, flows.level):
            idle[:] = 0
        for empty in (state.num_started, state.num_ended, state.ends.size):
            empty[0] = 0
        state.ends.place[:] = -1
        self.kernel_state = state._replace(
            crossings=crossings_of(change.incidence, change.capacity.size),
            links=links_of(change.capacity),
        )
        rows = _rows(change.incidence)
        waits = {flow for flow in left if change.held[flow]} - done
        hit = [
            flow
            for flow in left.keys() - done
            if (flow in waits and not self._held[flow])
            or rows[flow] != self._rows[flow]
        ]
        self._held, self._rows = change.held, rows
        self._waiting = {flow: left[flow] for flow in waits}
        self._resumed = {flow: left[flow] for flow in left.keys() - waits}
        for flow in sorted(self._resumed):
            super().start(flow)
        return Hit(now, len(hit), math.fsum(left[flow] for flow in hit))


def _rows(incidence: Incidence) -> list[bytes]:
    """Return the links and weights of each flow, to compare them."""
    indptr = incidence.indptr.tolist()
    return [
        incidence.links[begin:end].tobytes() + incidence.weights[begin:end].tobytes()
        for begin, end in pairwise(indptr)
    ]


class ChangingEngine(Engine):
    """SimPy's engine over links that change.

    Parameters
    ----------
    system
        What runs, as it is at 0.
    changes
        What becomes of it, by time.
    """

    def __init__(self, system: System, changes: Sequence[FlowChange]) -> None:
        super().__init__(system, recording=False)
        self._changing = ChangingFluid(system)
        self._fluid = self._changing
        self.hits: list[Hit] = []
        self._change_later(changes)

    def _change_later(self, changes: Sequence[FlowChange]) -> None:
        """Make changes when so much time has passed from now on."""
        for change in changes:
            moment = Timeout(self.environment, change.time, change)
            moment.callbacks.append(self._on_change)

    def _on_change(self, event: Event) -> None:
        change = event.value
        assert isinstance(change, FlowChange)
        for channel, latency in zip(
            self.channels, change.latency.tolist(), strict=True
        ):
            channel.latency = latency
        hit = self._changing.change(self.environment.now, change)
        self.hits.append(hit)
        # Ends that were due have lost their timers.
        self._next_end = -1.0
        self._touch()


def build_changing(
    network: Network, work: PipelineWork, events: Sequence[LinkEvent]
) -> tuple[System, tuple[FlowChange, ...]]:
    """Return a step as it is without events, and what events change of it.

    Raises
    ------
    InputError
        If a link's name is wrong, devices are cut off from others, or the schedule does
        not work with these sizes.
    """
    moments = link_moments(network, events)
    draft = draft_step(network, work)
    flows = [build_flows(moment.network, work) for moment in moments]
    num_links = len(network.links)
    slowest = [
        its.latency + slowest_times(its.incidence, moment.capacity, its.num_bytes)
        for its, moment in zip(flows, moments, strict=True)
    ]
    most = np.append(np.max(slowest, axis=0), 0.0)
    programs = draft.programs(TICK)
    waits = sum(event.reroute_time for event in events)
    horizon = latest_end(programs, most[port_table(draft.by_stage, programs)]) + waits
    tick = tick_for(max(horizon, moments[-1].time + 1.0))
    if tick > TICK:
        programs = draft.programs(tick)
    used = np.logical_or.reduce([its.used(num_links) for its in (draft.flows, *flows)])
    kept = np.flatnonzero(used)
    system = draft.system(programs, network.links, kept, tick)
    changes = tuple(
        FlowChange(
            time=quantise(moment.time, tick),
            incidence=its.incidence.restricted(kept, num_links),
            capacity=moment.capacity[kept],
            latency=quantise(its.latency, tick),
            held=crosses(its.incidence, moment.is_dead),
        )
        for its, moment in zip(flows, moments, strict=True)
    )
    check_short(system, "cluster.link_events")
    return system, changes


def check_short(system: System, where: str) -> None:
    """Refuse a step that takes SimPy too long device by device, for a setting."""
    seconds = forecast_seconds(system)["simpy"]
    if seconds > MOST_SECONDS:
        raise InputError(
            "needs each device by itself, which takes too long",
            where=where,
            got=f"a step of {len(system.program):,} actors, about {seconds:.0f} s",
            expected=f"at most {MOST_SECONDS:.0f} s: fewer devices or microbatches",
        )


def slowest_times(
    incidence: Incidence, capacity: FloatArray, num_bytes: FloatArray
) -> FloatArray:
    """Return how long each flow takes at most, all being active [s]."""
    weights = np.bincount(incidence.links, incidence.weights, capacity.size)
    slowness = np.append((weights / capacity)[incidence.links], 0.0)
    most = np.maximum.reduceat(slowness, incidence.indptr[:-1])
    most[np.diff(incidence.indptr) == 0] = 0.0
    return np.asarray(num_bytes * most)


def crosses(incidence: Incidence, chosen: BoolArray) -> BoolArray:
    """Return which flows cross any of the links."""
    entries = np.append(0, np.cumsum(chosen[incidence.links]))
    return np.asarray(np.diff(entries[incidence.indptr]) > 0)


def replay_changing(
    network: Network,
    work: PipelineWork,
    events: Sequence[LinkEvent],
    plain_time: float,
) -> ChangedStep:
    """Simulate one training step in which links fail, slow down or come back.

    Parameters
    ----------
    network, work
        As `nestsim.simulator.replay.replay` takes them.
    events
        What happens to links.
    plain_time
        Time of the step if nothing happens [s].

    Raises
    ------
    InputError
        If a link's name is wrong, devices are cut off from others, or the step is too
        long to be simulated device by device.
    """
    system, changes = build_changing(network, work, events)
    begins_whole = all(event.time > 0.0 for event in events)
    engine = ChangingEngine(system, changes[begins_whole:])
    end = engine.run()
    return ChangedStep(end, plain_time, tuple(engine.hits))
