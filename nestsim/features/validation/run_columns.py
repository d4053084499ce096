"""Settings that columns about what ran stand for: flags of the framework in words.

``[run]`` of ``words.toml`` has the settings that words stand for; words that have none
here are not modelled, and noted. A setting that comes later is a line there.
"""

import re
from collections.abc import Iterator, Mapping

from estimators.layers.saved_activations import RECOMPUTE_MODULES
from estimators.software import GRAPH_MODULES
from nestsim.features.validation.columns import RowRefusedError
from nestsim.features.validation.reading import (
    JobReading,
    Patterns,
    Table,
    is_unstated,
    vocabulary,
)

Settings = Mapping[str, str | int | float | bool]
"""Setting as ``table.name`` -> value."""

_NONE = re.compile(r"(no|none|off|false)$")
_LISTED = re.compile(r"selective: ([a-z0-9_,+ ]+)")
_LAYERS = re.compile(r"([1-9][0-9]{0,5}) (?:layers|blocks)$")


def read_run(reading: JobReading, num_layers: int) -> Mapping[str, Table]:
    """Return the settings of [software] and [plan] that a row's columns stand for.

    Raises
    ------
    RowRefusedError
        If adapters were trained, and their rank or what they are beside is not known.
    """
    is_adapted = reading.ran("lora") and not _NONE.match(reading.ran("lora"))
    if is_adapted and "adapter" not in reading.habit.training:
        raise RowRefusedError("fine-tuning", "rank and targets of lora are not stated")
    tables = {name: reading.by_source(name) for name in ("software", "plan")}
    captured = {*_words(reading.ran("cuda_graphs"))} & {*GRAPH_MODULES}
    tables["software"]["cuda_graph_modules"] = sorted(captured) or GRAPH_MODULES
    for column, words in vocabulary().run.items():
        for word in _words(reading.ran(column)):
            settings = _settings(words, word)
            if settings is None:
                reading.leave_out(column, word)
                continue
            layers = _LAYERS.search(word)
            share = min(int(layers[1]) / num_layers, 1.0) if layers else 1.0
            for setting, value in settings.items():
                table, name = setting.split(".")
                tables[table][name] = (
                    share * value if isinstance(value, float) else value
                )
    return tables


def _settings(
    words: Patterns[dict[str, str | int | float | bool]], word: str
) -> Settings | None:
    """Return the settings that a word stands for; ``no X`` turns off what X is."""
    bare = word.removeprefix("no ")
    known = next((what for pattern, what in words if re.match(pattern, bare)), None)
    if known is None or bare == word:
        return known
    return {name: type(value)(0) for name, value in known.items()}


def _words(written: str) -> Iterator[str]:
    """Return the words of a column: what commas and plus signs part."""
    return filter(None, (word.strip() for word in re.split(r"[,;+]", written)))


def run_again(reading: JobReading) -> tuple[str, ...] | None:
    """Return the modelled parts that selective recompute runs again; noted: others.

    Those that ``recompute`` lists ("selective: core_attn, layernorm"), or where it does
    so or is silent, the column or the recipe. None if nothing lists any.
    """
    written = reading.words("recompute")
    listed = _LISTED.match(written)
    if listed is None and not is_unstated(written) and written != "selective":
        return None
    names = tuple(_words(listed[1] if listed else reading.ran("recompute_modules")))
    if not names or _NONE.match(names[0]):
        return None
    for name in names:
        if name not in RECOMPUTE_MODULES:
            reading.leave_out("recompute_modules", name)
    return tuple(name for name in names if name in RECOMPUTE_MODULES)
