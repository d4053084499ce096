"""What a device keeps for the parameters and activations of a stage.

    peak = W + G + O + buffers + in_flight * saved + working

W weights, G gradients, O optimizer states, each divided by the ZeRO group where the
stage shards them (Rajbhandari et al., "ZeRO", SC 2020, section 5: stage 1 shards O,
stage 2 also G, stage 3 also W).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.training import ParameterBytes

FloatArray = NDArray[np.float64] | float


class StaticBytes(NamedTuple):
    """Memory held for the whole step [byte]; floats or arrays alike."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    buffers: FloatArray

    def total(self) -> FloatArray:
        """Return the sum [byte]."""
        return self.weights + self.gradients + self.optimizer + self.buffers


class Sharded(NamedTuple):
    """Parameters of a stage on one device, and who shares their shards."""

    parameters: FloatArray
    """Held by one device before ZeRO shards them; a float or an array."""

    group_size: int | FloatArray
    """Devices that share the shards."""


def static_bytes(
    dense: Sharded,
    expert: Sharded,
    largest_layer: FloatArray,
    *,
    each: ParameterBytes,
    zero_stage: int,
) -> StaticBytes:
    """Return what parameters cost a device.

    Parameters
    ----------
    dense, expert
        Parameters outside and inside of routed experts.
    largest_layer
        Parameters of the stage's largest layer. ZeRO-2 keeps one layer's gradients
        whole until they are reduced; ZeRO-3 also two layers' weights gathered, the
        one in use and the one prefetched.
    each
        Bytes per parameter.
    zero_stage
        0 to 3.
    """
    whole = dense.parameters + expert.parameters
    shard = dense.parameters / dense.group_size + expert.parameters / expert.group_size
    shared = np.maximum(dense.group_size, expert.group_size) > 1
    buffers = np.zeros_like(whole + largest_layer)
    if zero_stage >= 2:
        buffers = buffers + shared * each.gradients * largest_layer
    if zero_stage >= 3:
        buffers = buffers + shared * 2 * each.gather * largest_layer
    return StaticBytes(
        weights=each.weights * (shard if zero_stage >= 3 else whole),
        gradients=each.gradients * (shard if zero_stage >= 2 else whole),
        optimizer=each.optimizer * (shard if zero_stage >= 1 else whole),
        buffers=buffers,
    )


def optimizer_step_bytes(each: ParameterBytes) -> int:
    """Return the memory traffic of an optimizer step per parameter [byte].

    Reads the gradient, reads and writes every optimizer state, writes the weight:
    30 bytes for mixed-precision Adam with fp32 gradients.
    """
    return each.gradients + 2 * each.optimizer + each.weights
