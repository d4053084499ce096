"""One tier of the tree core `topologies.tree_routing`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeTier:
    """One tier of switches, every value given."""

    name: str
    """Also the first part of its switches' names."""

    fan_out: int
    """Blocks of the tier below in one block; devices at tier 0."""

    bandwidth: float
    """Of the link from one child to one switch, per direction [byte/s]."""

    latency: float
    """Of that link [s]."""

    num_parallel: int = 1
    """Cables that the link stands for."""

    num_planes: int = 1
    """Switches of one block; a child is joined to the one of its number modulo this."""

    num_spines: int = 1
    """Switches of one block that every child is joined to; a hash picks one. For the
    outermost tier only."""

    num_cables: int = 1
    """Separate links between a child and its switch; a hash picks one, the same one on
    the way up and on the way down."""

    joins_devices: bool = False
    """Whether the children are devices although the tier is not the innermost."""

    efficiency: float = 1.0
    """Fraction of the link's bandwidth that traffic reaches."""

    @property
    def capacity(self) -> float:
        """What traffic reaches on the link, per direction [byte/s]."""
        return self.bandwidth * self.efficiency

    @property
    def child_bandwidth(self) -> float:
        """All links of one child into the tier together, per direction [byte/s]."""
        return self.num_choices * self.bandwidth

    @property
    def num_choices(self) -> int:
        """Links of one child into the tier, of which a pair keeps to one."""
        return self.num_spines * self.num_cables
