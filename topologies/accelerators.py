"""Accelerators and the hosts behind them, with a source for every number.

The catalogue of accelerators is one TOML file each beside this module, in ``catalog``.
Devices that share a host link are two GPUs of a GB200 superchip, or the GPUs below one
PCIe switch. `topologies.network.Network.with_host` makes links of it.

What a PCIe link carries of its raw rate are the payloads of packets of 256 bytes: 92 %
are left by the data link layer, and each packet has 24 bytes around it [1]_.

References
----------
.. [1] Neugebauer et al., "Understanding PCIe performance for end host networking",
   SIGCOMM 2018, section 3: 57.88 of 62.96 Gbit/s, and headers of writes.
.. [2] PCI-SIG, "PCI Express Base Specification" 3.1 (8 GT/s), 4.0 (16), 5.0 (32) and
   6.0 (64): 16 lanes.
.. [3] NVIDIA, "NVIDIA Grace Hopper Superchip Architecture" whitepaper, 2023: NVLink-C2C
   900 GB/s, both directions together.
.. [4] NVIDIA, "GB200 NVL72" data sheet, 2024: one Grace for two Blackwell GPUs.
.. [5] Ren et al., "ZeRO-Offload", USENIX ATC 2021, section 5 and table 4: Adam for 10e9
   parameters takes 2.57 s on a DGX-2's two Xeon Platinum 8168.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Annotated, Any

import tomli
from annotated_types import MinLen

from topologies.errors import InputError
from topologies.settings import (
    Bandwidth,
    Count,
    Derived,
    Examples,
    NameChoice,
    Power,
    Rate,
    Size,
    Spec,
    Text,
)
from topologies.units import parse_quantity

_CATALOG = resources.files("topologies") / "catalog"
_SUFFIX = ".toml"


def accelerator_names() -> tuple[str, ...]:
    """Return the names of the catalogue, sorted."""
    files = [entry.name for entry in _CATALOG.iterdir()]
    return tuple(
        sorted(name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX))
    )


RATE_FORMATS = (
    *("fp64", "fp32", "tf32", "bf16", "fp16"),
    *("fp8", "mxfp8", "int8", "fp4", "nvfp4"),
)
"""Number formats in which a device may have a rate of matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator(Spec):
    """A device as its vendor describes it, or one like a device of the catalogue.

    With `like`, what is left out is as there; without, all must be given but for what
    has a default.
    """

    like: Annotated[
        Text, NameChoice(accelerator_names()), Examples("h100-sxm", default=None)
    ] = ""
    """Device of the catalogue, as `nestsim accelerators` lists them, that this one is
    like. What products and collectives reach of rates, and the usual server, are that
    device's, too. Left out, this device is like no other."""

    name: Annotated[Text, Examples("my-accelerator")]
    """Name of the device, by which reports call it. Left out, `like`."""

    vendor: Annotated[Text, Examples("NVIDIA")] = "unknown"
    """Who makes the device."""

    peak_flops: Annotated[
        Mapping[Annotated[str, NameChoice(RATE_FORMATS)], Rate],
        MinLen(1),
        Examples({"bf16": "989 TFLOP/s"}),
    ]
    """Dense rate of matrix products for each number format; with `like`, for those that
    differ [FLOP/s]."""

    memory_bytes: Size
    """Memory of one device [byte]."""

    memory_bandwidth: Bandwidth
    """Bandwidth of the device's memory [byte/s]."""

    num_compute_units: Annotated[Count, Examples(132)]
    """Streaming multiprocessors of a GPU, matrix units of a TPU."""

    vector_engine: bool = False
    """Whether elementwise work has an engine of its own that runs beside the matrix
    units, as on a TPU."""

    interconnect_bandwidth: Bandwidth
    """Bandwidth of all scale-up ports (NVLink, ICI, PCIe) of one device together, in
    one direction [byte/s]."""

    tdp: Annotated[Power | None, Examples("700 W")] = None
    """Thermal design power of one device, for [cost] [W]."""

    measured_as: Annotated[str, Derived()] = ""
    """Device of the catalogue whose measured constants hold, where there are no
    measurements of this one: what products, kernels and collectives reach of the rates
    above. Empty for its own."""

    overrides: Annotated[tuple[str, ...], Derived()] = ()
    """Fields in which a user's device differs from the one that it is like."""

    sources: Annotated[
        Mapping[Text, Text],
        Examples({"memory_bytes": "data sheet, page 2"}, default={}),
    ] = field(default_factory=dict)
    """Where each value was published; for the reader alone."""

    @property
    def constants_name(self) -> str:
        """Name by which measured constants are looked up."""
        return self.measured_as or self.name


