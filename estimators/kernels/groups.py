"""What device numbers and groups of them look like.

Letters: ``S`` stages, ``G`` groups of a stage, ``n`` members of a group, ``K`` levels.
"""

from topologies.arrays import IntCube, IntMatrix, IntVector
from topologies.compiling import kernel


@kernel
def split_evenly(ordered: IntCube, blocks: IntVector, shapes: IntMatrix) -> bool:
    """Find how many members the groups of a stage have per block at each level.

    Parameters
    ----------
    ordered
        Rising device numbers, shape ``(S, G, n)``.
    blocks
        Devices per block, rising, shape ``(K,)``.
    shapes
        Shape ``(S, K)``: filled with how many parts, each within one block of a
        level, a group has within one block of the next, innermost first, then zeros.
        A level is left out where the blocks that a stage's groups touch do not all hold
        as many members of a group as each other, a multiple of those per block of the
        level below; and where that multiple is one. Where no block holds a whole group,
        there is one level of all members.

    Returns
    -------
    bool
        Whether all stages are alike. O(S G n K) at most: of members in a row, the
        first and the last one tell whether all are in one block.
    """
    num_stages, num_groups, size = ordered.shape
    alike = True
    for s in range(num_stages):
        depth = 0
        inner = 1
        for block in blocks:
            if inner == size:
                break
            end = ordered[s, 0, 0] // block * block + block
            inside = 0
            while inside < size and ordered[s, 0, inside] < end:
                inside += 1
            even = size % inside == 0 and inside % inner == 0
            if not even or inside == inner:
                continue
            for g in range(num_groups):
                for run in range(0, size, inside):
                    end = ordered[s, g, run] // block * block + block
                    after = run + inside
                    if ordered[s, g, after - 1] >= end:
                        even = False
                    if after < size and ordered[s, g, after] < end:
                        even = False
                if not even:
                    break
            if even:
                shapes[s, depth] = inside // inner
                inner = inside
                depth += 1
        if inner != size:
            depth = 0
        if depth == 0:
            shapes[s, 0] = size
            depth = 1
        shapes[s, depth:] = 0
        for k in range(shapes.shape[1]):
            alike &= shapes[s, k] == shapes[0, k]
    return alike
