"""What records of networks share: limits, and what every kind answers for itself.

References
----------
.. [1] R. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)",
   COMHPC 2016.
.. [2] NCCL, environment variable NCCL_NVLS_ENABLE: NVLink SHARP, from Hopper on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from topologies.errors import InputError, check_efficiency
from topologies.network import Tier

MAX_DEVICES = 2**20
"""Largest cluster that the builders take."""

MAX_SPINE_LINKS = 2**22
"""Most separate leaf-to-spine links (ECMP) that the builders take."""

MAX_CABLES = 2**40
"""Most cables of one link; the number is kept in 64 bits."""

MAX_SLOWDOWN = 1e9
"""Largest product of all factors on one link or device."""


def check_num_devices(where: str, value: int) -> None:
    """Refuse a cluster of more than `MAX_DEVICES`."""
    if value > MAX_DEVICES:
        expected = f"at most {MAX_DEVICES} devices"
        raise InputError("too many devices", where=where, got=value, expected=expected)


Tiers = Sequence[Tier]
"""Tiers of the network that is built of a record."""


class FabricRecord:
    """What all kinds of networks answer, and how those without switches do."""

    __slots__ = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that say more than the record does."""
        return ()

    def without_folders(self) -> Self:
        """Return the same record wherever its files lie, for hashes of jobs."""
        return self

    def located(self, error: InputError, table: str) -> InputError:
        """Return an error of the network with the setting of a table that it is of."""
        return error.at(table)

    def with_ecmp_seed(self, seed: int) -> Self:
        """Return the network with separate cables, picked by a hash of this seed.

        Raises
        ------
        InputError
            If no hash can pick any.
        """
        raise InputError(
            "there are no parallel cables for a hash to choose from",
            where="ecmp_seed",
            got=seed,
            expected="a tree of switches",
        )

    def with_oversubscription(self, tiers: Tiers, number: int, ratio: float) -> Self:
        """Return the network with other links up from one tier, and nothing else.

        ``tiers`` are those of the network as it is built; ``number`` is of one of them.

        Raises
        ------
        InputError
            If tiers have no links up.
        """
        raise InputError(
            "there are no links to a level above",
            where=tiers[number].name,
            got=ratio,
            expected="a tree of switches",
        )


Nic = Literal["node", "device"]
"""Who has a link out of a node: the node, or each of its devices."""

Trunk = Literal["ideal", "spraying", "adaptive", "ecmp"]
"""Whether parallel cables act as one, or are links that a hash picks from (ECMP).

They act as one where a switch picks a cable for each packet: in turn or at random
(Dixit et al., "On the Impact of Packet Spraying in Data Center Networks", INFOCOM 2013,
abstract), or the one with the shortest queue (NVIDIA, "InfiniBand Cluster Bring-up
Procedure", 2023, "Adaptive Routing"; Spectrum-X)."""

Ways = Literal["ideal", "ecmp"]
"""Whether pairs of switches take turns over equally short ways, or a hash picks one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedRecord(FabricRecord):
    """What switches do beside passing on, in networks that have any."""

    sharp: bool = False
    """Whether switches outside nodes add up all-reduces on their way [1]_."""

    nvls: bool = False
    """Whether a node's switches add up all-reduces and multicast the sums [2]_."""

    nvls_efficiency: float | None = None
    """Fraction of the bandwidth inside a node that these reach; None: as all else."""

    def summed_weight(self, node_efficiency: float) -> float:
        """Return the load of a byte that a node's switches add up, over another's.

        1 where they are as fast, and 0 where they add up nothing.
        """
        if not self.nvls:
            return 0.0
        return max(1.0, node_efficiency / (self.nvls_efficiency or node_efficiency))

    def check_sums(self) -> None:
        """Refuse an efficiency of sums that nobody does."""
        if self.nvls_efficiency is None:
            return
        check_efficiency("nvls_efficiency", self.nvls_efficiency)
        if not self.nvls:
            raise InputError(
                "is of switches that add up nothing",
                where="nvls_efficiency",
                got=self.nvls_efficiency,
                hint="write nvls = true beside it",
            )
