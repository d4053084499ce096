"""A model, a job and an accelerator: everything about the work but its split."""

from dataclasses import dataclass, field

from estimators.chain import build_layer_table
from estimators.layer_graph import LayerGraph
from estimators.layer_table import LayerTable
from estimators.layer_work import Degrees
from estimators.operators import MEMORY_EFFICIENCY
from estimators.training import ParameterBytes, TrainingSpec
from planner.intervals import IntervalClasses, interval_classes
from topologies.accelerators import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """What is trained, how, and on which kind of device; keeps the tables it made."""

    graph: LayerGraph
    """The traced model."""

    training: TrainingSpec
    """Batch, precision and optimizer."""

    accelerator: Accelerator
    """The device."""

    _tables: dict[Degrees, LayerTable] = field(default_factory=dict, init=False)
    _classes: list[IntervalClasses] = field(default_factory=list, init=False)

    def table(self, degrees: Degrees) -> LayerTable:
        """Return the layer table under the given degrees, made once."""
        if degrees not in self._tables:
            self._tables[degrees] = build_layer_table(
                self.graph,
                degrees=degrees,
                training=self.training,
                accelerator=self.accelerator,
            )
        return self._tables[degrees]

    @property
    def classes(self) -> IntervalClasses:
        """Interval classes of the chain: the same for all degrees, made once."""
        if not self._classes:
            table = self.table(Degrees())
            self._classes.append(interval_classes(table.kinds))
        return self._classes[0]

    @property
    def parameter_bytes(self) -> ParameterBytes:
        """Weights, gradients and optimizer states per parameter [byte]."""
        return self.training.parameter_bytes

    @property
    def memory_rate(self) -> float:
        """Rate of streaming kernels such as the optimizer step [byte/s]."""
        return self.accelerator.memory_bandwidth * MEMORY_EFFICIENCY

    def num_microbatches(self, micro_batch_size: int, data_parallel_size: int) -> int:
        """Return ``ceil(global batch / (b dp))``; a last one may be padded."""
        per_round = micro_batch_size * data_parallel_size
        return -(-self.training.global_batch_size // per_round)
