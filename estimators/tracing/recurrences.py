"""Linear recurrences in chunks: what their kernels multiply and move, as tables.

A head of a recurrence keeps a state of ``K x V`` numbers, which every token writes and
reads. Kernels for training cut a sequence into chunks of ``C`` tokens: within a chunk
tokens see each other by products of masked scores, and from chunk to chunk the state is
handed on. A table counts the products of one chunk of one head by their sizes, a
product of ``a x b`` by ``b x c`` under the letters ``abc`` in alphabetical order, with
two FLOP for a multiply-add, and the elements that kernels read and write for a token of
a head.

* ``"gated delta rule"`` [1]_: the delta rule with one decay for each head and token.
  Forward [2]_: ``k k'`` of a chunk and its triangular inverse, of ``C^3 / 3`` FLOP;
  ``w`` and ``u``, the inverse by keys and by values; ``w`` by the state, keys by what
  is left of values, queries by the state; queries by keys, and that by values.
  Backward: ``w``, ``u`` and the states again; gradients of values within a chunk, of
  states, and of what the forward pass multiplied.
* ``"channel delta rule"`` [3]_: the same with one decay for each channel of a key, of
  Kimi Delta Attention.
* ``"decaying sum"`` [4]_: the state decays by a constant of each head, and takes what
  is written as it is: lightning attention.

References
----------
.. [1] Yang, Kautz, Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta
   Rule", 2024, section 3.3.
.. [2] fla-org/flash-linear-attention at bc3b101d: ``ops/gated_delta_rule/chunk.py``,
   ``chunk_fwd.py``, ``wy_fast.py``; ``ops/common/chunk_delta_h.py``, ``chunk_o.py``.
.. [3] Kimi Team, "Kimi Linear", 2025, section 3; ``ops/kda`` of the same.
.. [4] Qin et al., "Lightning Attention-2", 2024, algorithms 1 and 2; MiniMax,
   "MiniMax-01", 2025, section 2.2.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class ChunkWork(NamedTuple):
    """What kernels of one pass do."""

    products: Mapping[str, float]
    """Sizes of products of a chunk of a head, letters ``C``, ``K``, ``V`` -> how many
    there are."""

    moved: Mapping[str, float]
    """Elements that are read and written for a token of a head: of the width of a key
    ``K``, of a value ``V``, of a chunk ``C``, and parts of a state ``KV``, which a
    chunk of tokens shares -> how many."""


class Recurrence(NamedTuple):
    """A recurrence that one fused function computes, in several kernels."""

    chunk: int
    """Tokens of a chunk."""

    forward: ChunkWork
    """Kernels of the forward pass."""

    backward: ChunkWork
    """Kernels of the backward pass, with what it makes again."""

    def flops(self, work: ChunkWork, tokens: Any, key: Any, value: Any) -> Any:
        """Return the products of a pass over one sequence of one head [FLOP].

        Parameters
        ----------
        work
            `forward` or `backward`.
        tokens
            Of the sequence; a last chunk that is not full counts by its part.
        key, value
            Widths of a key and of a value. Numbers, or arrays for many shapes.
        """
        sizes = {"C": float(self.chunk), "K": key, "V": value}
        in_chunk = sum(
            count * 2.0 * math.prod(sizes[letter] for letter in letters)
            for letters, count in work.products.items()
        )
        return tokens / self.chunk * in_chunk

    def elements(self, work: ChunkWork, key: Any, value: Any) -> Any:
        """Return the elements that a pass moves for a token of a head.

        Arguments as of `flops`.
        """
        sizes = {
            "C": float(self.chunk),
            "K": key,
            "V": value,
            "KV": key * value / self.chunk,
        }
        return sum(count * sizes[name] for name, count in work.moved.items())


_DELTA_FORWARD = ChunkWork(
    {"CCK": 3, "CCV": 2, "CKV": 3, "CCC": 1 / 6},
    {"C": 2, "K": 7, "V": 6, "KV": 2},
)

RECURRENCES: Mapping[str, Recurrence] = MappingProxyType(
    {
        "gated delta rule": Recurrence(
            chunk=64,
            forward=_DELTA_FORWARD,
            backward=ChunkWork(
                {"CCK": 9, "CCV": 5, "CKV": 8, "CCC": 2},
                {"C": 2, "K": 20, "V": 15, "KV": 4},
            ),
        ),
        "channel delta rule": Recurrence(
            chunk=64,
            forward=_DELTA_FORWARD,
            backward=ChunkWork(
                {"CCK": 7, "CCV": 5, "CKV": 8, "CCC": 2},
                {"C": 4, "K": 22, "V": 15, "KV": 4},
            ),
        ),
        "decaying sum": Recurrence(
            chunk=256,
            forward=ChunkWork(
                {"CCK": 1, "CCV": 1, "CKV": 2},
                {"K": 2, "V": 2, "KV": 2},
            ),
            backward=ChunkWork(
                {"CCK": 3, "CCV": 2, "CKV": 5},
                {"K": 6, "V": 5, "KV": 4},
            ),
        ),
    }
)
"""Operation of a traced layer -> its recurrence. Their ``dims`` are the tokens of a
sequence, the widths of a value and of a key, and heads."""
