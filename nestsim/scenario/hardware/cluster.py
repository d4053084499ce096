"""The table [cluster]: which devices, how many, and their memory."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from estimators.collectives.transports import Scope
from estimators.operators.profile import Profile, read_profile
from nestsim.scenario.base import (
    Bandwidth,
    Count,
    Latency,
    Power,
    Rate,
    Size,
    SizeOrNothing,
    Table,
    Text,
    input_file,
)
from nestsim.scenario.errors import nearest
from nestsim.scenario.hardware.described import SlurmTable
from nestsim.scenario.hardware.infragraph import InfraGraphTable
from nestsim.scenario.hardware.nccl_topo import NcclTopoTable
from nestsim.scenario.hardware.network import (
    CustomTable,
    DegradedTable,
    NetworkTable,
    with_measured,
)
from topologies.accelerators import (
    Accelerator,
    Host,
    accelerator_names,
    load_accelerator,
    usual_host,
)
from topologies.errors import InputError
from topologies.specs import CustomSpec, DevicesSpec, NetworkSpec
from topologies.units import format_size

NumberFormat = Literal[
    "fp64",
    "fp32",
    "tf32",
    "bf16",
    "fp16",
    "fp8",
    "mxfp8",
    "int8",
    "fp4",
    "nvfp4",
]


CatalogueName = Annotated[
    Text, Field(json_schema_extra={"enum": list(accelerator_names())})
]


class AcceleratorTable(Table):
    """A device that the catalogue does not have."""

    name: Text = Field(examples=["my-accelerator"])
    """Name of the device, by which reports call it."""

    vendor: Text = Field("unknown", examples=["NVIDIA"])
    """Who makes the device."""

    peak_flops: dict[NumberFormat, Rate] = Field(
        min_length=1, examples=[{"bf16": "989 TFLOP/s"}]
    )
    """Dense rate of matrix products for each number format [FLOP/s]."""

    memory_bytes: Size
    """Memory of one device [byte]."""

    memory_bandwidth: Bandwidth
    """Bandwidth of the device's memory [byte/s]."""

    num_compute_units: Count = Field(examples=[132])
    """Streaming multiprocessors of a GPU, matrix units of a TPU."""

    vector_engine: bool = False
    """Whether elementwise work has an engine of its own that runs beside the matrix
    units, as on a TPU."""

    interconnect_bandwidth: Bandwidth
    """Bandwidth of all scale-up ports (NVLink, ICI, PCIe) of one device together, in
    one direction [byte/s]."""

    tdp: Power | None = Field(None, examples=["700 W"])
    """Thermal design power of one device, for [cost] [W]."""

    sources: dict[Text, Text] = Field(
        {}, examples=[{"memory_bytes": "data sheet, page 2"}]
    )
    """Where each value was published; for the reader alone."""

    def build(self) -> Accelerator:
        """Return the device for the estimators."""
        peak_flops = {str(name): rate for name, rate in self.peak_flops.items()}
        return Accelerator(
            name=self.name,
            vendor=self.vendor,
            peak_flops=peak_flops,
            memory_bytes=self.memory_bytes,
            memory_bandwidth=self.memory_bandwidth,
            num_compute_units=self.num_compute_units,
            vector_engine=self.vector_engine,
            interconnect_bandwidth=self.interconnect_bandwidth,
            tdp=self.tdp,
            sources=dict(self.sources),
        )


