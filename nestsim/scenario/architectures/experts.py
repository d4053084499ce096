"""Which blocks have experts, as Megatron-LM's ``moe_layer_freq`` says it."""

import re

from estimators.models.limits import MAX_LAYERS
from estimators.models.mixtures import expert_pattern
from topologies.errors import InputError

_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")
_EXAMPLES = 'a number, a list, or "[0]*3+[1]*58"'


def pattern_by_frequency(
    freq: int | list[int] | str | None, num_layers: int
) -> tuple[str, ...]:
    """Return the kind of each block; empty where all have experts.

    Parameters
    ----------
    freq
        ``N`` for experts in the first of each ``N`` blocks; a 0 or 1 for each block,
        1 for experts; such a list written as sums of repeated lists; None for all.
    num_layers
        Blocks.

    Raises
    ------
    InputError
        If a list is not one of 0 and 1 for each block.
    """
    if freq is None or freq == 1:
        return ()
    if isinstance(freq, int):
        if freq < 1:
            raise InputError(
                "is no number of blocks",
                where="moe_layer_freq",
                got=freq,
                expected=_EXAMPLES,
            )
        return expert_pattern(num_layers, lambda index: index % freq == 0)
    marks = _marks(freq) if isinstance(freq, str) else freq
    if len(marks) != num_layers or set(marks) - {0, 1}:
        raise InputError(
            "is not a 0 or 1 for each block",
            where="moe_layer_freq",
            got=freq,
            expected=f"{_EXAMPLES}, with num_layers = {num_layers} entries",
        )
    return expert_pattern(num_layers, lambda index: marks[index] == 1)


def _marks(text: str) -> list[int]:
    """Return the list that a text of repeated lists stands for."""
    marks: list[int] = []
    for term in text.replace(" ", "").strip("()").split("+"):
        found = _TERM.fullmatch(term)
        if found is None or len(marks) > MAX_LAYERS:
            raise InputError(
                "is no sum of repeated lists of 0 and 1",
                where="moe_layer_freq",
                got=text,
                expected=_EXAMPLES,
            )
        times = min(int(found[2] or 1), MAX_LAYERS)
        marks += [int(mark) for mark in found[1].split(",")] * times
    return marks
