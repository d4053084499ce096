"""The tables that the planner reads: costs of a chain of layers on one device.

Letters: ``L`` layers of the chain, from the embedding to the head and loss; ``tp``,
``cp``, ``ep`` parallel degrees; ``b`` micro-batch size. Everything is for one
microbatch on one device of the group; collectives are kept as bytes, since their
time depends on where the group is placed.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InLayerTraffic:
    """Collectives of one kind that layers wait for, forward and backward."""

    operation: str
    """``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"`` or ``"all_to_all"``."""

    group: str
    """``"tensor"``, ``"expert"`` or ``"context"``: who takes part."""

    forward_count: FloatArray
    """Collectives in one forward pass, shape ``(L,)``."""

    forward_bytes: FloatArray
    """Size of the full tensors of those together, shape ``(L,)`` [byte]."""

    backward_count: FloatArray
    """Collectives in one backward pass without recompute, shape ``(L,)``."""

    backward_bytes: FloatArray
    """Size of the full tensors of those together, shape ``(L,)`` [byte]."""

    def __post_init__(self) -> None:
        _freeze(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTable:
    """Costs of the ``L`` layers for one microbatch on one device.

    Arrays are float64 (kinds int64), C-contiguous and read-only.
    """

    names: tuple[str, ...]
    """Name of each layer, e.g. ``"embedding"``, ``"block 0"``, ``"head"``."""

    kinds: IntArray
    """Layers of equal kind have equal costs; dense numbers from 0, shape ``(L,)``."""

    forward_time: FloatArray
    """Compute of the forward pass, without collectives, shape ``(L,)`` [s]."""

    backward_time: FloatArray
    """Compute of the backward pass without recompute, shape ``(L,)`` [s]."""

    recompute_time: FloatArray
    """What full recompute adds to the backward pass: the forward compute of blocks, 0
    for layers that are never recomputed, shape ``(L,)`` [s]."""

    forward_flops: FloatArray
    """Model FLOPs of one forward pass of the *whole* layer (all tensor- and
    context-parallel devices together) for this micro-batch, shape ``(L,)`` [FLOP]."""

    parameters: FloatArray
    """Parameters held by one device, shape ``(L,)``. The tied head counts its copy
    of the embedding here; `tied_parameters` says how many that are."""

    expert_parameters: FloatArray
    """Those of `parameters` that are sharded over the expert-parallel group and
    therefore synchronised over fewer replicas, shape ``(L,)``."""

    tied_parameters: float
    """Parameters per device that the last layer shares with the first: counted once
    in a stage that holds both, synchronised between stages otherwise."""

    saved_bytes: FloatArray
    """Activations that the forward pass keeps for the backward pass when nothing is
    recomputed, the layer's own input included if it is needed, shape ``(L,)``."""

    checkpoint_bytes: FloatArray
    """What the layer keeps under full recompute: a block its input, other layers what
    they save, shape ``(L,)`` [byte]."""

    working_bytes: FloatArray
    """The most that is alive only inside the layer's forward or backward pass,
    beside what is saved (e.g. gradients of activations, an fp32 copy of the logits),
    shape ``(L,)`` [byte]."""

    boundary_bytes: FloatArray
    """Activation that one device sends if the chain is cut before layer ``l``, shape
    ``(L + 1,)``; the ends are 0. The gradient coming back has the same size."""

    traffic: tuple[InLayerTraffic, ...]
    """In-layer collectives; empty where no group has more than one member."""

    def __post_init__(self) -> None:
        _freeze(self)
        assert self.boundary_bytes.shape == (self.num_layers + 1,)

    @property
    def num_layers(self) -> int:
        """Number of layers ``L``."""
        return len(self.names)


def _freeze(table: InLayerTraffic | LayerTable) -> None:
    for field in fields(table):
        value = getattr(table, field.name)
        if not isinstance(value, np.ndarray):
            continue
        dtype = np.int64 if field.name == "kinds" else np.float64
        array = np.array(value, dtype=dtype, order="C")
        array.flags.writeable = False
        object.__setattr__(table, field.name, array)
