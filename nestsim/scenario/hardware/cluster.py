"""The table [cluster]: which devices, how many, and their memory."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from estimators.collectives.transports import Scope
from estimators.operators.profile import Profile, read_profile
from nestsim.scenario.base import BuiltFrom, Table, input_file
from nestsim.scenario.hardware.accelerator import (
    MOST_GROUPS,
    AnyAccelerator,
    DeviceGroup,
    distinct_groups,
)
from nestsim.scenario.hardware.described import InfraGraphTable, SlurmTable
from nestsim.scenario.hardware.kinds import NetworkTable, built_record
from nestsim.scenario.hardware.nccl_topo import NcclTopoTable
from nestsim.scenario.hardware.systems import systems
from topologies.accelerators import (
    Accelerator,
    Host,
    accelerator_names,
    usual_host,
)
from topologies.circuits import OpticalSpec
from topologies.degrade import Degradation, SlowDevice, SlowFraction, SlowLinks
from topologies.errors import InputError, located
from topologies.joined_specs import NetworkSpec
from topologies.link_events import LinkEvent
from topologies.settings import (
    MAX_COUNT,
    Bandwidth,
    Count,
    Distinct,
    Examples,
    Factor,
    Fraction,
    Latency,
    Listed,
    NameChoice,
    Seed,
    SizeOrNothing,
    Text,
)
from topologies.specs import CustomSpec, DevicesSpec
from topologies.units import format_size


class HostTable(Table):
    """What stands behind each device: where plans offload to.

    What is left out is that of the accelerator's usual server.
    """

    link: Literal["pcie3", "pcie4", "pcie5", "pcie6", "nvlink-c2c"] | None = Field(
        None, examples=["pcie4"]
    )
    """The link between host and device: 16 lanes of a PCIe generation, or NVLink-C2C.
    Left out, the accelerator's."""

    bandwidth_to_device: Bandwidth | None = Field(None, examples=["25 GB/s"])
    """What one host link carries towards devices, in place of `link`'s [byte/s]."""

    bandwidth_to_host: Bandwidth | None = Field(None, examples=["25 GB/s"])
    """What one host link carries towards the host, in place of `link`'s [byte/s]."""

    latency: Latency = Field(
        2e-6, json_schema_extra={"default": "2 us"}, examples=["2 us"]
    )
    """Time from a transfer's begin until its first byte arrives [s]."""

    devices_per_link: Count | None = Field(None, examples=[2])
    """Consecutive devices that share one host link. Left out, the accelerator's: 2 in
    GB200 superchips, else 1."""

    memory: SizeOrNothing | None = Field(None, examples=["250 GB"])
    """Memory of the host that each of its devices may use [byte]. Left out, that of the
    accelerator's usual server."""

    adam_parameters_per_second: float | None = Field(
        None, gt=0, le=1e15, examples=[5e8]
    )
    """Parameters that the host updates with Adam each second for each of its devices.
    Left out, an eighth of what ZeRO-Offload measured on two Xeons, 4.9e8."""

    def build(self, accelerator: str) -> Host:
        """Return what stands behind each device.

        Parameters
        ----------
        accelerator
            Name of the device.
        """
        given: dict[str, Any] = {
            "to_device": self.bandwidth_to_device,
            "to_host": self.bandwidth_to_host,
            "devices_per_link": self.devices_per_link,
            "memory": self.memory,
            "adam_rate": self.adam_parameters_per_second,
        }
        usual = usual_host(accelerator, self.link)
        written = {name: value for name, value in given.items() if value is not None}
        return replace(usual, latency=self.latency, **written)


MOST_PARTS = 1000

MOST_EVENTS = 100
"""Events of links that a scenario may have."""

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


DescribedTable = SlurmTable | NcclTopoTable | InfraGraphTable
"""Networks that are read from another program's file."""


