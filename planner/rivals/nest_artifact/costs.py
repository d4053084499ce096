"""The cost model of the published NEST artifact, in plain Python.

Reproduces what the artifact reports as ``finalTimePerBatch`` in its JSON, operation by
operation, so that values agree to the last bit. Public source: scai-tech/Nest (MIT),
``nest/Solver/device_placement/device_placement.cpp``.

Letters: ``s`` position of a stage counted from the end (the last is 1), ``S`` stages,
``a`` devices of a stage, ``K`` devices, ``d`` replicas, ``B`` microbatches, ``x(l, c)``
time of ``c`` bytes at level ``l``. With ``f`` and ``b`` the levels of a stage's
incoming and outgoing link::

    x(l, c) = c / min(beta_0..beta_l) + lambda_l, twice that for l > 0
    FW(f)   = longest path forwards, from outside a stage over x(f, c)
    BW(b)   = longest path backwards, from outside over x(b, c)
    RB(b)   = as BW, but no node starts before R = sum of *backward* times
    load    = FW(f) + RB(b) with recompute and s > 1, else FW(f) + BW(b)
    T       = max load * (ceil(B / d) + S - 1) + D(d, parameters of the first stage)

Charging the recomputed forward pass with backward times, a factor of 2 for a switch
but none inside level 0, the inner levels of D again at every level: all of this is the
artifact's. Stages are packed from the last one, which gets devices 0, 1, ..; the level
of a link is that between the neighbouring devices of two stages. Every replica is taken
to be like the first, which starts at device 0.
"""

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.rivals.nest_artifact.instance import LayerChain, NestInstance


class ArtifactSharding(NamedTuple):
    """ZeRO of one stage, as the artifact codes it."""

    degree: int
    """Factor on the devices of an ordinary stage."""
    zero_stage: int
    """Stage of ZeRO: 2 or 3."""
    memory_bytes: float
    """Memory of one device, before stashed microbatches [byte]."""
    most_in_flight: int
    """Microbatches in flight that memory allows."""


