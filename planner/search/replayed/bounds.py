"""Lower bounds of the replayed time, under rates that nothing else slows down.

`planner.kernels.replay_bound` has the bounds and why they hold. Here are the times that
it reads: passes no longer than in any replay, with everything hidden that the framework
hides behind compute.

A collective that goes on beside the compute it belongs to leaves a pass at least as
long as either. What is sent inside of layers is priced as the passes of a replay by
stages are; in a replay by layers each collective may be alone on its links, and counts
as if no placement could beat it.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from estimators.dispatch import ALONE, Sharing
from estimators.layers.work import Degrees, LayerTable
from estimators.training import Sizes, expert_data_size
from planner.cost.choices import RECOMPUTE_MODES, HostCosts
from planner.cost.rates import StageRates, widest_overlap
from planner.cost.stage import passes_overlap
from planner.kernels import replay_bound as kernel
from planner.kernels import replay_memory as terms
from planner.kernels import tables
from planner.search.bounds import job_constants
from planner.search.device_kinds import Kinds, PlacedKinds
from planner.search.replayed.layer_passes import (
    PassKind,
    passes_in_layers,
    prefix_sums,
)
from planner.search.replayed.orders import (
    AloneRates,
    Exits,
    is_listed,
    no_exits,
    pass_counts,
    pass_order,
)
from planner.step.execution import Workload
from planner.step.instructions import ScheduleSizes
from planner.step.ledger import KERNEL_LEDGER, SENDS_IN_PASSES
from planner.step.recompute import paired_bytes
from planner.step.schedules import SCHEDULES, schedule_name
from topologies import Network
from topologies.arrays import FloatArray, IntArray

MOST_PASSES = 2048
"""Most times of passes that are kept at a time."""


_NOTHING_SHARED = np.zeros((0, 0, 0, 0)), np.zeros((0, 0, 0, 0))
"""What ZeRO sends in passes where it sends nothing."""


class Shape(NamedTuple):
    """What a bound depends on beside rates and choices."""

    degrees: Degrees
    """Sizes that layer tables depend on."""
    dp: int
    """Replicas, those that share experts included."""
    p: int
    """Pipeline stages."""
    v: int
    """Chunks of each stage."""
    m: int
    """Microbatches of each replica."""
    pairs: bool = False
    """Whether all-to-alls between experts go on beside another microbatch."""
    schedule: str = ""
    """Name of the schedule; empty for 1F1B, interleaved with several chunks, combined
    with `pairs`."""

    @property
    def schedule_name(self) -> str:
        """Name of the schedule, never empty."""
        return self.schedule or schedule_name(self.v, pairs=self.pairs)


class _Columns(NamedTuple):
    """What the kernel reads of a layer table."""

    layers: terms.LayerColumns
    """Columns of the layer table as the kernel reads them."""
    boundary_bytes: float
    """Traffic of each rank of a replica over every boundary [byte]."""


class Placed(NamedTuple):
    """What bounds read of a placement."""

    rates: StageRates
    """Rates of all groups at the same time; boundaries are left out."""
    alone: AloneRates
    """Rates of what a stage sends while others do not."""
    exits: Exits
    """Shares of traffic that leave blocks of the network."""
    kinds: PlacedKinds
    """Kinds of the devices."""
    key: bytes
    """Bytes that are equal for placements that no bound can tell apart."""

    @property
    def size(self) -> int:
        """How many numbers it keeps."""
        return len(self.key) // 8


class _Rows(NamedTuple):
    """Rates and devices of the stages of a replica, each pair of them once."""

    rates: StageRates
    """Rates by row."""
    kinds: tuple[Kinds | None, ...]
    """Kinds of each row, None for what no device beats; one for all rows if all are
    alike."""


class _Sent(NamedTuple):
    """What a bound takes everything to cost that is sent."""

    rates: StageRates
    """Rates of what passes wait for."""
    wires: tuple[FloatArray, ...]
    """Transfers between stages, as the kernel reads them, for each of the replicas that
    differ in their devices."""
    ends: FloatArray
    """Rates of the step's end, as the kernel reads them."""
    exits: tuple[Exits, ...]
    """Shares of traffic that leave blocks of the network; all of them hold."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayBounds:
    """Bounds the replayed time of plans of one job."""

    workload: Workload
    """Model, job and device."""

    by_layer: bool
    """Whether replays send the collectives inside of layers over the links."""

    memory: float
    """Memory of a device that plans may use, the most of any [byte]."""

    hosts: HostCosts
    """What hosts cost the job."""

    widest_overlap: int
    """Most tensor-parallel ranks whose collectives products can hide."""

    module_sets: tuple[tuple[str, ...], ...] = ()
    """What selective recompute may run again of the choices' modules: rows of the
    kernels behind the recompute modes, read where a choice has them."""

    _columns: dict[tuple[Degrees, bool, bool], _Columns] = field(default_factory=dict)
    _passes: dict[object, tuple[FloatArray, FloatArray]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        network: Network,
        workload: Workload,
        *,
        by_layer: bool,
        memory: float,
        module_sets: tuple[tuple[str, ...], ...] = (),
    ) -> "ReplayBounds":
        """Return the bounds of a job on a cluster."""
        return cls(
            workload=workload,
            by_layer=by_layer,
            memory=memory,
            hosts=HostCosts.of(network, workload),
            widest_overlap=widest_overlap(network),
            module_sets=module_sets,
        )

    def relaxed(
        self,
        shape: Shape,
        rates: StageRates,
        exits: tuple[Exits, ...],
        variants: terms.Variants,
        kinds: PlacedKinds,
        cutoff: float,
    ) -> FloatArray:
        """Bound plans under rates that no placement can beat, shape ``(K, Y)`` [s].

        On devices of the kinds of a placement. Infinite where a plan does not fit.
        """
        wires = np.zeros((1, shape.p, 2))
        if shape.p > 1:
            num_bytes = self.columns(shape.degrees, shape.schedule_name).boundary_bytes
            wires[:] = rates.boundary[0, 0, 0] + rates.boundary[0, 0, 1] * num_bytes
        ends = np.repeat(rates.rows, shape.p, axis=0)
        every = exits or (no_exits(len(rates.group_sizes), shape.p),)
        sent = _Sent(rates, (wires,) * len(kinds.replicas), ends, every)
        return self._read(shape, sent, variants, kinds, cutoff).values

    def placed(
        self,
        shape: Shape,
        relaxed: StageRates,
        placed: Placed,
        variants: terms.Variants,
        cutoff: float,
    ) -> kernel.PlanBounds:
        """Bound plans on one placement, as `relaxed` does."""
        sent = self._sent(shape, relaxed, placed)
        return self._read(shape, sent, variants, placed.kinds, cutoff)

    def families(
        self, shape: Shape, relaxed: StageRates, placed: Placed, choices: tables.Choices
    ) -> list[terms.PlanFamily]:
        """Return what does not change from plan to plan on a placement.

        For each of the replicas that differ in their devices.
        """
        sent = self._sent(shape, relaxed, placed)
        kinds = placed.kinds
        return [
            self._family(shape, sent, (stages, wires, kinds.scarcity), choices)
            for stages, wires in zip(kinds.replicas, sent.wires, strict=True)
        ]

    def _sent(self, shape: Shape, relaxed: StageRates, placed: Placed) -> _Sent:
        """Return what everything costs that is sent on a placement."""
        num_bytes = self.columns(shape.degrees, shape.schedule_name).boundary_bytes
        alone, inside = placed.alone, placed.rates
        wires = tuple(
            boundary[..., 0] + boundary[..., 1] * num_bytes
            for boundary in alone.boundaries
        )
        if self.by_layer:
            inside = inside._replace(rows=_unhindered(inside.rows, relaxed.rows))
        return _Sent(inside, wires, alone.ends, (placed.exits,))

    def memory_of(
        self,
        shape: Shape,
        rates: StageRates,
        variants: terms.Variants,
        kinds: PlacedKinds,
    ) -> FloatArray:
        """Return the memory of the fullest stage of plans, ``(K, Y)`` [byte].

        What is on devices with less memory than the most counts by as much more.
        """
        wires = np.zeros((1, shape.p, 2))
        ends = np.repeat(rates.rows, shape.p, axis=0)
        exits = no_exits(len(rates.group_sizes), shape.p)
        sent = _Sent(rates, (wires,), ends, (exits,))
        first = kinds._replace(replicas=kinds.replicas[:1])
        unbounded = replace(self, memory=np.inf)
        return unbounded._read(shape, sent, variants, first, np.inf).memory  # noqa: SLF001

    def _read(
        self,
        shape: Shape,
        sent: _Sent,
        variants: terms.Variants,
        kinds: PlacedKinds,
        cutoff: float,
    ) -> kernel.PlanBounds:
        """Return bounds, memory and repeated blocks.

        Each of the replicas that differ in their devices is a lower bound: memory, and
        with it what is repeated, is the same in all.
        """
        found: kernel.PlanBounds | None = None
        for stages, wires in zip(kinds.replicas, sent.wires, strict=True):
            family = self._family(
                shape, sent, (stages, wires, kinds.scarcity), variants.choices
            )
            for exits in sent.exits:
                leaving = family.sent._replace(exits=terms.BlockExits(*exits))
                bounded: kernel.PlanBounds = kernel.replay_bounds(
                    family._replace(sent=leaving), variants, cutoff
                )
                if found is None:
                    found = bounded
                else:
                    np.maximum(found.values, bounded.values, out=found.values)
        assert found is not None, "there is a replica"
        return found

    def _family(
        self,
        shape: Shape,
        sent: _Sent,
        replica: tuple[tuple[Kinds, ...], FloatArray, FloatArray],
        choices: tables.Choices,
    ) -> terms.PlanFamily:
        """Return all that does not change from plan to plan, of some replicas.

        A replica is the kinds of its stages, their transfers and their scarcity.
        """
        stages, wires, scarcity = replica
        table = self.workload.table(shape.degrees)
        schedule = shape.schedule_name
        rates = sent.rates
        rows = _rows_by_kind(rates, stages)
        own = [self._table(shape.degrees, kinds) for kinds in rows.kinds]
        if len(own) == 1:
            own *= len(rows.rates.rows)
        shared = _NOTHING_SHARED
        if SENDS_IN_PASSES[choices.zero_stage].any():
            # Else the kernel does not look.
            shared = self._shared(table, rows.rates, shape)
        names = bool((choices.recompute >= tables.NUM_MODES).any())
        known = self.columns(shape.degrees, schedule, names=names)
        tied = float(rates.tied[0] + rates.tied[1] * self._tied_bytes(table))
        degrees = shape.degrees
        sizes = Sizes(degrees.tp, degrees.cp, degrees.ep, shape.dp, shape.p)
        constants = job_constants(self.workload)._replace(
            memory=float(self.memory),
            expert_group=float(expert_data_size(sizes, degrees.grouping)),
            host_memory=self.hosts.memory,
        )
        execution = self.workload.execution
        job = terms.JobTerms(
            constants=constants,
            ledger=KERNEL_LEDGER,
            step_once=float(self.workload.iteration_time),
            shard_time=float(self.workload.shard_time),
            tied_time=tied if table.tied_parameters > 0 else 0.0,
            tied_parameters=float(table.tied_parameters),
            boundary_bytes=known.boundary_bytes,
            messages_time=self.workload.messages_time(shape.p),
            reduces_behind=execution.overlap_grad_reduce,
            gathers_ahead=execution.overlap_param_gather,
            by_layer=self.by_layer
            or passes_overlap(self.workload, schedule, degrees.ep),
        )
        times = self._times(rows, shape, names=names)
        alone, pairs = times, shape.pairs and not is_listed(schedule)
        if pairs:
            alone = self._times(rows, shape._replace(pairs=False), names=names)
        named = SCHEDULES[schedule]
        counts = pass_counts(schedule, shape.p, shape.m, shape.v)
        return terms.PlanFamily(
            pipeline=terms.Pipeline(
                shape.p,
                shape.v,
                shape.m,
                *counts,
                named.last_in_flight(ScheduleSizes(shape.p, shape.m, shape.v)),
                shape.m
                if named.forward_first
                else named.round_length(shape.p, shape.m),
            ),
            passes=terms.PassDurations(
                *(*times, *shared, rows.rates.signature, *alone)
            ),
            layers=known.layers,
            sent=terms.SentTerms(
                np.ascontiguousarray(wires),
                np.ascontiguousarray(sent.ends),
                rates.group_sizes,
                rates.senders,
                terms.BlockExits(*sent.exits[0]),
            ),
            job=job,
            order=pass_order(schedule, shape, own, wires, pairs=pairs),
            devices=self._devices(stages, scarcity),
        )

    def _devices(
        self, stages: tuple[Kinds, ...], scarcity: FloatArray
    ) -> terms.StageDevices:
        """Return what the devices of each stage are."""
        times = {kinds: self.workload.step_time(kinds) for kinds in set(stages)}
        steps = [times[kinds] for kinds in stages]
        saving = np.zeros(len(stages))
        if self.hosts.cpu_adam:
            saving = self.hosts.step_time - np.array(steps)
        return terms.StageDevices(
            step_time=np.array(steps), host_saving=saving, scarcity=scarcity
        )

    def _table(self, degrees: Degrees, kinds: Kinds | None) -> LayerTable:
        """Return the table of devices of some kinds, None for the best of all."""
        if kinds is None:
            return self.workload.fastest_table(degrees)
        return self.workload.table(degrees, kinds)

    def _tied_bytes(self, table: LayerTable) -> float:
        return table.tied_parameters * self.workload.parameter_bytes.reduce

    def pass_times(
        self,
        degrees: Degrees,
        rates: StageRates,
        *,
        pairs: bool = False,
        kinds: Kinds | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the least forward and backward time of each layer, ``(L,)`` [s].

        On devices of some kinds, or on any device if there are none, whether or not
        weight gradients are passes of their own: those are slowed down by nothing.
        """
        shape, rows = Shape(degrees, 1, 1, 1, 1, pairs), _Rows(rates, (kinds,))
        forward, backward = self._times(rows, shape, contention=ALONE)
        return np.diff(forward[0]), np.diff(backward[0].min(axis=0))

    def least_wire(self, degrees: Degrees, rates: tuple[StageRates, ...]) -> float:
        """Return the least that transfers over a boundary take, forth and back [s].

        Of configurations of several stages; 0 under rates of a single one.
        """
        num_bytes = self.columns(degrees).boundary_bytes
        return 2.0 * min(
            float(row.boundary[0, 0, 0] + row.boundary[0, 0, 1] * num_bytes)
            for row in rates
        )

    def stage_times(
        self,
        shape: Shape,
        rates: StageRates,
        kinds: PlacedKinds,
        cuts: IntArray,
    ) -> FloatArray:
        """Return the least that the busiest stage of layouts works, ``(Y,)`` [s].

        All microbatches of a replica, nothing repeated, under rates that no placement
        can beat.
        """
        stage = SCHEDULES[shape.schedule_name].virtual_stages(shape.p, shape.v).stage
        most = np.zeros(len(cuts))
        for stages in kinds.replicas:
            rows = _rows_by_kind(rates, stages)
            forward, backward = self._times(rows, shape)
            both = forward + backward[:, tables.NONE]
            row = rows.rates.signature[stage]
            held = both[row, cuts[:, 1:]] - both[row, cuts[:, :-1]]
            worked = np.zeros((len(cuts), shape.p))
            for k, number in enumerate(stage.tolist()):
                worked[:, number] += held[:, k]
            most = np.maximum(most, worked.max(axis=1))
        return np.asarray(shape.m * most * (1.0 - 1e-12))

    def columns(
        self, degrees: Degrees, schedule: str = "1f1b", *, names: bool = False
    ) -> _Columns:
        """Return what the kernel reads of a layer table, made once.

        With rows for `module_sets` if some choice ``names`` modules.
        """
        pairs = SCHEDULES[schedule].pairs_layers
        key = degrees, pairs, names
        if key not in self._columns:
            self._columns[key] = _columns_of(
                self.workload.table(degrees),
                [self.workload.table(some) for some in self._named(degrees, names)],
                pairs_layers=pairs,
            )
        return self._columns[key]

    def _named(self, degrees: Degrees, names: bool) -> list[Degrees]:
        """Return what layer tables of `module_sets` depend on, if choices name any."""
        sets = self.module_sets if names else ()
        return [degrees._replace(recompute_modules=some) for some in sets]

    def _times(
        self,
        rows: _Rows,
        shape: Shape,
        *,
        names: bool = False,
        contention: Sharing | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Return `forward` and `backward` of the kernel.

        With rows for `module_sets` if some choice ``names`` modules. If a
        ``contention`` is given, it is that of compute and what goes between experts.
        """
        rates = rows.rates
        own = rates.rows[:, : tables.DENSE_REDUCE].tobytes()
        workload, degrees = self.workload, shape.degrees
        hides = shape.pairs or workload.overlaps_shared_experts
        contention = contention or workload.beside_experts
        if self.by_layer:
            # Links may be faster than the price that a delay is added to.
            contention = contention._replace(sending=1.0)
        kind = PassKind(
            degrees,
            shape.pairs,
            SCHEDULES[shape.schedule_name].splits_backward,
            degrees.tp <= self.widest_overlap,
            contention if hides else ALONE,
        )
        key = kind, own, rows.kinds, names
        if key not in self._passes:
            if len(self._passes) >= MOST_PASSES:
                self._passes.clear()
            each, *named = (
                [self._table(degrees, kinds) for kinds in rows.kinds]
                for degrees in (degrees, *self._named(degrees, names))
            )
            self._passes[key] = passes_in_layers(workload, each, named, rates, kind)
        return self._passes[key]

    def _shared(
        self, table: LayerTable, rates: StageRates, shape: Shape
    ) -> tuple[FloatArray, FloatArray]:
        """Return what ZeRO-2 and 3 send in passes: added to them, and beside them.

        What goes on beside passes takes as long as that of all layers together: a layer
        waits for all of its own before that of the next one is sent. Dense parameters
        and experts are on their way at once, so that the longer counts for each layer.
        """
        parameter_bytes = self.workload.parameter_bytes
        rows = rates.rows
        options = len(rates.group_sizes)
        known = self.columns(shape.degrees, shape.schedule_name)
        dense, expert = known.layers.dense, known.layers.expert
        schedule = SCHEDULES[shape.schedule_name]
        if schedule.virtual_stages(shape.p, shape.v).stage[-1] == 0:
            # Both ends of the chain are on one stage.
            dense = dense.copy()
            dense[-1] -= table.tied_parameters
        has_experts = bool(expert.any())
        sent = np.zeros((len(rows), options, 2, table.num_layers))
        spread = np.zeros_like(sent)
        for option in range(options):
            inside = tables.SHARD_PASS + 4 * option
            for place, width in enumerate(
                (parameter_bytes.gather, parameter_bytes.reduce)
            ):
                part = sent[:, option, place]
                part += rows[:, None, inside] * (dense > 0)
                part += width * dense * rows[:, None, inside + 1]
                if has_experts:
                    part = spread[:, option, place]
                    part += rows[:, None, tables.EXPERT_PASS] * (expert > 0)
                    part += width * expert * rows[:, None, tables.EXPERT_PASS + 1]
        beside = np.maximum(sent, spread)
        sent += spread
        is_hidden = (
            self.workload.execution.overlap_param_gather,
            self.workload.execution.overlap_grad_reduce,
        )
        for place, hides in enumerate(is_hidden):
            if hides:
                sent[:, :, place] = 0.0
            else:
                beside[:, :, place] = 0.0
        return prefix_sums(sent), prefix_sums(beside)


def _rows_by_kind(rates: StageRates, stages: tuple[Kinds, ...]) -> _Rows:
    """Return a row for each of the pairs of rates and kinds that some stage has."""
    if len(set(stages)) == 1:
        return _Rows(rates, stages[:1])
    pairs = list(zip(rates.signature.tolist(), stages, strict=True))
    distinct = sorted(set(pairs))
    rows = np.ascontiguousarray(rates.rows[[row for row, _ in distinct]])
    signature = np.array([distinct.index(pair) for pair in pairs])
    return _Rows(
        rates._replace(rows=rows, signature=signature),
        tuple(kinds for _, kinds in distinct),
    )


def _unhindered(rows: FloatArray, relaxed: FloatArray) -> FloatArray:
    """Return rates of what passes send if each collective is alone on its links."""
    found = rows.copy()
    found[:, : tables.DENSE_REDUCE] = relaxed[:, : tables.DENSE_REDUCE]
    experts = slice(tables.EXPERT_PASS, tables.SHARD_PASS)
    found[:, experts] = relaxed[:, experts]
    for place in (tables.SHARD_PASS, tables.SHARD_PASS + 1):
        found[:, place::4] = relaxed[:, place::4].min()
        found[:, place] = relaxed[:, place]
    return found


def _columns_of(
    table: LayerTable, named: list[LayerTable], *, pairs_layers: bool
) -> _Columns:
    # Recompute of a whole stage brings everything back.
    kept = [(table, "none" if mode == "stage" else mode) for mode in RECOMPUTE_MODES]
    kept += [(some, "selective") for some in named]
    saved, working = np.zeros((2, len(kept), table.num_layers))
    for number, (some, mode) in enumerate(kept):
        saved[number] = some.saved_bytes[mode]
        working[number] = some.working_bytes[mode]
        if pairs_layers and number != tables.STAGE:
            working[number] = paired_bytes(table, working[number], saved[number])
    layers = terms.LayerColumns(
        dense=np.array(table.parameters - table.expert_parameters, dtype=np.float64),
        expert=np.array(table.expert_parameters, dtype=np.float64),
        largest=np.array(table.largest_parameters, dtype=np.float64),
        is_block=np.array(table.is_block, dtype=np.float64),
        frozen=np.array(table.frozen_weights, dtype=np.float64),
        saved=saved,
        working=working,
    )
    return _Columns(
        layers=layers,
        boundary_bytes=float(table.boundary_bytes[1:-1].max(initial=0.0)),
    )
