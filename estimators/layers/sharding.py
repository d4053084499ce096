"""The work of one device in a traced layer: Megatron-LM's parallelism in numbers.

Letters: ``s`` sequence length, ``b`` micro-batch size, ``h`` hidden size, ``a`` heads,
``g`` query groups, ``E`` experts, ``V`` vocabulary, ``tp``, ``cp``, ``ep`` parallel
degrees, ``e`` bytes of an element, ``sp`` sequence parallelism on or off.

Backward passes. A product costs two of its size, one for each gradient. Fused
attention costs 2.5 times its forward pass, since it computes the scores again [2]_,
and 2.6 times with queries of 192 and values of 128 channels. Recurrences have what
their kernels do (`estimators.tracing.recurrences`).
Any other operator reads what was saved and the gradients of its results, and writes
the gradients of its inputs; residual sums pass their gradient on, and add up where it
comes back from the branch.

Saved activations [1]_. What autograd keeps, each tensor once, or what a framework keeps
of it (`estimators.layers.saved_activations`). Under ``"selective"`` the
attention core keeps its inputs only; under ``"full"`` the layer does. Under
``"products"`` a layer keeps its input, the results of fused attention and those of
every second product with a weight, the first one included: torchtitan's policy of
operator-level selective recompute [4]_, which counts the projections of queries, keys
and values, and those of the gate and of what it gates, one by one. A compiler leaves
out the last, which no derivative reads.

Working memory. The gradients of a layer's largest activation and of one more of that
size are alive at once while the layer's backward pass runs: twice the largest
activation, counted as it is while it is used (gathered, with sp). For the head these
are the gradients of the logits alone: what the loss keeps is overwritten by its own.
Where keys and values are gathered over the context group, they and their gradients are
whole while attention's backward pass runs. An indexer's scores of all pairs are whole
until keys are chosen. Ulysses' all-to-alls keep as much as came in, fewer heads of more
tokens; query groups that had to be copied are kept as copies.

Weight gradients [3]_. The half of a product's backward pass that no other layer waits
for. Whoever puts it off keeps the product's input, as it was saved, and the gradient of
its result: that of a row-parallel product is whole on every rank. Gradients of
embeddings and norms are not worth putting off.

References
----------
.. [1] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", 2022, sections 4 and 5.
.. [2] Dao, "FlashAttention-2", 2023, section 4.1.
.. [3] Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", ICLR 2024, table 1.
.. [4] Liang et al., "TorchTitan", ICLR 2025, section 2.3; torchtitan's
   ``_apply_ac_to_transformer_block``.
.. [5] Transformer Engine, ``pytorch/module/linear.py``: ``_Linear.backward`` puts off
   the product of the input as it was saved and of the gradient as it was quantised.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from estimators.layers.adapters import NF4_BYTES
from estimators.layers.documents import attended_share, worked_flops
from estimators.layers.mixer_work import index_scores_work, recurrence_work
from estimators.layers.saved_activations import (
    EVERYTHING,
    Keeping,
    Kept,
    is_narrow,
    kept_parts,
    kept_parts_of,
    num_read,
    read_again,
    runs_again,
    written_tensors,
)
from estimators.layers.shares import (
    Shares,
    device_shares,
    group_copies,
    held_parameters,
    operator_collectives,
)
from estimators.layers.work import (
    Degrees,
    LayerWork,
    OperatorWork,
    summed_collectives,
)
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import (
    INDEX_SCORES,
    LayerGraph,
    TracedLayer,
    TracedOperator,
)
from estimators.tracing.recurrences import RECURRENCES
from estimators.tracing.trained_tower import REPLICATED

_EXTRA_BYTES = {"mask": 1, "fp32": 4}


def layer_work(
    graph: LayerGraph,
    kind: int,
    degrees: Degrees,
    element_bytes: int,
    keeping: Keeping = EVERYTHING,
    like: LayerWork | None = None,
) -> LayerWork:
    """Return what one layer costs one device, for one microbatch.

    Parameters
    ----------
    graph
        The traced model.
    kind
        Which of its distinct layers.
    degrees
        Must have no `divisibility_problem`; a micro-batch of any size.
    element_bytes
        Of weights and activations [byte].
    keeping
        What is kept for the backward pass.
    like
        What is known of the same with other modules run again: only what depends on
        these is worked out anew.
    """
    if like is not None:
        return _again(like, graph.layers[kind], element_bytes, keeping)
    device = _device(graph, kind, degrees, element_bytes)
    holding = _holding(device)
    layer, shares = device.layer, device.shares
    again = runs_again(layer, keeping.recompute_modules)
    sent = operator_collectives(layer, shares, degrees, element_bytes, device.copies)
    parameters = held_parameters(layer, shares)
    entering = device.total(layer.entering)
    flops = sum(worked_flops(graph.spec, operator) for operator in layer.operators)
    gated = graph.spec.gated_linear_unit
    kept = layer.once(("parts", gated), lambda: kept_parts(layer, gated=gated))
    needed = read_again(layer, kept) if keeping.repeats_elementwise else kept
    last = layer.once("read", lambda: num_read(layer))
    return LayerWork(
        operators=tuple(
            _operator(device, op, causal=graph.spec.causal)._replace(
                core=op.core,
                again=repeats,
                operation=op.operation,
                repeated=1.0 - sum(parts) / max(len(parts), 1),
                forward_only=op.forward_only,
                is_unread=place >= last,
            )
            for place, (op, parts, repeats) in enumerate(
                zip(layer.operators, kept, again, strict=True)
            )
        ),
        collectives=summed_collectives(zip(sent, again, strict=True)),
        sent=sent,
        kept_sizes=_kept_sizes(holding),
        parameters=sum(count for _, count in parameters),
        frozen_parameters=sum(
            count for _, count in held_parameters(layer, shares, frozen=True)
        ),
        expert_parameters=sum(n for layout, n in parameters if layout == "expert"),
        model_flops=float(degrees.micro_batch_size * flops),
        saved_bytes={
            **_saved_bytes(holding, entering, keeping),
            "products": entering + _kept_bytes(holding, needed),
        },
        working_bytes=max(
            (1.0 if _has_loss(layer) else 2.0) * _largest(holding),
            2.0 * _gathered_keys(device),
            *(device.total(o.outputs) for o in layer.operators if _is_index(o)),
        )
        + max(
            (
                _dequantised(device, op, 0.0)
                for op in layer.operators
                if op.operation == "dequantize"
            ),
            default=0.0,
        ),
        largest_weight=max((count for _, count in parameters), default=0.0),
        gathered_bytes=_gathered_bytes(device),
        loss_bytes=sum(
            device.total(op.saved)
            for op in layer.operators
            if op.operation == "cross entropy"
        ),
        weight_gradient_bytes=_weight_gradient_bytes(holding, keeping),
        input_bytes=device.total(layer.sent),
    )


def _again(
    like: LayerWork, layer: TracedLayer, element_bytes: int, keeping: Keeping
) -> LayerWork:
    """Return the work of a layer with other modules run again."""
    again = runs_again(layer, keeping.recompute_modules)
    parts = _kept_parts(layer, element_bytes, keeping, "selective")
    kept = sum(like.kept_sizes[number] * part for number, part in parts.items())
    return replace(
        like,
        operators=tuple(
            op if op.again == repeats else op._replace(again=repeats)
            for op, repeats in zip(like.operators, again, strict=True)
        ),
        collectives=summed_collectives(zip(like.sent, again, strict=True)),
        saved_bytes={**like.saved_bytes, "selective": kept},
    )


def operator_works(
    graph: LayerGraph,
    kind: int,
    degrees: Degrees,
    element_bytes: int,
    places: Sequence[int],
) -> list[OperatorWork]:
    """Return the work of some operators of a layer, as `layer_work` has it.

    But for what it says of recompute and of derivatives.
    """
    device = _device(graph, kind, degrees, element_bytes)
    operators = [device.layer.operators[place] for place in places]
    return [
        _operator(device, op, causal=graph.spec.causal)._replace(
            core=op.core, operation=op.operation
        )
        for op in operators
    ]


class _Device(NamedTuple):
    """One device's view of a layer."""

    spec: TransformerSpec
    """Architecture of the model."""
    layer: TracedLayer
    """Layer as it was traced."""
    shares: Shares
    """Shares of the layer's tensors, parameters and products."""
    degrees: Degrees
    """Sizes that shares depend on."""
    element_bytes: int
    """Bytes of an element of activations [byte]."""
    sizes: tuple[float, ...]
    """Size of each tensor on the device [byte]."""
    copies: int
    """Copies of keys and values once heads are exchanged for tokens."""

    def total(self, numbers: Iterable[int]) -> float:
        """Return the size of some tensors together [byte]."""
        return sum(self.sizes[number] for number in numbers)


