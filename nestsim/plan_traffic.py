"""What the groups of a plan send each other: who, which operation, how much, how often.

A *unit* is the groups that move in lock-step, because the lanes of one stage do: the
tensor, context and expert groups of one stage of one replica, the lanes of one stage
boundary of one replica, the data-parallel groups of one stage.

A plan's pace is its iteration time over its microbatches. What stages send in every
microbatch repeats at that pace; what they send once, at the end of the step, does not
repeat, and has an infinite period.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from estimators.layers.table import InLayerTraffic, LayerTable
from planner.cost.classes import recompute_shares
from planner.cost.objective import PricedPlan
from planner.cost.pricing import device_grid, plan_degrees
from planner.cost.rates import dense_groups, expert_data_groups
from planner.cost.stage import Share, stage_share
from planner.step.execution import Workload
from planner.step.ledger import (
    ACROSS,
    LEDGER,
    PASSES,
    REPLICAS,
    Sent,
    wire_bytes,
)
from planner.step.plan import Plan, Stage
from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupTraffic:
    """One operation of one kind of group; ``U`` units of ``G`` groups of ``n``."""

    kind: str
    """``"tensor"``, ``"context"``, ``"expert"``, ``"pipeline"``, ``"data"``, ``"data
    in blocks"``, ``"data across blocks"``, ``"expert data"`` or ``"embedding"``."""

    operation: str
    """One of `estimators.collectives.algorithms.OPERATIONS`."""

    groups: IntArray
    """Device numbers, shape ``(U, G, n)``."""

    stage: IntArray
    """The stage of each unit, the sending one of a boundary, shape ``(U,)``."""

    num_bytes: FloatArray
    """Mean size of the tensor, shape ``(U,)`` [byte]."""

    period: FloatArray
    """From one operation to the next in the steady state, shape ``(U,)`` [s]."""

    algorithm: str
    """The plan's."""

    @property
    def num_members(self) -> int:
        """Members of each group."""
        return int(self.groups.shape[2])

    @property
    def num_groups(self) -> int:
        """Groups of all units together."""
        return int(self.groups.shape[0] * self.groups.shape[1])


class _Part(NamedTuple):
    """What one stage adds to the traffic of a kind and operation."""

    kind: str
    operation: str
    groups: IntArray
    """Shape ``(units, groups, n)``."""
    stage: int
    num_bytes: float
    period: float
    algorithm: str


def plan_traffic(workload: Workload, priced: PricedPlan) -> tuple[GroupTraffic, ...]:
    """Return what the groups of a plan do, by kind, operation and size of the groups.

    Groups of one are left out. Inner dimensions come first: tensor, context, expert,
    pipeline, data.
    """
    plan = priced.plan
    grid = device_grid(plan)
    table = workload.table(plan_degrees(plan))
    pace = priced.iteration_time / plan.num_microbatches
    parts = [
        *_in_layers(table, plan, grid, pace),
        *_boundaries(priced, grid, pace),
        *_data(workload, table, plan, pace),
        *_embedding(workload, table, grid),
    ]
    found: dict[tuple[str, str, int], list[_Part]] = {}
    for part in parts:
        if part.groups.shape[2] > 1:
            key = part.kind, part.operation, part.groups.shape[2]
            found.setdefault(key, []).append(part)
    return tuple(_together(each) for each in found.values())


def _together(parts: list[_Part]) -> GroupTraffic:
    units = [len(part.groups) for part in parts]
    return GroupTraffic(
        kind=parts[0].kind,
        operation=parts[0].operation,
        groups=np.concatenate([part.groups for part in parts]),
        stage=np.repeat([part.stage for part in parts], units),
        num_bytes=np.repeat([part.num_bytes for part in parts], units),
        period=np.repeat([part.period for part in parts], units),
        algorithm=parts[0].algorithm,
    )


def _in_layers(
    table: LayerTable, plan: Plan, grid: IntArray, pace: float
) -> Iterator[_Part]:
    """Yield what the layers of each stage wait for."""
    pp, dp, ep, cp, tp = grid.shape
    groups = {
        "tensor": grid.reshape(pp, dp * ep, cp, tp),
        "context": np.swapaxes(grid, 3, 4).reshape(pp, dp * ep, tp, cp),
        "expert": np.moveaxis(grid, 2, 4).reshape(pp, dp, cp * tp, ep),
    }
    for item in table.traffic:
        for number, stage in enumerate(plan.stages):
            count, num_bytes = _per_microbatch(item, table, stage)
            if count:
                yield _Part(
                    item.group,
                    item.operation,
                    groups[item.group][number],
                    number,
                    num_bytes / count,
                    pace / count,
                    plan.tensor_algorithm if item.group == "tensor" else "direct",
                )


