"""The collectives inside of one stage's passes: their numbers, phases and prices.

Alike collectives have one number: those of one group, operation and size. The price is
the planner's: that of all groups of the stage, and of all stages, at the same time.
"""

from typing import NamedTuple

import numpy as np

from nestsim.placing.teams import (
    Teams,
    all_to_all_phase,
    collective_team_phases,
    find_teams,
    hop_phase,
)
from nestsim.simulator.phases import TeamEdgePhase, TeamPhase
from nestsim.simulator.work import TeamTraffic
from planner.cost.pricing import plan_degrees
from planner.cost.rates import PlacementRates, dense_groups, expert_data_groups
from planner.cost.stage import sharding_of
from planner.step.plan import Plan
from topologies import Network
from topologies.arrays import IntArray

KINDS = ("tensor", "context", "expert", "layer gather", "layer reduce")
"""Names in `TRANSFER_KINDS` of what layers send."""


class Message(NamedTuple):
    """One collective inside of a pass."""

    kind: str
    """One of `KINDS`."""

    operation: str
    """As in `estimators.layers.table.InLayerTraffic`; ``"combine"`` for an all-to-all
    back from the experts that is not symmetric to the one there."""

    num_bytes: float
    """Of the full tensor [byte]."""

    num_hops: int = 1
    """Latencies of an operation's rounds that are paid: the hops of a ring exchange,
    1 for others (0 if the collective is not counted as one)."""

    experts: bool = False
    """Whether ranks that hold the same experts send it, not those that hold the same
    dense parameters."""


class StageTraffic:
    """Numbers the messages of one stage.

    Parameters
    ----------
    network
        Where the devices are.
    plan
        Whose stage it is.
    grid
        The stage's devices, shape ``(1, dp, ep, cp, tp)``.
    index
        Which stage it is.
    expert_skew
        Tokens of the busiest expert-parallel rank over the mean; it gets all of them
        at most.
    """

    def __init__(
        self,
        network: Network,
        plan: Plan,
        grid: IntArray,
        index: int,
        expert_skew: float,
    ) -> None:
        self.network, self.plan, self.grid, self.index = network, plan, grid, index
        self.degrees = plan_degrees(plan)
        self.skew = min(expert_skew, float(grid.shape[2]))
        self.numbers: dict[Message, int] = {}
        self._teams: dict[tuple[str, bool], Teams] = {}

    def number(self, message: Message) -> int:
        """Return the number of a message, a new one if it is the first of its kind."""
        return self.numbers.setdefault(message, len(self.numbers))

    def is_sent(self, kind: str, *, experts: bool = False) -> bool:
        """Return whether groups of a kind have more than one member."""
        sizes = self.plan.parallel.sizes()
        stage = self.plan.stages[self.index]
        shared = stage.sharding_group_size
        if experts:
            shared = sizes.dp * sizes.cp // sizes.ep
        size = {"tensor": sizes.tp, "context": sizes.cp, "expert": sizes.ep}
        return size.get(kind, shared) > 1

    def teams(self) -> tuple[TeamTraffic, ...]:
        """Return what the moves of the stage's passes number."""
        found = []
        for message in self.numbers:
            groups = self._groups(message)
            phases = self._phases(message, groups)
            found.append(TeamTraffic(message.kind, groups.team, phases))
        return tuple(found)

    def times(self, rates: PlacementRates) -> list[float]:
        """Return the price of every message [s]."""
        return [self._time(message, rates) for message in self.numbers]

    def price(self, number: int, rates: PlacementRates) -> float:
        """Return the price of one message [s]."""
        return self._time(list(self.numbers)[number], rates)

    def _groups(self, message: Message) -> Teams:
        key = message.kind, message.experts
        if key not in self._teams:
            lanes = self.grid[0]
            lanes = lanes.reshape(lanes.shape[0] * lanes.shape[1], -1)
            self._teams[key] = find_teams(lanes, self._members(message))
        return self._teams[key]

    def _members(self, message: Message) -> IntArray:
        """Return the groups that send a message, shape ``(G, n)``."""
        axes = {"tensor": 4, "context": 3, "expert": 2}
        if message.kind in axes:
            axis = axes[message.kind]
            size = self.grid.shape[axis]
            groups = np.moveaxis(self.grid, axis, -1).reshape(-1, size)
            return np.asarray(groups, dtype=np.int64)
        if message.experts:
            return np.asarray(expert_data_groups(self.grid)[0], dtype=np.int64)
        shared = self.plan.stages[self.index].sharding_group_size
        dense = np.sort(dense_groups(self.grid)[0], axis=1)
        return np.asarray(dense.reshape(-1, shared), dtype=np.int64)

    def _phases(
        self, message: Message, teams: Teams
    ) -> tuple[TeamPhase | TeamEdgePhase, ...]:
        kind, operation, num_bytes, num_hops, _ = message
        if kind == "context":
            return (hop_phase(teams, num_bytes, num_hops),)
        if kind == "expert":
            combine = operation == "combine"
            phase = all_to_all_phase(teams, num_bytes, self.skew, combine=combine)
            return (phase._replace(num_steps=num_hops),)
        algorithm = self.plan.gradient_algorithm
        if kind == "tensor":
            algorithm = self.plan.tensor_algorithm
        phases = collective_team_phases(
            self.network, teams, operation, algorithm, num_bytes
        )
        return tuple(
            phase._replace(num_steps=phase.num_steps * num_hops) for phase in phases
        )

    def _time(self, message: Message, rates: PlacementRates) -> float:
        kind, operation, num_bytes, num_hops, _ = message
        if kind == "context":
            rate = rates.context
        elif kind == "expert":
            rate = rates.expert
            num_bytes *= self.skew
        elif kind == "tensor":
            rate = rates.tensor[operation]
        elif message.experts:
            rate = rates.expert_data["all_gather"]
        else:
            stage = self.plan.stages[self.index]
            rate = sharding_of(rates, stage).inside["all_gather"]
        latency, inverse_bandwidth = rate[self.index].tolist()
        return float(num_hops * latency + num_bytes * inverse_bandwidth)
