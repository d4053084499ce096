"""Options of torchtitan, under their names of 0.2.2.

One table for writing and reading. Versions up to 0.2 read a TOML file; 0.3 has no such
file any more, but functions of a registry in Python and a command line (``--module``,
``--config``, then ``--section.option value``).
"""

from collections.abc import Mapping

from planner.frameworks.options import option_table

TOML_VERSION = "0.2.2"
"""Version whose TOML is written."""

COMMAND_VERSION = "0.3.0"
"""Version whose command line is written."""

TOML, COMMAND = "", "0.3"
"""First release of options that both ways to configure it have, and of others."""

TOML_FORMAT, COMMAND_FORMAT = "torchtitan", "torchtitan-command"
"""What a scenario calls options of either, which come back where they are of."""

TABLE = option_table("torchtitan")
"""Its options."""

OPTIONS = TABLE.options
"""Name in 0.2.2 -> option; one that is newer has its name of 0.3.0."""

TOML_NAMES = frozenset(TABLE.facts["listed"].split())
"""Options of 0.2.2 that no plan depends on; it refuses others."""

CONVERTERS = OPTIONS["model.converters"].words
"""Way to convert products with weights -> number format."""

SCHEDULE = "parallelism.pipeline_parallel_schedule"

EVERY_NTH = ("activation_checkpoint.mode", "activation_checkpoint.selective_ac_option")
"""Options that ask to compute every n-th block again."""


def toml_names() -> dict[str, str]:
    """Return the name in 0.2.2 of every name that a TOML file may have."""
    return {
        written: name
        for name, option in OPTIONS.items()
        if option.since == TOML
        for written in (name, *option.older)
    }


def command_names() -> Mapping[str, str]:
    """Return the name in 0.3 of every option that its command line has."""
    return {
        name: name if option.newer is None else option.newer
        for name, option in OPTIONS.items()
        if option.newer != ""
    }


def is_silent(name: str) -> bool:
    """Whether an option, or its opposite, makes no difference to a plan."""
    return TABLE.is_silent(name.replace("-", "_").replace(".no_", ".", 1))
