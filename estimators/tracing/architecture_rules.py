"""What the tracer knows about modules that few architectures have.

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

References
----------
.. [1] Dao and Gu, "Transformers are SSMs", 2024, section 6.
.. [2] state-spaces/mamba, ``ops/triton/ssd_combined.py``:
   ``MambaSplitConv1dScanCombinedFn`` saves ``zxbcdt`` and ``out_x``.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import nn

from estimators.models.architectures import llama4, mamba, multi_token, t5, vit
from estimators.tracing.rules import (
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
            llama4.ChunkedFlashAttention: _chunked_flash,
            llama4.UnitNorm: memory_rule("norm", keeps="inputs"),
            multi_token.LaterTokenEmbedding: embedding_rule,
            multi_token.Concatenation: memory_rule("concatenate"),
            multi_token.LaterCrossEntropy: cross_entropy_rule,
            t5.BiasedFlashAttention: biased_flash_rule,
            t5.UnmaskedFlashAttention: biased_flash_rule,
            t5.CrossHeads: _cross_heads,
            t5.MaskedSoftmax: memory_rule("softmax", keeps="output"),
            t5.RelativePositionBias: _position_bias,
            vit.PatchProjection: _patches,
            vit.ClassTokenAndPositions: memory_rule("add"),
        }
    )
)
"""Module kept in one piece -> its rule."""
