"""What each ZeRO stage sends in a step, when and over which group, and what it holds.

One row for each stage, as data: the search's kernels, the prices of plans, the replay,
the traffic report and memory all read it. ``n`` replicas reduce gradients and, sharded,
gather weights; with hybrid sharding [2]_ the ``n`` are cut into sharding groups, and
ranks with the same shard in different groups reduce theirs *across*.

With ``P`` parameters and all replicas in one group, a step of one microbatch sends over
a ring ``2 P`` elements for each rank under ZeRO-0, 1 and 2, ``3 P`` under ZeRO-3 [1]_.

hpZ [3]_ keeps a second copy of ZeRO-3's weights, in shards over ranks next to each
other. As DeepSpeed has it [4]_, the first forward pass of a step gathers each layer
over its sharding group, and cuts the copy out of it when it lets go of the layer. All
passes until the optimizer step gather from the copy, among those neighbours alone: the
forward passes of later microbatches too, and what is run again. The optimizer step
invalidates it. So a step of ``m`` microbatches gathers once among all where plain
ZeRO-3 does it ``2 m`` times; the paper counts ``m``, with forward passes that never
read the copy.

Routed experts are replicated over fewer ranks, the *expert data group*. Their shards
are shared by all of them: it is both the group of replicas and the one inside, and
nothing goes across.

References
----------
.. [1] Rajbhandari et al., "ZeRO", SC 2020, section 5: what each stage shards; section
   7: what it sends.
.. [2] Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2: hybrid sharding.
.. [3] Wang et al., "ZeRO++", 2023, section 3.2: hierarchical partitioning, hpZ.
.. [4] DeepSpeed 0.19.8: ``deepspeed/utils/groups.py:925``,
   ``_create_zero_param_parallel_group``, ranks that follow each other;
   ``deepspeed/runtime/zero/partition_parameters.py:1768``, ``_partition``: the copy is
   made when a layer is let go and there is none; ``:1571``, ``all_gather_coalesced``:
   it is read wherever there is one; ``deepspeed/runtime/zero/stage3.py:2846``,
   ``_post_step``: it is invalidated. Four processes of it, in groups of two, with
   three microbatches a step, gather so; their very first step alone reads copies made
   when the model was. The same in 0.16.5 (``groups.py:650``,
   ``partition_parameters.py:1541`` and ``:1219``, ``stage3.py:2061``).
.. [5] PyTorch 2.13, ``torch/distributed/fsdp/_fully_shard``: ``_fsdp_init.py``,
   ``_get_post_forward_mesh_info``, ``mesh.view(-1, n)``; ``_fsdp_param.py``,
   ``to_sharded_post_forward``, a part of the gathered weights is cloned, which
   ``_fsdp_param_group.py``, ``unshard``, gathers in the backward pass.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.training import ParameterBytes
from planner.kernels.tables import ZeroTerms
from planner.step.plan import Stage
from topologies.arrays import IntArray

FORWARD = "forward"
"""Moment: in every forward pass, layer by layer."""

FIRST_FORWARD = "first forward"
"""Moment: in the first forward pass of a step, layer by layer, in place of what others
send in `FORWARD`."""

BACKWARD = "backward"
"""Moment: in every backward pass of activations, layer by layer."""

GRADIENT = "gradient"
"""Moment: in every pass that completes gradients, layer by layer. That is the backward
pass, or that of weight gradients where the schedule splits them off."""

BEFORE_OPTIMIZER = "before optimizer"
"""Moment: once in a step, when the last gradient is there."""

AFTER_OPTIMIZER = "after optimizer"
"""Moment: once in a step, when the optimizer has updated its share."""

PASSES = (FORWARD, BACKWARD, GRADIENT)
"""Moments that return in every microbatch."""

REPLICAS = "replicas"
"""Group of all ranks that hold the same parameters."""

INSIDE = "inside"
"""Group of the ranks that share shards."""

NEARBY = "nearby"
"""Group of the ranks next to each other that share a second copy of the weights."""

ACROSS = "across"
"""Group of the ranks that hold the same shard."""

WEIGHTS = "weights"
"""Weights, in the format that they are gathered in."""

GRADIENTS = "gradients"
"""Gradients, in the format that they are reduced in."""

OPTIMIZER = "optimizer"
"""States of the optimizer."""


class Sent(NamedTuple):
    """A collective that parameters need."""

    operation: str
    """Name of the collective, one of `estimators.collectives.cost.OPERATIONS`."""

    tensor: str
    """What is sent: `WEIGHTS` or `GRADIENTS`."""

    moment: str
    """When it is sent: `FORWARD`, `FIRST_FORWARD`, `BACKWARD`, `GRADIENT`,
    `BEFORE_OPTIMIZER` or `AFTER_OPTIMIZER`."""

    group: str
    """Ranks that take part: `REPLICAS`, `INSIDE`, `NEARBY` or `ACROSS`."""

    @property
    def is_divided(self) -> bool:
        """Whether the full tensor of the operation is one rank's shard."""
        return self.group == ACROSS


