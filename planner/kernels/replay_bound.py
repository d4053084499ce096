"""Lower bounds of the replayed time of plans whose stages all make the same choice.

Letters: ``p`` stages from the first, ``v`` chunks of each, ``C = p v`` virtual stages
(``c p + i`` is chunk ``c`` of stage ``i``), ``m`` microbatches, ``L`` layers, ``Y``
layouts (ways to cut the chain), ``K`` choices of recompute, ZeRO and sharding, ``R``
replicas. ``f`` and ``b`` are the passes of a microbatch through a virtual stage, no
longer than in any replay of the plan; ``x`` a transfer that nothing else slows down.

In a replay each event waits for others and for its own duration; the end can only come
later if a duration grows or a wait is added. So each path of waits that the schedule
alone implies is a lower bound [1]_. Of stage ``i``, with ``t_i`` all of its passes of
one microbatch and ``E_i`` the end of its last backward pass::

    E_i >= sum_{k < i} (f_k + x) + m t_i              it works after the first arrival
    E_i >= sum_k (f_k + x) + sum_{k > (v-1) p + i} (b_k + x) + m t_i - n_i f

since the first backward pass needs a whole way there and back, before which a stage
does the ``n_i`` forward passes that its schedule has first, and no more. Then::

    T >= E_i + sum_{k < i} (b_k + x) + what the first stage still has to do
    T >= E_i + what stage i still has to do

and, without interleaving, a stage that has sent a gradient back starts microbatch
``p`` later, a whole way there and back each: with ``m - 1 = q p + r``::

    T >= (1 + q) (sum_k (f_k + b_k) + 2 sum x) + r t_i + what the first stage has to do

What a stage has to do after its last backward pass is what cannot be hidden of its
gradients' reduction, the optimizer step, and the gathering of weights. Buckets that are
reduced behind backward passes begin with the last pass of the last chunk at the
earliest, which is followed by ``p`` passes of each other chunk.

What must leave a block of the network takes its time over all ways out together: the
transfers of the whole step and the collectives of its end; and those collectives alone,
after the earliest moment at which one of them can begin::

    T >= sum of bytes / capacity
    T >= min_{k <= i} E_k + sum_{k <= i} bytes of the end of stage k / capacity

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity: An Algebra
   for Discrete Event Systems", Wiley 1992, section 2.5.
"""

import numpy as np