class ArtifactCosts:
    """Prices of stages and plans at one tensor width.

    Parameters
    ----------
    instance
        The problem.
    chain
        The graph of the width.
    zero
        Whether a stage that does not fit may be sharded, see `sharding`.
    """

    def __init__(
        self, instance: NestInstance, chain: LayerChain, *, zero: bool = False
    ) -> None:
        self.instance, self.chain, self.zero = instance, chain, zero
        self._pipeline_bandwidths = tuple(
            itertools.accumulate(instance.bandwidths, min)
        )
        self._group_devices = tuple(
            itertools.accumulate(instance.group_sizes, operator.mul)
        )

    def level(self, first: int, second: int) -> int:
        """Return the lowest level at which two devices share a group."""
        for level, size in enumerate(self._group_devices):
            if first // size == second // size:
                return level
        raise AssertionError("the outermost level joins all devices")

    def transfer_time(self, num_bytes: float, level: int) -> float:
        """Return the time of a message between stages [s].

        Bandwidth never exceeds that of a level further in.
        """
        one_way = (
            num_bytes / self._pipeline_bandwidths[level]
            + self.instance.latencies[level]
        )
        return one_way if level == 0 else 2 * one_way

    def forward_time(self, first: int, end: int, level: int) -> float:
        """Return FW of nodes ``first`` to ``end - 1``: the longest path forwards."""
        finish = 0.0
        for v in range(first, end):
            for source, num_bytes in self.chain.incoming[v]:
                if source < first:
                    finish = max(finish, self.transfer_time(num_bytes, level))
            finish += self.chain.forward[v]
        return finish

    def backward_time(
        self, first: int, end: int, level: int, *, recompute: bool
    ) -> float:
        """Return BW, or RB with ``recompute``: the longest path backwards."""
        finish = 0.0
        if recompute:
            for v in range(first, end):
                finish += self.chain.backward[v]
        for v in range(end - 1, first - 1, -1):
            for target, num_bytes in self.chain.outgoing[v]:
                if target >= end:
                    finish = max(finish, self.transfer_time(num_bytes, level))
            finish += self.chain.backward[v]
        return finish

    def constant_bytes(self, first: int, end: int) -> float:
        """Return the memory of a stage with one microbatch in flight [byte]."""
        parameters = self.parameter_bytes(first, end)
        return self._kept_bytes(parameters, 1, 0) + self._activation_bytes(first, end)

    def parameter_bytes(self, first: int, end: int) -> float:
        """Return the parameters of nodes ``first`` to ``end - 1`` [byte]."""
        return _ordered_sum(self.chain.parameters[first:end])

    def stash_bytes(self, first: int, end: int) -> float:
        """Return what each further microbatch in flight keeps [byte]."""
        if not self.instance.recompute:
            return self._activation_bytes(first, end)
        return _ordered_sum(
            num_bytes
            for v in range(first, end)
            for source, num_bytes in self.chain.incoming[v]
            if source < first
        )

    def most_in_flight(self, first: int, end: int) -> int:
        """Return how many microbatches in flight memory allows: the largest ``s``."""
        return self._most_in_flight(
            self.constant_bytes(first, end), self.stash_bytes(first, end)
        )

    def sharding(self, first: int, end: int) -> ArtifactSharding | None:
        """Return the ZeRO option of a stage that does not fit at all, None if none.

        The smallest power of two as degree, then stage 2 before 3, whose memory does
        for every position; ZeRO-1 is passed over in the artifact, because its cost
        of 0 reads as a failure.
        """
        if not self.zero or self.most_in_flight(first, end) > 0:
            return None
        instance = self.instance
        width = instance.devices_per_stage(self.chain.tensor)
        parameters = self.parameter_bytes(first, end)
        activations = self._activation_bytes(first, end)
        stash = self.stash_bytes(first, end)
        positions = min(instance.num_devices, instance.num_nodes)
        degree = 2
        while width * degree <= instance.num_devices:
            for zero_stage in (2, 3):
                memory = self._kept_bytes(parameters, degree, zero_stage) + activations
                most_in_flight = self._most_in_flight(memory, stash)
                if most_in_flight >= positions:
                    return ArtifactSharding(degree, zero_stage, memory, most_in_flight)
            degree *= 2
        return None

    def width(self, first: int, end: int) -> int:
        """Return how many devices a stage takes."""
        sharding = self.sharding(first, end)
        devices = self.instance.devices_per_stage(self.chain.tensor)
        return devices * (sharding.degree if sharding else 1)

    def reduced_bytes(self, first: int, end: int) -> float:
        """Return the parameters that D is charged for if this is the first stage."""
        sharding = self.sharding(first, end)
        parameters = self.parameter_bytes(first, end)
        if sharding is not None and sharding.zero_stage == 3:
            return parameters / sharding.degree
        return parameters

    def sharding_time(self, zero_stage: int) -> float:
        """Return what the artifact adds to the load of a sharded stage.

        It asks a Python function for the cycles of a collective. The function returns
        None, for the network was never set up, and the C++ reads that as -1: the
        "cost" of each collective is -1 / frequency.
        """
        cycle = -1 / self.instance.frequency
        return cycle if zero_stage == 2 else cycle + cycle

    def all_reduce_time(self, data: int, num_bytes: float, spacing: int) -> float:
        """Return D, the time to combine gradients once per batch [s].

        Recursive halving priced at level 0 wherever the ranks are, plus a way up and
        down at every level that they span, the inner levels counted again at each.

        Parameters
        ----------
        data
            Number of replicas.
        num_bytes
            Parameters of the first stage.
        spacing
            Devices of one replica: ranks are 0, spacing, 2 spacing, ...
        """
        latencies, bandwidths = self.instance.latencies, self.instance.bandwidths
        total = 0.0
        for i in range(data.bit_length() - 1):
            total += latencies[0] + 1 / bandwidths[0] * (num_bytes / 2**i)
        below = 0.0
        for level in range(1, self.level(0, (data - 1) * spacing) + 1):
            hop = latencies[level] + 1 / bandwidths[level] * num_bytes
            total += 2 * hop + below
            below += total
        return total

    def _activation_bytes(self, first: int, end: int) -> float:
        return _ordered_sum(self.chain.activations[first:end])

    def _kept_bytes(self, parameters: float, degree: int, zero_stage: int) -> float:
        """Return weights, gradients and optimizer states of one device [byte]."""
        states = 6 * parameters if self.instance.optimizer == "Adam" else 0.0
        if zero_stage == 0:
            return 2 * parameters + states
        if zero_stage == 2:
            return parameters + parameters / degree + states / degree
        return 2 * (parameters / degree) + states / degree

    def _most_in_flight(self, constant: float, stash: float) -> int:
        limit, most = self.instance.memory_bytes, self.instance.num_devices
        if constant + (most - 1) * stash <= limit:
            return most
        if constant > limit:
            return 0
        return 1 + math.floor((limit - constant) / stash)