class ZeroStage(NamedTuple):
    """What a stage of ZeRO sends and holds."""

    sent: tuple[Sent, ...]
    """Collectives of the stage, in the order in which a step sends them."""

    sharded: frozenset[str]
    """Parts of the memory that a rank holds its shard of: `OPTIMIZER`, `GRADIENTS`,
    `WEIGHTS`."""

    whole_gradients: int
    """Layers whose gradients are whole on a device, until they are reduced."""

    whole_weights: int
    """Layers whose weights are gathered on a device: in use, and prefetched."""

    def sent_at(self, *moments: str) -> tuple[Sent, ...]:
        """Return what is sent at some moments."""
        return tuple(
            collective for collective in self.sent if collective.moment in moments
        )

    @property
    def first_moment(self) -> str:
        """Moment whose collectives the first forward pass of a step sends."""
        return FIRST_FORWARD if self.sent_at(FIRST_FORWARD) else FORWARD


_REDUCE_WHOLE = Sent("all_reduce", GRADIENTS, BEFORE_OPTIMIZER, REPLICAS)
_REDUCE_ONCE = Sent("reduce_scatter", GRADIENTS, BEFORE_OPTIMIZER, INSIDE)
_REDUCE_EACH = Sent("reduce_scatter", GRADIENTS, GRADIENT, INSIDE)
_REDUCE_ACROSS = Sent("all_reduce", GRADIENTS, BEFORE_OPTIMIZER, ACROSS)
_GATHER_ONCE = Sent("all_gather", WEIGHTS, AFTER_OPTIMIZER, INSIDE)
_GATHER_FORWARD = Sent("all_gather", WEIGHTS, FORWARD, INSIDE)
_GATHER_BACKWARD = Sent("all_gather", WEIGHTS, BACKWARD, INSIDE)


def wire_bytes(sent: Sent, parameter_bytes: ParameterBytes) -> float:
    """Return what a parameter of a collective has on the wire [byte].

    After the optimizer's step only what it has changed is sent.
    """
    if sent.tensor != WEIGHTS:
        return parameter_bytes.reduce
    updated = sent.moment == AFTER_OPTIMIZER
    return parameter_bytes.gather - (parameter_bytes.frozen if updated else 0.0)


LEDGER: tuple[ZeroStage, ...] = (
    ZeroStage(
        sent=(_REDUCE_WHOLE,),
        sharded=frozenset(),
        whole_gradients=0,
        whole_weights=0,
    ),
    ZeroStage(
        sent=(_REDUCE_ONCE, _REDUCE_ACROSS, _GATHER_ONCE),
        sharded=frozenset({OPTIMIZER}),
        whole_gradients=0,
        whole_weights=0,
    ),
    ZeroStage(
        sent=(_REDUCE_EACH, _REDUCE_ACROSS, _GATHER_ONCE),
        sharded=frozenset({OPTIMIZER, GRADIENTS}),
        whole_gradients=1,
        whole_weights=0,
    ),
    ZeroStage(
        sent=(_GATHER_FORWARD, _GATHER_BACKWARD, _REDUCE_EACH, _REDUCE_ACROSS),
        sharded=frozenset({OPTIMIZER, GRADIENTS, WEIGHTS}),
        whole_gradients=1,
        whole_weights=2,
    ),
)
"""The stages of ZeRO by number."""

