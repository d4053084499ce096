"""Rates that no placement can beat: what admissible bounds are made of.

A tensor group stands on consecutive device numbers in every placement, so its best
rate is that of the best window of the cluster, alone. Everything else is bounded by
the fastest link and the smallest latency: a member of a ring sends over one port, and
an all-reduce over ``n`` members sends at least ``2 (n - 1) / n`` of the tensor through
each of them. Replicas that do not fit into a node of a tree must send gradients out of
each node that they touch: how much depends on how many of them a node can hold.
"""

from dataclasses import dataclass, field

import numpy as np

from estimators.collectives.cost import rates_by_algorithm
from estimators.grouping import PLAIN_GROUPING, Grouping
from estimators.training import Sizes, expert_data_size
from planner.cost.rates import StageRates
from planner.kernels import relaxed as kernel
from planner.kernels import tables as columns
from planner.kernels.tables import NUM_FIXED_RATES
from topologies import Network
from topologies.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """What bounds need to know of a network."""

    terms: kernel.NetworkTerms
    """What the kernels need, for tensor groups of one."""

    block_sizes: tuple[int, ...]
    """Sizes of the network's blocks, rising [device]."""
    _by_tensor: dict[int, kernel.NetworkTerms] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network) -> "Relaxation":
        """Read the bounds off a network."""
        links = network.without_host().links
        hop_latency, hop_inverse, ports_inverse = 0.0, 0.0, 0.0
        if len(links):
            hop_latency = float(links.latency.min())
            hop_inverse = 1.0 / float(links.bandwidth.max())
            leaving = np.bincount(links.source, links.bandwidth)[: network.num_devices]
            # A single device need not have a link.
            if leaving.max(initial=0.0) > 0.0:
                ports_inverse = 1.0 / float(leaving.max())
        node = network.levels[0]
        block_size, exit_inverse, exit_link_inverse = network.num_devices, 0.0, 0.0
        if network.is_tree and node.num_blocks > 1:
            outside = links.bandwidth[links.level == 1]
            block_size = node.block_size
            exit_inverse = 1.0 / node.uplink_bandwidth
            exit_link_inverse = 1.0 / float(outside.max())
        # Where switches add, what bounds take for half of an all-reduce is all of it.
        adds = network.rules is not None and network.rules.adds_anywhere
        inside, outside = 0.5 if adds else 1.0, 0.5 if network.adds_in_switches else 1.0
        terms = kernel.NetworkTerms(
            hop_latency=hop_latency,
            hop_inverse=inside * hop_inverse,
            ports_inverse=ports_inverse,
            block_size=float(block_size),
            exit_inverse=outside * float(exit_inverse),
            exit_link_inverse=outside * exit_link_inverse,
            has_racks=len(network.block_sizes) > 2,
            is_aligned=True,
        )
        return cls(terms=terms, block_sizes=network.block_sizes)

    def terms_of(self, tp: int) -> kernel.NetworkTerms:
        """Return the terms for tensor groups of a size, made once."""
        if tp not in self._by_tensor:
            aligned = self._is_aligned(tp)
            self._by_tensor[tp] = self.terms._replace(is_aligned=aligned)
        return self._by_tensor[tp]

    def _is_aligned(self, tp: int) -> bool:
        """Tell whether no placement lets a tensor group straddle nodes.

        Groups start at multiples of extents, which a placement may pad to whatever
        divides a block, or to whole blocks.
        """
        node = int(self.terms.block_size)
        if node % tp and tp % node:
            return False
        unit = min(tp, node)
        return not any(
            ((block % sizes == 0) & (sizes % unit != 0)).any()
            for block in self.block_sizes
            for sizes in (np.arange(tp, block + 1),)
        )

    @property
    def hop(self) -> FloatArray:
        """Least latency [s] and inverse bandwidth [s/byte] of any one link.

        A transfer between two devices crosses at least one.
        """
        return np.array([self.terms.hop_latency, self.terms.hop_inverse])

    def pass_inverses(self, tp: int, num_replicas: FloatArray) -> FloatArray:
        """Return seconds per byte that a reduce-scatter or all-gather takes, at least.

        Over ``n`` replicas of ``tp`` ranks, each entry of ``num_replicas``.
        """
        found: FloatArray = kernel.pass_inverses(self.terms_of(tp), tp, num_replicas, 1)
        return found

    def exchange_inverse(self, ep: int) -> float:
        """Return seconds per byte held that an all-to-all takes, at least.

        A device may send over several links at once.
        """
        return (ep - 1) / ep * self.terms.ports_inverse

    def context_inverse(self, tp: int, cp: int) -> float:
        """Return seconds per byte of a hop of the context-parallel ring, at least."""
        found: float = kernel.context_inverse(self.terms_of(tp), tp, cp)
        return found

    def expert_spreads(self, sizes: Sizes) -> range:
        """Return how many expert-parallel ranks a node may hold: the cases to bound.

        Few make the all-to-all leave the node, many leave little room for replicas of
        the same expert, whose gradients then leave it.
        """
        block = int(self.terms.block_size)
        if sizes.ep == 1 or self.terms.exit_inverse == 0.0:
            return range(1, 2)
        return range(1, min(sizes.ep, max(block // sizes.tp, 1)) + 1)

    def rates(
        self,
        tensor: FloatArray,
        sizes: Sizes,
        together: int = 1,
        grouping: Grouping = PLAIN_GROUPING,
    ) -> StageRates:
        """Return rates elementwise at most those of any placement of these sizes.

        ``together`` is one of `expert_spreads`: the least over all of them bounds every
        placement. ``tensor`` from `best_group_rates`.
        """
        tp, cp, ep, dp, pp = sizes
        row = kernel.relaxed_row(self.terms_of(tp), tensor, tp, cp, ep, dp, together)
        if grouping != PLAIN_GROUPING:
            row = self._regrouped(row, sizes, grouping)
        options = (row.size - NUM_FIXED_RATES) // 4
        hop = self.hop
        boundary = np.zeros((pp, 1, 2))
        if pp > 1:
            boundary[:] = hop
        return StageRates(
            row[None],
            np.zeros(pp, dtype=np.int64),
            np.full(options, float(dp * cp)),
            boundary,
            hop * (2.0, 1.0),
            np.ones(options),
        )

    def _pass_inverse(self, tp: int, num_replicas: int) -> float:
        """Return `pass_inverses` of one number of replicas."""
        return float(self.pass_inverses(tp, np.array([float(num_replicas)]))[0])

    def _exchange(self, tp: int, size: int) -> tuple[float, float]:
        """Bound an all-to-all of ranks of all lanes, however many a node holds.

        What leaves a node is concave in the ranks that stand in it: one, or as many as
        it has room for, sends least.
        """
        if size == 1:
            return 0.0, 0.0
        terms = self.terms_of(tp)
        most = min(size, max(int(terms.block_size) // tp, 1))
        return float(self.hop[0]), min(
            float(kernel.exchange_inverse(terms, tp, size, together))
            for together in (1, most)
        )

    def _regrouped(
        self, row: FloatArray, sizes: Sizes, grouping: Grouping
    ) -> FloatArray:
        """Return a row of rates where ranks form other groups.

        Context-parallel ranks of all lanes share the ways out of a node, as replicas
        do. So do the experts' where they fill whole tensor groups: those of ``u`` such
        groups exchange as ``u`` ranks of all lanes would. Of groups that stand inside
        of tensor groups, only what a member sends over links of its own is known.
        """
        latency, hop = self.hop.tolist()
        tp, cp = sizes.tp, sizes.cp
        exchanging, ring = grouping.exchanging(cp), grouping.ring(cp)
        pairs = {columns.CONTEXT_EXCHANGE: self._exchange(tp, exchanging)}
        if grouping.cp_comm_type == "all_gather":
            pairs[columns.CONTEXT_PASS] = (0.0, self._pass_inverse(tp, cp))
        if exchanging > 1 or ring == 1:
            pairs[columns.CONTEXT] = (latency, hop) if ring > 1 else (0.0, 0.0)
        if grouping.is_folded:
            members = expert_data_size(sizes, grouping)
            over, rest = divmod(grouping.expert_span((tp, cp, sizes.ep)), tp)
            exchanged, reduced = self.exchange_inverse(sizes.ep), 0.0
            if rest == 0:
                exchanged = max(exchanged, self._exchange(tp, over)[1])
                reduced = self._pass_inverse(tp, members)
            reduced = max(reduced, (members - 1) / members * hop)
            etp = grouping.etp or 1  # else tensor-parallel groups gather
            pairs[columns.EXPERT] = (latency if sizes.ep > 1 else 0.0, exchanged)
            pairs[columns.EXPERT_TENSOR] = (0.0, (etp - 1) / etp * hop)
            pairs[columns.EXPERT_PASS] = (0.0, reduced)
            pairs[columns.EXPERT_REDUCE] = (0.0, 2.0 * reduced)
            # As with experts of other replicas, the whole group shares shards.
            row = row[: NUM_FIXED_RATES + 4]
        found = row.copy()
        for column, pair in pairs.items():
            found[column : column + 2] = pair
        return found


def best_group_rates(network: Network, size: int) -> FloatArray:
    """Return the least latency and inverse bandwidth of all-reduce and of all-gather.

    Shape ``(2, 2)``; over all windows of consecutive devices and all algorithms, each
    alone.
    """
    if size == 1:
        return np.zeros((2, 2))
    starts = np.arange(network.num_devices - size + 1)
    windows = (starts[:, None] + np.arange(size))[:, None, :]
    priced = rates_by_algorithm(network, windows, together=False)
    least = [
        np.concatenate([rates[operation] for rates in priced.values()]).min(axis=0)
        for operation in ("all_reduce", "all_gather")
    ]
    return np.array(least)
