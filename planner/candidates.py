"""The candidates of a search: their bounds, their splits, their placements.

Letters as in `planner.space`; positions ``s`` count stages from the end, as the split
kernel does.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.layer_work import Degrees
from estimators.memory import optimizer_step_bytes
from estimators.parallelism import Sizes
from planner.bounds import (
    LayerBounds,
    closed_form_bounds,
    layer_bounds,
    least_memory_bounds,
)
from planner.class_table import (
    Choice,
    ClassTable,
    choice_array,
    choices_of,
    class_table,
)
from planner.kernels import split as kernel
from planner.kernels import tables
from planner.loads import iteration_weights, stage_adders, stage_transfers
from planner.placements import Extents, Placement, placements
from planner.pricing import placement_choices
from planner.rates import PlacementRates, PricedGrid
from planner.relaxation import (
    Relaxation,
    best_group_rates,
    expert_spreads,
    relaxed_rates,
)
from planner.schedules import SCHEDULES
from planner.search_spec import SearchSpec
from planner.space import (
    Configuration,
    Inner,
    inner_configurations,
    sequence_parallel,
)
from planner.virtual import fold_sums, fold_table
from planner.workload import Workload
from topologies import Network

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


MOST_PRICED_DEVICES = 2**22
"""Devices of the placements whose rates are kept at a time: about 100 MB."""


MOST_RELAXED = 2**13
"""Bounds of configurations' rates that are kept at a time: about 50 MB."""


class Solution(NamedTuple):
    """The best split of a configuration, on its best placement."""

    value: float
    """Iteration time [s]."""
    bounds: IntArray
    """First (folded) layer of each stage, and their number, shape ``(p + 1,)``."""
    choices: tuple[Choice, ...]
    """Of each stage, first to last."""
    placement: Placement
    rates: PlacementRates


class _Outer(NamedTuple):
    """Configurations in the order of LB1, as arrays."""

    inner: IntArray
    """Which inner configuration."""
    place: IntArray
    """Which of its pairs ``(pp, dp)``."""
    bounds: FloatArray
    """LB1, rising [s]."""
    memory: FloatArray
    """Least memory [byte]."""


