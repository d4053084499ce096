"""How long a stage takes and what it holds, by Mist, for many strategies at once.

A strategy is what is sharded, and what hosts keep of it.

A stage has two times: ``t``, that of a microbatch in the middle of a step, and
``delta``, what the first forward and the last backward pass take more together. In a
layer's forward pass the weights of the next layer come (an all-gather where they are
sharded, a fetch where the host has them) and activations go to the host; in its
backward pass gradients are reduced and stored, and activations come back. The first
forward pass of a step also waits for the optimizer: states and gradients come, states
and weights go; the last backward pass reduces gradients of all microbatches (Mist,
section 4: overlap-centred schedule; terms as in the public implementation).

What a device of a stage holds, by Mist's account, for many strategies at once.

States are whole layers of buffers (two, for what comes and what goes), the weights,
gradients and optimizer states that stay, and activations of ``q`` saved microbatches
and of the one that is worked on (terms as in Mist's public implementation). A factor
for fragmentation, by what a strategy does, makes it what must fit.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from planner.rivals.mist.cluster import (
    GATHER,
    REDUCE,
    SCATTER,
    DeviceRates,
    LayerProfile,
    Mesh,
    ModelProfile,
)
from planner.step.plan import Offload
from topologies.arrays import FloatArray

STATE_FRACTIONS = (0.0, 0.25, 0.375, 0.5, 0.75, 1.0)
"""Fractions of weights and of gradients that are tried."""

LARGE_FRACTIONS = (0.0, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
"""Fractions of optimizer states and of activations that are tried."""

EVERYTHING = Offload(1.0, 1.0, 1.0, 1.0)
"""Hosts may keep all that there is."""

SHARDED = {0: (0, 0, 0), 1: (0, 0, 1), 2: (0, 1, 1), 3: (1, 1, 1)}
"""Stage of ZeRO -> whether it shards weights, gradients and optimizer states."""


@dataclass(frozen=True, slots=True, eq=False)
class Strategies:
    """Several strategies, a structure of arrays of shape ``(n,)``."""

    shard_weights: FloatArray
    """1 where weights are sharded over the replicas, else 0."""
    shard_gradients: FloatArray
    """1 where gradients are sharded over the replicas, else 0."""
    shard_optimizer: FloatArray
    """1 where optimizer states are sharded over the replicas, else 0."""
    weights: FloatArray
    """Fraction of the weights that the host keeps."""
    gradients: FloatArray
    """Fraction of the gradients that the host keeps."""
    optimizer: FloatArray
    """Fraction of the optimizer states that the host keeps."""
    activations: FloatArray
    """Fraction of the saved activations that the host keeps."""

    @classmethod
    def of_rows(cls, rows: FloatArray) -> "Strategies":
        """Read rows ``(ws, gs, os, WO, GO, OO, AO)``, shape ``(n, 7)``."""
        columns = np.ascontiguousarray(np.atleast_2d(rows).T, dtype=np.float64)
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.weights)

    def row(self, index: int) -> tuple[float, ...]:
        """Return one strategy as ``(ws, gs, os, WO, GO, OO, AO)``."""
        return tuple(float(getattr(self, field.name)[index]) for field in fields(self))


def strategy_space(
    zero_stages: tuple[int, ...], most_offloaded: Offload = EVERYTHING
) -> Strategies:
    """Return every strategy of Mist's space: 5,952 with all that there is.

    Weights on the host without gradients there are left out, as Mist does.

    Parameters
    ----------
    zero_stages
        Stages of ZeRO that may be used.
    most_offloaded
        Largest fractions that hosts may keep.
    """
    lists = (STATE_FRACTIONS, STATE_FRACTIONS, LARGE_FRACTIONS, LARGE_FRACTIONS)
    allowed = [
        [part for part in parts if part <= most]
        for parts, most in zip(lists, most_offloaded, strict=True)
    ]
    rows = [
        (*SHARDED[zero], *parts)
        for zero in zero_stages
        for parts in product(*allowed)
        if parts[1] > 0.0 or parts[0] == 0.0
    ]
    return Strategies.of_rows(np.array(rows))


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
        asked, saved = self.strategies, self._activations[int(again)]
        weights, gradients, optimizer = self._states
        if ends == STEADY:
            gather = self._gather * asked.shard_weights
            return _Pass(gather, 0.0, weights.fetch, saved.store)
        gather = self._gather * asked.shard_optimizer
        fetch = optimizer.fetch + gradients.fetch
        store = optimizer.store + weights.store + saved.store
        return _Pass(gather, 0.0, fetch, store)

    def _backward(self, ends: int, *, again: bool) -> _Pass:
        """Return what goes on beside a block's backward pass."""
        asked, saved = self.strategies, self._activations[int(again)]
        weights, gradients, _ = self._states
        block = self.profile.block
        scatter = self._collective(block.gradients, SCATTER)
        reduce = self._collective(block.gradients, REDUCE)
        sync = scatter * asked.shard_gradients
        if ends == ENDS:
            sync = np.where(asked.shard_optimizer > 0.0, scatter, reduce)
        fetch = weights.fetch + gradients.fetch + saved.fetch
        gather = self._gather * asked.shard_weights
        return _Pass(gather, sync, fetch, gradients.store)

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
    def _states(self) -> tuple[_Host, _Host, _Host]:
        """Transfers of weights, gradients and optimizer states."""
        asked, block = self.strategies, self.profile.block
        return (
            self._host(block.weights, asked.shard_weights, asked.weights),
            self._host(block.gradients, asked.shard_gradients, asked.gradients),
            self._host(block.optimizer, asked.shard_optimizer, asked.optimizer),
        )

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


