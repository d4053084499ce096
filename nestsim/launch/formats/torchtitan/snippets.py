"""Python that torchtitan needs where a model is none of its flavors.

A flavor is Python in torchtitan, in no version an option: a new one is registered by
a few lines that are run with it.

References
----------
.. [1] torchtitan 0.2.2, ``torchtitan/models/llama3/model/args.py`` and ``model.py``:
   the width of a feed-forward layer is two thirds of four times the model's, times a
   factor, rounded up to a multiple.
.. [2] torchtitan 0.3.0, ``torchtitan/models/llama3/__init__.py`` and
   ``torchtitan/components/quantization/__init__.py``.
"""

import re
from dataclasses import dataclass
from typing import Any

from estimators.models.spec import TransformerSpec
from nestsim.launch.formats.torchtitan.names import (
    REGISTRY,
    TABLE,
    Flavor,
    split_function,
)
from nestsim.launch.formats.usual import is_llama

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