def _per_microbatch(
    item: InLayerTraffic, table: LayerTable, stage: Stage
) -> tuple[float, float]:
    """Return how many collectives a stage does for a microbatch, and their bytes."""
    count = num_bytes = 0.0
    for first, last in stage.chunks:
        span = slice(first, last + 1)
        again = np.zeros(last + 1 - first)
        if stage.recompute != "none":
            again = recompute_shares(item, table)[stage.recompute][span]
        forward = 1.0 + again
        count += float(forward @ item.forward_count[span])
        count += float(item.backward_count[span].sum())
        num_bytes += float(forward @ item.forward_bytes[span])
        num_bytes += float(item.backward_bytes[span].sum())
    return count, num_bytes


def _boundaries(priced: PricedPlan, grid: IntArray, pace: float) -> Iterator[_Part]:
    """Yield the transfers between stages: activations there, gradients back."""
    pp, v = len(grid), priced.plan.virtual_pipeline_model_parallel_size
    lanes = grid.reshape(pp, grid.shape[1] * grid.shape[2], -1)
    pairs = np.stack([lanes, np.roll(lanes, -1, axis=0)], axis=-1)
    # Chunks go round: the last stage passes on to the first one.
    for stage in range(pp if v > 1 and pp > 2 else pp - 1):
        times = 2 * v - 1 if v > 1 and pp == 2 else v
        yield _Part(
            "pipeline",
            "send_recv",
            pairs[stage],
            stage,
            priced.stages[0].boundary_bytes,
            pace / times,
            "direct",
        )


def _data(
    workload: Workload, table: LayerTable, plan: Plan, pace: float
) -> Iterator[_Part]:
    """Yield what gradients and shards of parameters need."""
    grid = device_grid(plan)
    dense, experts = dense_groups(grid), expert_data_groups(grid)
    for number, stage in enumerate(plan.stages):
        share = stage_share(table, stage, plan)
        for one, period, part in _sent(stage, share, pace):
            width = part * wire_bytes(one, workload.parameter_bytes)
            kind, groups = _members(stage, one.group, dense[number])
            shards = stage.sharding_group_size if one.is_divided else 1
            parts = [(kind, groups, share.dense / shards)]
            if share.expert > 0 and one.group != ACROSS:
                parts.append(("expert data", experts[number], share.expert))
            for name, members, parameters in parts:
                yield _Part(
                    name,
                    one.operation,
                    members[None],
                    number,
                    parameters * width,
                    period,
                    plan.gradient_algorithm,
                )


def _members(stage: Stage, group: str, dense: IntArray) -> tuple[str, IntArray]:
    """Return the kind of the groups that send dense parameters, and their members."""
    if group == REPLICAS:
        return "data", dense
    size = stage.sharding_group_size
    parts = np.sort(dense, axis=1).reshape(len(dense), -1, size)
    if group == ACROSS:
        across = np.swapaxes(parts, 1, 2)
        return "data across blocks", across.reshape(-1, parts.shape[1])
    kind = "data in blocks" if size < dense.shape[1] else "data"
    return kind, parts.reshape(-1, size)


def _sent(
    stage: Stage, share: Share, pace: float
) -> Iterator[tuple[Sent, float, float]]:
    """Yield what is sent, its period and the part of the parameters in it.

    Once a step, or layer by layer: the passes of a microbatch share its pace.
    """
    ledger = LEDGER[stage.zero_stage]
    for one in ledger.sent:
        if one.moment not in PASSES:
            yield one, np.inf, 1.0
    each = Counter(one._replace(moment="") for one in ledger.sent_at(*PASSES))
    part = 1.0 / share.num_layers
    for one, times in each.items():
        yield one, pace * part / times, part


def _embedding(
    workload: Workload, table: LayerTable, grid: IntArray
) -> Iterator[_Part]:
    """Yield the all-reduce of the tied embedding between first and last stage."""
    if table.tied_parameters > 0 and len(grid) > 1:
        pairs = np.stack([grid[0].ravel(), grid[-1].ravel()], axis=1)
        size = table.tied_parameters * workload.parameter_bytes.reduce
        yield _Part("embedding", "all_reduce", pairs[None], 0, size, np.inf, "ring")
