"""What a model runs on: a device, the software that drives it, and what both reach.

A device's memory holds more than the tensors of a job::

    allocated = tensors + workspace
    reserved = (1 + fragmentation) * allocated
    device = reserved + context
    needed = (1 + full_fragmentation) * allocated + context

Allocated is what PyTorch's caching allocator has given out (``max_memory_allocated``):
tensors, and the workspaces of cuBLAS and its like. Reserved is what it keeps
(``max_memory_reserved``): blocks are split and seldom fit what is asked for next.
Device is what ``nvidia-smi`` shows: the CUDA context and NCCL's buffers lie outside of
the allocator. Needed is what has to fit: before a request fails the allocator gives
cached blocks back, so that jobs run with less than they reserve where there is room.

References
----------
.. [1] PyTorch, "CUDA semantics", sections Memory management and cuBLAS workspaces.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

from estimators.collectives.transports import Transport, find_transport, transports
from estimators.constants import (
    AllocatorConstants,
    Constants,
    SoftwareConstants,
    load_constants,
)
from estimators.models.spec import TransformerSpec
from estimators.operators.profile import Profile
from estimators.operators.profiled_times import OperatorTimes, ProfiledTimes
from estimators.operators.roofline import OperatorModel
from estimators.software import IDEAL, Software
from estimators.training import ParameterBytes, TrainingSpec
from estimators.user_files.links import UserLinks
from topologies.accelerators import Accelerator


@dataclass(frozen=True, kw_only=True, eq=False)
class Platform:
    """Everything that operator times depend on beside the work itself."""

    accelerator: Accelerator
    """Device that the job runs on."""

    software: Software = IDEAL
    """Framework that drives the device."""

    constants: Constants = field(default_factory=load_constants)
    """Constants of what device and framework reach."""

    links: UserLinks | None = None
    """Measured constants of links, taken instead of what is published."""

    profile: Profile | None = None
    """Measured operator times, which are taken instead of the accelerator's rates."""

    _times: dict[tuple[TrainingSpec, TransformerSpec], OperatorTimes] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def software_constants(self) -> SoftwareConstants:
        """What the software costs."""
        return self.constants.software(self.software.name)

    @cached_property
    def memory_rate(self) -> float:
        """Rate of streaming kernels such as the optimizer step [byte/s]."""
        name = self.accelerator.constants_name
        reached = self.constants.accelerator(name, self.software.name)
        return self.accelerator.memory_bandwidth * reached.memory

    def product_rate(self, precision: str) -> float:
        """Return the rate of large products, in bf16 where the device can [FLOP/s].

        Parameters
        ----------
        precision
            Number format of the job, where it can not.
        """
        name = self.accelerator.constants_name
        reached = self.constants.accelerator(name, self.software.name)
        rates = self.accelerator.peak_flops
        return rates.get("bf16", rates[precision]) * reached.matmul

    @property
    def slowest(self) -> float:
        """Time of the slowest device's work over that of a usual one.

        The largest of ``N`` normal deviations is near ``sigma sqrt(2 ln N)``; all of a
        job's devices wait for it.
        """
        deviations = math.sqrt(2.0 * math.log(max(1, self.software.num_ranks)))
        return 1.0 + self.software_constants.slowest_rank * deviations

    def transport(self, *, inside_node: bool, num_ranks: int = 1) -> Transport:
        """Return what collectives reach inside a node, or between nodes.

        By the name that the cluster gives it, else as measured, else as it is usual.
        Inside a node it is what joins so many neighbours.
        """
        name = self.software.fabric_transport
        if inside_node:
            levels = self.software.node_transports
            reaching = [transport for size, transport in levels if num_ranks <= size]
            name = next(iter(reaching), levels[-1][1] if levels else "")
        if name:
            return transports()[name]
        measured = None
        if self.links is not None:
            measured = self.links.transport(inside_node=inside_node)
        if measured is not None:
            return measured
        return find_transport(self.accelerator.constants_name, inside_node=inside_node)

    def operator_times(
        self, training: TrainingSpec, spec: TransformerSpec
    ) -> OperatorTimes:
        """Return what knows how long an operator of an architecture takes.

        Raises
        ------
        InputError
            If the accelerator has no rate for the job's precision, or the profile
            lacks that precision or one of the model's operations.
        """
        if (training, spec) not in self._times:
            self._times[training, spec] = self._made_times(training, spec)
        return self._times[training, spec]

    def _made_times(
        self, training: TrainingSpec, spec: TransformerSpec
    ) -> OperatorTimes:
        if self.profile is not None:
            return ProfiledTimes.of(self.profile, training.precision, spec)
        return OperatorModel.of(
            self.accelerator, training, self.software, self.constants
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """The memory of one framework."""

    constants: AllocatorConstants
    """Constants of what the allocator holds beside tensors."""

    def allocated(self, tensors: float) -> float:
        """Return what has been given out at a peak of tensors [byte]."""
        return tensors + self.constants.workspace

    def reserved(self, tensors: float) -> float:
        """Return what the allocator keeps at a peak of tensors [byte]."""
        return (1.0 + self.constants.fragmentation) * self.allocated(tensors)

    def device(self, tensors: float) -> float:
        """Return what is taken of the device at a peak of tensors [byte]."""
        return self.reserved(tensors) + self.constants.context

    def needed(self, tensors: float) -> float:
        """Return the least device that a peak of tensors fits in [byte]."""
        part = 1.0 + self.constants.full_fragmentation
        return part * self.allocated(tensors) + self.constants.context

    def usable(self, capacity: float) -> float:
        """Return the most that tensors may take of a device [byte].

        Not positive where nothing is left for them.
        """
        free = capacity - self.constants.context
        part = 1.0 + self.constants.full_fragmentation
        return free / part - self.constants.workspace


def optimizer_step_bytes(parameter_bytes: ParameterBytes) -> float:
    """Return the memory traffic of an optimizer step per parameter [byte].

    Reads the gradient, reads and writes every optimizer state, writes the weight:
    30 bytes for mixed-precision Adam with fp32 gradients.
    """
    return (
        parameter_bytes.gradients
        + 2 * (parameter_bytes.optimizer + parameter_bytes.copies)
        + parameter_bytes.weights
    )
