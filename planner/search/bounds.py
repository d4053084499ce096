"""Rates that no placement can beat: what admissible bounds are made of.

A tensor group stands on consecutive device numbers in every placement, so its best
rate is that of the best window of the cluster, alone. Everything else is bounded by
the fastest link and the smallest latency: a member of a ring sends over one port, and
an all-reduce over ``n`` members sends at least ``2 (n - 1) / n`` of the tensor through
each of them. Replicas that do not fit into a node of a tree must send gradients out of
each node that they touch: how much depends on how many of them a node can hold.

The planned objective charges passes and the step's end in full. With
`SearchSpec.hides` what goes on beside compute costs what is left of it when the compute
is over, interval by interval, with ``F`` and ``B`` the forward and backward part of the
compute of a microbatch::

    passes     compute + what waits + max(0, tensor collectives - compute)
               + max(0, what ZeRO sends in passes - compute)
    step end   optimizer + max(gradients - B, their last bucket)
               + max(parameters - F, their first bucket)

It grows with every rate, so the splits of a bound of the rates bound these costs, too.
What is hidden may cost nothing: bounds that know no split leave it out (`unhidden`).
When buckets are filled and which layer hides what are left to `planner.cost.pricing`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.collectives.cost import rates_by_algorithm, searched_algorithms
from estimators.collectives.tori import MULTI_RING
from estimators.grouping import PLAIN_GROUPING, Grouping
from estimators.layers.work import Degrees, LayerTable
from estimators.training import Sizes, expert_data_size
from planner.cost.rates import StageRates
from planner.kernels import relaxed as kernel
from planner.kernels import tables
from planner.kernels.tables import (
    GRADIENTS,
    NUM_FIXED_RATES,
    OPTIMIZER,
    WEIGHTS,
    Choices,
    ClassSums,
    JobConstants,
)
from planner.search.device_kinds import least_step_time
from planner.search.space import Inner, SearchSpec
from planner.step.execution import Execution, Workload
from planner.step.exposure import bucket_parameters
from planner.step.ledger import KERNEL_LEDGER
from topologies import Network
from topologies.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """What bounds need to know of a network."""

    terms: kernel.NetworkTerms
    """What the kernels need, for tensor groups of one."""

    block_sizes: tuple[int, ...]
    """Sizes of the network's blocks, rising [device]."""

    sharding_sizes: tuple[int, ...] = ()
    """Sizes of sharding groups that are tried beside those of blocks."""
    _by_tensor: dict[int, kernel.NetworkTerms] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network, sharding_sizes: Sequence[int] = ()) -> "Relaxation":
        """Read the bounds off a network, for sharding groups of these sizes, too."""
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
        if network.num_axes:
            # Collectives go over all links of a device at once.
            hop_inverse = ports_inverse
        inside, outside = 0.5 if adds else 1.0, 0.5 if network.adds_in_switches else 1.0
        terms = kernel.NetworkTerms(
            hop_latency=hop_latency,
            hop_inverse=inside * hop_inverse,
            ports_inverse=ports_inverse,
            block_size=float(block_size),
            exit_inverse=outside * float(exit_inverse),
            exit_link_inverse=outside * exit_link_inverse,
            # Sizes that are asked for may span nodes as racks do.
            has_racks=len(network.block_sizes) > 2 or bool(sharding_sizes),
            is_aligned=True,
        )
        return cls(
            terms=terms,
            block_sizes=network.block_sizes,
            sharding_sizes=tuple(sharding_sizes),
        )

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
        pairs = {tables.CONTEXT_EXCHANGE: self._exchange(tp, exchanging)}
        if grouping.cp_comm_type == "all_gather":
            pairs[tables.CONTEXT_PASS] = (0.0, self._pass_inverse(tp, cp))
        if exchanging > 1 or ring == 1:
            pairs[tables.CONTEXT] = (latency, hop) if ring > 1 else (0.0, 0.0)
        if grouping.is_folded:
            members = expert_data_size(sizes, grouping)
            over, rest = divmod(grouping.expert_span((tp, cp, sizes.ep)), tp)
            exchanged, reduced = self.exchange_inverse(sizes.ep), 0.0
            if rest == 0:
                exchanged = max(exchanged, self._exchange(tp, over)[1])
                reduced = self._pass_inverse(tp, members)
            reduced = max(reduced, (members - 1) / members * hop)
            etp = grouping.etp or 1  # else tensor-parallel groups gather
            pairs[tables.EXPERT] = (latency if sizes.ep > 1 else 0.0, exchanged)
            pairs[tables.EXPERT_TENSOR] = (0.0, (etp - 1) / etp * hop)
            pairs[tables.EXPERT_PASS] = (0.0, reduced)
            pairs[tables.EXPERT_REDUCE] = (0.0, 2.0 * reduced)
            # As with experts of other replicas, the whole group shares shards.
            row = row[: NUM_FIXED_RATES + 4]
        found = row.copy()
        for column, pair in pairs.items():
            found[column : column + 2] = pair
        return found


