"""The table [sites]: sites far apart that train one model, and the links between."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from topologies.errors import InputError
from topologies.settings import (
    Bandwidth,
    Count,
    Duration,
    Examples,
    Latency,
    Listed,
    NameChoice,
    Size,
    Spec,
)

OUTER_OPTIMIZERS = ("nesterov", "average")
"""What is done with the mean of the sites' changes: a step of Nesterov's momentum
(DiLoCo), or nothing more (local SGD)."""

MOST_SITES = 1000
"""Sites of one job."""

MATHIS = math.sqrt(1.5)
"""Constant of Mathis's throughput of a TCP connection, where losses are periodic and
every segment is acknowledged (Mathis, Semke, Mahdavi and Ott, "The Macroscopic Behavior
of the TCP Congestion Avoidance Algorithm", Computer Communication Review, 1997)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesSpec(Spec):
    """Sites that train one model, each of them a cluster as [cluster] has it."""

    count: Annotated[int, Ge(2), Le(MOST_SITES), Examples(2)]
    """Sites. Each has the devices of [cluster] and the batch of [training]."""

    bandwidth: Annotated[Bandwidth, Examples("10 Gbit/s")]
    """Bandwidth of a site's wide-area uplink, each way, which its devices share
    [byte/s]."""

    latency: Annotated[Latency, Examples("30 ms")]
    """One way, from a site to the next one [s]."""

    slow_uplinks: Annotated[
        tuple[Bandwidth, ...],
        Listed(1, MOST_SITES),
        Examples(["2 Gbit/s"], default=None),
    ] = ()
    """Bandwidths of the uplinks of those sites that have less than `bandwidth`. Rings
    go in lockstep: the slowest uplink decides [byte/s]."""

    share: Annotated[Annotated[float, Gt(0), Le(1)], Examples(0.5)] = 1.0
    """Share of the uplink that others leave to the job."""

    loss: Annotated[Annotated[float, Ge(0), Lt(1)], Examples(0.0001)] = 0.0
    """Share of the packets that the wide-area network loses: then no TCP connection is
    faster than Mathis et al. (1997) have it, sqrt(3/2) segments for each round trip,
    over the square root of the loss."""

    connections: Annotated[Count, Examples(64)] = 1
    """TCP connections of a site to the next one. They matter with loss."""

    mss: Annotated[Size, Examples(default="1460 B")] = 1460.0
    """Payload of a TCP segment; by default that of Ethernet's frames [byte]."""

    sync_every: Annotated[Count, Examples(500)] = 100
    """Inner steps between two synchronisations of the same parameters."""

    outer_optimizer: Annotated[str, NameChoice(OUTER_OPTIMIZERS)] = "nesterov"
    """What the mean of the sites' changes becomes: a step of Nesterov's momentum as in
    DiLoCo ("nesterov"), or the new parameters ("average", local SGD)."""

    fragments: Annotated[Count, Examples(8)] = 1
    """Parts of the model that are synchronised in turn, evenly over `sync_every`, as in
    Streaming DiLoCo. A divisor of `sync_every`."""

    delay: Annotated[Annotated[int, Ge(0)], Examples(1)] = 0
    """Inner steps that go on while a synchronisation is under way; less than
    `sync_every`."""

    compression: Annotated[Literal[32, 16, 8, 4], Examples(8)] = 32
    """Bits of a value that sites exchange."""

    offload: bool = False
    """Whether the hosts keep the outer optimizer's state between synchronisations."""

    step_time: Annotated[Duration | None, Examples("2.6 s")] = None
    """Time of an inner step. Left out, that of the plan in [plan] in the replay, or of
    the plan that `nestsim run` finds [s]."""

    synchronous: bool = False
    """Whether gradients are all-reduced over all sites in each step instead: as one
    cluster, data parallel over the wide-area network."""

    def __post_init__(self) -> None:
        outer = {"sync_every": 100, "fragments": 1, "delay": 0, "compression": 32}
        given = [name for name, usual in outer.items() if getattr(self, name) != usual]
        if self.synchronous and given:
            raise InputError(
                "says how often sites meet that meet in each step",
                where=given[0],
                got=getattr(self, given[0]),
                expected="none with synchronous = true",
            )
        if len(self.slow_uplinks) > self.count:
            raise InputError(
                "has more uplinks than there are sites",
                where="slow_uplinks",
                got=len(self.slow_uplinks),
                expected=f"at most {self.count}",
            )
        if self.sync_every % self.fragments:
            raise InputError(
                "does not divide sync_every",
                where="fragments",
                got=f"{self.fragments:,}, with sync_every = {self.sync_every:,}",
                expected=f"e.g. {self.most_fragments(self.fragments):,}",
            )
        if self.delay >= self.sync_every:
            raise InputError(
                "is no less than sync_every",
                where="delay",
                got=f"{self.delay:,} steps",
                expected=f"at most {self.sync_every - 1:,}",
            )

    def most_fragments(self, most: int) -> int:
        """Return the most fragments that divide `sync_every`, of so many at most."""
        fewer = range(min(most, self.sync_every), 0, -1)
        return next(count for count in fewer if self.sync_every % count == 0)

    def tcp_rate(self, latency: float) -> float:
        """Return what the connections of a site carry at most [byte/s].

        Infinite without loss, or without latency.

        Parameters
        ----------
        latency
            One way between sites [s].
        """
        if not (self.loss and latency):
            return math.inf
        segments = MATHIS / math.sqrt(self.loss)
        return self.connections * segments * self.mss / (2.0 * latency)

    @property
    def slowest(self) -> float:
        """Bandwidth of the slowest uplink [byte/s]."""
        return min((self.bandwidth, *self.slow_uplinks))

    def rates(self) -> tuple[float, ...]:
        """Return what each site sends, and receives, at most [byte/s]."""
        usual = self.count - len(self.slow_uplinks)
        uplinks = (*(self.bandwidth,) * usual, *self.slow_uplinks)
        return tuple(self.rate(bandwidth=uplink) for uplink in uplinks)

    def rate(
        self, bandwidth: float | None = None, latency: float | None = None
    ) -> float:
        """Return what a site with the slowest uplink sends at most [byte/s].

        Parameters
        ----------
        bandwidth
            Of the uplink, in place of the slowest one's [byte/s].
        latency
            One way between sites, in place of the table's [s].
        """
        uplink = self.slowest if bandwidth is None else bandwidth
        delay = self.latency if latency is None else latency
        return min(self.share * uplink, self.tcp_rate(delay))
