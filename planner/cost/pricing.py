"""Price any plan term by term, from its devices alone.

The iteration time is the exact timeline of the step where transfers never meet, with
everything hidden that the framework hides (`planner.cost.timeline`). Beside it stands
what the search with the planned objective minimises: a closed form over the loads of
the stages, which hides nothing, and overestimates what waits for the first and the last
microbatch.

Links are those of the network that is given, slowed and removed ones included. Where
devices differ, each stage of each replica takes as long as its own devices do; a stage
is reported, and charged in the closed form, as on the devices of its slowest replica.

Letters as in `planner.kernels.split`: ``x[r, s]`` the transfers at both boundaries of
stage ``s`` in replica ``r``, ``ws`` and ``wm`` the weights of sum and maximum.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from estimators.layers.work import Degrees, LayerTable
from planner.cost.groups import StageGroups
from planner.cost.objective import HIDDEN, HOST, PricedPlan, StageCost
from planner.cost.rates import AlgorithmChoice, PlacementRates, placement_rates
from planner.cost.stage import StagePrice, stage_price, with_memory
from planner.cost.timeline import AlikeReplicas, PlanTimeline, last_pass, step_ends
from planner.step.execution import Workload
from planner.step.fleet import ActorKinds, actor_kinds
from planner.step.plan import STAGE_SETTINGS, Plan, Stage
from planner.step.schedules import find_schedule
from topologies import InputError, Network
from topologies.arrays import FloatArray, IntArray
from topologies.keeping import Keeper


class Weights(NamedTuple):
    """Weights of the sum and of the maximum of the stage times."""

    sum: float
    """Weight of the sum of the stages' times."""
    max: float
    """Weight of the largest of the stages' times."""


def iteration_weights(num_microbatches: int, num_chunks: int) -> Weights:
    """Return ``(1 / v, m - 1 / v)``: Narayanan et al., SC 2021, section 2.2."""
    return Weights(1.0 / num_chunks, num_microbatches - 1.0 / num_chunks)


def stage_transfers(
    rates: PlacementRates, boundary_bytes: float, num_chunks: int
) -> FloatArray:
    """Return ``x[r, s]`` for one microbatch, stages from the first to the last [s].

    Forward and backward over each boundary, half of it charged to either side; ``v``
    times with virtual stages, and ``v - 1`` times over the wrap-around.
    """
    boundary = one_way(rates, boundary_bytes).T
    times = np.full(boundary.shape[1], float(num_chunks))
    times[-1] = num_chunks - 1.0
    after = boundary * times
    return np.asarray(after + np.roll(after, 1, axis=1))


def one_way(rates: PlacementRates, boundary_bytes: float) -> FloatArray:
    """Return the mean of both directions of each boundary and replica, ``(p, d)`` [s].

    The last boundary is the wrap-around.
    """
    both = 0.5 * (rates.activation + rates.gradient)
    if len(both) == 1:
        return np.zeros(both.shape[:2])
    return np.asarray(both[..., 0] + both[..., 1] * boundary_bytes)


LOAD_SCHEDULES = frozenset({"1f1b", "interleaved-1f1b"})
"""Schedules that have a closed form: those that the search chooses from."""


def plan_degrees(plan: Plan) -> Degrees:
    """Return what the plan's layer tables depend on."""
    return plan.degrees


