"""From traced layers and a platform to the planner's table of a model.

The times of a layer are those of its compute: what goes over a wire depends on the
placement, and is kept as bytes. Operators follow each other, unless the accelerator has
an engine of its own for elementwise work: then they are scheduled on both
(`estimators.operators.engines`).

Empty gradients. Where the product of a weight's gradient adds to what is accumulated,
Transformer Engine hands autograd an empty tensor of the weight's shape and format, and
keeps one for each shape of a model's blocks [1]_ [2]_; Megatron's head makes one for
its pass. They count as memory inside a pass: of the blocks' in every layer.

A loss of PyTorch's. Beside the log-softmax in fp32 that is kept there are the gradients
of it and of the logits, in fp32, too. Of logits that tensor-parallel ranks share there
is one more [3]_: the log-softmax, what is scattered, the softmax, and their sum.

References
----------
.. [1] Transformer Engine, pull request 507 (2023): an empty tensor for each backward
   pass of a weight, which Megatron lets go of.
.. [2] Transformer Engine, pull request 1651 (2025) and ``pytorch/module/base.py``:
   ``get_dummy_wgrad`` keeps one for each shape and format; pull request 2305: grouped
   products, too.
.. [3] PyTorch, ``distributed/tensor/parallel/loss.py``:
   ``_nll_loss_and_log_softmax_backward``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from estimators.dispatch import (
    copies_sent,
    exchanged_load,
    kernel_efficiency,
    within_node,
)
from estimators.layers.adapters import relative_sizes
from estimators.layers.saved_activations import keeping_of, modules_of
from estimators.layers.sharding import layer_work
from estimators.layers.shares import tied_parameters
from estimators.layers.work import (
    Degrees,
    InLayerTraffic,
    LayerTable,
    LayerWork,
    OperatorWork,
)
from estimators.models.spec import TransformerSpec
from estimators.operators.layer_time import layer_time
from estimators.operators.roofline import OperatorTime
from estimators.platform import HostTimes, Platform, host_times, is_captured
from estimators.software import IDEAL
from estimators.tracing.graph import LayerGraph
from estimators.training import TrainingSpec
from topologies.arrays import FloatArray, IntArray


class LayerTimes(NamedTuple):
    """Passes of one layer [s]."""

    forward: float
    """Compute of the forward pass [s]."""

    backward: float
    """Compute of the backward pass without recompute [s]."""

    weight_gradient: float
    """Part of `backward` that can be put off [s]. On two engines it is what putting it
    off makes the pass shorter by."""

    repeated: float
    """Compute that selective recompute adds to the backward pass [s]."""

    unread: float = 0.0
    """Part of `forward` after all that a derivative reads [s]."""

    host: HostTimes = HostTimes(0.0, 0.0)
    """Part of `forward` and `backward` that software adds to the device's own time."""


