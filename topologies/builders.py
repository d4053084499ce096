"""Building networks: the table of their kinds."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from topologies.errors import InputError
from topologies.fabrics.custom import build_custom
from topologies.fabrics.tori import build_torus
from topologies.fabrics.trees import build_fat_tree, build_rail, build_spine_leaf
from topologies.network import Network
from topologies.specs import DevicesSpec, NetworkSpec

BUILDERS: Mapping[str, Callable[[Any], Network]] = MappingProxyType(
    {
        "fat-tree": build_fat_tree,
        "spine-leaf": build_spine_leaf,
        "rail": build_rail,
        "torus": build_torus,
        "mesh": build_torus,
        "custom": build_custom,
    }
)
"""Kind of network -> the function that builds it from its record of parameters."""


def build_network(spec: NetworkSpec) -> Network:
    """Build the network that a record of parameters describes.

    Raises
    ------
    InputError
        If there can be none, or it does not say how devices are joined.
    """
    if isinstance(spec, DevicesSpec):
        raise InputError(
            "there is no network",
            expected='how the devices are joined, e.g. kind = "fat-tree"',
            hint="without a network, nestsim memory says what fits",
        )
    return BUILDERS[spec.kind](spec)