_SECOND_COPY = LEDGER[3]._replace(
    sent=(
        _GATHER_FORWARD._replace(moment=FIRST_FORWARD),
        _GATHER_FORWARD._replace(group=NEARBY),
        _GATHER_BACKWARD._replace(group=NEARBY),
        _REDUCE_EACH,
        _REDUCE_ACROSS,
    )
)
"""ZeRO-3 with a second copy of the weights, which the search does not try."""


_RESHARDED = LEDGER[3]._replace(
    sent=(
        _GATHER_FORWARD,
        _GATHER_BACKWARD._replace(group=NEARBY),
        _REDUCE_EACH,
        _REDUCE_ACROSS,
    )
)
"""ZeRO-3 whose weights are sharded again over fewer ranks after each forward pass, from
which the backward pass gathers them [5]_; the search does not try it."""


def shards_weights(zero_stage: int) -> bool:
    """Tell whether a stage of ZeRO shards weights, so that a second copy is of use.

    Numbers that no stage has may be asked for: it is not this that refuses them.
    """
    return any(WEIGHTS in row.sharded for row in LEDGER[zero_stage : zero_stage + 1])


def ledger_of(stage: Stage) -> ZeroStage:
    """Return what a pipeline stage sends and holds."""
    if stage.reshard_after_forward is not None:
        return _RESHARDED
    has_copy = stage.zero_hpz_partition_size > 1
    return _SECOND_COPY if has_copy else LEDGER[stage.zero_stage]


_SENT_FIELDS: Mapping[Sent, str] = MappingProxyType(
    {
        _REDUCE_EACH: "reduced_each",
        _GATHER_FORWARD: "gathered_each",
        _GATHER_BACKWARD: "gathered_each",
        _REDUCE_WHOLE: "reduced_whole",
        _REDUCE_ONCE: "reduced_once",
        _REDUCE_ACROSS: "reduced_across",
        _GATHER_ONCE: "gathered_once",
    }
)
"""Field in which the kernels count a collective."""


def _zero_terms(stage: ZeroStage) -> ZeroTerms:
    counted = Counter(_SENT_FIELDS[sent] for sent in stage.sent)
    return ZeroTerms(
        **{name: float(counted[name]) for name in _SENT_FIELDS.values()},
        shards_optimizer=float(OPTIMIZER in stage.sharded),
        shards_gradients=float(GRADIENTS in stage.sharded),
        shards_weights=float(WEIGHTS in stage.sharded),
        whole_gradients=float(stage.whole_gradients),
        whole_weights=float(stage.whole_weights),
    )


KERNEL_TERMS = tuple(map(_zero_terms, LEDGER))
"""The ledger as the kernels read it, by the number of the stage."""

KERNEL_LEDGER = np.array(KERNEL_TERMS)
"""The ledger as one array: a row for each stage, a column for each field."""


SENDS_IN_PASSES = np.array(
    [terms.reduced_each + terms.gathered_each > 0.0 for terms in KERNEL_TERMS]
)
"""Whether each ZeRO stage reduces or gathers anything in every pass."""

_GATHERED_ONCE = np.array([terms.gathered_once for terms in KERNEL_TERMS])


def gathers_once(zero_stages: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how often each of some ZeRO stages sends shards out after the optimizer.

    What ranks do one by one then is counted by it (`Workload.shard_time`).
    """
    return np.asarray(_GATHERED_ONCE[zero_stages])


def dense_members(stage: Stage, group: str, dense: IntArray) -> IntArray:
    """Return the devices of each group that sends dense parameters, ``(G, n)``.

    Parameters
    ----------
    stage
        Whose groups they are.
    group
        `REPLICAS`, `INSIDE`, `NEARBY` or `ACROSS`.
    dense
        Devices that hold the same dense parameters, shape ``(groups, ranks)``.
    """
    if group == REPLICAS:
        return dense
    size = stage.sharding_group_size
    if group == NEARBY:
        size = stage.nearby_size
    parts = np.sort(dense, axis=1).reshape(len(dense), -1, size)
    if group == ACROSS:
        return np.swapaxes(parts, 1, 2).reshape(-1, parts.shape[1])
    return parts.reshape(-1, size)
