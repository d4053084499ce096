"""The table [cluster.degraded]: what of the cluster is slow or gone."""

from typing import Annotated

from pydantic import Field

from nestsim.scenario.base import MAX_COUNT, Distinct, Factor, Table, Text
from topologies.degrade import Degradation, SlowDevice, SlowLinks

MOST_PARTS = 1000

DeviceNumber = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


class SlowLinksTable(Table):
    """Links that carry less than they were built for."""

    links: Text = Field(examples=["leaf 0 <-> spine *", "level spine"])
    """Which: two neighbours by name ("->" one way, "<->" both ways, "*" for any text,
    "#1" for the second of several cables), or all links of a level."""

    factor: Factor = Field(examples=[4.0])
    """What their bandwidth is divided by."""

    def build(self) -> SlowLinks:
        """Return the record for the network."""
        return SlowLinks(links=self.links, factor=self.factor)


class SlowDeviceTable(Table):
    """A device that computes more slowly than the others."""

    device: DeviceNumber = Field(examples=[5])
    """Its number, from 0."""

    factor: Factor = Field(examples=[1.5])
    """What its compute times are multiplied by."""

    def build(self) -> SlowDevice:
        """Return the record for the replay."""
        return SlowDevice(device=self.device, factor=self.factor)


class DegradedTable(Table):
    """What of the cluster is slow or gone; routes go round what is gone.

    What is named several times is slowed by the product of the factors.
    """

    removed_links: Distinct[Text] | None = Field(None, examples=[["leaf 0 <-> spine"]])
    """Links that are gone, named as in slow_links."""

    removed_switches: Distinct[Text] | None = Field(None, examples=[["spine 1"]])
    """Switches that are gone with all their links, by name; "*" stands for any
    text."""

    slow_links: (
        Annotated[list[SlowLinksTable], Field(min_length=1, max_length=MOST_PARTS)]
        | None
    ) = Field(None, examples=[[{"links": "level spine", "factor": 2.0}]])
    """Links with less bandwidth."""

    slow_devices: (
        Annotated[list[SlowDeviceTable], Field(min_length=1, max_length=MOST_PARTS)]
        | None
    ) = Field(None, examples=[[{"device": 5, "factor": 1.5}]])
    """Devices that compute more slowly. Plans are made as if they did not; the replay
    shows what they cost."""

    def build(self) -> Degradation:
        """Return the record for the network and the replay.

        Whether the names mean something shows only when the network has been built.
        """
        return Degradation(
            removed_links=tuple(self.removed_links or ()),
            removed_switches=tuple(self.removed_switches or ()),
            slow_links=tuple(one.build() for one in self.slow_links or ()),
            slow_devices=tuple(one.build() for one in self.slow_devices or ()),
        )
