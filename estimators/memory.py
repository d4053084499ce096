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

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class StaticBytes(NamedTuple):
    """Memory held for the whole step [byte]; floats or arrays alike."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    buffers: FloatArray

    def total(self) -> FloatArray:
        """Return the sum [byte]."""
        return self.weights + self.gradients + self.optimizer + self.buffers


def static_bytes(
    parameters: FloatArray,
    largest_layer: FloatArray,
    *,
    each: ParameterBytes,
    zero_stage: int,
    zero_group: int | IntArray,
) -> StaticBytes:
    """Return what parameters cost a device.

    Parameters
    ----------
    parameters
        Of the stage, held by one device before ZeRO shards them.
    largest_layer
        Parameters of the stage's largest layer. ZeRO-2 keeps one layer's gradients
        whole until they are reduced; ZeRO-3 also two layers' weights gathered, the
        one in use and the one prefetched.
    each
        Bytes per parameter.
    zero_stage, zero_group
        0 to 3, and the devices that share the shards; an array in step with
        `parameters` is allowed.
    """
    shards = [zero_group if zero_stage >= level else 1 for level in (3, 2, 1)]
    buffers = 0.0 * (parameters + largest_layer)
    shared = np.where(np.asarray(zero_group) > 1, 1.0, 0.0)
    if zero_stage >= 2:
        buffers = buffers + shared * each.gradients * largest_layer
    if zero_stage >= 3:
        buffers = buffers + shared * 2 * each.weights * largest_layer
    return StaticBytes(
        weights=parameters * (each.weights / shards[0]),
        gradients=parameters * (each.gradients / shards[1]),
        optimizer=parameters * (each.optimizer / shards[2]),
        buffers=buffers,
    )


def optimizer_step_bytes(each: ParameterBytes) -> int:
    """Return the memory traffic of an optimizer step per parameter [byte].

    Reads the gradient, reads and writes every optimizer state, writes the weight:
    30 bytes for mixed-precision Adam with fp32 gradients.
    """
    return each.gradients + 2 * each.optimizer + each.weights
