"""Options of MaxText that the plan depends on, and what they are called here.

Its reader refuses names that ``base.yml`` does not have, takes values from a YAML file
whose ``base_config`` is another one, then from the command line (typed as ``base.yml``
has them: text, whole number, number, or true and false), and refuses settings of the
model's own file that the command line sets, too.
"""

from collections.abc import Mapping

from planner.frameworks.options import option_table

FORMAT = "maxtext"
"""Name of the format that the options are of."""

BUILT = "base_config"
"""Names the file that a file builds on."""

TABLE = option_table("maxtext")
"""Its options."""

OPTIONS = TABLE.options
"""Name -> option."""

VERSION: str = TABLE.facts["release"]
"""What the names were taken from."""

AXES: tuple[str, ...] = tuple(TABLE.facts["axes"])
"""Axes of the mesh, each with a size among the devices of a slice (``ici_..``) and one
among slices (``dcn_..``)."""

OTHER_AXES: tuple[str, ...] = tuple(TABLE.facts["other_axes"])
"""Axes that no plan has."""

REMAT_TENSORS = tuple(name for name, one in OPTIONS.items() if one.default == "remat")
"""Results of a block that ``remat_policy: custom`` tells apart."""

MODELS: Mapping[str, str] = TABLE.facts["models"]
"""``model_name`` -> name in the model library."""


def blocks_of_layer(name: str | None) -> int:
    """Return how many blocks a layer of one of MaxText's models is."""
    sizes: Mapping[str, int] = TABLE.facts["blocks_of_layer"]
    named = (size for start, size in sizes.items() if (name or "").startswith(start))
    return next(named, 1)
