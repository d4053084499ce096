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
from nestsim.launch.formats.likeness import is_llama
from nestsim.launch.formats.torchtitan.flavors import (
    FUNCTION_SUFFIXES,
    REGISTRY,
    Flavor,
)

TRAIN_FILE = "torchtitan_train.py"
"""Starts 0.2 with a flavor of its own."""

CONFIG_FILE = "torchtitan_config.py"
"""Functions for ``--config`` of 0.3."""

_CONVERTERS = {"fp8": "Float8LinearConverter", "mxfp8": "MXFP8LinearConverter"}


def has_arguments(spec: TransformerSpec) -> bool:
    """Whether torchtitan's Llama has arguments for all in which a model differs."""
    heads = spec.num_attention_heads
    return is_llama(spec) and spec.kv_channels * heads == spec.hidden_size


_SIZES = (
    *("hidden_size", "num_layers", "num_attention_heads", "num_query_groups"),
    *("ffn_hidden_size", "vocab_size"),
)
_LETTERS = "hlagfv"
_FLAVOR = re.compile("_".join(rf"{letter}(\d{{1,9}})" for letter in _LETTERS))


def flavor_name(spec: TransformerSpec) -> str:
    """Return what a flavor of its own is called: the sizes of a Llama.

    Other models have to be written in Python first, and are called by their family.
    """
    if not has_arguments(spec):
        return f"my_{spec.family}"
    values = [getattr(spec, name) for name in _SIZES]
    return "_".join(f"{a}{b}" for a, b in zip(_LETTERS, values, strict=True))


def flavor_table(name: str) -> dict[str, Any] | None:
    """Return the table [model] of a flavor that `flavor_name` named, None of others.

    Parameters
    ----------
    name
        The flavor, or the function of `ConfigFunction` for it.
    """
    plain = name.removeprefix("llama3_").removesuffix("_plan")
    for suffix in FUNCTION_SUFFIXES:
        plain = plain.removesuffix(f"_{suffix}" if suffix else "")
    found = _FLAVOR.fullmatch(plain)
    if found is None:
        return None
    return {
        "family": "llama",
        **dict(zip(_SIZES, map(int, found.groups()), strict=True)),
    }


def _feed_forward(spec: TransformerSpec) -> dict[str, float]:
    """Return the arguments that make the width of the feed-forward layer [1]_."""
    width = spec.ffn_hidden_size
    usual = int(8 * spec.hidden_size / 3)
    arguments: dict[str, float] = {"multiple_of": width}
    if usual > width:
        arguments["ffn_dim_multiplier"] = round(0.9 * width / usual, 6)
    return arguments


def train_file(spec: TransformerSpec) -> str:
    """Return the program that starts 0.2 with a Llama of other sizes [1]_."""
    arguments = {
        "dim": spec.hidden_size,
        "n_layers": spec.num_layers,
        "n_heads": spec.num_attention_heads,
        "n_kv_heads": spec.num_query_groups,
        "vocab_size": spec.vocab_size,
        **_feed_forward(spec),
    }
    listed = "".join(f"    {name}={value},\n" for name, value in arguments.items())
    return (
        '"""Start torchtitan 0.2.2 with a flavor of Llama that it does not have."""\n\n'
        "from torchtitan.models.llama3 import TransformerModelArgs, llama3_args\n"
        "from torchtitan.train import Trainer, main\n\n"
        f'llama3_args["{flavor_name(spec)}"] = TransformerModelArgs(\n{listed})\n\n'
        'if __name__ == "__main__":\n    main(Trainer)\n'
    )


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
    model = function.flavor.model
    base = next(name for name in REGISTRY if name.startswith(f"{model}_"))
    if function.flavor.function in REGISTRY:
        base = function.flavor.function
    converter = _CONVERTERS.get(function.precision)
    imports = [
        f"from torchtitan.models.{model} import model_registry",
        f"from torchtitan.models.{model}.config_registry import {base}",
    ]
    body = [f"    config = {base}()"]
    arguments = [f'"{function.flavor.flavor}"']
    if converter:
        imports.insert(0, f"from torchtitan.components.quantization import {converter}")
        body += [
            "    converters = [",
            f"        {converter}.Config(model_compile_enabled=True),",
            "    ]",
        ]
        arguments.append("converters=converters")
    lines = f"    config.model_spec = model_registry({', '.join(arguments)})"
    body.append(lines)
    if function.spec is not None:
        imports += _LLAMA_IMPORTS
        body += _llama_body(function.spec)
    imports.append(
        "from torchtitan.models.common.config_utils import decoder_vocab_size"
    )
    body += [
        "    vocabulary = decoder_vocab_size(config.model_spec)",
        "    config.loss.loss_fn.global_vocab_size = vocabulary",
        "    return config",
    ]
    return "\n".join(
        [
            '"""A configuration for the registry of torchtitan 0.3.0."""',
            "",
            *sorted(imports),
            "",
            "",
            f"def {function.name}():",
            '    """Return the defaults; the command line says the rest."""',
            *body,
            "",
        ]
    )


_LLAMA_IMPORTS = [
    "from torchtitan.models.common import ComplexRoPE",
    "from torchtitan.models.llama3 import _build_llama3_layers",
]


def _llama_body(spec: TransformerSpec) -> list[str]:
    """Return the lines that give a Llama other sizes."""
    width = spec.hidden_size
    return [
        "    model = config.model_spec.model",
        f"    model.dim, model.vocab_size = {width}, {spec.vocab_size}",
        f"    model.tok_embeddings.num_embeddings = {spec.vocab_size}",
        f"    model.tok_embeddings.embedding_dim = {width}",
        f"    model.norm.normalized_shape = {width}",
        f"    model.lm_head.in_features = {width}",
        f"    model.lm_head.out_features = {spec.vocab_size}",
        "    model.layers = _build_llama3_layers(",
        f"        n_layers={spec.num_layers},",
        f"        dim={width},",
        f"        n_heads={spec.num_attention_heads},",
        f"        n_kv_heads={spec.num_query_groups},",
        f"        hidden_dim={spec.ffn_hidden_size},",
        "        rope=ComplexRoPE.Config(",
        f"            dim={spec.kv_channels}, max_seq_len=131072, theta=500000",
        "        ),",
        '        attn_backend="flex",',
        "    )",
    ]