@cache
def load_accelerator(name: str) -> Accelerator:
    """Read one accelerator from the catalogue.

    Raises
    ------
    InputError
        If there is none of that name; the nearest spelling is suggested.
    """
    names = accelerator_names()
    if name not in names:
        close = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
        raise InputError(
            "unknown accelerator",
            got=name,
            expected="one of " + ", ".join(names),
            hint=f'did you mean "{close[0]}"?' if close else "",
        )
    return _from_table(name, catalogue_table(name))


@cache
def catalogue_table(name: str) -> dict[str, Any]:
    """Return an accelerator's table, which nobody changes."""
    return tomli.loads((_CATALOG / f"{name}{_SUFFIX}").read_text(encoding="utf-8"))


def _from_table(name: str, values: Mapping[str, Any]) -> Accelerator:
    rates = {f: parse_quantity(r, "rate") for f, r in values["peak_flops"].items()}
    return Accelerator(
        name=name,
        vendor=values["vendor"],
        peak_flops=rates,
        memory_bytes=parse_quantity(values["memory_bytes"], "size"),
        memory_bandwidth=parse_quantity(values["memory_bandwidth"], "bandwidth"),
        num_compute_units=values["num_compute_units"],
        interconnect_bandwidth=parse_quantity(
            values["interconnect_bandwidth"], "bandwidth"
        ),
        vector_engine=values.get("vector_engine", False),
        tdp=parse_quantity(values["tdp"], "power") if "tdp" in values else None,
        measured_as=values.get("measured_as", ""),
        sources=values["sources"],
    )


_PAYLOAD = 57.88 / 62.96 * 256 / 280
"""What 256 byte packets leave of a PCIe link's raw rate [1]_."""

ADAM_RATE = 10e9 / 2.57
"""Parameters that the processors of a server update with Adam each second [5]_."""


def _pcie(gigatransfers: float) -> float:
    """Return what 16 lanes of 128b/130b code carry [2]_ [byte/s]."""
    return gigatransfers * 1e9 * 16 / 8 * 128 / 130 * _PAYLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What stands behind each device: a link, memory and processors.

    Examples
    --------
    >>> round(usual_host("a100-80gb").to_device / 1e9, 1)
    26.5
    """

    to_device: float
    """Bandwidth of one host link from the host to its devices [byte/s]."""

    to_host: float
    """Bandwidth of one host link from its devices to the host [byte/s]."""

    latency: float = 2e-6
    """Time from a transfer's begin until its first byte arrives [s]."""

    devices_per_link: int = 1
    """Consecutive devices that share one host link."""

    memory: float
    """Memory of the host that each device may use [byte]."""

    adam_rate: float = ADAM_RATE / 8
    """Parameters that the host updates with Adam each second for each of its
    devices."""


HOST_LINKS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "pcie3": {"to_device": _pcie(8.0), "to_host": _pcie(8.0)},
        "pcie4": {"to_device": _pcie(16.0), "to_host": _pcie(16.0)},
        "pcie5": {"to_device": _pcie(32.0), "to_host": _pcie(32.0)},
        # Flits of a fixed size instead of a 128b/130b code: 236 of 256 bytes.
        "pcie6": {
            "to_device": 64e9 * 16 / 8 * 236 / 256,
            "to_host": 64e9 * 16 / 8 * 236 / 256,
        },
        "nvlink-c2c": {"to_device": 450e9, "to_host": 450e9},
    }
)
"""Name of a host link -> bandwidth to the device and to the host, per direction
[2]_, [3]_ [byte/s]."""

_UNKNOWN: Mapping[str, Any] = MappingProxyType(
    {"link": "pcie4", "devices_per_link": 1, "memory": "64 GB"}
)
"""What is taken for accelerators of which the catalogue names no host."""


def usual_host(accelerator: str, link: str | None = None) -> Host:
    """Return what usually stands behind an accelerator.

    Parameters
    ----------
    accelerator
        Name in the catalogue, or any other.
    link
        A name of `HOST_LINKS` in place of the usual one.
    """
    known = accelerator in accelerator_names()
    table = catalogue_table(accelerator) if known else {}
    host = table.get("host", _UNKNOWN)
    return Host(
        **HOST_LINKS[link or host["link"]],
        devices_per_link=host["devices_per_link"],
        memory=parse_quantity(host["memory"], "size"),
    )
