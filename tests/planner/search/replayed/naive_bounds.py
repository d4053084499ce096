"""The bound of the replayed time, written down path by path in plain Python.

Restates the formulas in the docstring of `planner.kernels.replay_bound` without
prefix sums, running sums or early ends. Lists are indexed by layer, virtual stage or
stage; ``k`` is a virtual stage, ``i`` a stage, ``c`` a chunk.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple


class Zero(NamedTuple):
    """What a stage of ZeRO sends."""

    reduces_each: bool
    """In every microbatch."""
    gathers_each: bool
    """In every forward and in every backward pass."""
    all_reduces: bool
    """At the end of the step."""
    reduces_once: bool
    reduces_across: bool
    gathers_once: bool
    shards_optimizer: bool


ZERO = (
    Zero(False, False, True, False, False, False, False),
    Zero(False, False, False, True, True, True, True),
    Zero(True, False, False, False, True, True, True),
    Zero(True, True, False, False, True, False, True),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan; what is not said here is as the kernel has it."""

    p: int
    v: int
    m: int
    cuts: list[int]
    """First layer of each virtual stage, and their number."""
    zero: int
    option: int
    mode: int
    forward: Any
    """Seconds of each layer, [signature][layer]."""
    backward: Any
    """[signature][mode][layer]."""
    alone_forward: Any
    """What a forward pass takes more with no other beside it, as `forward`."""
    alone_backward: Any
    """As `backward`."""
    alone: list[list[list[int]]]
    """Passes of each chunk with no other beside them: [stage][forward, backward]."""
    sharded: Any
    """Gathers and reductions of ZeRO in passes, [signature][option][2][layer]."""
    hidden: Any
    """Those that go on beside, likewise."""
    signature: list[int]
    dense: list[float]
    """Parameters of each layer."""
    expert: list[float]
    tied: float
    """Parameters that the last layer has of the first one's."""
    wires: Any
    """[replica][boundary][activation or gradient], the last boundary wraps around."""
    sum_rates: Any
    """Of the all-reduce of all replicas, dense and expert: [stage][2] -> (s, s/byte)"""
    inside: Any
    """Of half an all-reduce in a sharding group: [stage][option] -> (s, s/byte)."""
    across: Any
    """Of the all-reduce across them, likewise."""
    inside_experts: Any
    """Of half an all-reduce of experts: [stage] -> (s, s/byte)."""
    groups: list[float]
    """Ranks of each sharding option."""
    expert_group: float
    senders: list[float]
    first_passes: list[int]
    length: int
    """Microbatches of a round."""
    exits: Any
    """[row][boundary forth, boundary back, dense, expert][stage]."""
    exits_across: Any
    """[row][option][stage]."""
    exits_inside: Any
    """[row][option][stage]."""
    exit_inverses: list[float]
    is_choice: bool
    reduces_behind: bool
    gathers_ahead: bool
    by_layer: bool
    gradient_bytes: float
    weight_bytes: float
    """Of weights and gradients on the wire."""
    boundary_bytes: float
    step_time: float
    """Of the optimizer, for one parameter."""
    step_once: float
    shard_time: float
    tied_time: float
    messages_time: float
    """Of the host, in each pass of a virtual stage."""

    @property
    def num_virtual(self) -> int:
        return self.p * self.v

    @property
    def rules(self) -> Zero:
        return ZERO[self.zero]

    @property
    def shared(self) -> float:
        """Ranks that share dense shards."""
        return self.groups[self.option]

    def layers(self, k: int) -> range:
        return range(self.cuts[k], self.cuts[k + 1])

    def chunks(self, i: int) -> range:
        """Virtual stages of a stage."""
        return range(i, self.num_virtual, self.p)

    # Passes.

    def sent(self, k: int, place: int) -> float:
        """Return what a ZeRO collective adds to a pass: gathers (0), reductions (1)."""
        i = k % self.p
        times = self.sharded[self.signature[i]][self.option][place]
        hides = (self.gathers_ahead and self.rules.gathers_each) or (
            self.reduces_behind and self.rules.reduces_each
        )
        if self.by_layer or hides:
            return sum(times[layer] for layer in self.layers(k))
        whole = [layer for each in self.chunks(i) for layer in self.layers(each)]
        return sum(times[layer] for layer in whole) * len(self.layers(k)) / len(whole)

    def beside(self, k: int, place: int) -> float:
        times = self.hidden[self.signature[k % self.p]][self.option][place]
        return sum(times[layer] for layer in self.layers(k))

    def f(self, k: int, *, alone: bool = False) -> float:
        """Return the forward pass of a virtual stage, beside another one or alone."""
        rows = [self.forward, self.alone_forward][: 1 + alone]
        row = [sum(both) for both in zip(*(self.row(k, r) for r in rows), strict=True)]
        time = self.messages_time + sum(row[layer] for layer in self.layers(k))
        if self.rules.gathers_each:
            time = max(time + self.sent(k, 0), self.beside(k, 0))
        return time

    def row(self, k: int, rows: Any) -> Any:
        return rows[self.signature[k % self.p]]

    def is_alone(self, k: int, direction: int) -> bool:
        """Tell whether some passes of a virtual stage have no other beside them."""
        return self.alone[k % self.p][direction][k // self.p] > 0

    def b(self, k: int, *, alone: bool = False) -> float:
        """Return the backward pass of a virtual stage, with what it repeats."""
        rows = [self.backward, self.alone_backward][: 1 + alone]
        parts = [self.row(k, r)[self.mode] for r in rows]
        row = [sum(both) for both in zip(*parts, strict=True)]
        time = self.messages_time + sum(row[layer] for layer in self.layers(k))
        least = 0.0
        if self.rules.reduces_each:
            time, least = time + self.sent(k, 1), self.beside(k, 1)
        if self.rules.gathers_each:
            time, least = time + self.sent(k, 0), max(least, self.beside(k, 0))
        return max(time, least)

    # The step's end.

    def held(self, i: int, chunks: range | None = None) -> tuple[float, float]:
        """Return the dense and the expert parameters of a stage."""
        own = self.chunks(i) if chunks is None else chunks
        held = [layer for k in own for layer in self.layers(k)]
        dense = sum(self.dense[layer] for layer in held)
        if self.p == 1:
            dense -= self.tied
        return dense, sum(self.expert[layer] for layer in held)

    def reduction(self, i: int, dense: float, expert: float) -> float:
        """Return the gradients' collectives of some parameters."""
        time = 0.0
        for kind, count in enumerate((dense, expert)):
            if count == 0.0:
                continue
            num_bytes = count * self.gradient_bytes
            half = self.inside_experts[i] if kind else self.inside[i][self.option]
            if self.rules.all_reduces:
                time += cost(self.sum_rates[i][kind], num_bytes)
            if self.rules.reduces_once:
                time += cost(half, num_bytes)
            if self.rules.reduces_across and kind == 0:
                time += cost(self.across[i][self.option], num_bytes / self.shared)
        return time

    def gathering(self, i: int, dense: float, expert: float) -> float:
        """Return how long updated weights of some parameters take to gather."""
        time = 0.0
        if self.rules.gathers_once and dense:
            time += cost(self.inside[i][self.option], dense * self.weight_bytes)
        if self.rules.gathers_once and expert:
            time += cost(self.inside_experts[i], expert * self.weight_bytes)
        return time

    def optimizer(self, i: int) -> float:
        """Return what follows the gradients: the update, and gathers that wait."""
        dense, expert = self.held(i)
        time = self.step_once + self.step_time * (
            dense / self.shared + expert / self.expert_group
            if self.rules.shards_optimizer
            else dense + expert
        )
        if self.rules.gathers_once:
            time += self.shard_time * self.senders[self.option]
        if self.p > 1 and i in {0, self.p - 1}:
            time += self.tied_time
        if not self.gathers_ahead:
            time += self.gathering(i, dense, expert)
        return time

    def passes_behind(self, i: int) -> float:
        """Return the backward passes that reductions of a stage may go on behind."""
        if not self.reduces_behind:
            return 0.0
        *others, last = self.chunks(i)
        behind = sum(self.length * self.b(k, alone=True) for k in others)
        return behind + self.b(last, alone=True)

    def tail(self, i: int) -> float:
        """Return what a stage still does after its last backward pass."""
        reduced = self.reduction(i, *self.held(i))
        return self.optimizer(i) + max(0.0, reduced - self.passes_behind(i))

    def last_of_all(self) -> float:
        """Return what the first stage does after the last gradient came back."""
        if not self.reduces_behind or self.v == 1:
            return self.tail(0)
        first = self.reduction(0, *self.held(0, range(1)))
        return self.optimizer(0) + max(0.0, first - self.b(0, alone=True))

    def start(self) -> float:
        """Return how much longer the first forward pass of all takes."""
        if not self.gathers_ahead:
            return 0.0
        needed = self.gathering(0, *self.held(0, range(1)))
        return max(0.0, needed - self.f(0, alone=True))

    # Paths.

    def way(self, wires: Any, ks: range, direction: int) -> float:
        """Return the time to pass virtual stages, and the boundary after each."""
        time = self.b if direction else self.f
        return sum(
            time(k, alone=self.is_alone(k, direction)) + wires[k % self.p][direction]
            for k in ks
        )

    def alone_work(self, i: int, direction: int) -> float:
        """Return what passes of a stage take longer for having none beside them."""
        time = self.b if direction else self.f
        return sum(
            number * (time(k, alone=True) - time(k))
            for number, k in zip(self.alone[i][direction], self.chunks(i), strict=True)
        )

    def last_backward(self, wires: Any, i: int) -> float:
        """Bound the end of a stage's last backward pass."""
        work = self.m * sum(self.f(k) + self.b(k) for k in self.chunks(i))
        end, own = self.num_virtual - 1, (self.v - 1) * self.p + i
        there = self.way(wires, range(end), 0)
        there += self.f(end, alone=self.is_alone(end, 0))
        back = sum(
            self.b(k) + wires[(k - 1) % self.p][1] for k in range(own + 1, end + 1)
        )
        before = sum(self.f(k) for k in self.first_forward_passes(i))
        fills, empties = self.alone_work(i, 0), self.alone_work(i, 1)
        return empties + max(
            self.way(wires, range(i), 0) + work + fills, there + back + work - before
        )

    def first_forward_passes(self, i: int) -> list[int]:
        """List the virtual stages of a stage's forward passes before any backward one.

        Rounds of microbatches, chunk after chunk.
        """
        order = [k for k in self.chunks(i) for _ in range(self.length)]
        return [order[n % len(order)] for n in range(self.first_passes[i])]

    def paths(self, wires: Any) -> list[float]:
        """Return every path of waits."""
        last = self.last_of_all()
        found = []
        for i in range(self.p):
            end = self.last_backward(wires, i)
            found += [end + self.way(wires, range(i), 1) + last, end + self.tail(i)]
        if self.v == 1 and self.m > self.p:
            turns, rest = divmod(self.m - 1, self.p)
            whole = sum(self.f(i) + self.b(i) for i in range(self.p))
            whole += sum(sum(wires[i]) for i in range(self.p - 1))
            most = max(self.f(i) + self.b(i) for i in range(self.p))
            found.append((1 + turns) * whole + rest * most + last)
        return found

    # What leaves blocks.

    def leaving(self, released: list[float] | None = None) -> float:
        """Bound the step by what must leave blocks of the network."""
        released = released or [
            max(self.last_backward(wires, i) for wires in self.wires)
            - self.passes_behind(i)
            for i in range(self.p)
        ]
        found = []
        for row, inverse in enumerate(self.exit_inverses):
            ends = [self.end_bytes(row, i, gathers=False) for i in range(self.p)]
            gathers = [self.end_bytes(row, i, gathers=True) for i in range(self.p)]
            crossing = sum(
                self.exits[row][way][i]
                * self.boundary_bytes
                * self.m
                * (self.v if i < self.p - 1 else self.v - 1)
                for i in range(self.p)
                for way in range(2)
            )
            after = ends
            if not self.gathers_ahead:
                after = [*map(sum, zip(ends, gathers, strict=True))]
            values = [(crossing + sum(ends) + sum(gathers)) * inverse]
            if not self.is_choice:
                values += [
                    min(released[: i + 1]) + sum(after[: i + 1]) * inverse
                    for i in range(self.p)
                ]
            elif sum(after):
                values.append(min(released) + sum(after) * inverse)
            found.append(max(values))
        if not found:
            return 0.0
        return min(found) if self.is_choice else max(found)

    def end_bytes(self, row: int, i: int, *, gathers: bool) -> float:
        """Return what the end of a stage sends out of a block."""
        each = [self.held(stage) for stage in range(self.p)]
        total = 0.0
        for kind in range(2):
            size = each[i][kind]
            if self.is_choice:
                size = min(pair[kind] for pair in each)
            leaves = self.exits[row][2 + kind][i] * size
            if self.option > 0 and kind == 0:
                leaves = self.exits_inside[row][self.option][i] * size
            if gathers:
                total += leaves * self.weight_bytes * self.rules.gathers_once
                continue
            halves = 2 * self.rules.all_reduces + self.rules.reduces_once
            total += leaves * self.gradient_bytes * halves
            if self.option > 0 and kind == 0 and self.rules.reduces_across:
                shard = size * self.gradient_bytes / self.shared
                total += 2 * self.exits_across[row][self.option][i] * shard
        return total

    def bound(self) -> float:
        """Return the bound of the step [s]."""
        paths = max(max(self.paths(wires)) for wires in self.wires)
        return max(paths + self.start(), self.leaving())


def cost(rate: Any, num_bytes: float) -> float:
    """Return the time of a collective."""
    return float(rate[0] + rate[1] * num_bytes)