def best_group_rates(network: Network, size: int) -> FloatArray:
    """Return the least latency and inverse bandwidth of all-reduce and of all-gather.

    Shape ``(2, 2)``; over all windows of consecutive devices and all algorithms, each
    alone. In tori, whose rings groups of other devices close, no member receives over
    more than all of its links.
    """
    if size == 1:
        return np.zeros((2, 2))
    starts = np.arange(network.num_devices - size + 1)
    windows = (starts[:, None] + np.arange(size))[:, None, :]
    searched = [name for name in searched_algorithms(network) if name != MULTI_RING]
    priced = rates_by_algorithm(
        network, windows, searched, together=False, weighted=False
    )
    least = [
        np.concatenate([rates[operation] for rates in priced.values()]).min(axis=0)
        for operation in ("all_reduce", "all_gather")
    ]
    found = np.array(least)
    if network.num_axes:
        terms = Relaxation.of(network).terms
        rings = (size - 1) / size * terms.ports_inverse * np.array([2.0, 1.0])
        found[:, 1] = np.minimum(found[:, 1], rings)
        found[:, 0] = np.minimum(found[:, 0], terms.hop_latency)
    return found


Costs = tuple[FloatArray, FloatArray]
"""Time of passes and step end, ``(sig, C, K)`` each [s]."""

Price = Callable[[FloatArray, JobConstants], Costs]
"""Returns costs in full, of rates and what parameters cost."""

_TENSOR = slice(tables.TENSOR_REDUCE, tables.CONTEXT)
_PARAMETERS = slice(tables.DENSE_REDUCE, None)


def hides_anything(execution: Execution) -> bool:
    """Tell whether a framework hides anything that these costs know of."""
    return execution.tp_comm_overlap or hides_parameters(execution)


def hides_parameters(execution: Execution) -> bool:
    """Tell whether a framework hides gradients or parameters on their way."""
    return execution.overlap_grad_reduce or execution.overlap_param_gather


def unhidden_job(job: JobConstants, execution: Execution) -> JobConstants:
    """Return what a parameter costs if what may be hidden costs nothing."""
    if execution.overlap_grad_reduce:
        job = job._replace(reduce_bytes=0.0)
    if execution.overlap_param_gather:
        job = job._replace(gather_bytes=0.0, update_bytes=0.0)
    return job


def unhidden_rows(rows: FloatArray, execution: Execution) -> FloatArray:
    """Return rates if what may be hidden costs nothing.

    Nothing of what is sent for parameters, if any of it is hidden: gradients and
    weights have columns in common.
    """
    rows = rows.copy()
    if execution.tp_comm_overlap:
        rows[:, _TENSOR] = 0.0
    if hides_parameters(execution):
        rows[:, _PARAMETERS] = 0.0
    return rows


class Covers(NamedTuple):
    """What goes on beside what stages send, and how far it can hide that."""

    compute: FloatArray
    """Compute of a microbatch by choice and class, shape ``(C, K)`` [s]."""

    backward: float
    """Part of it that is the backward pass."""

    bucket: FloatArray
    """Part of a stage's parameters that one bucket has, shape ``(K,)``."""


