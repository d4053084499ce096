"""A step over optical switches, whose circuits change between its phases, in SimPy.

The *passes* of a step are a phase, with all that they wait for; the collectives of
gradients and parameters at its end are another one. Each has the pattern of circuits
that suits what it sends. As soon as the last message of the passes over circuits has
arrived, circuits are changed for the other phase, and at the beginning of the next step
they are changed back. What is changed carries nothing meanwhile; what stays joined goes
on. A transfer whose route has no circuit waits for a pattern that has one, and nobody
passes on what is meant for others: without a change the pattern is that for all bytes
of the step together.

On a route a circuit is a link between the one into the switch and the one out of it,
so that everything else is the network's: links into switches are shared as they always
are, and routes and latencies stay.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from nestsim.simulator.build import Draft, draft_step, latest_end, port_table
from nestsim.simulator.changing import (
    ChangingEngine,
    FlowChange,
    check_short,
    crosses,
    slowest_times,
)
from nestsim.simulator.flows import Flows, number_flows
from nestsim.simulator.folding import list_steps, num_posts_of_channels
from nestsim.simulator.simpy_engine import Channel
from nestsim.simulator.system import TICK, System, quantise, tick_for
from nestsim.simulator.work import PipelineWork
from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.circuits import (
    OpticalSpec,
    assign_circuits,
    most_peers,
    optical_switches,
)
from topologies.errors import InputError
from topologies.network import Links, Network, Routes


class CircuitStep(NamedTuple):
    """A step over optical switches."""

    plain_time: float
    """Time of the step with switches that pass on packets to anywhere [s]."""

    fixed_time: float | None
    """The same with circuits that stay; None if that takes more ports [s]."""

    changing_time: float
    """The same with circuits that change [s]."""

    ports: int
    """Ports of a link."""

    fixed_ports: int
    """Ports of a link that circuits need that stay."""

    reconfiguration_time: float
    """How long changed circuits carry nothing [s]."""

    changed_at: float | None
    """When circuits are changed for the end of the step; None if never [s]."""

    pairs: tuple[int, int]
    """Pairs of links that send to each other in the passes, and at the end of the
    step."""

    @property
    def iteration_time(self) -> float:
        """Time of the step, circuits being changed only where that is faster [s]."""
        stays = self.changing_time if self.fixed_time is None else self.fixed_time
        return min(stays, self.changing_time)


class _Circuits(NamedTuple):
    """A step whose routes cross circuits, which are links behind the network's."""

    draft: Draft
    """The step."""

    links: Links
    """The network's links and circuits; the latter carry what a port does."""

    first: IntArray
    """Link into the switch, of each circuit, shape ``(V,)``."""

    second: IntArray
    """Link out of the switch, shape ``(V,)``."""

    @property
    def num_circuits(self) -> int:
        """Circuits that routes may cross, ``V``."""
        return self.first.size


class CircuitEngine(ChangingEngine):
    """SimPy's engine over circuits that change when some messages have arrived.

    Parameters
    ----------
    system
        What runs.
    changes
        What becomes of it, by time.
    awaited
        Channels whose messages must have arrived, shape ``(C,)``.
    number
        Messages of these channels.
    following
        What happens then, by time from then on.
    """

    def __init__(
        self,
        system: System,
        changes: Sequence[FlowChange],
        *,
        awaited: BoolArray,
        number: int,
        following: Sequence[FlowChange],
    ) -> None:
        super().__init__(system, changes)
        self._awaited = {
            id(channel)
            for channel, counts in zip(self.channels, awaited.tolist(), strict=True)
            if counts
        }
        self._left = number
        self._following = following
        self.changed_at: float | None = None

    def _arrive(self, channel: Channel) -> None:
        super()._arrive(channel)
        if id(channel) in self._awaited:
            self._left -= 1
            if not self._left:
                self.changed_at = float(self.environment.now)
                self._change_later(self._following)


