"""The work of a job, and how its framework executes it: everything but its split.

What a framework hides behind compute, and at what price, are facts about the job, like
its software: the search, the prices and the replay read the same ones. What the
replay's engine may leave out or skip is not here (`nestsim.simulator.replay`).
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from estimators.chain import build_layer_table
from estimators.constants import Constants, load_constants
from estimators.layers.matrices import block_matrices
from estimators.layers.sharding import layer_work
from estimators.layers.table import LayerTable
from estimators.layers.work import Degrees
from estimators.operators.profile import Profile
from estimators.platform import Allocator, Platform, optimizer_step_bytes
from estimators.software import IDEAL, Software
from estimators.tracing.graph import LayerGraph
from estimators.training import ParameterBytes, TrainingSpec
from estimators.user_files.links import UserLinks
from topologies.accelerators import Accelerator
from topologies.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Which transfers are hidden behind compute, and what slows compute down."""

    overlap_grad_reduce: bool = False
    """Megatron's: gradients are reduced bucket by bucket behind the last backward
    pass, instead of after it. What ZeRO-2 and 3 reduce in every microbatch goes on
    behind the next layer."""

    overlap_param_gather: bool = False
    """Megatron's: parameters are gathered bucket by bucket behind the first forward
    pass of the next step, instead of after the optimizer step. What ZeRO-3 gathers of
    a layer goes on behind the layer before it."""

    overlap_p2p_comm: bool = True
    """Megatron's: transfers between stages do not stop the stages' work. Off, both
    sides of a transfer wait for it, as Megatron does without interleaving; with
    interleaving the sender does."""

    tp_comm_overlap: bool = False
    """Megatron's: tensor-parallel collectives run behind the products next to them, so
    that both together take as long as the longer one."""

    communication_slowdown: float = 1.0
    """Factor on the duration of compute while one of the overlaps above, but for
    transfers between stages, has the same device communicate beside it; at least 1."""

    expert_communication_slowdown: float = 1.0
    """Factor on the duration of compute while all-to-alls between experts go on beside
    it, where a plan hides them behind another microbatch; at least 1."""

    cpu_adam: bool = True
    """Whether the host updates the parameters whose optimizer states it keeps, as
    DeepSpeed and Megatron do; else the states come to the device for its update."""

    expert_skew: float = 1.0
    """Ratio of the tokens that the busiest expert-parallel rank receives to the mean;
    at least 1. It sets the pace of the all-to-all and of the experts' compute."""


NOTHING_HIDDEN = Execution()
"""An execution that waits for everything that is sent, but for transfers between
stages."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """What is trained, how, and on which kind of device; keeps the tables it made."""

    graph: LayerGraph
    """Model as it was traced."""

    training: TrainingSpec
    """Batch, precision and optimizer."""

    accelerator: Accelerator
    """Device that the model is trained on."""

    software: Software = IDEAL
    """Framework that drives the device."""

    execution: Execution = NOTHING_HIDDEN
    """What the framework hides behind compute."""

    constants: Constants = field(default_factory=load_constants)
    """Constants of what device and framework reach."""

    links: UserLinks | None = None
    """Measured constants of links, if any."""

    profile: Profile | None = None
    """Operator times that were measured, if any."""

    _tables: dict[Degrees, LayerTable] = field(default_factory=dict, init=False)
    _expert_times: dict[Degrees, FloatArray] = field(default_factory=dict, init=False)

    def table(self, degrees: Degrees) -> LayerTable:
        """Return the layer table under the given degrees, made once."""
        if degrees not in self._tables:
            self._tables[degrees] = build_layer_table(
                self.graph,
                degrees=degrees,
                training=self.training,
                platform=self.platform,
            )
        return self._tables[degrees]

    def expert_times(self, degrees: Degrees) -> FloatArray:
        """Return the part of each layer's compute that routed experts' products are.

        Forward, backward, and the part of the latter that weight gradients are, shape
        ``(3, L)`` [s]. From the traced operators; 0 for a graph without.
        """
        if degrees not in self._expert_times:
            self._expert_times[degrees] = self._read_expert_times(degrees)
        return self._expert_times[degrees]

    def _read_expert_times(self, degrees: Degrees) -> FloatArray:
        graph, training = self.graph, self.training
        if not graph.layers:
            return np.zeros((3, len(graph.names)))
        model = self.platform.operator_times(training, graph.spec)
        totals = []
        for kind, layer in enumerate(graph.layers):
            work = layer_work(graph, kind, degrees, training.element_bytes)
            times = [
                model.operator_time(operator)
                for operator, traced in zip(
                    work.operators, layer.operators, strict=True
                )
                if traced.sharding.startswith("expert")
            ]
            totals.append(np.sum(times, axis=0) if times else np.zeros(3))
        all_kinds = self.platform.slowest * np.array(totals)
        return np.ascontiguousarray(all_kinds[np.array(graph.kinds)].T)

    @cached_property
    def parameter_bytes(self) -> ParameterBytes:
        """Weights, gradients and optimizer states per parameter [byte].

        Those of a model's parameters on average, where its matrices are kept otherwise
        than its embeddings: right for the model as a whole, not stage by stage.
        """
        if not self.training.tells_matrices_apart:
            return self.training.parameter_bytes
        share = block_matrices(self.graph).share
        return self.training.mean_parameter_bytes(share)

    @cached_property
    def orthogonalisation_time(self) -> float:
        """Time of Muon's products for each parameter, 0 with other optimizers [s]."""
        if self.training.optimizer != "muon":
            return 0.0
        flops = block_matrices(self.graph).orthogonalisation_flops
        return flops / self.platform.product_rate(self.training.precision)

    @cached_property
    def step_time(self) -> float:
        """Time in which a device updates a parameter [s]."""
        moved = optimizer_step_bytes(self.parameter_bytes) / self.memory_rate
        return moved + self.orthogonalisation_time

    @cached_property
    def platform(self) -> Platform:
        """What the model runs on."""
        return Platform(
            accelerator=self.accelerator,
            software=self.software,
            constants=self.constants,
            links=self.links,
            profile=self.profile,
        )

    @cached_property
    def allocator(self) -> Allocator:
        """What memory holds beside tensors."""
        return Allocator(constants=self.constants.allocator(self.software.name))

    def tensor_memory(self, reserve: float = 0.0) -> float:
        """Return what a device has for tensors, with some of it kept free [byte]."""
        return self.allocator.usable(self.accelerator.memory_bytes - reserve)

    @cached_property
    def memory_rate(self) -> float:
        """Rate of streaming kernels such as the optimizer step [byte/s]."""
        return self.platform.memory_rate

    @cached_property
    def iteration_time(self) -> float:
        """What each step takes once, whatever the plan [s]."""
        constants = self.platform.software_constants
        if self.software.many_nodes:
            return constants.iteration_time_many_nodes
        return constants.iteration_time

    @cached_property
    def shard_time(self) -> float:
        """What each step takes once for each rank that shares ZeRO-1's shards [s]."""
        return self.platform.software_constants.shard_time

    @cached_property
    def chain(self) -> tuple[int, int]:
        """Layers of the chain, and those of them that are blocks."""
        names = self.graph.names
        return len(names), sum(name.startswith("block") for name in names)

    def num_microbatches(self, micro_batch_size: int, data_parallel_size: int) -> int:
        """Return ``ceil(global batch / (b dp))``; a last one may be padded."""
        per_round = micro_batch_size * data_parallel_size
        return -(-self.training.global_batch_size // per_round)
