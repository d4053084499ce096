"""Collectives as messages between devices: any algorithm, placed and priced.

The closed form of a collective, for a tensor of ``S`` bytes, is the sum over its
phases of ``steps * latency + fraction * S * inverse_bandwidth``, where the latency is
that of the phase's longest route and the inverse bandwidth that of its most loaded
link, counting every message that crosses it in that phase.
"""

from typing import NamedTuple

import numpy as np

from estimators.collectives.algorithms import (
    HIERARCHICAL,
    algorithm_rules,
    exchanges,
    ruled_exchanges,
)
from estimators.collectives.exchanges import Exchanges
from estimators.collectives.messages import (
    edge_costs,
    flat_shapes,
    level_shapes,
    ordered_groups,
    ruled_shapes,
)
from estimators.collectives.ring_phases import RING_OPERATIONS
from topologies import Network
from topologies.arrays import FloatArray, IntArray


class PlacedExchange(NamedTuple):
    """Messages between devices that leave at the same time and move in lock-step."""

    sources: IntArray
    """Device numbers of the senders, shape ``(M,)``."""

    targets: IntArray
    """Device numbers of the receivers, shape ``(M,)``."""

    fraction: float
    """Bytes that each message carries in all steps together over the bytes of the full
    tensor."""

    num_steps: int
    """Number of rounds, each of which pays the latency once."""


def placed_exchanges(
    network: Network, operation: str, groups: IntArray, algorithm: str
) -> tuple[PlacedExchange, ...]:
    """Return the phases of one collective of groups ``(G, n)`` that move together.

    Raises
    ------
    InputError
        If there is no such algorithm for the operation.
    """
    ordered = ordered_groups(network, groups[None])
    (phases,) = _phases(network, operation, ordered, algorithm)
    return tuple(_place_exchanges(ordered[0], phase) for phase in phases)


def exchange_rates(
    network: Network,
    operation: str,
    groups: IntArray,
    algorithm: str,
    *,
    together: bool = True,
) -> FloatArray:
    """Price one collective per stage, all groups of a stage at the same time.

    Parameters
    ----------
    network
        Where the devices are.
    operation
        One of `estimators.collectives.algorithms.OPERATIONS`.
    groups
        Device numbers, shape ``(stages, groups, n)``.
    algorithm
        One of `estimators.collectives.algorithms.ALGORITHM_NAMES`.
    together
        Whether the stages, too, communicate at the same time; then the phases of
        one number are.

    Returns
    -------
    FloatArray
        Latency [s] and inverse bandwidth [s/byte] of each stage's slowest group,
        shape ``(stages, 2)``. O(messages * hops).

    Raises
    ------
    InputError
        If there is no such algorithm for the operation.
    """
    ordered = ordered_groups(network, groups)
    phases = _phases(network, operation, ordered, algorithm)
    rates = np.zeros((len(ordered), 2))
    for number in range(max((len(exchange) for exchange in phases), default=0)):
        present = [s for s, exchange in enumerate(phases) if number < len(exchange)]
        placed = [_place_exchanges(ordered[s], phases[s][number]) for s in present]
        counts = [exchange.sources.size for exchange in placed]
        costs = edge_costs(
            network,
            np.concatenate([exchange.sources for exchange in placed]),
            np.concatenate([exchange.targets for exchange in placed]),
            None if together else np.repeat(np.arange(len(placed)), counts),
        )
        starts = np.cumsum([0, *counts[:-1]])
        factors = (
            [exchange.num_steps for exchange in placed],
            [exchange.fraction for exchange in placed],
        )
        for column, (cost, factor) in enumerate(zip(costs, factors, strict=True)):
            rates[present, column] += np.maximum.reduceat(cost, starts) * factor
    return rates


def _phases(
    network: Network, operation: str, ordered: IntArray, algorithm: str
) -> list[Exchanges]:
    """Return the phases of each stage."""
    blocks = np.array(network.block_sizes, dtype=np.int64)
    rules = algorithm_rules(algorithm, network.rules)
    if rules is not None and rules.depends_on_nodes and operation in RING_OPERATIONS:
        shapes = ruled_shapes(rules)(ordered, blocks)
        found = [
            ruled_exchanges(operation, tuple(row), rules) for row in shapes.tolist()
        ]
    else:
        shapes_of = level_shapes if algorithm in HIERARCHICAL else flat_shapes
        shapes = shapes_of(ordered, blocks)
        found = [exchanges(algorithm, operation, tuple(row)) for row in shapes.tolist()]
    return found * len(ordered) if len(found) == 1 else found


def _place_exchanges(
    ordered: IntArray, phase: tuple[IntArray, IntArray, float, int]
) -> PlacedExchange:
    senders, receivers, fraction, num_steps = phase
    return PlacedExchange(
        ordered[:, senders].reshape(-1),
        ordered[:, receivers].reshape(-1),
        fraction,
        num_steps,
    )