def exposed_costs(
    price: Price,
    rows: FloatArray,
    job: JobConstants,
    execution: Execution,
    covers: Covers,
) -> Costs:
    """Return what stages cost with everything hidden that the framework hides.

    Parameters
    ----------
    price
        Returns the costs in full.
    rows, job
        Rates of the stages, and what a parameter costs.
    execution
        What the framework hides.
    covers
        What it hides that behind.
    """
    compute, backward, bucket = covers
    time, step_end = price(rows, job)
    whole, whole_end = time, step_end
    if execution.tp_comm_overlap:
        bare = rows.copy()
        bare[:, _TENSOR] = 0.0
        sent = whole - price(bare, job)[0]
        time = time - np.minimum(sent, compute)
    in_passes = np.zeros_like(whole)
    if execution.overlap_grad_reduce:
        free = price(rows, job._replace(reduce_bytes=0.0))
        in_passes += whole - free[0]
        sent = whole_end - free[1]
        step_end = step_end - np.minimum((1.0 - bucket) * sent, backward * compute)
    if execution.overlap_param_gather:
        free = price(rows, job._replace(gather_bytes=0.0, update_bytes=0.0))
        in_passes += whole - free[0]
        sent, forward = whole_end - free[1], (1.0 - backward) * compute
        step_end = step_end - np.minimum((1.0 - bucket) * sent, forward)
    return time - np.minimum(in_passes, compute), step_end


def bucket_shares(sums: ClassSums, num_ranks: int, num_chunks: int) -> FloatArray:
    """Return the part of the parameters of a class that one bucket has, ``(K,)``.

    Each of a stage's chunks has its own; ``num_ranks`` hold the same parameters.
    """
    held = np.maximum(sums.parameters + sums.expert_parameters, 1.0)
    share = bucket_parameters(num_ranks) / held
    return np.asarray(np.minimum(share, 1.0 / num_chunks))


def compute_times(sums: ClassSums, choices: Choices) -> FloatArray:
    """Return the compute of a microbatch by choice and class, ``(C, K)`` [s]."""
    return np.asarray(sums.compute + sums.recompute[choices.recompute])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerBounds:
    """What bounds need of a layer table."""

    minima: FloatArray
    """Least time of each layer under any choice and placement, shape ``(L,)`` [s]."""
    total: float
    """Sum of `minima` [s]."""
    largest: float
    """Largest of `minima` [s]."""
    least_block: float
    """Smallest of `minima` among transformer blocks [s]."""
    num_blocks: int
    """Number of transformer blocks."""
    boundary_bytes: float
    """Traffic of each rank of a replica over every boundary [byte]."""
    context_bytes: float
    """Traffic of all layers in hops of the context-parallel ring [byte]."""
    context_inverse: float
    """Inverse bandwidth that a hop is counted with in `minima` [s/byte]."""
    expert_bytes: float
    """Traffic of all layers among expert-parallel ranks [byte]."""
    expert_inverse: float
    """Inverse bandwidth that an exchange among experts is counted with in `minima`
    [s/byte]."""
    dense: float
    """Parameters on one device outside of routed experts, tied ones once."""
    expert: float
    """Parameters of routed experts on one device."""


def layer_bounds(
    table: LayerTable, tensor: FloatArray, relaxation: Relaxation, degrees: Degrees
) -> LayerBounds:
    """Bound a table's layers; ``tensor`` from `relaxation.best_group_rates`."""
    minima = table.forward_time + table.backward_time
    tp, cp, ep = degrees.tp, degrees.cp, degrees.ep
    latency, _ = relaxation.hop
    rates = {
        ("tensor", "all_reduce"): tensor[0],
        ("tensor", "all_gather"): tensor[1],
        ("tensor", "reduce_scatter"): tensor[1],
        ("context", "send_recv"): (latency, relaxation.context_inverse(tp, cp)),
        ("expert", "all_to_all"): (latency, relaxation.exchange_inverse(ep)),
    }
    sent = dict.fromkeys(("tensor", "context", "expert"), 0.0)
    for item in table.traffic:
        sent[item.group] += float((item.forward_bytes + item.backward_bytes).sum())
        latency, inverse = rates[item.group, item.operation]
        minima = minima + (item.forward_count + item.backward_count) * latency
        minima = minima + (item.forward_bytes + item.backward_bytes) * inverse
    blocks = minima[table.is_block > 0]
    expert = float(table.expert_parameters.sum())
    return LayerBounds(
        minima=minima,
        total=float(minima.sum()),
        largest=float(minima.max()),
        least_block=float(blocks.min(initial=np.inf)) if blocks.size else 0.0,
        num_blocks=int(blocks.size),
        boundary_bytes=float(table.boundary_bytes[1:-1].max(initial=0.0)),
        context_bytes=sent["context"],
        context_inverse=rates["context", "send_recv"][1],
        expert_bytes=sent["expert"],
        expert_inverse=rates["expert", "all_to_all"][1],
        dense=float(table.parameters.sum()) - expert - table.tied_parameters,
        expert=expert,
    )


