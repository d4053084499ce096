"""The integer program over stages: layers, recomputed layers and strategy of each.

Every stage takes one option: a number of layers with a sample of ``(t, delta)``. Layers
add up to the model's, and the time of a step is least::

    T = sum_i t_i + (G - 1) max_i t_i + max(0, max_i(delta_i - sum_{j<i} t_j))

(Mist, section 5.3). HiGHS solves it, through SciPy. Before that, what cannot be part of
a better solution than one that is known is left out: a dynamic program over the chain
with every limit of ``max t`` gives a solution and a lower bound, which counts the delta
of the first stage alone; options without which the bound stays above the solution go,
and where both meet, nothing is left to solve. Larger times never make ``T`` smaller
(``sum t`` grows by as much as the last term can fall), so that dominated options go,
too. The answer is exact.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from topologies.arrays import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from scipy import optimize, sparse

SAME = 1e-9
"""Relative difference of times below which they are equal."""

SCALE = 1e3
"""What the time of a step is scaled to, so that tolerances of HiGHS are small."""

SLACK = 1e-6
"""Relative slack of the cut, above HiGHS's tolerances."""

MOST_NODES = 20_000
"""Most nodes of HiGHS's tree: a count, so that results do not depend on the clock."""


class OptionChoice(NamedTuple):
    """One option for each stage."""

    time: float
    """Time of a step [s]."""
    options: tuple[int, ...]
    """Number of each stage's option."""
    is_proven: bool
    """Whether no other choice is faster; false only if HiGHS ran into its limit."""


class _Front(NamedTuple):
    """What the dynamic program found."""

    bound: float
    """Lower bound of all choices; infinite if there is none [s]."""
    least_limit: float
    """Least largest steady time of any choice [s]."""
    chosen: tuple[int, ...]
    """A choice that the bound is near to; empty if there is none."""


