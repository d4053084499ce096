"""How long a stage takes, by Mist's formulas, for many strategies at once.

A stage has two times: ``t``, that of a microbatch in the middle of a step, and
``delta``, what the first forward and the last backward pass take more together. In a
layer's forward pass the weights of the next layer come (an all-gather where they are
sharded, a fetch where the host has them) and activations go to the host; in its
backward pass gradients are reduced and stored, and activations come back. The first
forward pass of a step also waits for the optimizer: states and gradients come, states
and weights go; the last backward pass reduces gradients of all microbatches (Mist,
section 4: overlap-centred schedule; terms as in the public implementation).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.rivals.mist.layers import ModelProfile
from planner.rivals.mist.links import GATHER, REDUCE, SCATTER, DeviceRates, Mesh
from planner.rivals.mist.strategies import Strategies
from topologies.arrays import FloatArray

STEADY, ENDS = 0, 1
"""Microbatches in the middle of a step, and its first forward and last backward."""


class Role(NamedTuple):
    """Which ends of the chain a stage holds."""

    is_first: bool
    """Whether it has the embedding."""
    is_last: bool
    """Whether it has the head."""


class _Host(NamedTuple):
    """Host transfers of one layer, alone, from and to the host [s]."""

    fetch: FloatArray
    store: FloatArray


class _Pass(NamedTuple):
    """What goes on beside the compute of a layer [s]."""

    gather: FloatArray | float
    sync: FloatArray | float
    fetch: FloatArray
    store: FloatArray


class _Layer(NamedTuple):
    """Times of a layer of a stage, steady and at the ends of a step, ``(2, n)`` [s]."""

    middle: FloatArray
    first: FloatArray
    last: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class StageTimes:
    """Times of stages on one mesh, shape ``(n,)`` over strategies."""

    profile: ModelProfile
    """The model at the stage's micro-batch and tensor-parallel size."""

    rates: DeviceRates
    """The machines."""

    mesh: Mesh
    """Devices of the stage."""

    num_steps: int
    """Gradient accumulation steps, ``G``."""

    strategies: Strategies
    """What is asked for."""

    @property
    def replicas(self) -> int:
        """Data-parallel size."""
        return self.mesh.size // self.profile.tensor_size

    @property
    def group(self) -> Mesh:
        """How the replicas are spread over nodes."""
        nodes = min(self.replicas, self.mesh.nodes)
        return Mesh(nodes, self.replicas // nodes)

    def times(
        self, num_layers: int, num_recomputed: int, role: Role
    ) -> tuple[FloatArray, FloatArray]:
        """Return ``t`` and ``delta`` of a stage, shape ``(n,)`` [s].

        Parameters
        ----------
        num_layers
            Blocks of the stage.
        num_recomputed
            How many of them, from the first one on, are recomputed.
        role
            Which ends of the chain it holds beside them.
        """
        kept, again = self._layers
        inner = max(num_layers - 2, 0)
        many = min(max(num_recomputed - 1, 0), inner)
        first = again if num_recomputed == num_layers else kept
        last = again if num_recomputed else kept
        both = (
            many * again.middle + (inner - many) * kept.middle + first.first + last.last
        )
        if self.num_steps == 1:
            steady, delta = both[ENDS], np.zeros(both.shape[1])
        else:
            steady, delta = both[STEADY], both[ENDS] - both[STEADY]
        if role.is_first:
            steady, delta = steady + self._embedding[0], delta + self._embedding[1]
        if role.is_last:
            steady = steady + self._head
            delta = delta + self._head_ends[int(num_recomputed > 0)]
        return steady, delta

    @cached_property
    def _layers(self) -> tuple[_Layer, _Layer]:
        """A block that is not recomputed, and one that is."""
        layers = []
        for again in (False, True):
            rows = [self._layer(ends, again=again) for ends in (STEADY, ENDS)]
            layers.append(_Layer(*(np.stack(part) for part in zip(*rows, strict=True))))
        return layers[0], layers[1]

    def _layer(
        self, ends: int, *, again: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the times of one block in the middle, first and last [s]."""
        block, time = self.profile.block, self.rates.interference.time
        forward, backward = (
            self._forward(ends, again=again),
            self._backward(ends, again=again),
        )
        f, b = block.forward_time, self._backward_compute(again=again)
        exposed = block.tensor_forward_time * (2 if again else 1)
        exposed += block.tensor_backward_time
        gather, sync = backward.gather, backward.sync
        middle = time(f, forward.gather, forward.fetch, forward.store) + time(
            b, gather + sync, backward.fetch, backward.store
        )
        first = (
            time(0.0, forward.gather, forward.fetch, 0.0)
            + time(f, forward.gather, forward.fetch, 0.0)
            + time(b, sync, 0.0, backward.store)
            + time(0.0, sync, 0.0, backward.store)
        )
        last = (
            time(0.0, 0.0, 0.0, forward.store)
            + time(f, 0.0, 0.0, forward.store)
            + time(0.0, gather, backward.fetch, 0.0)
            + time(b, gather, backward.fetch, 0.0)
        )
        return middle + exposed, first + exposed, last + exposed

    def _forward(self, ends: int, *, again: bool) -> _Pass:
        """Return what goes on beside a block's forward pass."""
        told, saved = self.strategies, self._activations[int(again)]
        if ends == STEADY:
            gather = self._gather * told.shard_weights
            return _Pass(gather, 0.0, self._weights.fetch, saved.store)
        gather = self._gather * told.shard_optimizer
        fetch = self._optimizer.fetch + self._gradients.fetch
        store = self._optimizer.store + self._weights.store + saved.store
        return _Pass(gather, 0.0, fetch, store)

    def _backward(self, ends: int, *, again: bool) -> _Pass:
        """Return what goes on beside a block's backward pass."""
        told, saved = self.strategies, self._activations[int(again)]
        block = self.profile.block
        scatter = self._collective(block.gradients, SCATTER)
        reduce = self._collective(block.gradients, REDUCE)
        sync = scatter * told.shard_gradients
        if ends == ENDS:
            sync = np.where(told.shard_optimizer > 0.0, scatter, reduce)
        fetch = self._weights.fetch + self._gradients.fetch + saved.fetch
        gather = self._gather * told.shard_weights
        return _Pass(gather, sync, fetch, self._gradients.store)

    def _backward_compute(self, *, again: bool) -> float:
        block = self.profile.block
        return block.backward(self.num_steps) + (block.forward_time if again else 0.0)

    def _collective(self, num_bytes: float, factor: float) -> float:
        return self.rates.links.collective_time(num_bytes, self.group, factor)

    def _host(
        self, num_bytes: float, sharded: FloatArray | float, part: FloatArray
    ) -> _Host:
        """Return the transfers of a part of a shard."""
        moved = num_bytes / np.where(sharded, self.replicas, 1) * part
        host = self.rates.host
        return _Host(host.fetch_time(moved), host.store_time(moved))

    @cached_property
    def _gather(self) -> float:
        return self._collective(self.profile.block.weights, GATHER)

    @cached_property
    def _weights(self) -> _Host:
        told = self.strategies
        return self._host(self.profile.block.weights, told.shard_weights, told.weights)

    @cached_property
    def _gradients(self) -> _Host:
        told, num_bytes = self.strategies, self.profile.block.gradients
        return self._host(num_bytes, told.shard_gradients, told.gradients)

    @cached_property
    def _optimizer(self) -> _Host:
        told, num_bytes = self.strategies, self.profile.block.optimizer
        return self._host(num_bytes, told.shard_optimizer, told.optimizer)

    @cached_property
    def _activations(self) -> tuple[_Host, _Host]:
        """Of a block that is not recomputed, and of one that is."""
        block, part = self.profile.block, self.strategies.activations
        kept = self._host(block.saved, 0.0, part)
        return kept, self._host(block.saved_recomputed, 0.0, part)

    @cached_property
    def _embedding(self) -> tuple[float, float]:
        """What the embedding adds to ``t`` and to ``delta`` [s]."""
        layer = self.profile.embedding
        exposed = layer.tensor_forward_time + layer.tensor_backward_time
        compute = layer.forward_time + layer.backward(self.num_steps)
        ends = self._collective(layer.weights, GATHER)
        return compute + exposed, ends + self._collective(layer.gradients, SCATTER)

    @cached_property
    def _head(self) -> FloatArray:
        """What the head adds to ``t``: its backward pass hides the last block's [s]."""
        layer, again = self.profile.head, self._backward(STEADY, again=True)
        hidden = self.rates.interference.time(0.0, again.gather, again.fetch, 0.0)
        backward = np.maximum(layer.backward(self.num_steps) - hidden, 0.0)
        exposed = layer.tensor_forward_time + layer.tensor_backward_time
        return np.asarray(layer.forward_time + exposed + backward)

    @cached_property
    def _head_ends(self) -> tuple[FloatArray, FloatArray]:
        """What the head adds to ``delta``, last block not recomputed or recomputed."""
        layer = self.profile.head
        gather = self._collective(layer.weights, GATHER)
        scatter = self._collective(layer.gradients, SCATTER)
        added = []
        for again in (False, True):
            beside, store = (
                self._backward(STEADY, again=again),
                self._activations[again].store,
            )
            forward = np.maximum(self.profile.block.forward_time - store, 0.0)
            free = self._backward_compute(again=again) - beside.gather - beside.fetch
            added.append(
                np.maximum(gather - forward, 0.0)
                + np.maximum(scatter - np.maximum(free, 0.0), 0.0)
            )
        return added[0], added[1]
