"""What the tracer knows about each module and function, and how it runs a layer.

A rule describes one node of a traced graph: the tensors that it reads, writes and keeps
for the backward pass (as autograd does), its dimensions, and how its results are
laid out over a tensor-parallel group. Layouts follow Megatron-LM: column-parallel
layers turn "sequence" into "tensor", row-parallel layers turn it back.

Run a layer on the meta device under torch.fx and write down what it does.

The chunked scan of Mamba-2 [2]_ is described by its kernels: with chunks of ``Q``
tokens, ``G`` groups of ``H / G`` heads of width ``P``, and a state of ``N`` numbers for
each channel, a group of a chunk has the products

* ``C B^T`` of ``Q x N x Q``, the scores;
* ``x^T B`` of ``P H/G x Q x N``, what the chunk adds to the states;
* scores by x of ``Q x Q x P H/G``, and C by the states that entered, of
  ``Q x N x P H/G``: the results;

beside the convolution, the sums of decays, the states handed from chunk to chunk, and
the gate. Scores, sums and states of a chunk are in fp32. For its backward pass the
function keeps its input and the result before the gate and makes the rest again [3]_:
the first two products are of the kind that a backward pass repeats (``"scan"``).

The layer is traced symbolically once; the graph is then interpreted on meta tensors,
which have shapes but no values, and each node is described by its rule.

References
----------
.. [1] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", 2022, section 4.1: which tensors an operator saves.
.. [2] Dao and Gu, "Transformers are SSMs", 2024, section 6.
.. [3] state-spaces/mamba, ``ops/triton/ssd_combined.py``:
   ``MambaSplitConv1dScanCombinedFn`` saves ``zxbcdt`` and ``out_x``.
"""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from estimators.models import attention, encoders, families, layers
from estimators.tracing.graph import (
    TracedLayer,
    TracedOperator,
    TracedParameter,
    TracedTensor,
)

_NO_DIMS = (0, 0, 0, 0)
_CORE = frozenset(
    {
        attention.PlainAttention,
        attention.FlashAttention,
        attention.ChunkedFlashAttention,
        encoders.BiasedPlainAttention,
        encoders.UnmaskedPlainAttention,
        encoders.BiasedFlashAttention,
        encoders.UnmaskedFlashAttention,
    }
)
"""Operators that selective recompute repeats."""

_UNMASKED = frozenset(
    {encoders.UnmaskedPlainAttention, encoders.UnmaskedFlashAttention}
)
"""Those in which every query sees every key."""


@dataclass(slots=True, kw_only=True)
class Tape:
    """What has been written down so far."""

    tensors: list[TracedTensor] = field(default_factory=list)
    """Tensors recorded so far."""
    operators: list[TracedOperator] = field(default_factory=list)
    """Operators recorded so far."""
    numbers: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    """Node -> numbers of the tensors that it results in."""

    def add(self, elements: int, layout: str, precision: str) -> int:
        """Return the number of a new tensor."""
        self.tensors.append(TracedTensor(elements, layout, precision))
        return len(self.tensors) - 1


class TracedCall(NamedTuple):
    """One node of the graph while its rule looks at it."""

    tape: Tape
    """Tape that the call is recorded on."""
    node: fx.Node
    """Node of the traced module's graph."""
    target: Any
    """Name of the module, function or method."""
    inputs: tuple[int, ...]
    """Numbers of the tensors read."""
    results: tuple[Tensor, ...]
    """Tensors that came out; shapes only."""

    def result(self, place: int = 0, layout: str = "") -> int:
        """Return a number for a result, by default laid out like the first input."""
        layout = layout or self.tape.tensors[self.inputs[0]].layout
        return self.tape.add(self.results[place].numel(), layout, "model")

    def extra(self, elements: int, precision: str) -> int:
        """Return a number for a tensor that is only kept for the backward pass."""
        layout = self.tape.tensors[self.inputs[0]].layout
        return self.tape.add(elements, layout, precision)

    def emit(
        self,
        operation: str,
        outputs: tuple[int, ...],
        *,
        saved: tuple[int, ...] = (),
        sharding: str = "",
        dims: tuple[int, int, int, int] = _NO_DIMS,
        window: int = 0,
    ) -> None:
        """Write the operator down; its results become those of the node."""
        stack = self.node.meta.get("nn_module_stack", {})
        kinds = [kind for _, kind in stack.values()]
        path = list(stack)[-1] if stack else ""
        function = f"{path}.{self.node}".lstrip(".")
        self.tape.operators.append(
            TracedOperator(
                name=path if self.node.op == "call_module" else function,
                operation=operation,
                sharding=sharding,
                inputs=self.inputs,
                outputs=outputs,
                saved=saved,
                dims=dims,
                core=not _CORE.isdisjoint(kinds),
                window=window,
                sees_all=not _UNMASKED.isdisjoint(kinds),
            )
        )
        self.set(outputs)

    def set(self, outputs: tuple[int, ...]) -> None:
        """Say which numbers the node's results have."""
        self.tape.numbers[self.node] = outputs