def device_grid(plan: Plan) -> IntArray:
    """Return the plan's device numbers, shape ``(pp, dp, ep, cp, tp)``.

    ``dp`` counts the replicas of each expert here. Where expert groups count the ranks
    of a stage anew, it counts all replicas, and ``ep`` is 1.
    """
    sizes, ep = plan.parallel.sizes(), plan.parallel.placed_expert_size
    devices = np.array([stage.devices for stage in plan.stages], dtype=np.int64)
    return devices.reshape(len(plan.stages), sizes.dp // ep, ep, sizes.cp, sizes.tp)


def plan_groups(plan: Plan) -> StageGroups:
    """Return the plan's devices, and the groups that they form."""
    return StageGroups(
        device_grid(plan), plan.parallel.grouping, plan.parallel.sizes().ep
    )


def rates_of(network: Network, workload: Workload, plan: Plan) -> PlacementRates:
    """Price the plan's placement under the plan's algorithms."""
    table = workload.table(plan_degrees(plan))
    tensor, gradient = placement_choices(table, workload, len(plan.stages))
    return placement_rates(
        network,
        plan_groups(plan),
        tensor=tensor._replace(name=plan.tensor_algorithm),
        gradient=gradient._replace(name=plan.gradient_algorithm),
        sharding_sizes={
            size
            for stage in plan.stages
            for size in _sharing(stage)
            if stage.zero_stage
        },
    )


def placement_choices(
    table: LayerTable, workload: Workload, num_stages: int
) -> tuple[AlgorithmChoice, AlgorithmChoice]:
    """Return how tensor and data collectives choose their algorithm.

    By the mean tensor collective and the mean stage's gradients: the choice must not
    depend on the split that the search is looking for.
    """
    tensor = [item for item in table.traffic if item.group == "tensor"]
    num_bytes = sum(float(item.forward_bytes.sum()) for item in tensor)
    count = sum(float(item.forward_count.sum()) for item in tensor)
    gradients = float(table.parameters.sum()) * workload.parameter_bytes.reduce
    return (
        AlgorithmChoice("auto", num_bytes / count if count else 0.0),
        AlgorithmChoice("auto", gradients / num_stages),
    )


def price_plan(network: Network, workload: Workload, plan: Plan) -> PricedPlan:
    """Return what the planner's model says of a plan.

    Raises
    ------
    InputError
        If the plan's stages do not cover the model's chain.
    """
    _check_cover(plan, workload.table(plan_degrees(plan)).num_layers)
    return price_at(workload, plan, rates_of(network, workload, plan))


def price_at(workload: Workload, plan: Plan, rates: PlacementRates) -> PricedPlan:
    """Return what the planner's model says of a plan at the rates of its placement."""
    kinds = plan_kinds(workload, plan)
    by_kind = _stage_prices(workload, plan, rates, kinds)
    v, m = plan.virtual_pipeline_model_parallel_size, plan.num_microbatches
    weights = iteration_weights(m, v)
    charged = np.array(
        [max(price.cost.charged_time for price in of_stage) for of_stage in by_kind]
    )
    transfers = stage_transfers(rates, by_kind[0][0].cost.boundary_bytes, v)
    loads = charged + transfers
    times = weights.sum * loads.sum(axis=1) + weights.max * loads.max(axis=1)
    costs = [
        tuple(replace(price.cost, transfer_time=transfer) for price in of_stage)
        for of_stage, transfer in zip(
            by_kind, transfers[np.argmax(times)].tolist(), strict=True
        )
    ]
    stages = tuple(max(of_stage, key=_pace) for of_stage in costs)
    step_end = max(cost.step_end_time for of_stage in costs for cost in of_stage)
    # The first microbatch meets what all stages gather more for it.
    step_end += sum(stage.first_gathers for stage in stages)
    pipelines = _pipelines(workload, plan, rates, by_kind, kinds)
    ends = step_ends(pipelines)
    has_closed_form = plan.schedule in LOAD_SCHEDULES
    return PricedPlan(
        plan=plan,
        stages=stages,
        by_kind=tuple(costs) if max(map(len, costs)) > 1 else (),
        iteration_time=ends.step,
        terms=_terms(stages, m, pipelines, ends.step),
        pipeline_time=ends.passes,
        closed_form_time=(
            float(times.max() + step_end) if has_closed_form else ends.step
        ),
    )


def _stage_prices(
    workload: Workload,
    plan: Plan,
    rates: PlacementRates,
    kinds: ActorKinds,
    *,
    whole: bool = True,
) -> list[list[StagePrice]]:
    """Return the price of each stage on each of its kinds of devices.

    Those of alike stages are worked out once, but for memory: what is in flight
    differs.
    """
    known: dict[Hashable, StagePrice] = {}
    by_kind: list[list[StagePrice]] = []
    table = workload.table(plan.degrees)
    alike = alike_stages(table, plan, rates.node_size, rates)
    for index, (stage, sets) in enumerate(zip(alike, kinds.sets, strict=True)):
        by_kind.append([])
        for group in sets:
            price = known.get((stage, group))
            if price is None:
                price = stage_price(workload, rates, plan, index, group, whole=whole)
                known[stage, group] = price
            elif whole:
                price = price._replace(
                    cost=with_memory(price.cost, workload, plan, index, group)
                )
            by_kind[-1].append(price)
    return by_kind


def alike_stages(
    table: LayerTable, plan: Plan, node_size: int, rates: PlacementRates | None
) -> list[Hashable]:
    """Return what tells the passes of stages apart, but for kinds of devices.

    And what collectives of parameters take, if there are rates. Stages of which it is
    equal are alike but for what is in flight.
    """
    ends, last = {0, len(plan.stages) - 1}, table.num_layers - 1
    every: list[Hashable] = []
    for index, stage in enumerate(plan.stages):
        devices = np.array(stage.devices, dtype=np.int64)
        # What a group spans is the same some whole nodes further on.
        devices -= devices.flat[0] // node_size * node_size
        every.append(
            (
                *(getattr(stage, name) for name in STAGE_SETTINGS),
                *(
                    (table.kinds[a : b + 1].tobytes(), a == 0, b == last)
                    for a, b in stage.chunks
                ),
                index if index in ends else None,
                rates.of_stages[index] if rates else None,
                devices.tobytes(),
            )
        )
    return every


_ROOM = 2**26
"""Bytes that the rates that `PlanCharges` keeps may take, and their keys."""


class PlanCharges:
    """Prices of plans as far as their replays need them.

    Those of other plans on a placement that was met lately are made of the same rates.

    Parameters
    ----------
    network, workload
        What the plans are for.
    """

    def __init__(self, network: Network, workload: Workload) -> None:
        self.network, self.workload = network, workload
        self._rates = Keeper[tuple[bytes, Hashable], PlacementRates](
            lambda key, rates: 2 * len(key[0]) + 4 * rates.activation.nbytes, _ROOM
        )

    def __call__(self, plan: Plan) -> PricedPlan:
        """Return a plan with what its stages are charged; the rest is NaN or empty."""
        rates = self.rates(plan)
        kinds = plan_kinds(self.workload, plan)
        prices = _stage_prices(self.workload, plan, rates, kinds, whole=False)
        costs = [tuple(price.cost for price in of_stage) for of_stage in prices]
        return PricedPlan(
            plan=plan,
            stages=tuple(max(of_stage, key=_pace) for of_stage in costs),
            by_kind=tuple(costs) if max(map(len, costs)) > 1 else (),
            rates=rates,
            iteration_time=np.nan,
            terms={},
            pipeline_time=np.nan,
            closed_form_time=np.nan,
        )

    def rates(self, plan: Plan) -> PlacementRates:
        """Return `rates_of` a plan."""
        names = plan.tensor_algorithm, plan.gradient_algorithm
        others = (
            plan.parallel,
            # What collectives are chosen by, where the plan does not name them.
            plan.degrees if "auto" in names else None,
            *names,
            *((stage.zero_stage > 0, _sharing(stage)) for stage in plan.stages),
        )
        return self._rates.get(
            (device_grid(plan).tobytes(), others),
            partial(rates_of, self.network, self.workload, plan),
        )


def _sharing(stage: Stage) -> tuple[int, int]:
    """Return the sizes of the groups that share a stage's parameters."""
    return stage.sharding_group_size, stage.nearby_size


def plan_kinds(workload: Workload, plan: Plan) -> ActorKinds:
    """Return the kinds of devices that each stage of each replica works on."""
    grid = device_grid(plan)
    pp, dp, ep, cp, tp = grid.shape
    return actor_kinds(workload.fleet, grid.reshape(pp, dp * ep, cp * tp))


def _pace(cost: StageCost) -> tuple[float, float]:
    """Return what tells the replicas of a stage apart, the slowest last [s]."""
    return cost.work_time, cost.optimizer_time


def _pipelines(
    workload: Workload,
    plan: Plan,
    rates: PlacementRates,
    by_kind: Sequence[Sequence[StagePrice]],
    kinds: ActorKinds,
) -> list[AlikeReplicas]:
    """Return the replicas whose devices or transfers differ, each once."""
    directions = np.stack([rates.activation, rates.gradient], axis=-1)
    slowdown = workload.execution.communication_slowdown
    timelines: dict[tuple[int, ...], PlanTimeline] = {}
    pipelines = []
    for row, boundaries in zip(*kinds.pipelines(directions), strict=True):
        numbers = tuple(row.tolist())
        if numbers not in timelines:
            prices = [of_stage[n] for of_stage, n in zip(by_kind, numbers, strict=True)]
            timelines[numbers] = PlanTimeline(plan, prices, slowdown)
        pipelines.append(AlikeReplicas(timelines[numbers], boundaries))
    return pipelines


def _terms(
    stages: Sequence[StageCost],
    m: int,
    pipelines: Sequence[AlikeReplicas],
    step: float,
) -> dict[str, float]:
    """Return the time of a step by cause [s].

    From the work of the slowest stage over all ``m`` microbatches to the pipeline
    without transfers, with them, and to the end of the step.
    """
    number = max(range(len(stages)), key=lambda stage: stages[stage].work_time)
    slowest = stages[number]
    causes = {name: m * time for name, time in slowest.parts.items()}
    causes["zero gathers"] += slowest.first_gathers
    charged = m * sum(slowest.parts.values()) + slowest.first_gathers
    busy = m * slowest.work_time
    paired = max(one.timeline.busy(number) for one in pipelines)
    if not np.isclose(paired, busy, rtol=1e-12, atol=0.0):
        busy = paired
    if np.isclose(busy, charged, rtol=1e-12, atol=0.0):
        busy = charged
    alone = last_pass(
        [one._replace(boundaries=0.0 * one.boundaries) for one in pipelines]
    )
    pipeline = last_pass(pipelines)
    once = slowest.host_waits.step
    causes[HOST] += once
    return {
        **causes,
        HIDDEN: busy - charged,
        "transfers": pipeline - alone,
        "bubble": alone - busy,
        "tail": step - pipeline - once,
    }


def _check_cover(plan: Plan, num_layers: int) -> None:
    """Refuse chunks that do not join up to the whole chain, virtual stage by stage."""
    v = plan.virtual_pipeline_model_parallel_size
    expected = 0
    counts = {len(stage.chunks) for stage in plan.stages}
    virtual = find_schedule(plan.schedule).virtual_stages(len(plan.stages), v)
    order = [
        plan.stages[s].chunks[c]
        for s, c in zip(virtual.stage, virtual.chunk, strict=True)
        if counts == {v}
    ]
    for first, last in order:
        if first != expected or last < first:
            break
        expected = last + 1
    else:
        if order and expected == num_layers:
            return
    raise InputError(
        "stages do not cover the chain of layers",
        where="stages",
        got=[[list(chunk) for chunk in stage.chunks] for stage in plan.stages],
        expected=f"closed intervals that join up from 0 to {num_layers - 1}, "
        f"{v} for each stage",
    )
