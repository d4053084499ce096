"""What a model runs on: a device, its software, and the time that software adds.

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

What software adds to a layer: launches that the device waits for, gaps, libraries.

A block takes at least as long as the host needs to launch its kernels. With compute
``g``, collectives ``c`` and host time ``h`` of a pass::

    t = (  (g + c)^q + h^q  )^(1/q) + gap,   h = operators tau (1 + beta log2 tp)

With a CUDA graph of the step [2]_ the host launches no kernel: ``h`` is 0, the gap that
of compiled programs, and collectives follow kernels as kernels follow each other. With
graphs of layers [3]_ that holds for what they capture, and the host launches each
layer's graph as it launches a kernel; what stays outside, such as experts whose tokens
are counted on the device, is launched kernel by kernel, with its part of the gap.

Messages between pipeline stages are the host's, too: it launches a send and a receive
for each pass of each chunk, waits for what came, and goes through its schedule.
Compiled programs and graphs hold them already.

A large ``q`` makes it the maximum of both; a finite one says that kernels of a layer
that is slow on the whole may be quick one by one. Collectives are priced as if their
groups sat side by side on the accelerator's own links; what of ``c`` goes over the wire
depends on the placement and is the planner's to add, as are steps' latencies of links;
what a library needs beside them (`estimators.collectives.transports`) is added here.

References
----------
.. [1] PyTorch, "CUDA semantics", sections Memory management and cuBLAS workspaces.
.. [2] A. Gray, "Getting Started with CUDA Graphs", NVIDIA, 2019.
.. [3] Megatron Core, ``core/transformer/transformer_layer.py``,
   ``_te_cuda_graph_capture``: attention, router and what prepares the dispatch are one
   graph of a layer's forward pass; docs/user-guide/features/cuda_graph.md (d98e8a6).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from estimators.collectives.phases import RING_OPERATIONS
from estimators.collectives.transports import (
    WIRE_FRACTIONS,
    Transport,
    collective_time,
    find_transport,
    transports,
)
from estimators.constants import (
    AllocatorConstants,
    Constants,
    SoftwareConstants,
    load_constants,
)
from estimators.layers.work import CollectiveWork, Degrees, LayerWork
from estimators.models.spec import TransformerSpec
from estimators.operators.profile import OperatorTimes, Profile, ProfiledTimes
from estimators.operators.roofline import GRAPH_LAUNCH_TIME, LAUNCH_TIME, OperatorModel
from estimators.software import IDEAL, Software
from estimators.training import ParameterBytes, TrainingSpec
from estimators.user_files import UserLinks
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
        rates = self.accelerator.peak_flops
        return OperatorModel.of(
            self.accelerator,
            TrainingSpec(
                global_batch_size=1, precision="bf16" if "bf16" in rates else precision
            ),
            self.software,
            self.constants,
        ).products.large_rate

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
        return _operator_times(self, training, spec)


@lru_cache(maxsize=256)
def _operator_times(
    platform: Platform, training: TrainingSpec, spec: TransformerSpec
) -> OperatorTimes:
    if platform.profile is not None:
        return ProfiledTimes.of(platform.profile, training.precision, spec)
    return OperatorModel.of(
        platform.accelerator, training, platform.software, platform.constants
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """The memory of one framework."""

    constants: AllocatorConstants
    """Constants of what the allocator holds beside tensors."""

    def allocated(self, tensors: float) -> float:
        """Return what has been given out at a peak of tensors [byte]."""
        return self.constants.tensors * tensors + self.constants.workspace

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
        return (free / part - self.constants.workspace) / self.constants.tensors


def optimizer_step_bytes(parameter_bytes: ParameterBytes) -> float:
    """Return the memory traffic of an optimizer step per parameter [byte].

    Reads the gradient, reads and writes every optimizer state, writes the weight:
    30 bytes for mixed-precision Adam with fp32 gradients.
    """
    return (
        parameter_bytes.gradients
        + 2 * (parameter_bytes.optimizer + parameter_bytes.copies)
        + (parameter_bytes.weights - parameter_bytes.frozen)
    )


SHARPNESS = 6.0
"""Exponent ``q`` of the model, chosen: on every fourth of 712 published single-node
runs the mean error is 8.5, 8.1 and 8.2 % with 4, 6 and 10, all else alike."""

BACKWARD_LAUNCHES = 1.6
"""Kernels of a backward pass for each of the forward pass, assumed: a plain block's 6
products of 15 operators become two each (1.4), and gradients are added up."""

FORWARD_GAP = 0.25
"""Part of a layer's gap in its forward pass, assumed; the rest is in the backward
pass. Only where forward passes are run again does it matter."""


class HostTimes(NamedTuple):
    """What software adds to the passes of one layer [s]."""

    forward: float
    """Host time of the forward pass [s]."""
    backward: float
    """Host time of the backward pass [s]."""


class _Collectives(NamedTuple):
    """All collectives of one pass [s]."""

    wire: float
    """Time of the layer's collectives on the wire [s]."""
    library: float
    """Time that the library adds to it [s]."""