def _ordered_sum(values: Iterable[float]) -> float:
    """Add from left to right, as the artifact does; `sum` compensates since 3.12."""
    total = 0.0
    for value in values:
        total += value
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactStageCost:
    """One stage of a priced plan."""

    first: int
    """Position of the stage's first node in the chain."""
    end: int
    """Position in the chain behind the stage's last node."""
    devices: int
    """Number of devices of the stage."""
    position: int
    """Position counted from the end of the pipeline; the last stage is 1."""
    incoming_level: int | None
    """Network level of the link from the stage before; None for the first stage."""
    recomputes: bool
    """Whether the stage runs its forward pass again."""
    load: float
    """Time of one microbatch, forward and backward [unit of the file]."""
    memory_bytes: float
    """Memory of one device at this position [byte]."""
    fits: bool
    """Whether that memory suffices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSplit:
    """What the artifact's model says about one plan."""

    time_per_batch: float
    """Time of one batch; infinite if the plan is not possible [unit of the file]."""
    reason: str
    """Why the plan is not possible; empty if it is."""
    tensor: int
    """Tensor-parallel width."""
    data: int
    """Number of replicas."""
    stages: tuple[ArtifactStageCost, ...]
    """Costs of the stages, from the first to the last; empty if there are not enough
    devices."""


def price_split(
    costs: ArtifactCosts,
    bounds: Sequence[int],
    data: int,
    *,
    order_reversed: bool = False,
) -> PricedSplit:
    """Price contiguous stages of a chain, replicated.

    Parameters
    ----------
    costs
        The model, which knows the tensor-parallel width.
    bounds
        First node of each stage, first to last, and the number of nodes.
    data
        Number of replicas.
    order_reversed
        Make the artifact's mistake with baselines: count positions from the wrong
        end, so that the last stage recomputes and holds the most microbatches and the
        first does neither, and take the last stage's parameters for the first's.
        Links are unaffected.

    Returns
    -------
    PricedSplit
        With a reason instead of a time if memory or devices do not suffice.
    """
    widths = [costs.width(*span) for span in itertools.pairwise(bounds)]
    reason = _shortage(costs, data, sum(widths))
    stages: tuple[ArtifactStageCost, ...] = ()
    if not reason:
        stages = tuple(_stages(costs, bounds, widths, order_reversed=order_reversed))
        reason = _overflow(costs, stages)
    time = math.inf
    if not reason:
        first = stages[-1 if order_reversed else 0]
        slowest = max(0.0, *(stage.load for stage in stages))
        microbatches = -(-costs.instance.num_microbatches // data)
        time = slowest * (microbatches + len(stages) - 1) + costs.all_reduce_time(
            data, costs.reduced_bytes(first.first, first.end), sum(widths)
        )
    return PricedSplit(
        time_per_batch=time,
        reason=reason,
        tensor=costs.chain.tensor,
        data=data,
        stages=stages,
    )


def _stages(
    costs: ArtifactCosts,
    bounds: Sequence[int],
    widths: Sequence[int],
    *,
    order_reversed: bool,
) -> Iterator[ArtifactStageCost]:
    """Yield the stages of a plan, first to last."""
    # Where the devices of each stage end; those of the stage before begin there.
    ends = list(itertools.accumulate(reversed(widths)))[::-1]
    links = [0, *(costs.level(device - 1, device) for device in ends[1:]), 0]
    for k, (first, end) in enumerate(itertools.pairwise(bounds)):
        position = k + 1 if order_reversed else len(widths) - k
        recompute = costs.instance.recompute and position > 1
        load = costs.forward_time(first, end, links[k]) + costs.backward_time(
            first, end, links[k + 1], recompute=recompute
        )
        sharding = costs.sharding(first, end)
        if sharding is None:
            memory = costs.constant_bytes(first, end)
            most_in_flight = costs.most_in_flight(first, end)
        else:
            load += costs.sharding_time(sharding.zero_stage)
            memory, most_in_flight = sharding.memory_bytes, sharding.most_in_flight
        yield ArtifactStageCost(
            first=first,
            end=end,
            devices=widths[k],
            position=position,
            incoming_level=links[k] if k else None,
            recomputes=recompute,
            load=load,
            memory_bytes=memory + (position - 1) * costs.stash_bytes(first, end),
            fits=most_in_flight >= position,
        )


def _shortage(costs: ArtifactCosts, data: int, spacing: int) -> str:
    """Return what there is too little of for so many replicas, empty if nothing."""
    instance = costs.instance
    if data > instance.num_microbatches:
        return f"{data} replicas for {instance.num_microbatches} microbatches"
    if data * spacing > instance.num_devices:
        return f"needs {data * spacing} devices, there are {instance.num_devices}"
    return ""


def _overflow(costs: ArtifactCosts, stages: Sequence[ArtifactStageCost]) -> str:
    """Return by how much memory falls short, empty if it does not."""
    worst = max(stages, key=lambda stage: (not stage.fits, stage.memory_bytes))
    if worst.fits:
        return ""
    return (
        f"stage {stages.index(worst) + 1} of {len(stages)} needs "
        f"{worst.memory_bytes / 2**30:.4g} GiB, a device has "
        f"{costs.instance.memory_bytes / 2**30:.4g} GiB"
    )
