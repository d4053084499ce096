"""The intra-operator program: one strategy for each operator, at the least cost.

``min sum_v c_v[s_v] + sum_{(u, v)} R_uv[s_u, s_v]`` over one strategy ``s_v`` for each
operator ``v``; ``R`` is what resharding the tensors between two operators costs ([1]_,
equation 1). Costs are infinite where two strategies do not go together.

What a program needs of memory goes along with each strategy (`FOOTPRINT`): it decides
between strategies of no program here, unless `solve` gets a budget, but says what the
cheapest choice takes.

Reduction. An operator with one neighbour is added to that one, one with two neighbours
becomes an edge between them (a min-plus product), and edges between the same two
operators are added up. Each step is exact, and series-parallel graphs are reduced to
nothing: transformer blocks with their residuals are. Of what is left, the integer
program is solved for each pair of states at the ends. So equal blocks are solved once,
and a stage is the min-plus product of its layers.

The intra-operator program as a mixed-integer program, solved by HiGHS.

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
.. [1] Zheng et al., "Alpa", OSDI 2022, section 4.2.
.. [2] Huangfu and Hall, "Parallelizing the dual revised simplex method", 2018: HiGHS.
"""

from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray, IntArray

FOOTPRINT = ("static", "saved", "repeated", "working")
"""What is told of memory: weights, gradients and optimizer states; activations that a
microbatch keeps; activations that are there while a forward pass is repeated; and the
most that any operator works with [byte]. All but the last one add up."""

WORKING = len(FOOTPRINT) - 1
"""Place of what does not add up."""


class ProgramNode(NamedTuple):
    """One operator, or one end of a layer."""

    name: str
    """Path of the operator in its layer."""

    strategies: tuple[str, ...]
    """Name of each strategy."""

    cost: FloatArray
    """Time of each strategy, shape ``(S,)`` [s]."""

    footprint: FloatArray
    """Memory of each strategy, shape ``(S, len(FOOTPRINT))`` [byte]."""


class ProgramEdge(NamedTuple):
    """Tensors that pass from one operator to another one."""

    source: int
    """Node that makes them."""
    target: int
    """Node that reads them."""
    cost: FloatArray
    """Time of resharding by both strategies, shape ``(S, T)`` [s]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardingProgram:
    """The program of a layer, or of several that follow each other."""

    nodes: tuple[ProgramNode, ...]
    """Operators; the ends are nodes whose strategies are states of a tensor."""

    edges: tuple[ProgramEdge, ...]
    """What passes between them."""

    entrance: int
    """Node of the state of the tensor that enters."""

    leave: int
    """Node of the state of the tensor that leaves."""

    def cost(self, chosen: tuple[int, ...]) -> float:
        """Return the cost of a choice of strategies [s]."""
        nodes_cost = sum(
            float(node.cost[s]) for node, s in zip(self.nodes, chosen, strict=True)
        )
        return nodes_cost + sum(
            float(edge.cost[chosen[edge.source], chosen[edge.target]])
            for edge in self.edges
        )


class Reduced(NamedTuple):
    """The least cost of a program for each pair of states at its ends."""

    cost: FloatArray
    """Cost, infinite where nothing goes with them, shape ``(in, out)`` [s]."""

    footprint: FloatArray
    """Memory of the choice, shape ``(in, out, len(FOOTPRINT))`` [byte]."""


def add_footprints(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return what two choices need together."""
    total = first + second
    total[..., WORKING] = np.maximum(first[..., WORKING], second[..., WORKING])
    return total


def pinned(program: ShardingProgram, entering: int, leaving: int) -> ShardingProgram:
    """Return the program with both ends in given states."""
    nodes = list(program.nodes)
    for place, state in ((program.entrance, entering), (program.leave, leaving)):
        node = nodes[place]
        away = np.arange(len(node.cost)) != state
        nodes[place] = node._replace(cost=np.where(away, np.inf, node.cost))
    return replace(program, nodes=tuple(nodes))


class _Link(NamedTuple):
    """Everything between two nodes, by the strategies of both."""

    cost: FloatArray
    """Time, shape ``(S, T)`` [s]."""
    footprint: FloatArray
    """Memory of what was reduced into it, shape ``(S, T, len(FOOTPRINT))`` [byte]."""

    def turned(self) -> "_Link":
        return _Link(self.cost.T, self.footprint.transpose(1, 0, 2))


