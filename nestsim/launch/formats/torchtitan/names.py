"""Options of torchtitan and its models, which are flavors in Python, under their names.

Options have their names of 0.2.2. One table for writing and reading. Versions up to 0.2
read a TOML file; 0.3 has no such file any more, but functions of a registry in Python
and a command line (``--module``, ``--config``, then ``--section.option value``).

A flavor is Python in every version, no option: a model that is none is registered by a
few lines that are run with it.

Blocks are shared out over the stages of a pipeline with embedding and head counting as
some; what is left over goes to the first stages [3]_. Or every part of the model lists
its modules.

References
----------
.. [1] torchtitan 0.2.2, ``torchtitan/models/llama3/model/args.py`` and ``model.py``:
   the width of a feed-forward layer is two thirds of four times the model's, times a
   factor, rounded up to a multiple.
.. [2] torchtitan 0.3.0, ``torchtitan/models/llama3/__init__.py`` and
   ``torchtitan/components/quantization/__init__.py``.
.. [3] torchtitan 0.2.2 and 0.3.0, ``torchtitan/distributed/pipeline_parallel.py``:
   ``generate_llm_fqn_per_model_part`` and ``pipeline_llm``. 0.1.0,
   ``torchtitan/distributed/pipeline.py``, shares out alike, the ends counting as one.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from estimators.models.spec import TransformerSpec
from nestsim.launch.formats.usual import is_llama, is_published
from planner.frameworks.options import option_table
from planner.frameworks.rules import shared_out
from topologies.errors import InputError
from topologies.input_file import Value

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
        name: (entry["model"], entry["values"])
        for name, entry in TABLE.facts["registry"].items()
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


DEFAULT_CHUNKS = 2
"""Chunks of a stage under schedules that have several, where nothing says more."""


_LAYER = re.compile(r"layers\.(\d{1,6})")


def shared_blocks(
    num_layers: int, num_stages: int, *, first: int, last: int
) -> tuple[int, ...]:
    """Return the blocks of each virtual stage, shared out as torchtitan does it.

    Parameters
    ----------
    num_layers
        Blocks of the model.
    num_stages
        Virtual stages.
    first, last
        Blocks that the embedding and the head count as.

    Raises
    ------
    InputError
        If torchtitan would refuse it.
    """
    if num_stages == 1:
        return (num_layers,)
    if (num_layers + first + last) // num_stages < max(first, last, 1):
        raise Value(
            f"{num_layers} blocks, ends that count as {first} and {last}, "
            f"{num_stages} virtual stages"
        ).error(
            "the blocks do not suffice for the stages",
            "more blocks than the ends count as, in each stage",
        )
    return shared_out(num_layers, num_stages, first=first, last=last)


def num_virtual_stages(
    num_layers: int, per_stage: int, *, first: int, last: int
) -> int:
    """Return how many stages ``pipeline_parallel_layers_per_stage`` makes."""
    return math.ceil((num_layers + first + last) / per_stage)


def weights_of(blocks: Sequence[int]) -> tuple[int, int, int] | None:
    """Return what makes these blocks of it.

    Returns
    -------
    tuple of int or None
        Layers per stage, and what embedding and head count as, 1 at most; None if only
        a list of modules does.
    """
    num_layers, parts = sum(blocks), len(blocks)
    for first, last in ((0, 0), (1, 1), (1, 0), (0, 1)):
        per_stage = math.ceil((num_layers + first + last) / parts)
        if num_virtual_stages(num_layers, per_stage, first=first, last=last) != parts:
            continue
        try:
            shared = shared_blocks(num_layers, parts, first=first, last=last)
        except InputError:
            continue
        if shared == tuple(blocks):
            return per_stage, first, last
    return None


def module_names(blocks: Sequence[int], head: str) -> list[list[str]]:
    """Return the modules of each virtual stage.

    Parameters
    ----------
    blocks
        Blocks of each.
    head
        What the output layer is called: ``"output"``, since 0.3 ``"lm_head"``.
    """
    parts: list[list[str]] = []
    begin = 0
    for count in blocks:
        parts.append([f"layers.{k}" for k in range(begin, begin + count)])
        begin += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def blocks_of_modules(parts: Sequence[Sequence[str]], num_layers: int) -> list[int]:
    """Return the blocks of virtual stages whose modules are listed.

    Raises
    ------
    InputError
        If the blocks are not all there, one after the other.
    """
    blocks = [
        [int(match[1]) for name in part if (match := _LAYER.fullmatch(name))]
        for part in parts
    ]
    if [k for part in blocks for k in part] != list(range(num_layers)):
        raise Value(f"{sum(map(len, blocks))} blocks").error(
            "does not list the blocks of the model one after the other",
            f"layers.0 to layers.{num_layers - 1}, each once, in this order",
        )
    return [len(part) for part in blocks]


def blocks_of_points(points: Sequence[str], num_layers: int) -> list[int]:
    """Return the blocks of virtual stages that begin at the listed modules.

    Raises
    ------
    InputError
        If these are no blocks of the model in their order.
    """
    starts = [int(match[1]) for point in points if (match := _LAYER.fullmatch(point))]
    bounds = [0, *starts, num_layers]
    if len(starts) != len(points) or bounds != sorted(bounds):
        raise Value(list(points)).error(
            "are not blocks of the model in their order",
            f'such as ["layers.8", "layers.16"], below {num_layers}',
        )
    return [end - begin for begin, end in pairwise(bounds)]


def blocks_again(num_layers: int, num_chunks: int, every: int) -> int:
    """Return the blocks of a chunk that are computed again, of which each n-th is."""
    return max(num_layers // num_chunks // every, 1)
