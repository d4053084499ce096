"""What configurations hold at least, before placements and choices are looked at.

The fullest stage holds no less than the mean one: of parameters what ZeRO leaves each
device, and what the passes in flight keep. A pass of a chunk keeps what its blocks save
under the thriftiest choice of each, and of a stage's chunks any may be in flight, so
that each pass counts as one of the largest (`planner.step.memory`). What works, waits
to be sent or lies beside blocks comes on top, and is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from estimators.layers.shares import chain_parameters, tied_parameters
from estimators.layers.work import Degrees
from planner.cost.choices import RECOMPUTE_MODES
from planner.kernels import tables
from planner.search.replayed.bounds import ReplayBounds, Shape
from planner.search.replayed.orders import is_listed, passes_in_flight
from planner.search.replayed.space import ConfigurationFamily, LaunchableSpace
from planner.search.space import Configuration, SearchSpec
from planner.step.ledger import KERNEL_TERMS
from planner.step.plan import NO_OFFLOAD
from planner.step.schedules import SCHEDULES
from topologies.arrays import BoolArray, FloatArray

_SAFE = 1.0 - 1e-9
"""What is summed up in another order is less by no more."""


def are_too_full(
    bounds: ReplayBounds, families: Sequence[ConfigurationFamily], spec: SearchSpec
) -> tuple[BoolArray, ...]:
    """Tell which configurations fit in no way: parameters alone fill the mean stage."""
    return tuple(
        np.asarray(least * _SAFE > bounds.memory)
        for least in mean_stage_parameters(bounds, families, spec)
    )


def mean_stage_parameters(
    bounds: ReplayBounds, families: Sequence[ConfigurationFamily], spec: SearchSpec
) -> tuple[FloatArray, ...]:
    """Return what a device of the mean stage holds of parameters at least [byte].

    Of each family, under any ZeRO stage, all devices sharing shards. Nothing where
    hosts may keep some.
    """
    if any(offload != NO_OFFLOAD for offload in spec.offload):
        return tuple(np.zeros(len(family.pp)) for family in families)
    graph = bounds.workload.graph
    known: dict[object, tuple[float, float]] = {}
    held = []
    for family in families:
        degrees = family.degrees
        key = degrees.tp, degrees.ep, degrees.etp, degrees.spreads_experts
        if key not in known:
            every, experts = chain_parameters(graph, degrees)
            tied = tied_parameters(graph, degrees)
            known[key] = every - experts - tied, experts
        held.append(_mean_stage_parameters(bounds, family, spec, known[key]))
    return tuple(held)


def _mean_stage_parameters(
    bounds: ReplayBounds,
    family: ConfigurationFamily,
    spec: SearchSpec,
    parameters: tuple[float, float],
) -> FloatArray:
    """Return it of a family; ``parameters`` are those of all layers, and of experts."""
    widths, (dense, expert) = bounds.workload.parameter_bytes, parameters
    members = family.expert_data_sizes
    whole = np.full(len(members), dense + expert)
    shard = dense / (family.dp * family.degrees.cp) + expert / members
    least = np.full(len(members), np.inf)
    for zero in spec.zero_stages:
        terms = KERNEL_TERMS[zero]
        held = widths.optimizer * np.where(terms.shards_optimizer, shard, whole)
        held += widths.gradients * np.where(terms.shards_gradients, shard, whole)
        held += widths.weights * np.where(terms.shards_weights, shard, whole)
        least = np.minimum(least, held)
    return np.asarray(least / family.pp)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeastMemory:
    """What the plans of each configuration hold at least."""

    bounds: ReplayBounds
    """What bounds replays, and knows what layers save."""

    space: LaunchableSpace
    """Layouts and choices."""

    _parameters: dict[Configuration, float] = field(default_factory=dict)
    """Sizes -> what parameters fill of the mean stage [byte]."""

    _rows: dict[object, tuple[int, ...]] = field(default_factory=dict)
    """What choices depend on -> their rows of what is saved; none if some keep no block
    by block."""

    _saved: dict[object, FloatArray] = field(default_factory=dict)
    """Degrees and rows -> what the blocks before each layer save at least [byte]."""

    def is_too_full(self, configuration: Configuration, shape: Shape) -> bool:
        """Tell whether no plan of a configuration fits with a schedule.

        False where the sums of this module do not say.
        """
        return self.of(configuration, shape) * _SAFE > self.bounds.memory

    def of(self, configuration: Configuration, shape: Shape) -> float:
        """Return what the fullest stage holds at least, 0 if that is not known [byte].

        Under any choice and layout of a configuration with the schedule of a shape.
        """
        fleet, schedule = self.space.workload.fleet, shape.schedule_name
        mixed = fleet is not None and not fleet.is_uniform
        offloads = any(some != NO_OFFLOAD for some in self.space.spec.offload)
        if mixed or offloads or is_listed(schedule):
            return 0.0
        rows = self._rows_of(configuration, schedule)
        if not rows:
            return 0.0
        p, v = shape.p, shape.v
        saved, cuts = self._saved_by(shape, rows), self.space.cuts(p, v)
        chunks = saved[cuts[:, 1:]] - saved[cuts[:, :-1]]
        largest = chunks[:, SCHEDULES[schedule].virtual_stages(p, v).number].max(axis=2)
        kept = passes_in_flight(schedule, p, shape.m, v) * largest
        mean = kept.sum(axis=1) / p + self._parameters_of(configuration, shape.degrees)
        return float(np.maximum(mean, kept.max(axis=1)).min())

    def _parameters_of(self, configuration: Configuration, degrees: Degrees) -> float:
        """Return what parameters fill of the mean stage [byte]."""
        key = configuration._replace(b=1, v=1, pairs=False)
        if key not in self._parameters:
            sizes = ([key.pp], [key.v], [key.dp], [0])
            alone = ConfigurationFamily(degrees, *map(np.array, sizes))
            spec = self.space.spec
            ((least,),) = mean_stage_parameters(self.bounds, [alone], spec)
            self._parameters[key] = float(least)
        return self._parameters[key]

    def _rows_of(self, configuration: Configuration, schedule: str) -> tuple[int, ...]:
        """Return the rows of what is saved under each choice; none if one is unlike.

        Which is where a stage is run again as a whole.
        """
        ep, pp, v = configuration.ep, configuration.pp, configuration.v
        key = schedule, ep > 1, pp, v == 1
        if key not in self._rows:
            space, rows = self.space, set()
            sends = SCHEDULES[schedule].pairs_passes and ep > 1
            for mode, _ in space.savings(schedule, pp, v, ep=ep):
                for modules in space.modules(mode, pairs=sends):
                    row = RECOMPUTE_MODES[mode]
                    if modules:
                        row = tables.NUM_MODES + space.module_sets.index(modules)
                    rows.add(row)
            is_known = tables.STAGE not in rows
            self._rows[key] = tuple(sorted(rows)) if is_known else ()
        return self._rows[key]

    def _saved_by(self, shape: Shape, rows: tuple[int, ...]) -> FloatArray:
        """Return what the blocks before each layer save, shape ``(L + 1,)`` [byte].

        Each by the thriftiest of some choices, of which it may be spared.
        """
        key = shape.degrees, rows
        if key not in self._saved:
            names = max(rows) >= tables.NUM_MODES
            known = self.bounds.columns(shape.degrees, shape.schedule_name, names=names)
            saved = known.layers.saved[[tables.NONE, *rows]].min(axis=0)
            sums = np.zeros(len(saved) + 1)
            np.cumsum(saved * (known.layers.is_block > 0.0), out=sums[1:])
            self._saved[key] = sums
        return self._saved[key]
