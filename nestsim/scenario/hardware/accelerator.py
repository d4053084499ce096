"""What a device is: a name of the catalogue, one like it, or a table of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic_core.core_schema import no_info_wrap_validator_function

from nestsim.scenario.errors import nearest
from topologies.accelerators import (
    Accelerator,
    accelerator_names,
    catalogue_table,
    load_accelerator,
)
from topologies.errors import InputError
from topologies.settings import Count, Examples, Handler, Schema, Spec

_WRITTEN = (
    *("vendor", "memory_bytes", "memory_bandwidth", "num_compute_units"),
    *("vector_engine", "interconnect_bandwidth", "tdp", "peak_flops"),
)
"""What a device may have otherwise than the one that it is like."""

_SHORT = "memory"
"""Another name of `memory_bytes` in files."""


def _device(value: object, handler: Callable[[object], Accelerator]) -> Accelerator:
    """Return a device by its name, by its table, or by what it is like.

    Raises
    ------
    InputError
        If the catalogue has none of a name, or it is neither a name nor a table.
    """
    if isinstance(value, Accelerator):
        return value
    if isinstance(value, str):
        return _from_catalogue(value, "")
    if not isinstance(value, dict):
        raise InputError(
            "has the wrong type",
            got=value,
            expected='a name such as "h100-sxm", or a table with name, peak_flops, ..',
        )
    names = {} if "memory_bytes" in value else {_SHORT: "memory_bytes"}
    table = {names.get(key, key): setting for key, setting in value.items()}
    if "like" not in table:
        return handler(table)
    base = _from_catalogue(table["like"], "like")
    usual = catalogue_table(base.name)
    filled = {"name": base.name} | {k: usual[k] for k in _WRITTEN if k in usual} | table
    device = handler(filled)
    written = tuple(name for name in _WRITTEN if name in table)
    sources = {k: v for k, v in base.sources.items() if k not in written}
    return replace(
        device,
        peak_flops={**base.peak_flops, **device.peak_flops},
        measured_as=base.constants_name,
        overrides=written,
        sources={**sources, **device.sources},
    )


class _NamedOrWritten:
    """Marks a device that is a name of the catalogue, or a table."""

    def __get_pydantic_core_schema__(self, source: object, handler: Handler) -> Any:
        return no_info_wrap_validator_function(_device, handler(source))

    def __get_pydantic_json_schema__(self, schema: Schema, handler: Any) -> Schema:
        reference = handler(schema)
        table = handler.resolve_ref_schema(reference)
        if "required" in table:
            whole = {"required": table.pop("required")}
            table["anyOf"] = [{"required": ["like"]}, whole]
            settings = table["properties"]
            described = "Another name of `memory_bytes` [byte]."
            settings[_SHORT] = settings["memory_bytes"] | {"description": described}
        names = {"type": "string", "enum": list(accelerator_names())}
        return {"anyOf": [names, reference]}


AnyAccelerator = Annotated[Accelerator, _NamedOrWritten()]
"""A device by its name, or by a table."""


def _from_catalogue(name: object, where: str) -> Accelerator:
    # Modules before cards of the same chip.
    known = sorted(
        accelerator_names(), key=lambda known: "pcie" in known or "nvl" in known
    )
    if not isinstance(name, str) or name not in known:
        raise InputError(
            "no such accelerator in the catalogue",
            where=where,
            got=name,
            expected="one of "
            + ", ".join(sorted(known))
            + ", or a table that describes it",
            hint=nearest(name, known),
        )
    return load_accelerator(name)


MOST_GROUPS = 1000
"""Groups of one cluster."""


@dataclass(frozen=True, slots=True)
class DeviceGroup(Spec):
    """Devices of one accelerator, numbered one after another."""

    accelerator: Annotated[AnyAccelerator, Examples("a100-80gb")]
    """What the devices are, as `cluster.accelerator` says it."""

    num_devices: Annotated[Count, Examples(32)]
    """Devices of the group. Groups follow each other, and make up the network."""


def distinct_groups(
    groups: Sequence[DeviceGroup], reference: Accelerator, num_devices: int
) -> tuple[DeviceGroup, ...]:
    """Return the groups of a cluster, none where all devices are the reference.

    Parameters
    ----------
    groups
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
    total = sum(group.num_devices for group in groups)
    if total != num_devices:
        raise InputError(
            "do not make up the network",
            where="groups",
            got=f"{total:,} devices in {len(groups)} groups",
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
    return () if all(device == reference for device in accelerators) else tuple(groups)