def _device(
    graph: LayerGraph, kind: int, degrees: Degrees, element_bytes: int
) -> _Device:
    # Modules that are run again have no say in shares.
    shares = device_shares(graph.spec, degrees._replace(recompute_modules=()))
    layer = graph.layers[kind]
    return _Device(
        graph.spec,
        layer,
        shares,
        degrees,
        element_bytes,
        _sizes(layer, shares, element_bytes),
        group_copies(graph.spec, degrees),
    )


def _holding(device: _Device) -> _Device:
    """Return a device as it keeps tensors of the layer in which it has most."""
    if device.spec.moe_layer_loads is None:
        return device
    degrees = device.degrees._replace(recompute_modules=())
    shares = device_shares(device.spec, degrees, kept=True)
    sizes = _sizes(device.layer, shares, device.element_bytes)
    return device._replace(shares=shares, sizes=sizes)


def _sizes(layer: TracedLayer, shares: Shares, element_bytes: int) -> tuple[float, ...]:
    return tuple(
        shares.tensors[layout].of(elements) * _EXTRA_BYTES.get(precision, element_bytes)
        for elements, layout, precision in layer.tensors
    )


def _operator(
    device: _Device, operator: TracedOperator, *, causal: bool
) -> OperatorWork:
    if operator.operation in {"linear", "matmul", "scan"}:
        return _product(device, operator)
    if operator.operation == "attention":
        return _attention(device, operator, causal=causal and not operator.sees_all)
    if operator.operation in RECURRENCES:
        return recurrence_work(operator, device.degrees, device.element_bytes)
    if _is_index(operator):
        rows = device.shares.tensors["whole"].of(operator.dims[0])
        moved = device.total(operator.inputs), device.total(operator.outputs)
        return index_scores_work(operator, rows, *moved)
    if operator.operation == "dequantize":
        forward = backward = _dequantised(device, operator, NF4_BYTES)
    else:
        forward, backward = _memory_traffic(device, operator)
    return OperatorWork(
        operator.name, "memory", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, forward, backward
    )


