"""Hardware facts: networks of devices, links, routes and levels; accelerators."""

from topologies.errors import InputError
from topologies.network import Level, Links, Network, Routes

__all__ = ["InputError", "Level", "Links", "Network", "Routes"]