class LikeAcceleratorTable(Table):
    """A device of the catalogue with other values: what is left out is as there."""

    like: CatalogueName = Field(examples=["h100-sxm"])
    """A name that `nestsim accelerators` lists. What products and collectives reach of
    rates, and the usual server, are that device's, too."""

    name: Text | None = Field(None, examples=["my-h100"])
    """Name of the device, by which reports call it. Left out, `like`."""

    vendor: Text | None = Field(None, examples=["NVIDIA"])
    """Who makes the device."""

    peak_flops: dict[NumberFormat, Rate] | None = Field(
        None, min_length=1, examples=[{"bf16": "800 TFLOP/s"}]
    )
    """Dense rate of matrix products for the number formats that differ [FLOP/s]."""

    memory: Size | None = Field(None, examples=["96 GB"])
    """Memory of one device [byte]."""

    memory_bandwidth: Bandwidth | None = None
    """Bandwidth of the device's memory [byte/s]."""

    num_compute_units: Count | None = Field(None, examples=[114])
    """Streaming multiprocessors of a GPU, matrix units of a TPU."""

    vector_engine: bool | None = Field(None, examples=[True])
    """Whether elementwise work has an engine of its own that runs beside the matrix
    units, as on a TPU."""

    interconnect_bandwidth: Bandwidth | None = None
    """Bandwidth of all scale-up ports (NVLink, ICI, PCIe) of one device together, in
    one direction [byte/s]."""

    tdp: Power | None = Field(None, examples=["700 W"])
    """Thermal design power of one device, for [cost] [W]."""

    sources: dict[Text, Text] = Field({}, examples=[{"memory": "data sheet, page 2"}])
    """Where each value was published; for the reader alone."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, value: object) -> object:
        """Take `memory_bytes`, as a whole table has it, for `memory`."""
        if not isinstance(value, dict) or "memory" in value:
            return value
        names = {"memory_bytes": "memory"}
        return {names.get(key, key): one for key, one in value.items()}

    def build(self) -> Accelerator:
        """Return the device for the estimators."""
        base = _from_catalogue(self.like, "accelerator.like")
        given: dict[str, Any] = {
            "vendor": self.vendor,
            "memory_bytes": self.memory,
            "memory_bandwidth": self.memory_bandwidth,
            "num_compute_units": self.num_compute_units,
            "vector_engine": self.vector_engine,
            "interconnect_bandwidth": self.interconnect_bandwidth,
            "tdp": self.tdp,
        }
        if self.peak_flops is not None:
            rates = {str(name): rate for name, rate in self.peak_flops.items()}
            given["peak_flops"] = {**base.peak_flops, **rates}
        written = {name: value for name, value in given.items() if value is not None}
        sources = {k: v for k, v in base.sources.items() if k not in written}
        return replace(
            base,
            name=self.name or self.like,
            measured_as=base.constants_name,
            like=self.like,
            overrides=tuple(written),
            sources={**sources, **self.sources},
            **written,
        )


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


def _name_or_table(value: object) -> str | None:
    if isinstance(value, str):
        return "name"
    if isinstance(value, LikeAcceleratorTable) or (
        isinstance(value, dict) and "like" in value
    ):
        return "LikeAcceleratorTable"
    return "AcceleratorTable" if isinstance(value, dict | AcceleratorTable) else None


DescribedTable = SlurmTable | NcclTopoTable | InfraGraphTable
"""Networks that are read from another program's file."""


class ClusterTable(Table):
    """The devices and the network that joins them."""

    accelerator: (
        Annotated[CatalogueName, Tag("name")]
        | Annotated[LikeAcceleratorTable, Tag("LikeAcceleratorTable")]
        | Annotated[AcceleratorTable, Tag("AcceleratorTable")]
    ) = Field(discriminator=Discriminator(_name_or_table), examples=["h100-sxm"])
    """A name that `nestsim accelerators` lists, a table that says which of them the
    device is like and in what it differs, such as `{ like = "h100-sxm", memory = "96
    GB" }`, or a table that describes a device."""

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

    degraded: DegradedTable | None = Field(
        None, examples=[{"removed_links": ["leaf 0 <-> spine"]}]
    )
    """What of the cluster is slow or gone. Left out, nothing is."""

    def build_accelerator(self) -> Accelerator:
        """Return the device for the estimators."""
        if isinstance(self.accelerator, str):
            device = _from_catalogue(self.accelerator, "accelerator")
        else:
            device = self.accelerator.build()
        if self.memory_reserve >= device.memory_bytes:
            raise InputError(
                "leaves no memory to train in",
                where="memory_reserve",
                got=format_size(self.memory_reserve),
                expected=f"less than the {format_size(device.memory_bytes)} of "
                f"{device.name}",
            )
        return device

    def described(self, folder: Path) -> "tuple[ClusterTable, tuple[str, ...]]":
        """Return the cluster with its network read, and what was assumed of it.

        Parameters
        ----------
        folder
            The scenario file's; other files are named relative to it.
        """
        if not isinstance(self.network, DescribedTable):
            return self, ()
        try:
            found = self.network.read(folder)
        except InputError as error:
            raise error.at("network") from None
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
        try:
            if isinstance(network, CustomTable):
                return network.build(folder)
            return with_measured(network, reached).build()
        except InputError as error:
            raise error.at("network") from None

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
        try:
            return read_profile(path)
        except InputError as error:
            raise error.at("profile", ": ") from None

    def check_num_devices(self, found: int) -> None:
        """Refuse a network that does not have as many devices as is said here."""
        if self.num_devices not in {None, found}:
            raise InputError(
                "does not agree with the network",
                where="num_devices",
                got=self.num_devices,
                expected=f"{found}, which is what cluster.network adds up to",
            )


def _from_catalogue(name: str, where: str) -> Accelerator:
    known = accelerator_names()
    if name not in known:
        raise InputError(
            "no such accelerator in the catalogue",
            where=where,
            got=name,
            expected="one of " + ", ".join(known) + ", or a table that describes it",
            hint=nearest(name, known),
        )
    return load_accelerator(name)
