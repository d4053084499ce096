"""What memory forces the stages of a configuration to do, as a bound of its time."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from estimators.layers.work import Degrees
from planner.chain_split import Splitter
from planner.kernels import memory_bound as kernel
from planner.loads import iteration_weights
from planner.space import Configuration
from planner.stage_rates import StageRates
from planner.step.ledger import KERNEL_LEDGER
from topologies.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryBounds:
    """Bounds configurations by the choices that memory leaves them."""

    splitter: Splitter
    _inner: dict[Degrees, FloatArray] = field(default_factory=dict)

    def bounder(
        self, configuration: Configuration, num_options: int
    ) -> Callable[[StageRates], float]:
        """Return what bounds a configuration under given rates, or bounds of them.

        The bound is infinite if no split fits in memory [s].
        """
        splitter = self.splitter
        v = configuration.v
        entries = self._entries(splitter.degrees(configuration))
        choices = splitter.choice_array(configuration, num_options)
        constants = splitter.constants(configuration, splitter.memory)
        in_flight = splitter.in_flight(configuration)[1:] / v
        weights = iteration_weights(splitter.num_microbatches(configuration), v)

        def bound(rates: StageRates) -> float:
            found: float = kernel.time_bound(
                entries,
                rates.rows,
                rates.boundary,
                choices,
                rates.group_sizes[0],
                constants,
                KERNEL_LEDGER,
                in_flight,
                v,
                weights.sum,
                weights.max,
            )
            return found

        return bound

    def _entries(self, degrees: Degrees) -> FloatArray:
        """Return the kernel's entries of an inner configuration, made once."""
        if degrees not in self._inner:
            self._inner[degrees] = self._read(degrees)
        return self._inner[degrees]

    def _read(self, degrees: Degrees) -> FloatArray:
        table = self.splitter.workload.table(degrees)
        layers = self.splitter.layers[degrees]
        is_block = table.is_block > 0
        entries = np.zeros(kernel.NUM_INNER)
        entries[kernel.TOTAL] = layers.total
        entries[kernel.CONTEXT_BYTES] = layers.context_bytes
        entries[kernel.CONTEXT_INVERSE] = layers.context_inverse
        entries[kernel.EXPERT_BYTES] = layers.expert_bytes
        entries[kernel.EXPERT_INVERSE] = layers.expert_inverse
        entries[kernel.BOUNDARY_BYTES] = layers.boundary_bytes
        entries[kernel.ALL_DENSE] = layers.dense
        entries[kernel.ALL_EXPERT] = layers.expert
        entries[kernel.NUM_BLOCKS] = is_block.sum()
        if not is_block.any():
            return entries
        expert = table.expert_parameters[is_block]
        entries[kernel.BLOCK_DENSE] = (table.parameters[is_block] - expert).min()
        entries[kernel.BLOCK_EXPERT] = expert.min()
        for mode, name in enumerate(("none", "selective", "full")):
            entries[kernel.SAVED + mode] = table.saved_bytes[name][is_block].min()
        for mode, name in enumerate(("selective", "full", "stage"), start=1):
            least = table.recompute_time[name][is_block].min()
            entries[kernel.RECOMPUTE + mode] = least
        return entries
