"""What groups of ranks send out of the blocks of a network."""

import numpy as np

from topologies.arrays import FloatArray, IntCube
from topologies.compiling import kernel


@kernel
def leaving_shares(groups: IntCube, block_size: int, num_blocks: int) -> FloatArray:
    """Sum ``1 - k / n`` over groups with ``k`` of ``n`` ranks in a block, ``k > 0``.

    Parameters
    ----------
    groups
        Device numbers, shape ``(p, groups, n)``.
    block_size, num_blocks
        Devices of each block, and how many there are.

    Returns
    -------
    numpy.ndarray
        Shape ``(num_blocks, p)``; O(p groups n).
    """
    num_stages, num_groups, size = groups.shape
    found = np.zeros((num_blocks, num_stages))
    counts = np.zeros(num_blocks, dtype=np.int64)
    for s in range(num_stages):
        for g in range(num_groups):
            for k in range(size):
                counts[groups[s, g, k] // block_size] += 1
            for k in range(size):
                block = groups[s, g, k] // block_size
                if counts[block] > 0:
                    found[block, s] += 1.0 - counts[block] / size
                    counts[block] = 0
    return found
