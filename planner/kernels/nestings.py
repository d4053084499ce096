"""Enumerate placements: the nestings of parallel dimensions over device numbers.

Dimensions are numbered as in `planner.search.placements.Extents`: tensor 0, context 1,
expert 2, data 3, pipeline 4. A placement under construction is a row of integers: its
extent, what is left of each dimension, the steps so far, and the log of its factors.
"""

import numpy as np

from topologies.arrays import IntArray, IntMatrix, IntVector
from topologies.compiling import kernel, subkernel

NUM_DIMS = 5
DATA = 3
PIPELINE = 4
PAD = -1
"""In a log: no dimension, but the extent rounded up."""

MOST_FACTORS = 8
"""Factors and paddings of a log: four dimensions, two of them twice, one padding."""

# Entries of a state.
_EXTENT = 0
_PADDED = 1
_NUM_LEFT = 2
_LENGTH = 3  # of the log
_SPLIT = 4  # + dimension
_LEFT = _SPLIT + NUM_DIMS  # + dimension: size still to be placed, 0 for none
_ORDER = _LEFT + NUM_DIMS  # dimensions left, in the order in which they are tried
_STEPS = _ORDER + NUM_DIMS  # + 3 * dimension: inner size, its stride, outer stride
_LOG = _STEPS + 3 * NUM_DIMS  # + 2 * factor: dimension, size
_STATE = _LOG + 2 * MOST_FACTORS


@subkernel
def _copy(row: IntVector, target: IntVector) -> None:
    """Write a row to another one, which may be longer."""
    for k in range(row.shape[0]):
        target[k] = row[k]


@subkernel
def _with_factor(
    state: IntVector, dim: int, size: int, left: int, new: IntVector
) -> None:
    """Write the state with a factor; ``left`` is what remains of the dimension."""
    _copy(state, new)
    extent = state[_EXTENT]
    inner = _STEPS + 3 * dim
    if state[inner + 1] == 0:
        new[inner] = size
        new[inner + 1] = extent
    elif extent == state[inner] * state[inner + 1]:
        # The two parts join up to one.
        new[inner] = state[inner] * size
    else:
        new[inner + 2] = extent
    new[_EXTENT] = extent * size
    new[_LEFT + dim] = left
    log = _LOG + 2 * state[_LENGTH]
    new[log] = dim
    new[log + 1] = size
    new[_LENGTH] += 1
    kept = 0
    if left == 0:
        for i in range(state[_NUM_LEFT]):
            if state[_ORDER + i] != dim:
                new[_ORDER + kept] = state[_ORDER + i]
                kept += 1
        new[_NUM_LEFT] = kept
        return
    new[_SPLIT + dim] = 1
    # From now on in the order of their names: cp, dp, ep, pp.
    for other in (1, 3, 2, 4):
        if new[_LEFT + other] > 0:
            new[_ORDER + kept] = other
            kept += 1


