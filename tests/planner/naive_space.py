"""The configurations of a search, listed straight from what `SearchSpec` says."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from estimators.grouping import Grouping
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, LayerTable
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from topologies import Network


class Sizes(NamedTuple):
    """One configuration; ``dp`` counts replicas, not those of each expert."""

    tp: int
    cp: int
    ep: int
    b: int
    v: int
    pp: int
    dp: int


class Space(NamedTuple):
    """One problem, and what its configurations are like."""

    network: Network
    workload: Workload
    spec: SearchSpec

    def configurations(self) -> Iterator[Sizes]:
        """Yield every configuration; devices may be idle."""
        spec, model = self.spec, self.workload.graph.spec
        batch = self.workload.training.global_batch_size
        num_devices = self.network.num_devices
        num_layers, num_blocks = self.workload.chain
        powers = tuple(2**k for k in range(7))
        for each in product(
            spec.tensor_model_parallel_sizes or divisors(model.num_attention_heads),
            spec.context_parallel_sizes or powers,
            spec.expert_model_parallel_sizes or divisors(max(model.num_moe_experts, 1)),
            spec.micro_batch_sizes or powers,
            spec.virtual_pipeline_model_parallel_sizes or divisors(num_blocks),
            spec.pipeline_model_parallel_sizes or range(1, num_layers + 1),
            spec.data_parallel_sizes or range(1, num_devices + 1),
        ):
            sizes = Sizes(*each)
            tp, cp, ep, b, v, pp, dp = sizes
            if tp * cp * dp * pp > num_devices or pp > num_layers:
                continue
            if dp * b > batch or (cp * dp if self.folds(sizes) else dp) % ep:
                continue
            if divisibility_problem(model, self.degrees(sizes)) is not None:
                continue
            if v == 1 or (
                pp > 1
                and num_blocks % v == 0
                and pp * v <= num_blocks
                and self.num_microbatches(sizes)
                % max(1, self.num_microbatches(sizes) // pp)
                == 0
                and self.modes(sizes)
            ):
                yield sizes

    def folds(self, sizes: Sizes) -> bool:
        """Tell whether experts are spread over context-parallel ranks, too."""
        within = self.workload.software.experts_within_data
        return sizes.cp > 1 and sizes.ep > 1 and not within

    def extents(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the sizes of what placements nest: tp, cp, ep, replicas, pp.

        Replicas are those of each expert where ``ep`` is an axis of its own.
        """
        ep = 1 if self.folds(sizes) else sizes.ep
        return sizes.tp, sizes.cp, ep, sizes.dp // ep, sizes.pp

    def degrees(self, sizes: Sizes) -> Degrees:
        """Return what layer tables depend on; sequence parallelism on unless off."""
        is_on = sizes.tp > 1 and self.spec.sequence_parallel is not False
        grouping = Grouping(folds=self.folds(sizes))
        return Degrees(*sizes[:4], is_on, grouping)

    def table(self, sizes: Sizes) -> LayerTable:
        """Return the costs of a configuration's layers."""
        return self.workload.table(self.degrees(sizes))

    def num_microbatches(self, sizes: Sizes) -> int:
        """Return how many each replica works on, the last one perhaps not full."""
        batch = self.workload.training.global_batch_size
        return -(-batch // (sizes.b * sizes.dp))

    def modes(self, sizes: Sizes) -> tuple[str, ...]:
        """Return the recompute modes: a stage of several chunks is not run again."""
        return tuple(
            mode for mode in self.spec.recompute if sizes.v == 1 or mode != "stage"
        )

    def in_flight(self, sizes: Sizes) -> list[int]:
        """Return the passes in flight of each stage: 1F1B, or Megatron's with v > 1."""
        m, pp, v = self.num_microbatches(sizes), sizes.pp, sizes.v
        if v == 1:
            return [min(pp - stage, m) for stage in range(pp)]
        length = m // max(1, m // pp)
        return [
            min(m * v, 2 * (pp - 1 - stage) + (v - 1) * length + 1)
            for stage in range(pp)
        ]

    @property
    def memory(self) -> float:
        """What plans may use of each device [byte]."""
        work = self.workload
        beside = work.constants.allocator(work.software.name)
        free = work.accelerator.memory_bytes - self.spec.memory_reserve - beside.context
        return free / (1.0 + beside.full_fragmentation) - beside.workspace


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number."""
    return tuple(one for one in range(1, number + 1) if number % one == 0)