def host_times(
    work: LayerWork,
    compute: tuple[float, float],
    degrees: Degrees,
    platform: Platform,
) -> HostTimes:
    """Return what is to be added to a block's compute.

    Parameters
    ----------
    work
        The layer.
    compute
        Time of its forward and backward pass without collectives [s].
    degrees
        How it is split.
    platform
        What runs it.
    """
    constants = platform.software_constants
    software = platform.software
    launch = 0.0
    if not software.compiled and not software.captures_step:
        slope = constants.kernel_time_per_tp_doubling
        launch = constants.kernel_time * (1.0 + slope * math.log2(degrees.tp))
    launches = _Launches.of(work, software, constants.kernels_per_expert)
    inside = min(constants.layer_gap, constants.graph_gap)
    gap = constants.layer_gap + launches.captured * (inside - constants.layer_gap)
    if launch <= 0.0 and gap <= 0.0 and not software.library:
        return HostTimes(0.0, 0.0)
    forward, backward = _collectives(work, degrees, platform)
    host = launch * launches.number
    return HostTimes(
        _combined_time(compute[0], forward, host) + FORWARD_GAP * gap,
        _combined_time(compute[1], backward, BACKWARD_LAUNCHES * host)
        + (1.0 - FORWARD_GAP) * gap,
    )


def least_gap(platform: Platform) -> float:
    """Return the least that software adds to a block beside its launches [s]."""
    constants = platform.software_constants
    if platform.software.cuda_graphs == "none":
        return constants.layer_gap
    return min(constants.layer_gap, constants.graph_gap)


def message_time(platform: Platform) -> float:
    """Return what a device waits for its host at each message between stages [s]."""
    if platform.software.compiled or platform.software.captures_step:
        return 0.0
    return platform.software_constants.message_time


def is_captured(work: LayerWork, software: Software) -> list[bool]:
    """Return which of a block's operators CUDA graphs hold."""
    if software.cuda_graphs != "layers":
        return [software.captures_step] * len(work.operators)
    modules = software.cuda_graph_modules
    return [part in modules for part in _graph_parts(work)]


_ROUTING = ("router", "topk", "shared_experts")


def _graph_parts(work: LayerWork) -> Iterator[str]:
    """Yield the part of `GRAPH_MODULES` that each operator is of, ``""`` for none.

    Norms and sums are of the branch that they are in front of or behind.
    """
    names = [operator.name for operator in work.operators]
    routed = any(name.endswith("mlp.dispatch") for name in names)
    part = "mamba" if any(".scan." in name for name in names) else "attn"
    for name in names:
        _, is_inside, within = name.rpartition("mlp.")
        starts = name.endswith("pre_mlp_norm")
        if not routed:
            part = "mlp" if is_inside or starts else part
        elif starts or (within.startswith(_ROUTING) and is_inside):
            part = "moe_router"
        elif is_inside:
            part = "moe_preprocess" if within == "dispatch" else ""
        elif part == "moe_router":
            part = ""
        yield part


class _Launches(NamedTuple):
    """What the host launches of a forward pass."""

    number: float
    """Kernels, and graphs of layers."""
    captured: float
    """Part of the pass's kernels that graphs hold."""

    @classmethod
    def of(
        cls, work: LayerWork, software: Software, kernels_per_expert: float
    ) -> "_Launches":
        """Count them: a kernel an operator, and some for each expert of a product."""
        kernels = [
            kernels_per_expert * operator.batch if operator.is_grouped else 1.0
            for operator in work.operators
        ]
        if software.cuda_graphs == "none":
            return cls(sum(kernels), 0.0)
        if software.captures_step:
            return cls(0.0, 1.0)
        inside = sum(
            number
            for number, held in zip(kernels, is_captured(work, software), strict=True)
            if held
        )
        every = sum(kernels)
        return cls(every - inside + (inside > 0.0), inside / every if every else 0.0)


def _combined_time(compute: float, collectives: _Collectives, host: float) -> float:
    """Return how much longer than compute and wire a pass takes [s]."""
    device = compute + collectives.wire + collectives.library
    if host <= 0.0:
        return collectives.library
    larger, smaller = max(device, host), min(device, host)
    together = larger * (1.0 + (smaller / larger) ** SHARPNESS) ** (1.0 / SHARPNESS)
    return float(together - compute - collectives.wire)


def _collectives(
    work: LayerWork, degrees: Degrees, platform: Platform
) -> tuple[_Collectives, _Collectives]:
    """Return the collectives of the forward and the backward pass."""
    if not platform.software.library:
        return _Collectives(0.0, 0.0), _Collectives(0.0, 0.0)
    accelerator = platform.accelerator
    bandwidth = accelerator.interconnect_bandwidth
    passes = []
    for forward in (True, False):
        priced = [
            _price_collective(platform, item, degrees, bandwidth, forward=forward)
            for item in work.collectives
        ]
        passes.append(
            _Collectives(
                sum(part.wire for part in priced), sum(part.library for part in priced)
            )
        )
    return passes[0], passes[1]


def _price_collective(
    platform: Platform,
    item: CollectiveWork,
    degrees: Degrees,
    bandwidth: float,
    *,
    forward: bool,
) -> _Collectives:
    count = item.forward_count if forward else item.backward_count
    num_bytes = item.forward_bytes if forward else item.backward_bytes
    if count == 0:
        return _Collectives(0.0, 0.0)
    ranks = degrees.group_size(item.group, item.operation)
    transport = platform.transport(inside_node=True, num_ranks=ranks)
    size, software = num_bytes / count, platform.software
    share = transport.charged(item.operation, ranks, sums=software.sums_in_nodes)
    wire = WIRE_FRACTIONS[item.operation](ranks) * size / (share * bandwidth)
    turn = RING_OPERATIONS.get(item.operation)
    steps = turn(ranks).num_steps if turn else 1
    time = collective_time(transport, item.operation, ranks, size, bandwidth)
    library = max(0.0, time - wire - steps * software.node_step)
    if software.captures_step or (
        software.cuda_graphs == "layers"
        and item.group in {"tensor", "context"}
        and "attn" in software.cuda_graph_modules
    ):
        library = max(0.0, library - LAUNCH_TIME + GRAPH_LAUNCH_TIME)
    return _Collectives(count * wire, count * library)