@subkernel
def _even_extents(extent: int, blocks: IntVector) -> IntArray:
    """Return the extents above this one that divide a block, or fill whole ones.

    Rising, each once.
    """
    most = 0
    for block in blocks:
        most += 1 if extent > block else block // extent
    extents = np.empty(max(most, 1), dtype=np.int64)
    count = 0
    for block in blocks:
        if extent > block:
            extents[count] = -(-extent // block) * block
            count += 1
            continue
        for parts in range(1, block // extent + 1):
            if block % parts == 0:
                extents[count] = block // parts
                count += 1
    kept = 0
    for i in range(count):
        # Insertion among those that are kept: there are few.
        place = kept
        while place > 0 and extents[place - 1] > extents[i]:
            place -= 1
        if extents[i] == extent or (place > 0 and extents[place - 1] == extents[i]):
            continue
        moved = extents[i]
        for k in range(kept, place, -1):
            extents[k] = extents[k - 1]
        extents[place] = moved
        kept += 1
    return extents[:kept]


@subkernel
def _largest(sizes: IntVector, steps: IntVector) -> int:
    """Return the largest device number of a placement."""
    total = 0
    for dim in range(NUM_DIMS):
        inner, first, outer = steps[3 * dim], steps[3 * dim + 1], steps[3 * dim + 2]
        size = sizes[dim]
        if outer == 0:
            total += (size - 1) * first
        else:
            # A last outer part that is not full may lie lower than the one before.
            total += max(
                (size - 1) // inner * outer + (size - 1) % inner * first,
                (size // inner - 1) * outer + (inner - 1) * first,
            )
    return total


@subkernel
def _grown(rows: IntMatrix) -> IntArray:
    """Return the rows with as much room again."""
    larger = np.empty((2 * rows.shape[0], rows.shape[1]), dtype=np.int64)
    for i in range(rows.shape[0]):
        _copy(rows[i], larger[i])
    return larger


@subkernel
def _position(rows: IntMatrix, count: int, row: IntVector) -> int:
    """Return where a row stands among the first ``count``, or -1."""
    for i in range(count):
        same = True
        for k in range(row.shape[0]):
            if rows[i, k] != row[k]:
                same = False
                break
        if same:
            return i
    return -1


@subkernel
def _next_states(
    state: IntVector,
    num_devices: int,
    blocks: IntVector,
    following: IntMatrix,
    count: int,
) -> tuple[IntArray, int]:
    """Append what may come next to a state: a whole dimension, or an inner part."""
    for i in range(state[_NUM_LEFT]):
        dim = state[_ORDER + i]
        size = state[_LEFT + dim]
        if count + 1 + blocks.shape[0] > following.shape[0]:
            following = _grown(following)
        _with_factor(state, dim, size, 0, following[count])
        # Whatever comes next has at least this extent for its stride.
        step = following[count]
        if step[_NUM_LEFT] == 0 or step[_EXTENT] < num_devices:
            count += 1
        may_split = dim in (DATA, PIPELINE) and state[_SPLIT + dim] == 0
        if not may_split or state[_NUM_LEFT] == 1:
            continue
        before = 0
        # Blocks rise, so parts that fill them do, too.
        for block in blocks:
            part = block // state[_EXTENT]
            if part < 2 or part >= size or part == before:
                continue
            before = part
            _with_factor(state, dim, part, -(-size // part), following[count])
            if following[count, _EXTENT] < num_devices:
                count += 1
    return following, count


@kernel
def enumerate_nestings(
    sizes: IntVector, num_devices: int, blocks: IntVector
) -> tuple[IntArray, IntArray]:
    """Return the steps and the logs of all placements, without repetition.

    Depth first: without padding before with it, dimensions in their order, whole ones
    before inner parts that fill a block, small ones first. A placement that several
    nestings lead to stands where the first one does.

    Parameters
    ----------
    sizes
        Of the dimensions, shape ``(5,)``.
    num_devices
        Of the cluster.
    blocks
        Devices of the network's blocks, rising.

    Returns
    -------
    tuple
        Inner size, inner stride and outer stride of each dimension, shape
        ``(n, 15)``; dimension (or `PAD`) and size (or extent) of each factor, -2
        after the last one, shape ``(n, 2 * MOST_FACTORS)``.
    """
    start = np.zeros(_STATE, dtype=np.int64)
    start[_EXTENT] = sizes[0]
    for dim in range(NUM_DIMS):
        start[_STEPS + 3 * dim] = sizes[dim]
        if dim > 0 and sizes[dim] > 1:
            start[_LEFT + dim] = sizes[dim]
            start[_ORDER + start[_NUM_LEFT]] = dim
            start[_NUM_LEFT] += 1
    start[_STEPS + 1] = 1
    for k in range(_LOG, _STATE):
        start[k] = -2
    stack = np.empty((256, _STATE), dtype=np.int64)
    _copy(start, stack[0])
    depth = 1
    steps_found = np.empty((64, 3 * NUM_DIMS), dtype=np.int64)
    logs_found = np.empty((64, 2 * MOST_FACTORS), dtype=np.int64)
    count = 0
    following = np.empty((64, _STATE), dtype=np.int64)
    while depth > 0:
        depth -= 1
        state = stack[depth].copy()
        if state[_NUM_LEFT] == 0:
            steps = state[_STEPS : _STEPS + 3 * NUM_DIMS]
            for dim in range(NUM_DIMS):
                steps[3 * dim] = min(steps[3 * dim], sizes[dim])
            if _largest(sizes, steps) >= num_devices:
                continue
            if _position(steps_found, count, steps) >= 0:
                continue
            if count == steps_found.shape[0]:
                steps_found, logs_found = _grown(steps_found), _grown(logs_found)
            _copy(steps, steps_found[count])
            _copy(state[_LOG:], logs_found[count])
            count += 1
            continue
        following, number = _next_states(state, num_devices, blocks, following, 0)
        if state[_PADDED] == 0:
            log = _LOG + 2 * state[_LENGTH]
            state[_PADDED] = 1
            state[_LENGTH] += 1
            for extent in _even_extents(state[_EXTENT], blocks):
                padded = state.copy()
                padded[_EXTENT] = extent
                padded[log] = PAD
                padded[log + 1] = extent
                following, number = _next_states(
                    padded, num_devices, blocks, following, number
                )
        while depth + number > stack.shape[0]:
            stack = _grown(stack)
        for i in range(number - 1, -1, -1):
            _copy(following[i], stack[depth])
            depth += 1
    return steps_found[:count].copy(), logs_found[:count].copy()