class ClusterTable(Table):
    """The devices and the network that joins them."""

    system: Annotated[str, NameChoice(tuple(systems()))] | None = Field(
        None, examples=["dgx-h100"]
    )
    """A machine that `nestsim systems` lists, of `num_devices` devices: what stands for
    `accelerator` and `network` where these are left out."""

    accelerator: AnyAccelerator = Field(examples=["h100-sxm"])
    """A name that `nestsim accelerators` lists, a table that says which of them the
    device is like and in what it differs, such as `{ like = "h100-sxm", memory_bytes =
    "96 GB" }`, or a table that describes a device. Where there are `groups`, the one of
    them that the network and the hosts are taken to be made for; left out, the first
    group's."""

    groups: (
        Annotated[list[DeviceGroup], Field(min_length=1, max_length=MOST_GROUPS)] | None
    ) = Field(None, examples=[[{"accelerator": "a100-80gb", "num_devices": 32}]])
    """Groups of devices that are not all the same, in the order of their numbers. Left
    out, all devices are `accelerator`."""

    profile: Text | None = Field(None, examples=["h200.json"])
    """File of operator times that `nestsim profile` measured on such a device, relative
    to the scenario's folder; they are taken instead of the accelerator's rates."""

    num_devices: Count | None = Field(None, examples=[64])
    """Devices of the cluster. The network says how many there are, and this is only
    checked; without a network it must be given."""

    memory_reserve: SizeOrNothing = Field(
        0.0, json_schema_extra={"default": "0 B"}, examples=["2 GiB"]
    )
    """Memory that plans leave free on every device, for the framework and fragmentation
    [byte]."""

    network: NetworkTable | DescribedTable | None = Field(
        None, discriminator="kind", examples=[{"kind": "custom", "path": "links.csv"}]
    )
    """How the devices are joined: a table whose "kind" says which network it is. Left
    out, `nestsim memory` alone can say something, of `num_devices` devices."""

    host: HostTable = Field(
        HostTable.model_validate({}),
        json_schema_extra={"default": {}},
        examples=[{"link": "pcie4", "memory": "250 GB"}],
    )
    """What stands behind each device, for plans that offload."""

    degraded: Annotated[Degradation, BuiltFrom(DegradedTable)] | None = Field(
        None, examples=[{"removed_links": ["leaf 0 <-> spine"]}]
    )
    """What of the cluster is slow or gone. Left out, nothing is."""

    link_events: Annotated[
        tuple[LinkEvent, ...],
        Listed(1, MOST_EVENTS),
        Examples(
            [{"time": "1.5 s", "links": "leaf 0 <-> spine 1", "is_down": True}],
            default=None,
        ),
    ] = ()
    """What happens to links in the middle of the step: `nestsim simulate` says what the
    step takes with and without; other commands do not read it."""

    optical: Annotated[
        OpticalSpec | None,
        Examples({"level": "leaf", "ports": 4, "reconfiguration_time": "25 ms"}),
    ] = None
    """Switches that are optical circuit switches: `nestsim simulate` says what the step
    takes with circuits; other commands do not read it. Left out, all pass on
    packets."""

    def checked_accelerator(self) -> Accelerator:
        """Return the device for the estimators."""
        self._check_reserve(self.accelerator)
        return self.accelerator

    def checked_groups(
        self, reference: Accelerator, num_devices: int
    ) -> tuple[DeviceGroup, ...]:
        """Return the groups of devices, none where all are the same.

        Parameters
        ----------
        reference
            The accelerator that stands for the cluster.
        num_devices
            Devices of the network.
        """
        if self.groups is None:
            return ()
        built = distinct_groups(self.groups, reference, num_devices)
        for group in built:
            self._check_reserve(group.accelerator)
        if self.profile is not None and len(built) > 1:
            raise InputError(
                "is of one kind of device",
                where="profile",
                got=self.profile,
                expected="no profile where groups are of several accelerators",
            )
        return built

    def _check_reserve(self, device: Accelerator) -> None:
        """Refuse to leave all memory of a device free."""
        if self.memory_reserve >= device.memory_bytes:
            raise InputError(
                "leaves no memory to train in",
                where="memory_reserve",
                got=format_size(self.memory_reserve),
                expected=f"less than the {format_size(device.memory_bytes)} of "
                f"{device.name}",
            )

    @model_validator(mode="wrap")
    @classmethod
    def _first_of_groups(
        cls, value: object, handler: ModelWrapValidatorHandler["ClusterTable"]
    ) -> "ClusterTable":
        """Take the first group's accelerator where none stands for the cluster.

        What is wrong with the groups is said of them alone.
        """
        if (
            not isinstance(value, dict)
            or "accelerator" in value
            or value.get("groups") is None
        ):
            return handler(value)
        table = handler({**value, "accelerator": accelerator_names()[0]})
        assert table.groups
        first = table.groups[0].accelerator
        return table.model_copy(update={"accelerator": first})

    def described(self, folder: Path) -> "tuple[ClusterTable, tuple[str, ...]]":
        """Return the cluster with its network read, and what was assumed of it.

        Parameters
        ----------
        folder
            The scenario file's; other files are named relative to it.
        """
        if not isinstance(self.network, DescribedTable):
            return self, ()
        with located("network"):
            found = self.network.read(folder)
        return self.model_copy(update={"network": found.network}), found.assumed

    @property
    def joined(self) -> NetworkTable | CustomSpec | None:
        """How devices are joined, once `described` has read what a file describes."""
        assert not isinstance(self.network, DescribedTable)
        return self.network

    def build_network(
        self, folder: Path, reached: Mapping[Scope, float] = MappingProxyType({})
    ) -> NetworkSpec:
        """Return the record for the network's builder.

        Parameters
        ----------
        folder
            The scenario file's; other files are named relative to it.
        reached
            What collectives reach of links inside nodes and between them: the
            efficiency of those that state none.
        """
        network = self.joined
        if network is None:
            return self._devices()
        if isinstance(network, CustomSpec):
            return network
        with located("network"):
            return built_record(network, folder, reached)

    def _devices(self) -> DevicesSpec:
        """Return the devices alone."""
        if self.num_devices is None:
            raise InputError(
                "setting is missing",
                where="network",
                expected="a table [cluster.network]; for nestsim memory, num_devices "
                "will do",
            )
        return DevicesSpec(num_devices=self.num_devices)

    def read_profile(self, folder: Path) -> Profile | None:
        """Return the measured operator times, None if there are none.

        Parameters
        ----------
        folder
            The scenario file's.
        """
        if self.profile is None:
            return None
        expected = "a file that nestsim profile wrote, in the scenario's folder"
        path = input_file(folder, self.profile, "profile", expected)
        with located("profile", ": "):
            return read_profile(path)

    def check_num_devices(self, found: int) -> None:
        """Refuse a network that does not have as many devices as is said here."""
        if self.num_devices not in {None, found}:
            raise InputError(
                "does not agree with the network",
                where="num_devices",
                got=self.num_devices,
                expected=f"{found}, which is what cluster.network adds up to",
            )
