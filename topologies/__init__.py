"""Hardware facts: networks of devices, links, routes and levels; accelerators."""

from topologies.accelerators import Accelerator, accelerator_names, load_accelerator
from topologies.builders import BUILDERS, build_network
from topologies.degrade import (
    Degradation,
    SlowDevice,
    SlowFraction,
    SlowLinks,
    degrade,
    slowdowns,
)
from topologies.errors import InputError
from topologies.joined_specs import DragonflySpec, HyperXSpec, NetworkSpec, PodsSpec
from topologies.network import Level, Links, Network, Routes, Tier
from topologies.specs import (
    CustomSpec,
    FatTreeSpec,
    LevelSpec,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
)

__all__ = [
    "BUILDERS",
    "Accelerator",
    "CustomSpec",
    "Degradation",
    "DragonflySpec",
    "FatTreeSpec",
    "HyperXSpec",
    "InputError",
    "Level",
    "LevelSpec",
    "Links",
    "Network",
    "NetworkSpec",
    "PodsSpec",
    "RailSpec",
    "Routes",
    "SlowDevice",
    "SlowFraction",
    "SlowLinks",
    "SpineLeafSpec",
    "Tier",
    "TorusSpec",
    "accelerator_names",
    "build_network",
    "degrade",
    "load_accelerator",
    "slowdowns",
]
