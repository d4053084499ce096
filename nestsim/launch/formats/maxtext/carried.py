"""Options of an imported configuration of MaxText that come back on export.

`nestsim.launch.carried` is how; here is which, and where: words with variables of a
shell stand in the command, the rest in the YAML file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nestsim.launch.carried import brought_back, carried_options, variables_of
from nestsim.launch.formats.maxtext.known import ASSUMED, BUILT, WITHOUT_EFFECT
from nestsim.launch.formats.maxtext.names import FORMAT, OPTIONS
from nestsim.launch.formats.maxtext.reading import read_maxtext
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import LaunchSource
from nestsim.launch.written import LaunchGap
from topologies.errors import InputError


def of_import(
    job: LaunchJob, values: Mapping[str, Any]
) -> tuple[dict[str, Any], list[LaunchGap]]:
    """Return what of an imported configuration comes back, and what is changed of it.

    Parameters
    ----------
    job
        The job.
    values
        What is written for its plan.
    """
    return brought_back(
        values,
        carried_options(job, FORMAT) or {},
        reads=lambda options: _read(job, options),
        matter=OPTIONS.keys() | values.keys(),
        refusal=_unknown,
    )


def _unknown(name: str) -> str:
    is_known = name in OPTIONS or name in ASSUMED or name in WITHOUT_EFFECT
    return "" if is_known and name not in BUILT else "MaxText has no such option."


def in_command(value: Any) -> bool:
    """Whether a value takes variables of a shell, and stands in the command."""
    return isinstance(value, str) and bool(variables_of([value]))


def yaml_line(name: str, value: Any) -> str:
    """Return a line of the YAML file."""
    return f"{name}: {json.dumps(value)}"


def _read(job: LaunchJob, values: Mapping[str, Any]) -> Any:
    """Return what options are read as, and None if they cannot be read."""
    text = "\n".join(yaml_line(name, value) for name, value in values.items())
    count = job.plan.parallel.num_devices
    try:
        read = read_maxtext(
            LaunchSource(path=Path("read.yml"), text=text, num_devices=count)
        )
    except InputError:
        return None
    tables = {name: one for name, one in read.tables.items() if name != "launch"}
    return tables, read.num_devices, read.devices_per_node
