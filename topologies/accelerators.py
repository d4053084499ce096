"""Accelerators: peak rates and memory, with a source for every number.

The catalogue is one TOML file per accelerator beside this module, in ``catalog``.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import tomli

from topologies.errors import InputError
from topologies.units import parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device, as its vendor describes it."""

    name: str
    """Catalogue name, e.g. ``"h100-sxm"``."""

    vendor: str
    """Name of the company that makes the device."""

    peak_flops: Mapping[str, float]
    """Number format (``"bf16"``, ``"fp16"``, ``"tf32"``, ``"fp32"``, ``"fp8"``) ->
    dense matrix rate [FLOP/s]."""

    memory_bytes: float
    """Size of the device memory [byte]."""

    memory_bandwidth: float
    """Bandwidth of the device memory [byte/s]."""

    num_compute_units: int
    """Number of compute units: streaming multiprocessors of a GPU, matrix units of a
    TPU."""

    vector_engine: bool = False
    """Whether elementwise work has an engine of its own that runs beside the matrix
    units, as on a TPU."""

    interconnect_bandwidth: float
    """Bandwidth into the scale-up network (NVLink, ICI, PCIe), one direction, all ports
    of one device together [byte/s]."""

    sources: Mapping[str, str]
    """Field name -> where its value was published."""


_CATALOG = resources.files("topologies") / "catalog"
_SUFFIX = ".toml"


def accelerator_names() -> tuple[str, ...]:
    """Return the names of the catalogue, sorted."""
    files = [entry.name for entry in _CATALOG.iterdir()]
    return tuple(
        sorted(name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX))
    )


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
    values = tomli.loads((_CATALOG / f"{name}{_SUFFIX}").read_text(encoding="utf-8"))
    return _from_table(name, values)


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
        sources=values["sources"],
    )
