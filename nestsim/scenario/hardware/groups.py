"""The tables [[cluster.groups]]: devices of several accelerators in one cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from nestsim.scenario.base import Table
from nestsim.scenario.hardware.accelerator import AnyAccelerator, build_accelerator
from topologies.accelerators import Accelerator
from topologies.errors import InputError
from topologies.settings import Count

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
