"""Options of an imported launch of DeepSpeed that come back on export.

`nestsim.launch.carried` is how; here is which: options of the script under their names,
keys of the JSON with ``json.`` before them. Options of other trainers do not come back:
the launch that is written is Megatron-DeepSpeed's.
"""

from collections.abc import Callable, Mapping
from typing import Any

from nestsim.launch.carried import (
    brought_back,
    carried_options,
    leaves,
    words_of_option,
)
from nestsim.launch.formats.deepspeed.config import AUTO, is_key
from nestsim.launch.formats.deepspeed.config import TABLE as KEYS
from nestsim.launch.formats.deepspeed.script import FORMAT, TABLE, Words
from nestsim.launch.formats.deepspeed.tables import JSON, TRAINER
from nestsim.launch.job import LaunchJob
from nestsim.launch.written import LaunchGap

_OF_THE_PLAN = frozenset({"transformer-impl"})
"""Options of the script that a plan asks for, whatever they are read as."""


def of_import(
    job: LaunchJob,
    words: Words,
    config: Mapping[str, Any],
    reads: Callable[[Words, Mapping[str, Any]], Any],
) -> tuple[dict[str, tuple[str, ...]], dict[str, Any], list[LaunchGap]]:
    """Return the options and the keys that come back, and what is changed of them.

    Parameters
    ----------
    job
        The job.
    words
        Options of the script that are written for its plan.
    config
        The JSON that is written for it.
    reads
        What a script and a JSON are read as.
    """
    own: dict[str, Any] = {**words}
    own |= {f"{JSON}{name}": one for name, one in leaves(config)}
    carried = {
        name: one if name.startswith((JSON, TRAINER)) else words_of_option(one)
        for name, one in (carried_options(job, FORMAT) or {}).items()
    }
    back, gaps = brought_back(
        own,
        carried,
        reads=lambda options: reads(*_parted(options)),
        matter=own.keys() | TABLE.finer | {f"{JSON}{name}" for name in KEYS.finer},
        refusal=lambda name: _refusal(name, carried[name], own),
        shown=_shown,
    )
    return *_parted(back), gaps


def _refusal(name: str, value: Any, own: Mapping[str, Any]) -> str:
    """Return why an option cannot come back; empty if it may."""
    if name.startswith(TRAINER):
        return "Megatron-DeepSpeed, whose launch this is, has options of its own."
    if name.startswith(JSON) and value == AUTO:
        return "No trainer puts in its own value here."
    if not _is_known(name):
        return "DeepSpeed has no such key, or Megatron-DeepSpeed no such option."
    other = next(
        (
            one
            for one in own
            if one.startswith(f"{name}.") or name.startswith(f"{one}.")
        ),
        name,
    )
    if other != name or (name in _OF_THE_PLAN and name in own):
        label, now = _shown(other, own[other])
        return f"The plan asks for another value: {label} is {now}."
    return ""


def _is_known(name: str) -> bool:
    if name.startswith(JSON):
        return is_key(name.removeprefix(JSON).split(".")[0])
    return name in TABLE.options or name in TABLE.assumed or TABLE.is_silent(name)


def _shown(name: str, value: Any) -> tuple[str, Any]:
    if name.startswith(JSON):
        return name.removeprefix(JSON), value
    if isinstance(value, tuple):
        value = " ".join(value) or True
    return f"--{name.removeprefix(TRAINER)}", value


def _parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the script and the JSON of options of both."""
    words = {name: one for name, one in options.items() if not name.startswith(JSON)}
    config: dict[str, Any] = {}
    for name, value in options.items():
        if name.startswith(JSON):
            table = config
            *outer, key = name.removeprefix(JSON).split(".")
            for part in outer:
                if not isinstance(table.get(part), dict):
                    table[part] = {}
                table = table[part]
            table[key] = value
    return words, config


def merged(config: Mapping[str, Any], back: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON with others in it."""
    whole = dict(config)
    for key, value in back.items():
        inner = whole.get(key)
        if isinstance(inner, dict) and isinstance(value, dict):
            whole[key] = merged(inner, value)
        else:
            whole[key] = value
    return whole
