"""What the passes of a stage take, with everything hidden that the framework hides.

The table of a layer counts its collectives, and says nothing of their places in it:
its compute is divided evenly between them. With recompute the forward collectives that
are repeated come before those of the backward pass. Where the schedule splits the
backward pass, all collectives belong to the gradients of activations, and what ZeRO
reduces follows the weights' gradients.

Letters: ``L`` layers of the chain.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from estimators.layers.work import InLayerTraffic, LayerTable
from planner.cost.rates import PlacementRates, ShardingRates
from planner.step import ledger, recompute
from planner.step.execution import DISPATCHED, SHARED, Workload
from planner.step.exposure import (
    Behind,
    InLayers,
    LayerPassTimes,
    PassProgress,
    PassTimes,
    beside_each_other,
    join_times,
    layer_times,
    paired_compute,
    pass_times,
)
from planner.step.instructions import (
    BACKWARD,
    FIRST_FORWARD,
    FORWARD,
    PAIRED,
    PAIRED_BACKWARD,
    PAIRED_FORWARD,
    USUAL_KIND,
    WEIGHT,
)
from planner.step.ledger import NEARBY, WEIGHTS, Sent, ledger_of, wire_bytes
from planner.step.memory import expert_group_size
from planner.step.offload import (
    HeldParameters,
    StageTransfers,
    is_beside_passes,
    pass_transfers,
)
from planner.step.plan import Plan, Stage
from planner.step.schedules import SCHEDULES
from topologies import InputError
from topologies.arrays import FloatArray

Passes = tuple[Mapping[int, PassTimes], ...]
"""Passes of each chunk, by the kinds of `planner.step.schedules`."""


_PAIR = PAIRED_FORWARD, PAIRED_BACKWARD


def sharding_of(rates: PlacementRates, stage: Stage) -> ShardingRates:
    """Return the rates of the stage's sharding group.

    Raises
    ------
    InputError
        If the placement has no such group.
    """
    if stage.zero_stage == 0:
        return rates.shardings[0]
    return _part_of(rates, stage, "sharding_group_size")


def neighbours_of(rates: PlacementRates, stage: Stage) -> ShardingRates:
    """Return the rates of the ranks next to each other that share a stage's weights.

    Those of the whole group where there is none.

    Raises
    ------
    InputError
        If the placement has no such group.
    """
    if stage.nearby_size == 1:
        return rates.shardings[0]
    resharded = stage.reshard_after_forward is not None
    name = "reshard_after_forward" if resharded else "zero_hpz_partition_size"
    return _part_of(rates, stage, name)


def _part_of(rates: PlacementRates, stage: Stage, name: str) -> ShardingRates:
    size = getattr(stage, name)
    for option in rates.shardings:
        if option.group_size == size:
            return option
    raise InputError(
        "replicas do not form such groups on this network",
        where=name,
        got=size,
        expected=f"one of {[option.group_size for option in rates.shardings]}",
    )


def group_rate(rates: PlacementRates, item: InLayerTraffic, index: int) -> FloatArray:
    """Return latency [s] and inverse bandwidth [s/byte] of what layers send."""
    return np.asarray(in_layer_rates(rates, item.group, item.operation)[index])


def in_layer_rates(rates: PlacementRates, group: str, operation: str) -> FloatArray:
    """Return the rates of each stage of what a group does inside of layers."""
    if group == "tensor":
        return rates.tensor[operation]
    if group == "context":
        if operation == "send_recv":
            return rates.context
        exchanges = operation == "all_to_all"
        return rates.context_exchange if exchanges else rates.context_pass
    return rates.expert if group == "expert" else rates.expert_tensor


def parameters_of(table: LayerTable, plan: Plan) -> tuple[FloatArray, FloatArray]:
    """Return dense and expert parameters of each layer, tied ones once, ``(L,)``."""
    dense = table.parameters - table.expert_parameters
    if plan.joins_ends:
        dense[-1] -= table.tied_parameters
    return dense, table.expert_parameters


def stage_transfers(
    workload: Workload, table: LayerTable, plan: Plan, index: int
) -> StageTransfers:
    """Return what the layers of a stage exchange with the host in passes."""
    stage, sizes = plan.stages[index], plan.parallel.sizes()
    # A tied embedding comes twice, at both ends of the chain.
    dense, expert = table.parameters - table.expert_parameters, table.expert_parameters
    group = stage.sharding_group_size if stage.zero_stage else sizes.dp * sizes.cp
    experts = float(expert_group_size(plan))
    return pass_transfers(
        stage.offload,
        HeldParameters(dense, expert, float(group), experts),
        recompute.saved_bytes(table, stage) * table.is_block,
        zero_stage=stage.zero_stage,
        parameter_bytes=workload.parameter_bytes,
    )


def host_times(
    workload: Workload, table: LayerTable, rates: PlacementRates, plan: Plan, index: int
) -> Mapping[int, FloatArray]:
    """Return how long layers exchange with the host in each kind of pass, ``(L,)`` [s].

    Empty where the stage has nothing there that passes need.
    """
    if not is_beside_passes(plan.stages[index]):
        return {}
    sent = stage_transfers(workload, table, plan, index)
    return {
        FORWARD: sent.forward.times(rates.host),
        BACKWARD: sent.backward.times(rates.host),
    }


def sent_in_pass(stage: Stage, kind: int, *, splits: bool) -> tuple[Sent, ...]:
    """Return what parameters have passes of a kind send, layer by layer.

    Parameters
    ----------
    stage
        Whose passes they are.
    kind
        Kind of pass as it is written.
    splits
        Whether weight gradients are passes of their own.
    """
    row, usual = ledger_of(stage), USUAL_KIND.get(kind, kind)
    moments = {FORWARD: [ledger.FORWARD], BACKWARD: [ledger.BACKWARD], WEIGHT: []}
    if kind == FIRST_FORWARD:
        moments[FORWARD] = [row.first_moment]
    if usual == (WEIGHT if splits else BACKWARD):
        moments[usual].append(ledger.GRADIENT)
    return row.sent_at(*moments[usual])


class _Layers(NamedTuple):
    """Every layer of the chain as this stage would do it."""

    by_kind: Mapping[int, LayerPassTimes]
    """Kind of pass -> each layer's part of it; backward passes are without weight
    gradients where the schedule splits them off, and without what is repeated. Those
    that have another pass beside them are without all-to-alls between experts."""
    repeated: LayerPassTimes
    """What recompute adds to the backward pass of each layer."""
    experts: Mapping[int, LayerPassTimes]
    """Kind of a pass that has another one beside it -> each layer's experts; what
    `by_kind` has is without them."""
    beside: Mapping[int, FloatArray]
    """Kind of a pass that has another one beside it -> how long half of each layer's
    all-to-alls between experts take together, ``(L,)`` [s]."""


def part_windows(
    workload: Workload, plan: Plan, part: str, kinds: tuple[int, ...] = ()
) -> FloatArray:
    """Return what passes compute of a part of each layer, ``(3, L)`` [s].

    Forward, backward, and of weight gradients. Where weight gradients are passes of
    their own, the backward pass is without them.

    Parameters
    ----------
    workload, plan
        What is trained, and how it is split.
    part
        Key of `LAYER_PARTS`.
    kinds
        Kinds of the devices, as of `Workload.table`.
    """
    times = workload.part_times(part, plan.degrees, kinds)
    forward, backward, weight = times
    if SCHEDULES[plan.schedule].splits_backward:
        backward = backward - weight
    return np.stack((forward, backward, weight))


class PassPrices:
    """The passes of one stage at the rates of a placement.

    Parameters
    ----------
    workload
        What is trained, and what is hidden behind compute.
    rates
        What sending costs.
    plan, index
        Whose stage it is.
    kinds
        Kinds of the devices that it works on, as of `Workload.table`.
    """

    def __init__(
        self,
        workload: Workload,
        rates: PlacementRates,
        plan: Plan,
        index: int,
        kinds: tuple[int, ...] = (),
    ) -> None:
        table = workload.table(plan.degrees, kinds)
        self.workload, self.table, self.rates = workload, table, rates
        self.working = kinds
        self.plan, self.index, self.stage = plan, index, plan.stages[index]
        schedule = SCHEDULES[plan.schedule]
        self.reserves = schedule.reserves_processors
        self.splits = schedule.splits_backward
        self.kinds = schedule.pass_kinds(first=plan.has_second_copies)
        execution = workload.execution
        self.behind = Behind(
            execution.overlap_param_gather,
            execution.overlap_grad_reduce,
            execution.communication_slowdown,
        )
        self.delays = execution.delay_wgrad_compute and not self.splits
        self.parameters = parameters_of(table, plan)
        self.layers = self._layers()
        self.lead = workload.messages_time(len(plan.stages))
        self.host_times = host_times(workload, table, rates, plan, index)

    def passes(self) -> Passes:
        """Return the passes of each chunk; chunks of alike layers share theirs."""
        rows = self._rows()
        known: dict[tuple[bytes, ...], Mapping[int, PassTimes]] = {}
        passes = []
        for first, last in self.stage.chunks:
            layers = tuple(rows[first : last + 1])
            if layers not in known:
                known[layers] = {
                    kind: self._pass(kind, (first, last)) for kind in self.kinds
                }
            passes.append(known[layers])
        return tuple(passes)

    def _rows(self) -> list[bytes]:
        """Return all that passes read of each layer: alike layers have the same."""
        layers = self.layers
        parts = (*layers.by_kind.values(), layers.repeated, *layers.experts.values())
        columns = [column for part in parts for column in part]
        columns += [*layers.beside.values(), *self.host_times.values()]
        table = np.stack([*columns, *self.parameters], axis=1)
        return [row.tobytes() for row in table]

    def progress(self, passes: Passes, kind: int) -> list[PassProgress]:
        """Return where the passes of each chunk are at each layer."""
        steps = []
        for chunk, times in enumerate(passes):
            order = self._order(kind, self.stage.chunks[chunk])
            dense, expert = (column[order].tolist() for column in self.parameters)
            pass_times = times[kind]
            all_work = pass_times.worked or 1.0
            begin, end = (
                (pass_times.begin / all_work).tolist(),
                (pass_times.end / all_work).tolist(),
            )
            steps.append(PassProgress(chunk, dense, expert, begin, end))
        return steps

    def _order(self, kind: int, chunk: tuple[int, int]) -> slice:
        """Return the layers of a chunk in the order of a pass."""
        first, last = chunk
        if USUAL_KIND.get(kind, kind) == FORWARD:
            return slice(first, last + 1)
        return slice(last, first - 1 if first else None, -1)

    def _pass(self, kind: int, chunk: tuple[int, int]) -> PassTimes:
        order = self._order(kind, chunk)
        sends = USUAL_KIND.get(kind, kind)
        gathers, reduces = self._zero_prices(kind, order)
        layers = self.layers.by_kind[kind if kind in PAIRED else sends].reordered(order)
        before = None
        if sends == BACKWARD:
            repeated = self.layers.repeated.reordered(order)
            if self.stage.recompute == "stage":
                before = repeated
            else:
                layers = join_times((repeated, layers))
        if kind in PAIRED:
            experts = self.layers.experts[kind].reordered(order)
            layers = join_times(
                beside_each_other(
                    window,
                    self.layers.beside[kind][order],
                    self.workload.beside_experts,
                    reserves=self.reserves,
                )
                for window in (layers, experts)
            )
        host = self.host_times.get(sends)
        if host is not None:
            layers = layers._replace(whole=np.maximum(layers.whole, host[order]))
        lead = 0.0 if kind == WEIGHT else self.lead
        return pass_times(
            layers, gathers, reduces, self.behind, lead=lead, before=before
        )

    def _zero_prices(self, kind: int, order: slice) -> tuple[FloatArray, FloatArray]:
        """Return the prices of what parameters have a pass send, layer by layer."""
        weights: list[FloatArray] = []
        gradients: list[FloatArray] = []
        for collective in sent_in_pass(self.stage, kind, splits=self.splits):
            width = wire_bytes(collective, self.workload.parameter_bytes)
            prices = weights if collective.tensor == WEIGHTS else gradients
            for rate, column in self._shard_groups(collective.group):
                latency, inverse = rate[self.index].tolist()
                prices.append(latency + width * column[order] * inverse)
        num_layers = self.parameters[0][order].size
        gathers, reduces = (
            np.stack(found, axis=1) if found else np.zeros((num_layers, 0))
            for found in (weights, gradients)
        )
        return gathers, reduces

    def _shard_groups(self, group: str) -> list[tuple[FloatArray, FloatArray]]:
        """Return rates of who shares shards, and what each layer has to share."""
        dense, expert = self.parameters
        groups = []
        if self.stage.sharding_group_size > 1:
            rates_of = neighbours_of if group == NEARBY else sharding_of
            rate = rates_of(self.rates, self.stage).inside["all_gather"]
            groups.append((rate, dense))
        has_experts = any(
            expert[first : last + 1].any() for first, last in self.stage.chunks
        )
        if has_experts and expert_group_size(self.plan) > 1:
            groups.append((self.rates.expert_data["all_gather"], expert))
        return groups

    def _layers(self) -> _Layers:
        """Return every layer, as if the stage had them all."""
        table, slowdown = self.table, self.behind.slowdown
        beside = np.zeros((2, table.num_layers))
        forth, back, again = [], [], []
        for item in table.traffic:
            if not self._is_sent(item):
                continue
            count, sent_again = recompute.repeated_traffic(item, table, self.stage)
            rate = group_rate(self.rates, item, self.index)
            there = self._in_layers(item, item.forward_count, item.forward_bytes, rate)
            forth.append(there)
            back.append(
                self._in_layers(item, item.backward_count, item.backward_bytes, rate)
            )
            again.append(self._in_layers(item, count, sent_again, rate))
            if item.group == "expert":
                beside += [sent.number * sent.price for sent in (forth[-1], back[-1])]
        forward, backward, repeated, weight = self._compute()
        by_kind = {
            FORWARD: layer_times(forward, forth, slowdown),
            BACKWARD: layer_times(backward, back, slowdown),
            WEIGHT: layer_times(weight, (), slowdown),
        }
        if self.workload.overlaps_shared_experts and PAIRED_FORWARD not in self.kinds:
            shared = part_windows(self.workload, self.plan, SHARED, self.working)
            for kind, compute, part, sent, longest in zip(
                (FORWARD, BACKWARD),
                (forward, backward),
                shared[:2],
                (forth, back),
                beside,
                strict=True,
            ):
                others = self._without_experts(sent)
                window = np.minimum(part, compute)
                by_kind[kind] = join_times(
                    (
                        layer_times(compute - window, others, slowdown),
                        beside_each_other(
                            LayerPassTimes(window, window),
                            longest,
                            self.workload.beside_experts,
                        ),
                    )
                )
        experts: dict[int, LayerPassTimes] = {}
        if PAIRED_FORWARD in self.kinds:
            compute = np.stack((forward, backward, weight))
            pair = paired_compute(
                compute,
                part_windows(self.workload, self.plan, DISPATCHED, self.working),
                0.5 * beside[0],
                self.workload.beside_experts,
                delays=self.delays,
            )
            for kind, windows, sent in zip(_PAIR, pair, (forth, back), strict=True):
                others = self._without_experts(sent)
                by_kind[kind] = layer_times(windows[0], others, slowdown)
                experts[kind] = LayerPassTimes(windows[1], windows[1])
        return _Layers(
            by_kind=by_kind,
            repeated=layer_times(repeated, again, slowdown),
            experts=experts,
            beside=dict(zip(_PAIR, 0.5 * beside, strict=True)),
        )

    def _without_experts(self, sent: list[InLayers]) -> list[InLayers]:
        """Return what layers send, but for what goes between experts."""
        groups = [item.group for item in self.table.traffic if self._is_sent(item)]
        return [
            bytes_sent
            for bytes_sent, group in zip(sent, groups, strict=True)
            if group != "expert"
        ]

    def _compute(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return the compute of each layer [s].

        Forward, backward, repeated and of weight gradients.
        """
        table = self.table
        weight, backward = table.weight_gradient_time, table.backward_time
        if self.splits:
            backward = backward - weight
        repeated = recompute.repeated_time(table, self.stage)
        return table.forward_time, backward, repeated, weight

    def _is_sent(self, item: InLayerTraffic) -> bool:
        """Return whether groups of a kind have more than one member."""
        return self.plan.degrees.group_size(item.group, item.operation) > 1

    def _in_layers(
        self,
        item: InLayerTraffic,
        count: FloatArray,
        num_bytes: FloatArray,
        rate: FloatArray,
    ) -> InLayers:
        """Return collectives of one kind in each layer, of one size each."""
        latency, inverse = rate.tolist()
        number = np.round(count)
        # Sizes without a count, as in tables made up for tests, cost no latency.
        is_one = (number == 0.0) & (num_bytes > 0.0)
        if item.operation == "send_recv":
            # The hops of a ring are one exchange.
            is_any = ((number > 0.0) | is_one).astype(np.float64)
            return InLayers(is_any, number * latency + num_bytes * inverse, False)
        mean_bytes = num_bytes / np.maximum(number, 1.0)
        hides = (
            item.group == "tensor"
            and self.workload.execution.tp_comm_overlap
            and bool(self.rates.hides_tensor[self.index])
        )
        price = np.where(is_one, 0.0, latency) + mean_bytes * inverse
        return InLayers(np.where(is_one, 1.0, number), price, hides)
