"""Models of torchtitan, which are flavors in Python, and their names here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from estimators.models.spec import TransformerSpec
from nestsim.launch.formats.likeness import is_published
from nestsim.launch.formats.torchtitan.names import TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A model as torchtitan names it."""

    model: str
    """Its module, ``model.name`` up to 0.2."""

    flavor: str
    """Its flavor there."""

    in_toml: bool = True
    """Whether 0.2.2 has it."""

    in_command: bool = True
    """Whether 0.3.0 has it."""

    @property
    def function(self) -> str:
        """What a function of the registry of 0.3 is called for it."""
        words = re.sub(r"[^a-z0-9]+", "_", self.flavor.lower())
        return f"{self.model}_{words}"


FLAVORS: Mapping[str, Flavor] = MappingProxyType(
    {name: Flavor(**entry) for name, entry in TABLE.facts["flavors"].items()}
)
"""Name in the model library -> flavor."""

REGISTRY: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        name: (one["model"], one["values"])
        for name, one in TABLE.facts["registry"].items()
    }
)
"""Function of the registry of 0.3.0 -> model, and where it differs from the defaults,
under the names of 0.2.2."""

DEBUG_MODEL: Mapping[str, Any] = TABLE.facts["debug_model"]
"""``llama3`` ``debugmodel`` of 0.2.2 and 0.3.0, as a table [model]."""

_VARIANTS = re.compile(r"_(flex|flex_attn|varlen|varlen_attn|irope)$")
_SUFFIXES = {"_float8": "fp8", "_mxfp8": "mxfp8"}
"""End of the name of a function -> number format of its products."""
_PLAN = "_plan"


def flavor_of(spec: TransformerSpec) -> Flavor | None:
    """Return the flavor that a model is, None if torchtitan has none."""
    for name, flavor in FLAVORS.items():
        if is_published(spec, name):
            return flavor
    return None


def library_name(model: str, flavor: str) -> str | None:
    """Return the name here of a flavor, None if there is none."""
    plain = _VARIANTS.sub("", flavor)
    for name, known in FLAVORS.items():
        if (known.model, known.flavor) == (model, plain):
            return name
    return None


def function_model(function: str) -> str | None:
    """Return the model that a function of ours is for, None for others."""
    flavor, precision = split_function(function)
    for name, known in FLAVORS.items():
        if known.function == flavor and function == function_name(flavor, precision):
            return name
    return None


def split_function(function: str) -> tuple[str, str]:
    """Return what a function that we write was made of, as `function_name` takes it."""
    plain = function.removesuffix(_PLAN)
    for suffix, precision in _SUFFIXES.items():
        if plain.endswith(suffix):
            return plain.removesuffix(suffix), precision
    return plain, ""


def function_name(flavor: str, precision: str) -> str:
    """Return what a function that we write is called, told from the registry's.

    Parameters
    ----------
    flavor
        `Flavor.function`, or the like.
    precision
        Number format of products, ``""`` for the usual one.
    """
    suffixes = {meaning: suffix for suffix, meaning in _SUFFIXES.items()}
    return f"{flavor}{suffixes.get(precision, '')}{_PLAN}"
