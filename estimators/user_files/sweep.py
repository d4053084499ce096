"""What a sweep over collectives measured, as plain data.

Nothing here measures or needs torch: `estimators.measuring.links` makes a sweep.
"""

from dataclasses import dataclass, field

from estimators.profile import Timing
from estimators.transports import WIRE_FRACTIONS, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """One collective of one size in one group."""

    operation: str
    """A key of `estimators.transports.WIRE_FRACTIONS`."""

    num_ranks: int
    """Members of the group."""

    num_nodes: int
    """That they are in, each with as many of them."""

    num_bytes: int
    """Of the full tensor: of the result of an all-gather, of the input of a
    reduce-scatter and an all-to-all, of each message of send/receive [byte]."""

    timing: Timing
    """Median and spread over trains of launches, of the mean over the ranks."""

    @property
    def scope(self) -> Scope:
        """Whether its ranks share a node's links, or send between nodes."""
        return "node" if self.num_nodes == 1 else "fabric"

    @property
    def bus_bandwidth(self) -> float:
        """Bytes through each rank's port over the time [byte/s]."""
        wire = WIRE_FRACTIONS[self.operation](self.num_ranks) * self.num_bytes
        return wire / self.timing.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSweep:
    """What was measured among some processes."""

    backend: str
    """Of torch.distributed: ``"gloo"`` or ``"nccl"``."""

    device: str
    """As the driver or the operating system calls that of the first rank."""

    torch_version: str
    """Whose collectives were measured."""

    num_ranks: int
    """Processes."""

    num_nodes: int
    """That they ran on."""

    points: tuple[LinkPoint, ...] = field(repr=False)
    """In the order in which they were measured."""

    num_skipped: int = 0
    """Points that the time or the memory did not suffice for."""
