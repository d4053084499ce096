"""The stages of a pipeline: what they cost by Alpa, and which ones it takes.

The inter-operator program takes the least time of a step.

``T = sum_i t_i + (B - 1) max_i t_i`` over all splits ([1]_, equation 2), with ``B``
microbatches. For a ceiling on ``max_i t_i`` the least sum is a dynamic program
(`planner.kernels.rivals`). Alpa tries the distinct times of stages as ceilings,
rising, leaves out those that are less than 1e-6 above the last one, and stops once
``B`` times the ceiling is no better than the best step so far.

Here ceilings are tried best first, exactly: the least sum falls as the ceiling rises,
so that of all ceilings between two of them ``a < b`` none gives a step below
``sum(b) + (B - 1) a``. Of a few thousand ceilings a dozen are tried.

What stages cost by Alpa's account: layers on a logical mesh, interval by interval.

Alpa clusters operators into as many layers as there are blocks; here a unit is a block,
the first one with what is before it, the last one with what follows.

Memory is looked at once costs are known ([1]_, section 5.2, and its public source): of
a stage that holds ``initial`` (weights, gradients, optimizer states), whose microbatch
keeps ``intermediate`` and peaks at ``peak`` beside it, at most::

    floor((memory - peak - initial) / intermediate - 1)

stages may follow, each of which keeps one more microbatch waiting.

References
----------
.. [1] Zheng et al., "Alpa", OSDI 2022, section 5.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from planner.kernels.rivals import equal_stages, interval_costs, mixed_stages
from planner.rivals.alpa.meshes import MeshCase
from planner.rivals.alpa.program import FOOTPRINT, Reduced, pinned, solve, solve_ends
from planner.rivals.alpa.sharding import LayerPrograms
from planner.step.execution import Workload
from planner.work import Work
from topologies.arrays import FloatArray, IntArray

T = TypeVar("T")

STAGE_STEPS = 1000
"""Steps of the recursion over submeshes that take one unit of work."""


class UniformSplit(NamedTuple):
    """Stages of equally many devices."""

    time: float
    """Time of a step, infinite without one [s]."""
    cuts: tuple[int, ...]
    """First unit of each stage, and the number of units."""


class MixedSplit(NamedTuple):
    """Stages on submeshes of several sizes."""

    time: float
    """Time of a step, infinite without one [s]."""
    stages: tuple[tuple[int, int], ...]
    """First unit and submesh of each stage, and the number of units with -1."""


def cheapest_ceiling(
    ceilings: FloatArray,
    num_microbatches: int,
    stages: Callable[[float], tuple[float, float, T]],
    bound: float = math.inf,
) -> tuple[float, T | None]:
    """Return the least ``sum + (B - 1) max`` and what has it.

    Parameters
    ----------
    ceilings
        Distinct times that a slowest stage may have, rising [s].
    num_microbatches
        Microbatches ``B`` of a step.
    stages
        Of a ceiling: the least sum of stages below it, their largest time, and they
        themselves. An infinite sum if there are none.
    bound
        Steps that are no faster are of no interest [s].
    """
    best, cheapest = bound, None
    times = num_microbatches - 1
    queue: list[tuple[float, int, int, bool]] = []
    if ceilings.size:
        lowest = times * float(ceilings[0])
        queue.append((lowest, 0, len(ceilings) - 1, False))
    while queue:
        bound_here, low, high, is_known = heapq.heappop(queue)
        if bound_here >= best:
            break
        middle = (low + high) // 2 if is_known else high
        total, largest, solution = stages(float(ceilings[middle]))
        if math.isfinite(total):
            if total + times * largest < best:
                best, cheapest = total + times * largest, solution
            # The same stages stand below every ceiling down to their largest time.
            below = int(np.searchsorted(ceilings, largest)) - 1
            if below >= low:
                at = total + times * float(ceilings[low])
                heapq.heappush(queue, (at, low, below, True))
        if is_known and middle < high:
            at = bound_here + times * float(ceilings[middle + 1] - ceilings[low])
            heapq.heappush(queue, (at, middle + 1, high, True))
    return best, cheapest


def uniform_split(
    time: FloatArray, most_later: IntArray, num_stages: int, num_microbatches: int
) -> UniformSplit:
    """Return the best split into so many stages of equally many devices.

    Parameters
    ----------
    time
        Of a stage by its first and last unit, shape ``(L, L)`` [s].
    most_later
        Most stages that may follow one, shape ``(L, L)``.
    num_stages, num_microbatches
        Stages, and microbatches of a step.
    """

    def stages(ceiling: float) -> tuple[float, float, IntArray]:
        total, cuts = equal_stages(time, most_later, num_stages, ceiling)
        if not math.isfinite(total):
            return total, math.inf, cuts
        return total, float(time[cuts[:-1], cuts[1:] - 1].max()), cuts

    best, cuts = cheapest_ceiling(_ceilings(time), num_microbatches, stages)
    if cuts is None:
        return UniformSplit(math.inf, ())
    return UniformSplit(best, tuple(cuts.tolist()))


def mixed_split(
    times: FloatArray,
    sizes: IntArray,
    num_devices: int,
    num_microbatches: int,
    bound: float = math.inf,
    work: Work | None = None,
) -> MixedSplit:
    """Return the best split over submeshes that uses every device.

    Parameters
    ----------
    times
        As the kernel `mixed_stages` takes them, shape ``(S, M, L, L)`` [s].
    sizes
        Devices of each submesh, shape ``(M,)``.
    num_devices, num_microbatches
        Devices of the cluster, and microbatches of a step.
    bound
        Steps that are no faster are of no interest [s].
    work
        Work that the recursion is counted on.

    Raises
    ------
    LimitReachedError
        If the work is spent.
    """
    last = len(times) - 1

    def stages(ceiling: float) -> tuple[float, float, IntArray]:
        if work is not None:
            tried = int(np.count_nonzero(times <= ceiling))
            work.spend(1 + tried * num_devices // STAGE_STEPS)
        total, rows = mixed_stages(times, sizes, num_devices, ceiling)
        count = len(rows) - 1
        largest = max(
            (
                float(
                    times[
                        min(count - 1 - place, last),
                        rows[place, 1],
                        rows[place, 0],
                        rows[place + 1, 0] - 1,
                    ]
                )
                for place in range(count)
            ),
            default=math.inf,
        )
        return total, largest, rows

    best, rows = cheapest_ceiling(_ceilings(times), num_microbatches, stages, bound)
    if rows is None:
        return MixedSplit(math.inf, ())
    return MixedSplit(best, tuple((int(unit), int(mesh)) for unit, mesh in rows))


def _ceilings(times: FloatArray) -> FloatArray:
    distinct = np.unique(times)
    return np.asarray(distinct[np.isfinite(distinct)])


LAYER_PROGRAM = 1000
"""Units of work of the program of one layer, solved for all states at its ends."""

INTEGER_PROGRAM = 10_000
"""Units of work of the integer program of one layer."""

MOST_LATER = 2**20
"""Most stages that may follow one, as Alpa clips it."""

STATIC, SAVED, REPEATED, PEAK = range(len(FOOTPRINT))


class StageCosts(NamedTuple):
    """All stages on one logical mesh."""

    time: FloatArray
    """Time of a microbatch by first and last unit, infinite where no strategy does,
    shape ``(U, U)`` [s]."""

    most_later: IntArray
    """Most stages that may follow, -1 if the stage does not fit, shape ``(U, U)``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageModel:
    """Costs of a model's stages; keeps what it solved."""

    workload: Workload
    """Model, job and device."""

    memory: float
    """Memory that tensors may take of a device [byte]."""

    work: Work
    """Work that programs are counted on."""

    programs: LayerPrograms
    """The programs of the model's layers."""

    solved: Counter[str] = field(default_factory=Counter)
    """How many programs were solved, by how."""

    @classmethod
    def of(cls, workload: Workload, memory: float, work: Work) -> "StageModel":
        """Return the model of a job."""
        programs = LayerPrograms(workload=workload)
        return cls(workload=workload, memory=memory, work=work, programs=programs)

    @property
    def kinds(self) -> IntArray:
        """Kind of each layer of the chain, shape ``(L,)``."""
        return np.array(self.workload.graph.kinds, dtype=np.int64)

    @property
    def units(self) -> tuple[IntArray, IntArray]:
        """First and last layer of each unit, shapes ``(U,)``."""
        names = self.workload.graph.names
        blocks = [n for n, name in enumerate(names) if name.startswith("block")]
        firsts, lasts = np.array(blocks), np.array(blocks)
        firsts[0], lasts[-1] = 0, len(names) - 1
        # Layers between two blocks go with the one before them.
        lasts[:-1] = firsts[1:] - 1
        return firsts, lasts

    def costs(self, case: MeshCase) -> StageCosts | None:
        """Return the costs of all stages on a mesh, None where an operator has none."""
        self.work.spend(LAYER_PROGRAM * len(self.workload.graph.layers))
        tables = self._tables(case)
        if tables is None:
            return None
        cost = np.ascontiguousarray([table.cost for table in tables])
        footprint = np.ascontiguousarray([table.footprint for table in tables])
        time, memory = interval_costs(self.kinds, cost, footprint)
        firsts, lasts = self.units
        stages = np.ix_(firsts, lasts)
        return StageCosts(
            np.ascontiguousarray(time[stages]),
            self._most_later(memory[stages], case),
        )

    def _tables(self, case: MeshCase) -> list[Reduced] | None:
        """Return the table of each kind of layer by the states at its ends."""
        tables = []
        for kind in range(len(self.workload.graph.layers)):
            self.solved["programs of layers reduced"] += 1
            program = self.programs.program(kind, case)
            if program is None:
                return None
            table = solve_ends(program)
            if case.recompute in {"selective", "full"}:
                # Of one layer at a time.
                table.footprint[..., PEAK] += table.footprint[..., REPEATED]
                table.footprint[..., REPEATED] = 0.0
            tables.append(table)
        return tables

    def _most_later(self, memory: FloatArray, case: MeshCase) -> IntArray:
        saved = memory[..., SAVED]
        if case.recompute == "stage":
            # The stage's input is all that it keeps.
            spec = self.workload.graph.spec
            tokens = case.sequences * spec.sequence_length / case.mesh.first.size
            saved = saved + tokens * spec.hidden_size * (
                self.workload.training.element_bytes
            )
        peak = saved + memory[..., REPEATED] + memory[..., PEAK]
        room = self.memory - peak - memory[..., STATIC]
        later = np.floor(room / np.maximum(saved, 1.0) - 1.0)
        return np.clip(later, -1, MOST_LATER).astype(np.int64)

    def strategies(
        self, case: MeshCase, first: int, last: int
    ) -> list[tuple[int, tuple[str, ...]]]:
        """Return the kind of each layer of a stage, and its operators' strategies.

        The integer program, solved by HiGHS for each kind of layer between the states
        at its ends that the stage's optimum has.

        Parameters
        ----------
        case
            Mesh on which the stage has an optimum.
        first, last
            First and last unit of the stage.
        """
        self.work.count(LAYER_PROGRAM * len(self.workload.graph.layers))
        tables = self._tables(case)
        assert tables is not None
        firsts, lasts = self.units
        kinds = self.kinds[firsts[first] : lasts[last] + 1].tolist()
        known: dict[tuple[int, int, int], tuple[str, ...]] = {}
        layers = []
        for kind, entering, leaving in _path(kinds, tables):
            key = kind, entering, leaving
            if key not in known:
                known[key] = self._solved(case, *key, tables[kind])
            layers.append((kind, known[key]))
        return layers

    def _solved(
        self, case: MeshCase, kind: int, entering: int, leaving: int, table: Reduced
    ) -> tuple[str, ...]:
        program = self.programs.program(kind, case)
        assert program is not None
        self.work.count(INTEGER_PROGRAM)
        self.solved["programs of layers solved by HiGHS"] += 1
        chosen = solve(pinned(program, entering, leaving))
        assert chosen is not None
        least = float(table.cost[entering, leaving])
        assert program.cost(chosen) <= least * (1.0 + 1e-6), "the reduction is exact"
        pairs = zip(program.nodes[1:-1], chosen[1:-1], strict=True)
        return tuple(node.strategies[strategy] for node, strategy in pairs)


def _path(kinds: list[int], tables: list[Reduced]) -> list[tuple[int, int, int]]:
    """Return the kind and the states at both ends of each layer of an optimum."""
    value = np.zeros(tables[0].cost.shape[0])
    before = []
    for kind in kinds:
        total = value[:, None] + tables[kind].cost
        before.append(total.argmin(axis=0))
        value = total.min(axis=0)
    state = int(value.argmin())
    path = []
    for kind, choice in zip(reversed(kinds), reversed(before), strict=True):
        entering = int(choice[state])
        path.append((kind, entering, state))
        state = entering
    return path[::-1]
