"""What a device keeps for the parameters of a stage.

    peak = W + G + O + max(buffers + in_flight * saved + working, copies)

W weights, G gradients, O optimizer states, copies what the optimizer makes for its step
when activations are gone, each divided by the devices that share its
shards where the stage of ZeRO shards it; buffers are whole layers beside them
(`planner.step.ledger`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.training import ParameterBytes
from planner.step.ledger import GRADIENTS, LEDGER, OPTIMIZER, WEIGHTS

FloatArray = NDArray[np.float64] | float


class StaticBytes(NamedTuple):
    """Memory held for the whole step [byte]; floats or arrays alike."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    buffers: FloatArray
    copies: FloatArray
    """While the optimizer works, and passes do not."""

    def total(self) -> FloatArray:
        """Return what is held while passes work [byte]."""
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
        Parameters of the stage's largest layer.
    each
        Bytes per parameter.
    zero_stage
        0 to 3.
    """
    stage = LEDGER[zero_stage]
    whole = dense.parameters + expert.parameters
    shard = dense.parameters / dense.group_size + expert.parameters / expert.group_size
    shared = np.maximum(dense.group_size, expert.group_size) > 1
    layer = stage.whole_gradients * each.gradients + stage.whole_weights * each.gather

    def held(tensor: str) -> FloatArray:
        return shard if tensor in stage.sharded else whole

    return StaticBytes(
        weights=each.weights * held(WEIGHTS),
        gradients=each.gradients * held(GRADIENTS),
        optimizer=each.optimizer * held(OPTIMIZER),
        buffers=np.asarray(shared * layer * largest_layer),
        copies=each.copies * held(OPTIMIZER),
    )