class LayerCosts(NamedTuple):
    """What is known of a distinct layer that is split in some way."""

    work: LayerWork
    """Its work, with some modules run again."""

    times: list[OperatorTime]
    """Times of its operators."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownCosts:
    """What tables of a model have in common, of one job on one platform."""

    layers: dict[tuple[int, Degrees], dict[tuple[str, ...], LayerCosts]] = field(
        default_factory=dict
    )
    """Distinct layer, and what it depends on but for modules to run again -> those of
    them that it has -> its costs."""

    tables: dict[Degrees, tuple[LayerTable, list[LayerCosts]]] = field(
        default_factory=dict
    )
    """Degrees but for modules to run again -> the table with some or others, and costs
    of its layers."""


def _operator_times(
    graph: LayerGraph,
    kind: int,
    work: LayerWork,
    training: TrainingSpec,
    platform: Platform,
) -> list[OperatorTime]:
    """Return the times of the operators of a distinct layer."""
    model = platform.operator_times(training, graph.spec)
    software = platform.software
    graphs = model
    if software.cuda_graphs == "layers":
        whole = replace(software, cuda_graphs="full_iteration")
        graphs = replace(platform, software=whole).operator_times(training, graph.spec)
    held = is_captured(work, software if kind in _blocks(graph) else IDEAL)
    return [
        _passes(operator, (graphs if is_held else model).operator_time(operator))
        for operator, is_held in zip(work.operators, held, strict=True)
    ]


def _passes(operator: OperatorWork, time: OperatorTime) -> OperatorTime:
    """Return the time of the passes that an operator has."""
    return OperatorTime(time.forward, 0.0) if operator.forward_only else time


def _blocks(graph: LayerGraph) -> set[int]:
    """Return which distinct layers are blocks."""
    return {
        kind
        for name, kind in zip(graph.names, graph.kinds, strict=True)
        if name.startswith("block")
    }


def _layer_times(
    graph: LayerGraph, costs: list[LayerCosts], degrees: Degrees, platform: Platform
) -> list[LayerTimes]:
    """Return the times of each distinct layer, split in some degrees on a platform.

    Blocks take what software adds to them, too (`estimators.platform`).
    """
    blocks, found = _blocks(graph), []
    for kind, (work, times) in enumerate(costs):
        device = _device_times(graph, kind, work, times, platform)
        added = HostTimes(0.0, 0.0)
        if kind in blocks:
            passes = (device.forward, device.backward)
            added = host_times(work, passes, degrees, platform)
        slowest = platform.slowest
        found.append(
            LayerTimes(
                slowest * (device.forward + added.forward),
                slowest * (device.backward + added.backward),
                slowest * device.weight_gradient,
                slowest * device.repeated,
                slowest * device.unread,
                HostTimes(slowest * added.forward, slowest * added.backward),
            )
        )
    return found


def _device_times(
    graph: LayerGraph,
    kind: int,
    work: LayerWork,
    times: list[OperatorTime],
    platform: Platform,
) -> LayerTimes:
    """Return what the device itself takes for a layer."""
    products = platform.software.saves_products
    repeated = sum(
        time.forward * (op.repeated if products else float(op.again))
        for time, op in zip(times, work.operators, strict=True)
    )
    unread = sum(
        time.forward
        for time, op in zip(times, work.operators, strict=True)
        if op.is_unread
    )
    if not platform.accelerator.vector_engine:
        return LayerTimes(
            sum(time.forward for time in times),
            sum(time.backward for time in times),
            sum(time.weight_gradient for time in times),
            repeated,
            unread,
        )
    both = layer_time(graph.layers[kind], work.operators, times)
    return LayerTimes(
        both.forward,
        both.backward,
        max(0.0, both.backward - both.input_gradient),
        repeated if products else both.repeated,
        unread,
    )


def build_layer_table(
    graph: LayerGraph,
    *,
    degrees: Degrees,
    training: TrainingSpec,
    platform: Platform,
    known: KnownCosts | None = None,
) -> LayerTable:
    """Return the costs of every layer of the chain for one microbatch on one device.

    Each distinct kind of layer is worked out once; the table repeats it. Under
    ``"full"`` recompute only blocks are run again (Megatron's
    ``recompute_granularity``): the embedding, the final norm and the head keep what
    they save. Blocks take what the host adds to them, too.

    ``known`` is what earlier tables of the same job and platform left there.

    Raises
    ------
    InputError
        If the platform has no rate for the job's precision.
    """
    known = KnownCosts() if known is None else known
    costs = [
        _layer_costs(graph, kind, degrees, training, platform, known)
        for kind in range(len(graph.layers))
    ]
    alike = degrees._replace(recompute_modules=())
    if alike in known.tables:
        return _with_modules(graph, costs, degrees, training, platform, known)
    table = _layer_table(graph, costs, degrees, training, platform)
    known.tables[alike] = table, costs
    return table


def _with_modules(
    graph: LayerGraph,
    costs: list[LayerCosts],
    degrees: Degrees,
    training: TrainingSpec,
    platform: Platform,
    known: KnownCosts,
) -> LayerTable:
    """Return a table that is known but for the modules that are run again."""
    table, others = known.tables[degrees._replace(recompute_modules=())]
    kinds, works = table.kinds, [layer.work for layer in costs]
    traffic = table.traffic
    sent = ([w.collectives for w in works], [c.work.collectives for c in others])
    if sent[0] != sent[1]:
        parts = exchanged_parts(graph.spec, degrees, training, platform)
        traffic = _traffic(works, kinds, parts)
    if platform.software.saves_products:
        return replace(table, traffic=traffic)
    saved = _column([work.saved_bytes["selective"] for work in works], kinds)
    saved = np.where(table.is_block > 0, saved, table.saved_bytes["none"])
    repeated = [
        platform.slowest * _device_times(graph, kind, *layer, platform).repeated
        for kind, layer in enumerate(costs)
    ]
    again = _column(repeated, kinds) * table.is_block
    working = table.working_bytes["none"] + (table.saved_bytes["none"] - saved)
    return replace(
        table,
        recompute_time={**table.recompute_time, "selective": again},
        saved_bytes={**table.saved_bytes, "selective": saved},
        working_bytes={**table.working_bytes, "selective": working},
        traffic=traffic,
    )


def _column(values: list[float], kinds: IntArray) -> FloatArray:
    """Return what each layer of the chain has of what each distinct one has."""
    return np.array(values, dtype=np.float64)[kinds]


def _layer_table(
    graph: LayerGraph,
    costs: list[LayerCosts],
    degrees: Degrees,
    training: TrainingSpec,
    platform: Platform,
) -> LayerTable:
    works = [layer.work for layer in costs]
    times = _layer_times(graph, costs, degrees, platform)
    kinds = np.array(graph.kinds, dtype=np.int64)
    is_block = np.array([float(name.startswith("block")) for name in graph.names])

    def column(values: list[float]) -> FloatArray:
        return _column(values, kinds)

    selective = "products" if platform.software.saves_products else "selective"
    saved = {
        mode: column([work.saved_bytes[kept] for work in works])
        for mode, kept in (("none", "none"), ("selective", selective), ("full", "full"))
    }
    if platform.software.keeps_gathered:
        saved["none"] += column([work.gathered_bytes for work in works])
    for mode in ("selective", "full"):
        saved[mode] = np.where(is_block > 0, saved[mode], saved["none"])
    software = platform.software
    is_plain = software.plain_loss and not software.fuses_loss
    loss = _LOSS_SHARES[degrees.tp > 1] if is_plain else 0.0
    by_weight = platform.software.gathers_by_weight
    working = column([work.working_bytes + loss * work.loss_bytes for work in works])
    if platform.software.keeps_empty_gradients:
        blocks = set(kinds[is_block > 0].tolist())
        working += column(_empty_gradients(works, blocks, training.element_bytes))
    forward = column([time.forward for time in times])
    again = column([time.repeated for time in times])
    omits = float(platform.software.omits_unread)
    unread = omits * column([time.unread for time in times])
    host = column([time.host.forward for time in times])
    boundary = np.append(column([work.input_bytes for work in works]), 0.0)
    boundary[0] = 0.0
    if platform.software.scatters_transfers and not degrees.sequence_parallel:
        boundary /= degrees.tp
    parameters = column([work.parameters for work in works])
    largest = column(
        [work.largest_weight if by_weight else work.parameters for work in works]
    )
    if training.adapter == "qlora":
        largest *= column(relative_sizes(graph))
    return LayerTable(
        names=tuple(graph.names),
        kinds=kinds,
        forward_time=forward,
        backward_time=column([time.backward for time in times]),
        weight_gradient_time=column([time.weight_gradient for time in times]),
        recompute_time={
            "selective": again * is_block,
            "full": (forward - unread) * is_block,
            "stage": forward,
        },
        host_time={
            "forward": host,
            "backward": column([time.host.backward for time in times]),
            "full": host * is_block,
            "stage": host,
        },
        forward_flops=column([work.model_flops for work in works]),
        parameters=parameters,
        expert_parameters=column(
            [work.expert_parameters * degrees.spreads_experts for work in works]
        ),
        tied_parameters=tied_parameters(graph, degrees),
        largest_parameters=largest,
        is_block=is_block,
        saved_bytes=saved,
        working_bytes={
            mode: working + (saved["none"] - saved[mode])
            for mode in ("none", "selective", "full")
        },
        weight_gradient_bytes=column([work.weight_gradient_bytes for work in works]),
        boundary_bytes=boundary,
        frozen_weights=column(
            [work.frozen_parameters * training.element_bytes for work in works]
        ),
        traffic=_traffic(
            works, kinds, exchanged_parts(graph.spec, degrees, training, platform)
        ),
    )


def _layer_costs(
    graph: LayerGraph,
    kind: int,
    degrees: Degrees,
    training: TrainingSpec,
    platform: Platform,
    known: KnownCosts,
) -> LayerCosts:
    """Return the costs of a distinct layer, of what is known of it if anything is."""
    layer = graph.layers[kind]
    keeping = keeping_of(platform.software, training, degrees.recompute_modules)
    modules = modules_of(layer, keeping.recompute_modules)
    split = degrees if layer.has_experts else degrees.dense
    alike = split._replace(recompute_modules=())
    costs = known.layers.setdefault((kind, alike), {})
    if modules not in costs:
        like = next(iter(costs.values()), None)
        work = layer_work(
            graph,
            kind,
            split,
            training.element_bytes,
            keeping._replace(recompute_modules=modules),
            like and like.work,
        )
        times = like and like.times
        costs[modules] = LayerCosts(
            work, times or _operator_times(graph, kind, work, training, platform)
        )
    return costs[modules]


def exchanged_parts(
    spec: TransformerSpec, degrees: Degrees, training: TrainingSpec, platform: Platform
) -> Mapping[str, float]:
    """Return what all-to-alls of each group send over what they would by their size.

    Of experts, to and from the busiest rank, and of ranks that exchange heads for
    tokens.
    """
    sent = _dispatched(spec, degrees, platform) * training.dispatch_share
    return {
        "expert": sent * exchanged_load(spec, degrees, platform.software).busiest,
        "context": _exchanged(degrees, platform),
    }


_LOSS_SHARES = (1.5, 2.5)
"""Tensors of the logits' size in fp32 beside what PyTorch's loss keeps and what the
head's own pass has, of logits that are whole and of those that ranks share."""


