"""Which modules of a block selective recompute is tried with.

Frameworks that name modules (Megatron Core's ``recompute_modules``) take any set of
them. Of these sets those are searched that no other set beats: on one device, with what
modules take and save added up, each keeps less than all that take less time, by a part
of what the model keeps at least. Tables of layers then have what a set really takes,
saves and sends again, under each way to split the model.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from estimators.layers.saved_activations import (
    ATTENTION_CORE,
    RECOMPUTE_MODULES,
    runs_again,
)
from estimators.layers.work import Degrees
from planner.frameworks.rules import LaunchRules
from planner.search.space import SearchSpec
from planner.step.execution import Workload

LEAST_SAVED = 0.02
"""Part of all that a model keeps that a set of modules saves beyond quicker ones."""


class ModuleSet(NamedTuple):
    """What modules of blocks take and save."""

    time: float
    """Compute that is run again for a microbatch, on one device [s]."""
    saved: float
    """What is not kept of a microbatch [byte]."""
    names: tuple[str, ...]
    """Modules, in the order of `RECOMPUTE_MODULES`."""


def module_sets(
    workload: Workload, spec: SearchSpec, rules: LaunchRules
) -> tuple[tuple[str, ...], ...]:
    """Return the sets of modules that are tried beside the software's own, quick first.

    None where selective recompute is not tried, nor where the software has another set
    than the usual one and no list is searched: that has been decided.
    """
    software = workload.software
    asked = spec.recompute_modules
    is_decided = asked is None and software.recompute_modules != ATTENTION_CORE
    tried = "selective" in spec.recompute and "selective" in rules.recompute
    if software.saves_products or is_decided or not tried:
        return ()
    names = [
        name
        for name in RECOMPUTE_MODULES
        if name in rules.recompute_modules
        and (asked is None or name in asked)
        and _goes_with(name, workload)
    ]
    usual = {*software.recompute_modules}
    return tuple(
        some.names for some in _front(workload, names) if {*some.names} != usual
    )


def _goes_with(name: str, workload: Workload) -> bool:
    """Tell whether the software takes a module beside what else it does.

    Megatron Core (``core/transformer/transformer_config.py``, core_v0.16.0) refuses
    shared experts that work beside all-to-alls, and experts whose router a graph holds.
    """
    software, execution = workload.software, workload.execution
    if name == "shared_experts":
        return not execution.moe_shared_expert_overlap
    in_graphs = software.cuda_graphs == "layers"
    return name != "moe" or not (
        in_graphs and "moe_router" in software.cuda_graph_modules
    )


def _front(workload: Workload, names: list[str]) -> Iterator[ModuleSet]:
    """Yield the sets of modules that no quicker one beats, rising in time."""
    kept = float(workload.table(Degrees()).saved_bytes["none"].sum())
    least = most = LEAST_SAVED * kept
    for some in sorted(_every_set(workload, names)):
        if some.saved >= most:
            yield some
            most = some.saved + least


def _every_set(workload: Workload, names: list[str]) -> Iterator[ModuleSet]:
    """Yield all sets of modules none of which is a part of another."""
    layers = workload.graph.layers
    inside = {
        name: frozenset(
            (kind, place)
            for kind, layer in enumerate(layers)
            for place, again in enumerate(runs_again(layer, (name,)))
            if again
        )
        for name in names
    }
    alone = {name: _alone(workload, name) for name in names if inside[name]}
    for number in range(1, len(alone) + 1):
        for some in combinations(alone, number):
            if any(inside[a] <= inside[b] for a in some for b in some if a != b):
                continue
            times, saved = zip(*(alone[name] for name in some), strict=True)
            yield ModuleSet(sum(times), sum(saved), some)


def _alone(workload: Workload, name: str) -> tuple[float, float]:
    """Return what one module takes and saves on one device [s], [byte]."""
    table = workload.table(Degrees(recompute_modules=(name,)))
    saved = table.saved_bytes["none"] - table.saved_bytes["selective"]
    return float(table.recompute_time["selective"].sum()), float(saved.sum())
