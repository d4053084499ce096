"""The candidates of a search: their bounds, their splits, their placements.

Letters as in `planner.space`; positions ``s`` count stages from the end, as the split
kernel does.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.parallelism import Sizes
from planner.bounds import (
    Outer,
    closed_form_bounds,
    job_constants,
    layer_bounds,
    ordered,
)
from planner.chain_split import Splitter
from planner.class_table import Choice
from planner.kernels import split as kernel
from planner.memory_bounds import MemoryBounds
from planner.placement_bounds import PlacementBounds
from planner.placements import Extents, Placement, placements
from planner.pricing import placement_choices
from planner.rates import PricedGrid
from planner.relaxation import Relaxation, best_group_rates
from planner.search_spec import SearchSpec
from planner.space import Configuration, Inner, inner_configurations
from planner.stage_rates import PlacementRates, StageRates
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateSet:
    """Every configuration of a space, in the order of a closed-form bound."""

    network: Network
    workload: Workload
    spec: SearchSpec
    relaxation: Relaxation
    inner: tuple[Inner, ...]
    outer: Outer
    statistics: Counter[str]
    tensor_rates: dict[int, FloatArray]
    splitter: Splitter
    memory_bounds: MemoryBounds
    placement_bounds: PlacementBounds
    _priced: dict[object, PricedGrid] = field(default_factory=dict)
    _bounded: dict[Configuration, list[tuple[float, Placement]]] = field(
        default_factory=dict
    )
    _relaxed: dict[Sizes, tuple[StageRates, ...]] = field(default_factory=dict)

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
            tp: best_group_rates(network, tp)
            for tp in sorted({item.degrees.tp for item in inner})
        }
        layers = {
            degrees: layer_bounds(
                workload.table(degrees), tensor[degrees.tp], relaxation, degrees
            )
            for degrees in dict.fromkeys(item.degrees for item in inner)
        }
        bounds = [
            closed_form_bounds(relaxation, workload, spec, item, layers[item.degrees])
            for item in inner
        ]
        outer = ordered(bounds)
        dropped["configurations"] = len(outer.bounds)
        splitter = Splitter(
            workload=workload,
            spec=spec,
            layers=layers,
            memory=workload.tensor_memory(spec.memory_reserve),
            job=job_constants(workload),
        )
        return cls(
            network=network,
            workload=workload,
            spec=spec,
            relaxation=relaxation,
            inner=inner,
            outer=outer,
            statistics=dropped,
            tensor_rates=tensor,
            splitter=splitter,
            memory_bounds=MemoryBounds(splitter=splitter),
            placement_bounds=PlacementBounds.of(network),
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
        return self.splitter.memory

    def within(self, memory: float) -> "CandidateSet":
        """Return the same configurations where plans may use other memory [byte]."""
        splitter = replace(self.splitter, memory=memory)
        return replace(
            self,
            splitter=splitter,
            memory_bounds=MemoryBounds(splitter=splitter),
            statistics=Counter(),
        )

    def relaxed(self, configuration: Configuration) -> tuple[StageRates, ...]:
        """Return rates one of which no placement of a configuration can beat."""
        tp, cp, ep, _, _, pp, dp = configuration
        sizes = Sizes(tp, cp, ep, dp, pp)
        if sizes not in self._relaxed:
            if len(self._relaxed) >= MOST_RELAXED:
                self._relaxed.clear()
            self._relaxed[sizes] = tuple(
                self.relaxation.rates(self.tensor_rates[tp], sizes, together)
                for together in self.relaxation.expert_spreads(sizes)
            )
        return self._relaxed[sizes]

    def fits(self, configuration: Configuration, memory: float) -> bool:
        """Tell whether memory leaves room for any split (necessary)."""
        shared = self.relaxed(configuration)[0].group_sizes
        return self.splitter.fits(configuration, shared, memory)

    def memory_bound(self, index: int, cutoff: float) -> float:
        """Return LB1 sharpened by memory, or infinity if that rules it out [s]."""
        if self.outer.memory[index] > self.memory:
            self.statistics["out of memory"] += 1
            return np.inf
        configuration = self[index]
        relaxed = self.relaxed(configuration)
        bound = self.memory_bounds.bounder(configuration, len(relaxed[0].group_sizes))
        value = min(bound(rates) for rates in relaxed)
        if value >= cutoff:
            no_split = np.isinf(value)
            reason = "out of memory" if no_split else "pruned by the memory bound"
            self.statistics[reason] += 1
            return np.inf
        return max(value, self.bound(index))

    def relaxed_bound(
        self, configuration: Configuration, floor: float, cutoff: float
    ) -> float:
        """Return LB2, or infinity if memory or the cutoff rules it out [s].

        ``floor`` is a bound that is known already.
        """
        value = cutoff
        for rates in self.relaxed(configuration):
            found = self.splitter.split(configuration, rates, value)
            value = min(value, found.value)
        if value >= cutoff:
            # Without a cutoff only memory can stop a split.
            no_split = np.isinf(cutoff) or not self.fits(configuration, self.memory)
            reason = "out of memory" if no_split else "pruned by the relaxed split"
            self.statistics[reason] += 1
            return np.inf
        return max(value * kernel.SAFE, floor)

    def placed_bound(
        self, configuration: Configuration, floor: float, cutoff: float
    ) -> float:
        """Return LB3, or infinity if the cutoff rules all placements out [s].

        ``floor`` is a bound that is known already.
        """
        self.statistics["placed"] += 1
        relaxed = self.relaxed(configuration)
        bound = self.memory_bounds.bounder(configuration, len(relaxed[0].group_sizes))
        bounds: list[tuple[float, Placement]] = []
        for placement in self.placements(configuration):
            self.statistics["placements"] += 1
            rates = self.placement_bounds.rates(placement, relaxed)
            value = bound(rates)
            if value < cutoff:
                found = self.splitter.split(configuration, rates, cutoff)
                value = max(value, floor, found.value * kernel.SAFE)
            if value < cutoff:
                bounds.append((value, placement))
            else:
                self.statistics["placements pruned by their bound"] += 1
        if not bounds:
            return np.inf
        bounds.sort(key=itemgetter(0))
        self._bounded[configuration] = bounds
        return bounds[0][0]

    def solve(self, configuration: Configuration, cutoff: float) -> Solution | None:
        """Return the best placement and split with a value below the cutoff.

        Of the placements that `placed_bound` has left, if it was asked before.
        """
        best: Solution | None = None
        seen: set[bytes] = set()
        bounded = self._bounded.pop(configuration, None)
        if bounded is None:
            bounded = [(-np.inf, each) for each in self.placements(configuration)]
        for bound, placement in bounded:
            if bound >= (cutoff if best is None else best.value):
                self.statistics["placements pruned by their bound"] += 1
                continue
            rates = self.rates(configuration, placement)
            key = _signature_bytes(rates.stage_rates)
            if key in seen:
                self.statistics["placements priced alike"] += 1
                continue
            seen.add(key)
            limit = cutoff if best is None else best.value
            found = self.splitter.split(configuration, rates.stage_rates, limit)
            if found.value < limit:
                choices = self.splitter.choices(configuration, len(rates.shardings))
                chosen = tuple(choices[c] for c in found.picked)
                best = Solution(found.value, found.bounds, chosen, placement, rates)
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
        table = self.workload.table(self.splitter.degrees(configuration))
        tensor, gradient = placement_choices(table, self.workload, configuration.pp)
        key = placement.extents, placement.steps
        priced = self._priced.get(key)
        if priced is None:
            if len(self._priced) * self.network.num_devices > MOST_PRICED_DEVICES:
                self._priced.clear()
            priced = PricedGrid(self.network, placement.grid)
            self._priced[key] = priced
        return priced.rates(tensor, gradient)


def _signature_bytes(rates: StageRates) -> bytes:
    """Return equal bytes for placements that no price can tell apart."""
    return b"".join(array.tobytes() for array in rates)
