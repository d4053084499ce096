"""When nothing fits: the smallest change of a scenario's restrictions that would do."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from planner.search.best_first import search
from planner.search.candidates import CandidateSet
from planner.search.space import Configuration, SearchSpec
from planner.search.thriftiest import (
    plan_within,
    sizes_label,
    thriftiest_plan,
    thrifty_configurations,
)
from planner.step.execution import Workload
from planner.work import DEFAULT_WORK, Progress
from topologies import InputError, Network
from topologies.arrays import FloatArray, IntArray
from topologies.units import format_size

MOST_TRIED = 400
"""Configurations tried for each restriction that might be loosened, the smallest
changes first."""

MOST_TRIED_OF_ONE = 16
"""Configurations tried for each value that a loosened restriction might allow, the
least parameters first."""

SIZE_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "b": "micro_batch_sizes",
        "v": "virtual_pipeline_model_parallel_sizes",
        "dp": "data_parallel_sizes",
        "pp": "pipeline_model_parallel_sizes",
        "tp": "tensor_model_parallel_sizes",
        "cp": "context_parallel_sizes",
        "ep": "expert_model_parallel_sizes",
    }
)
"""Size of a configuration -> the setting that restricts it, least intrusive first."""

_BEYOND = (
    "A plan that the framework cannot launch would fit: search.launchable = false "
    "shows it."
)

_SMALLEST_IS_THRIFTIEST = (
    "micro_batch_sizes",
    "virtual_pipeline_model_parallel_sizes",
)
_WHOLE = SearchSpec()


def explain_infeasibility(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    why_not: str,
    *,
    progress: Progress | None = None,
) -> str:
    """Say why a search found nothing, and what would change that.

    ``why_not`` is what the search itself says, empty if it found something.
    """
    if not why_not:
        return ""
    if spec.objective == "replayed" and spec.launchable:
        wider = replace(spec, keep_best=1)
        if search(network, workload, wider, progress=progress).plans:
            return f"{why_not} {_BEYOND}"
    try:
        change = smallest_change(network, workload, spec, progress=progress)
    except InputError:
        # Without some of its lists the space is too large to look through.
        change = ""
    return f"{why_not} {change}".rstrip()


def smallest_change(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    *,
    progress: Progress | None = None,
) -> str:
    """Say which restriction of a scenario, loosened, would let a plan fit.

    One setting at a time, least intrusive first: recompute modes, ZeRO stages,
    sequence parallelism, micro-batch size, then the parallel sizes, the values nearest
    to those allowed first; then all of them together. What is reported to fit has been
    solved on a true placement; of many sizes only some are tried (`MOST_TRIED`). Empty
    where the scenario restricts nothing, or where looking takes more than
    `DEFAULT_WORK`.
    """
    restricted = binding_settings(spec)
    if not restricted or workload.tensor_memory(spec.memory_reserve) <= 0.0:
        return ""
    spent = 0
    for change in _changes(spec):
        candidates = CandidateSet.enumerate(
            network, workload, _thrifty_part(change.spec), progress=progress
        )
        spent += candidates.work.spent
        if spent > DEFAULT_WORK:
            return ""
        fitting = _fitting(candidates, _distances(candidates, spec, change))
        if fitting is not None:
            value = change.value or str(getattr(fitting, change.size))
            return (
                f"It would fit if search.{change.setting} allowed {value}, for "
                f"example as {sizes_label(fitting)}."
            )
    named = ", ".join(f"search.{setting}" for setting in restricted)
    everything = CandidateSet.enumerate(
        network, workload, _thriftiest_space(spec), progress=progress
    )
    if not len(everything):
        return ""
    least = thriftiest_plan(everything)
    if least.needed <= everything.memory:
        return (
            f"It would fit without {named} together, for example as "
            f"{sizes_label(least.configuration)}."
        )
    return (
        f"Without {named} it would still need {format_size(least.peak)} per device "
        f"({sizes_label(least.configuration)})."
    )


def changed_spec(spec: SearchSpec, settings: Mapping[str, Any]) -> SearchSpec:
    """Return a space with some of its settings replaced, by name."""
    return replace(spec, **settings)


def restricted_settings(spec: SearchSpec) -> tuple[str, ...]:
    """Return the settings that narrow a space, least intrusive first."""
    chosen = [
        name
        for name in ("recompute", "zero_stages")
        if not set(_widest(spec, name)) <= set(getattr(spec, name))
    ]
    if spec.sequence_parallel is False:
        chosen.append("sequence_parallel")
    sizes = SIZE_SETTINGS.values()
    return (*chosen, *(name for name in sizes if getattr(spec, name) is not None))


def binding_settings(spec: SearchSpec) -> tuple[str, ...]:
    """Return the settings that may keep a plan from fitting, least intrusive first."""
    return tuple(
        name
        for name in restricted_settings(spec)
        if name not in _SMALLEST_IS_THRIFTIEST or 1 not in getattr(spec, name)
    )


def _widest(spec: SearchSpec, name: str) -> Any:
    """Return what a setting can be at most: of lists, also what it has beyond that.

    Modes and stages that the framework does not have would not help.
    """
    whole = getattr(_WHOLE, name)
    if name not in {"recompute", "zero_stages"}:
        return whole
    given = getattr(spec, name)
    if spec.launchable and spec.rules is not None:
        whole = [value for value in whole if value in getattr(spec.rules, name)]
    return (*whole, *(value for value in given if value not in whole))


def _thriftiest_space(spec: SearchSpec) -> SearchSpec:
    """Return the space without restrictions, but for sizes that are best left at 1."""
    settings = {name: _widest(spec, name) for name in restricted_settings(spec)}
    return _thrifty_part(changed_spec(spec, settings))


def _thrifty_part(spec: SearchSpec) -> SearchSpec:
    """Return the part of a space that `thrifty_configurations` would keep."""
    ones = {
        name: (1,)
        for name in _SMALLEST_IS_THRIFTIEST
        if 1 in (getattr(spec, name) or (1,))
    }
    return changed_spec(spec, ones)


class _Change(NamedTuple):
    """One setting loosened."""

    setting: str
    """Setting of the scenario that is loosened."""
    size: str
    """Size of a configuration, if the setting lists one; else empty."""
    value: str
    """Value that is added to the setting; empty if every size is."""
    spec: SearchSpec
    """Search with the setting loosened."""


def _changes(spec: SearchSpec) -> Iterator[_Change]:
    """Yield what could be loosened, least intrusive first."""
    sizes = {setting: size for size, setting in SIZE_SETTINGS.items()}
    for name in binding_settings(spec):
        values, size = getattr(spec, name), sizes.get(name, "")
        if name == "sequence_parallel":
            yield _Change(name, "", "true", replace(spec, sequence_parallel=None))
        elif name in _SMALLEST_IS_THRIFTIEST:
            yield _Change(name, size, "1", changed_spec(spec, {name: (1,)}))
        elif size:
            yield _Change(name, size, "", changed_spec(spec, {name: None}))
        else:
            # In the order of the time that they cost.
            for value in (v for v in _widest(spec, name) if v not in values):
                shown = f'"{value}"' if isinstance(value, str) else str(value)
                changed = changed_spec(spec, {name: (*values, value)})
                yield _Change(name, "", shown, changed)


def _distances(
    candidates: CandidateSet, spec: SearchSpec, change: _Change
) -> FloatArray:
    """Return how far each configuration's size is from those allowed, as a ratio."""
    if not change.size or change.value:
        return np.zeros(len(candidates))
    allowed = np.log(np.array(getattr(spec, change.setting), dtype=np.float64))
    sizes = np.log(_column(candidates, change.size))
    return np.asarray(np.exp(np.abs(sizes[:, None] - allowed).min(axis=1)))


