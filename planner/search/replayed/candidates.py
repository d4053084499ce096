"""The launchable plans of a job: their bounds, and the plans themselves."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from estimators.layers.work import Degrees
from planner.cost.choices import (
    MemoryChoice,
    choice_columns,
    goes_with,
)
from planner.cost.objective import PricedPlan
from planner.cost.pricing import placement_choices
from planner.cost.rates import (
    AlgorithmChoice,
    AlgorithmChooser,
    PlacementRates,
    PricedGrid,
    StageRates,
)
from planner.frameworks.rules import LaunchRules
from planner.kernels.replay_memory import Variants
from planner.kernels.tables import Choices
from planner.search.bounds import Relaxation, best_group_rates
from planner.search.device_kinds import (
    PlacedKinds,
    most_memory,
)
from planner.search.launchable import is_launchable, rules_of
from planner.search.launchable_sizes import orders_of
from planner.search.placements import (
    DevicePlaces,
    Placement,
    PlacementBounds,
    PlanOutline,
    StageOutline,
    extents_of,
    groups_of,
    placed_plan,
    whole_dimensions,
)
from planner.search.replayed.bounds import Placed, ReplayBounds, Shape
from planner.search.replayed.floors import (
    SpaceLayouts,
    are_too_full,
    family_bounds,
    relaxed_rates,
    shared_inside,
)
from planner.search.replayed.orders import (
    alone_rates,
    is_listed,
    placed_exits,
    relaxed_exits,
)
from planner.search.replayed.space import ConfigurationFamily, LaunchableSpace, layouts
from planner.search.space import (
    Configuration,
    SearchSpec,
    configuration_of,
    sequence_parallel,
)
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.step.schedules import SCHEDULES, schedule_name
from planner.work import LAYER_TABLE, PRICED, PRICED_DEVICES, Progress, Work
from topologies import Network
from topologies.arrays import FloatArray, IntArray

MOST_PRICED_NUMBERS = 2**25
"""Numbers that are kept of placements at a time: 256 MB."""

BOUND = 450
"""Units of work of the bound of a plan, before its layers are counted."""

BOUNDED_LAYERS = 40
"""Layers for which a bound takes one unit of work more, each counted once a choice and
layout."""

SHEAF = 32
"""Layouts that are bounded together where devices differ."""

PACE_DIGITS = 3
"""Digits of the ratio of two devices' speeds."""

MOST_GRIDS = 64
"""Placements whose prices under every algorithm are kept at a time."""

FAMILIES_PER_REPORT = 16
"""Families of configurations between two reports of progress."""


