"""The intra-operator program as a mixed-integer program, solved by HiGHS.

With one binary for each strategy of a node and one variable for each pair of
strategies of an edge ([1]_, section 4.2; the linearisation of its equation 1)::

    min  sum_v s_v . c_v + sum_(u, v) e_uv . R_uv
    sum s_v = 1,   sum over columns of e_uv = s_u,   sum over rows of e_uv = s_v

Once the binaries are whole numbers the pairs are, too, and need no integrality of their
own; the sums are equations, not upper bounds, which leaves the same whole points and a
tighter relaxation. A budget of memory is one more row, absent as in Alpa if there is
none: Alpa looks at memory once stages are known.

References
----------
.. [1] Zheng et al., "Alpa", OSDI 2022.
.. [2] Huangfu and Hall, "Parallelizing the dual revised simplex method", 2018: HiGHS.
"""

from functools import reduce

import numpy as np

from planner.planners.alpa.program import (
    Reduced,
    Reduction,
    ShardingProgram,
    add_footprints,
    pinned,
)
from topologies.arrays import FloatArray


def solve(
    program: ShardingProgram, budget: float | None = None
) -> tuple[int, ...] | None:
    """Return the strategy of each node in an optimum, or None if there is none.

    Parameters
    ----------
    program
        Of any size.
    budget
        Most that weights, gradients, optimizer states and the saved activations of a
        microbatch may take together; None for no limit [byte].
    """
    # Half a second of loading that only this planner asks for.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    sizes = [len(node.cost) for node in program.nodes]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    costs = [node.cost for node in program.nodes]
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    number, place = 0, int(starts[-1])
    wanted: list[float] = []
    for start, size in zip(starts[:-1].tolist(), sizes, strict=True):
        rows += [number] * size
        columns += range(start, start + size)
        values += [1.0] * size
        wanted.append(1.0)
        number += 1
    for edge in program.edges:
        height, width = edge.cost.shape
        pairs = place + np.arange(height * width).reshape(height, width)
        for own, table in ((edge.source, pairs), (edge.target, pairs.T)):
            for strategy, line in enumerate(table.tolist()):
                rows += [number] * (len(line) + 1)
                columns += [*line, int(starts[own]) + strategy]
                values += [1.0] * len(line) + [-1.0]
                wanted.append(0.0)
                number += 1
        costs.append(edge.cost.ravel())
        place += height * width
    cost = np.concatenate(costs)
    allowed = np.isfinite(cost)
    rules = [
        LinearConstraint(
            csr_array((values, (rows, columns)), shape=(number, place)), wanted, wanted
        )
    ]
    if budget is not None:
        needs = np.zeros((1, place))
        held = [node.footprint[:, :2].sum(axis=1) for node in program.nodes]
        needs[0, : starts[-1]] = np.concatenate(held)
        rules.append(LinearConstraint(needs / max(budget, 1.0), -np.inf, 1.0))
    found = milp(
        np.where(allowed, cost, 0.0) / _unit(program),
        integrality=(np.arange(place) < starts[-1]).astype(np.int64),
        bounds=Bounds(0.0, allowed.astype(np.float64)),
        constraints=rules,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    return tuple(
        int(found.x[start : start + size].argmax())
        for start, size in zip(starts[:-1].tolist(), sizes, strict=True)
    )


def _unit(program: ShardingProgram) -> float:
    """Return a unit of costs in which no optimum is below 1,000 [s].

    HiGHS ends at an absolute gap of 1e-6.
    """
    least = sum(float(node.cost.min()) for node in program.nodes)
    if 0.0 < least < np.inf:
        return least / 1000.0
    costs = [node.cost for node in program.nodes]
    costs += [edge.cost.ravel() for edge in program.edges]
    every = np.concatenate(costs)
    return float(every[np.isfinite(every)].max(initial=0.0)) / 1000.0 or 1.0


def solve_ends(program: ShardingProgram) -> Reduced:
    """Return the least cost of a program for each pair of states at its ends.

    By reduction as far as that goes, and by the integer program from there on.
    """
    reduction = Reduction.of(program)
    if reduction.is_solved:
        return reduction.between_ends()
    rest, memory = reduction.rest(program)
    shape = tuple(len(rest.nodes[end].cost) for end in (rest.entrance, rest.leave))
    cost = np.full(shape, np.inf)
    footprint = np.zeros((*shape, rest.nodes[0].footprint.shape[1]))
    for entering, leaving in np.ndindex(*shape):
        chosen = solve(pinned(rest, entering, leaving))
        if chosen is not None:
            cost[entering, leaving] = rest.cost(chosen)
            footprint[entering, leaving] = _footprint(rest, memory, chosen)
    return Reduced(cost, footprint)


def _footprint(
    rest: ShardingProgram, memory: tuple[FloatArray, ...], chosen: tuple[int, ...]
) -> FloatArray:
    """Return what a choice needs of memory."""
    parts = [node.footprint[s] for node, s in zip(rest.nodes, chosen, strict=True)]
    for edge, held in zip(rest.edges, memory, strict=True):
        parts.append(held[chosen[edge.source], chosen[edge.target]])
    return reduce(add_footprints, parts)