@dataclass(slots=True, kw_only=True, eq=False)
class Reduction:
    """A program that becomes smaller."""

    costs: list[FloatArray]
    """Cost of each node that is left, by number."""
    footprints: list[FloatArray]
    """Memory of each node."""
    ends: tuple[int, int]
    """Entrance and end, which stay."""
    links: dict[int, dict[int, _Link]] = field(default_factory=dict)
    """Node -> neighbour -> what is between them, seen from the node."""

    @classmethod
    def of(cls, program: ShardingProgram) -> "Reduction":
        """Return a program, reduced as far as it goes."""
        reduction = cls(
            costs=[node.cost for node in program.nodes],
            footprints=[node.footprint for node in program.nodes],
            ends=(program.entrance, program.leave),
            links={number: {} for number in range(len(program.nodes))},
        )
        for edge in program.edges:
            nothing = np.zeros((*edge.cost.shape, len(FOOTPRINT)))
            reduction._add(edge.source, edge.target, _Link(edge.cost, nothing))
        while reduction._step():
            pass
        return reduction

    @property
    def is_solved(self) -> bool:
        """Whether nothing but the ends is left."""
        return set(self.links) == set(self.ends)

    def between_ends(self) -> Reduced:
        """Return the table of the ends; nothing else may be left."""
        first, last = self.ends
        cost = self.costs[first][:, None] + self.costs[last][None, :]
        footprint = add_footprints(
            self.footprints[first][:, None], self.footprints[last][None, :]
        )
        link = self.links[first].get(last)
        if link is None:
            return Reduced(cost, footprint)
        return Reduced(cost + link.cost, add_footprints(footprint, link.footprint))

    def rest(
        self, program: ShardingProgram
    ) -> tuple[ShardingProgram, tuple[FloatArray, ...]]:
        """Return what is left as a program, and the memory of its edges.

        Edges are in the order of the program's; their memory is that of what was
        reduced into them, one array for each.
        """
        kept = sorted(self.links)
        place = {number: index for index, number in enumerate(kept)}
        nodes = tuple(
            program.nodes[number]._replace(
                cost=self.costs[number], footprint=self.footprints[number]
            )
            for number in kept
        )
        pairs = [(u, v) for u in kept for v in self.links[u] if u < v]
        edges = tuple(
            ProgramEdge(place[u], place[v], self.links[u][v].cost) for u, v in pairs
        )
        memory = tuple(self.links[u][v].footprint for u, v in pairs)
        first, last = self.ends
        rest = ShardingProgram(
            nodes=nodes, edges=edges, entrance=place[first], leave=place[last]
        )
        return rest, memory

    def _step(self) -> bool:
        """Take one node out, the one that makes the smallest table; tell if any."""
        inner = [number for number in self.links if number not in self.ends]
        few = [number for number in inner if len(self.links[number]) <= 2]
        if not few:
            return False
        number = min(few, key=lambda node: (len(self.links[node]), node))
        neighbours = self.links.pop(number)
        for other in neighbours:
            del self.links[other][number]
        if not neighbours:
            self._drop_alone(number)
        elif len(neighbours) == 1:
            self._into_node(number, *neighbours.items())
        else:
            self._into_edge(number, *neighbours.items())
        return True

    def _drop_alone(self, number: int) -> None:
        """Count a node that touches nothing, at the entrance."""
        best = int(self.costs[number].argmin())
        first = self.ends[0]
        self.costs[first] = self.costs[first] + self.costs[number][best]
        self.footprints[first] = add_footprints(
            self.footprints[first], self.footprints[number][best]
        )

    def _into_node(self, number: int, item: tuple[int, _Link]) -> None:
        other, link = item
        total = self.costs[number][:, None] + link.cost
        best = total.argmin(axis=0)
        columns = np.arange(len(best))
        self.costs[other] = self.costs[other] + total[best, columns]
        added = add_footprints(
            self.footprints[number][best], link.footprint[best, columns]
        )
        self.footprints[other] = add_footprints(self.footprints[other], added)

    def _into_edge(
        self, number: int, first: tuple[int, _Link], second: tuple[int, _Link]
    ) -> None:
        (u, before), (v, after) = first, second
        here = before.cost + self.costs[number][:, None]
        total = here.T[:, :, None] + after.cost[None, :, :]
        best = total.argmin(axis=1)
        rows, columns = np.indices(best.shape)
        beside = add_footprints(
            before.footprint[best, rows], after.footprint[best, columns]
        )
        footprint = add_footprints(beside, self.footprints[number][best])
        self._add(u, v, _Link(total[rows, best, columns], footprint))

    def _add(self, u: int, v: int, link: _Link) -> None:
        known = self.links[u].get(v)
        if known is not None:
            link = _Link(
                known.cost + link.cost, add_footprints(known.footprint, link.footprint)
            )
        self.links[u][v] = link
        self.links[v][u] = link.turned()


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
        result = milp(
            np.where(allowed, linear.cost, 0.0) / _unit(program),
            integrality=(np.arange(size) < num_strategies).astype(np.int64),
            bounds=Bounds(0.0, allowed.astype(np.float64)),
            constraints=rules,
            options={"mip_rel_gap": 0.0, "presolve": presolve},
        )
        # Seldom HiGHS ends in an error if it presolves.
        if result.status != NUMERICAL_TROUBLE:
            break
    if result.x is None:
        return None
    return tuple(int(result.x[a:b].argmax()) for a, b in pairwise(linear.starts))


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
                    binary = (int(starts[node]) + strategy, -1.0)
                    linear._add([*line, binary], 0.0)
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
