"""The table [cluster.degraded]: what of the cluster is slow or gone."""

from typing import Annotated

from pydantic import Field

from nestsim.scenario.base import BuiltFrom, Table
from topologies.degrade import Degradation, SlowDevice, SlowFraction, SlowLinks
from topologies.errors import InputError
from topologies.settings import (
    MAX_COUNT,
    Distinct,
    Examples,
    Factor,
    Fraction,
    Listed,
    Seed,
    Text,
)

MOST_PARTS = 1000

DeviceNumber = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


class SlowLinksTable(Table):
    """Links that carry less than they were built for."""

    links: Text = Field(examples=["leaf 0 <-> spine *", "level spine"])
    """Links that are slow: two neighbours by name ("->" one way, "<->" both ways, "*"
    for any text, "#1" for the second of several cables), or all links of a level."""

    factor: Factor = Field(examples=[4.0])
    """What the links' bandwidth is divided by."""

    def build(self) -> SlowLinks:
        """Return the record for the network."""
        return SlowLinks(links=self.links, factor=self.factor)


class SlowDeviceTable(Table):
    """A device that computes more slowly than the others, or a share of all devices."""

    device: DeviceNumber | None = Field(None, examples=[5])
    """Number of the slow device, from 0."""

    fraction: Fraction | None = Field(None, examples=[0.01])
    """Share of all devices that are slow, in place of `device`: the nearest whole
    number of them, halves up, and which ones is drawn at random. A share that is less
    than half a device is refused. Entries of one seed draw different devices."""

    factor: Factor = Field(examples=[1.5])
    """What the compute times of the device, or of each of the devices, are multiplied
    by."""

    seed: Seed | None = Field(None, examples=[0])
    """Seed of the draw of `fraction`. Left out, 0."""

    def build(self) -> SlowDevice | SlowFraction:
        """Return the record for the replay.

        Raises
        ------
        InputError
            If it names a device and a fraction, or neither of them.
        """
        if (self.device is None) == (self.fraction is None):
            raise InputError(
                "says which devices by none or both of its settings",
                where="device",
                expected="either device = 5 or fraction = 0.01",
            )
        if self.fraction is not None:
            return SlowFraction(
                fraction=self.fraction, factor=self.factor, seed=self.seed or 0
            )
        if self.seed is not None:
            raise InputError(
                "goes with a fraction alone",
                where="seed",
                got=self.seed,
                expected="left out: nothing is drawn where a device is named",
            )
        assert self.device is not None
        return SlowDevice(device=self.device, factor=self.factor)


class DegradedTable(Table):
    """What of the cluster is slow or gone; routes go round what is gone.

    What is named several times is slowed by the product of the factors.
    """

    removed_links: Annotated[
        Distinct[Text], Examples(["leaf 0 <-> spine"], default=None)
    ] = ()
    """Links that are gone, named as in `slow_links`."""

    removed_switches: Annotated[
        Distinct[Text], Examples(["spine 1"], default=None)
    ] = ()
    """Switches that are gone with all their links, by name; "*" stands for any
    text."""

    slow_links: Annotated[
        tuple[Annotated[SlowLinks, BuiltFrom(SlowLinksTable)], ...],
        Listed(1, MOST_PARTS),
        Examples([{"links": "level spine", "factor": 2.0}], default=None),
    ] = ()
    """Links that carry less than they were built for."""

    slow_devices: Annotated[
        tuple[Annotated[SlowDevice | SlowFraction, BuiltFrom(SlowDeviceTable)], ...],
        Listed(1, MOST_PARTS),
        Examples([{"device": 5, "factor": 1.5}], default=None),
    ] = ()
    """Devices that compute more slowly, by number or as a share of all; plans and their
    replays know which."""

    def build(self) -> Degradation:
        """Return the record for the network and the replay.

        Whether the names mean something shows only when the network has been built.
        """
        return Degradation(
            removed_links=self.removed_links,
            removed_switches=self.removed_switches,
            slow_links=self.slow_links,
            slow_devices=self.slow_devices,
        )