def _product(device: _Device, operator: TracedOperator) -> OperatorWork:
    """Read both factors, write the result; backward the same for each gradient."""
    share = device.shares.products[operator.sharding]
    m, n, k, batch = (
        part.of(count) for part, count in zip(share, operator.dims, strict=True)
    )
    flops = 2.0 * m * n * k * batch
    traffic = (m * k + k * n + m * n) * batch * device.element_bytes
    weighted = flops if operator.operation == "linear" else 0.0
    # Products of a chunked scan are made again before their gradients.
    back = 3 if operator.operation == "scan" else 2
    if operator.frozen:
        weighted, back = 0.0, 1
    return OperatorWork(
        operator.name,
        "matmul",
        m,
        n,
        k,
        batch,
        flops,
        back * flops,
        traffic,
        back * traffic,
        weight_flops=weighted,
        is_frozen=operator.frozen,
    )


def _attention(
    device: _Device, operator: TracedOperator, *, causal: bool
) -> OperatorWork:
    """Two products over the pairs of tokens that see each other, half if causal.

    Kernels leave out what lies outside of a sliding window [2]_. Backward there are
    five [2]_: scores again, and gradients of queries and keys, as wide as a query's
    head; gradients of probabilities and values, as wide as a value's.
    """
    degrees, grouping = device.degrees, device.degrees.grouping
    if operator.sharding == REPLICATED:
        degrees = degrees._replace(tp=1)
    whole = worked_flops(device.spec, operator) * degrees.micro_batch_size
    flops = whole / (degrees.tp * degrees.cp) * (0.5 if causal else 1.0)
    query, *others = operator.inputs
    # Keys and values of the whole sequence pass by, one ring hop after the other, or
    # are there at once; of fewer heads where those are exchanged for tokens.
    gathers = grouping.cp_comm_type == "all_gather"
    ring = grouping.ring(degrees.cp)
    held = device.total(others) + _copied_groups(device, operator)
    moved = device.total((query,)) + (degrees.cp if gathers else ring) * held
    forward = moved + device.total(written_tensors(operator))
    backward = (
        2 * moved
        + device.total(written_tensors(operator))
        + device.total(operator.outputs)
    )
    queries, keys, head_size, heads = operator.dims
    summaries = operator.chosen or operator.summaries
    tensors = device.layer.tensors
    query_size, key_size = (
        tensors[number].elements / length
        for number, length in zip(operator.inputs, (queries, keys), strict=False)
    )
    query_width = query_size / heads
    value_width = 2 * head_size - query_width
    share = degrees.micro_batch_size / (degrees.tp * grouping.exchanging(degrees.cp))
    # Documents of a sequence are as many shorter ones.
    seen = attended_share(device.spec, operator)
    return OperatorWork(
        operator.name,
        "attention",
        seen * queries * grouping.exchanging(degrees.cp) / degrees.cp,
        # Context parallelism: one kernel for each part of the keys that passes by.
        # A window shows fewer of them.
        seen * (min(keys, operator.window or keys) + summaries) / ring,
        head_size,
        heads * share / seen,
        flops,
        flops * (3.0 * query_width + 2.0 * value_width) / (2.0 * head_size),
        forward,
        backward,
        heads_per_group=max(1.0, query_size / key_size),
        variant=_variant(operator, value_width < query_width),
    )


