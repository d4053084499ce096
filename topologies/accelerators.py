"""Accelerators: peak rates and memory, with a source for every number."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device, as its vendor describes it."""

    name: str
    """Catalogue name, e.g. ``"h100-sxm"``."""

    vendor: str
    """Who makes it."""

    peak_flops: Mapping[str, float]
    """Number format (``"bf16"``, ``"fp16"``, ``"tf32"``, ``"fp32"``, ``"fp8"``) ->
    dense matrix rate [FLOP/s]."""

    memory_bytes: float
    """Device memory [byte]."""

    memory_bandwidth: float
    """Of the device memory [byte/s]."""

    num_compute_units: int
    """Streaming multiprocessors of a GPU, matrix units of a TPU."""

    interconnect_bandwidth: float
    """Scale-up network (NVLink, ICI, PCIe), one direction, all ports of one device
    together [byte/s]."""

    sources: Mapping[str, str]
    """Field name -> where its value was published."""
