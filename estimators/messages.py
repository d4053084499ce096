"""Messages between devices: what they cost when they share links.

The one rule behind all prices of communication. A link used by ``w`` of the messages
that are sent at the same time gives each of them at least ``1/w`` of its capacity,
and max-min sharing gives a message exactly that on the link that limits it.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.kernels import edges, groups
from topologies import Network
from topologies.route_tables import (
    PathTable,
    RouteTable,
    TorusTable,
    TreeTable,
    route_table,
)

IntArray = NDArray[np.int64]
Int32Array = NDArray[np.int32]
FloatArray = NDArray[np.float64]


class NetworkArrays(NamedTuple):
    """A network as the kernels' first arguments; their module says what they mean."""

    kind: int
    numbers: IntArray
    rows: Int32Array
    tails: Int32Array
    bandwidth: FloatArray
    latency: FloatArray
    longest: int
    counts: IntArray


@lru_cache(maxsize=4)
def network_arrays(network: Network) -> NetworkArrays:
    """Return a network's arrays, made once; kernels write to `counts`.

    They hold the interpreter's lock while they run, so threads can share it.
    """
    table = route_table(network.routing)
    kind, numbers, rows = _rule(table, network.num_devices)
    tails = table.tails if isinstance(table, PathTable) else np.empty(0, np.int32)
    return NetworkArrays(
        kind=kind,
        numbers=np.array(numbers, dtype=np.int64),
        rows=np.ascontiguousarray(rows),
        tails=tails,
        bandwidth=network.links.bandwidth,
        latency=network.links.latency,
        longest=table.longest,
        counts=np.zeros(len(network.links) + 1, dtype=np.int64),
    )


def _rule(table: RouteTable, num_devices: int) -> tuple[int, list[int], Int32Array]:
    """Return kind, numbers and rows."""
    if isinstance(table, TreeTable):
        numbers = [
            len(table.down),
            table.num_planes,
            int(table.relay),
            int(table.nic_per_device),
            table.num_spines,
            num_devices,
            table.seed - 2**64 if table.seed >= 2**63 else table.seed,
            *table.down.tolist(),
        ]
        return edges.TREE, numbers, table.rows
    if isinstance(table, TorusTable):
        axes = np.stack([table.shape, table.strides, table.wrap], axis=1)
        return edges.TORUS, [len(axes), *axes.ravel().tolist()], table.rows
    return edges.PATHS, [], table.last_link


class EdgeCost(NamedTuple):
    """What each of several simultaneous messages meets on its way."""

    latency: FloatArray
    """Of the route [s]."""

    inverse_bandwidth: FloatArray
    """Of the most loaded link of the route [s/byte]."""


def edge_costs(
    network: Network,
    sources: IntArray,
    targets: IntArray,
    round_of: IntArray | None = None,
) -> EdgeCost:
    """Price messages that are sent at the same time.

    Messages with different numbers in ``round_of`` do not meet. Cost O(messages *
    hops), and a sort if ``round_of`` falls anywhere.
    """
    sources, targets = _devices(network, sources), _devices(network, targets)
    rounds = np.zeros_like(sources) if round_of is None else plain(round_of)
    assert sources.shape == targets.shape == rounds.shape == (len(sources),)
    prices = np.empty((2, len(sources)))
    arrays = network_arrays(network)
    if not edges.price_messages(*arrays, sources, targets, rounds, prices):
        order = np.argsort(rounds, kind="stable")
        sources, targets, rounds = sources[order], targets[order], rounds[order]
        in_order = np.empty_like(prices)
        edges.price_messages(*arrays, sources, targets, rounds, in_order)
        prices[:, order] = in_order
    return EdgeCost(prices[0], prices[1])


def slowest_edges(network: Network, sources: IntArray, targets: IntArray) -> FloatArray:
    """Return the largest latency and inverse bandwidth among each team's messages.

    The maxima of what `edge_costs` gives, in half the time.

    Parameters
    ----------
    network
        Where the devices are.
    sources, targets
        Device numbers, shape ``(rounds, teams, messages)``; messages of all teams of
        a round meet, those of different rounds do not.

    Returns
    -------
    FloatArray
        Shape ``(rounds, teams, 2)``: latency [s] and inverse bandwidth [s/byte].
    """
    sources, targets = _devices(network, sources), _devices(network, targets)
    assert sources.shape == targets.shape
    slowest = np.empty((*sources.shape[:2], 2))
    edges.price_rounds(*network_arrays(network), sources, targets, slowest)
    return slowest


def _devices(network: Network, numbers: IntArray) -> IntArray:
    numbers = plain(numbers)
    if not groups.check_devices(numbers.reshape(-1), network.num_devices):
        raise no_such_device(network)
    return numbers


def no_such_device(network: Network) -> IndexError:
    """Return what to raise for a number of which there is no device."""
    return IndexError(f"device numbers must be from 0 to {network.num_devices - 1}")


def plain(array: IntArray) -> IntArray:
    """Return an array in the one form that kernels are compiled for."""
    array = np.ascontiguousarray(array, dtype=np.int64)
    return array if array.flags.writeable else array.copy()
