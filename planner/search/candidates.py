"""The candidates of a search: their bounds, their splits, their placements.

The bound of a configuration's time counts what memory forces its stages to do. A
solution, a split on a placement, is written out as a plan.

Letters as in `planner.search.space`; positions ``s`` count stages from the end, as the
split kernel does.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from estimators.layers.work import Degrees
from estimators.training import Sizes
from planner.cost.choices import HostCosts, MemoryChoice
from planner.cost.pricing import iteration_weights, placement_choices
from planner.cost.rates import PlacementRates, PricedGrid, StageRates
from planner.kernels import memory_bound as bound_kernel
from planner.kernels import split as kernel
from planner.kernels.tables import NUM_MODES
from planner.search.bounds import (
    LayerBounds,
    Outer,
    Relaxation,
    best_group_rates,
    closed_form_bounds,
    job_constants,
    layer_bounds,
    ordered,
    unhidden_job,
    unhidden_rows,
)
from planner.search.device_kinds import (
    PlacedKinds,
    group_speeds,
    kind_speeds,
    least_step_time,
    most_memory,
)
from planner.search.placements import (
    DevicePlaces,
    Placement,
    PlacementBounds,
    PlanOutline,
    StageOutline,
    extents_of,
    groups_of,
    placed_plan,
    placements,
)
from planner.search.space import Configuration, Inner, SearchSpec, inner_configurations
from planner.search.split import Splitter
from planner.step.execution import Workload
from planner.step.ledger import KERNEL_LEDGER
from planner.step.plan import Plan
from planner.step.schedules import schedule_name
from planner.step.virtual import chunks_of_bounds
from planner.work import (
    BOUNDED_DEVICES,
    BOUNDED_STAGES,
    CLOSED_FORMS,
    LAYER_TABLE,
    LISTED,
    MEMORY_BOUND,
    NESTED_DEVICES,
    PLACEMENT_BOUND,
    PLACEMENTS,
    PRICED,
    PRICED_DEVICES,
    Progress,
    Work,
)
from topologies import Network
from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryBounds:
    """Bounds configurations by the choices that memory leaves them."""

    splitter: Splitter
    """What splits chains under the memory limit."""
    _inner: dict[Degrees, bound_kernel.InnerTerms] = field(default_factory=dict)

    def bounder(
        self, configuration: Configuration, num_options: int
    ) -> Callable[[StageRates], float]:
        """Return what bounds a configuration under given rates, or bounds of them.

        The bound is infinite if no split fits in memory [s].
        """
        splitter = self.splitter
        v = configuration.v
        inner = self._terms(splitter.degrees(configuration))
        choices = splitter.choice_columns(configuration, num_options)
        constants = splitter.constants(configuration, splitter.memory)
        execution = splitter.workload.execution
        if splitter.hides:
            constants = unhidden_job(constants, execution)
        in_flight = splitter.in_flight(configuration)[1:] / v
        weights = iteration_weights(splitter.num_microbatches(configuration), v)

        def bound(rates: StageRates) -> float:
            group = float(rates.group_sizes[0])
            rows = rates.rows
            if splitter.hides:
                rows = unhidden_rows(rows, execution)
            value: float = bound_kernel.time_bound(
                inner,
                rows,
                rates.boundary,
                bound_kernel.ChoiceTerms(choices, group, constants, KERNEL_LEDGER),
                in_flight,
                v,
                weights.sum,
                weights.max,
            )
            return value

        return bound

    def _terms(self, degrees: Degrees) -> bound_kernel.InnerTerms:
        """Return what the kernel needs of an inner configuration, made once."""
        if degrees not in self._inner:
            self._inner[degrees] = self._read(degrees)
        return self._inner[degrees]

    def _read(self, degrees: Degrees) -> bound_kernel.InnerTerms:
        table = self.splitter.workload.table(degrees)
        layers = self.splitter.layers[degrees]
        is_block = table.is_block > 0
        block_dense, block_expert = 0.0, 0.0
        saved, recompute = np.zeros((2, NUM_MODES))
        if is_block.any():
            expert = table.expert_parameters[is_block]
            block_dense = float((table.parameters[is_block] - expert).min())
            block_expert = float(expert.min())
            for mode, name in enumerate(("none", "selective", "full")):
                saved[mode] = table.saved_bytes[name][is_block].min()
            for mode, name in enumerate(("selective", "full", "stage"), start=1):
                recompute[mode] = table.recompute_time[name][is_block].min()
        return bound_kernel.InnerTerms(
            total=layers.total,
            num_blocks=float(is_block.sum()),
            block_dense=block_dense,
            block_expert=block_expert,
            saved=saved,
            recompute=recompute,
            context_bytes=layers.context_bytes,
            context_inverse=layers.context_inverse,
            expert_bytes=layers.expert_bytes,
            expert_inverse=layers.expert_inverse,
            boundary_bytes=layers.boundary_bytes,
            all_dense=layers.dense,
            all_expert=layers.expert,
        )


MOST_PRICED_DEVICES = 2**22
"""Devices of the placements whose rates are kept at a time: about 100 MB."""


CONFIGURATIONS_PER_REPORT = 64
"""Configurations, or groups of them, between two reports of progress."""

MOST_RELAXED = 2**13
"""Bounds of configurations' rates that are kept at a time: about 50 MB."""


