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
    T       = max load * (ceil(B / d) + S - 1) + D

Charging the recomputed forward pass with backward times, a factor of 2 for a switch
but none inside level 0, the inner levels of D again at every level: all of this is the
artifact's. `planner.nest_artifact.pricing` puts stages together.
"""

import itertools
import math
import operator
from collections.abc import Iterable
from typing import NamedTuple

from planner.nest_artifact.instance import LayerChain, NestInstance


class Sharding(NamedTuple):
    """ZeRO of one stage, as the artifact codes it."""

    degree: int
    """The stage takes this many times the devices of an ordinary one."""
    zero_stage: int
    """2 or 3."""
    memory_bytes: float
    """Of one device, before stashed microbatches [byte]."""
    slots: int
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

    def level(self, one: int, other: int) -> int:
        """Return the lowest level at which two devices share a group."""
        for level, size in enumerate(self._group_devices):
            if one // size == other // size:
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
        return self._kept(parameters, 1, 0) + self._activation_bytes(first, end)

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

    def slots(self, first: int, end: int) -> int:
        """Return how many microbatches in flight memory allows: the largest ``s``."""
        return self._slots(
            self.constant_bytes(first, end), self.stash_bytes(first, end)
        )

    def sharding(self, first: int, end: int) -> Sharding | None:
        """Return the ZeRO option of a stage that does not fit at all, None if none.

        The smallest power of two as degree, then stage 2 before 3, whose memory does
        for every position; ZeRO-1 is passed over in the artifact, because its cost
        of 0 reads as a failure.
        """
        if not self.zero or self.slots(first, end) > 0:
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
                memory = self._kept(parameters, degree, zero_stage) + activations
                slots = self._slots(memory, stash)
                if slots >= positions:
                    return Sharding(degree, zero_stage, memory, slots)
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

    def _kept(self, parameters: float, degree: int, zero_stage: int) -> float:
        """Return weights, gradients and optimizer states of one device [byte]."""
        states = 6 * parameters if self.instance.optimizer == "Adam" else 0.0
        if zero_stage == 0:
            return 2 * parameters + states
        if zero_stage == 2:
            return parameters + parameters / degree + states / degree
        return 2 * (parameters / degree) + states / degree

    def _slots(self, constant: float, stash: float) -> int:
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
