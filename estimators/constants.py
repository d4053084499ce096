"""Constants of the cost models, read from ``constants.toml``, each with its source.

A refit varies them by dotted names such as ``"accelerator.a100.matmul"``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeVar

import tomli


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorConstants:
    """What a job sustains on one accelerator, beside isolated kernels at full clock.

    Power limits the clock of a device that works for minutes. Above 1 where kernels are
    better than those of the relative whose tables a chip has.
    """

    matmul: float
    """Rate of products at 16 and 32 bits over that of isolated kernels."""

    matmul_8bit: float
    """Rate of products at 8 bits over that of isolated kernels."""

    matmul_4bit: float
    """Rate of products at 4 bits over that of isolated kernels."""

    flash_attention: float
    """Rate of FlashAttention-2 and kernels of its kind over that of the fastest
    isolated kernels."""

    fused_attention: float
    """Rate of the vendor's fused attention, such as cuDNN's, over that of the fastest
    isolated kernels."""

    memory: float
    """Share of the memory bandwidth that streaming kernels reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareConstants:
    """What a framework adds to the device's own time."""

    kernel_time: float
    """Host time to launch one kernel [s]: a layer takes at least that for each of its
    kernels."""

    kernel_time_per_tp_doubling: float
    """Part by which `kernel_time` grows with each doubling of the tensor-parallel
    size."""

    kernels_per_expert: float
    """Kernels of each expert's product: the product itself, and casts of what it reads
    and writes."""

    message_time: float
    """Idle time of the device for each message that the host sends to another pipeline
    stage or receives from one, with its part of the schedule [s]."""

    layer_gap: float
    """Idle time of the device in each layer, forward and backward together [s]."""

    graph_gap: float
    """Idle time of the device in each layer where the step is one CUDA graph, if that
    is less than `layer_gap` [s]."""

    iteration_time: float
    """Time once in each step: data loading, logging, launches of the optimizer [s]."""

    iteration_time_many_nodes: float
    """Time once in each step in place of `iteration_time`, if processes of several
    nodes meet at every step [s]."""

    slowest_rank: float
    """Standard deviation of the speed of devices, as a part of it: all wait for the
    slowest one (`estimators.platform.Platform.slowest`)."""

    shard_time: float
    """Time once in each step for each rank that shares ZeRO-1's or 2's shards:
    parameters are sent out rank by rank rather than gathered together [s]."""

    node_wait: float
    """Time by which each hidden collective of a layer's parameters lengthens a step for
    each node beyond the first that it spans [s]."""

    elementwise_traffic: float
    """Memory traffic of elementwise operators as a part of what they read and write
    one by one: fused ones do not."""

    score_traffic: float
    """Memory traffic of elementwise operators of the attention scores as a part of what
    they read and write one by one, with plain attention."""

    loss_traffic: float
    """Memory traffic of elementwise operators of the loss as a part of what they read
    and write one by one."""

    unaligned_slowdown: float
    """Factor on the time of products of activations with a size that is no multiple of
    8 and that therefore do not run on matrix units."""

    unaligned_weight_slowdown: float
    """Factor on the time of products with a weight of such a size, like that of a
    vocabulary that is not padded: libraries cut these in pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConstants:
    """What a framework's memory holds beside tensors."""

    context: float
    """Memory outside of the caching allocator: CUDA context, NCCL, libraries [byte]."""

    workspace: float
    """Memory inside of the caching allocator of libraries such as cuBLAS, for as long
    as the job runs [byte]."""

    tensors: float
    """Tensors that are there at a peak, over those that are counted."""

    fragmentation: float
    """Memory that the caching allocator keeps and cannot give out, as a part of what it
    has given out."""

    full_fragmentation: float
    """Memory that the caching allocator keeps and cannot give out where the device is
    full and it has given back what it could before it failed, as a part of what it has
    given out."""


EXPANDABLE = "expandable"
"""Mode of the caching allocator in names of constants: segments that grow."""

_Section = TypeVar(
    "_Section", AcceleratorConstants, SoftwareConstants, AllocatorConstants
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constants:
    """All constants; two sets are equal if they are the same object."""

    values: Mapping[str, float]
    """Dotted name of a constant -> its value."""

    names: frozenset[str] = field(init=False, repr=False)
    """Dotted names of all constants."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(self.values))

    def accelerator(self, name: str, software: str = "") -> AcceleratorConstants:
        """Return those of an accelerator of the catalogue.

        Parameters
        ----------
        name
            The accelerator's.
        software
            The framework's: where ``NAME-with-SOFTWARE`` is known, its kernels are of
            other releases than those that the accelerator's constants are of.
        """
        return self._section(AcceleratorConstants, "accelerator", name, software)

    def knows_accelerator(self, name: str) -> bool:
        """Return whether anything is known of an accelerator, or of its like."""
        starts = tuple(f"accelerator.{prefix}." for prefix in _prefixes(name))
        return any(value.startswith(starts) for value in self.values)

    def software(self, name: str) -> SoftwareConstants:
        """Return those of a framework."""
        return self._section(SoftwareConstants, "software", name)

    def allocator(self, name: str, *, expandable: bool = False) -> AllocatorConstants:
        """Return those of a framework's memory.

        Parameters
        ----------
        name
            The framework's.
        expandable
            Whether segments of the caching allocator grow: what the framework's own
            constants do not say is taken from ``default-with-expandable`` then.
        """
        mode = EXPANDABLE if expandable else ""
        return self._section(AllocatorConstants, "allocator", name, mode)

    def replaced(self, changes: Mapping[str, float]) -> "Constants":
        """Return the same with other values for some names, which may be new."""
        return Constants(values=MappingProxyType({**self.values, **changes}))

    def _section(
        self, kind: type[_Section], group: str, name: str, software: str = ""
    ) -> _Section:
        # Values are read each time: so a fit notes what a prediction depends on.
        constants = tuple(constant.name for constant in fields(kind))
        names = _longest_names(self.names, constants, group, name, software)
        return kind(**{constant: self.values[full] for constant, full in names.items()})


@lru_cache(maxsize=4096)
def _longest_names(
    known: frozenset[str],
    constants: tuple[str, ...],
    group: str,
    name: str,
    software: str,
) -> Mapping[str, str]:
    """Return constant -> the dotted name of the longest prefix that has it.

    Trying prefixes takes longer than all else in a large search.
    """
    endings = [*(f"-with-{prefix}" for prefix in _prefixes(software)), ""]
    starts = [f"{prefix}{end}" for prefix in _prefixes(name) for end in endings]
    names = {}
    for constant in constants:
        every = [*starts, *(f"default{end}" for end in endings)]
        tried = (f"{group}.{start}.{constant}" for start in every)
        default = f"{group}.default.{constant}"
        names[constant] = next((full for full in tried if full in known), default)
    return MappingProxyType(names)


def _prefixes(name: str) -> list[str]:
    """Return what a name begins with, the longest first, none of them empty."""
    return [name[:length] for length in range(len(name), 0, -1)]


@cache
def load_constants() -> Constants:
    """Read the constants that are shipped."""
    values = {name: entry["value"] for name, entry in constant_entries().items()}
    return Constants(values=MappingProxyType(values))


@cache
def constant_entries() -> Mapping[str, Mapping[str, Any]]:
    """Return dotted name -> value, source and, where it was fitted, its spread."""
    text = files("estimators").joinpath("constants.toml").read_text(encoding="utf-8")
    return MappingProxyType(
        {
            f"{group}.{section}.{name}": entry
            for group, sections in tomli.loads(text).items()
            for section, entries in sections.items()
            for name, entry in entries.items()
        }
    )
