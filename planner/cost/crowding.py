"""What hidden collectives of parameters add to a step as they span more nodes.

A framework that hides collectives behind compute hides less of them the more nodes take
part: public series of runs that keep the batch of a device and add nodes lose time,
although no window is full. FSDP on 128 to 512 H100 loses with the collectives of its
layers and the nodes that their rings go through [1]_, MaxText over slices of TPU v4 and
v5e with the bytes that it reduces between slices [2]_. Megatron Core on 64 to 2,304
H100 and InternEvo on 8 to 1,024 A100, which send a bucket here and there, lose neither.
So one cost is the framework's, the other the fabric's, in a step::

    t = sum of  w (n - 1) + c (sqrt(n) - 1) T  over hidden collectives of parameters

one for each layer, with ``T`` a collective's price, ``n`` the nodes that a group of it
spans, ``w`` the constant ``software.NAME.node_wait`` and ``c`` that of the fabric
(`estimators.collectives.transports.Transport.crowding`). What stays inside a node adds
nothing. No more is hidden than there is compute: where collectives take longer, as
large a part of each counts. The closed form of the planned objective, which hides
nothing, leaves the term out; bounds of a search leave it out, too, and stay bounds.

References
----------
.. [1] MosaicML, LLM Foundry, ``scripts/train/benchmarking/README.md``: MPT models of 1
   to 70 billion parameters.
.. [2] Google, MaxText, ``README.md``: models of 16 to 128 billion parameters, 2 to 32
   slices.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from planner.cost.groups import StageGroups
from planner.step.execution import Execution, Workload
from planner.step.ledger import PASSES, WEIGHTS, Sent, dense_members, ledger_of
from planner.step.plan import Plan
from topologies.arrays import IntArray


class SentTimes(NamedTuple):
    """What one collective of a stage's parameters takes, all of its layers once."""

    dense: float
    """Time of the parameters outside of experts [s]."""

    expert: float
    """Time of the parameters of experts [s]."""


class CrowdedTraffic(NamedTuple):
    """What crowding depends on beside the plan."""

    stage: int
    """Number of the stage."""

    node_size: int
    """Devices of a node."""

    num_layers: int
    """Layers of the stage."""

    times: Callable[[Sent], SentTimes]
    """Returns what a collective takes."""


def spanned_nodes(groups: IntArray, node_size: int) -> int:
    """Return the most nodes that a group has members in.

    Parameters
    ----------
    groups
        Device numbers, shape ``(G, n)``.
    node_size
        Devices of a node.
    """
    nodes = np.sort(groups // node_size, axis=1)
    return 1 + int((np.diff(nodes, axis=1) != 0).sum(axis=1).max(initial=0))


def crowding_time(
    workload: Workload, plan: Plan, traffic: CrowdedTraffic, compute: float
) -> float:
    """Return what a stage's hidden collectives of parameters add to a step [s].

    Parameters
    ----------
    workload
        What is trained, and what is hidden behind compute.
    plan, traffic
        Whose stage it is, and what that sends.
    compute
        Compute of the stage in one microbatch [s].
    """
    platform = workload.platform
    wait = platform.software_constants.node_wait
    fabric = platform.transport(inside_node=False)
    crowding = fabric.crowding if workload.software.library else 0.0
    if crowding == wait == 0.0:
        return 0.0
    stage, sizes = plan.stages[traffic.stage], plan.parallel.sizes()
    devices = np.array(stage.devices, dtype=np.int64)
    ep = plan.parallel.placed_expert_size
    grid = devices.reshape(1, sizes.dp // ep, ep, sizes.cp, sizes.tp)
    groups = StageGroups(grid, plan.parallel.grouping, sizes.ep)
    hidden, delayed = 0.0, 0.0
    for sent in ledger_of(stage).sent:
        if not _is_hidden(sent, workload.execution):
            continue
        repeats = plan.num_microbatches if sent.moment in PASSES else 1
        dense, expert = traffic.times(sent)
        members = [(dense, dense_members(stage, sent.group, groups.dense()[0]))]
        if expert > 0.0:
            members.append((expert, groups.expert_data()[0]))
        for time, ranks in members:
            nodes = spanned_nodes(ranks, traffic.node_size)
            if time > 0.0 and nodes > 1:
                hidden += repeats * time
                waited = wait * (nodes - 1.0) * traffic.num_layers
                delayed += repeats * (waited + crowding * (nodes**0.5 - 1.0) * time)
    window = plan.num_microbatches * compute
    return delayed * min(1.0, window / (hidden or 1.0))


def _is_hidden(sent: Sent, execution: Execution) -> bool:
    """Tell whether the framework hides a collective of parameters behind compute."""
    if sent.tensor == WEIGHTS:
        return execution.overlap_param_gather
    return execution.overlap_grad_reduce
