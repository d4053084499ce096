"""What NVIDIA's published recipes set that their tables of results leave out.

Tables of Megatron-Bridge give the sizes of a run. Which dispatcher sends its tokens,
and whether that goes on beside another microbatch, stands in the recipes of the same
repository, ``scripts/performance/configs`` [1]_. A row follows a recipe where model,
accelerator, sizes and release agree; where releases differ, or no stored version of
the file has the row's sizes, nothing is taken from it. No recipe has a constant.

References
----------
.. [1] github.com/NVIDIA-NeMo/Megatron-Bridge, ``scripts/performance/configs``:
   ``moe_a2a_overlap`` sets overlap_moe_expert_parallel_comm,
   ``moe_flex_dispatcher_backend`` is DeepEP or HybridEP, which send a token once to
   each node; else the dispatcher is ``alltoall``, which sends it to each of its
   experts.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from nestsim.features.validation.rows.columns import Reading, is_unstated


class Recipe(NamedTuple):
    """Rows of one recipe, and what it sets for their experts."""

    model: str
    """Pattern of the model's name."""

    accelerator: str
    """Begin of the accelerator's name."""

    sizes: tuple[int, int, int]
    """Pipeline stages, chunks of each and expert-parallel size."""

    releases: tuple[str, ...]
    """Containers, as year and month, that were measured with it."""

    precision: str
    """Pattern of the precision."""

    sends_tokens_once: bool
    """Whether a token goes once to each node that has experts for it."""

    recompute_modules: tuple[str, ...] = ()
    """What selective recompute runs again, of what is known here: ``mlp`` beside it is
    about dense blocks alone; empty where the row is to say it."""


OVERLAPPED: tuple[Recipe, ...] = (
    # deepseek/deepseek_llm_pretrain.py at 0132842, deepseek_v3_h100_1024gpus_fp8:
    # set_moe_a2a_overlap_overrides, enable_deepep.
    Recipe(
        "deepseekv3",
        "h100",
        (8, 4, 64),
        ("25.09",),
        "fp8",
        sends_tokens_once=True,
        recompute_modules=("mla_up_proj",),
    ),
    # deepseek/deepseek_workload_base_configs.py at 0426418, .._B200_FP8_MX_V2: deepep.
    Recipe(
        "deepseekv3",
        "b200",
        (8, 2, 32),
        ("26.04",),
        "mxfp8",
        sends_tokens_once=True,
        recompute_modules=("mla_up_proj",),
    ),
    # The same file, .._GB200_FP8_MX_V2: hybridep, with full-iteration CUDA graphs; an
    # earlier version has neither, and 26.06 is the release in which they show.
    Recipe(
        "deepseekv3",
        "gb200",
        (4, 4, 64),
        ("26.06", "26.08"),
        "mxfp8",
        sends_tokens_once=True,
        recompute_modules=("mla_up_proj",),
    ),
    # gpt_oss/gpt_oss_workload_base_configs.py at 07eea52, .._GB200_FP8_MX_V2: hybridep,
    # likewise.
    Recipe(
        "gpt oss",
        "gb200",
        (1, 1, 64),
        ("26.06", "26.08"),
        "mxfp8",
        sends_tokens_once=True,
    ),
    # qwen/qwen3_workload_base_configs.py at 01b2977, .._H100_FP8_CS_V2: alltoall.
    Recipe(
        "qwen3_235b",
        "h100",
        (8, 4, 32),
        ("26.02", "26.04"),
        "fp8",
        sends_tokens_once=False,
    ),
)
"""Recipes with moe_a2a_overlap."""


OFFLOADED_LAYERS: Mapping[str, int] = MappingProxyType({"gb200": 40, "gb300": 20})
"""Accelerator -> blocks whose activations the host keeps, of Llama 3 70B under
Megatron-FSDP in fp8 with micro-batches of 2: ``cpu_offloading_num_layers`` of
llama/llama3_workload_base_configs.py at 5ccbfdf and bf07e56, .._FP8_CS."""


def offloaded_layers(reading: Reading) -> int:
    """Return how many blocks' activations the host keeps by a row's recipe."""
    of_recipe = (
        reading.words("software").startswith("megatron-bridge")
        and re.match("llama3[_-]70b", reading.words("model"))
        and reading.words("zero_or_fsdp").startswith("megatron-fsdp")
        and reading.words("precision") == "fp8"
        and reading.row.whole("micro_batch") == 2
    )
    return OFFLOADED_LAYERS.get(reading.words("accelerator"), 0) if of_recipe else 0


def overlapping_recipe(reading: Reading) -> Recipe | None:
    """Return the recipe of a row that hides its all-to-alls between experts, if any."""
    software = reading.words("software")
    release = re.search(r"megatron-bridge, (\d\d\.\d\d)", software)
    if release is None:
        return None
    row = reading.row
    sizes = tuple(row.whole(name) or 1 for name in ("pp", "vpp", "ep"))
    for recipe in OVERLAPPED:
        if (
            re.match(recipe.model, reading.words("model"))
            and reading.words("accelerator").startswith(recipe.accelerator)
            and sizes == recipe.sizes
            and release[1] in recipe.releases
            and re.match(recipe.precision, reading.words("precision"))
        ):
            return recipe
    return None


def recomputed_by_recipe(reading: Reading) -> tuple[str, ...]:
    """Return what a row that leaves it open runs again by its recipe, if anything."""
    recipe = overlapping_recipe(reading)
    is_open = is_unstated(reading.words("recompute"))
    return recipe.recompute_modules if recipe is not None and is_open else ()