def _empty_gradients(
    works: list[LayerWork], blocks: set[int], element_bytes: int
) -> list[float]:
    """Return what empty gradients take while each distinct layer works [byte].

    Experts of a layer have one shape.
    """
    shapes = [
        {(op.n, op.k): op.n * op.k for op in work.operators if op.weight_flops > 0}
        for work in works
    ]
    kept = {shape: size for kind in blocks for shape, size in shapes[kind].items()}
    made = [
        0.0 if kind in blocks else sum(sizes.values())
        for kind, sizes in enumerate(shapes)
    ]
    return [element_bytes * (sum(kept.values()) + size) for size in made]


def _dispatched(spec: TransformerSpec, degrees: Degrees, platform: Platform) -> float:
    """Return what an all-to-all sends over what a token's copies take up.

    Messages between pairs reach another part of a link than rings do
    (`estimators.collectives.transports`), and kernels of a dispatcher yet another;
    links are as fast as rings on them.
    """
    software = platform.software
    if degrees.ep == 1 or not software.library:
        return 1.0
    span = degrees.grouping.expert_span(degrees[:3])
    slower = _slower_messages(degrees.ep, span, platform)
    if software.moe_token_dispatcher_type == "flex" and within_node(span, software):
        name = platform.accelerator.constants_name
        reached = kernel_efficiency(name, span)
        if reached is not None:
            slower = platform.transport(inside_node=True).efficiency / reached
    copies = copies_sent(spec, degrees.ep, span, software)
    return slower * copies / spec.moe_copies