class _Folded(NamedTuple):
    """A folded chain, ready for the kernels."""

    table: ClassTable
    minima: FloatArray
    """No choice and no placement makes a folded layer faster [s]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateSet:
    """Every configuration of a space, in the order of a closed-form bound."""

    network: Network
    workload: Workload
    spec: SearchSpec
    relaxation: Relaxation
    inner: tuple[Inner, ...]
    outer: _Outer
    statistics: Counter[str]
    tensor_rates: dict[int, dict[str, FloatArray]]
    layers: dict[Degrees, LayerBounds]
    _folded: dict[tuple[Degrees, int], _Folded] = field(default_factory=dict)
    _priced: dict[object, PricedGrid] = field(default_factory=dict)
    _relaxed: dict[Sizes, tuple[PlacementRates, ...]] = field(default_factory=dict)

    @classmethod
    def enumerate(
        cls, network: Network, workload: Workload, spec: SearchSpec
    ) -> "CandidateSet":
        """List the space and bound every configuration of it."""
        inner, dropped = inner_configurations(
            workload.graph.spec,
            spec,
            num_devices=network.num_devices,
            chain=workload.chain,
            global_batch_size=workload.training.global_batch_size,
        )
        relaxation = Relaxation.of(network)
        tensor = {
            tp: dict(best_group_rates(network, tp))
            for tp in sorted({item.degrees.tp for item in inner})
        }
        layers: dict[Degrees, LayerBounds] = {}
        for item in inner:
            if item.degrees not in layers:
                layers[item.degrees] = layer_bounds(
                    workload.table(item.degrees),
                    tensor[item.degrees.tp],
                    relaxation.hop,
                    item.degrees.ep,
                )
        bounds = [
            closed_form_bounds(relaxation, workload, spec, item, layers[item.degrees])
            for item in inner
        ]
        memory = [
            least_memory_bounds(workload, spec, item, layers[item.degrees])
            for item in inner
        ]
        outer = _ordered(inner, bounds, memory)
        dropped["configurations"] = len(outer.bounds)
        return cls(
            network=network,
            workload=workload,
            spec=spec,
            relaxation=relaxation,
            inner=inner,
            outer=outer,
            statistics=dropped,
            tensor_rates=tensor,
            layers=layers,
        )

    def __len__(self) -> int:
        return len(self.outer.bounds)

    def __getitem__(self, index: int) -> Configuration:
        return self.inner_of(index).configuration(int(self.outer.place[index]))

    def bound(self, index: int) -> float:
        """Return LB1 of a configuration, infinity past the last one [s]."""
        return float(self.outer.bounds[index]) if index < len(self) else np.inf

    def inner_of(self, index: int) -> Inner:
        """Return what the tables of a configuration depend on."""
        return self.inner[int(self.outer.inner[index])]

    @property
    def memory(self) -> float:
        """What plans may use of each device [byte]."""
        return self.workload.accelerator.memory_bytes - self.spec.memory_reserve

    def num_microbatches(self, configuration: Configuration) -> int:
        """Return the microbatches of each replica."""
        return self.workload.num_microbatches(configuration.b, configuration.dp)

    def folded(self, configuration: Configuration) -> _Folded:
        """Return a configuration's folded chain, made once."""
        degrees, v = self.degrees(configuration), configuration.v
        if (degrees, v) not in self._folded:
            table = self.workload.table(degrees)
            minima = fold_sums(self.layers[degrees].minima, table.is_block, v)
            self._folded[degrees, v] = _Folded(
                class_table(fold_table(table, v), num_chunks=v), minima
            )
        return self._folded[degrees, v]

    def degrees(self, configuration: Configuration) -> Degrees:
        """Return what layer tables depend on."""
        tp, cp, ep, b, *_ = configuration
        return Degrees(tp, cp, ep, b, sequence_parallel(self.spec, tp))

    def choices(
        self, configuration: Configuration, rates: PlacementRates
    ) -> tuple[Choice, ...]:
        """Return what the stages of a configuration may choose from."""
        return choices_of(
            self.spec.recompute,
            self.spec.zero_stages,
            num_replicas=configuration.dp * configuration.cp,
            num_options=len(rates.shardings),
            num_chunks=configuration.v,
        )

    def relaxed(self, configuration: Configuration) -> tuple[PlacementRates, ...]:
        """Return rates one of which no placement of a configuration can beat."""
        tp, cp, ep, _, _, pp, dp = configuration
        sizes = Sizes(tp, cp, ep, dp, pp)
        if sizes not in self._relaxed:
            if len(self._relaxed) >= MOST_RELAXED:
                self._relaxed.clear()
            tensor = self.tensor_rates[tp]
            self._relaxed[sizes] = tuple(
                relaxed_rates(self.relaxation, tensor, sizes, together)
                for together in expert_spreads(self.relaxation, sizes)
            )
        return self._relaxed[sizes]

    def fits(self, configuration: Configuration, memory: float) -> bool:
        """Tell whether memory leaves room for any split (necessary)."""
        rates = self.relaxed(configuration)[0]
        choices = choice_array(self.choices(configuration, rates))
        slots = self._slots(configuration, choices, rates, memory)
        m = self.num_microbatches(configuration)
        in_flight = _in_flight(configuration.pp, configuration.v, m)
        classes = self.folded(configuration).table.classes
        return bool(kernel.fits_in_memory(classes.class_of, slots, in_flight))

    def relaxed_bound(self, index: int, cutoff: float) -> float:
        """Return LB2, or infinity if memory or the cutoff rules it out [s]."""
        configuration = self[index]
        if self.outer.memory[index] > self.memory:
            self.statistics["out of memory"] += 1
            return np.inf
        value = cutoff
        for rates in self.relaxed(configuration):
            found, *_ = self._split(configuration, rates, value)
            value = min(value, found)
        if value >= cutoff:
            # Without a cutoff only memory can stop a split.
            no_split = np.isinf(cutoff) or not self.fits(configuration, self.memory)
            reason = "out of memory" if no_split else "pruned by the relaxed split"
            self.statistics[reason] += 1
            return np.inf
        return max(value * kernel.SAFE, self.bound(index))

    def solve(self, configuration: Configuration, cutoff: float) -> Solution | None:
        """Return the best placement and split with a value below the cutoff."""
        self.statistics["placed"] += 1
        best: Solution | None = None
        seen: set[bytes] = set()
        for placement in self.placements(configuration):
            self.statistics["placements"] += 1
            rates = self.rates(configuration, placement)
            key = _signature_bytes(rates)
            if key in seen:
                self.statistics["placements priced alike"] += 1
                continue
            seen.add(key)
            limit = cutoff if best is None else best.value
            value, bounds, picked = self._split(configuration, rates, limit)
            if value < limit:
                choices = self.choices(configuration, rates)
                chosen = tuple(choices[c] for c in picked)
                best = Solution(value, bounds, chosen, placement, rates)
        return best

    def placements(self, configuration: Configuration) -> tuple[Placement, ...]:
        """Return every placement of a configuration."""
        tp, cp, ep, _, _, pp, dp = configuration
        return placements(
            Extents(tp, cp, ep, dp // ep, pp),
            self.network.num_devices,
            self.network.block_sizes,
        )

    def rates(
        self, configuration: Configuration, placement: Placement
    ) -> PlacementRates:
        """Price a placement."""
        table = self.workload.table(self.degrees(configuration))
        tensor, gradient = placement_choices(table, self.workload, configuration.pp)
        key = placement.extents, placement.steps
        priced = self._priced.get(key)
        if priced is None:
            if len(self._priced) * self.network.num_devices > MOST_PRICED_DEVICES:
                self._priced.clear()
            priced = PricedGrid(self.network, placement.grid)
            self._priced[key] = priced
        return priced.rates(tensor, gradient)

    def _slots(
        self,
        configuration: Configuration,
        choices: IntArray,
        rates: PlacementRates,
        memory: float,
    ) -> IntArray:
        table = self.folded(configuration).table
        constants = self._constants(configuration, memory)
        slots: IntArray = tables.memory_slots(
            table.sums, choices, rates.group_sizes, constants
        )
        return slots

    def _constants(self, configuration: Configuration, memory: float) -> FloatArray:
        each = self.workload.parameter_bytes
        constants = np.zeros(tables.NUM_CONSTANTS)
        constants[tables.WEIGHT_BYTES] = each.weights
        constants[tables.GRADIENT_BYTES] = each.gradients
        constants[tables.OPTIMIZER_BYTES] = each.optimizer
        step = optimizer_step_bytes(each) / self.workload.memory_rate
        constants[tables.STEP_TIME] = step
        constants[tables.MEMORY] = memory
        members = configuration.dp * configuration.cp // configuration.ep
        constants[tables.EXPERT_GROUP] = members
        return constants

    def _split(
        self, configuration: Configuration, rates: PlacementRates, cutoff: float
    ) -> tuple[float, IntArray, IntArray]:
        """Run the split kernel under the given rates."""
        table, minima = self.folded(configuration)
        choices = choice_array(self.choices(configuration, rates))
        rows, signature = rates.signatures
        m, v = self.num_microbatches(configuration), configuration.v
        weights = iteration_weights(m, v)
        boundary = self.layers[self.degrees(configuration)].boundary_bytes
        transfers = stage_transfers(rates, boundary, v)
        adder, constant = stage_adders(transfers, weights)
        time, tail = tables.time_and_tail(
            table.sums,
            table.traffic,
            table.traffic_rate,
            choices,
            rates.group_sizes,
            rows,
            self._constants(configuration, self.memory),
        )
        tied = self._tied_time(configuration, rates)
        slots = self._slots(configuration, choices, rates, self.memory)
        if v > 1:
            # Every stage has a block in each of its chunks.
            slots[:, ~table.has_block] = 0
        value: float
        _, value, bounds, picked = kernel.split_chain(
            table.classes.class_of,
            minima,
            time,
            tail,
            slots,
            np.concatenate(([0], signature[::-1])),
            np.concatenate(([0.0], adder[::-1])),
            np.concatenate(([0.0], tied[::-1])),
            _in_flight(configuration.pp, v, m),
            weights.sum,
            weights.max,
            _least_tail(table, tail, configuration.pp),
            cutoff - constant,
        )
        return value + constant, bounds, picked

    def _tied_time(
        self, configuration: Configuration, rates: PlacementRates
    ) -> FloatArray:
        """Return what the tied embedding adds to each stage's tail [s]."""
        tied = np.zeros(configuration.pp)
        table = self.workload.table(self.degrees(configuration))
        if configuration.pp > 1 and table.tied_parameters > 0:
            latency, inverse = rates.tied
            size = table.tied_parameters * self.workload.parameter_bytes.gradients
            tied[[0, -1]] = latency + size * inverse
        return tied


def _ordered(
    inner: tuple[Inner, ...], bounds: list[FloatArray], memory: list[FloatArray]
) -> _Outer:
    """Sort all configurations by their bound; ties stay in order of enumeration."""
    sizes = [len(values) for values in bounds]
    empty = np.zeros(0)
    values = np.concatenate([empty, *bounds])
    order = np.argsort(values, kind="stable")
    starts = np.cumsum([0, *sizes])[:-1]
    number = np.repeat(np.arange(len(inner)), sizes)
    place = np.arange(len(values)) - np.repeat(starts, sizes)
    held = np.concatenate([empty, *memory])
    return _Outer(number[order], place[order], values[order], held[order])


def _signature_bytes(rates: PlacementRates) -> bytes:
    """Return equal bytes for placements that no price can tell apart."""
    both = rates.activation + rates.gradient
    arrays = (*rates.signatures, rates.group_sizes, rates.tied, both)
    return b"".join(array.tobytes() for array in arrays)


def _least_tail(table: ClassTable, tail: FloatArray, num_stages: int) -> float:
    """Bound the largest tail of any split from below [s].

    Some stage holds at least the mean dense parameters, and a tail is a line over
    them. Experts, which may sit elsewhere, make no such promise.
    """
    whole = table.classes.whole
    if table.sums[tables.EXPERT_PARAMETERS, whole] > 0:
        return 0.0
    return float(tail[:, :, whole].min()) / num_stages * kernel.SAFE


@lru_cache(maxsize=8192)
def _in_flight(p: int, v: int, m: int) -> IntArray:
    """Return passes in flight by position, entry 0 unused."""
    schedule = SCHEDULES[schedule_name(v)]
    return np.array([0, *(schedule.in_flight(p - s, p, m, v) for s in range(1, p + 1))])


def schedule_name(v: int) -> str:
    """Return the schedule of plans with ``v`` virtual stages."""
    return "1f1b" if v == 1 else "interleaved-1f1b"