def _column(candidates: CandidateSet, size: str) -> IntArray:
    """Return one size of every configuration."""
    columns = [
        getattr(item, size)
        if size in ("pp", "dp")
        else np.full_like(item.pp, getattr(item.configuration(0), size))
        for item in candidates.inner
    ]
    starts = np.cumsum([0, *(len(item.pp) for item in candidates.inner)])
    outer = candidates.outer
    empty = np.zeros(0, dtype=np.int64)
    listed: IntArray = np.concatenate([empty, *columns])
    return listed[starts[outer.inner] + outer.place]


def _fitting(candidates: CandidateSet, distances: FloatArray) -> Configuration | None:
    """Return a configuration that has a plan, of the nearest ones if there is any."""
    outer, memory = candidates.outer, candidates.memory
    numbers = thrifty_configurations(candidates)
    numbers = numbers[outer.memory[numbers] <= memory]
    order = numbers[np.lexsort((outer.memory[numbers], distances[numbers]))]
    most = MOST_TRIED if not distances.any() else MOST_TRIED_OF_ONE
    tried: Counter[float] = Counter()
    for index in order:
        distance = float(distances[index])
        if tried[distance] >= most or tried.total() >= MOST_TRIED:
            continue
        tried[distance] += 1
        configuration = candidates[int(index)]
        if candidates.fits(configuration, memory) and (
            plan_within(candidates, configuration, memory) is not None
        ):
            return configuration
    return None
