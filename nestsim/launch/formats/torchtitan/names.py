"""Options of torchtitan and its models, which are flavors in Python, under their names.

Options have their names of 0.2.2. One table for writing and reading. Versions up to 0.2
read a TOML file; 0.3 has no such file any more, but functions of a registry in Python
and a command line (``--module``, ``--config``, then ``--section.option value``).

A flavor is Python in every version, no option: a model that is none is registered by a
few lines that are run with it.

References
----------
.. [1] torchtitan 0.2.2, ``torchtitan/models/llama3/model/args.py`` and ``model.py``:
   the width of a feed-forward layer is two thirds of four times the model's, times a
   factor, rounded up to a multiple.
.. [2] torchtitan 0.3.0, ``torchtitan/models/llama3/__init__.py`` and
   ``torchtitan/components/quantization/__init__.py``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from estimators.models.spec import TransformerSpec
from nestsim.launch.formats.usual import is_llama, is_published
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


TRAIN_FILE = "torchtitan_train.py"
"""Starts 0.2 with a flavor of its own."""

CONFIG_FILE = "torchtitan_config.py"
"""Functions for ``--config`` of 0.3."""

_TEXTS = TABLE.facts["templates"]
_CONVERTERS = {"fp8": "Float8LinearConverter", "mxfp8": "MXFP8LinearConverter"}


def has_arguments(spec: TransformerSpec) -> bool:
    """Whether torchtitan's Llama has arguments for all in which a model differs."""
    heads = spec.num_attention_heads
    return is_llama(spec) and spec.kv_channels * heads == spec.hidden_size


_LETTERS = {
    "h": "hidden_size",
    "l": "num_layers",
    "a": "num_attention_heads",
    "g": "num_query_groups",
    "f": "ffn_hidden_size",
    "v": "vocab_size",
}
_FLAVOR = re.compile("_".join(rf"{letter}(\d{{1,9}})" for letter in _LETTERS))


def flavor_name(spec: TransformerSpec) -> str:
    """Return what a flavor of its own is called: the sizes of a Llama.

    Other models have to be written in Python first, and are called by their family.
    """
    if not has_arguments(spec):
        return f"my_{spec.family}"
    return "_".join(f"{letter}{getattr(spec, n)}" for letter, n in _LETTERS.items())


def flavor_table(name: str) -> dict[str, Any] | None:
    """Return the table [model] of a flavor that `flavor_name` named, None of others.

    Parameters
    ----------
    name
        The flavor, or the function of `ConfigFunction` for it.
    """
    sizes = _FLAVOR.fullmatch(split_function(name)[0].removeprefix("llama3_"))
    if sizes is None:
        return None
    named = zip(_LETTERS.values(), map(int, sizes.groups()), strict=True)
    return {"family": "llama", **dict(named)}


def train_file(spec: TransformerSpec) -> str:
    """Return the program that starts 0.2 with a Llama of other sizes [1]_."""
    usual, width = int(8 * spec.hidden_size / 3), spec.ffn_hidden_size
    factor = ""
    if usual > width:
        factor = f"    ffn_dim_multiplier={round(0.9 * width / usual, 6)},\n"
    text: str = _TEXTS["train"]
    return text.format(name=flavor_name(spec), spec=spec, factor=factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFunction:
    """A function for ``--config`` of 0.3 that its registry does not have."""

    name: str
    """What it is called."""

    flavor: Flavor
    """Model and flavor; the flavor is not used for a Llama of other sizes."""

    spec: TransformerSpec | None = None
    """Sizes of a Llama that is no flavor; None for the flavor."""

    precision: str = ""
    """Number format of products with weights, ``""`` for the usual one."""


def config_file(function: ConfigFunction) -> str:
    """Return the module that holds a function for ``--config`` [2]_."""
    flavor, texts = function.flavor, _TEXTS
    base = next(name for name in REGISTRY if name.startswith(f"{flavor.model}_"))
    if flavor.function in REGISTRY:
        base = flavor.function
    converter = _CONVERTERS.get(function.precision)
    llama = "" if function.spec is None else texts["llama"].format(spec=function.spec)
    imports = texts["imports"].format(model=flavor.model, base=base).splitlines()
    if converter:
        imports.append(texts["converter_import"].format(name=converter))
    if llama:
        imports += texts["llama_imports"].splitlines()
    text: str = texts["config"]
    return text.format(
        imports="\n".join(sorted(imports)),
        name=function.name,
        base=base,
        converters=texts["converter"].format(name=converter) if converter else "",
        flavor=flavor.flavor,
        argument=", converters=converters" if converter else "",
        llama=llama,
    )
