"""Layouts in which stages of slower devices hold fewer blocks.

Stages whose devices are as fast make a class. Beside the layouts that take no notice of
devices (`planner.search.replayed.layouts`), a framework that writes out any
number of blocks can have these: all virtual stages of a class hold the same number,
those of one class one block more where it does not come out even, and the first and the
last of all spare some blocks for the ends of the chain. Of all such numbers the
`MOST_UNEQUAL` with the least slowest stage are tried, for each pair of spared ends. A
framework that sets the first and the last stage apart (`ENDS`) can have those in which
the stages between hold the same.

Letters as in `planner.search.replayed.space`, ``n_c`` blocks of each virtual stage of
class ``c``.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from planner.frameworks.rules import ENDS, LAYOUT

MOST_UNEQUAL = 12
"""Most layouts of unequal stages for each pair of spared ends."""

MOST_NUMBERS = 4096
"""Most combinations of the classes' numbers that are looked at, nearest to an equal
time of all stages first."""


@lru_cache(maxsize=4096)
def unequal_counts(
    num_blocks: int,
    stage: tuple[int, ...],
    paces: tuple[float, ...],
    splits: tuple[str, ...],
    ends: tuple[tuple[int, int], ...],
    *,
    empty_ends: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of each virtual stage, for each layout, without repetition.

    Parameters
    ----------
    num_blocks
        Blocks of the chain.
    stage
        Stage of each virtual stage, shape ``(C,)``.
    paces
        Time of a block on each stage, in whatever unit; stages with the same one make a
        class, shape ``(p,)``.
    splits
        What the framework has.
    ends
        Blocks that the first and the last virtual stage may spare.
    empty_ends
        Whether, with several chunks, the ends may hold no block.

    Returns
    -------
    tuple
        Empty if all stages are of one class, or the framework has no such layouts.
    """
    several = len(stage) > len(paces)
    if len(set(paces)) == 1 or not {LAYOUT, ENDS} & {*splits}:
        return ()
    if LAYOUT not in splits and several:
        return ()
    least_end = 0 if empty_ends and several else 1
    layouts: dict[tuple[int, ...], None] = {}
    for first, last in ends:
        ranked = []
        total = num_blocks + first + last
        for counts in set(_dealt(total, stage, paces, splits)):
            held = (counts[0] - first, *counts[1:-1], counts[-1] - last)
            if min(held[1:-1], default=1) >= 1 and min(held[0], held[-1]) >= least_end:
                busy = [0.0] * len(paces)
                for number, count in zip(stage, counts, strict=True):
                    busy[number] += count * paces[number]
                ranked.append((max(busy), held))
        layouts.update((held, None) for _, held in sorted(ranked)[:MOST_UNEQUAL])
    return tuple(layouts)


def _dealt(
    total: int,
    stage: tuple[int, ...],
    paces: tuple[float, ...],
    splits: tuple[str, ...],
) -> Iterator[tuple[int, ...]]:
    """Yield the blocks of each virtual stage, of so many in all."""
    if LAYOUT in splits:
        class_of = tuple(sorted(set(paces)).index(paces[number]) for number in stage)
        yield from _by_class(total, class_of, tuple(sorted(set(paces))))
    elif len(paces) > 1:
        yield from _with_other_ends(total, len(paces))


def _with_other_ends(total: int, p: int) -> Iterator[tuple[int, ...]]:
    """Yield the layouts in which stages between the ends hold the same."""
    for inner in range(1, total // (p - 2) + 1 if p > 2 else 2):
        rest = total - inner * (p - 2)
        for first in range(1, rest):
            yield (first, *([inner] * (p - 2)), rest - first)


def _by_class(
    total: int, class_of: tuple[int, ...], paces: tuple[float, ...]
) -> Iterator[tuple[int, ...]]:
    """Yield the layouts in which virtual stages of a class hold the same.

    But for one more in some of a class, late ones first, the very last one only in the
    end.
    """
    members = [class_of.count(number) for number in range(len(paces))]
    last = len(class_of) - 1
    order = [*range(last - 1, -1, -1), last]
    for rest in range(len(paces)):
        others = [number for number in range(len(paces)) if number != rest]
        for numbers in _numbers(total, members, paces, others):
            left = total - sum(
                count * members[number]
                for number, count in zip(others, numbers, strict=True)
            )
            if left < 0:
                continue
            even, over = divmod(left, members[rest])
            by_class = dict(zip(others, numbers, strict=True))
            counts = [by_class.get(number, even) for number in class_of]
            for place in [k for k in order if class_of[k] == rest][:over]:
                counts[place] += 1
            yield tuple(counts)


def _numbers(
    total: int, members: list[int], paces: tuple[float, ...], others: list[int]
) -> Iterator[tuple[int, ...]]:
    """Yield the blocks of each virtual stage of some classes.

    All of them, or the `MOST_NUMBERS` around those with which all stages take as long.
    """
    speed = sum(count / pace for count, pace in zip(members, paces, strict=True))
    width = max(1, int(MOST_NUMBERS ** (1.0 / max(len(others), 1))) // 2)
    ranges = []
    for number in others:
        equal = int(total / (paces[number] * speed))
        most = total // members[number]
        ranges.append(range(max(0, equal - width), min(most, equal + width) + 1))
    yield from product(*ranges)
