"""What a device of a stage holds, by Mist's account, for many strategies at once.

States are whole layers of buffers (two, for what comes and what goes), the weights,
gradients and optimizer states that stay, and activations of ``q`` saved microbatches
and of the one that is worked on (terms as in Mist's public implementation). A factor
for fragmentation, by what a strategy does, makes it what must fit.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.rivals.mist.layers import LayerProfile, ModelProfile
from planner.rivals.mist.stage_times import Role
from planner.rivals.mist.strategies import Strategies
from topologies.arrays import FloatArray

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
        told, profile = self.strategies, self.profile
        return np.asarray(
            1.0
            + 0.005 * max(0.0, profile.hidden_size / 2048 - 1)
            + 0.045 * max(0.0, profile.seq_length / 2048 - 1)
            + 0.025 * (told.weights > 0)
            + 0.025 * (told.gradients > 0)
            + 0.03 * (told.optimizer > 0)
            + 0.04 * (told.activations > 0)
            + 0.025 * told.shard_weights
            + 0.025 * told.shard_gradients
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
        told, block = self.strategies, self.profile.block
        weights, gradients, optimizer = (
            size / np.where(sharded, self.replicas, 1)
            for size, sharded in (
                (block.weights, told.shard_weights),
                (block.gradients, told.shard_gradients),
                (block.optimizer, told.shard_optimizer),
            )
        )
        return (
            weights * (1.0 - told.weights),
            gradients * (1.0 - told.gradients),
            optimizer,
        )

    @cached_property
    def _buffers(self) -> FloatArray:
        """Whole layers that come and go where they are sharded or offloaded [byte]."""
        told, profile = self.strategies, self.profile
        layers = (profile.embedding, profile.block, profile.head)
        many = self.replicas > 1
        weights = max(layer.weights for layer in layers)
        gradients = max(layer.gradients for layer in layers)
        weights_move = (many & (told.shard_weights > 0)) | (told.weights > 0)
        gradients_move = (many & (told.shard_gradients > 0)) | (told.gradients > 0)
        return np.asarray(
            2.0
            * (
                np.where(weights_move, weights, 0.0)
                + np.where(gradients_move, gradients, 0.0)
            )
        )
