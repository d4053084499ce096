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
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.rivals.alpa.program import (
    Reduced,
    Reduction,
    ShardingProgram,
    add_footprints,
    pinned,
)
from topologies.arrays import FloatArray, IntArray

NUMERICAL_TROUBLE = 4
"""Status of `scipy.optimize.milp` where HiGHS has failed."""


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

    linear = _Linear.of(program)
    size, num_strategies = len(linear.cost), int(linear.starts[-1])
    shape = len(linear.wanted), size
    entries = csr_array((linear.values, (linear.rows, linear.columns)), shape=shape)
    rules = [LinearConstraint(entries, linear.wanted, linear.wanted)]
    if budget is not None:
        needs = np.zeros((1, size))
        held = [node.footprint[:, :2].sum(axis=1) for node in program.nodes]
        needs[0, :num_strategies] = np.concatenate(held)
        rules.append(LinearConstraint(needs / max(budget, 1.0), -np.inf, 1.0))
    allowed = np.isfinite(linear.cost)
    for presolve in (True, False):
        found = milp(
            np.where(allowed, linear.cost, 0.0) / _unit(program),
            integrality=(np.arange(size) < num_strategies).astype(np.int64),
            bounds=Bounds(0.0, allowed.astype(np.float64)),
            constraints=rules,
            options={"mip_rel_gap": 0.0, "presolve": presolve},
        )
        # Seldom HiGHS ends in an error if it presolves.
        if found.status != NUMERICAL_TROUBLE:
            break
    if found.x is None:
        return None
    return tuple(int(found.x[a:b].argmax()) for a, b in pairwise(linear.starts))


class _Linear(NamedTuple):
    """Costs and equations of the integer program; binaries come first."""

    cost: FloatArray
    """Cost of each variable, infinite where it must be 0 [s]."""
    starts: IntArray
    """First binary of each node, and the number of binaries."""
    wanted: list[float]
    """Right side of each equation."""
    rows: list[int]
    """Equation of each entry."""
    columns: list[int]
    """Variable of each entry."""
    values: list[float]
    """Factor of each entry."""

    @classmethod
    def of(cls, program: ShardingProgram) -> "_Linear":
        """Return the equations of a program."""
        sizes = [len(node.cost) for node in program.nodes]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        costs = [node.cost for node in program.nodes]
        costs += [edge.cost.ravel() for edge in program.edges]
        linear = cls(np.concatenate(costs), starts, [], [], [], [])
        for first, last in pairwise(starts.tolist()):
            linear._add([(column, 1.0) for column in range(first, last)], 1.0)
        place = int(starts[-1])
        for edge in program.edges:
            pairs = place + np.arange(edge.cost.size).reshape(edge.cost.shape)
            place += edge.cost.size
            for node, table in ((edge.source, pairs), (edge.target, pairs.T)):
                for strategy in range(len(table)):
                    line = [(int(pair), 1.0) for pair in table[strategy]]
                    own = (int(starts[node]) + strategy, -1.0)
                    linear._add([*line, own], 0.0)
        return linear

    def _add(self, entries: list[tuple[int, float]], wanted: float) -> None:
        self.rows.extend([len(self.wanted)] * len(entries))
        self.columns.extend(column for column, _ in entries)
        self.values.extend(value for _, value in entries)
        self.wanted.append(wanted)


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
