"""What published recipes set that rows of their results leave empty.

NVIDIA's tables of Megatron-Bridge give the sizes of a run; which dispatcher sends its
tokens, what is captured, run again or offloaded stands in the recipes of the same
release [1]_. ``recipes.csv`` has them in the columns of rows: what asks for a row comes
first, patterns of texts (small letters, hyphens for blanks) and numbers, what the
recipe sets comes behind. Variants of a recipe that agree in all sizes and differ in
flags are told apart by batch and devices.

References
----------
.. [1] github.com/NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs,
   ``*workload_base_configs.py``: tags v0.2.0 (NeMo 25.11), v0.3.0 (26.02), v0.3.1
   (26.02.01), v0.4.0 (26.04), v0.4.1 (26.04.01), v0.5.0 (26.06), v0.5.1 (26.06.01);
   src/megatron/bridge/perf_recipes of v0.6.0 (26.08). DeepSeek-V3 of 25.09 on H100:
   commit 0132842, of 26.04 on B200: commit 0426418. A configuration without
   ``moe_flex_dispatcher_backend`` uses the dispatcher "alltoall", as do Qwen3 235B on
   H100, B200 and B300 in v0.3.1, where ``configs/qwen/qwen3_llm_pretrain.py`` sets
   ``moe_token_dispatcher_type`` beside a backend; ``cuda_graph_impl``
   "full_iteration", or "local" with that scope, is a graph of the whole step;
   ``moe_a2a_overlap`` sets ``delay_wgrad_compute``, too (utils/overrides.py).
"""

import csv
import io
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from nestsim.features.validation.columns import RUN_COLUMNS, Row

_RELEASE = re.compile(r"\b([0-9]{2}\.[0-9]{2}(?:\.[0-9]{2})?)\b")


def release_of(row: Row) -> str:
    """Return the release of NVIDIA's container that a row names; empty for none."""
    release = _RELEASE.search(row.words("software"))
    return release[1] if release else ""


@cache
def recipes() -> tuple[Mapping[str, str], ...]:
    """Return what releases' published recipes set: columns of rows, as they stand."""
    file = resources.files("nestsim.features.validation") / "recipes.csv"
    return tuple(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))


def followed_recipe(row: Row, preset: str) -> Mapping[str, str]:
    """Return the columns that the recipe sets which a row follows; none for none.

    A row follows it if the framework and its release, model, accelerator, precision and
    all sizes are the recipe's.
    """
    for recipe in recipes():
        conditions = (item for item in recipe.items() if item[0] not in RUN_COLUMNS)
        if recipe["preset"] == preset and all(
            not text or _agrees(row, column, text) for column, text in conditions
        ):
            return {name: recipe[name] for name in RUN_COLUMNS if recipe.get(name)}
    return {}


def _agrees(row: Row, column: str, text: str) -> bool:
    """Return whether a row has what a recipe asks for in a column."""
    if column == "preset":
        return True
    if column == "releases":
        return release_of(row) in text.split()
    if text.isdigit():
        return (row.words(column) or "1") == text
    return re.match(text, re.sub(r"[ _]+", "-", row.words(column).lower())) is not None
