"""Run a layer on the meta device under torch.fx and write down what it does.

The chunked scan of Mamba-2 [1]_ is described by its kernels: with chunks of ``Q``
tokens, ``G`` groups of ``H / G`` heads of width ``P``, and a state of ``N`` numbers for
each channel, a group of a chunk has the products

* ``C B^T`` of ``Q x N x Q``, the scores;
* ``x^T B`` of ``P H/G x Q x N``, what the chunk adds to the states;
* scores by x of ``Q x Q x P H/G``, and C by the states that entered, of
  ``Q x N x P H/G``: the results;

beside the convolution, the sums of decays, the states handed from chunk to chunk, and
the gate. Scores, sums and states of a chunk are in fp32. For its backward pass the
function keeps its input and the result before the gate and makes the rest again [2]_:
the first two products are of the kind that a backward pass repeats (``"scan"``).

The layer is traced symbolically once; the graph is then interpreted on meta tensors,
which have shapes but no values, and each node is described by its rule.

References
----------
.. [1] Dao and Gu, "Transformers are SSMs", 2024, section 6.
.. [2] state-spaces/mamba, ``ops/triton/ssd_combined.py``:
   ``MambaSplitConv1dScanCombinedFn`` saves ``zxbcdt`` and ``out_x``.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from estimators.models import attention, decoder, encoders, experts, layers, mamba
from estimators.tracing.graph import TracedLayer, TracedParameter
from estimators.tracing.rules import (
    FUNCTION_RULES,
    MODULE_RULES,
    Tape,
    TracedCall,
    cross_entropy_rule,
    embedding_rule,
    memory_rule,
)


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
        module: mamba.ChunkedScan = call.target
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
        call.tape.add(one.numel(), "tensor", "model") for one in call.results[1:]
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
            mamba.ChunkedScan: scan_rule,
            mamba.GroupedRMSNorm: memory_rule("norm", keeps="inputs"),
            attention.ChunkedFlashAttention: _chunked_flash,
            attention.UnitNorm: memory_rule("norm", keeps="inputs"),
            decoder.LaterTokenEmbedding: embedding_rule,
            decoder.Concatenation: memory_rule("concatenate"),
            decoder.LaterCrossEntropy: cross_entropy_rule,
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
        (experts.ExpertColumnLinear, "weight"): "expert",
        (experts.ExpertRowLinear, "weight"): "expert",
        (experts.ExpertColumnLinear, "bias"): "expert",
        (experts.ExpertRowLinear, "bias"): "expert",
        (decoder.LaterTokenEmbedding, "weight"): "vocab",
        (mamba.ChunkedScan, "conv1d_weight"): "tensor",
        (mamba.ChunkedScan, "conv1d_bias"): "tensor",
        (mamba.ChunkedScan, "dt_bias"): "tensor",
        (mamba.ChunkedScan, "A_log"): "tensor",
        (mamba.ChunkedScan, "D"): "tensor",
        (mamba.GroupedRMSNorm, "weight"): "tensor",
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
    found = []
    for path, part in module.named_modules():
        if isinstance(part, decoder.LaterTokenEmbedding) and part.is_held_already:
            continue
        for name, parameter in part.named_parameters(path, recurse=False):
            if isinstance(part, attention.QKVParallelLinear):
                row = parameter.numel() // parameter.shape[0]
                query, key, value = (n * part.head_size * row for n in part.heads)
                found.append(TracedParameter(f"{name}.query", query, "tensor"))
                found.append(TracedParameter(f"{name}.key", key, "groups"))
                found.append(TracedParameter(f"{name}.value", value, "groups"))
                continue
            own_name = name.rpartition(".")[2]
            layout = _PARAMETER_LAYOUTS.get((type(part), own_name), "whole")
            found.append(TracedParameter(name, parameter.numel(), layout))
    return found
