"""A model, a job and an accelerator: everything about the work but its split."""

from dataclasses import dataclass, field

from estimators.chain import build_layer_table
from estimators.layer_graph import LayerGraph
from estimators.layer_table import LayerTable
from estimators.layer_work import Degrees
from estimators.operators import MEMORY_EFFICIENCY
from estimators.training import ParameterBytes, TrainingSpec
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
    def parameter_bytes(self) -> ParameterBytes:
        """Weights, gradients and optimizer states per parameter [byte]."""
        return self.training.parameter_bytes

    @property
    def memory_rate(self) -> float:
        """Rate of streaming kernels such as the optimizer step [byte/s]."""
        return self.accelerator.memory_bandwidth * MEMORY_EFFICIENCY

    @property
    def chain(self) -> tuple[int, int]:
        """Layers of the chain, and those of them that are blocks."""
        names = self.graph.names
        return len(names), sum(name.startswith("block") for name in names)

    def num_microbatches(self, micro_batch_size: int, data_parallel_size: int) -> int:
        """Return ``ceil(global batch / (b dp))``; a last one may be padded."""
        per_round = micro_batch_size * data_parallel_size
        return -(-self.training.global_batch_size // per_round)