class Leaf(NamedTuple):
    """A plan, but for its devices' prices."""

    configuration: Configuration
    """Sizes of the plan."""
    layout: tuple[int, ...]
    """First layer of each virtual stage, and the number of layers."""
    choice: MemoryChoice
    """Memory choice of all stages."""
    placement: Placement
    """Where the ranks are."""
    num_layers: int | None = None
    """Blocks of each chunk that are recomputed; None for all of them."""
    schedule: str = ""
    """Name of the schedule; empty for 1F1B, interleaved with several chunks."""


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
    space: LaunchableSpace
    """Configurations, layouts and choices that can be launched."""
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
    first_bounds: FloatArray
    """Lower bound of every configuration's replay, families one after another [s]."""
    starts: IntArray
    """Number of the first configuration of each family, and the number of all."""
    tiers: PlacementBounds
    """Blocks of the network."""
    places: DevicePlaces
    """What devices there are on placements."""
    _placed: dict[object, Placed] = field(default_factory=dict)
    _grids: dict[object, PricedGrid] = field(default_factory=dict)
    _choosers: dict[object, AlgorithmChooser] = field(default_factory=dict)
    _choices: dict[object, tuple[tuple[MemoryChoice, ...], Choices]] = field(
        default_factory=dict
    )
    """What choices depend on -> these, and as kernels read them."""
    _held: list[int] = field(default_factory=lambda: [0])
    """Count of numbers that are kept, in a list because the rest is frozen."""

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
        """List the space and bound every configuration of it.

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
        bounds = ReplayBounds.of(network, workload, by_layer=by_layer, memory=memory)
        relaxation = Relaxation.of(network)
        tensor: dict[int, FloatArray] = {}
        first: list[FloatArray] = [np.zeros(0)]
        cuts = SpaceLayouts.of(space, families)
        fills = not any(is_listed(name) for name in space.tried_schedules)
        for number, family in enumerate(families):
            if progress is not None and number % FAMILIES_PER_REPORT == 0:
                progress("search: bound the layers", number / len(families))
            tp = family.degrees.tp
            if tp not in tensor:
                work.count(LAYER_TABLE + network.num_devices * tp // PRICED_DEVICES)
                tensor[tp] = best_group_rates(network, tp)
            work.count(LAYER_TABLE)
            sizes = family.configuration(int(family.pp.argmax()))
            rates = relaxed_rates(relaxation, tensor[tp], sizes)
            pairs = (family.pairs > 0) | space.pairs_chunks
            floors = family_bounds(bounds, family, rates, pairs, fills=fills, cuts=cuts)
            floors[are_too_full(bounds, family, spec)] = np.inf
            first.append(floors)
        counts = [0, *(len(family.pp) for family in families)]
        values = np.concatenate(first)
        dropped["configurations"] = sum(counts)
        dropped["out of memory"] = int(np.count_nonzero(np.isinf(values)))
        return cls(
            network=network,
            workload=workload,
            spec=spec,
            space=space,
            families=families,
            relaxation=relaxation,
            tensor_rates=tensor,
            bounds=bounds,
            statistics=dropped,
            work=work,
            first_bounds=values,
            starts=np.cumsum(counts),
            tiers=PlacementBounds.of(network),
            places=DevicePlaces(
                network=network,
                workload=workload,
                reserve=spec.memory_reserve,
                work=work,
            ),
        )

    @property
    def rules(self) -> LaunchRules:
        """What the framework can launch."""
        return self.space.rules

    def __len__(self) -> int:
        return len(self.first_bounds)

    def __getitem__(self, index: int) -> Configuration:
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.families[number].configuration(index - int(self.starts[number]))

    def relaxed_bound(self, configuration: Configuration, cutoff: float) -> float:
        """Bound a configuration's plans under rates that no placement can beat [s].

        With the kinds of devices that its placements have. Infinite if none fits in
        memory.
        """
        least, relaxed = np.inf, self._relaxed(configuration)
        options = range(len(relaxed[0].group_sizes))
        exits = relaxed_exits(self.tiers, configuration, len(options))
        for (shape, kinds), rates in product(
            product(self._shapes(configuration), self._distinct_kinds(configuration)),
            relaxed,
        ):
            choices, columns = self.choices(configuration, options, shape.schedule)
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
        cuts = self.layouts(configuration, shape, kinds)
        if kinds.are_alike:
            yield cuts, 0.0
            return
        floors = self._floors(shape, kinds, cuts, self._relaxed(configuration))
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
        least = self._relaxed(configuration)
        relaxed = self._least(least)
        for shape, placement in product(
            self._shapes(configuration), self.placements(configuration)
        ):
            placed = self.placed(configuration, placement)
            self.statistics["placements"] += 1
            key = shape.schedule, placed.key
            if key in known:
                self.statistics["placements priced alike"] += 1
                yield known[key]._replace(placement=placement)
                continue
            sizes = placed.rates.group_sizes.tolist()
            options = self.space.sharding_options(configuration, sizes)
            choices, columns = self.choices(configuration, options, shape.schedule)
            if not choices:
                continue
            cuts = self.layouts(configuration, shape, placed.kinds)
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

    def thriftiest(self) -> Leaf:
        """Return the plan that needs the least memory, the first of equals.

        With shards shared by the whole group, which is the most that share them.
        """
        least, leaf = np.inf, None
        for index in range(len(self)):
            configuration = self[index]
            for shape in self._shapes(configuration):
                choices, columns = self.choices(configuration, (0,), shape.schedule)
                if not choices:
                    continue
                rates = self._relaxed(configuration)[0]
                seen: set[bytes] = set()
                for placement in self.placements(configuration):
                    kinds = self.kinds(placement)
                    if kinds.key in seen:
                        continue
                    seen.add(kinds.key)
                    cuts = self.layouts(configuration, shape, kinds)
                    variants = Variants(cuts, columns)
                    memory = self.bounds.memory_of(shape, rates, variants, kinds)
                    if memory.min() < least:
                        least = float(memory.min())
                        choice, layout = np.unravel_index(memory.argmin(), memory.shape)
                        cut = tuple(cuts[layout].tolist())
                        leaf = Leaf(
                            configuration,
                            cut,
                            choices[choice],
                            placement,
                            schedule=shape.schedule,
                        )
        assert leaf is not None, "the space is not empty"
        return leaf

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
        wanted = configuration_of(plan)
        chunks = [chunk for stage in plan.stages for chunk in stage.chunks]
        cuts = sorted(first for first, _ in chunks)
        cuts.append(1 + max(last for _, last in chunks))
        return (
            plan.schedule in self.spec.schedules
            and any(wanted in family for family in self.families)
            and self.is_launchable(plan)
            and any(
                cuts in self.layouts(wanted, shape, kinds).tolist()
                for shape in self._shapes(wanted)
                for kinds in self._distinct_kinds(wanted)
            )
        )

    def plan(self, leaf: Leaf) -> Plan:
        """Write a plan out."""
        configuration, layout, choice, placement, num_layers, schedule = leaf
        rates = self.rates(configuration, placement)
        p, v = configuration.pp, configuration.v
        schedule = schedule or schedule_name(v, pairs=configuration.pairs)
        number = SCHEDULES[schedule].virtual_stages(p, v).number.tolist()
        shape = self._shape(configuration)
        stages = tuple(
            StageOutline(
                tuple((layout[k], layout[k + 1] - 1) for k in held), choice, num_layers
            )
            for held in number
        )
        outline = PlanOutline(
            stages, schedule, shape.m, shape.degrees.sequence_parallel
        )
        return placed_plan(configuration, outline, placement, rates)

    def choices(
        self, configuration: Configuration, options: Sequence[int], schedule: str = ""
    ) -> tuple[tuple[MemoryChoice, ...], Choices]:
        """Return what all stages of a configuration may do about their memory.

        And the same as kernels read it. Nothing if nothing of it goes with a schedule;
        as of `Leaf`. Options are numbers of sharding groups, the whole group first.
        """
        alone = configuration.dp * configuration.cp == 1
        # Neither micro-batch nor replicas have a say but for that.
        sizes = configuration._replace(b=1, dp=1)
        key = sizes, alone, tuple(options), schedule
        if key not in self._choices:
            listed = self._listed_choices(configuration, options, schedule)
            self._choices[key] = listed, choice_columns(listed, self.bounds.hosts)
        return self._choices[key]

    def _listed_choices(
        self, configuration: Configuration, options: Sequence[int], schedule: str
    ) -> tuple[MemoryChoice, ...]:
        v, pairs = configuration.v, configuration.pairs
        schedule = schedule or schedule_name(v, pairs=pairs)
        splits = SCHEDULES[schedule].splits_backward
        zeros = self.space.zero_stages(configuration.pp, configuration)
        most = 1 if configuration.dp * configuration.cp == 1 else len(zeros)
        hybrid = self.space.hybrid_sharding
        return tuple(
            MemoryChoice(mode, zero, option, offload, counting)
            for offload in self.space.offloads(configuration.pp)
            for mode, counting in self.space.savings(
                schedule, configuration.pp, v, ep=configuration.ep
            )
            if goes_with(mode, offload) and not (splits and offload.in_passes)
            for zero in [
                zero for zero in zeros if self.rules.keeps_beside(offload, mode, zero)
            ][:most]
            for option in (options if zero in hybrid else options[:1])
        )

    def placements(self, configuration: Configuration) -> tuple[Placement, ...]:
        """Return the placements that ranks numbered by the framework lead to.

        Over devices in each order that has other kinds work together.
        """
        extents = extents_of(configuration)
        by_steps: dict[object, Placement] = {}
        for order in orders_of(self.rules, configuration):
            placement = whole_dimensions(order, extents)
            by_steps.setdefault(placement.steps, placement)
        return self.places.over_orders(tuple(by_steps.values()))

    def kinds(self, placement: Placement) -> PlacedKinds:
        """Return the kinds of devices that work on a placement."""
        return self.places.kinds(placement)

    def _distinct_kinds(self, configuration: Configuration) -> list[PlacedKinds]:
        """Return the kinds that work on each of a configuration's placements, once."""
        by_key: dict[bytes, PlacedKinds] = {}
        for placement in self.placements(configuration):
            kinds = self.kinds(placement)
            by_key.setdefault(kinds.key, kinds)
        return list(by_key.values())

    def placed(self, configuration: Configuration, placement: Placement) -> Placed:
        """Return what bounds read of a placement, made once."""
        place = _place(configuration, placement)
        if place not in self._choosers:
            self.rates(configuration, placement)
            self._choosers[place] = self._grids[place].chooser()
        names = self._choosers[place].names(*self._algorithms(configuration))
        key = place, names
        if key not in self._placed:
            rates = self.rates(configuration, placement)
            groups = groups_of(configuration, placement)
            kinds = self.kinds(placement)
            alone = alone_rates(self.network, groups, rates, kinds.which)
            sizes = tuple(option.group_size for option in rates.shardings)
            exits = placed_exits(self.tiers, groups, sizes)
            read = rates.stage_rates._replace(boundary=np.zeros((0, 0, 2)))
            arrays = (*read, alone.ends, *alone.boundaries, *exits[:4])
            content = b"".join(array.tobytes() for array in arrays)
            placed = Placed(read, alone, exits, kinds, content + kinds.key)
            self._held[0] += 2 * placed.size
            if self._held[0] > MOST_PRICED_NUMBERS:
                self._placed.clear()
                self._held[0] = 2 * placed.size
            self._placed[key] = placed
        return self._placed[key]

    def rates(
        self, configuration: Configuration, placement: Placement
    ) -> PlacementRates:
        """Price a placement, all groups at the same time."""
        key = _place(configuration, placement)
        if key not in self._grids:
            if len(self._grids) >= MOST_GRIDS:
                self._grids.clear()
            members = configuration.devices * (2 + configuration.ep)
            self.work.spend(2 * PRICED + members // PRICED_DEVICES)
            groups = groups_of(configuration, placement)
            self._grids[key] = PricedGrid(self.network, groups)
        return self._grids[key].rates(*self._algorithms(configuration))

    def _algorithms(
        self, configuration: Configuration
    ) -> tuple[AlgorithmChoice, AlgorithmChoice]:
        """Return how tensor and data collectives choose their algorithm."""
        table = self.workload.table(self._shape(configuration).degrees)
        return placement_choices(table, self.workload, configuration.pp)

    def _spend(
        self, cuts: IntArray, choices: tuple[MemoryChoice, ...], kinds: PlacedKinds
    ) -> None:
        layers = len(cuts) * len(choices) * self.workload.chain[0]
        self.work.spend(len(kinds.replicas) * (BOUND + layers // BOUNDED_LAYERS))

    def _shape(self, configuration: Configuration) -> Shape:
        tp, cp, ep, b, v, pp, dp, grouping, pairs = configuration
        degrees = Degrees(tp, cp, ep, b, sequence_parallel(self.spec, tp), grouping)
        m = self.workload.num_microbatches(b, dp)
        return Shape(degrees, dp, pp, v, m, pairs)

    def _shapes(self, configuration: Configuration) -> list[Shape]:
        """Return the shape with each schedule."""
        shape = self._shape(configuration)
        if configuration.pairs:
            return [shape._replace(schedule=shape.schedule_name)]
        names = self.space.schedules(shape.p, shape.v, shape.m)
        experts = configuration.ep > 1
        return [
            shape._replace(
                schedule=name, pairs=experts and SCHEDULES[name].pairs_passes
            )
            for name in names
        ]

    def layouts(
        self, configuration: Configuration, shape: Shape, kinds: PlacedKinds
    ) -> IntArray:
        """Return the first layer of each virtual stage, for each way to cut the chain.

        Shape ``(Y, C + 1)``; those whose slower stages hold fewer blocks last.
        """
        p, v = configuration.pp, configuration.v
        if kinds.are_alike:
            return self.space.cuts(p, v)
        more = self.space.unequal_layouts(
            self._paces(shape, kinds), shape.schedule_name, v
        )
        counts = dict.fromkeys((*self.space.layouts(p, v), *more))
        return layouts(tuple(counts), *self.space.ends)

    def _paces(self, shape: Shape, kinds: PlacedKinds) -> tuple[float, ...]:
        """Return the compute of a block on each stage over that on the fastest.

        To `PACE_DIGITS` digits: what differs by less is no class of its own.
        """
        is_block = self.workload.table(shape.degrees).is_block > 0
        paces = np.zeros(len(kinds.stages))
        for number, groups in enumerate(kinds.stages):
            for group in groups:
                table = self.workload.table(shape.degrees, group)
                both = table.forward_time + table.backward_time
                paces[number] = max(paces[number], float(both[is_block].sum()))
        return tuple(np.round(paces / paces.min(), PACE_DIGITS).tolist())

    def _relaxed(self, configuration: Configuration) -> tuple[StageRates, ...]:
        tensor = self.tensor_rates[configuration.tp]
        rates = relaxed_rates(self.relaxation, tensor, configuration)
        return shared_inside(rates, configuration.tp, self.network.block_sizes)

    def _least(self, rates: tuple[StageRates, ...]) -> StageRates:
        """Return rates that are at most any of some."""
        rows = np.min([stage_rates.rows for stage_rates in rates], axis=0)
        return rates[0]._replace(rows=rows)


def _place(configuration: Configuration, placement: Placement) -> object:
    """Return what tells placements apart whose groups differ."""
    return placement.place, configuration.ep, configuration.grouping
