"""The launchable plans of a job: their bounds, and the plans themselves."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from planner.cost.choices import MemoryChoice, choice_columns
from planner.cost.objective import PricedPlan
from planner.cost.rates import StageRates
from planner.frameworks.rules import LaunchRules
from planner.kernels.replay_memory import Variants
from planner.search.bounds import Relaxation, best_group_rates
from planner.search.device_kinds import PlacedKinds, most_memory
from planner.search.launchable import is_launchable, rules_of
from planner.search.placements import DevicePlaces, Placement, PlacementBounds
from planner.search.replayed.bounds import ReplayBounds, Shape
from planner.search.replayed.families import ConfigurationQueue, FamilyFloors
from planner.search.replayed.floors import (
    SpaceLayouts,
    family_bounds,
    relaxed_rates,
    shared_inside,
)
from planner.search.replayed.fullness import LeastMemory, are_too_full
from planner.search.replayed.listing import Leaf, PlanListing
from planner.search.replayed.orders import Exits, is_listed, relaxed_exits
from planner.search.replayed.prices import PlacementPrices
from planner.search.replayed.space import ConfigurationFamily, LaunchableSpace
from planner.search.space import Configuration, SearchSpec, configuration_of
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.work import LAYER_TABLE, PRICED_DEVICES, Progress, Work
from topologies import Network
from topologies.arrays import BoolArray, FloatArray, IntArray

BOUND = 450
"""Units of work of the bound of a plan, before its layers are counted."""

BOUNDED_LAYERS = 40
"""Layers for which a bound takes one unit of work more, each counted once a choice and
layout."""

MOST_UNPLACED = 512
"""Sizes whose relaxed rates and exits are kept at a time."""

SHEAF = 32
"""Layouts that are bounded together where devices differ."""

FAMILIES_PER_REPORT = 16
"""Families of configurations between two reports of progress."""


class Unplaced(NamedTuple):
    """What no placement of some sizes can beat."""

    rates: tuple[StageRates, ...]
    """Rates one of which no placement can beat."""
    least: StageRates
    """The least of these."""
    exits: tuple[Exits, ...]
    """What leaves blocks of the network at least, of each tier."""


class Leaves(NamedTuple):
    """The plans of a configuration on a placement, by their bounds."""

    configuration: Configuration
    """Sizes of the plans."""
    placement: Placement
    """Where the ranks are."""
    choices: tuple[MemoryChoice, ...]
    """Memory choices that `numbers` refers to."""
    layouts: IntArray
    """First layer of each virtual stage, and the number of layers, shape ``(Y, C +
    1)``."""
    bounds: FloatArray
    """Lower bound of each plan's replay, rising [s]."""
    numbers: IntArray
    """Number of each plan's choice and layout, and blocks that are recomputed if they
    are counted, shape ``(n, 3)``."""
    schedule: str = ""
    """Name of the plans' schedule, as of `Leaf`."""

    def leaf(self, index: int) -> Leaf:
        """Return one of the plans."""
        choice, layout, count = self.numbers[index].tolist()
        return Leaf(
            self.configuration,
            tuple(self.layouts[layout].tolist()),
            self.choices[choice],
            self.placement,
            count if self.choices[choice].counting else None,
            self.schedule,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaunchableCandidates:
    """The plans of a space, bounded from the whole to the single one."""

    network: Network
    """Network that plans are placed on."""
    workload: Workload
    """Model, job and device."""
    spec: SearchSpec
    """Space that is searched."""
    families: tuple[ConfigurationFamily, ...]
    """Families of configurations of the space."""
    relaxation: Relaxation
    """Bounds of the network's rates."""
    tensor_rates: dict[int, FloatArray]
    """Tensor-parallel size -> least rates of its collectives."""
    bounds: ReplayBounds
    """What bounds replays from below."""
    statistics: Counter[str]
    """Number of configurations, plans and replays by what became of them."""
    work: Work
    """Work that the search is counted on."""
    floors: FloatArray
    """Lower bound of the replays of each family [s]."""
    too_full: tuple[BoolArray, ...]
    """Which configurations of each family fit in no way."""
    fills: bool
    """Whether no schedule puts weight gradients off."""
    cuts: SpaceLayouts | None
    """Layouts of the space, where first bounds read them."""
    starts: IntArray
    """Number of the first configuration of each family, and the number of all."""
    listing: PlanListing
    """What plans each configuration has."""
    memory: LeastMemory
    """What these hold at least."""
    prices: PlacementPrices
    """What placements cost."""
    _first: dict[int, FloatArray] = field(default_factory=dict)
    """Number of a family -> first bounds of its configurations."""
    _unplaced: dict[Configuration, Unplaced] = field(default_factory=dict)

    @classmethod
    def enumerate(
        cls,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        *,
        by_layer: bool,
        work: Work,
        progress: Progress | None = None,
    ) -> "LaunchableCandidates":
        """List the space, and bound each family of it.

        Parameters
        ----------
        network, workload, spec
            The job.
        by_layer
            Whether replays send the collectives inside of layers over the links.
        work
            What all of it is counted on.
        progress
            Called now and then.
        """
        if progress is not None:
            progress("search: list what can be launched", None)
        rules = rules_of(spec)
        space = LaunchableSpace(
            workload=workload, spec=spec, rules=rules, num_devices=network.num_devices
        )
        families, dropped = space.families()
        memory = most_memory(workload, spec.memory_reserve)
        bounds = ReplayBounds.of(
            network,
            workload,
            by_layer=by_layer,
            memory=memory,
            module_sets=space.module_sets,
        )
        relaxation = Relaxation.of(network, spec.sharding_group_sizes or ())
        tensor: dict[int, FloatArray] = {}
        floors = np.zeros(len(families))
        fills = not any(is_listed(name) for name in space.tried_schedules)
        least = FamilyFloors(
            bounds=bounds,
            relaxation=relaxation,
            tensor_rates=tensor,
            pairs=space.pairs_chunks,
            fills=fills,
        )
        for number, family in enumerate(families):
            if progress is not None and number % FAMILIES_PER_REPORT == 0:
                progress("search: bound the layers", number / len(families))
            tp = family.degrees.tp
            if tp not in tensor:
                work.count(LAYER_TABLE + network.num_devices * tp // PRICED_DEVICES)
                tensor[tp] = best_group_rates(network, tp)
            # As if all were opened: the limit counts what is searched.
            work.count(LAYER_TABLE)
            floors[number] = least.floor(family)
        counts = [0, *(len(family.pp) for family in families)]
        too_full = are_too_full(bounds, families, spec)
        dropped["configurations"] = sum(counts)
        dropped["out of memory"] = sum(int(some.sum()) for some in too_full)
        places = DevicePlaces(
            network=network, workload=workload, reserve=spec.memory_reserve, work=work
        )
        listing = PlanListing(space=space, places=places, hosts=bounds.hosts)
        tiers = PlacementBounds.of(network)
        return cls(
            network=network,
            workload=workload,
            spec=spec,
            families=families,
            relaxation=relaxation,
            tensor_rates=tensor,
            bounds=bounds,
            statistics=dropped,
            work=work,
            floors=floors,
            too_full=too_full,
            fills=fills,
            cuts=SpaceLayouts.of(space, families),
            starts=np.cumsum(counts),
            listing=listing,
            memory=LeastMemory(bounds=bounds, space=space),
            prices=PlacementPrices(
                network=network, listing=listing, tiers=tiers, work=work
            ),
        )

    @property
    def rules(self) -> LaunchRules:
        """What the framework can launch."""
        return self.listing.space.rules

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> Configuration:
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.families[number].configuration(index - int(self.starts[number]))

    def with_other_chunks(self, mine: Configuration) -> Iterator[Configuration]:
        """Yield the configurations that differ in chunks and in pairs of passes."""
        for family in self.families:
            alike = (family.pp == mine.pp) & (family.dp == mine.dp)
            for index in np.flatnonzero(alike).tolist():
                other = family.configuration(index)
                if other._replace(v=mine.v, pairs=mine.pairs) == mine != other:
                    yield other

    def first_bounds(self, number: int) -> FloatArray:
        """Bound the configurations of a family before placements are looked at [s].

        Infinite for those that fit nowhere.
        """
        if number not in self._first:
            family, space = self.families[number], self.listing.space
            sizes = family.configuration(int(family.pp.argmax()))
            tensor = self.tensor_rates[family.degrees.tp]
            rates = relaxed_rates(self.relaxation, tensor, sizes)
            pairs = (family.pairs > 0) | space.pairs_chunks
            first = family_bounds(
                self.bounds, family, rates, pairs, fills=self.fills, cuts=self.cuts
            )
            first[self.too_full[number]] = np.inf
            self._first[number] = first
        return self._first[number]

    def queue(self) -> ConfigurationQueue:
        """Return all configurations in the order of their first bounds."""
        return ConfigurationQueue(self.floors, self.starts, self.first_bounds)

    def relaxed_bound(self, configuration: Configuration, cutoff: float) -> float:
        """Bound a configuration's plans under rates that no placement can beat [s].

        With the kinds of devices that its placements have. Infinite if none fits in
        memory.
        """
        shapes = [
            shape
            for shape in self.listing.shapes(configuration)
            if not self.memory.is_too_full(configuration, shape)
        ]
        if not shapes:
            return np.inf
        least, (relaxed, _, exits) = np.inf, self._unplaced_of(configuration)
        options = range(len(relaxed[0].group_sizes))
        kinds_of_all = self.listing.distinct_kinds(configuration)
        for shape, kinds, rates in product(shapes, kinds_of_all, relaxed):
            choices, columns = self.listing.choices(
                configuration, options, shape.schedule
            )
            # Memory is the same under all rates.
            is_full = rates is not relaxed[0] and np.isinf(least)
            if is_full or not choices:
                continue
            for cuts, floor in self._sheaves(configuration, shape, kinds):
                if floor >= min(least, cutoff):
                    least = min(least, floor)
                    break
                self._spend(cuts, choices, kinds)
                variants = Variants(cuts, columns)
                values = self.bounds.relaxed(
                    shape, rates, exits, variants, kinds, cutoff
                )
                least = min(least, float(values.min()))
        return least

    def _sheaves(
        self, configuration: Configuration, shape: Shape, kinds: PlacedKinds
    ) -> Iterator[tuple[IntArray, float]]:
        """Yield layouts, and a bound of the replays of these and all that follow [s].

        All at once, with no bound, if all stages have devices of the same kinds.
        """
        cuts = self.listing.layouts(configuration, shape, kinds)
        if kinds.are_alike:
            yield cuts, 0.0
            return
        floors = self._floors(
            shape, kinds, cuts, self._unplaced_of(configuration).rates
        )
        order = np.argsort(floors, kind="stable")
        for start in range(0, len(order), SHEAF):
            chosen = order[start : start + SHEAF]
            yield np.ascontiguousarray(cuts[chosen]), float(floors[chosen[0]])

    def _floors(
        self,
        shape: Shape,
        kinds: PlacedKinds,
        cuts: IntArray,
        relaxed: tuple[StageRates, ...],
    ) -> FloatArray:
        """Return a bound of the replays of layouts, of what their stages work [s]."""
        every = [
            self.bounds.stage_times(shape, rates, kinds, cuts) for rates in relaxed
        ]
        return np.asarray(np.min(every, axis=0))

    def leaves(self, configuration: Configuration, cutoff: float) -> Iterator[Leaves]:
        """Yield the plans of a configuration that fit, placement by placement.

        What bounds cannot tell apart has the same ones, but replays of its own: flows
        may meet otherwise.
        """
        known: dict[tuple[str, bytes], Leaves] = {}
        least, relaxed, _ = self._unplaced_of(configuration)
        for shape, placement in product(
            self.listing.shapes(configuration), self.listing.placements(configuration)
        ):
            placed = self.prices.placed(configuration, placement)
            self.statistics["placements"] += 1
            key = shape.schedule, placed.key
            if key in known:
                self.statistics["placements priced alike"] += 1
                yield known[key]._replace(placement=placement)
                continue
            sizes = placed.rates.group_sizes.tolist()
            options = self.listing.space.sharding_options(configuration, sizes)
            choices, columns = self.listing.choices(
                configuration, options, shape.schedule
            )
            if not choices:
                continue
            cuts = self.listing.layouts(configuration, shape, placed.kinds)
            if not placed.kinds.are_alike:
                # What cannot even be an alternative is never looked at.
                floors = self._floors(shape, placed.kinds, cuts, least)
                cuts = np.ascontiguousarray(cuts[floors < cutoff])
            self._spend(cuts, choices, placed.kinds)
            variants = Variants(cuts, columns)
            bounded = self.bounds.placed(shape, relaxed, placed, variants, cutoff)
            fits = np.argwhere(np.isfinite(bounded.values))
            values = bounded.values[tuple(fits.T)]
            order = np.argsort(values, kind="stable")
            numbers = np.column_stack([fits, bounded.counts[tuple(fits.T)]])
            known[key] = Leaves(
                configuration,
                placement,
                choices,
                cuts,
                np.ascontiguousarray(values[order]),
                np.ascontiguousarray(numbers[order]),
                shape.schedule,
            )
            yield known[key]

    def bounds_alone(self, leaves: Leaves) -> FloatArray:
        """Bound the plans of a placement one at a time, in full, ``(K, Y)`` [s].

        By choice and layout. What `leaves` finds with all of them in a call, unless its
        cutoff ends that early. Infinite where a plan does not fit in memory.
        """
        configuration = leaves.configuration
        (shape,) = (
            shape
            for shape in self.listing.shapes(configuration)
            if shape.schedule == leaves.schedule
        )
        relaxed = self.least_rates(configuration)
        placed = self.prices.placed(configuration, leaves.placement)
        alone = np.zeros((len(leaves.choices), len(leaves.layouts)))
        for number, choice in enumerate(leaves.choices):
            sets = self.listing.space.module_sets
            columns = choice_columns((choice,), self.listing.hosts, sets)
            for layout in range(len(leaves.layouts)):
                cuts = np.ascontiguousarray(leaves.layouts[layout : layout + 1])
                variants = Variants(cuts, columns)
                bounded = self.bounds.placed(shape, relaxed, placed, variants, np.inf)
                alone[number, layout] = bounded.values[0, 0]
        return alone

    def thriftiest(self) -> Leaf:
        """Return the plan that needs the least memory, the first of equals."""
        every = (self.least_memory(self[index]) for index in range(len(self)))
        leaf = min(every, key=lambda least: least[0])[1]
        assert leaf is not None, "the space is not empty"
        return leaf

    def least_memory(self, configuration: Configuration) -> tuple[float, Leaf | None]:
        """Return the least memory of a configuration's plans, and the plan [byte].

        That of the fullest stage, the first of equals; infinite if it has no plan. With
        shards shared by the whole group, which is the most that share them.
        """
        least, leaf = np.inf, None
        for shape in self.listing.shapes(configuration):
            choices, columns = self.listing.choices(configuration, (0,), shape.schedule)
            if not choices:
                continue
            rates = self._unplaced_of(configuration).rates[0]
            seen: set[bytes] = set()
            for placement in self.listing.placements(configuration):
                kinds = self.listing.kinds(placement)
                if kinds.key in seen:
                    continue
                seen.add(kinds.key)
                cuts = self.listing.layouts(configuration, shape, kinds)
                variants = Variants(cuts, columns)
                memory = self.bounds.memory_of(shape, rates, variants, kinds)
                if memory.min() < least:
                    least = float(memory.min())
                    choice, layout = np.unravel_index(memory.argmin(), memory.shape)
                    leaf = Leaf(
                        configuration,
                        tuple(cuts[layout].tolist()),
                        choices[choice],
                        placement,
                        schedule=shape.schedule,
                    )
        return least, leaf

    def is_launchable(self, plan: Plan) -> bool:
        """Tell whether a plan that somebody made keeps the rules, where they hold."""
        return is_launchable(self.network, self.workload, self.spec, plan)

    def has_room(self, priced: PricedPlan) -> bool:
        """Tell whether a plan fits by the account that judges plans."""
        reserve = self.spec.memory_reserve
        return all(
            cost.peak_memory <= self.workload.memory_on(stage.devices, reserve)
            for cost, stage in zip(priced.stages, priced.plan.stages, strict=True)
        )

    def is_searched(self, plan: Plan) -> bool:
        """Tell whether a plan keeps the rules, and has sizes that are searched."""
        return self.is_of_space(plan) and self.has_listed_layout(plan)

    def is_of_space(self, plan: Plan) -> bool:
        """Tell whether a plan is one that is searched but for its layout."""
        return (
            plan.schedule_family in self.spec.schedules
            and plan.recompute_modules in {(), *self.listing.space.module_sets}
            and any(configuration_of(plan) in family for family in self.families)
            and self.is_launchable(plan)
        )

    def has_listed_layout(self, plan: Plan) -> bool:
        """Tell whether bounds cover the layout of a plan, and who gathers weights."""
        if any(stage.nearby_size > 1 for stage in plan.stages):
            return False
        chunks = sorted(chunk for stage in plan.stages for chunk in stage.chunks)
        cuts = [*(first for first, _ in chunks), chunks[-1][1] + 1]
        return self.listing.has_layout(configuration_of(plan), cuts, plan.schedule)

    def plan(self, leaf: Leaf) -> Plan:
        """Write a plan out."""
        rates = self.prices.rates(leaf.configuration, leaf.placement)
        return self.listing.plan(leaf, rates)

    def _spend(
        self, cuts: IntArray, choices: tuple[MemoryChoice, ...], kinds: PlacedKinds
    ) -> None:
        layers = len(cuts) * len(choices) * self.workload.chain[0]
        self.work.spend(len(kinds.replicas) * (BOUND + layers // BOUNDED_LAYERS))

    def _unplaced_of(self, configuration: Configuration) -> Unplaced:
        """Return what no placement can beat.

        Micro-batch, chunks and pairing have no say in it.
        """
        sizes = configuration._replace(b=1, v=1, pairs=False)
        if sizes not in self._unplaced:
            if len(self._unplaced) >= MOST_UNPLACED:
                # The oldest.
                del self._unplaced[next(iter(self._unplaced))]
            tensor = self.tensor_rates[sizes.tp]
            rates = relaxed_rates(self.relaxation, tensor, sizes)
            rates = shared_inside(rates, sizes.tp, self.relaxation)
            rows = np.min([stage_rates.rows for stage_rates in rates], axis=0)
            self._unplaced[sizes] = Unplaced(
                rates,
                rates[0]._replace(rows=rows),
                relaxed_exits(self.prices.tiers, sizes, len(rates[0].group_sizes)),
            )
        return self._unplaced[sizes]

    def least_rates(self, configuration: Configuration) -> StageRates:
        """Return rates that no placement of a configuration can beat."""
        return self._unplaced_of(configuration).least