class Solution(NamedTuple):
    """The best split of a configuration, on its best placement."""

    value: float
    """Time of a step by the closed form [s]."""
    bounds: IntArray
    """First layer of each stage in the interleaved chain, and the number of layers,
    shape ``(p + 1,)``."""
    choices: tuple[MemoryChoice, ...]
    """Memory choice of each stage, first to last."""
    placement: Placement
    """Where the ranks are."""
    rates: PlacementRates
    """Rates of the placement."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateSet:
    """Every configuration of a space, in the order of a closed-form bound."""

    network: Network
    """Network that plans are placed on."""
    workload: Workload
    """Model, job and device."""
    spec: SearchSpec
    """Space that is searched."""
    relaxation: Relaxation
    """Bounds of the network's rates."""
    inner: tuple[Inner, ...]
    """Inner configurations of the space."""
    outer: Outer
    """All configurations of the space, by rising bound."""
    statistics: Counter[str]
    """Number of configurations and placements by what became of them."""
    tensor_rates: dict[int, FloatArray]
    """Tensor-parallel size -> least rates of its collectives."""
    splitter: Splitter
    """What splits chains over stages."""
    memory_bounds: MemoryBounds
    """What bounds the memory of configurations."""
    placement_bounds: PlacementBounds
    """What bounds the rates of placements."""
    places: DevicePlaces
    """What devices there are on placements."""
    work: Work
    """Work that the search is counted on."""
    _priced: dict[object, PricedGrid] = field(default_factory=dict)
    _bounded: dict[Configuration, list[tuple[float, Placement]]] = field(
        default_factory=dict
    )
    _relaxed: dict[Sizes, tuple[StageRates, ...]] = field(default_factory=dict)
    _speeds: dict[Degrees, list[tuple[float, FloatArray]]] = field(default_factory=dict)

    @classmethod
    def enumerate(
        cls,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        *,
        work: Work | None = None,
        kept: Callable[[tuple[Inner, ...]], tuple[Inner, ...]] | None = None,
        progress: Progress | None = None,
    ) -> "CandidateSet":
        """List the space and bound every configuration of it.

        Parameters
        ----------
        network
            The cluster.
        workload
            Model, job and device.
        spec
            What to try.
        work
            What all that is done with the candidates is counted on. Listing them is
            cut short only where there is a plan without them.
        kept
            Chooses from the configurations; None for all of them.
        progress
            Called now and then.

        Raises
        ------
        InputError
            If there are too many of them.
        LimitReachedError
            If there is a plan, and the limit does not even allow to list them.
        """
        work = Work() if work is None else work
        tell = progress or _silent
        tell("search: list the space", None)
        inner, dropped = inner_configurations(workload, spec, network.num_devices)
        inner = inner if kept is None else kept(inner)
        relaxation = Relaxation.of(network, spec.sharding_group_sizes or ())
        tensor: dict[int, FloatArray] = {}
        layers: dict[Degrees, LayerBounds] = {}
        sizes = [len(item.pp) for item in inner]
        every = {item.degrees for item in inner}
        tensor_sizes = {degrees.tp for degrees in every}
        windows = [network.num_devices * tp // PRICED_DEVICES for tp in tensor_sizes]
        work.count(LAYER_TABLE * (len(every) + len(windows)) + sum(windows))
        work.count(sum(sizes) // CLOSED_FORMS)
        if work.has_plan:
            work.spend(0)
        for number, item in enumerate(inner):
            degrees = item.degrees
            tp = degrees.tp
            if degrees in layers:
                continue
            tell("search: bound the layers", number / len(inner))
            if tp not in tensor:
                tensor[tp] = best_group_rates(network, tp)
            table = workload.fastest_table(degrees)
            hidden = spec.hides and workload.execution.tp_comm_overlap
            within = 0.0 * tensor[tp] if hidden else tensor[tp]
            layers[degrees] = layer_bounds(table, within, relaxation, degrees)

        def closed_forms() -> Iterator[tuple[FloatArray, FloatArray]]:
            for number, item in enumerate(inner):
                if number % CONFIGURATIONS_PER_REPORT == 0:
                    done = number / len(inner)
                    tell(f"search: bound {sum(sizes):,} configurations", done)
                known = layers[item.degrees]
                yield closed_form_bounds(relaxation, workload, spec, item, known)

        outer = ordered(sizes, closed_forms())
        dropped["configurations"] = len(outer.bounds)
        splitter = Splitter(
            workload=workload,
            spec=spec,
            layers=layers,
            memory=most_memory(workload, spec.memory_reserve),
            job=job_constants(workload),
            work=work,
            hosts=HostCosts.of(network, workload)._replace(
                step_time=least_step_time(workload)
            ),
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
            places=DevicePlaces(
                network=network,
                workload=workload,
                reserve=spec.memory_reserve,
                work=work,
            ),
            work=work,
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
        """What plans may use of a device, the most of any [byte]."""
        return self.splitter.memory

    def within(self, memory: float) -> "CandidateSet":
        """Return the same configurations where plans may use other memory [byte].

        Counted apart, without a limit.
        """
        work = Work()
        splitter = replace(self.splitter, memory=memory, work=work)
        return replace(
            self,
            splitter=splitter,
            memory_bounds=MemoryBounds(splitter=splitter),
            statistics=Counter(),
            work=work,
            _bounded={},
        )

    def relaxed(self, configuration: Configuration) -> tuple[StageRates, ...]:
        """Return rates one of which no placement of a configuration can beat."""
        sizes, tp = configuration.sizes, configuration.tp
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
        stages = configuration.pp // BOUNDED_STAGES
        self.work.spend(len(relaxed) * (MEMORY_BOUND + stages))
        bound = self.memory_bounds.bounder(configuration, len(relaxed[0].group_sizes))
        value = min(bound(rates) for rates in relaxed)
        value = max(value, self._fleet_bound(configuration))
        if value >= cutoff:
            no_split = np.isinf(value)
            reason = "out of memory" if no_split else "pruned by the memory bound"
            self.statistics[reason] += 1
            return np.inf
        return max(value, self.bound(index))

    def _fleet_bound(self, configuration: Configuration) -> float:
        """Bound a configuration by what the best devices could do at most [s].

        All replicas of a stage wait for its slowest device: with the devices sorted by
        speed and dealt out to the stages in that order, the speeds of the stages add up
        to the most. 0 where devices do not differ.
        """
        fleet, splitter = self.workload.fleet, self.splitter
        if fleet is None or fleet.is_uniform:
            return 0.0
        degrees, p = splitter.degrees(configuration), configuration.pp
        weights = iteration_weights(
            splitter.num_microbatches(configuration), configuration.v
        )
        most = 0.0
        for total, speeds in self._kind_speeds(degrees):
            size = configuration.devices // p
            stages = float(group_speeds(fleet, speeds, size).total[p])
            most = max(most, total * (weights.sum + weights.max / stages))
        return most * kernel.SAFE

    def _kind_speeds(self, degrees: Degrees) -> list[tuple[float, FloatArray]]:
        """Return the least time of layers and of blocks, and the kinds' speeds [s]."""
        if degrees not in self._speeds:
            fleet = self.workload.fleet
            assert fleet is not None
            table = self.workload.fastest_table(degrees)
            least = self.splitter.layers[degrees].minima
            sent = least - table.forward_time - table.backward_time
            tables = [
                self.workload.table(degrees, (k,)) for k in range(len(fleet.kinds))
            ]
            times = [kind.forward_time + kind.backward_time + sent for kind in tables]
            is_block = table.is_block > 0
            self._speeds[degrees] = [
                (
                    float(least[which].sum()),
                    kind_speeds(least[which], [time[which] for time in times]),
                )
                for which in (np.ones_like(is_block), is_block)
                if which.any()
            ]
        return self._speeds[degrees]

    def relaxed_bound(
        self, configuration: Configuration, floor: float, cutoff: float
    ) -> float:
        """Return LB2, or infinity if memory or the cutoff rules it out [s].

        ``floor`` is a bound that is known already.
        """
        value = cutoff
        for rates in self.relaxed(configuration):
            split = self.splitter.split(configuration, rates, value)
            value = min(value, split.value)
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
        units = PLACEMENT_BOUND + configuration.devices // BOUNDED_DEVICES
        for placement in self.listed(configuration):
            self.work.spend(units)
            self.statistics["placements"] += 1
            rates = self.placement_bounds.rates(placement, relaxed)
            value = bound(rates)
            if value < cutoff:
                kinds = self.kinds(placement)
                split = self.splitter.split(configuration, rates, cutoff, kinds)
                value = max(value, floor, split.value * kernel.SAFE)
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
        last = deque(self.solutions(configuration, cutoff), maxlen=1)
        return last[0] if last else None

    def solutions(
        self, configuration: Configuration, cutoff: float
    ) -> Iterator[Solution]:
        """Yield placements and splits with values below the cutoff, ever better ones.

        Of the placements that `placed_bound` has left, if it was asked before.

        Raises
        ------
        LimitReachedError
            If the work is spent.
        """
        limit = cutoff
        seen: set[bytes] = set()
        bounded = self._bounded.pop(configuration, None)
        if bounded is None:
            bounded = [(-np.inf, placement) for placement in self.listed(configuration)]
        for bound, placement in bounded:
            if bound >= limit:
                self.statistics["placements pruned by their bound"] += 1
                continue
            rates = self.rates(configuration, placement)
            kinds = self.kinds(placement)
            key = _signature_bytes(rates.stage_rates) + kinds.key
            if key in seen:
                self.statistics["placements priced alike"] += 1
                continue
            seen.add(key)
            split = self.splitter.split(configuration, rates.stage_rates, limit, kinds)
            if split.value < limit:
                choices = self.splitter.choices(configuration, len(rates.shardings))
                chosen = tuple(choices[c] for c in split.picked)
                limit = split.value
                yield Solution(limit, split.bounds, chosen, placement, rates)

    def listed(self, configuration: Configuration) -> tuple[Placement, ...]:
        """Return every placement of a configuration, counted."""
        nested = self.placements(configuration)
        devices = self.network.num_devices // NESTED_DEVICES
        self.work.spend(PLACEMENTS + LISTED * len(nested) + devices)
        return nested

    def placements(self, configuration: Configuration) -> tuple[Placement, ...]:
        """Return every placement of a configuration.

        Over devices in each order that has other kinds work together.
        """
        nested = placements(
            extents_of(configuration),
            self.network.num_devices,
            self.network.block_sizes,
        )
        return self.places.over_orders(nested)

    def kinds(self, placement: Placement) -> PlacedKinds:
        """Return the kinds of devices that work on a placement."""
        return self.places.kinds(placement)

    def rates(
        self, configuration: Configuration, placement: Placement
    ) -> PlacementRates:
        """Price a placement."""
        table = self.workload.table(self.splitter.degrees(configuration))
        tensor, gradient = placement_choices(table, self.workload, configuration.pp)
        key = placement.place, configuration.ep, configuration.grouping
        priced = self._priced.get(key)
        if priced is None:
            if len(self._priced) * self.network.num_devices > MOST_PRICED_DEVICES:
                self._priced.clear()
            members = configuration.devices * (1 + configuration.ep)
            self.work.spend(PRICED + members // PRICED_DEVICES)
            priced = PricedGrid(
                self.network,
                groups_of(configuration, placement),
                self.spec.sharding_group_sizes or (),
                aligned=True,
            )
            self._priced[key] = priced
        return priced.rates(tensor, gradient)


def _silent(doing: str, share: float | None) -> None:
    """Report to nobody."""


def _signature_bytes(rates: StageRates) -> bytes:
    """Return equal bytes for placements that no price can tell apart."""
    return b"".join(array.tobytes() for array in rates)


def assemble_plan(
    candidates: CandidateSet, configuration: Configuration, solution: Solution
) -> Plan:
    """Return the plan that a solution stands for."""
    degrees = candidates.splitter.degrees(configuration)
    table = candidates.workload.table(degrees)
    chunks = chunks_of_bounds(solution.bounds, table.is_block, configuration.v)
    outline = PlanOutline(
        tuple(map(StageOutline, chunks, solution.choices)),
        schedule_name(configuration.v),
        candidates.splitter.num_microbatches(configuration),
        degrees.sequence_parallel,
    )
    return placed_plan(configuration, outline, solution.placement, solution.rates)
