"""Options of an imported configuration of torchtitan that come back on export.

`nestsim.launch.carried` is how; here is which. What was imported of a TOML file comes
back in the TOML file, what was of a command line in the script.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from nestsim.launch.carried import brought_back, carried_options
from nestsim.launch.formats.torchtitan.names import (
    COMMAND_FORMAT,
    COMMAND_VERSION,
    OPTIONS,
    TABLE,
    TOML_FORMAT,
    TOML_NAMES,
    TOML_VERSION,
    is_silent,
)
from nestsim.launch.formats.torchtitan.reading import TitanDegrees, tables_of
from nestsim.launch.formats.torchtitan.sources import TitanOptions
from nestsim.launch.job import LaunchJob
from nestsim.launch.written import LaunchGap
from topologies.input_file import Value


def of_version(
    job: LaunchJob, values: Mapping[str, Any], format_name: str
) -> tuple[dict[str, Any], list[LaunchGap]]:
    """Return what of an imported configuration comes back, and what is changed of it.

    Parameters
    ----------
    job
        The job.
    values
        What is written for its plan.
    format_name
        `TOML_FORMAT` or `COMMAND_FORMAT`, the one that is written.
    """
    is_toml = format_name == TOML_FORMAT
    return brought_back(
        values,
        carried_options(job, format_name) or {},
        reads=lambda options: _tables(job, options, None if is_toml else ""),
        matter=OPTIONS.keys(),
        refusal=_unknown if is_toml else _unknown_now,
        shown=lambda name, value: (name if is_toml else f"--{name}", value),
    )


def elsewhere(job: LaunchJob) -> Iterator[LaunchGap]:
    """Yield what one of the two versions is told and the other is not."""
    for name, version, other in (
        (TOML_FORMAT, TOML_VERSION, COMMAND_VERSION),
        (COMMAND_FORMAT, COMMAND_VERSION, TOML_VERSION),
    ):
        options = carried_options(job, name)
        if options:
            yield LaunchGap(
                setting="launch.options",
                value=", ".join(options),
                reason=f"They are of torchtitan {version}, and do not come along to "
                f"{other}: give there what matters to the model that is trained.",
            )


def _unknown(name: str) -> str:
    if name in TOML_NAMES or name in OPTIONS:
        return ""
    return f"torchtitan {TOML_VERSION} has no such option."


def _unknown_now(name: str) -> str:
    if name in OPTIONS or is_silent(name):
        return ""
    return f"torchtitan {COMMAND_VERSION} has no such option."


def _tables(job: LaunchJob, values: Mapping[str, Any], function: str | None) -> Any:
    """Return what options are read as."""
    options = TitanOptions(
        table=TABLE,
        values={
            name: Value(one, name) for name, one in values.items() if name in OPTIONS
        },
        function=function,
    )
    sizes = TitanDegrees.of(options, None)
    return tables_of(options, sizes, job.num_blocks, [])
