"""Models of torchtitan, which are flavors in Python, and their names here.

References
----------
.. [1] torchtitan 0.2.2, ``torchtitan/models/*/__init__.py``: ``llama3_args`` and its
   like.
.. [2] torchtitan 0.3.0, ``torchtitan/models/*/__init__.py``: ``llama3_configs`` and its
   like, and ``torchtitan/models/*/config_registry.py``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from estimators.models.spec import TransformerSpec
from nestsim.launch.formats.likeness import is_published


@dataclass(frozen=True, slots=True)
class Flavor:
    """A model as torchtitan names it."""

    model: str
    """Its module, ``model.name`` up to 0.2."""

    flavor: str
    """Its flavor there."""

    in_toml: bool = True
    """Whether 0.2.2 has it [1]_."""

    in_command: bool = True
    """Whether 0.3.0 has it [2]_."""

    note: str = ""
    """Where it differs from what was published."""

    @property
    def function(self) -> str:
        """What a function of the registry of 0.3 is called for it."""
        words = re.sub(r"[^a-z0-9]+", "_", self.flavor.lower())
        return f"{self.model}_{words}"


_NO_MTP = "torchtitan trains it without the layer that predicts a second token."

FLAVORS: Mapping[str, Flavor] = MappingProxyType(
    {
        "llama3.2-1b": Flavor("llama3", "1B", in_toml=False),
        "llama3.2-3b": Flavor("llama3", "3B", in_toml=False),
        "llama3-8b": Flavor("llama3", "8B"),
        "llama3-70b": Flavor("llama3", "70B"),
        "llama3-405b": Flavor("llama3", "405B"),
        "llama4-scout": Flavor("llama4", "17bx16e", in_command=False),
        "llama4-maverick": Flavor("llama4", "17bx128e", in_command=False),
        "deepseek-v2-lite": Flavor("deepseek_v3", "16B"),
        "deepseek-v2": Flavor("deepseek_v3", "236B"),
        "deepseek-v3": Flavor("deepseek_v3", "671B", note=_NO_MTP),
        "qwen3-0.6b": Flavor("qwen3", "0.6B"),
        "qwen3-1.7b": Flavor("qwen3", "1.7B"),
        "qwen3-4b": Flavor("qwen3", "4B"),
        "qwen3-8b": Flavor("qwen3", "8B"),
        "qwen3-14b": Flavor("qwen3", "14B"),
        "qwen3-32b": Flavor("qwen3", "32B"),
        "qwen3-30b-a3b": Flavor("qwen3", "30B-A3B"),
        "qwen3-235b-a22b": Flavor("qwen3", "235B-A22B"),
        "gpt-oss-20b": Flavor("gpt_oss", "20b"),
        "gpt-oss-120b": Flavor("gpt_oss", "120b"),
    }
)
"""Name in the model library -> flavor."""

_VARIANTS = re.compile(r"_(flex|flex_attn|varlen|varlen_attn|irope)$")

DEBUG_MODEL: Mapping[str, Any] = MappingProxyType(
    {
        "family": "llama",
        "num_layers": 6,
        "hidden_size": 256,
        "ffn_hidden_size": 768,
        "num_attention_heads": 16,
        "vocab_size": 2048,
    }
)
"""``llama3`` ``debugmodel`` of 0.2.2 and 0.3.0 [1]_, as a table [model]."""

FUNCTION_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {"": "", "float8": "fp8", "mxfp8": "mxfp8"}
)
"""Last part of the name of a function -> number format of its products."""

_SEQUENCE_8K = MappingProxyType(
    {"training.local_batch_size": 1, "training.seq_len": 8192}
)
_FULL = MappingProxyType({"activation_checkpoint.mode": "full"})
_QWEN = MappingProxyType({"training.local_batch_size": 4, "training.seq_len": 4096})
_DEEPSEEK = MappingProxyType(
    {
        "training.local_batch_size": 4,
        "training.seq_len": 4096,
        "training.disable_cuda_graphs": True,
        "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
        "compile.enable": True,
        "compile.components": ["loss"],
    }
)

REGISTRY: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "llama3_8b": ("llama3-8b", _SEQUENCE_8K),
        "llama3_8b_mxfp8": (
            "llama3-8b",
            {
                **_SEQUENCE_8K,
                "model.converters": ["quantize.linear.mx"],
                "compile.enable": True,
                "compile.components": ["model"],
            },
        ),
        "llama3_70b": (
            "llama3-70b",
            {
                "training.seq_len": 8192,
                "parallelism.tensor_parallel_degree": 8,
                **_FULL,
            },
        ),
        "llama3_405b": (
            "llama3-405b",
            {
                "training.local_batch_size": 2,
                "training.seq_len": 8192,
                "parallelism.tensor_parallel_degree": 8,
                "parallelism.enable_async_tensor_parallel": True,
                "compile.enable": True,
                "model.converters": ["quantize.linear.float8"],
                **_FULL,
            },
        ),
        "deepseek_v3_16b": (
            "deepseek-v2-lite",
            {**_DEEPSEEK, "parallelism.expert_parallel_degree": 8},
        ),
        "deepseek_v3_671b": (
            "deepseek-v3",
            {**_DEEPSEEK, "parallelism.expert_parallel_degree": 2},
        ),
        "qwen3_0_6b": ("qwen3-0.6b", _QWEN),
        "qwen3_1_7b": ("qwen3-1.7b", _QWEN),
        "qwen3_14b": ("qwen3-14b", {**_QWEN, **_FULL}),
        "qwen3_32b": (
            "qwen3-32b",
            {**_QWEN, "training.local_batch_size": 2, **_FULL},
        ),
        "qwen3_30b_a3b": (
            "qwen3-30b-a3b",
            {**_QWEN, "training.local_batch_size": 2, **_FULL},
        ),
        "gpt_oss_20b": ("gpt-oss-20b", {**_SEQUENCE_8K, **_FULL}),
        "gpt_oss_120b": ("gpt-oss-120b", {**_SEQUENCE_8K, **_FULL}),
    }
)
"""Function of the registry of 0.3.0 -> model, and where it differs from the defaults,
under the names of 0.2.2 [2]_."""


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


def function_model(function: str) -> tuple[str, str] | None:
    """Return what a function that we write is for.

    Returns
    -------
    tuple of str or None
        Model's name in the library and number format of its products; None if it is
        no such function.
    """
    for name, flavor in FLAVORS.items():
        for precision in FUNCTION_SUFFIXES.values():
            if function == function_name(flavor.function, precision):
                return name, precision
    return None


def function_precision(function: str) -> str:
    """Return the number format of products of a function that we write."""
    plain = function.removesuffix("_plan")
    for suffix, precision in FUNCTION_SUFFIXES.items():
        if suffix and plain.endswith(f"_{suffix}"):
            return precision
    return ""


def function_name(flavor: str, precision: str) -> str:
    """Return what a function that we write is called, told from the registry's.

    Parameters
    ----------
    flavor
        `Flavor.function`, or the like.
    precision
        Number format of products, ``""`` for the usual one.
    """
    (suffix,) = (key for key, known in FUNCTION_SUFFIXES.items() if known == precision)
    return "_".join(part for part in (flavor, suffix, "plan") if part)