def _variant(operator: TracedOperator, has_narrow_values: bool) -> str:
    """Return which fused attention it is."""
    if has_narrow_values:
        return "latent"
    return "window" if operator.window else "all"


def _copied_groups(device: _Device, operator: TracedOperator) -> float:
    """Return what copies of query groups add to attention's keys and values [byte]."""
    layouts = device.layer.tensors
    groups = (n for n in operator.inputs[1:] if layouts[n].layout == "groups")
    return (device.copies - 1) * device.total(groups)


def _gathered_keys(device: _Device) -> float:
    """Return the keys and values that attention needs whole [byte]."""
    if device.degrees.grouping.cp_comm_type != "all_gather":
        return 0.0
    sizes = (
        device.degrees.cp * device.total(operator.inputs[1:])
        for operator in device.layer.operators
        if operator.operation == "attention"
    )
    return max(sizes, default=0.0)


def _memory_traffic(device: _Device, operator: TracedOperator) -> tuple[float, float]:
    """Return the traffic of the forward and of the backward pass [byte]."""
    if operator.operation == "embedding":
        # Rows are read and written; gradients are read and added to rows.
        size = device.total(operator.outputs)
        return 2 * size, 0.0 if operator.frozen else 3 * size
    inputs, outputs = device.total(operator.inputs), device.total(operator.outputs)
    if operator.operation == "adapter input":
        return 0.0, 3 * inputs  # added to the gradient of the product's input
    if operator.operation == "adapter sum":
        return inputs + outputs, 0.0
    forward = inputs + device.total(written_tensors(operator))
    return forward, device.total(operator.saved) + outputs + inputs


