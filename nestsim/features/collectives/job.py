"""Measure the collectives of a plan as nccl-tests does, alone and in the job's traffic.

The plan is the one given, or the best found. For each kind of group that the plan has,
each operation that it does and each size of a range, the cheapest algorithm is chosen
by its closed form, all groups of the kind communicating at once, as the planner prices
them. The operation is then simulated over the links three times:

- *alone*: one group, the one that needs longest, and nothing else;
- *together*: all groups of the kind, of all stages and replicas, from the same moment
  on, until the last one is done;
- *busy*: all groups of the kind again and again, while every other kind of group keeps
  on doing what it does in the plan's steady state, with the plan's sizes and
  algorithms: it computes as long as it does in the plan, communicates as long as that
  takes among the others, and begins again. The moments of the measured operations are
  spread over the longest such period, so that they meet all parts of it. The result is
  the mean over the operations of the slowest unit (`nestsim.lowering.traffic`). What a
  plan sends once, at the end of the step, is no background.

Letters: ``U`` units, ``G`` groups of a unit, ``n`` members of a group.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from estimators.collectives.algorithms import HIERARCHICAL, algorithms_for
from estimators.collectives.messages import exchange_rates, placed_exchanges
from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.features.collectives.runs import (
    Background,
    Repeated,
    Wires,
    busy_time,
    durations,
    evenly,
    reached,
    wires_of,
)
from nestsim.lowering.traffic import GroupTraffic, plan_traffic
from nestsim.scenario.load import Scenario
from planner.cost.objective import PricedPlan
from planner.work import Progress, Spent
from topologies.arrays import FloatArray, IntArray
from topologies.errors import short_repr
from topologies.network import Network

MOST_MESSAGES = 2**22
"""Between all pairs of all groups: with more, messages are not sent directly."""

_SAME = 1.0 + 1e-9
"""Times that differ by less are equal: rounding explains it."""

BUS_FACTORS: Mapping[str, tuple[float, bool]] = {
    "all_reduce": (2.0, True),
    "all_gather": (1.0, True),
    "reduce_scatter": (1.0, True),
    "all_to_all": (1.0, True),
    "broadcast": (1.0, False),
    "send_recv": (1.0, False),
}
"""Bus over algorithm bandwidth: a factor, and whether times ``(n - 1) / n``
(nccl-tests, ``doc/PERFORMANCE.md``; ``src/sendrecv.cu``)."""


class SizeTiming(NamedTuple):
    """One cell group of the table of nccl-tests."""

    time: float
    """Duration of one operation [s]."""

    algorithm_bandwidth: float
    """Size over time [byte/s]."""

    bus_bandwidth: float
    """What the links would have to have, whatever the number of members [byte/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """One size of one operation."""

    num_bytes: int
    """Size as nccl-tests counts it (`estimators.collectives.phases`) [byte]."""

    algorithm: str
    """The cheapest one."""

    closed_forms: Mapping[str, float]
    """What each algorithm would take, all groups together [s]."""

    alone: SizeTiming
    """Timing of one group with nothing else."""

    together: SizeTiming
    """Timing of all groups of the kind at once."""

    busy: SizeTiming
    """Timing of all groups of the kind in the job's own traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTable:
    """One operation of one kind of group."""

    traffic: GroupTraffic
    """Kind of group, its operation and its devices."""

    rows: tuple[SizeRow, ...]
    """Measurements, size by size."""


def sizes_between(first: int, last: int, factor: int) -> tuple[int, ...]:
    """Return the sizes of the table: from ``first`` to ``last``, times ``factor``."""
    assert 0 < first <= last
    assert factor > 1
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def bus_factor(operation: str, num_members: int) -> float:
    """Return bus bandwidth over algorithm bandwidth."""
    factor, shared = BUS_FACTORS[operation]
    return factor * (num_members - 1) / num_members if shared else factor


def measure(
    network: Network,
    traffics: Sequence[GroupTraffic],
    sizes: Sequence[int],
    *,
    progress: Progress | None = None,
) -> tuple[OperationTable, ...]:
    """Measure every operation of a plan's groups at every size.

    The same input gives bitwise the same output.
    """
    kinds = [_Kind(network, traffic) for traffic in traffics]
    tables = []
    for index, kind in enumerate(kinds):
        others = [other for other in kinds if other.traffic.kind != kind.traffic.kind]
        background = [unit for other in others for unit in other.steady]
        rows = []
        for number, size in enumerate(sizes):
            if progress is not None:
                done = (index + number / len(sizes)) / len(kinds)
                name = f"{kind.traffic.kind} {kind.traffic.operation}"
                progress(f"collectives: {name.replace('_', '-')}", done)
            rows.append(_row(kind, background, size))
        tables.append(OperationTable(traffic=kind.traffic, rows=tuple(rows)))
    return tuple(tables)


class _Kind:
    """One operation of one kind of group, by every algorithm."""

    def __init__(self, network: Network, traffic: GroupTraffic) -> None:
        self.network, self.traffic = network, traffic
        self._wires: dict[str, tuple[Wires, ...]] = {}
        self._each: dict[str, FloatArray] = {}

    @cached_property
    def rates(self) -> dict[str, FloatArray]:
        """Latency and inverse bandwidth of each unit, all of them together."""
        traffic = self.traffic
        num_pairs = traffic.num_groups * traffic.num_members**2
        by_algorithm = {}
        for name in algorithms_for(
            traffic.operation, self.network.rules, self.network.num_axes
        ):
            direct = traffic.operation != "send_recv" and "direct" in {
                name,
                HIERARCHICAL.get(name, {}).get(traffic.operation),
            }
            if not direct or num_pairs <= MOST_MESSAGES:
                by_algorithm[name] = exchange_rates(
                    self.network, traffic.operation, traffic.groups, name
                )
        return by_algorithm

    def closed_forms(self, num_bytes: float) -> dict[str, float]:
        """Return what the slowest unit needs by each algorithm [s]."""
        return {
            name: float((rates[:, 0] + num_bytes * rates[:, 1]).max())
            for name, rates in self.rates.items()
        }

    def wires(self, algorithm: str) -> tuple[Wires, ...]:
        """Return the phases of each unit."""
        if algorithm not in self._wires:
            self._wires[algorithm] = tuple(
                self._wires_of(groups, algorithm) for groups in self.traffic.groups
            )
        return self._wires[algorithm]

    def slowest_group(self, algorithm: str, num_bytes: float) -> Wires:
        """Return the phases of the group that needs longest when it is alone."""
        groups = self.traffic.groups.reshape(-1, 1, self.traffic.num_members)
        if algorithm not in self._each:
            self._each[algorithm] = exchange_rates(
                self.network,
                self.traffic.operation,
                groups,
                algorithm,
                together=False,
            )
        latency, inverse = self._each[algorithm].T
        slowest = int((latency + num_bytes * inverse).argmax())
        return self._wires_of(groups[slowest], algorithm)

    def _wires_of(self, groups: IntArray, algorithm: str) -> Wires:
        phases = placed_exchanges(
            self.network, self.traffic.operation, groups, algorithm
        )
        return wires_of(self.network, phases)

    @cached_property
    def steady(self) -> tuple[Background, ...]:
        """What the units do in the plan's steady state."""
        traffic = self.traffic
        if not np.isfinite(traffic.period).any():
            return ()
        name = traffic.algorithm
        if name not in self.rates:
            # The first one is the ring where there is one; NCCL, too, falls back to it.
            name = next(iter(self.rates))
        latency, inverse = self.rates[name].T
        taken = latency + traffic.num_bytes * inverse
        gaps = np.maximum(traffic.period - taken, 0.0)
        # Stages are not at the same place of their work; replicas and their ranks are.
        share = evenly(traffic.stage + 1)
        return tuple(
            Background(wires, float(num_bytes), float(delay), float(gap))
            for wires, num_bytes, delay, gap, period in zip(
                self.wires(name),
                traffic.num_bytes,
                share * gaps,
                gaps,
                traffic.period,
                strict=True,
            )
            if math.isfinite(period) and num_bytes > 0
        )


def _row(kind: _Kind, background: Sequence[Background], num_bytes: int) -> SizeRow:
    closed_forms = kind.closed_forms(num_bytes)
    algorithm = _cheapest(closed_forms)
    links = kind.network.links
    slowest = kind.slowest_group(algorithm, num_bytes)
    (alone,) = durations(links, [Repeated(slowest, num_bytes, (0.0,))])
    units = kind.wires(algorithm)
    ends = durations(links, [Repeated(wires, num_bytes, (0.0,)) for wires in units])
    together = max(float(times[0]) for times in ends)
    meeting = reached(links, units, background)
    busy = together
    if meeting:
        busy = busy_time(links, units, num_bytes, meeting, together)
    factor = bus_factor(kind.traffic.operation, kind.traffic.num_members)

    def timing(time: float) -> SizeTiming:
        return SizeTiming(time, num_bytes / time, factor * num_bytes / time)

    return SizeRow(
        num_bytes=num_bytes,
        algorithm=algorithm,
        closed_forms=closed_forms,
        alone=timing(float(alone[0])),
        together=timing(together),
        busy=timing(busy),
    )


def _cheapest(closed_forms: Mapping[str, float]) -> str:
    """Return the first of those that only rounding tells from the cheapest."""
    least = min(closed_forms.values())
    return next(name for name, time in closed_forms.items() if time <= _SAME * least)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesResult:
    """What a report on collectives needs."""

    scenario_name: str
    """Name of the scenario."""

    network: Network
    """Network of the cluster."""

    priced: PricedPlan | None
    """The plan whose groups communicate; None if none fits."""

    shortfall: str
    """Why there is no plan, in one sentence; empty if there is one."""

    spent: Spent | None
    """The work of the search; None where the plan was given."""

    tables: tuple[OperationTable, ...]
    """Measurements by kind of group and operation; empty if no device sends
    anything."""

    __repr__ = short_repr


def collectives_job(
    scenario: Scenario, sizes: Sequence[int], *, progress: Progress | None = None
) -> CollectivesResult:
    """Measure what the groups of the scenario's plan do, at every size.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    evaluator = Evaluator.of(scenario, progress)
    network, workload = evaluator.network, evaluator.workload
    shortfall, priced, spent = "", None, None
    if scenario.plan is not None:
        priced = price_table_plan(scenario, network, workload)
    else:
        outcome = evaluator.find("nest", scenario.planner_settings, progress=progress)
        spent, shortfall = outcome.spent, outcome.why_not
        priced = outcome.plans[0] if outcome.plans else None
    tables: tuple[OperationTable, ...] = ()
    if priced is not None:
        traffics = plan_traffic(workload, priced)
        tables = measure(network, traffics, sizes, progress=progress)
    return CollectivesResult(
        scenario_name=scenario.name,
        network=network,
        priced=priced,
        shortfall=shortfall,
        spent=spent,
        tables=tables,
    )
