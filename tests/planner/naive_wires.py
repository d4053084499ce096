"""Messages over explicit routes: what they take when they are sent at the same time.

A link that ``w`` messages cross at the same time gives each of them ``1 / w`` of its
bandwidth. Nothing of the kernels that walk routes is used.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise, product

import numpy as np

from estimators.collectives.cost import (
    RING_ALGORITHMS,
    algorithm_phases,
    searched_algorithms,
)
from estimators.collectives.messages import placed_exchanges
from topologies import Network
from topologies.arrays import IntArray

Rate = tuple[float, float]
"""Latency [s] and inverse bandwidth [s/byte]."""

FREE: Rate = (0.0, 0.0)


class Wires:
    """Routes of a small network, and prices of what was sent over them before."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.blocks = network.block_sizes
        self.algorithms = searched_algorithms(network)
        everyone = range(network.num_devices)
        pairs = list(product(everyone, everyone))
        routes = network.routes(*np.array(pairs, dtype=np.int64).T)
        ends = routes.indptr.tolist()
        self.route = {
            pair: tuple(routes.links[start:end].tolist())
            for pair, (start, end) in zip(pairs, pairwise(ends), strict=True)
        }
        latency = network.links.latency.tolist()
        self.latency = {
            pair: sum(latency[link] for link in route)
            for pair, route in self.route.items()
        }
        self.seconds = [1.0 / one for one in network.links.bandwidth.tolist()]
        self._phases: dict[object, list[tuple[tuple, float, int]]] = {}
        self._rounds: dict[object, list[Rate]] = {}

    def slowest(self, teams: tuple) -> list[Rate]:
        """Send the messages of all teams at once; return the worst of each team."""
        if teams not in self._rounds:
            load = Counter(
                link
                for messages in teams
                for pair in messages
                for link in self.route[pair]
            )
            self._rounds[teams] = [
                (
                    max((self.latency[pair] for pair in messages), default=0.0),
                    max(
                        (
                            load[link] * self.seconds[link]
                            for pair in messages
                            for link in self.route[pair]
                        ),
                        default=0.0,
                    ),
                )
                for messages in teams
            ]
        return self._rounds[teams]

    def phases(
        self, operation: str, groups: tuple, algorithm: str
    ) -> list[tuple[tuple, float, int]]:
        """Return messages, fraction and steps of each phase of one stage's groups."""
        key = operation, groups, algorithm
        if key not in self._phases:
            members = np.array(groups, dtype=np.int64)
            self._phases[key] = list(self._sent(operation, members, algorithm))
        return self._phases[key]

    def _sent(
        self, operation: str, members: IntArray, algorithm: str
    ) -> Iterable[tuple[tuple, float, int]]:
        if algorithm in RING_ALGORITHMS:
            for phase in algorithm_phases(self.network, operation, members, algorithm):
                messages = tuple(around(phase.rings.tolist()))
                yield messages, phase.fraction, phase.num_steps
        else:
            for phase in placed_exchanges(self.network, operation, members, algorithm):
                ends = phase.sources.tolist(), phase.targets.tolist()
                messages = tuple(zip(*ends, strict=True))
                yield messages, phase.fraction, phase.num_steps

    def collective(self, stages: list, operation: str, algorithm: str) -> list[Rate]:
        """Price all groups of all stages at the same time, phase by phase."""
        each = [self.phases(operation, groups, algorithm) for groups in stages]
        totals = [FREE] * len(stages)
        for turn in range(max(len(phases) for phases in each)):
            present = [s for s, phases in enumerate(each) if turn < len(phases)]
            worst = self.slowest(tuple(each[s][turn][0] for s in present))
            for s, (latency, inverse) in zip(present, worst, strict=True):
                _, fraction, num_steps = each[s][turn]
                before = totals[s]
                totals[s] = (
                    before[0] + num_steps * latency,
                    before[1] + fraction * inverse,
                )
        return totals


def around(rings: Iterable[list[int]]) -> Iterable[tuple[int, int]]:
    """Yield the messages of rings: everyone to the next one."""
    for ring in rings:
        yield from zip(ring, [*ring[1:], ring[0]], strict=True)