def replay_circuits(
    network: Network, work: PipelineWork, optical: OpticalSpec, plain_time: float
) -> CircuitStep:
    """Simulate one training step over optical switches.

    Parameters
    ----------
    network, work
        As `nestsim.simulator.replay.replay` takes them.
    optical
        Which switches are optical.
    plain_time
        Time of the step if none is [s].

    Raises
    ------
    InputError
        If switches of that level cannot be optical, links have too few ports for a
        phase, or the step is too long to be simulated device by device.
    """
    circuits = _lay(network, work, optical_switches(network, optical.level))
    draft, links = circuits.draft, circuits.links
    flows = draft.flows
    num_links = len(links)
    kept = np.flatnonzero(flows.used(num_links))
    system = draft.system(draft.programs(TICK), links, kept, TICK)
    sent = num_posts_of_channels(system, list_steps(system)) // flows.num_sources
    at_end = _at_end(flows)
    demands = [
        _demand(circuits, np.where(phase, flows.num_bytes * sent, 0.0))
        for phase in (~at_end, at_end)
    ]
    patterns = [
        _pattern(circuits, demand, others, optical.ports)
        for demand, others in (demands, demands[::-1])
    ]
    whole = demands[0] + demands[1]
    fixed = _pattern(circuits, whole, np.zeros(whole.size), optical.ports)
    for (counts, needs), phase in zip(patterns, ("passes", "end"), strict=True):
        if counts is None:
            raise InputError(
                "is less than what circuits join a link to at a time",
                where="cluster.optical.ports",
                got=f"{optical.ports}, of the level {optical.level!r}",
                expected=f"{needs} for what the {phase} of the step sends",
            )
    before, after = (counts for counts, _ in patterns)
    assert before is not None
    assert after is not None
    in_use = [counts for counts in (before, after, fixed[0]) if counts is not None]
    rooms = [_capacity(circuits, counts, optical.ports) for counts in in_use]
    # What waits for the end of the passes waits no longer than they take.
    tick = tick_for(2.0 * (_longest(draft, rooms) + optical.reconfiguration_time))
    if tick > TICK:
        system = draft.system(draft.programs(tick), links, kept, tick)
    check_short(system, "cluster.optical")

    def change(counts: IntArray, time: float = 0.0) -> FlowChange:
        missing = np.zeros(num_links, dtype=np.bool_)
        missing[num_links - circuits.num_circuits :] = counts == 0
        return FlowChange(
            time=float(quantise(time, tick)),
            incidence=system.incidence,
            capacity=_capacity(circuits, counts, optical.ports)[kept],
            latency=system.latency,
            held=crosses(flows.incidence, missing),
        )

    duration = optical.reconfiguration_time
    stays = [change(np.minimum(before, after))] if duration else []
    over = crosses(flows.incidence, np.arange(num_links) >= len(network.links))
    awaited = over & ~at_end & (sent > 0)
    changes = all(demand.any() for demand in demands)
    begins = [*stays, change(before, duration)] if changes else [change(before)]
    engine = CircuitEngine(
        system,
        begins,
        awaited=awaited & changes,
        number=int(sent[awaited].sum()),
        following=[*stays, change(after, duration)],
    )
    end = engine.run()
    fixed_time = None
    if fixed[0] is not None:
        fixed_time = ChangingEngine(system, [change(fixed[0])]).run()
    return CircuitStep(
        plain_time=plain_time,
        fixed_time=fixed_time,
        changing_time=end,
        ports=optical.ports,
        fixed_ports=fixed[1],
        reconfiguration_time=duration,
        changed_at=engine.changed_at,
        pairs=(int(np.count_nonzero(demands[0])), int(np.count_nonzero(demands[1]))),
    )


