"""Messages between devices that share links, and collectives made of them.

One rule is behind all prices of communication. A link used by ``w`` of the messages
that are sent at the same time gives each of them at least ``1/w`` of its capacity,
and max-min sharing gives a message exactly that on the link that limits it.

Groups of many stages are priced together by their shapes: how their members lie in the
blocks of the network.

Collectives as messages between devices: any algorithm, placed and priced.

The closed form of a collective, for a tensor of ``S`` bytes, is the sum over its
phases of ``steps * latency + fraction * S * inverse_bandwidth``, where the latency is
that of the phase's longest route and the inverse bandwidth that of its most loaded
link, counting every message that crosses it in that phase.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np

from estimators.collectives import edges, walks
from estimators.collectives import edges as kernels
from estimators.collectives.algorithms import (
    HIERARCHICAL,
    algorithm_rules,
    exchanges,
    ruled_exchanges,
)
from estimators.collectives.phases import RING_OPERATIONS, Exchanges
from estimators.collectives.tori import (
    MULTI_RING,
    boxes,
    multi_ring_exchanges,
    require_axes,
)
from topologies import Network
from topologies.arrays import FloatArray, IntArray
from topologies.network import CollectiveRules, Family, Routes

Result = TypeVar("Result")

_MOST_MISSING = 2**14
"""Most routes that a kernel can report missing at a time, plus one."""

_MOST_FOUND = 2**21
"""Most pairs of whose routes those that are missing are found at a time."""


_KINDS: Mapping[Family, int] = MappingProxyType(
    {
        "tree": walks.TREE,
        "torus": walks.TORUS,
        "custom": walks.PATHS,
        "joined": walks.JOINED,
    }
)
"""Family of routing rules -> its kind in the kernels."""


class _Prepared:
    """A network's arrays, and the routes around removed links met so far."""

    def __init__(self, network: Network) -> None:
        self.network = network
        table = network.routing.table()
        self.arrays = edges.NetworkArrays(
            kind=_KINDS[network.routing.family],
            numbers=np.array(table.numbers, dtype=np.int64),
            rows=np.ascontiguousarray(table.rows),
            tails=table.tails,
            detours=edges.Detours(
                kept=table.kept,
                pairs=np.empty(0, dtype=np.int64),
                indptr=np.zeros(1, dtype=np.int64),
                links=np.empty(0, dtype=np.uint32),
                missing=np.zeros(
                    _MOST_MISSING if table.kept.size else 0, dtype=np.int64
                ),
            ),
            bandwidth=_frozen(network.links.bandwidth),
            latency=_frozen(network.links.latency),
            longest=table.longest,
            counts=np.zeros(len(network.links) + 1, dtype=np.int64),
        )

    def find_missing(self) -> bool:
        """Find the routes that the last call of a kernel missed; False if none."""
        detours = self.arrays.detours
        if not detours.missing.size or not detours.missing[0]:
            return False
        new = self._pairs_to_find(
            np.unique(detours.missing[1 : detours.missing[0] + 1])
        )
        new = np.setdiff1d(new, detours.pairs, assume_unique=True)
        found = self.network.routes(*np.divmod(new, self.network.num_devices))
        pairs = np.concatenate([detours.pairs, new])
        order = np.argsort(pairs)
        behind = found.indptr[1:] + detours.indptr[-1]
        links = np.concatenate([detours.links, found.links])
        routes = Routes(np.concatenate([detours.indptr, behind]), links).take(order)
        detours.missing[0] = 0
        self.arrays = self.arrays._replace(
            detours=detours._replace(
                pairs=pairs[order],
                indptr=routes.indptr,
                links=routes.links.astype(np.uint32),
            ),
            longest=max(self.arrays.longest, int(np.diff(found.indptr).max())),
        )
        return True

    def _pairs_to_find(self, missed: IntArray) -> IntArray:
        """Return the pairs missed and, as they will be next, others of their sources.

        A search asks for one placement after the other, and each source has a route to
        find in most of them.
        """
        routing, num_devices = self.network.routing, self.network.num_devices
        sources = np.unique(missed // num_devices)[: max(1, _MOST_FOUND // num_devices)]
        pairs = (sources[:, None] * num_devices + np.arange(num_devices)).ravel()
        cut = routing.cut_pairs(*np.divmod(pairs, num_devices))
        return np.union1d(missed, pairs[cut])


def _frozen(values: FloatArray) -> FloatArray:
    """Return the values as the kernels declare them: nobody may write to them."""
    frozen = values.view()
    frozen.flags.writeable = False
    return frozen


@lru_cache(maxsize=4)
def _prepared(network: Network) -> _Prepared:
    """Return a network's arrays, made once.

    Kernels hold the interpreter's lock while they run and write to `counts`, so
    threads can share them.
    """
    return _Prepared(network)


def network_arrays(network: Network) -> edges.NetworkArrays:
    """Return a network as the kernels' first argument."""
    return _prepared(network).arrays


def run_kernel(
    network: Network, kernel: Callable[..., Result], *args: object
) -> Result:
    """Call an edge kernel until it knows all routes it needs.

    Once, where no link has been removed.
    """
    prepared = _prepared(network)
    result = kernel(prepared.arrays, *args)
    while prepared.find_missing():
        result = kernel(prepared.arrays, *args)
    return result


class EdgeCost(NamedTuple):
    """What each of several simultaneous messages meets on its way."""

    latency: FloatArray
    """Latency of each message's route [s]."""

    inverse_bandwidth: FloatArray
    """Inverse bandwidth of the most loaded link of each message's route [s/byte]."""


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
    kernel = edges.price_messages
    if not run_kernel(network, kernel, sources, targets, rounds, prices):
        order = np.argsort(rounds, kind="stable")
        sources, targets, rounds = sources[order], targets[order], rounds[order]
        in_order = np.empty_like(prices)
        run_kernel(network, kernel, sources, targets, rounds, in_order)
        prices[:, order] = in_order
    return EdgeCost(prices[0], prices[1])


def slowest_edges(network: Network, sources: IntArray, targets: IntArray) -> FloatArray:
    """Return the largest latency and inverse bandwidth of each lockstep group.

    The maxima of what `edge_costs` gives, in half the time.

    Parameters
    ----------
    network
        Where the devices are.
    sources, targets
        Device numbers, shape ``(rounds, groups, messages)``; messages of all groups of
        a round meet, those of different rounds do not.

    Returns
    -------
    FloatArray
        Shape ``(rounds, groups, 2)``: latency [s] and inverse bandwidth [s/byte].
    """
    sources, targets = _devices(network, sources), _devices(network, targets)
    assert sources.shape == targets.shape
    slowest = np.empty((*sources.shape[:2], 2))
    run_kernel(network, edges.price_rounds, sources, targets, slowest)
    return slowest


def _devices(network: Network, numbers: IntArray) -> IntArray:
    numbers = plain(numbers)
    if not are_devices(network, numbers):
        raise no_such_device(network)
    return numbers


def are_devices(network: Network, numbers: IntArray) -> bool:
    """Return whether all numbers are of devices of a network."""
    if numbers.size == 0:
        return True
    return bool(numbers.min() >= 0 and numbers.max() < network.num_devices)


def no_such_device(network: Network) -> IndexError:
    """Return what to raise for a number of which there is no device."""
    return IndexError(f"device numbers must be from 0 to {network.num_devices - 1}")


def plain(array: IntArray) -> IntArray:
    """Return an array in the one form that kernels are compiled for."""
    array = np.ascontiguousarray(array, dtype=np.int64)
    return array if array.flags.writeable else array.copy()


Shapes = Callable[[IntArray, IntArray], IntArray]
"""Ordered groups and block sizes -> the shape of each stage's groups."""


def ordered_groups(network: Network, groups: IntArray) -> IntArray:
    """Return groups ``(S, G, n)`` with their members in order of device number.

    Raises
    ------
    IndexError
        If there is no such device.
    """
    groups = plain(groups)
    if not are_devices(network, groups):
        raise no_such_device(network)
    rising = (groups[:, :, 1:] >= groups[:, :, :-1]).all()
    return groups if rising else np.sort(groups, axis=2)


def flat_shapes(ordered: IntArray, blocks: IntArray) -> IntArray:
    """Return the shape of all groups: one level."""
    del blocks
    return np.array([[ordered.shape[2]]], dtype=np.int64)


def uneven_blocks(groups: IntArray, blocks: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of blocks that do not divide groups ``(G, n)`` evenly.

    Of blocks that hold a member of a group, not all hold as many. `level_shapes` leaves
    these levels out. O(G n log(G n)) each.
    """
    group = np.arange(len(groups))[:, None]
    found = []
    for block in blocks:
        holders = groups // block + group * (int(groups.max()) // block + 1)
        counts = np.unique(holders, return_counts=True)[1]
        if counts.min() < counts.max():
            found.append(block)
    return tuple(found)


def level_shapes(ordered: IntArray, blocks: IntArray) -> IntArray:
    """Return the shape of each stage's groups, or one row if all are alike."""
    shapes = np.empty((len(ordered), len(blocks)), dtype=np.int64)
    alike = kernels.split_evenly(plain(ordered), blocks, shapes)
    return shapes[:1] if alike else shapes


def ruled_shapes(rules: CollectiveRules | None) -> Shapes:
    """Return what gives the shapes by which collectives go level by level."""
    if rules is None or not rules.depends_on_nodes:
        return level_shapes
    node = rules.node_size

    def shapes(ordered: IntArray, blocks: IntArray) -> IntArray:
        return node_shapes(ordered, blocks, node)

    return shapes


def node_shapes(ordered: IntArray, blocks: IntArray, node_size: int) -> IntArray:
    """Return `level_shapes` whose first column is the members in a node, if only 1.

    1 as well where nodes do not divide a group evenly.
    """
    levels = level_shapes(ordered, blocks[np.searchsorted(blocks, node_size) :])
    first = ordered[:, 0, :] // node_size
    inside = (first == first[:, :1]).sum(axis=1)
    begins = (inside > 1) & (levels[:, 0] == inside)
    if begins.all():
        return levels
    rows = np.ones((len(levels), levels.shape[1] + 1), dtype=np.int64)
    rows[:, 1:] = levels
    if not begins.any():
        return rows
    rows = np.repeat(rows, len(ordered) // len(rows), axis=0)
    rows[begins, :-1] = np.broadcast_to(levels, (len(ordered), levels.shape[1]))[begins]
    rows[begins, -1] = 0
    return rows


_RINGS = frozenset({"ring", "hierarchical"})
"""Algorithms of rings, as libraries do them."""


def ring_weights(
    network: Network, operation: str, algorithm: str, ordered: IntArray
) -> FloatArray:
    """Return the load of a byte of each stage's rings over that of the quickest's.

    By the network's rules for groups ``(S, G, n)`` whose members are all in one node,
    and 1 for others: what goes between nodes is slower. Sums in switches have a weight
    of their own, and what libraries do not do has none.
    """
    rules = network.rules
    if rules is None or not rules.ring_weights or algorithm not in _RINGS:
        return np.ones(len(ordered))
    nodes = ordered[:, :, [0, -1]] // rules.node_size
    inside = (nodes[:, :, 0] == nodes[:, :, 1]).all(axis=1)
    return np.where(inside, rules.ring_weight(operation, ordered.shape[2]), 1.0)


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
    (weight,) = ring_weights(network, operation, algorithm, ordered).tolist()
    placed = (_place_exchanges(ordered[0], phase) for phase in phases)
    return tuple(phase._replace(fraction=phase.fraction * weight) for phase in placed)


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
        One of `estimators.collectives.cost.OPERATIONS`.
    groups
        Device numbers, shape ``(stages, groups, n)``.
    algorithm
        One of `estimators.collectives.cost.ALGORITHM_NAMES`.
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
    rates[:, 1] *= ring_weights(network, operation, algorithm, ordered)
    return rates


def _phases(
    network: Network, operation: str, ordered: IntArray, algorithm: str
) -> list[Exchanges]:
    """Return the phases of each stage."""
    blocks = np.array(network.block_sizes, dtype=np.int64)
    if algorithm == MULTI_RING:
        require_axes(network)
        shapes = level_shapes(ordered, blocks)
        return [
            multi_ring_exchanges(operation, *box)
            for box in boxes(network, ordered, shapes)
        ]
    rules = algorithm_rules(algorithm, network.rules)
    if rules is not None and rules.depends_on_nodes and operation in RING_OPERATIONS:
        shapes = ruled_shapes(rules)(ordered, blocks)
        by_shape = [
            ruled_exchanges(operation, tuple(row), rules) for row in shapes.tolist()
        ]
    else:
        shapes_of = level_shapes if algorithm in HIERARCHICAL else flat_shapes
        shapes = shapes_of(ordered, blocks)
        by_shape = [
            exchanges(algorithm, operation, tuple(row)) for row in shapes.tolist()
        ]
    return by_shape * len(ordered) if len(by_shape) == 1 else by_shape


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
