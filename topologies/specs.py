"""What a network is built from: one frozen record of parameters per kind.

Every value is in base units: bytes per second, seconds. A record checks itself when
it is made, so that a builder never meets an impossible one.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from topologies.checks import (
    check_bandwidth,
    check_count,
    check_efficiency,
    check_latency,
    check_num_devices,
)
from topologies.errors import InputError
from topologies.level_spec import LevelSpec
from topologies.tree_specs import (
    FatTreeSpec,
    Nic,
    RailSpec,
    SpineLeafSpec,
    Trunk,
)

__all__ = [
    "CustomSpec",
    "FatTreeSpec",
    "LevelSpec",
    "NetworkSpec",
    "Nic",
    "RailSpec",
    "SpineLeafSpec",
    "TorusSpec",
    "Trunk",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusSpec:
    """A torus or, if no dimension wraps around, a mesh; devices are the vertices."""

    dimensions: tuple[int, ...]
    """Devices along each of 1 to 3 dimensions; the last one is numbered fastest."""

    wrap: tuple[bool, ...]
    """For each dimension, whether its ends are joined. Two devices are joined once,
    also if their dimension wraps around."""

    bandwidth: float
    """Of one link between neighbours, per direction [byte/s]."""

    latency: float
    """Of that link [s]."""

    efficiency: float = 1.0
    """Fraction of a link's bandwidth that traffic reaches."""

    @property
    def capacity(self) -> float:
        """What traffic reaches on one link, per direction [byte/s]."""
        return self.bandwidth * self.efficiency

    @property
    def kind(self) -> str:
        """``"torus"`` if any dimension wraps around, else ``"mesh"``."""
        return "torus" if any(self.wrap) else "mesh"

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return math.prod(self.dimensions)

    def __post_init__(self) -> None:
        if not 1 <= len(self.dimensions) <= 3:
            problem, expected = (
                "must have 1 to 3 entries",
                "1 to 3 sizes, e.g. [4, 8, 8]",
            )
            raise InputError(
                problem, where="dimensions", got=self.dimensions, expected=expected
            )
        for index, size in enumerate(self.dimensions):
            check_count(f"dimensions[{index}]", size)
        if len(self.wrap) != len(self.dimensions):
            raise InputError(
                "must have one entry per dimension",
                where="wrap",
                got=self.wrap,
                expected=f"{len(self.dimensions)} times true or false",
            )
        check_bandwidth("bandwidth", self.bandwidth)
        check_latency("latency", self.latency)
        check_efficiency("efficiency", self.efficiency)
        check_num_devices("dimensions", self.num_devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSpec:
    """A network listed link by link in a file."""

    kind: ClassVar[str] = "custom"

    path: Path
    """A TOML file in the form that `topologies.custom` documents."""


NetworkSpec = FatTreeSpec | SpineLeafSpec | RailSpec | TorusSpec | CustomSpec