def _alias(call: TracedCall) -> None:
    """Let a view share its tensor."""
    call.set(call.inputs[:1])


def _take(call: TracedCall) -> None:
    """Pick one of several results, or a part of a tensor."""
    place = call.node.args[1]
    if isinstance(place, int):
        call.set(call.inputs[place : place + 1])
    else:
        call.set((call.result(),))


def _chunk(call: TracedCall) -> None:
    """Parts of a tensor can be kept by themselves."""
    call.set(tuple(call.result(place) for place in range(len(call.results))))


def linear_rule(sharding: str, layout: str) -> Callable[[TracedCall], None]:
    """Return the rule of a product with a weight: it keeps its input."""

    def rule(call: TracedCall) -> None:
        n, k = call.target.weight.shape
        source = call.inputs[0]
        m = call.tape.tensors[source].elements // k
        output = call.result(layout=layout)
        call.emit(
            "linear", (output,), saved=(source,), sharding=sharding, dims=(m, n, k, 1)
        )

    return rule


_QKV_LAYOUTS = ("tensor", "groups", "groups", "tensor")
"""Layouts of queries, keys, values and gates."""


def _qkv(call: TracedCall) -> None:
    n, k = call.target.weight.shape
    source = call.inputs[0]
    m = call.tape.tensors[source].elements // k
    outputs = tuple(
        call.result(place, layout)
        for place, layout in enumerate(_QKV_LAYOUTS[: len(call.results)])
    )
    call.emit("linear", outputs, saved=(source,), sharding="qkv", dims=(m, n, k, 1))


def _experts(sharding: str, layout: str) -> Callable[[TracedCall], None]:
    """Return the rule of one product per expert; m counts the rows of all experts."""

    def rule(call: TracedCall) -> None:
        _, n, k = call.target.weight.shape
        m = call.results[0].shape[0]
        source, output = call.inputs[0], call.result(layout=layout)
        call.emit(
            "linear", (output,), saved=(source,), sharding=sharding, dims=(m, n, k, 1)
        )

    return rule


def matmul_rule(call: TracedCall) -> None:
    """Products of two activations keep both."""
    m, n = call.results[0].shape[-2:]
    batch = call.results[0].numel() // (m * n)
    k = call.tape.tensors[call.inputs[0]].elements // (m * batch)
    output = call.result(layout="tensor")
    call.emit(
        "matmul", (output,), saved=call.inputs, sharding="heads", dims=(m, n, k, batch)
    )


