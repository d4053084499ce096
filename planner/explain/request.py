"""The part of a configuration that a user names, and the rules that it may break.

Letters as in `planner.search.space`; ``N`` devices, ``L`` layers of the chain.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from estimators.grouping import Grouping
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.models.spec import TransformerSpec
from planner.cost.choices import RECOMPUTE_MODES
from planner.explain.infeasibility import (
    SIZE_SETTINGS,
    changed_spec,
    restricted_settings,
)
from planner.frameworks.rules import EVEN, TENSOR
from planner.search.space import (
    LARGEST_MICRO_BATCH,
    MICRO_BATCHES,
    MORE_MICRO_BATCHES,
    SearchSpec,
)
from planner.step.execution import Workload
from planner.step.schedules import SCHEDULES
from topologies.errors import InputError

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        **{key: SIZE_SETTINGS[key] for key in ("tp", "pp", "dp", "cp", "ep", "b", "v")},
        "recompute": "recompute",
        "zero": "zero_stages",
    }
)
"""Name that a request may have -> the setting of the scenario's ``[search]``."""

ALIASES: Mapping[str, str] = MappingProxyType({"mbs": "b", "vpp": "v"})
"""Other spellings -> name of a request's value."""

LARGEST_SIZE = 1_000_000_000
"""Largest size that a request may name: those above it are slips of the keyboard."""

