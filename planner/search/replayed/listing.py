"""The plans that a configuration has: schedules, layouts, choices and placements.

Nothing is priced here. `planner.search.replayed.candidates` bounds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from estimators.layers.work import Degrees
from planner.cost.choices import HostCosts, MemoryChoice, choice_columns, goes_with
from planner.cost.rates import PlacementRates
from planner.kernels.tables import Choices
from planner.search.device_kinds import PlacedKinds
from planner.search.launchable_sizes import orders_of
from planner.search.placements import (
    DevicePlaces,
    Placement,
    PlanOutline,
    StageOutline,
    extents_of,
    placed_plan,
    whole_dimensions,
)
from planner.search.replayed.bounds import Shape
from planner.search.replayed.layouts import layouts
from planner.search.replayed.space import LaunchableSpace
from planner.search.space import Configuration, sequence_parallel
from planner.step.plan import Plan
from planner.step.schedules import SCHEDULES, schedule_name
from topologies.arrays import IntArray

PACE_DIGITS = 3
"""Digits of the ratio of two devices' speeds."""


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanListing:
    """What plans each configuration of a space has."""

    space: LaunchableSpace
    """Configurations, layouts and choices that can be launched."""
    places: DevicePlaces
    """What devices there are on placements."""
    hosts: HostCosts
    """What hosts cost the job."""
    _choices: dict[object, tuple[tuple[MemoryChoice, ...], Choices]] = field(
        default_factory=dict
    )
    """What choices depend on -> these, and as kernels read them."""
    _columns: dict[tuple[MemoryChoice, ...], Choices] = field(default_factory=dict)
    _kinds: dict[Configuration, list[PlacedKinds]] = field(default_factory=dict)
    """Sizes -> kinds on their placements, where all devices are alike."""

    def shape(self, configuration: Configuration) -> Shape:
        """Return what bounds read of a configuration, but for its schedule."""
        tp, cp, ep, b, v, pp, dp, grouping, pairs = configuration
        sequence = sequence_parallel(self.space.spec, tp)
        degrees = Degrees(tp, cp, ep, b, sequence, grouping)
        m = self.space.workload.num_microbatches(b, dp)
        return Shape(degrees, dp, pp, v, m, pairs)

    def shapes(self, configuration: Configuration) -> list[Shape]:
        """Return the shape with each schedule."""
        shape = self.shape(configuration)
        p, v, m, pairs = shape.p, shape.v, shape.m, shape.pairs
        names = self.space.schedules(p, v, m, pairs=pairs)
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
        workload = self.space.workload
        is_block = workload.table(shape.degrees).is_block > 0
        paces = np.zeros(len(kinds.stages))
        for number, groups in enumerate(kinds.stages):
            for group in groups:
                table = workload.table(shape.degrees, group)
                both = table.forward_time + table.backward_time
                paces[number] = max(paces[number], float(both[is_block].sum()))
        return tuple(np.round(paces / paces.min(), PACE_DIGITS).tolist())

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
            if listed not in self._columns:
                columns = choice_columns(listed, self.hosts, self.space.module_sets)
                self._columns[listed] = columns
            self._choices[key] = listed, self._columns[listed]
        return self._choices[key]

    def _listed_choices(
        self, configuration: Configuration, options: Sequence[int], schedule: str
    ) -> tuple[MemoryChoice, ...]:
        v, pairs = configuration.v, configuration.pairs
        schedule = schedule or schedule_name(v, pairs=pairs)
        splits = SCHEDULES[schedule].splits_backward
        sends = SCHEDULES[schedule].pairs_passes and configuration.ep > 1
        space, pp = self.space, configuration.pp
        modes = space.savings(schedule, pp, v, ep=configuration.ep)
        zeros = space.zero_stages(pp, configuration)
        most = 1 if configuration.dp * configuration.cp == 1 else len(zeros)
        hybrid = space.hybrid_sharding
        return tuple(
            MemoryChoice(mode, zero, option, offload, counting, modules)
            for offload in space.offloads(pp)
            for mode, counting in sorted(modes, key=lambda pair: pair[0] != "none")
            if goes_with(mode, offload) and not (splits and offload.in_passes)
            for modules in ([()] if counting else space.modules(mode, pairs=sends))
            for zero in [
                zero for zero in zeros if space.rules.keeps_beside(offload, mode, zero)
            ][:most]
            for option in (options if zero in hybrid else options[:1])
        )

    def placements(self, configuration: Configuration) -> tuple[Placement, ...]:
        """Return the placements that ranks numbered by the framework lead to.

        Over devices in each order that has other kinds work together.
        """
        extents = extents_of(configuration)
        by_steps: dict[object, Placement] = {}
        for order in orders_of(self.space.rules, configuration):
            placement = whole_dimensions(order, extents)
            by_steps.setdefault(placement.steps, placement)
        return self.places.over_orders(tuple(by_steps.values()))

    def kinds(self, placement: Placement) -> PlacedKinds:
        """Return the kinds of devices that work on a placement."""
        return self.places.kinds(placement)

    def distinct_kinds(self, configuration: Configuration) -> list[PlacedKinds]:
        """Return the kinds that work on each of a configuration's placements, once."""
        key = configuration._replace(b=1, v=1, pairs=False)
        if key in self._kinds:
            return self._kinds[key]
        by_key: dict[bytes, PlacedKinds] = {}
        for placement in self.placements(configuration):
            kinds = self.kinds(placement)
            by_key.setdefault(kinds.key, kinds)
        distinct = list(by_key.values())
        if self.space.workload.fleet is None:
            self._kinds[key] = distinct
        return distinct

    def has_layout(
        self, configuration: Configuration, cuts: Sequence[int], schedule: str
    ) -> bool:
        """Tell whether a layout, as of `Leaf`, is listed on some placement."""
        return any(
            list(cuts) in self.layouts(configuration, shape, kinds).tolist()
            for shape in self.shapes(configuration)
            if shape.schedule == schedule
            for kinds in self.distinct_kinds(configuration)
        )

    def plan(self, leaf: Leaf, rates: PlacementRates) -> Plan:
        """Write a plan out; ``rates`` are those of its placement."""
        configuration, layout, choice, placement, num_layers, schedule = leaf
        p, v = configuration.pp, configuration.v
        schedule = schedule or schedule_name(v, pairs=configuration.pairs)
        number = SCHEDULES[schedule].virtual_stages(p, v).number.tolist()
        shape = self.shape(configuration)
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