class _Cell(NamedTuple):
    """Options of one stage with one number of layers, by rising steady time."""

    layers: int
    """Number of layers."""
    options: IntArray
    """Numbers of the options."""
    steady: FloatArray
    """Their steady times [s]."""
    least_cost: FloatArray
    """Least cost of an option and those before it [s]."""
    cheapest: IntArray
    """Which option that is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineProgram:
    """The integer program of one number of stages and accumulation steps."""

    stage: IntArray
    """Stage of each option, rising, shape ``(n,)``."""

    layers: IntArray
    """Layers of each option, shape ``(n,)``."""

    steady: FloatArray
    """Steady time of each option, shape ``(n,)`` [s]."""

    delta: FloatArray
    """What its first and last microbatch take more, at least 0, shape ``(n,)`` [s]."""

    num_stages: int
    """Stages, ``S``."""

    num_layers: int
    """Layers that they share."""

    num_steps: int
    """Accumulation steps, ``G``."""

    def time(self, options: tuple[int, ...]) -> float:
        """Return the time of a step for one option a stage, in order [s]."""
        chosen = np.array(options)
        steady, delta = self.steady[chosen], self.delta[chosen]
        before = np.concatenate([[0.0], np.cumsum(steady)[:-1]])
        late = max(0.0, float((delta - before).max()))
        return float(steady.sum() + (self.num_steps - 1) * steady.max() + late)

    @cached_property
    def lower_bound(self) -> float:
        """Time that no solution is below; infinite if there is none [s]."""
        return self._front.bound

    def solve(self) -> OptionChoice | None:
        """Return the fastest choice, None if there is none."""
        front = self._front
        if not front.chosen:
            return None
        chosen = self._improved(front.chosen)
        known = self.time(chosen)
        if known <= front.bound * (1.0 + SAME):
            return OptionChoice(known, chosen, is_proven=True)
        kept = self._undominated() & (self._through() <= known * (1.0 + SAME))
        choice = self.solve_among(kept, known)
        if choice is not None and (choice.is_proven or choice.time < known):
            return choice
        return OptionChoice(known, chosen, is_proven=False)

    def _improved(self, options: tuple[int, ...]) -> tuple[int, ...]:
        """Return a choice that no other option of one stage makes faster.

        Stages keep their layers.
        """
        chosen, best = list(options), self.time(options)
        stale = 0
        for stage in cycle(range(self.num_stages)):
            now = chosen[stage]
            alike = (self.stage == stage) & (self.layers == self.layers[now])
            for option in np.flatnonzero(alike).tolist():
                other = [*chosen[:stage], option, *chosen[stage + 1 :]]
                time = self.time(tuple(other))
                if time < best * (1.0 - SAME):
                    chosen, best = other, time
            stale = stale + 1 if chosen[stage] == now else 0
            if stale == self.num_stages:
                break
        return tuple(chosen)

    def solve_among(
        self, kept: BoolArray, known: float = np.inf
    ) -> OptionChoice | None:
        """Return the fastest choice of some options by the integer program alone.

        Parameters
        ----------
        kept
            Which options there are, shape ``(n,)``.
        known
            Time of a step that is known to be reached [s].
        """
        # Half a second of loading that only this planner asks for.
        from scipy import optimize

        (numbers,) = np.nonzero(kept)
        if len(np.unique(self.stage[numbers])) < self.num_stages:
            return None
        count = len(numbers)
        scale = SCALE / (self.num_steps * max(float(self.steady[numbers].max()), SAME))
        steady, delta = scale * self.steady[numbers], scale * self.delta[numbers]
        result = optimize.milp(
            np.concatenate([steady, [self.num_steps - 1.0, 1.0]]),
            constraints=self._constraints(numbers, steady, delta, known * scale),
            integrality=np.concatenate([np.ones(count), np.zeros(2)]),
            bounds=optimize.Bounds(
                np.zeros(count + 2), np.concatenate([np.ones(count), [np.inf, np.inf]])
            ),
            options={"mip_rel_gap": 0.0, "node_limit": MOST_NODES},
        )
        if result.x is None:
            return None
        chosen = numbers[np.round(result.x[:count]) > 0]
        options = tuple(chosen[np.argsort(self.stage[chosen])].tolist())
        assert len(options) == self.num_stages, "every stage takes one option"
        return OptionChoice(self.time(options), options, is_proven=result.status == 0)

    def _constraints(
        self, numbers: IntArray, steady: FloatArray, delta: FloatArray, known: float
    ) -> "list[optimize.LinearConstraint]":
        """Return the rows over options, ``max t`` and the largest delta.

        Parameters
        ----------
        numbers
            Options that there are.
        steady, delta
            Their times, scaled.
        known
            Time that a choice must not exceed, scaled; infinite for none.
        """
        from scipy import optimize, sparse

        count, stages = len(numbers), self.num_stages
        rows, columns = self.stage[numbers], np.arange(count)

        def by_stage(values: FloatArray) -> "sparse.csr_array":
            shape = stages, count
            return sparse.csr_array((values, (rows, columns)), shape=shape)

        times = by_stage(steady)
        before = sparse.csr_array(np.tri(stages, k=-1)) @ times
        layers = self.layers[numbers].astype(np.float64)
        # The last two columns are ``max t`` and the largest delta.
        total = sparse.csr_array(layers[None])
        sums = sparse.vstack([by_stage(np.ones(count)), total])
        within = sparse.vstack([times, by_stage(delta) - before])
        maxima = -sparse.kron(np.eye(2), np.ones((stages, 1)))
        nothing = sparse.csr_array((stages + 1, 2))
        targets = np.concatenate([np.ones(stages), [float(self.num_layers)]])
        constraints = [
            optimize.LinearConstraint(sparse.hstack([sums, nothing]), targets, targets),
            optimize.LinearConstraint(sparse.hstack([within, maxima]), -np.inf, 0.0),
        ]
        if np.isfinite(known):
            # Mist's cut: more than what is known need not be looked at.
            cut = np.zeros((1, count + 2))
            cut[0, -2] = self.num_steps - 1.0
            constraints.append(
                optimize.LinearConstraint(cut, -np.inf, known * (1.0 + SLACK))
            )
        return constraints

    def _undominated(self) -> BoolArray:
        """Tell which options no other of their stage and layers is as good as."""
        kept = np.zeros(len(self.stage), dtype=np.bool_)
        for cells in self._cells:
            for cell in cells:
                delta = self.delta[cell.options]
                least = np.concatenate([[np.inf], np.minimum.accumulate(delta)[:-1]])
                kept[cell.options[delta < least]] = True
        return kept

    def _through(self) -> FloatArray:
        """Return a lower bound of all choices with each option, shape ``(n,)`` [s]."""
        unlimited = np.array([np.inf])
        ahead = [table[0] for table in self._tables(unlimited)]
        behind = self._behind()
        total = self.num_layers
        bounds = np.full(len(self.stage), np.inf)
        for stage, cells in enumerate(self._cells):
            for cell in cells:
                others = ahead[stage][: total + 1 - cell.layers]
                others = others + behind[stage + 1][: total + 1 - cell.layers][::-1]
                cost = self._cost(stage, cell.options)
                slowest = np.maximum(cell.steady, self._front.least_limit)
                bounds[cell.options] = (
                    others.min() + cost + (self.num_steps - 1) * slowest
                )
        return bounds

    def _cost(self, stage: int, options: IntArray) -> FloatArray:
        """Return what options add to a step beside the pipeline's slowest stage [s].

        The first stage's delta is hidden behind nothing.
        """
        steady = self.steady[options]
        return steady + self.delta[options] if stage == 0 else steady

    @cached_property
    def _cells(self) -> list[list[_Cell]]:
        """Options of each stage by their number of layers."""
        cells: list[list[_Cell]] = [[] for _ in range(self.num_stages)]
        order = np.lexsort((self.delta, self.steady, self.layers, self.stage))
        order = order[self.layers[order] <= self.num_layers]
        keys = self.stage[order] * (self.num_layers + 1) + self.layers[order]
        for options in np.split(order, np.flatnonzero(np.diff(keys)) + 1):
            if not len(options):
                continue
            stage = int(self.stage[options[0]])
            cost = self._cost(stage, options)
            least = np.minimum.accumulate(cost)
            # Positions of the least cost so far.
            new = np.concatenate([[True], cost[1:] < least[:-1]])
            where = np.maximum.accumulate(np.where(new, np.arange(len(options)), 0))
            cells[stage].append(
                _Cell(
                    int(self.layers[options[0]]),
                    options,
                    self.steady[options],
                    least,
                    options[where],
                )
            )
        return cells

    def _tables(self, limits: FloatArray) -> list[FloatArray]:
        """Return the least cost of the stages before each, by the layers they have.

        Shape ``(len(limits), L + 1)`` each, under each limit of the steady times.
        """
        shape = len(limits), self.num_layers + 1
        tables = [np.full(shape, np.inf)]
        tables[0][:, 0] = 0.0
        for cells in self._cells:
            table, last = np.full(shape, np.inf), tables[-1]
            for cell in cells:
                taken = cell.layers
                cost = _least(cell, limits)[:, None]
                np.minimum(
                    table[:, taken:],
                    last[:, : shape[1] - taken] + cost,
                    out=table[:, taken:],
                )
            tables.append(table)
        return tables

    def _behind(self) -> list[FloatArray]:
        """Return the least cost of the stages from each on, by the layers they have."""
        size = self.num_layers + 1
        tables = [np.full(size, np.inf)]
        tables[0][0] = 0.0
        for cells in reversed(self._cells):
            table, last = np.full(size, np.inf), tables[-1]
            for cell in cells:
                taken = cell.layers
                cost = cell.least_cost[-1]
                np.minimum(
                    table[taken:], last[: size - taken] + cost, out=table[taken:]
                )
            tables.append(table)
        return tables[::-1]

    @cached_property
    def _front(self) -> _Front:
        """The best limit of the steady times, searched by halves."""
        limits = np.unique(self.steady)
        if not len(limits):
            return _Front(np.inf, np.inf, ())
        slope = self.num_steps - 1
        costs: dict[int, float] = {}

        def look(numbers: list[int]) -> None:
            totals = self._tables(limits[numbers])[-1][:, -1]
            costs.update(zip(numbers, totals.tolist(), strict=True))

        look(sorted({0, len(limits) - 1}))
        open_ends = [(0, len(limits) - 1)]
        while open_ends:
            best = min(cost + slope * limits[k] for k, cost in costs.items())
            # Inside of two ends limits are above the lower, costs not below the upper.
            halved = [
                (low, (low + high) // 2, high)
                for low, high in open_ends
                if high - low > 1 and costs[high] + slope * limits[low + 1] < best
            ]
            if halved:
                look([middle for _, middle, _ in halved])
            open_ends = [
                pair
                for low, middle, high in halved
                for pair in ((low, middle), (middle, high))
            ]
        number = min(costs, key=lambda k: (costs[k] + slope * limits[k], k))
        if not np.isfinite(costs[number]):
            return _Front(np.inf, np.inf, ())
        # The least limit that any choice keeps, of those that were looked at.
        least = max(
            (limits[k] for k, cost in costs.items() if not np.isfinite(cost)),
            default=limits[0],
        )
        return _Front(
            float(costs[number] + slope * limits[number]),
            float(least),
            self._choice(limits[number]),
        )

    def _choice(self, limit: float) -> tuple[int, ...]:
        """Return the cheapest choice of stages that are no slower than a limit."""
        limits = np.array([limit])
        tables = [table[0] for table in self._tables(limits)]
        left, chosen = self.num_layers, []
        for stage in range(self.num_stages - 1, -1, -1):
            fitting = [cell for cell in self._cells[stage] if cell.layers <= left]
            best = min(
                fitting,
                key=lambda cell: (
                    tables[stage][left - cell.layers] + _least(cell, limits)[0]
                ),
            )
            place = int(np.searchsorted(best.steady, limit, side="right")) - 1
            chosen.append(int(best.cheapest[place]))
            left -= best.layers
        return tuple(chosen[::-1])


def _least(cell: _Cell, limits: FloatArray) -> FloatArray:
    """Return the least cost of options within each limit, infinite without one [s]."""
    place = np.searchsorted(cell.steady, limits, side="right")
    return np.concatenate([[np.inf], cell.least_cost])[place]
