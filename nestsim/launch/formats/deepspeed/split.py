"""How DeepSpeed's pipeline shares out blocks, and whether a plan does it so.

``PipelineModule`` gives weight 1 to the layers whose class matches a type, 0 to all
others, and parts them as evenly as it can: the first parts have one more
(``deepspeed/runtime/utils.py``, ``partition_balanced``, 0.19.8).
"""

BLOCKS = "type:transformer"
"""Blocks count; what Megatron-DeepSpeed asks for."""

ENDS = "type:transformer|embedding"
"""Embeddings count as a block, too; BigScience's ``--pp-partition-method``."""

METHODS = (BLOCKS, ENDS)
"""Ways to share out the blocks."""


def shared_blocks(
    num_blocks: int, num_stages: int, method: str, *, tied: bool
) -> tuple[int, ...]:
    """Return the blocks of each stage.

    Parameters
    ----------
    num_blocks, num_stages
        Blocks of the model, stages of the pipeline.
    method
        One of `METHODS`.
    tied
        Whether the head is a second embedding; it counts then under `ENDS`.

    Examples
    --------
    >>> shared_blocks(10, 4, BLOCKS, tied=True)
    (3, 3, 2, 2)
    >>> shared_blocks(10, 4, ENDS, tied=True)
    (2, 3, 3, 2)
    """
    leads, trails = (1, int(tied)) if method == ENDS else (0, 0)
    each, more = divmod(num_blocks + leads + trails, num_stages)
    counts = [each + (stage < more) for stage in range(num_stages)]
    counts[0] -= leads
    counts[-1] -= trails
    return tuple(counts)
