"""The exact split of a configuration's chain under given rates.

Prepares what `planner.kernels.split` reads: interval classes and their tables, choices,
memory, transfers. Positions ``s`` count stages from the end, as the kernel does.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.layers.work import Degrees, LayerTable
from planner.cost.choices import (
    ClassTable,
    HostCosts,
    MemoryChoice,
    Sharers,
    choice_columns,
    choices_of,
    class_table,
)
from planner.cost.pricing import iteration_weights
from planner.cost.rates import StageRates
from planner.kernels import split as kernel
from planner.kernels import tables
from planner.kernels.tables import Choices, JobConstants
from planner.search.bounds import (
    Covers,
    LayerBounds,
    bucket_shares,
    compute_times,
    exposed_costs,
    hides_anything,
)
from planner.search.device_kinds import Kinds, PlacedKinds
from planner.search.space import Configuration, SearchSpec, sequence_parallel
from planner.step.execution import Workload
from planner.step.ledger import KERNEL_LEDGER, gathers_once
from planner.step.rounds import round_length
from planner.step.schedules import SCHEDULES, schedule_name
from planner.step.virtual import interleave_chain, interleave_sums
from planner.work import CHAIN_CLASSES, SPLIT, SPLIT_NUMBERS, SPLIT_STEPS, Work
from topologies.arrays import FloatArray, IntArray


class Split(NamedTuple):
    """The best split under given rates."""

    value: float
    """Time of a step by the closed form; at least the cutoff if there is no split below
    it [s]."""
    bounds: IntArray
    """First layer of each stage in the interleaved chain, and the number of layers,
    shape ``(p + 1,)``."""
    picked: IntArray
    """Number of each stage's choice, first to last, shape ``(p,)``."""


class ChoiceCosts(NamedTuple):
    """What each choice costs intervals of each class, and leaves room for."""

    time: FloatArray
    """Time of one microbatch by signature, choice and class, ``(sig, C, K)`` [s]."""
    step_end: FloatArray
    """Time after the last backward pass by the same, ``(sig, C, K)`` [s]."""
    most_in_flight: IntArray
    """Passes in flight by distinct memory, choice and class, ``(mem, C, K)``."""
    signature: IntArray
    """Row of the times of each stage, shape ``(p,)``."""
    memory_row: IntArray
    """Row of `most_in_flight` of each stage, shape ``(p,)``."""

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self.time.size + self.step_end.size + self.most_in_flight.size