def closed_form_bounds(
    relaxation: Relaxation,
    workload: Workload,
    spec: SearchSpec,
    item: Inner,
    layers: LayerBounds,
) -> tuple[FloatArray, FloatArray]:
    """Return LB1 [s] and the least memory [byte] of every ``(pp, dp)`` of ``item``."""
    degrees = item.degrees
    batch = workload.training.global_batch_size
    chain = kernel.ChainTerms(
        total=layers.total,
        largest=layers.largest,
        least_block=layers.least_block,
        num_blocks=float(layers.num_blocks),
        boundary_bytes=layers.boundary_bytes,
        dense=layers.dense,
        expert=layers.expert,
        batch=batch / degrees.micro_batch_size,
        tp=degrees.tp,
        cp=degrees.cp,
        ep=degrees.ep,
        v=item.v,
    )
    found: tuple[FloatArray, FloatArray] = kernel.closed_form(
        chain,
        relaxation.terms_of(degrees.tp),
        _least_constants(workload, spec),
        KERNEL_LEDGER[sorted(set(spec.zero_stages))],
        item.pp,
        item.dp,
    )
    return found


def _least_constants(workload: Workload, spec: SearchSpec) -> JobConstants:
    """Return what a parameter costs a device at least, whatever hosts keep of it."""
    job = job_constants(workload)
    if spec.hides:
        job = unhidden_job(job, workload.execution)
    most = np.max(spec.offload, axis=0)
    stays = 1.0 - most
    return job._replace(
        weight_bytes=job.weight_bytes * float(stays[WEIGHTS]),
        gradient_bytes=job.gradient_bytes * float(stays[GRADIENTS]),
        optimizer_bytes=job.optimizer_bytes * float(stays[OPTIMIZER]),
        step_time=job.step_time * float(stays[OPTIMIZER]),
    )


def job_constants(workload: Workload) -> JobConstants:
    """Return what a parameter costs at least; memory and experts are still open."""
    each = workload.parameter_bytes
    return JobConstants(
        weight_bytes=float(each.weights),
        gradient_bytes=float(each.gradients),
        optimizer_bytes=float(each.optimizer),
        copies_bytes=float(each.copies),
        gather_bytes=float(each.gather),
        update_bytes=float(each.gather - each.frozen),
        reduce_bytes=float(each.reduce),
        step_time=least_step_time(workload),
    )


class Outer(NamedTuple):
    """Configurations in the order of LB1, as arrays."""

    inner: NDArray[np.int32]
    """Number of each configuration's inner configuration."""
    place: NDArray[np.int32]
    """Number of each configuration's pair ``(pp, dp)`` among those of its inner
    configuration."""
    bounds: FloatArray
    """Closed-form bound LB1 of each configuration, rising [s]."""
    memory: FloatArray
    """Least memory of each configuration [byte]."""


def ordered(
    sizes: Sequence[int], bounds: Iterable[tuple[FloatArray, FloatArray]]
) -> Outer:
    """Sort what `closed_form_bounds` finds of each inner configuration.

    Ties stay in order of enumeration. ``sizes`` are the lengths of ``bounds``, which
    are read one by one: of tens of millions no second copy is kept.
    """
    total = sum(sizes)
    values, held = np.empty(total), np.empty(total)
    number = np.empty(total, dtype=np.int32)
    place = np.empty(total, dtype=np.int32)
    start = 0
    for index, (size, bound) in enumerate(zip(sizes, bounds, strict=True)):
        here = slice(start, start + size)
        values[here], held[here] = bound
        number[here], place[here] = index, np.arange(size)
        start += size
    order = np.argsort(values, kind="stable")
    return Outer(number[order], place[order], values[order], held[order])
