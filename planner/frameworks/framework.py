"""What frameworks do and can launch: one file of facts each, release by release.

``catalog/NAME.toml`` has the framework of the preset NAME: its releases, its defaults
as far as there is a setting for them here, and under ``[[rules.RULE]]`` what it can
launch (fields of `planner.frameworks.rules.LaunchRules`) with the source. Where
releases differ, a rule has an entry for each: ``since`` says from which release on it
holds, with what it does not change of those before it. Search, presets, verdicts,
exporters and importers all read these files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from types import MappingProxyType
from typing import Any

import tomli

from estimators.software import Software
from planner.frameworks.rules import RULES, LaunchRules
from planner.step.execution import Execution
from topologies.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Defaults of one framework."""

    name: str
    """Name that reports give it."""

    zero_stage: int = 0
    """ZeRO stage where the row does not say what is sharded."""

    precision: str = "bf16"
    """Precision of the model where the row does not say."""

    gradients: Mapping[str, str]
    """Precision of the model -> that of the gradients that are reduced."""

    recompute: str = "none"
    """Recompute mode where the row does not say."""

    attention: str = "flash"
    """Attention implementation where the row does not say."""

    sequence_parallel: bool = False
    """Whether tensor parallelism divides sequences, too, where the row does not say."""

    dropout: float = 0.0
    """Probability of dropout in GPTs, hidden and attention."""

    gather: str = ""
    """Precision of weights on the wire, if not that of the model."""

    reduce: str = ""
    """Precision of gradients on the wire, if not that of the gradients."""

    weights_in_fp32: bool = False
    """Whether weights are kept in fp32 and cast when they are used."""

    gradient_copies: bool = False
    """Whether the optimizer works on copies of the gradients."""

    casts_gradients: bool = False
    """Whether the optimizer casts 16-bit gradients to fp32."""

    sends_tokens_once: bool = False
    """Whether a token goes once to each node that has experts for it."""

    software: Software
    """Kernels, and what the host costs."""

    execution: Execution
    """Overlaps of communication and compute."""

    @property
    def dispatcher(self) -> str:
        """Dispatcher of tokens (`estimators.dispatch`)."""
        return "flex" if self.sends_tokens_once else "alltoall"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputePolicy:
    """What a framework calls a choice of what is computed again."""

    mode: str
    """Nearest recompute mode here."""

    note: str
    """How near it is, in words."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework as a scenario names it."""

    name: str
    """Name of its preset."""

    title: str
    """What sentences call it, without its release."""

    launched_as: str
    """Format in which its plans are launched, its own or the nearest there is."""

    release: str = ""
    """Release that holds unless a scenario names another; empty if it has none."""

    releases: tuple[str, ...] = ()
    """Releases whose rules are known, rising."""

    preset: Preset
    """What it does unless it is told otherwise."""

    adapters: tuple[str, ...] = ()
    """What it may train in place of all weights, of `training.adapter`."""

    adapters_source: str = ""
    """Where that stands."""

    remat_policies: Mapping[str, RecomputePolicy] = field(default_factory=dict)
    """Name of a policy of recompute -> what it is here."""

    entries: Mapping[str, list[dict[str, Any]]]
    """Rule -> what the file has of it, from the oldest release on."""

    @cached_property
    def rules(self) -> LaunchRules:
        """What its usual release can launch."""
        return self._rules_of(self.release)

    def rules_of(self, release: str | None) -> LaunchRules:
        """Return what a release can launch; None for the usual one.

        Raises
        ------
        InputError
            If the rules of that release are not known.
        """
        if release is None or release == self.release:
            return self.rules
        if release not in self.releases:
            raise InputError(
                f"no rules of this release of {self.title} are known",
                where="release",
                got=release,
                expected=", ".join(self.releases) or "none: it has no releases",
            )
        return self._rules_of(release)

    def _rules_of(self, release: str) -> LaunchRules:
        """Return the rules of a release that is known."""
        settings: dict[str, Any] = {}
        sources = []
        for rule in RULES:
            for entry in self.entries[rule]:
                if _numbers(entry.get("since", "0")) <= _numbers(release or "0"):
                    settings |= {name: _frozen(value) for name, value in entry.items()}
            sources.append((rule, " ".join(settings.pop("source").split())))
            settings.pop("since", None)
        if "orders" in settings:
            settings["orders"] = tuple(
                tuple(order.split("-")) for order in settings["orders"]
            )
        return LaunchRules(
            framework=f"{self.title} {release}".rstrip(),
            sources=tuple(sources),
            adapters=self.adapters,
            **settings,
        )


def _numbers(release: str) -> tuple[int, ...]:
    """Return a release as numbers that can be compared."""
    return tuple(int(part) for part in release.split("."))


def _frozen(value: Any) -> Any:
    """Return a value of a file, its lists as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


_CATALOG = resources.files("planner") / "frameworks" / "catalog"
_SUFFIX = ".toml"


def _read_catalog() -> dict[str, Framework]:
    """Return all frameworks by name, the ideal one first."""
    tables = {
        entry.name.removesuffix(_SUFFIX): tomli.loads(entry.read_text(encoding="utf-8"))
        for entry in _CATALOG.iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    return {
        name: _framework(name, tables)
        for name in sorted(tables, key=lambda name: (name != IDEAL_NAME, name))
    }


def _framework(name: str, tables: Mapping[str, Mapping[str, Any]]) -> Framework:
    table = tables[name]
    of_rules = tables[table.get("rules_of", name)]
    defaults = dict(table["defaults"])
    software = {k: _frozen(v) for k, v in defaults.pop("software").items()}
    preset = Preset(
        name=name,
        software=Software(**software),
        execution=Execution(**defaults.pop("execution", {})),
        **defaults,
    )
    policies = table.get("remat_policies", {})
    adapters = of_rules.get("adapters", {"methods": [], "source": ""})
    return Framework(
        name=name,
        title=of_rules["framework"],
        launched_as=table["launched_as"],
        release=of_rules.get("release", ""),
        releases=tuple(of_rules.get("releases", ())),
        preset=preset,
        adapters=tuple(adapters["methods"]),
        adapters_source=" ".join(adapters["source"].split()),
        remat_policies={k: RecomputePolicy(**v) for k, v in policies.items()},
        entries=of_rules["rules"],
    )


IDEAL_NAME = "ideal"
"""Preset of the device's own time: nothing of any framework."""

FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(_read_catalog())
"""Name of a preset -> its framework."""

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {name: framework.preset for name, framework in FRAMEWORKS.items()}
)
"""Name of a preset -> defaults of its framework."""

IDEAL_PRESET = PRESETS[IDEAL_NAME]