def _exchanged(degrees: Degrees, platform: Platform) -> float:
    """Return what an exchange of heads for tokens sends over what they take up.

    Its messages go between pairs, as those of experts do.
    """
    ranks = degrees.grouping.exchanging(degrees.cp)
    if ranks == 1 or not platform.software.library:
        return 1.0
    return _slower_messages(ranks, ranks * degrees.tp, platform)


def _slower_messages(size: int, span: int, platform: Platform) -> float:
    """Return how much longer all-to-alls take than rings, for each byte.

    Of ``size`` members that are spread over ``span`` devices.
    """
    transport = platform.transport(inside_node=within_node(span, platform.software))
    return transport.efficiency / transport.reached("all_to_all", size)


def _traffic(
    works: list[LayerWork], kinds: IntArray, exchanged: Mapping[str, float]
) -> tuple[InLayerTraffic, ...]:
    """Return what layers send by operation and group, of which a layer has one sum."""
    present = dict[tuple[str, str], FloatArray]()
    for kind, work in enumerate(works):
        for operation, group, *numbers in work.collectives:
            part = exchanged[group] if operation == "all_to_all" else 1.0
            if (operation, group) not in present:
                present[operation, group] = np.zeros((3, 2, len(works)))
            passes = np.array(numbers).reshape(3, 2)
            present[operation, group][:, :, kind] = passes * (1.0, part)
    rows: list[InLayerTraffic] = []
    for operation, group in sorted(present):
        columns = present[operation, group][:, :, kinds]
        rows.append(
            InLayerTraffic(
                operation=operation,
                group=group,
                forward_count=columns[0, 0],
                forward_bytes=columns[0, 1],
                backward_count=columns[1, 0],
                backward_bytes=columns[1, 1],
                repeated_count=columns[2, 0],
                repeated_bytes=columns[2, 1],
            )
        )
    return tuple(rows)
