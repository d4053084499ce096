"""What one tier of a fat-tree is built from, in bytes per second and seconds."""

from dataclasses import dataclass

from topologies.checks import (
    check_bandwidth,
    check_count,
    check_efficiency,
    check_latency,
    check_ratio,
)
from topologies.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSpec:
    """One tier of switches of a fat-tree."""

    name: str
    """What people call it: ``"node"``, ``"leaf"``, ``"spine"``."""

    fan_out: int
    """Children of one switch: devices at level 0, blocks of the level below above."""

    latency: float
    """Of one hop, that is of one child's link [s]."""

    bandwidth: float | None = None
    """Of one child's link into this level's switch, per direction [byte/s]. None:
    the links of the child's own children together, divided by the oversubscription
    of the child's level; level 0 has no such child, and must say."""

    oversubscription: float | None = None
    """The children's links together over the link to the level above. None: 1, or
    what an explicit bandwidth of the level above implies."""

    num_cables: int | None = None
    """Cables that one child's link into this level's switch consists of. None: one if
    the bandwidth is given; else as many as the child has children of its own, times
    their cables, divided by the oversubscription and rounded."""

    efficiency: float = 1.0
    """Fraction of the link's bandwidth that traffic reaches: all times follow from
    bandwidth times efficiency."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            expected = 'a name, e.g. "leaf"'
            raise InputError("must not be empty", where="name", expected=expected)
        check_count("fan_out", self.fan_out)
        check_latency("latency", self.latency)
        if self.bandwidth is not None:
            check_bandwidth("bandwidth", self.bandwidth)
        if self.oversubscription is not None:
            check_ratio("oversubscription", self.oversubscription)
        if self.num_cables is not None:
            check_count("num_cables", self.num_cables)
        check_efficiency("efficiency", self.efficiency)