def _lay(network: Network, work: PipelineWork, is_switch: BoolArray) -> _Circuits:
    """Put a circuit on each route where it goes through a switch."""
    draft = draft_step(network, work)
    pairs = number_flows(work)[0].pairs()
    routes, links = pairs.routes(network), network.links
    # Routes end at devices: behind a link into a switch there is one out of it.
    into = np.flatnonzero(is_switch[links.target[routes.links]])
    first, second = routes.links[into], routes.links[into + 1]
    keys, circuit = np.unique(first * len(links) + second, return_inverse=True)
    behind = np.insert(routes.links, into + 1, len(links) + circuit)
    indptr = routes.indptr + np.searchsorted(into, routes.indptr)
    first, second = np.divmod(keys, len(links))
    crossed = Links(
        source=np.append(links.source, links.target[first]),
        target=np.append(links.target, links.source[second]),
        bandwidth=np.append(
            links.bandwidth, np.minimum(links.bandwidth[first], links.bandwidth[second])
        ),
        latency=np.append(links.latency, np.zeros(keys.size)),
        level=np.append(links.level, links.level[first]),
        num_parallel=np.append(links.num_parallel, np.ones(keys.size, np.int64)),
    )
    incidence = pairs.incidence(Routes(indptr, behind), len(crossed))
    flows = replace(draft.flows, incidence=incidence)
    return _Circuits(draft._replace(flows=flows), crossed, first, second)


def _longest(draft: Draft, rooms: Sequence[FloatArray]) -> float:
    """Return a moment before which the step has ended, if nothing waits [s].

    Parameters
    ----------
    draft
        The step.
    rooms
        Capacities that there are in turn, shape ``(E + V,)`` [byte/s].
    """
    flows, programs = draft.flows, draft.programs(TICK)
    most = [slowest_times(flows.incidence, room, flows.num_bytes) for room in rooms]
    slowest = np.append(flows.latency + np.max(most, axis=0), 0.0)
    return latest_end(programs, slowest[port_table(draft.by_stage, programs)])


def _at_end(flows: Flows) -> BoolArray:
    """Return which flows are of the end of the step, shape ``(F,)``."""
    buckets = chain.from_iterable(flows.reduce_buckets)
    by_stage = (*flows.reduce, *flows.gather, flows.tied, *buckets)
    at_end = np.zeros(len(flows), dtype=np.bool_)
    at_end[list(chain.from_iterable(by_stage))] = True
    return at_end


def _demand(circuits: _Circuits, num_bytes: FloatArray) -> FloatArray:
    """Return what goes over each circuit, shape ``(V,)`` [byte].

    Parameters
    ----------
    circuits
        The step.
    num_bytes
        What each flow carries between each pair of its devices, shape ``(F,)`` [byte].
    """
    incidence, num_links = circuits.draft.flows.incidence, len(circuits.links)
    carried = np.repeat(num_bytes, np.diff(incidence.indptr)) * incidence.weights
    demand = np.bincount(incidence.links, carried, num_links)
    return np.asarray(demand[num_links - circuits.num_circuits :])


def _pattern(
    circuits: _Circuits, demand: FloatArray, others: FloatArray, ports: int
) -> tuple[IntArray | None, int]:
    """Return the ports of each circuit, shape ``(V,)``, and how many a link needs.

    None if links have less. Parameters as of `assign_circuits`, of all circuits.
    """
    counts, most = np.zeros(demand.size, np.int64), 0
    switch = circuits.links.target[circuits.first]
    for vertex in np.unique(switch).tolist():
        mine = np.flatnonzero(switch == vertex)
        rows, row = np.unique(circuits.first[mine], return_inverse=True)
        columns, column = np.unique(circuits.second[mine], return_inverse=True)
        through = np.zeros((2, rows.size, columns.size))
        through[:, row, column] = demand[mine], others[mine]
        most = max(most, most_peers(through[0]))
        assigned = assign_circuits(through[0], through[1], ports)
        if assigned is not None:
            counts[mine] = assigned[row, column]
    return counts if most <= ports else None, most


def _capacity(circuits: _Circuits, counts: IntArray, ports: int) -> FloatArray:
    """Return the capacity of links and circuits, shape ``(E + V,)`` [byte/s].

    That of a circuit with no ports is what a port carries: nothing can start on it.
    """
    capacity = np.array(circuits.links.bandwidth)
    capacity[capacity.size - counts.size :] *= np.maximum(counts, 1) / ports
    return capacity
