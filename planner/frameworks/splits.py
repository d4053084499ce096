"""How frameworks share blocks out over the chunks of a pipeline.

Letters: ``c`` numbers of blocks of the virtual stages in the order of the chain, ``p``
stages, ``v`` chunks of each, ``B`` blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from types import MappingProxyType

EVEN = "even"
"""Every chunk holds the same number of blocks."""

ENDS = "ends"
"""The first and the last stage may hold other numbers of blocks than the stages
between, which are alike; each stage shares its blocks evenly over its chunks."""

ACCOUNTED = "accounted"
"""As `EVEN`, where the embedding, or final norm, head and loss, or both, may count as
one block each."""

EARLY = "early"
"""Each round of chunks holds as many blocks; what is left over of a round goes to its
first stages, one block each."""

LATE = "late"
"""As `EARLY`, to the last stages of each round."""

BALANCED = "balanced"
"""Numbers of blocks differ by one at most, the ends of the chain counting or not, as in
`ACCOUNTED`."""

LAYOUT = "layout"
"""Any number of blocks in any chunk, written out one by one."""


def rounds(
    num_blocks: int, num_stages: int, num_chunks: int, kind: str
) -> tuple[int, ...] | None:
    """Return ``c`` as `EARLY` or `LATE` has it; None if there is none.

    DeepSpeed's ``partition_balanced`` over ``type:transformer`` and InternEvo's
    ``partition_uniform``.
    """
    of_round, rest = divmod(num_blocks, num_chunks)
    if rest or of_round < num_stages:
        return None
    even, over = divmod(of_round, num_stages)
    more = range(over) if kind == EARLY else range(num_stages - over, num_stages)
    return tuple(even + (stage in more) for stage in range(num_stages)) * num_chunks


def is_even(counts: Sequence[int], _: int) -> bool:
    """Tell whether all ``c`` are equal."""
    return len(set(counts)) == 1


def has_other_ends(counts: Sequence[int], num_stages: int) -> bool:
    """Tell whether stages between the first and the last are alike, chunks in each."""
    stages = [counts[stage::num_stages] for stage in range(num_stages)]
    return all(is_even(stage, 1) for stage in stages) and len(set(stages[1:-1])) <= 1


def is_accounted(counts: Sequence[int], _: int) -> bool:
    """Tell whether all ``c`` are equal with some of the ends counted."""
    return any(is_even(parts, 1) for parts in _counted_ends(counts))


def is_balanced(counts: Sequence[int], _: int) -> bool:
    """Tell whether ``c`` differ by at most one, with some of the ends counted."""
    return any(max(parts) - min(parts) <= 1 for parts in _counted_ends(counts))


def counted_ends(counts: Sequence[int]) -> tuple[str, ...]:
    """Return which ends of the chain count as a block, all virtual stages being alike.

    Of ``"embedding"`` and ``"loss"``; none if no such count is even.
    """
    for parts, ends in zip(_counted_ends(counts), _ENDS, strict=True):
        if is_even(parts, 1):
            return ends
    return ()


_ENDS = (), ("loss",), ("embedding",), ("embedding", "loss")


def _counted_ends(counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield the counts with the embedding, the loss, both or neither as a block."""
    for embedding, loss in product((0, 1), repeat=2):
        parts = list(counts)
        parts[0] += embedding
        parts[-1] += loss
        yield parts


def _in_rounds(kind: str) -> Callable[[Sequence[int], int], bool]:
    def check(counts: Sequence[int], num_stages: int) -> bool:
        chunks = len(counts) // num_stages
        return tuple(counts) == rounds(sum(counts), num_stages, chunks, kind)

    return check


SPLIT_CHECKS = MappingProxyType[str, Callable[[Sequence[int], int], bool]](
    {
        EVEN: is_even,
        ENDS: has_other_ends,
        ACCOUNTED: is_accounted,
        EARLY: _in_rounds(EARLY),
        LATE: _in_rounds(LATE),
        BALANCED: is_balanced,
        LAYOUT: lambda *_: True,
    }
)
"""Kind of split -> whether ``c`` and ``p`` are of that kind."""
