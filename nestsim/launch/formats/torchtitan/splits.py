"""How torchtitan shares out the blocks of a model over the stages of its pipeline.

Embedding and head count as some blocks where blocks are shared out; what is left over
goes to the first stages [1]_. Or every part of the model lists its modules.

References
----------
.. [1] torchtitan 0.2.2 and 0.3.0, ``torchtitan/distributed/pipeline_parallel.py``:
   ``generate_llm_fqn_per_model_part`` and ``pipeline_llm``. 0.1.0,
   ``torchtitan/distributed/pipeline.py``, shares out alike, the ends counting as one.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from planner.frameworks.rules import shared_out
from topologies.errors import InputError

DEFAULT_CHUNKS = 2
"""Chunks of a stage under schedules that have several, where nothing says more."""


_LAYER = re.compile(r"layers\.(\d{1,6})")


def shared_blocks(
    num_layers: int, num_stages: int, *, first: int, last: int
) -> tuple[int, ...]:
    """Return the blocks of each virtual stage, shared out as torchtitan does it.

    Parameters
    ----------
    num_layers
        Blocks of the model.
    num_stages
        Virtual stages.
    first, last
        Blocks that the embedding and the head count as.

    Raises
    ------
    InputError
        If torchtitan would refuse it.
    """
    if num_stages == 1:
        return (num_layers,)
    if (num_layers + first + last) // num_stages < max(first, last, 1):
        raise InputError(
            "the blocks do not suffice for the stages",
            got=f"{num_layers} blocks, ends that count as {first} and {last}, "
            f"{num_stages} virtual stages",
            expected="more blocks than the ends count as, in each stage",
        )
    return shared_out(num_layers, num_stages, first=first, last=last)


def num_virtual_stages(
    num_layers: int, per_stage: int, *, first: int, last: int
) -> int:
    """Return how many stages ``pipeline_parallel_layers_per_stage`` makes."""
    return math.ceil((num_layers + first + last) / per_stage)


def weights_of(blocks: Sequence[int]) -> tuple[int, int, int] | None:
    """Return what makes these blocks of it.

    Returns
    -------
    tuple of int or None
        Layers per stage, and what embedding and head count as, 1 at most; None if only
        a list of modules does.
    """
    num_layers, parts = sum(blocks), len(blocks)
    for first, last in ((0, 0), (1, 1), (1, 0), (0, 1)):
        per_stage = math.ceil((num_layers + first + last) / parts)
        if num_virtual_stages(num_layers, per_stage, first=first, last=last) != parts:
            continue
        try:
            shared = shared_blocks(num_layers, parts, first=first, last=last)
        except InputError:
            continue
        if shared == tuple(blocks):
            return per_stage, first, last
    return None


def module_names(blocks: Sequence[int], head: str) -> list[list[str]]:
    """Return the modules of each virtual stage.

    Parameters
    ----------
    blocks
        Blocks of each.
    head
        What the output layer is called: ``"output"``, since 0.3 ``"lm_head"``.
    """
    parts: list[list[str]] = []
    begin = 0
    for count in blocks:
        parts.append([f"layers.{k}" for k in range(begin, begin + count)])
        begin += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def blocks_of_modules(parts: Sequence[Sequence[str]], num_layers: int) -> list[int]:
    """Return the blocks of virtual stages whose modules are listed.

    Raises
    ------
    InputError
        If the blocks are not all there, one after the other.
    """
    found = [
        [int(match[1]) for name in part if (match := _LAYER.fullmatch(name))]
        for part in parts
    ]
    if [k for part in found for k in part] != list(range(num_layers)):
        raise InputError(
            "does not list the blocks of the model one after the other",
            got=f"{sum(map(len, found))} blocks",
            expected=f"layers.0 to layers.{num_layers - 1}, each once, in this order",
        )
    return [len(part) for part in found]


def blocks_of_points(points: Sequence[str], num_layers: int) -> list[int]:
    """Return the blocks of virtual stages that begin at the listed modules.

    Raises
    ------
    InputError
        If these are no blocks of the model in their order.
    """
    starts = [int(match[1]) for point in points if (match := _LAYER.fullmatch(point))]
    bounds = [0, *starts, num_layers]
    if len(starts) != len(points) or bounds != sorted(bounds):
        raise InputError(
            "are not blocks of the model in their order",
            got=list(points),
            expected=f'such as ["layers.8", "layers.16"], below {num_layers}',
        )
    return [end - begin for begin, end in pairwise(bounds)]


def blocks_again(num_layers: int, num_chunks: int, every: int) -> int:
    """Return the blocks of a chunk that are computed again, of which each n-th is."""
    return max(num_layers // num_chunks // every, 1)
