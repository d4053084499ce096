"""The intra-operator program: one strategy for each operator, at the least cost.

``min sum_v c_v[s_v] + sum_{(u, v)} R_uv[s_u, s_v]`` over one strategy ``s_v`` for each
operator ``v``; ``R`` is what resharding the tensors between two operators costs ([1]_,
equation 1). Costs are infinite where two strategies do not go together.

What a program needs of memory goes along with each strategy (`FOOTPRINT`): it decides
between strategies of no program here, unless `planner.rivals.alpa.integer` is told
a budget, but says what the cheapest choice takes.

Reduction. An operator with one neighbour is added to that one, one with two neighbours
becomes an edge between them (a min-plus product), and edges between the same two
operators are added up. Each step is exact, and series-parallel graphs are reduced to
nothing: transformer blocks with their residuals are. Of what is left, the integer
program is solved for each pair of states at the ends. So equal blocks are solved once,
and a stage is the min-plus product of its layers.

References
----------
.. [1] Zheng et al., "Alpa", OSDI 2022, section 4.2.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray

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
        own = sum(
            float(node.cost[s]) for node, s in zip(self.nodes, chosen, strict=True)
        )
        return own + sum(
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


def joined(first: ShardingProgram, second: ShardingProgram) -> ShardingProgram:
    """Return the program of two that follow each other.

    What leaves the first one is what enters the second, in the same state.
    """
    shift = len(first.nodes)
    size = len(first.nodes[first.leave].strategies)
    same = np.where(np.eye(size) > 0, 0.0, np.inf)
    moved = tuple(
        ProgramEdge(edge.source + shift, edge.target + shift, edge.cost)
        for edge in second.edges
    )
    bridge = ProgramEdge(first.leave, second.entrance + shift, same)
    return ShardingProgram(
        nodes=(*first.nodes, *second.nodes),
        edges=(*first.edges, bridge, *moved),
        entrance=first.entrance,
        leave=second.leave + shift,
    )


def pinned(program: ShardingProgram, entering: int, leaving: int) -> ShardingProgram:
    """Return the program with both ends in given states."""
    nodes = list(program.nodes)
    for place, state in ((program.entrance, entering), (program.leave, leaving)):
        node = nodes[place]
        away = np.arange(len(node.cost)) != state
        nodes[place] = node._replace(cost=np.where(away, np.inf, node.cost))
    return ShardingProgram(
        nodes=tuple(nodes),
        edges=program.edges,
        entrance=program.entrance,
        leave=program.leave,
    )


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
        found = cls(
            costs=[node.cost for node in program.nodes],
            footprints=[node.footprint for node in program.nodes],
            ends=(program.entrance, program.leave),
            links={number: {} for number in range(len(program.nodes))},
        )
        for edge in program.edges:
            nothing = np.zeros((*edge.cost.shape, len(FOOTPRINT)))
            found._add(edge.source, edge.target, _Link(edge.cost, nothing))
        while found._step():
            pass
        return found

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
        number = min(few, key=lambda one: (len(self.links[one]), one))
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
        own = add_footprints(
            self.footprints[number][best], link.footprint[best, columns]
        )
        self.footprints[other] = add_footprints(self.footprints[other], own)

    def _into_edge(
        self, number: int, one: tuple[int, _Link], two: tuple[int, _Link]
    ) -> None:
        (u, before), (v, after) = one, two
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
