"""Which blocks of a model have experts, as the patterns that specifications have."""

from collections.abc import Callable

from estimators.models.limits import MAX_LAYERS
from estimators.models.spec import EXPERT_BLOCK


def expert_pattern(
    num_layers: int,
    has_experts: Callable[[int], bool],
    mixer: Callable[[int], str] = lambda _: "attention",
) -> tuple[str, ...]:
    """Return the kind of each block; empty where all are attention and experts.

    Parameters
    ----------
    num_layers
        Blocks; kinds of more than a specification may have are left out.
    has_experts
        Whether the block of a number has experts, rather than one feed-forward layer.
    mixer
        What it mixes tokens with.
    """
    pattern = tuple(
        f"{mixer(index)}+{'experts' if has_experts(index) else 'dense'}"
        for index in range(min(num_layers, MAX_LAYERS))
    )
    return () if set(pattern) == {EXPERT_BLOCK} else pattern


def dense_at_first(num_layers: int, num_dense: int) -> tuple[str, ...]:
    """Return a pattern whose first blocks have no experts."""
    return expert_pattern(num_layers, lambda index: index >= num_dense)


def every_nth(num_layers: int, n: int) -> tuple[str, ...]:
    """Return a pattern of experts in the last of each ``n`` blocks."""
    return expert_pattern(num_layers, lambda index: (index + 1) % n == 0)