_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "recompute": tuple(RECOMPUTE_MODES),
        "zero": tuple(str(stage) for stage in SearchSpec().zero_stages),
    }
)
_EXAMPLE = "e.g. tp=8,pp=4,dp=32"
_MOST_LISTED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Values of a configuration that are fixed; the others are searched."""

    values: Mapping[str, int | str]
    """A key of `SETTINGS` -> the value requested of it, in the order in which they were
    named."""

    @classmethod
    def parse(cls, text: str) -> "Request":
        """Read ``tp=8,pp=4,recompute=full``.

        Raises
        ------
        InputError
            If a key is unknown or named twice, or a value is not one of its kind.
        """
        values: dict[str, int | str] = {}
        for item in text.split(","):
            name, equals, value = (part.strip() for part in item.partition("="))
            if not equals:
                raise InputError(
                    "not a list of sizes", got=text, expected=f"key=value, {_EXAMPLE}"
                )
            key = _key(name)
            if key in values:
                raise InputError(f"{key} is named twice", got=text)
            values[key] = _value(key, value)
        return cls(values=values)

    def __str__(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.values.items())

    def size(self, key: str) -> int:
        """Return a size, 1 if it is not named."""
        return int(self.values.get(key, 1))

    def names(self, *keys: str) -> bool:
        """Tell whether all of some keys are named."""
        return all(key in self.values for key in keys)

    def narrowed(self, spec: SearchSpec) -> SearchSpec:
        """Return the space of what is named, as the scenario restricts the rest."""
        settings = {SETTINGS[key]: (value,) for key, value in self.values.items()}
        if self.values.get("recompute") == "stage":
            settings.setdefault(SETTINGS["v"], (1,))
        return changed_spec(spec, {**settings, "keep_best": 1})


def _key(name: str) -> str:
    key = ALIASES.get(name, name)
    if key in SETTINGS:
        return key
    known = (*SETTINGS, *ALIASES)
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    raise InputError(
        "unknown key",
        got=name,
        expected="one of " + ", ".join(known),
        hint=f"did you mean {close[0]}?" if close else "",
    )


def _is_size(text: str) -> bool:
    """Tell whether text is a plain number from 1 to `LARGEST_SIZE`."""
    plain = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_SIZE))
    return plain and 1 <= int(text) <= LARGEST_SIZE


def _value(key: str, text: str) -> int | str:
    choices = _CHOICES.get(key)
    if choices is None:
        if _is_size(text):
            return int(text)
        raise InputError(
            f"{key} is not a size", got=text, expected=f"1, 2, ..; {_EXAMPLE}"
        )
    if text not in choices:
        close = difflib.get_close_matches(text.lower(), choices, n=1, cutoff=0.5)
        raise InputError(
            f"{key} has no such value",
            got=text,
            expected="one of " + ", ".join(choices),
            hint=f"did you mean {close[0]}?" if close else "",
        )
    return text if key == "recompute" else int(text)


class _RuleCase(NamedTuple):
    """What the rules look at."""

    request: Request
    """Values that the user named."""
    model: TransformerSpec
    """Architecture of the model."""
    spec: SearchSpec
    """Space of the scenario."""
    num_devices: int
    """Devices of the cluster."""
    num_layers: int
    """Layers of the chain."""
    num_blocks: int
    """Transformer blocks of the chain."""
    global_batch_size: int
    """Sequences per optimizer step."""
    within_data: bool
    """Whether experts are spread over data-parallel ranks alone."""

    @property
    def own_split(self) -> bool:
        """Whether an expert may be split otherwise than the other layers.

        Without rules it is split as they are, as in the space.
        """
        rules = self.spec.rules
        return rules is not None and rules.expert_tensor_parallel != (TENSOR,)

    @property
    def splits_unevenly(self) -> bool:
        """Whether chunks of launchable plans may hold different numbers of blocks."""
        rules = self.spec.rules
        return self.spec.keeps_rules and rules is not None and rules.splits != (EVEN,)

    @property
    def replica_unit(self) -> int:
        """Of what the replicas are a multiple, whatever the sizes that are open."""
        tp, cp, ep = (self.request.size(key) for key in ("tp", "cp", "ep"))
        if self.within_data:
            return ep
        split, named = self.own_split, self.request.names
        if not named("cp") or (split and not named("tp")):
            return 1
        etp = 1 if split else tp
        return Grouping.of((tp, cp, ep), etp=etp).replica_unit((tp, cp, ep))


def broken_rule(
    workload: Workload, spec: SearchSpec, request: Request, num_devices: int
) -> str | None:
    """Say which rule of the space the named values break, None if they break none.

    Values that are not named are taken as the most permissive ones; that nothing is
    left once the scenario has restricted those too, `nothing_left` says.
    """
    layers, blocks = workload.chain
    case = _RuleCase(
        request,
        workload.graph.spec,
        spec,
        num_devices,
        layers,
        blocks,
        workload.training.global_batch_size,
        workload.software.experts_within_data,
    )
    return next((problem for rule in _RULES if (problem := rule(case))), None)


def _divisibility(case: _RuleCase) -> str | None:
    tp, cp, ep, b = (case.request.size(key) for key in ("tp", "cp", "ep", "b"))
    sequence_parallel = tp > 1 and case.spec.sequence_parallel is not False
    return divisibility_problem(case.model, Degrees(tp, cp, ep, b, sequence_parallel))


def _devices(case: _RuleCase) -> str | None:
    request = case.request
    sizes = {
        key: request.size(key) for key in ("tp", "cp", "pp", "dp") if request.names(key)
    }
    ep, unit = request.size("ep"), case.replica_unit
    if not request.names("dp") and unit > 1:
        sizes["ep" if unit == ep else "dp"] = unit
    used = math.prod(sizes.values())
    if ep * request.size("pp") > used:
        # Experts are spread over all ranks of a stage.
        sizes = {key: sizes[key] for key in sizes if key == "pp"} | {"ep": ep}
        used = math.prod(sizes.values())
    if used <= case.num_devices:
        return None
    listed = " x ".join(f"{key} {size}" for key, size in sizes.items())
    return f"{listed} takes {used:,} devices, and the cluster has {case.num_devices:,}"


def _stages(case: _RuleCase) -> str | None:
    pp = case.request.size("pp")
    if pp <= case.num_layers:
        return None
    return (
        f"pp {pp} is more stages than the chain has layers ({case.num_layers}, "
        f"{case.num_blocks} of them blocks)"
    )


def _experts(case: _RuleCase) -> str | None:
    request, unit = case.request, case.replica_unit
    if not request.names("dp") or request.size("dp") % unit == 0:
        return None
    over = ["tp"] if case.own_split else []
    over = ["dp"] if case.within_data else [*over, "cp", "dp"]
    listed = " x ".join(
        f"{key} {request.size(key)}"
        for key in over
        if key == "dp" or request.size(key) > 1
    )
    return (
        f"ep {request.size('ep')} does not divide {listed}, over which the experts "
        "are spread"
    )


def _batch(case: _RuleCase) -> str | None:
    request, batch = case.request, case.global_batch_size
    dp = request.size("dp") if request.names("dp") else case.replica_unit
    if dp * request.size("b") <= batch:
        return None
    return (
        f"{dp:,} replicas with a micro-batch of {request.size('b'):,} take "
        f"{dp * request.size('b'):,} sequences, and the global batch has {batch:,}"
    )


def _chunks(case: _RuleCase) -> str | None:
    v, pp = case.request.size("v"), case.request.size("pp")
    if v == 1:
        return None
    if case.request.values.get("recompute") == "stage":
        return f"recompute stage needs stages of one chunk, and v is {v}"
    if case.num_blocks % v and not case.splits_unevenly:
        return f"v {v} does not divide the {case.num_blocks} blocks"
    if case.request.names("pp") and pp < 2:
        return f"v {v} needs at least 2 stages, and pp is {pp}"
    if v * max(pp, 2) > case.num_blocks:
        return (
            f"v {v} x pp {max(pp, 2)} is more chunks than there are blocks "
            f"({case.num_blocks})"
        )
    return None


def _rounds(case: _RuleCase) -> str | None:
    request = case.request
    if request.size("v") == 1 or not request.names("pp", "dp", "b"):
        return None
    pp, dp, b = (request.size(key) for key in ("pp", "dp", "b"))
    m = -(-case.global_batch_size // (b * dp))
    if SCHEDULES["interleaved-1f1b"].allows(pp, m, request.size("v")):
        return None
    return (
        f"interleaving (v {request.size('v')}) needs rounds of one length, of pp {pp} "
        f"or a little more, and b {b} with dp {dp} makes {m} microbatches"
    )


_RULES: tuple[Callable[[_RuleCase], str | None], ...] = (
    _divisibility,
    _devices,
    _stages,
    _experts,
    _batch,
    _chunks,
    _rounds,
)


def nothing_left(spec: SearchSpec, request: Request) -> str:
    """Say that no value of what is not named goes with what is."""
    named = {SETTINGS[key] for key in request.values}
    restricted = [name for name in restricted_settings(spec) if name not in named]
    if restricted:
        listed = ", ".join(f"search.{name}" for name in restricted)
        return f"no size that the scenario allows ({listed}) goes with {request}"
    return f"no values of the sizes that are not named go with {request}"


def exclusions(spec: SearchSpec, request: Request) -> Iterator[str]:
    """Yield one sentence for each named value that the scenario does not search."""
    for key, value in request.values.items():
        allowed = getattr(spec, SETTINGS[key])
        if allowed is not None:
            if value not in allowed:
                yield f"search.{SETTINGS[key]} allows only {_listed(allowed)}"
        elif key == "cp" and int(value).bit_count() > 1:
            yield f"search.{SETTINGS[key]} is left out, which means powers of two"
        elif key == "b" and int(value) not in MICRO_BATCHES:
            more = MORE_MICRO_BATCHES if spec.keeps_rules else ()
            if int(value) not in more:
                left_out = f"search.{SETTINGS[key]} is left out, which means"
                beside = "".join(f", {size}" for size in more)
                powers = f"powers of two up to {LARGEST_MICRO_BATCH}"
                yield f"{left_out} {powers}{beside}"


def _listed(values: tuple[object, ...]) -> str:
    shown = ", ".join(str(value) for value in values[:_MOST_LISTED])
    return shown if len(values) <= _MOST_LISTED else f"{shown}, .. {values[-1]}"
