"""The exact split of a configuration's chain under given rates.

Prepares what `planner.kernels.split` reads: interval classes and their tables, choices,
memory, transfers. Positions ``s`` count stages from the end, as the kernel does.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.layers.work import Degrees
from planner.cost.choices import (
    HostCosts,
    MemoryChoice,
    Sharers,
    choice_columns,
    choices_of,
)
from planner.cost.classes import ClassTable, class_table
from planner.cost.pricing import iteration_weights
from planner.cost.rates import StageRates
from planner.kernels import split as kernel
from planner.kernels import tables
from planner.kernels.tables import Choices, JobConstants
from planner.search.bounds import LayerBounds
from planner.search.space import Configuration, SearchSpec, sequence_parallel
from planner.step.execution import Workload
from planner.step.ledger import KERNEL_LEDGER, gathers_once
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
    """Memory of each device that plans may use [byte]."""
    job: JobConstants
    """Constants of the job (`planner.search.bounds.job_constants`)."""
    work: Work
    """Work that splits are counted on."""
    hosts: HostCosts
    """What hosts cost the job."""
    _interleaved: dict[tuple[Degrees, int], _InterleavedChain] = field(
        default_factory=dict
    )
    _choices: dict[tuple[int, int, int], tuple[tuple[MemoryChoice, ...], Choices]] = (
        field(default_factory=dict)
    )

    def split(
        self, configuration: Configuration, rates: StageRates, cutoff: float
    ) -> Split:
        """Return the best split with a value below the cutoff.

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
        time, step_end, most_in_flight = self.choice_costs(configuration, rates)
        p = configuration.pp
        signature = np.zeros(p + 1, dtype=np.int64)
        signature[1:] = rates.signature[::-1]
        tied = np.zeros(p + 1)
        if p > 1 and interleaved.tied_bytes > 0.0:
            tied[[1, -1]] = rates.tied[0] + interleaved.tied_bytes * rates.tied[1]
        value: float
        chain = kernel.Chain(
            class_of=table.classes.class_of,
            layer_minima=interleaved.minima,
            time=time,
            step_end=step_end,
            most_in_flight=most_in_flight,
            signature=signature,
            adder=adder,
            step_end_adder=tied,
            in_flight=self.in_flight(configuration),
            sum_weight=weights.sum,
            max_weight=weights.max,
            least_step_end=_least_step_end(table, step_end, p),
        )
        status, value, bounds, picked, tried = kernel.split_chain(
            chain, cutoff - constant
        )
        assert status != kernel.BROKEN, "a layer takes less than its lower bound"
        numbers = time.size + step_end.size + most_in_flight.size
        self.work.spend(SPLIT + numbers // SPLIT_NUMBERS + tried // SPLIT_STEPS)
        return Split(value + constant, bounds, picked)

    def choice_costs(
        self, configuration: Configuration, rates: StageRates
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return what each choice costs intervals of each class, and leaves room for.

        Time and step end under each row of rates, shape ``(sig, C, K)`` [s]; passes in
        flight, shape ``(C, K)``.
        """
        interleaved = self.interleaved_chain(configuration)
        table, v = interleaved.table, configuration.v
        choices = self.choice_columns(configuration, len(rates.group_sizes))
        constants = self.constants(configuration, self.memory)
        time, step_end = tables.time_and_step_end(
            table.sums,
            table.traffic,
            choices,
            rates.group_sizes,
            rates.rows,
            constants,
            KERNEL_LEDGER,
        )
        if choices.offload.any():
            time += self.hosts.exposed_times(
                interleave_chain(self.workload.table(self.degrees(configuration)), v),
                table.classes,
                choices,
                Sharers(rates.group_sizes, constants.expert_group),
                v,
            )
        step_end += self._sending_time(choices, rates.senders)
        most_in_flight = tables.most_in_flight(
            table.sums, choices, rates.group_sizes, constants, KERNEL_LEDGER
        )
        if v > 1:
            # Every stage has a block in each of its chunks.
            most_in_flight[:, interleaved.no_block] = 0
        return time, step_end, most_in_flight

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
        return _in_flight(p, configuration.v, min(m, 2 * p))

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

    def interleaved_chain(self, configuration: Configuration) -> _InterleavedChain:
        """Return a configuration's interleaved chain, made once."""
        key = self.degrees(configuration), configuration.v
        if key not in self._interleaved:
            self.work.count(CHAIN_CLASSES)
            self._interleaved[key] = self._interleave(*key)
        return self._interleaved[key]

    def _interleave(self, degrees: Degrees, v: int) -> _InterleavedChain:
        table, layers = self.workload.table(degrees), self.layers[degrees]
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
