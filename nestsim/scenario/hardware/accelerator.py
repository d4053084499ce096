"""What a device is: a name of the catalogue, one like it, or a table of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from nestsim.scenario.base import Table
from nestsim.scenario.errors import nearest
from topologies.accelerators import Accelerator, accelerator_names, load_accelerator
from topologies.errors import InputError
from topologies.settings import Bandwidth, Count, Power, Rate, Size, Text

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


def _name_or_table(value: object) -> str | None:
    if isinstance(value, str):
        return "a name"
    if isinstance(value, LikeAcceleratorTable) or (
        isinstance(value, dict) and "like" in value
    ):
        return "LikeAcceleratorTable"
    return "AcceleratorTable" if isinstance(value, dict | AcceleratorTable) else None


AnyAccelerator = Annotated[
    Annotated[CatalogueName, Tag("a name")]
    | Annotated[LikeAcceleratorTable, Tag("LikeAcceleratorTable")]
    | Annotated[AcceleratorTable, Tag("AcceleratorTable")],
    Discriminator(_name_or_table),
]
"""A device in any of the three ways."""


def build_accelerator(
    given: str | LikeAcceleratorTable | AcceleratorTable,
) -> Accelerator:
    """Return a device for the estimators.

    Raises
    ------
    InputError
        If the catalogue has none of that name; the setting is `accelerator`.
    """
    if isinstance(given, str):
        return _from_catalogue(given, "accelerator")
    return given.build()


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


MOST_GROUPS = 1000
"""Groups of one cluster."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices of one accelerator, one after another."""

    accelerator: Accelerator
    """What the devices are."""

    num_devices: int
    """How many there are."""


class GroupTable(Table):
    """Devices of one accelerator, numbered one after another."""

    accelerator: AnyAccelerator = Field(examples=["a100-80gb"])
    """What the devices are, as `cluster.accelerator` says it."""

    num_devices: Count = Field(examples=[32])
    """Devices of the group. Groups follow each other, and make up the network."""


def build_groups(
    tables: Sequence[GroupTable], reference: Accelerator, num_devices: int
) -> tuple[DeviceGroup, ...]:
    """Return the groups of a cluster, none where all devices are the reference.

    Parameters
    ----------
    tables
        As they are written.
    reference
        The accelerator that stands for the cluster.
    num_devices
        Devices of the network.

    Raises
    ------
    InputError
        If they do not make up the network, or the reference is not among them.
    """
    groups = []
    for number, table in enumerate(tables):
        try:
            accelerator = build_accelerator(table.accelerator)
        except InputError as error:
            raise error.at(f"groups[{number}]") from None
        groups.append(DeviceGroup(accelerator, table.num_devices))
    found = sum(group.num_devices for group in groups)
    if found != num_devices:
        raise InputError(
            "do not make up the network",
            where="groups",
            got=f"{found:,} devices in {len(groups)} groups",
            expected=f"the {num_devices:,} devices of the network",
        )
    accelerators = [group.accelerator for group in groups]
    if reference not in accelerators:
        names = dict.fromkeys(accelerator.name for accelerator in accelerators)
        raise InputError(
            "is the accelerator of no group",
            where="accelerator",
            got=reference.name,
            expected="one of " + ", ".join(names) + ", or left out for the first",
            hint=f"the {reference.name} of the groups is written otherwise: write the "
            "same in both places"
            if reference.name in names
            else "",
        )
    return () if all(one == reference for one in accelerators) else tuple(groups)