from planner.kernels import tables
from topologies.arrays import (
    FloatArray,
    FloatCube,
    FloatHypercube,
    FloatMatrix,
    FloatVector,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel

# Rows of a layer's columns, shape (NUM_LAYER_ROWS, L).
DENSE = 0  # parameters outside of experts
EXPERT = 1  # parameters of experts
LARGEST = 2  # parameters that are gathered together
IS_BLOCK = 3
SAVED = 4  # + mode: kept by a pass in flight [byte]
WORKING = 8  # + mode: alive inside a pass [byte]
NUM_LAYER_ROWS = 12

# Switches, entries of an array.
REDUCES_BEHIND = 0  # gradients behind backward passes
GATHERS_AHEAD = 1  # weights behind forward passes
BY_LAYER = 2  # what ZeRO sends in a pass is that of its layers, not of a mean one
IS_CHOICE = 3  # rows of exits are what placements may choose from, not blocks of one
NUM_SWITCHES = 4

# What the plan's job is, entries of an array.
STEP_ONCE = 0  # of every step and stage, whatever it holds [s]
SHARD_TIME = 1  # of every rank that shards go to one by one [s]
TIED_TIME = 2  # all-reduce of a tied embedding [s]
TIED_PARAMETERS = 3  # on one device
ENTERING_BYTES = 4  # a stage's input [byte]
BOUNDARY_BYTES = 5  # what each lane sends over every boundary [byte]
NUM_JOB = 6

_SAFE = 1.0 - 1e-12
_STAGE = tables.STAGE
_MEMORY = tables.MEMORY
_WEIGHT_BYTES = tables.WEIGHT_BYTES
_GRADIENT_BYTES = tables.GRADIENT_BYTES
_OPTIMIZER_BYTES = tables.OPTIMIZER_BYTES
_GATHER_BYTES = tables.GATHER_BYTES
_REDUCE_BYTES = tables.REDUCE_BYTES
_STEP_TIME = tables.STEP_TIME
_EXPERT_GROUP = tables.EXPERT_GROUP
_DENSE_REDUCE = tables.DENSE_REDUCE
_EXPERT_REDUCE = tables.EXPERT_REDUCE
_EXPERT_PASS = tables.EXPERT_PASS
_SHARD_PASS = tables.SHARD_PASS
_SHARD_ACROSS = tables.SHARD_ACROSS


@subkernel
def _reduction(
    rate: FloatVector,
    sent: FloatVector,
    option: int,
    group: float,
    dense: float,
    expert: float,
    constants: FloatVector,
) -> float:
    """Return the gradient collective of some parameters, alone on its links [s]."""
    gradient = constants[_REDUCE_BYTES]
    inside, across = _SHARD_PASS + 4 * option, _SHARD_ACROSS + 4 * option
    time = 0.0
    if dense > 0.0:
        whole = rate[_DENSE_REDUCE] + gradient * dense * rate[_DENSE_REDUCE + 1]
        once = rate[inside] + gradient * dense * rate[inside + 1]
        part = rate[across] + gradient * dense / group * rate[across + 1]
        time += sent[tables.REDUCED_WHOLE] * whole + sent[tables.REDUCED_ONCE] * once
        time += sent[tables.REDUCED_ACROSS] * part
    if expert > 0.0:
        whole = rate[_EXPERT_REDUCE] + gradient * expert * rate[_EXPERT_REDUCE + 1]
        once = rate[_EXPERT_PASS] + gradient * expert * rate[_EXPERT_PASS + 1]
        time += sent[tables.REDUCED_WHOLE] * whole + sent[tables.REDUCED_ONCE] * once
    return time


@subkernel
def _gathering(
    rate: FloatVector,
    sent: FloatVector,
    option: int,
    dense: float,
    expert: float,
    constants: FloatVector,
) -> float:
    """Return how long the weights of an update take to gather, alone [s]."""
    inside = _SHARD_PASS + 4 * option
    weight = constants[_GATHER_BYTES]
    time: float = 0.0
    if dense > 0.0:
        time += rate[inside] + weight * dense * rate[inside + 1]
    if expert > 0.0:
        time += rate[_EXPERT_PASS] + weight * expert * rate[_EXPERT_PASS + 1]
    time *= sent[tables.GATHERED_ONCE]
    return time


@subkernel
def _saved_by_rounds(
    layers: FloatMatrix,
    bounds: IntVector,
    stage: int,
    p: int,
    v: int,
    in_flight: float,
    saved: int,
    most: int,
) -> float:
    """Return what passes of several chunks keep at most [byte].

    Any mixture of chunks may be in flight: each block counts by its largest round.
    """
    each, leads, trails = 0.0, 0.0, 0.0
    for j in range(most):
        round_ = 0.0
        for c in range(v):
            begin, end = bounds[c * p + stage], bounds[c * p + stage + 1]
            place = 0
            for layer in range(begin, end):
                if layers[IS_BLOCK, layer] > 0.0:
                    if place == j:
                        round_ = max(round_, layers[saved, layer])
                    place += 1
        each += round_
    for c in range(v):
        begin, end = bounds[c * p + stage], bounds[c * p + stage + 1]
        for layer in range(begin, end):
            if layers[IS_BLOCK, layer] == 0.0:
                if begin == 0:
                    leads += layers[saved, layer]
                else:
                    trails += layers[saved, layer]
    kept: float = in_flight * (each + leads) + trails
    return kept


@subkernel
def _stage_memory(
    layers: FloatMatrix,
    bounds: IntVector,
    stage: int,
    p: int,
    v: int,
    in_flight: float,
    mode: int,
    sent: FloatVector,
    group: float,
    constants: FloatVector,
    job: FloatVector,
) -> float:
    """Return the memory of a stage as `planner.step.memory` counts it [byte]."""
    dense, expert, largest, working, redone = 0.0, 0.0, 0.0, 0.0, 0.0
    row = WORKING + (0 if mode == _STAGE else mode)
    most = 0
    for c in range(v):
        begin, end = bounds[c * p + stage], bounds[c * p + stage + 1]
        blocks = 0
        for layer in range(begin, end):
            dense += layers[DENSE, layer]
            expert += layers[EXPERT, layer]
            largest = max(largest, layers[LARGEST, layer])
            working = max(working, layers[row, layer])
            redone += layers[SAVED, layer]
            if layers[IS_BLOCK, layer] > 0.0:
                blocks += 1
        most = max(most, blocks)
    if p == 1:
        dense -= job[TIED_PARAMETERS]
    experts = constants[_EXPERT_GROUP]
    whole, shard = dense + expert, dense / group + expert / experts
    updated = shard if sent[tables.SHARDS_OPTIMIZER] > 0.0 else whole
    total: float = constants[_OPTIMIZER_BYTES] * updated
    total += constants[_GRADIENT_BYTES] * (
        shard if sent[tables.SHARDS_GRADIENTS] > 0.0 else whole
    )
    total += constants[_WEIGHT_BYTES] * (
        shard if sent[tables.SHARDS_WEIGHTS] > 0.0 else whole
    )
    at_step_end: float = total + constants[tables.COPIES_BYTES] * updated
    total += working
    if max(group, experts) > 1.0:
        layer = sent[tables.WHOLE_GRADIENTS] * constants[_GRADIENT_BYTES]
        layer += sent[tables.WHOLE_WEIGHTS] * constants[_GATHER_BYTES]
        total += layer * largest
    saved = SAVED + mode
    if mode == _STAGE:
        entering = 0.0 if bounds[stage] == 0 else job[ENTERING_BYTES]
        total += in_flight * entering + redone
    elif v == 1:
        once = 0.0
        for layer in range(bounds[stage], bounds[stage + 1]):
            once += layers[saved, layer]
        total += in_flight * once
    else:
        total += _saved_by_rounds(layers, bounds, stage, p, v, in_flight, saved, most)
    peak: float = max(total, at_step_end)
    return peak


@subkernel
def _least_exit(
    exits: FloatCube,
    across: FloatCube,
    inverses: FloatVector,
    is_choice: bool,
    sizes: FloatMatrix,
    released: FloatVector,
    sent: FloatVector,
    option: int,
    group: float,
    counts: FloatVector,
    is_ahead: bool,
    constants: FloatVector,
) -> float:
    """Bound the step by what must leave blocks of the network [s].

    ``sizes (2, p)`` are the dense and expert parameters of each stage, ``released`` the
    earliest begin of its collectives, ``counts (p,)`` the bytes that a lane sends over
    the boundary after it in a step, one way.
    """
    p = released.shape[0]
    reduced = constants[_REDUCE_BYTES] * (
        2.0 * sent[tables.REDUCED_WHOLE] + sent[tables.REDUCED_ONCE]
    )
    gathered = constants[_GATHER_BYTES] * sent[tables.GATHERED_ONCE]
    if option > 0:
        # Shared inside blocks that may hold all of a group: only what goes across.
        reduced, gathered = 0.0, 0.0
    shared = 2.0 * constants[_REDUCE_BYTES] * sent[tables.REDUCED_ACROSS] / group
    smallest = np.empty(2)
    for kind in range(2):
        smallest[kind] = np.inf
        for i in range(p):
            smallest[kind] = min(smallest[kind], sizes[kind, i])
    found = np.inf if is_choice else 0.0
    for row in range(exits.shape[0]):
        total, ends, last, least = 0.0, 0.0, 0.0, np.inf
        for i in range(p):
            total += counts[i] * (exits[row, 0, i] + exits[row, 1, i])
            least = min(least, released[i])
            volume, gathers = 0.0, 0.0
            for kind in range(2):
                # Which stages stand where is open: all like the smallest.
                size = smallest[kind] if is_choice else sizes[kind, i]
                volume += exits[row, 2 + kind, i] * reduced * size
                gathers += exits[row, 2 + kind, i] * gathered * size
                if kind == 0 and option > 0:
                    volume += across[row, option, i] * shared * size
            ends += volume if is_ahead else volume + gathers
            total += volume + gathers
            if not is_choice:
                last = max(last, least + ends * inverses[row])
        if is_choice:
            last = least + ends * inverses[row] if ends > 0.0 else 0.0
        value = max(total * inverses[row], last)
        found = min(found, value) if is_choice else max(found, value)
    return found if found < np.inf else 0.0


@kernel
def replay_bounds(
    p: int,
    v: int,
    m: int,
    layouts: IntMatrix,
    choices: IntMatrix,
    forward: FloatMatrix,
    backward: FloatCube,
    sharded: FloatHypercube,
    hidden: FloatHypercube,
    signature: IntVector,
    layers: FloatMatrix,
    wires: FloatCube,
    ends: FloatMatrix,
    group_sizes: FloatVector,
    senders: FloatVector,
    in_flight: IntVector,
    first_passes: IntVector,
    exits: FloatCube,
    across: FloatCube,
    exit_inverses: FloatVector,
    switches: IntVector,
    constants: FloatVector,
    job: FloatVector,
    ledger: FloatMatrix,
    cutoff: float,
) -> tuple[FloatArray, FloatArray]:
    """Return bounds [s] and the most memory of any stage [byte], both ``(K, Y)``.

    The bound is infinite where the memory exceeds what a device has; where it reaches
    the cutoff it may be of part of the paths only.

    Parameters
    ----------
    p, v, m
        Stages, chunks of each, microbatches.
    layouts
        First layer of each virtual stage, and ``L``, shape ``(Y, C + 1)``.
    choices
        Columns as in `planner.kernels.tables`, shape ``(K, 3)``.
    forward, backward
        Time of the passes of the layers before each, ``(sig, L + 1)`` and ``(sig,
        NUM_MODES, L + 1)`` [s].
    sharded
        What gathers (0) and reductions (1) of ZeRO-2 and 3 in a pass add to it, of the
        layers before each, ``(sig, options, 2, L + 1)`` [s].
    hidden
        The same of those that go on beside a pass, which lasts at least as long [s].
    signature
        Row of the four above of each stage, shape ``(p,)``.
    layers
        Rows as named above, shape ``(NUM_LAYER_ROWS, L)``.
    wires
        Transfers over the boundary after each stage, activations (0) and gradients
        (1), by replica, ``(R, p, 2)`` [s]; the last one is the wrap-around.
    ends
        Rates of the collectives of the step's end, columns as in
        `planner.kernels.tables`, ``(p, rates)``.
    group_sizes, senders
        Ranks of each sharding option, and those that shards are sent to one by one.
    in_flight, first_passes
        Passes whose activations a stage keeps, and forward passes before its first
        backward pass, shape ``(p,)``.
    exits
        Of blocks of the network, what leaves them: lanes of the boundary after each
        stage, activations (0) and gradients (1); shares of the dense (2) and expert (3)
        gradients of each stage, summed over groups of ranks, ``(rows, 4, p)``.
    across
        The same of what goes across sharding groups, by option, in shards, ``(rows,
        options, p)``.
    exit_inverses
        To leave each block, all ways out together, shape ``(rows,)`` [s/byte].
    switches, constants, job, ledger
        Entries as named above and in `planner.kernels.tables`.
    cutoff
        Bounds from here on are of no interest [s].
    """
    num_virtual = p * v
    values = np.empty((choices.shape[0], layouts.shape[0]))
    values[:] = np.inf
    memory = np.zeros((choices.shape[0], layouts.shape[0]))
    f = np.empty(num_virtual)
    b = np.empty(num_virtual)
    work = np.empty(p)
    tails = np.empty(p)
    hidden_work = np.empty(p)
    released = np.empty(p)
    sizes = np.empty((2, p))
    sent_bytes = np.empty(p)
    for i in range(p):
        times = v if i < p - 1 else v - 1
        sent_bytes[i] = job[BOUNDARY_BYTES] * m * times
    for y in range(layouts.shape[0]):
        bounds = layouts[y]
        for c in range(choices.shape[0]):
            mode = choices[c, tables.CHOICE_RECOMPUTE]
            sent = ledger[choices[c, tables.CHOICE_ZERO]]
            option = choices[c, tables.CHOICE_SHARDING]
            group = group_sizes[option]
            most = 0.0
            for i in range(p):
                used = _stage_memory(
                    layers, bounds, i, p, v, float(in_flight[i]), mode, sent, group,
                    constants, job,
                )  # fmt: skip
                most = max(most, used)
                if most * _SAFE > constants[_MEMORY]:
                    break
            memory[c, y] = most
            if most * _SAFE > constants[_MEMORY]:
                continue
            for k in range(num_virtual):
                row = signature[k % p]
                begin, end = bounds[k], bounds[k + 1]
                f[k] = forward[row, end] - forward[row, begin]
                b[k] = backward[row, mode, end] - backward[row, mode, begin]
                each, gathers = sent[tables.REDUCED_EACH], sent[tables.GATHERED_EACH]
                if each + gathers > 0.0:
                    first, second = begin, end
                    share = 1.0
                    by_layer = switches[BY_LAYER] == 1
                    by_layer |= switches[GATHERS_AHEAD] == 1 and gathers > 0.0
                    by_layer |= switches[REDUCES_BEHIND] == 1 and each > 0.0
                    if not by_layer and v > 1:
                        held = 0
                        for chunk in range(v):
                            first = bounds[chunk * p + k % p]
                            held += bounds[chunk * p + k % p + 1] - first
                        share = (end - begin) / held
                    for chunk in range(v):
                        if share < 1.0:
                            first = bounds[chunk * p + k % p]
                            second = bounds[chunk * p + k % p + 1]
                        elif chunk > 0:
                            break
                        reduced = sharded[row, option, 1, second]
                        reduced -= sharded[row, option, 1, first]
                        gathered = sharded[row, option, 0, second]
                        gathered -= sharded[row, option, 0, first]
                        # Half of the gathers in either pass.
                        f[k] += share * 0.5 * gathers * gathered
                        b[k] += share * (each * reduced + 0.5 * gathers * gathered)
                    beside = hidden[row, option, 1, end] - hidden[row, option, 1, begin]
                    b[k] = max(b[k], each * beside)
                    beside = hidden[row, option, 0, end] - hidden[row, option, 0, begin]
                    f[k] = max(f[k], 0.5 * gathers * beside)
                    b[k] = max(b[k], 0.5 * gathers * beside)
            first_end, start_wait = 0.0, 0.0
            for i in range(p):
                work[i] = 0.0
                dense, expert, later = 0.0, 0.0, 0.0
                first_dense, first_expert = 0.0, 0.0
                for chunk in range(v):
                    k = chunk * p + i
                    work[i] += f[k] + b[k]
                    later += b[k] * (p if chunk < v - 1 else 1)
                    for layer in range(bounds[k], bounds[k + 1]):
                        dense += layers[DENSE, layer]
                        expert += layers[EXPERT, layer]
                    if p == 1:
                        dense -= job[TIED_PARAMETERS]
                    if chunk == 0:
                        first_dense, first_expert = dense, expert
                rate = ends[i]
                experts = constants[_EXPERT_GROUP]
                step = dense + expert
                if sent[tables.SHARDS_OPTIMIZER] > 0.0:
                    step = dense / group + expert / experts
                sizes[0, i], sizes[1, i] = dense, expert
                optimizer = step * constants[_STEP_TIME] + job[STEP_ONCE]
                optimizer += (
                    job[SHARD_TIME] * senders[option] * sent[tables.GATHERED_ONCE]
                )
                if p > 1 and (i == 0 or i == p - 1):
                    optimizer += job[TIED_TIME]
                if switches[GATHERS_AHEAD] == 0:
                    optimizer += _gathering(
                        rate, sent, option, dense, expert, constants
                    )
                reduced = _reduction(
                    rate, sent, option, group, dense, expert, constants
                )
                hidden_work[i] = later if switches[REDUCES_BEHIND] == 1 else 0.0
                released[i] = 0.0
                if switches[REDUCES_BEHIND] == 1:
                    tails[i] = optimizer + max(0.0, reduced - later)
                else:
                    tails[i] = optimizer + reduced
                if i == 0:
                    first_end = tails[0]
                    if switches[REDUCES_BEHIND] == 1 and v > 1:
                        alone = _reduction(
                            rate, sent, option, group, first_dense, first_expert,
                            constants,
                        )  # fmt: skip
                        first_end = optimizer + max(0.0, alone - b[0])
                    if switches[GATHERS_AHEAD] == 1:
                        needed = _gathering(
                            rate, sent, option, first_dense, first_expert, constants
                        )
                        start_wait = max(0.0, needed - f[0])
            value = 0.0
            for r in range(wires.shape[0]):
                there, back = 0.0, 0.0
                for k in range(num_virtual):
                    there += f[k]
                    back += b[k]
                    if k < num_virtual - 1:
                        there += wires[r, k % p, 0]
                        back += wires[r, k % p, 1]
                arrived, returned = 0.0, 0.0
                passed = 0.0
                for k in range((v - 1) * p):
                    passed += b[k] + wires[r, k % p, 1]
                most_work = 0.0
                for i in range(p):
                    last = (v - 1) * p + i
                    # Backward passes after the one of the last chunk here.
                    passed += b[last]
                    before = back - passed
                    if last < num_virtual - 1:
                        passed += wires[r, last % p, 1]
                    busy = m * work[i]
                    done = 0.0
                    whole = first_passes[i] // num_virtual
                    rest = first_passes[i] % num_virtual
                    for chunk in range(v):
                        count = whole * p + min(max(rest - chunk * p, 0), p)
                        done += count * f[chunk * p + i]
                    end = max(arrived + busy, there + before + busy - done)
                    value = max(value, end + returned + first_end)
                    value = max(value, end + tails[i])
                    released[i] = max(released[i], end - hidden_work[i])
                    most_work = max(most_work, work[i])
                    arrived += f[i] + wires[r, i, 0]
                    returned += b[i] + wires[r, i, 1]
                if v == 1:
                    turns, rest = (m - 1) // p, (m - 1) % p
                    if turns >= 1:
                        whole_way = (1.0 + turns) * (there + back)
                        value = max(value, whole_way + rest * most_work + first_end)
                if value + start_wait >= cutoff:
                    break
            value += start_wait
            if exits.shape[0] > 0 and value < cutoff:
                least = _least_exit(
                    exits, across, exit_inverses, switches[IS_CHOICE] == 1, sizes,
                    released, sent, option, group, sent_bytes,
                    switches[GATHERS_AHEAD] == 1, constants,
                )  # fmt: skip
                value = max(value, least)
            values[c, y] = value * _SAFE
    return values, memory