class _InterleavedChain(NamedTuple):
    """An interleaved chain, ready for the kernels."""

    table: ClassTable
    """Sums over the classes of intervals."""
    minima: FloatArray
    """Least time of each layer of the interleaved chain under any choice and placement
    [s]."""
    boundary_bytes: float
    """Traffic of each rank of a replica over every boundary [byte]."""
    tied_bytes: float
    """Gradients of the tied embedding on one device [byte]."""
    no_block: NDArray[np.bool_]
    """Whether intervals of a class hold no transformer block, shape ``(K,)``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Splitter:
    """Splits the chains of a search's configurations."""

    workload: Workload
    """Model, job and device."""
    spec: SearchSpec
    """Space that is searched."""
    layers: dict[Degrees, LayerBounds]
    """Bounds of the layer tables of the search."""
    memory: float
    """Memory of a device that plans may use, the most of any [byte]."""
    job: JobConstants
    """Constants of the job (`planner.search.bounds.job_constants`)."""
    work: Work
    """Work that splits are counted on."""
    hosts: HostCosts
    """What hosts cost the job."""
    _interleaved: dict[tuple[Degrees, int, Kinds | None], _InterleavedChain] = field(
        default_factory=dict
    )
    _choices: dict[tuple[int, int, int], tuple[tuple[MemoryChoice, ...], Choices]] = (
        field(default_factory=dict)
    )

    @property
    def hides(self) -> bool:
        """Whether stages cost less for what the framework hides."""
        return self.spec.hides and hides_anything(self.workload.execution)

    def split(
        self,
        configuration: Configuration,
        rates: StageRates,
        cutoff: float,
        kinds: PlacedKinds | None = None,
    ) -> Split:
        """Return the best split with a value below the cutoff.

        On devices of some kinds, or on the best of all if there are none.

        Raises
        ------
        LimitReachedError
            If the work is spent.
        """
        interleaved = self.interleaved_chain(configuration)
        table = interleaved.table
        m, v = self.num_microbatches(configuration), configuration.v
        weights = iteration_weights(m, v)
        adder, constant = kernel.stage_adders(
            rates.boundary, interleaved.boundary_bytes, v, weights.sum, weights.max
        )
        costs = self.choice_costs(configuration, rates, kinds)
        p = configuration.pp
        signature, memory_row = np.zeros((2, p + 1), dtype=np.int64)
        signature[1:] = costs.signature[::-1]
        memory_row[1:] = costs.memory_row[::-1]
        tied = np.zeros(p + 1)
        if p > 1 and interleaved.tied_bytes > 0.0:
            tied[[1, -1]] = rates.tied[0] + interleaved.tied_bytes * rates.tied[1]
        value: float
        chain = kernel.Chain(
            class_of=table.classes.class_of,
            layer_minima=interleaved.minima,
            time=costs.time,
            step_end=costs.step_end,
            most_in_flight=costs.most_in_flight,
            memory_row=memory_row,
            signature=signature,
            adder=adder,
            step_end_adder=tied,
            in_flight=self.in_flight(configuration),
            sum_weight=weights.sum,
            max_weight=weights.max,
            # What is left of a step end when it is hidden is no line over parameters.
            least_step_end=(
                0.0 if self.hides else _least_step_end(table, costs.step_end, p)
            ),
        )
        status, value, bounds, picked, tried = kernel.split_chain(
            chain, cutoff - constant
        )
        assert status != kernel.BROKEN, "a layer takes less than its lower bound"
        self.work.spend(SPLIT + costs.size // SPLIT_NUMBERS + tried // SPLIT_STEPS)
        return Split(value + constant, bounds, picked)

    def choice_costs(
        self,
        configuration: Configuration,
        rates: StageRates,
        kinds: PlacedKinds | None = None,
    ) -> ChoiceCosts:
        """Return what each choice costs intervals of each class, and leaves room for.

        A stage takes as long as the slowest of its groups of devices, and has the room
        of those with the least. Without kinds all are the best of all devices.
        """
        p = configuration.pp
        groups: tuple[tuple[Kinds | None, ...], ...] = ((None,),) * p
        scarcity = np.ones(p)
        if kinds is not None:
            groups, scarcity = kinds.stages, kinds.scarcity
        rooms, memory_row = np.unique(scarcity, return_inverse=True)
        pairs = list(zip(rates.signature.tolist(), groups, strict=True))
        distinct = list(dict.fromkeys(pairs))
        if len(set(groups)) == 1:
            # One row for each of the rates, as they are.
            distinct = [(row, groups[0]) for row in range(len(rates.rows))]
        every: dict[tuple[Kinds | None, ...], IntArray] = {
            group: np.array([row for row, other in distinct if other == group])
            for group in dict.fromkeys(group for _, group in distinct)
        }
        time: FloatArray | None = None
        step_end = np.zeros(0)
        for group, rows in every.items():
            which = [
                number for number, (_, other) in enumerate(distinct) if other == group
            ]
            slowest = self._slowest(
                configuration, rates._replace(rows=rates.rows[rows]), group
            )
            if time is None:
                shape = (len(distinct), *slowest[0].shape[1:])
                time, step_end = np.empty(shape), np.empty(shape)
            time[which], step_end[which] = slowest
        assert time is not None, "there is a stage"
        return ChoiceCosts(
            time,
            step_end,
            np.stack([self._with_room(configuration, rates, room) for room in rooms]),
            np.array([distinct.index(pair) for pair in pairs]),
            memory_row.ravel(),
        )

    def _slowest(
        self,
        configuration: Configuration,
        rates: StageRates,
        groups: tuple[Kinds | None, ...],
    ) -> tuple[FloatArray, FloatArray]:
        """Return time and step end of the slowest of some groups of devices [s]."""
        costs = [self._costs(configuration, rates, kinds) for kinds in groups]
        if len(costs) == 1:
            return costs[0]
        times, step_ends = zip(*costs, strict=True)
        return np.max(times, axis=0), np.max(step_ends, axis=0)

    def _costs(
        self, configuration: Configuration, rates: StageRates, kinds: Kinds | None
    ) -> tuple[FloatArray, FloatArray]:
        """Return time and step end on devices of some kinds, None for the best [s].

        Under each row of rates, shape ``(sig, C, K)``.
        """
        table = self.interleaved_chain(configuration, kinds).table
        choices = self.choice_columns(configuration, len(rates.group_sizes))
        constants = self.constants(configuration, self.memory)
        if kinds is not None:
            step_time = self.workload.step_time(kinds)
            constants = constants._replace(step_time=step_time)
            if choices.offload.any() and self.hosts.cpu_adam:
                saved = choices.offload[:, tables.OPTIMIZER]
                saved = saved * (self.hosts.step_time - step_time)
                choices = choices._replace(host_step=choices.host_step + saved)

        def price(rows: FloatArray, job: JobConstants) -> tuple[FloatArray, FloatArray]:
            priced: tuple[FloatArray, FloatArray] = tables.time_and_step_end(
                table.sums,
                table.traffic,
                choices,
                rates.group_sizes,
                rows,
                job,
                KERNEL_LEDGER,
            )
            return priced

        if self.hides:
            whole = self._table(self.degrees(configuration), kinds)
            backward = float(whole.backward_time.sum())
            time, step_end = exposed_costs(
                price,
                rates.rows,
                constants,
                self.workload.execution,
                Covers(
                    compute_times(table.sums, choices),
                    backward / (backward + float(whole.forward_time.sum())),
                    bucket_shares(
                        table.sums, configuration.dp * configuration.cp, configuration.v
                    ),
                ),
            )
        else:
            time, step_end = price(rates.rows, constants)
        if choices.offload.any():
            time += self.hosts.exposed_times(
                interleave_chain(
                    self._table(self.degrees(configuration), kinds), configuration.v
                ),
                table.classes,
                choices,
                Sharers(rates.group_sizes, constants.expert_group),
                configuration.v,
            )
        # Of each chunk a forward and a backward pass.
        lead = self.workload.messages_time(configuration.pp)
        time += 2.0 * configuration.v * lead
        step_end += self._sending_time(choices, rates.senders)
        return time, step_end

    def _with_room(
        self, configuration: Configuration, rates: StageRates, scarcity: float
    ) -> IntArray:
        """Return the passes in flight that devices have room for, shape ``(C, K)``.

        Of devices with so many times less memory than those with the most.
        """
        interleaved = self.interleaved_chain(configuration)
        choices = self.choice_columns(configuration, len(rates.group_sizes))
        most_in_flight: IntArray = tables.most_in_flight(
            interleaved.table.sums,
            choices,
            rates.group_sizes,
            self.constants(configuration, self.memory / scarcity),
            KERNEL_LEDGER,
        )
        if configuration.v > 1:
            # Every stage has a block in each of its chunks.
            most_in_flight[:, interleaved.no_block] = 0
        return most_in_flight

    def _table(self, degrees: Degrees, kinds: Kinds | None) -> LayerTable:
        """Return the table of devices of some kinds, None for the best of all."""
        if kinds is None:
            return self.workload.fastest_table(degrees)
        return self.workload.table(degrees, kinds)

    def _sending_time(self, choices: Choices, senders: FloatArray) -> FloatArray:
        """Return what sending shards out rank by rank takes each choice [s].

        Shape ``(C, 1)``; what is gathered in every pass is in none of it.
        """
        times = gathers_once(choices.zero_stage)
        ranks = times * senders[choices.sharding]
        return np.asarray(self.workload.shard_time * ranks[:, None])

    def fits(
        self, configuration: Configuration, group_sizes: FloatArray, memory: float
    ) -> bool:
        """Tell whether memory leaves room for any split (necessary).

        ``group_sizes`` are the ranks that may share ZeRO's shards.
        """
        table = self.interleaved_chain(configuration).table
        choices = self.choice_columns(configuration, len(group_sizes))
        constants = self.constants(configuration, memory)
        most_in_flight = tables.most_in_flight(
            table.sums, choices, group_sizes, constants, KERNEL_LEDGER
        )
        in_flight = self.in_flight(configuration)
        class_of = table.classes.class_of
        return bool(kernel.fits_in_memory(class_of, most_in_flight, in_flight))

    def in_flight(self, configuration: Configuration) -> IntArray:
        """Return passes in flight by position, entry 0 unused."""
        p, m = configuration.pp, self.num_microbatches(configuration)
        return _in_flight(p, configuration.v, min(m, 2 * round_length(p, m)))

    def choices(
        self, configuration: Configuration, num_options: int
    ) -> tuple[MemoryChoice, ...]:
        """Return what the stages of a configuration may choose from."""
        return self._numbered(configuration, num_options)[0]

    def choice_columns(self, configuration: Configuration, num_options: int) -> Choices:
        """Return them as the kernels read them."""
        return self._numbered(configuration, num_options)[1]

    def _numbered(
        self, configuration: Configuration, num_options: int
    ) -> tuple[tuple[MemoryChoice, ...], Choices]:
        """Return choices, and the same as the kernels read them, made once."""
        # Only whether there is more than one matters.
        replicas = min(configuration.dp * configuration.cp, 2)
        key = replicas, num_options, min(configuration.v, 2)
        if key not in self._choices:
            choices = choices_of(
                self.spec.recompute,
                self.spec.zero_stages,
                num_replicas=key[0],
                num_options=num_options,
                num_chunks=key[2],
                offloads=self.spec.offload,
            )
            self._choices[key] = choices, choice_columns(choices, self.hosts)
        return self._choices[key]

    def num_microbatches(self, configuration: Configuration) -> int:
        """Return the microbatches of each replica."""
        return self.workload.num_microbatches(configuration.b, configuration.dp)

    def degrees(self, configuration: Configuration) -> Degrees:
        """Return what layer tables depend on."""
        tp, cp, ep, b, *_ = configuration
        grouping = configuration.grouping
        return Degrees(tp, cp, ep, b, sequence_parallel(self.spec, tp), grouping)

    def interleaved_chain(
        self, configuration: Configuration, kinds: Kinds | None = None
    ) -> _InterleavedChain:
        """Return a configuration's interleaved chain, made once.

        On devices of some kinds, or on the best of all if there are none.
        """
        if self.workload.fleet is None:
            kinds = None
        key = self.degrees(configuration), configuration.v, kinds
        if key not in self._interleaved:
            self.work.count(CHAIN_CLASSES)
            self._interleaved[key] = self._interleave(*key)
        return self._interleaved[key]

    def _interleave(
        self, degrees: Degrees, v: int, kinds: Kinds | None
    ) -> _InterleavedChain:
        table, layers = self._table(degrees, kinds), self.layers[degrees]
        classes = class_table(interleave_chain(table, v), num_chunks=v)
        return _InterleavedChain(
            classes,
            interleave_sums(layers.minima, table.is_block, v),
            layers.boundary_bytes,
            table.tied_parameters * self.workload.parameter_bytes.reduce,
            ~classes.has_block,
        )

    def constants(self, configuration: Configuration, memory: float) -> JobConstants:
        """Return the job's constants, as the kernels read them."""
        members = configuration.expert_data_size
        return self.job._replace(
            memory=memory,
            expert_group=float(members),
            host_memory=self.hosts.memory,
        )


def _least_step_end(table: ClassTable, step_end: FloatArray, num_stages: int) -> float:
    """Bound the largest step end of any split from below [s].

    Some stage holds at least the mean dense parameters, and a step end is a line over
    them. Experts, which may sit elsewhere, make no such promise.
    """
    whole = table.classes.whole
    if table.sums.expert_parameters[whole] > 0:
        return 0.0
    return float(step_end[:, :, whole].min()) / num_stages * kernel.SAFE


@lru_cache(maxsize=8192)
def _in_flight(p: int, v: int, m: int) -> IntArray:
    """Return passes in flight by position, entry 0 unused.

    Beyond ``2 p`` microbatches it does not grow any more, under either schedule.
    """
    schedule = SCHEDULES[schedule_name(v)]
    return np.array([0, *(schedule.in_flight(p - s, p, m, v) for s in range(1, p + 1))])