def flash_rule(call: TracedCall, window: int = 0) -> None:
    """Keep queries, keys, values, the result, and one fp32 number per row and head.

    A dropout mask is drawn again from the state of the random generator.
    """
    heads, rows, size = call.results[0].shape[-3:]
    # Scores have the width of queries, contexts that of values: the mean counts.
    query = call.tape.tensors[call.inputs[0]].elements // (heads * rows)
    output, log_sums = call.result(), call.extra(heads * rows, "fp32")
    call.emit(
        "attention",
        (output,),
        saved=(*call.inputs, output, log_sums),
        sharding="heads",
        dims=(rows, rows, (query + size) // 2, heads),
        window=window,
    )


def _flash(call: TracedCall) -> None:
    """Count the keys that a sliding window shows."""
    flash_rule(call, call.target.rules.window)


def dropout_rule(call: TracedCall) -> None:
    """Keep a mask; nothing happens at probability 0."""
    if call.target.p == 0:
        _alias(call)
        return
    output, mask = call.result(), call.extra(call.results[0].numel(), "mask")
    call.emit("dropout", (output,), saved=(mask,))


def embedding_rule(call: TracedCall) -> None:
    """Keep ids only, which are not counted."""
    split = isinstance(call.target, layers.VocabParallelEmbedding)
    output = call.result(layout="sequence")
    call.emit("embedding", (output,), sharding="row" if split else "")


def _rotary(call: TracedCall) -> None:
    """Keep nothing: turning back needs angles only."""
    tensors = call.tape.tensors
    outputs = tuple(
        call.result(place, tensors[number].layout)
        for place, number in enumerate(call.inputs)
    )
    call.emit("rotary", outputs)


def _latent_heads(call: TracedCall) -> None:
    """Keep nothing, as rotary embeddings do; every result is made anew."""
    places = range(len(call.results))
    call.emit("rotary", tuple(call.result(place, "tensor") for place in places))


def _topk(call: TracedCall) -> None:
    """Keep the softmax over all experts."""
    weights = call.result()
    everything = call.extra(call.tape.tensors[call.inputs[0]].elements, "model")
    call.emit("top-k", (weights,), saved=(everything,))


def cross_entropy_rule(call: TracedCall) -> None:
    """Keep the softmax over the vocabulary in fp32."""
    loss = call.result(layout="whole")
    softmax = call.extra(call.tape.tensors[call.inputs[0]].elements, "fp32")
    call.emit("cross entropy", (loss,), saved=(softmax,))


def memory_rule(
    operation: str, *, keeps: str = "", layout: str = ""
) -> Callable[[TracedCall], None]:
    """Return the rule of an operator bound by memory, with one result.

    `keeps` says what the backward pass needs: ``"inputs"``, ``"output"`` or nothing.
    """

    def rule(call: TracedCall) -> None:
        output = call.result(layout=layout)
        saved = {"inputs": call.inputs, "output": (output,), "": ()}[keeps]
        call.emit(operation, (output,), saved=saved)

    return rule


MODULE_RULES: Mapping[type[nn.Module], Callable[[TracedCall], None]] = MappingProxyType(
    {
        layers.ColumnParallelLinear: linear_rule("column", "tensor"),
        layers.RowParallelLinear: linear_rule("row", "sequence"),
        layers.VocabParallelLinear: linear_rule("vocab", "vocab"),
        nn.Linear: linear_rule("", ""),
        attention.QKVParallelLinear: _qkv,
        layers.ExpertColumnLinear: _experts("expert column", "tensor"),
        layers.ExpertRowLinear: _experts("expert row", "sequence"),
        attention.FlashAttention: _flash,
        attention.ScaledMaskedSoftmax: memory_rule("softmax", keeps="output"),
        attention.RotaryEmbedding: _rotary,
        attention.LatentHeads: _latent_heads,
        layers.VocabParallelEmbedding: embedding_rule,
        nn.Embedding: embedding_rule,
        layers.PositionEmbedding: memory_rule("add"),
        layers.RMSNorm: memory_rule("norm", keeps="inputs"),
        attention.QueryNorm: memory_rule("norm", keeps="inputs"),
        attention.KeyNorm: memory_rule("norm", keeps="inputs"),
        nn.LayerNorm: memory_rule("norm", keeps="inputs"),
        nn.GELU: memory_rule("activation", keeps="inputs"),
        nn.SiLU: memory_rule("activation", keeps="inputs"),
        nn.ReLU: memory_rule("activation", keeps="inputs"),
        layers.SquaredReLU: memory_rule("activation", keeps="inputs"),
        layers.XIELU: memory_rule("activation", keeps="inputs"),
        nn.Tanh: memory_rule("activation", keeps="output"),
        nn.Sigmoid: memory_rule("activation", keeps="output"),
        layers.SoftCap: memory_rule("activation", keeps="output"),
        layers.Scale: memory_rule("multiply"),
        nn.Dropout: dropout_rule,
        layers.CrossEntropy: cross_entropy_rule,
        layers.TopK: _topk,
        layers.TokenDispatch: memory_rule("dispatch", layout="experts"),
        layers.TokenCombine: memory_rule("combine", keeps="inputs"),
    }
)
"""Module kept in one piece -> its rule."""

FUNCTION_RULES: Mapping[Any, Callable[[TracedCall], None]] = MappingProxyType(
    {
        operator.add: memory_rule("add"),
        operator.mul: memory_rule("multiply", keeps="inputs"),
        operator.getitem: _take,
        torch.matmul: matmul_rule,
        "chunk": _chunk,
        "flatten": _alias,
        "split": _chunk,
        "repeat_interleave": memory_rule("repeat", layout="tensor"),
        "transpose": _alias,
        "view_as": _alias,
    }
)
"""Function, or name of a tensor's method -> its rule."""


class _Scan(NamedTuple):
    """The scan of one sequence; writes its kernels down one by one."""

    call: TracedCall
    """Call of the module."""
    tokens: int
    """Tokens of the sequence."""
    chunk: int
    """Tokens ``Q`` of a chunk."""
    products: int
    """Chunks times groups: a sequence's last chunk is filled up."""
    width: int
    """Width ``P H/G`` of a group's heads."""
    state: int
    """Numbers ``N`` of a channel's state."""

    @classmethod
    def of(cls, call: TracedCall) -> "_Scan":
        """Read the sizes off a module and its result."""
        module: layers.ChunkedScan = call.target
        tokens = call.results[0].numel() // module.widths[0]
        chunk = min(module.chunk_size, tokens)
        return cls(
            call,
            tokens,
            chunk,
            math.ceil(tokens / chunk) * module.num_groups,
            module.widths[0] // module.num_groups,
            module.state_dim,
        )

    def tensor(self, elements: int, precision: str = "model") -> int:
        """Return the number of a new tensor, split by heads."""
        return self.call.tape.add(elements, "tensor", precision)

    def emit(
        self,
        part: str,
        operation: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        saved: tuple[int, ...] = (),
        sizes: tuple[int, int, int] | None = None,
    ) -> None:
        """Write one kernel down; `sizes` are those of each group's product."""
        self.call._replace(inputs=inputs).emit(
            operation,
            outputs,
            saved=saved,
            sharding="heads" if sizes else "",
            dims=(*sizes, self.products) if sizes else (0, 0, 0, 0),
        )
        operators = self.call.tape.operators
        operators[-1] = operators[-1]._replace(name=f"{operators[-1].name}.{part}")


def scan_rule(call: TracedCall) -> None:
    """Keep the input, as gate, values and steps, and the result before the gate."""
    scan, module = _Scan.of(call), call.target
    chunk, width, state, products = scan.chunk, scan.width, scan.state, scan.products
    gate, convolved, step = (scan.tensor(scan.tokens * n) for n in module.widths)
    maps = scan.tokens * module.num_groups * state
    x, b, c = (scan.tensor(n) for n in (scan.tokens * module.widths[0], maps, maps))
    scan.emit("conv1d", "convolution", (convolved,), (x, b, c), saved=(convolved,))
    decay = scan.tensor(scan.tokens * module.num_heads, "fp32")
    scan.emit("decay", "cumulative sum", (step,), (decay,), saved=(step,))
    scores = scan.tensor(products * chunk**2, "fp32")
    scan.emit("scores", "scan", (c, b), (scores,), sizes=(chunk, chunk, state))
    added = scan.tensor(products * width * state, "fp32")
    scan.emit("states", "scan", (x, b, decay), (added,), sizes=(width, state, chunk))
    entered = scan.tensor(products * width * state)
    scan.emit("passing", "state passing", (added,), (entered,))
    inner, result, output = (scan.tensor(call.results[0].numel()) for _ in range(3))
    within = (scores, x, decay)
    scan.emit("within", "matmul", within, (inner,), sizes=(chunk, width, chunk))
    across = (c, entered, inner)
    scan.emit("across", "matmul", across, (result,), sizes=(chunk, width, state))
    scan.emit("gate", "multiply", (result, gate), (output,), saved=(result, gate))


def biased_flash_rule(call: TracedCall) -> None:
    """Keep what fused attention keeps; a bias belongs to all blocks together."""
    heads, rows, size = call.results[0].shape[-3:]
    tensors, (query, key, *_) = call.tape.tensors, call.inputs
    keys = rows * tensors[key].elements // tensors[query].elements
    output, log_sums = call.result(), call.extra(heads * rows, "fp32")
    call.emit(
        "attention",
        (output,),
        saved=(*call.inputs[:3], output, log_sums),
        sharding="heads",
        dims=(rows, keys, size, heads),
    )


def _position_bias(call: TracedCall) -> None:
    """Read rows of a small table, keep nothing."""
    call.emit("embedding", (call.result(layout="tensor"),))


def _cross_heads(call: TracedCall) -> None:
    """Share the queries' tensor; keys and values can be kept by themselves."""
    keys, values = (
        call.tape.add(result.numel(), "tensor", "model") for result in call.results[1:]
    )
    call.set((call.inputs[0], keys, values))


def _patches(call: TracedCall) -> None:
    """Describe patches that are cut out and projected as one product."""
    rows, width = call.results[0].shape[-2:]
    inner = call.target.weight.numel() // width
    output = call.result(layout="sequence")
    call.emit("linear", (output,), saved=call.inputs, dims=(rows, width, inner, 1))


def _chunked_flash(call: TracedCall) -> None:
    """Describe fused attention whose chunks are sequences of their own."""
    heads, rows, size = call.results[0].shape[-3:]
    chunk = call.target.chunk
    output, log_sums = call.result(), call.extra(heads * rows, "fp32")
    call.emit(
        "attention",
        (output,),
        saved=(*call.inputs, output, log_sums),
        sharding="heads",
        dims=(chunk, chunk, size, heads * (rows // chunk)),
    )


ARCHITECTURE_RULES: Mapping[type[nn.Module], Callable[[TracedCall], None]] = (
    MappingProxyType(
        {
            layers.ChunkedScan: scan_rule,
            layers.GroupedRMSNorm: memory_rule("norm", keeps="inputs"),
            attention.ChunkedFlashAttention: _chunked_flash,
            attention.UnitNorm: memory_rule("norm", keeps="inputs"),
            families.LaterTokenEmbedding: embedding_rule,
            families.Concatenation: memory_rule("concatenate"),
            families.LaterCrossEntropy: cross_entropy_rule,
            encoders.BiasedFlashAttention: biased_flash_rule,
            encoders.UnmaskedFlashAttention: biased_flash_rule,
            encoders.CrossHeads: _cross_heads,
            encoders.MaskedSoftmax: memory_rule("softmax", keeps="output"),
            encoders.RelativePositionBias: _position_bias,
            encoders.PatchProjection: _patches,
            encoders.ClassTokenAndPositions: memory_rule("add"),
        }
    )
)
"""Module kept in one piece -> its rule."""


_PARAMETER_LAYOUTS: Mapping[tuple[type[nn.Module], str], str] = MappingProxyType(
    {
        (layers.ColumnParallelLinear, "weight"): "tensor",
        (layers.ColumnParallelLinear, "bias"): "tensor",
        (layers.RowParallelLinear, "weight"): "tensor",
        (layers.VocabParallelLinear, "weight"): "vocab",
        (layers.VocabParallelLinear, "bias"): "vocab",
        (layers.VocabParallelEmbedding, "weight"): "vocab",
        (attention.QueryNorm, "weight"): "tensor",
        (attention.KeyNorm, "weight"): "groups",
        (attention.FlashAttention, "softmax_offset"): "tensor",
        (layers.ExpertColumnLinear, "weight"): "expert",
        (layers.ExpertRowLinear, "weight"): "expert",
        (layers.ExpertColumnLinear, "bias"): "expert",
        (layers.ExpertRowLinear, "bias"): "expert",
        (families.LaterTokenEmbedding, "weight"): "vocab",
        (layers.ChunkedScan, "conv1d_weight"): "tensor",
        (layers.ChunkedScan, "conv1d_bias"): "tensor",
        (layers.ChunkedScan, "dt_bias"): "tensor",
        (layers.ChunkedScan, "A_log"): "tensor",
        (layers.ChunkedScan, "D"): "tensor",
        (layers.GroupedRMSNorm, "weight"): "tensor",
    }
)
"""(Module, parameter) -> layout; everything else is whole on every rank."""

_RULES = MappingProxyType({**MODULE_RULES, **ARCHITECTURE_RULES})
_MEMORY = "memory"
_INPUT_LAYOUTS: Mapping[str, str] = MappingProxyType({"position_bias": "tensor"})
"""Argument of a layer -> layout; everything else is split along the sequence."""


def record_layer(
    module: nn.Module, inputs: tuple[Tensor, ...], *, takes_hidden: bool
) -> TracedLayer:
    """Trace one layer.

    Parameters
    ----------
    module
        On the meta device.
    inputs
        Meta tensors for one sequence. Integer ones (ids, labels) take no part in the
        accounting. An argument ``memory`` comes from the layer before, like hidden
        states.
    takes_hidden
        Whether the first input is hidden states.
    """
    graph = _Tracer().trace(module)
    recorder = _Recorder(fx.GraphModule(module, graph))
    recorder.run(*inputs)
    tape = recorder.tape
    return TracedLayer(
        tensors=tuple(tape.tensors),
        parameters=tuple(_parameters(module)),
        operators=tuple(tape.operators),
        hidden_input=0 if takes_hidden else None,
        memory_input=recorder.arguments.get(_MEMORY),
    )


class _Tracer(fx.Tracer):
    """Keeps the modules that have a rule in one piece."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002  # torch.fx's signature
        """Say whether a module is one node of the graph."""
        return type(m) in _RULES


class _Recorder(fx.Interpreter):
    """Interprets on meta tensors and applies a rule to every node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.tape = Tape()
        self.arguments: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, then describe it."""
        value = super().run_node(n)
        if n.op == "placeholder" and value.is_floating_point():
            layout = _INPUT_LAYOUTS.get(str(n.target), "sequence")
            number = self.tape.add(value.numel(), layout, "model")
            self.tape.numbers[n] = (number,)
            self.arguments[str(n.target)] = number
        elif n.op.startswith("call"):
            self._describe(n, value)
        return value

    def _describe(self, node: fx.Node, value: Any) -> None:
        target: Any = node.target
        if node.op == "call_module":
            target = self.fetch_attr(str(node.target))
            rule = _RULES[type(target)]
        else:
            rule = FUNCTION_RULES[target]
        given = [argument for argument in node.args if isinstance(argument, fx.Node)]
        inputs = tuple(
            i for argument in given for i in self.tape.numbers.get(argument, ())
        )
        results = value if isinstance(value, tuple) else (value,)
        rule(TracedCall(self.tape, node, target, inputs, results))


def _parameters(module: nn.Module) -> list[TracedParameter]:
    parameters = []
    for path, part in module.named_modules():
        if isinstance(part, families.LaterTokenEmbedding) and part.is_held_already:
            continue
        for name, parameter in part.named_parameters(path, recurse=False):
            if isinstance(part, attention.QKVParallelLinear):
                row = parameter.numel() // parameter.shape[0]
                parameters += [
                    TracedParameter(
                        f"{name}.{what}", heads * part.head_size * row, layout
                    )
                    for what, heads, layout in zip(
                        ("query", "key", "value", "gate"),
                        part.heads,
                        _QKV_LAYOUTS,
                        strict=True,
                    )
                    if heads
                ]
                continue
            own_name = name.rpartition(".")[2]
            layout = _PARAMETER_LAYOUTS.get((type(part), own_name), "whole")
            parameters.append(TracedParameter(name, parameter.numel(), layout))
    return parameters