SAVING_MODES = ("none", "selective", "full")
"""Recompute modes in which blocks keep tensors of their own."""


def _saved_bytes(
    device: _Device, entering: float, keeping: Keeping
) -> Mapping[str, float]:
    sizes = {
        mode: sum(_saved_tensors(device, keeping, mode).values())
        for mode in SAVING_MODES[:-1]
    }
    return MappingProxyType(
        {**sizes, "none": sizes["none"] + _copied(device), "full": entering}
    )


def _copied(device: _Device) -> float:
    """Return the copies of query groups that exchanging heads makes [byte]."""
    return sum(
        _copied_groups(device, operator)
        for operator in device.layer.operators
        if operator.operation == "attention"
    )


def _saved_tensors(device: _Device, keeping: Keeping, mode: str) -> dict[int, float]:
    """Return number and size of each tensor that is kept in a recompute mode [byte]."""
    layer = device.layer
    if mode == "full":
        return {number: device.sizes[number] for number in layer.entering}
    sizes = _kept_sizes(device)
    parts = _kept_parts(layer, device.element_bytes, keeping, mode)
    return {number: sizes[number] * part for number, part in parts.items()}


def _kept_parts(
    layer: TracedLayer, element_bytes: int, keeping: Keeping, mode: str
) -> Mapping[int, float]:
    """Return number and part of each tensor that is kept in a recompute mode."""
    kept = Kept(layer, element_bytes, keeping)
    return layer.once((kept[1:], mode), lambda: kept_parts_of(kept, mode))


def _kept_sizes(device: _Device) -> tuple[float, ...]:
    """Return the size of each tensor where it is kept [byte].

    An adapter beside a column-parallel product keeps what it reads as it was gathered,
    unless it is told to gather it again.
    """
    whole, tensors = device.shares.tensors["whole"], device.layer.tensors
    gathered = {
        operator.inputs[0]
        for operator in device.layer.operators
        if operator.sharding == "adapter column in"
    }
    return tuple(
        whole.of(tensors[number].elements) * device.element_bytes
        if number in gathered
        else size
        for number, size in enumerate(device.sizes)
    )


def _dequantised(device: _Device, operator: TracedOperator, beside: float) -> float:
    """Return the size of a weight in 16 bits, and of it in other bytes [byte]."""
    share = device.shares.products[operator.sharding]
    _, n, k, batch = (
        part.of(count) for part, count in zip(share, operator.dims, strict=True)
    )
    return n * k * batch * (device.element_bytes + beside)


class KeptTensor(NamedTuple):
    """One tensor that a layer keeps from its forward to its backward pass."""

    name: str
    """Operator that makes it, and which of its results it is."""
    share: float
    """Part of its elements that one device has."""
    num_bytes: float
    """Its size on one device, for one microbatch [byte]."""


def kept_tensors(
    graph: LayerGraph,
    kind: int,
    degrees: Degrees,
    element_bytes: int,
    keeping: Keeping = EVERYTHING,
) -> Mapping[str, tuple[KeptTensor, ...]]:
    """Return the tensors that one layer keeps in each recompute mode, largest first.

    Their sizes add up to `layer_work`'s ``saved_bytes``, but for the copies of query
    groups that exchanging heads makes; arguments as it takes them.
    """
    device = _holding(_device(graph, kind, degrees, element_bytes))
    layer, shares = device.layer, device.shares
    names = _tensor_names(layer)

    def share(number: int) -> float:
        elements, layout, _ = layer.tensors[number]
        one_sequence = max(elements, 1) * degrees.micro_batch_size
        return shares.tensors[layout].of(elements) / one_sequence

    return MappingProxyType(
        {
            mode: tuple(
                KeptTensor(names[number], share(number), size)
                for number, size in sorted(
                    _saved_tensors(device, keeping, mode).items(),
                    key=lambda pair: -pair[1],
                )
            )
            for mode in SAVING_MODES
        }
    )


