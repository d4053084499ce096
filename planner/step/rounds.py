"""Rounds: how many microbatches go through a chunk before the next one's turn.

A schedule of several chunks has its microbatches come in rounds, which Megatron calls
groups: one goes through the first chunks, then through the second ones, and so on,
before the next round begins (`planner.step.schedules`). Of ``p`` stages a round has at
least ``p`` microbatches, else the first stage waits for the last one between two
chunks. Larger rounds wait less for slow links between stages, and keep more: a stage is
``v - 1`` rounds ahead of its backward passes.

All rounds have one length where no size is asked for. Where one is, the last round has
what is left.
"""

from itertools import islice

from topologies.errors import InputError

IN_GROUPS_OF = " in groups of "
"""What stands in names of schedules before the size of their groups."""

GROUP_SIZE = "microbatch_group_size_per_vp_stage"
"""The setting of that size, under Megatron's name."""

_MOST_LISTED = 8


def round_length(num_stages: int, num_microbatches: int) -> int:
    """Return how many microbatches go through a chunk before the next one's turn.

    ``p``, or a little more where rounds of ``p`` do not come out even: as many rounds
    as have ``p``, or one (`planner.step.schedules`).
    """
    return num_microbatches // max(1, num_microbatches // num_stages)


def group_takes(group: int, num_stages: int, num_microbatches: int) -> bool:
    """Tell whether microbatches can go through chunks in groups of a size.

    Groups of at least ``p``, the last one, of what is left, too [1]_.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py``,
       ``forward_backward_pipelining_with_interleaving``, at its beginning.
    """
    rest = num_microbatches % group
    return num_stages <= group <= num_microbatches and not 0 < rest < num_stages


def is_usual(group: int | None, num_stages: int, num_microbatches: int) -> bool:
    """Tell whether groups of a size are the rounds that there are without one."""
    usual = round_length(num_stages, num_microbatches)
    return group == usual and num_microbatches % usual == 0


def check_group(group: int, num_stages: int, num_microbatches: int) -> None:
    """Refuse groups that `group_takes` does not take.

    Raises
    ------
    InputError
        If so, with sizes that it does.
    """
    if group_takes(group, num_stages, num_microbatches):
        return
    taken = (
        size
        for size in range(num_stages, num_microbatches + 1)
        if group_takes(size, num_stages, num_microbatches)
    )
    sizes = list(islice(taken, _MOST_LISTED + 1))
    listed = ", ".join(str(size) for size in sizes[:_MOST_LISTED])
    more = ", .." if len(sizes) > _MOST_LISTED else ""
    raise InputError(
        "does not deal out the microbatches",
        where=GROUP_SIZE,
        got=f"groups of {group} of {num_microbatches} microbatches on {num_stages} "
        "stages",
        expected=f"groups of {num_stages} or more, the last one too: {listed}{more}"
        if sizes
        else f"{num_stages} microbatches or more, as many as stages",
    )