MEGABYTE = 2.0**20
"""What Mist counts memory in [byte]."""


class Peaks(NamedTuple):
    """Most that a device holds [byte]."""

    forward: FloatArray
    """In forward passes, shape ``(n,)`` [byte]."""
    backward: FloatArray
    """In backward passes, shape ``(n,)`` [byte]."""


class _Parts(NamedTuple):
    """Memory of a stage, as far as both passes have it."""

    forward_states: FloatArray
    backward_states: FloatArray
    microbatch: FloatArray
    active: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class MistMemory:
    """Memory of stages with one number of replicas, shape ``(n,)`` over strategies."""

    profile: ModelProfile
    """The model at the stage's micro-batch and tensor-parallel size."""

    replicas: int
    """Data-parallel size."""

    strategies: Strategies
    """What is asked for."""

    def peaks(
        self, num_layers: int, num_recomputed: int, num_saved: int, role: Role
    ) -> Peaks:
        """Return the peaks of a stage, before the factor for fragmentation [byte].

        Parameters
        ----------
        num_layers
            Blocks of the stage.
        num_recomputed
            How many of them, from the first one on, are recomputed.
        num_saved
            Microbatches whose activations wait for their backward pass, ``q``.
        role
            Which ends of the chain it holds beside them.
        """
        block, maps = self.profile.block, self.profile.attention_maps
        parts = self._parts(num_layers, num_recomputed)
        waiting = num_saved * parts.microbatch
        outputs = 2.0 * num_saved * block.output
        forward = parts.forward_states + waiting + parts.active
        forward = forward + block.forward_peak + outputs + maps
        backward = parts.backward_states + waiting + parts.active
        backward = backward + block.backward_peak + outputs + 2.0 * block.output + maps
        peaks = Peaks(forward, backward)
        if role.is_last:
            peaks = self._with_head(peaks, parts, any_recomputed=num_recomputed > 0)
        if role.is_first:
            added = (num_saved + 1) * self.profile.embedding.saved
            added += self._end_states(self.profile.embedding)
            peaks = Peaks(peaks.forward + added, peaks.backward + added)
        return peaks

    def factor(self, *, is_pipelined: bool, role: Role) -> FloatArray:
        """Return the factor for fragmentation, shape ``(n,)``."""
        if not is_pipelined:
            return self._factor
        is_end = role.is_first or role.is_last
        return self._factor + (0.025 if is_end else 0.035)

    @cached_property
    def _factor(self) -> FloatArray:
        asked, profile = self.strategies, self.profile
        return np.asarray(
            1.0
            + 0.005 * max(0.0, profile.hidden_size / 2048 - 1)
            + 0.045 * max(0.0, profile.seq_length / 2048 - 1)
            + 0.025 * (asked.weights > 0)
            + 0.025 * (asked.gradients > 0)
            + 0.03 * (asked.optimizer > 0)
            + 0.04 * (asked.activations > 0)
            + 0.025 * asked.shard_weights
            + 0.025 * asked.shard_gradients
            + 0.04 * (profile.tensor_size > 1)
            + 0.01 * (profile.micro_batch_size >= 4)
        )

    def _parts(self, num_layers: int, num_recomputed: int) -> _Parts:
        block, left = self.profile.block, 1.0 - self.strategies.activations
        weights, gradients, optimizer = self._states
        kept, again = block.saved * left, block.saved_recomputed * left
        plain = num_layers - num_recomputed
        held = num_layers * (weights + gradients)
        on_device = optimizer * (1.0 - self.strategies.optimizer)
        # Optimizer states of one layer are whole while it is updated.
        whole = np.floor(optimizer / MEGABYTE) * MEGABYTE
        if plain == 0:
            current = (num_layers - 1) * again
        else:
            current = num_recomputed * again + (plain - 1) * kept
        moving = block.saved_recomputed if plain <= 1 else block.saved
        return _Parts(
            self._buffers + whole + held + (num_layers - 1) * on_device,
            self._buffers + num_layers * (weights + gradients + on_device),
            num_recomputed * again + plain * kept,
            current + self.strategies.activations * moving,
        )

    def _with_head(self, peaks: Peaks, parts: _Parts, *, any_recomputed: bool) -> Peaks:
        """Return the peaks of a stage that holds the head, too."""
        block, head = self.profile.block, self.profile.head
        states, maps = self._end_states(head), self.profile.attention_maps
        forward = parts.forward_states + states + parts.microbatch
        forward = forward + head.forward_peak + maps
        backward = parts.backward_states + states + parts.microbatch
        backward = backward + head.backward_peak
        if not any_recomputed:
            backward = backward + block.saved * self.strategies.activations
        return Peaks(
            np.maximum(peaks.forward + states, forward),
            np.maximum(peaks.backward - block.output + states, backward + maps)
            + head.output,
        )

    def _end_states(self, layer: LayerProfile) -> float:
        """Return what the embedding or the head holds, with ZeRO-1 [byte]."""
        return layer.weights + layer.gradients + layer.optimizer / self.replicas

    @cached_property
    def _states(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Weights and gradients on the device, and the shard of optimizer states."""
        asked, block = self.strategies, self.profile.block
        weights, gradients, optimizer = (
            size / np.where(sharded, self.replicas, 1)
            for size, sharded in (
                (block.weights, asked.shard_weights),
                (block.gradients, asked.shard_gradients),
                (block.optimizer, asked.shard_optimizer),
            )
        )
        return (
            weights * (1.0 - asked.weights),
            gradients * (1.0 - asked.gradients),
            optimizer,
        )

    @cached_property
    def _buffers(self) -> FloatArray:
        """Whole layers that come and go where they are sharded or offloaded [byte]."""
        asked, profile = self.strategies, self.profile
        layers = (profile.embedding, profile.block, profile.head)
        many = self.replicas > 1
        weights = max(layer.weights for layer in layers)
        gradients = max(layer.gradients for layer in layers)
        weights_move = (many & (asked.shard_weights > 0)) | (asked.weights > 0)
        gradients_move = (many & (asked.shard_gradients > 0)) | (asked.gradients > 0)
        return np.asarray(
            2.0
            * (
                np.where(weights_move, weights, 0.0)
                + np.where(gradients_move, gradients, 0.0)
            )
        )