def _tensor_names(layer: TracedLayer) -> dict[int, str]:
    """Name each tensor after the operator that writes it, or else the first reader."""
    names = {
        number: f"input of {operator.name}"
        for operator in reversed(layer.operators)
        for number in operator.inputs
    }
    if layer.hidden_input is not None:
        names[layer.hidden_input] = "input of the layer"
    for operator in layer.operators:
        written = [n for n in written_tensors(operator) if n not in operator.inputs]
        for place, number in enumerate(written, start=1):
            which = f", result {place}" if len(written) > 1 else ""
            names[number] = f"{operator.name}{which}"
    return names


def _kept_bytes(device: _Device, kept: list[tuple[bool, ...]]) -> float:
    """Return the size of those results on a device [byte]."""
    total = 0.0
    for operator, parts in zip(device.layer.operators, kept, strict=True):
        if operator.operation == "attention":
            total += device.total(written_tensors(operator))
        elif len(parts) > len(operator.outputs):
            total += device.total(operator.outputs) * sum(parts) / len(parts)
        else:
            pairs = zip(operator.outputs, parts, strict=False)
            total += device.total(number for number, keep in pairs if keep)
    return total


def _weight_gradient_bytes(device: _Device, keeping: Keeping) -> float:
    """Return the factors of weight gradients, in the format of each product [5]_."""
    narrow: list[TracedOperator] = []
    wide: list[TracedOperator] = []
    for op in device.layer.operators:
        if op.operation == "linear" and not op.frozen:
            (narrow if keeping.input_bytes and is_narrow(op) else wide).append(op)
    part = keeping.input_bytes / device.element_bytes
    return _factor_bytes(device, wide) + part * _factor_bytes(device, narrow)


def _factor_bytes(device: _Device, products: Sequence[TracedOperator]) -> float:
    """Return the size of what products read and result in, as it is [byte]."""
    inputs = device.total({n for op in products for n in op.inputs})
    return inputs + sum(_result_bytes(device, op) for op in products)


def _result_bytes(device: _Device, product: TracedOperator) -> float:
    """Return the size of a product's results, or their gradients, on a rank [byte]."""
    if product.sharding not in {"row", "expert row"}:
        return device.total(product.outputs)
    layout = "experts" if product.sharding == "expert row" else "whole"
    whole = device.shares.tensors[layout]
    return sum(
        whole.of(device.layer.tensors[number].elements) * device.element_bytes
        for number in product.outputs
    )


def _is_index(operator: TracedOperator) -> bool:
    return operator.operation == INDEX_SCORES


def _has_loss(layer: TracedLayer) -> bool:
    return any(op.operation == "cross entropy" for op in layer.operators)


def _gathered_bytes(device: _Device) -> float:
    """Return what gathering adds to the inputs of column-parallel products [byte]."""
    whole, tensors = device.shares.tensors["whole"], device.layer.tensors
    inputs = {
        operator.inputs[0]
        for operator in device.layer.operators
        if operator.sharding in {"column", "qkv", "vocab"} and not operator.frozen
    }
    return sum(
        whole.of(tensors[number].elements) * device.element_bytes - device.sizes[number]
        for number in inputs
    )


def _largest(device: _Device) -> float:
    """Return the size of the largest activation while it is used [byte]."""
    tensors, whole = device.layer.tensors, device.shares.tensors["whole"]
    sizes = [
        size
        for size, tensor in zip(device.sizes, tensors, strict=True)
        if tensor.precision == "model"
    ]
    gathered = [
        whole.of(tensors[operator.inputs[0]].elements) * device.element_bytes
        for operator in device.layer.operators
        if operator.sharding in {"column", "qkv", "vocab"} and operator.inputs
    ]
    return max(sizes + gathered)
