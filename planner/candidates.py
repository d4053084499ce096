"""The candidates of a search: their bounds, their splits, their placements.

Letters as in `planner.search`; positions ``s`` count stages from the end, as the
split kernel does.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.parallelism import ParallelismConfig
from planner.bounds import (
    InnerCosts,
    closed_form_bounds,
    inner_costs,
    least_memory_bounds,
)
from planner.kernels import split as kernel
from planner.placements import Placement, placements
from planner.plan import Plan, Stage
from planner.pricing import typical_sizes
from planner.rates import AlgorithmChoice, PlacementRates, placement_rates
from planner.relaxation import best_tensor_rates, relaxed_rates
from planner.schedules import SCHEDULES
from planner.search_spec import SearchSpec
from planner.space import Configuration, inner_configurations
from planner.stage_tables import (
    Choice,
    choices_of,
    memory_slots,
    stage_times,
    tails,
)
from planner.workload import Workload
from topologies import Network

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Solution(NamedTuple):
    """The best split of a configuration, on its best placement."""

    value: float
    """Iteration time [s]."""
    bounds: IntArray
    """First layer of each stage, and the number of layers, shape ``(p + 1,)``."""
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
    configurations: tuple[Configuration, ...]
    bounds: FloatArray
    """LB1 of each configuration, rising [s]."""
    memory_bounds: FloatArray
    """Least memory that each configuration needs, in the same order [byte]."""
    statistics: Counter[str]
    _costs: dict[tuple[int, int], InnerCosts]
    _tensor_rates: dict[int, dict[str, FloatArray]]

    @classmethod
    def enumerate(
        cls, network: Network, workload: Workload, spec: SearchSpec
    ) -> "CandidateSet":
        """List the space and bound every configuration of it."""
        inner, dropped = inner_configurations(
            workload.graph.spec,
            spec,
            num_devices=network.num_devices,
            num_layers=len(workload.graph.names),
            global_batch_size=workload.training.global_batch_size,
        )
        tensor = {
            tp: dict(best_tensor_rates(network, tp))
            for tp in sorted({item.degrees.tp for item in inner})
        }
        costs = {
            (item.degrees.tp, item.degrees.micro_batch_size): inner_costs(
                workload, item.degrees, tensor[item.degrees.tp]
            )
            for item in inner
        }
        found: list[Configuration] = []
        bounds: list[FloatArray] = [np.zeros(0)]
        memory_bounds: list[FloatArray] = [np.zeros(0)]
        for item in inner:
            key = item.degrees.tp, item.degrees.micro_batch_size
            found += [Configuration(*key, *sizes) for sizes in item.sizes]
            bounds.append(closed_form_bounds(network, workload, spec, item, costs[key]))
            memory_bounds.append(least_memory_bounds(workload, spec, item, costs[key]))
        values = np.concatenate(bounds) if bounds else np.zeros(0)
        order = np.argsort(values, kind="stable")
        dropped["configurations"] = len(found)
        return cls(
            network=network,
            workload=workload,
            spec=spec,
            configurations=tuple(found[i] for i in order),
            bounds=values[order],
            memory_bounds=np.concatenate(memory_bounds)[order],
            statistics=dropped,
            _costs=costs,
            _tensor_rates=tensor,
        )

    def __len__(self) -> int:
        return len(self.configurations)

    def __getitem__(self, index: int) -> Configuration:
        return self.configurations[index]

    def slots(self, configuration: Configuration, memory: float) -> IntArray:
        """Return how many microbatches fit, by choice and interval class."""
        return memory_slots(
            self._costs[configuration[:2]].sums,
            self.choices(configuration),
            each=self.workload.parameter_bytes,
            zero_group=configuration.dp,
            memory=memory,
        )

    def choices(self, configuration: Configuration) -> tuple[Choice, ...]:
        """Return what the stages of a configuration may choose from."""
        return choices_of(self.spec.recompute, self.spec.zero_stages, configuration.dp)

    def in_flight(self, configuration: Configuration) -> IntArray:
        """Return microbatches in flight by position, entry 0 unused."""
        p, m = configuration.pp, self.num_microbatches(configuration)
        schedule = SCHEDULES[self.spec.schedule]
        return np.array(
            [0, *(schedule.in_flight(p - s, p, m) for s in range(1, p + 1))]
        )

    def num_microbatches(self, configuration: Configuration) -> int:
        """Return the microbatches of each replica."""
        return self.workload.num_microbatches(configuration.b, configuration.dp)

    @property
    def memory(self) -> float:
        """What plans may use of each device [byte]."""
        return self.workload.accelerator.memory_bytes - self.spec.memory_reserve

    def fits(self, configuration: Configuration, memory: float) -> bool:
        """Tell whether memory leaves room for any split (necessary)."""
        return bool(
            kernel.fits_in_memory(
                self.workload.classes.class_of,
                self.slots(configuration, memory),
                self.in_flight(configuration),
            )
        )

    def relaxed_bound(self, index: int, cutoff: float) -> float:
        """Return LB2, or infinity if memory or the cutoff rules it out [s]."""
        configuration = self.configurations[index]
        if self.memory_bounds[index] > self.memory or not self.fits(
            configuration, self.memory
        ):
            self.statistics["out of memory"] += 1
            return np.inf
        rates = relaxed_rates(
            self.network,
            self._tensor_rates[configuration.tp],
            dp=configuration.dp,
            pp=configuration.pp,
        )
        slots = self.slots(configuration, self.memory)
        value, _, _ = self._split(configuration, rates, slots, cutoff)
        if value >= cutoff:
            # Only memory can stop a split that no cutoff stops.
            no_split = np.isinf(cutoff)
            reason = "out of memory" if no_split else "pruned by the relaxed split"
            self.statistics[reason] += 1
            return np.inf
        return value * kernel.SAFE

    def solve(self, configuration: Configuration, cutoff: float) -> Solution | None:
        """Return the best placement and split with a value below the cutoff."""
        self.statistics["placed"] += 1
        slots = self.slots(configuration, self.memory)
        best: Solution | None = None
        for placement in placements(
            tp=configuration.tp,
            dp=configuration.dp,
            pp=configuration.pp,
            num_devices=self.network.num_devices,
            block_sizes=self.network.block_sizes,
        ):
            self.statistics["placements"] += 1
            rates = self.rates(configuration, placement)
            limit = cutoff if best is None else best.value
            value, bounds, choices = self._split(configuration, rates, slots, limit)
            if value < limit:
                picked = tuple(self.choices(configuration)[c] for c in choices)
                best = Solution(value, bounds, picked, placement, rates)
        return best

    def rates(
        self, configuration: Configuration, placement: Placement
    ) -> PlacementRates:
        """Price a placement."""
        tensor, gradient = typical_sizes(
            self._costs[configuration[:2]].table, self.workload, configuration.pp
        )
        return placement_rates(
            self.network,
            placement.devices,
            tensor=AlgorithmChoice("auto", tensor),
            gradient=AlgorithmChoice("auto", gradient),
        )

    def plan(self, configuration: Configuration, solution: Solution) -> Plan:
        """Write a solution out as a plan."""
        degrees = self._costs[configuration[:2]].degrees
        stages = tuple(
            Stage(
                layers=(int(solution.bounds[i]), int(solution.bounds[i + 1]) - 1),
                devices=tuple(tuple(row) for row in devices.tolist()),
                recompute=choice.recompute,
                zero_stage=choice.zero_stage,
            )
            for i, (devices, choice) in enumerate(
                zip(solution.placement.devices, solution.choices, strict=True)
            )
        )
        return Plan(
            parallel=ParallelismConfig(
                tensor_model_parallel_size=configuration.tp,
                pipeline_model_parallel_size=configuration.pp,
                data_parallel_size=configuration.dp,
                sequence_parallel=degrees.sequence_parallel,
            ),
            micro_batch_size=configuration.b,
            num_microbatches=self.num_microbatches(configuration),
            schedule=self.spec.schedule,
            placement=solution.placement.name,
            gradient_algorithm=solution.rates.gradient_algorithm,
            tensor_algorithm=solution.rates.tensor_algorithm,
            stages=stages,
        )

    def _split(
        self,
        configuration: Configuration,
        rates: PlacementRates,
        slots: IntArray,
        cutoff: float,
    ) -> tuple[float, IntArray, IntArray]:
        """Run the split kernel under the given rates."""
        costs = self._costs[configuration[:2]]
        choices = self.choices(configuration)
        each = self.workload.parameter_bytes
        stages, signature = _signatures(rates)
        fixed, rate = tails(
            rates,
            each=each,
            zero_group=configuration.dp,
            memory_rate=self.workload.memory_rate,
            tied_parameters=costs.table.tied_parameters,
        )
        boundary = _by_position(rates.boundary)
        value: float
        _, value, bounds, picked = kernel.split_chain(
            self.workload.classes.class_of,
            np.array(costs.table.boundary_bytes),
            costs.layer_minima,
            stage_times(costs.sums, choices, rates, stages, each),
            slots,
            costs.sums.parameters,
            np.array([choice.zero_stage for choice in choices]),
            np.concatenate(([0], signature[::-1])),
            boundary[:, 1].copy(),
            boundary[:, 0].copy(),
            np.vstack([np.zeros((1, 4)), fixed[::-1]]),
            np.vstack([np.zeros((1, 4)), rate[::-1]]),
            self.in_flight(configuration),
            self.num_microbatches(configuration),
            cutoff,
        )
        return value, bounds, picked


@lru_cache(maxsize=4096)
def _in_flight(schedule: str, p: int, m: int) -> IntArray:
    count = SCHEDULES[schedule].in_flight
    return np.array([0, *(count(p - s, p, m) for s in range(1, p + 1))])


def _by_position(boundary: FloatArray) -> FloatArray:
    """Reorder ``(p - 1, 2)`` rates of boundaries by position.

    Entry ``s`` of ``p + 1`` is the boundary between positions ``s`` and ``s + 1``.
    """
    edge = np.zeros((1, 2))
    return np.vstack([edge, boundary[::-1], edge])


def _signatures(rates: PlacementRates) -> tuple[IntArray, IntArray]:
    """Return one stage per distinct row of in-layer rates, and each stage's row."""
    rows = np.hstack([*rates.tensor.values(), *rates.data.values()])
    if (rows == rows[0]).all():
        return np.zeros(1, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    _, stages, signature = np.unique(
        rows, axis=0, return_index=True, return_inverse=True
    )
    return stages, signature.ravel()
