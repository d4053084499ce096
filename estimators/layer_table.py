"""The tables that the planner reads: costs of a chain of layers on one device.

Letters: ``L`` layers of the chain, from the embedding to the head and loss; ``tp``,
``cp``, ``ep`` parallel degrees; ``b`` micro-batch size. Everything is for one
microbatch on one device of the group; collectives are kept as bytes, since their
time depends on where the group is placed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InLayerTraffic:
    """Collectives of one kind that layers wait for, forward and backward."""

    operation: str
    """``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``, ``"all_to_all"`` or
    ``"send_recv"`` (hops of a ring; their bytes are those of the hops together)."""

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

    weight_gradient_time: FloatArray
    """That of `backward_time` which nothing but the optimizer waits for: the weight
    gradients of matrix products, shape ``(L,)`` [s]."""

    recompute_time: Mapping[str, FloatArray]
    """What each recompute mode but ``"none"`` adds to the backward pass: the attention
    core (``"selective"``), the forward compute of blocks (``"full"``) or of every layer
    (``"stage"``), shape ``(L,)`` [s]."""

    forward_flops: FloatArray
    """Model FLOPs of one forward pass of the *whole* layer (all tensor- and
    context-parallel devices together) for this micro-batch, shape ``(L,)`` [FLOP]."""

    parameters: FloatArray
    """Parameters held by one device, shape ``(L,)``. The tied head counts its copy
    of the embedding here; `tied_parameters` says how many that are."""

    expert_parameters: FloatArray
    """Those of `parameters` that are sharded over the expert-parallel group and
    therefore synchronised over fewer replicas, shape ``(L,)``; 0 with ``ep`` = 1, where
    experts are like any other parameters."""

    tied_parameters: float
    """Parameters per device that the last layer shares with the first: counted once
    in a stage that holds both, synchronised between stages otherwise."""

    largest_parameters: FloatArray
    """Gathered together where they are sharded: `parameters` of a single layer, also
    where blocks are folded together, or its largest weight, shape ``(L,)``."""

    is_block: FloatArray
    """1 for transformer blocks, 0 for the ends of the chain, shape ``(L,)``."""

    saved_bytes: Mapping[str, FloatArray]
    """Activations that the forward pass keeps for the backward pass under ``"none"``,
    ``"selective"`` and ``"full"`` recompute (a block its input, other layers what they
    save), shape ``(L,)`` [byte]. Under ``"stage"`` a stage keeps its input only."""

    working_bytes: Mapping[str, FloatArray]
    """The most that is alive only inside the layer's forward or backward pass beside
    what is saved (gradients of activations, recomputed activations), under the same
    three modes, shape ``(L,)`` [byte]."""

    weight_gradient_bytes: FloatArray
    """What weight gradients need, if they are put off until after the backward pass,
    instead of what was saved for that, shape ``(L,)`` [byte]."""

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
        frozen: Any
        if isinstance(value, Mapping):
            frozen = {mode: _frozen(array, field.name) for mode, array in value.items()}
            frozen = MappingProxyType(frozen)
        elif isinstance(value, np.ndarray):
            frozen = _frozen(value, field.name)
        else:
            continue
        object.__setattr__(table, field.name, frozen)


def _frozen(value: NDArray[Any], name: str) -> NDArray[Any]:
    array = np.array(
        value, dtype=np.int64 if name == "kinds" else np.float64, order="C"
    )
    array.flags.writeable = False
    return array
