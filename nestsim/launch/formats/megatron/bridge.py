"""A recipe of Megatron Bridge: the same options as fields of its configurations.

Every option that is written for Megatron-LM is a field of a `ConfigContainer` here; one
that has no field is a gap.

Facts: the classes of megatron-bridge 0.3.1, which build on those of megatron-core 0.16:
``megatron/bridge/training/config.py``, ``training/mixed_precision.py``,
``training/comm_overlap.py``, ``models/gpt_provider.py``, ``recipes/common.py``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nestsim.launch.carried import joined
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.carried import script_options
from nestsim.launch.formats.megatron.gaps import find_gaps
from nestsim.launch.formats.megatron.patterns import read_list
from nestsim.launch.formats.megatron.settings import Values, job_options
from nestsim.launch.formats.megatron.write import (
    SCRIPT,
    mapped_ranks,
    needs_rank_map,
    start_text,
    surroundings,
)
from nestsim.launch.job import LaunchFiles, LaunchGap, LaunchJob
from nestsim.launch.ranks import RANK_MAP
from planner.frameworks.options import LaunchOption

RECIPE = "recipe.py"
"""Name of the recipe."""

_FIELDS: Mapping[str, Mapping[str, str]] = known.TABLE.facts["bridge"]
"""Option -> fields of the container with their values. Options that are one setting
each and not here are fields of the model."""

_FACTS: Mapping[str, Any] = known.TABLE.facts["bridge_recipe"]
"""What recipes have whatever the plan is."""

VERSION: str = _FACTS["release"]
"""Version whose fields are written."""

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "uint8"}


@dataclass(frozen=True, slots=True)
class _FieldValue:
    """The words behind an option as the table writes fields of them, in Python."""

    words_behind: Values

    def __str__(self) -> str:
        """Return the one word as it is."""
        return self.words_behind[0]

    @property
    def word(self) -> str:
        """The one word as a text."""
        return repr(str(self))

    @property
    def words(self) -> str:
        """All words as a list of texts."""
        return repr(list(self.words_behind))

    @property
    def number(self) -> str:
        """A number, without a point where it is whole."""
        number = float(str(self))
        return str(int(number)) if number.is_integer() else repr(number)

    @property
    def numbers(self) -> str:
        """All words as a list of numbers."""
        return f"[{', '.join(self.words_behind)}]"

    @property
    def marks(self) -> str:
        """A list of 0 and 1 written out."""
        return repr(read_list(str(self), "list"))

    @property
    def window(self) -> str:
        """Tokens before and behind."""
        return f"({str(self).replace(',', ', ')})"

    @property
    def dtype(self) -> str:
        """A number format as torch calls it."""
        return _DTYPES[str(self)]


@dataclass(slots=True)
class _BridgeRecipe:
    """Fields of a container, by section."""

    sections: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: list[tuple[str, Values]] = field(default_factory=list)

    def put(self, path: str, expression: str) -> None:
        section, _, name = path.partition(".")
        self.sections.setdefault(section, {})[name] = expression


def write_megatron_bridge(job: LaunchJob) -> LaunchFiles:
    """Write a plan as a recipe of Megatron Bridge, and the script that starts it."""
    options = joined(job_options(job))
    script = {name: one for name, one in (script_options(job) or {}).items() if one}
    fields = set(_FACTS["scripts"].split())
    values = {name: one for name, one in script.items() if name in fields} | options
    recipe = _recipe(job, values)
    mapped = needs_rank_map(job)
    files: dict[str, str | bytes] = {
        RECIPE: _recipe_text(job, recipe),
        SCRIPT: _script_text(job, values, mapped=mapped),
    }
    if mapped:
        files[RANK_MAP] = mapped_ranks(job)
    vocabulary = {"vocab-size": (str(job.model.vocab_size),)}
    return LaunchFiles(
        files=files,
        gaps=(
            *find_gaps(job, values | vocabulary),
            *_bridge_gaps(job, recipe),
            *_script_gaps(job, values),
        ),
        notes=(
            "Data, tokenizer, checkpoints and learning rates are yours: the recipe has "
            "placeholders that run on made-up data.",
            f"The fields are those of {VERSION}.",
        ),
    )


def _recipe(job: LaunchJob, values: Mapping[str, Values]) -> _BridgeRecipe:
    recipe = _BridgeRecipe()
    for path, expression in _FACTS["silent"].items():
        recipe.put(path, expression)
    for name, words in values.items():
        if name in _FIELDS:
            for path, template in _FIELDS[name].items():
                recipe.put(path, template.format(value=_FieldValue(words)))
        elif name in known.BY_NAME:
            option = known.BY_NAME[name]
            where = option.attribute or name.replace("-", "_")
            recipe.put(f"model.{where}", _expression(option, words))
        else:
            recipe.missing.append((name, words))
    recipe.put("model.vocab_size", str(job.model.vocab_size))
    recipe.put("model.should_pad_vocab", "True")
    if "pipeline-model-parallel-layout" in values:
        v = job.settings.virtual_pipeline_model_parallel_size
        recipe.put(
            "model.virtual_pipeline_model_parallel_size", str(v) if v > 1 else "None"
        )
    return recipe


def _expression(option: LaunchOption, words: Values) -> str:
    """Return the value of an option in Python."""
    if option.is_flag:
        return str(option.words[""])
    return repr(words[0]) if option.words else words[0]


def _bridge_gaps(job: LaunchJob, recipe: _BridgeRecipe) -> Iterator[LaunchGap]:
    if job.model.family in _FACTS["no_recipe"]:
        yield LaunchGap(
            setting="model.family",
            value=job.model.family,
            reason="Megatron Bridge pre-trains decoders: the recipe has one of these "
            "sizes; --to megatron writes this model.",
        )
    for name, words in recipe.missing:
        yield LaunchGap(
            setting=f"--{name}",
            value=" ".join(words),
            reason="Megatron Bridge has no field for this option of Megatron-LM.",
        )


def _script_gaps(job: LaunchJob, values: Mapping[str, Values]) -> Iterator[LaunchGap]:
    """Yield the options of an imported script that are no fields of the recipe."""
    script = script_options(job) or {}
    if left := [name for name, one in script.items() if values.get(name) != one]:
        yield LaunchGap(
            setting="launch.options",
            value=", ".join(left),
            reason="The recipe leaves these options of the imported script to you.",
        )


def _provider(job: LaunchJob) -> tuple[str, str]:
    """Return the module and the class of the model's provider."""
    if job.model.kv_lora_rank:
        return "megatron.bridge.models.mla_provider", "MLAModelProvider"
    if job.model.has_mamba:
        return "megatron.bridge.models.mamba.mamba_provider", "MambaModelProvider"
    return "megatron.bridge.models.gpt_provider", "GPTModelProvider"


_NEW = {
    "model": "",
    "mixed_precision": "MixedPrecisionConfig",
    "comm_overlap": "CommOverlapConfig",
}
"""Section that is made anew -> its class; the model's is its provider."""


def _recipe_text(job: LaunchJob, recipe: _BridgeRecipe) -> str:
    """Return the recipe: sections that are made anew, then fields of the others."""
    module, provider = _provider(job)
    model = recipe.sections["model"]
    imports = [
        line
        for name, line in _FACTS["imports"].items()
        if name in (model.get("activation_func"), *model)
    ]
    comments: Mapping[str, str] = _FACTS["comments"]
    lines = []
    for section, comment in comments.items():
        fields = recipe.sections.get(section, {})
        if section in _NEW:
            made = _NEW[section] or provider
            lines += [f"# {comment}", f"cfg.{section} = {made}("]
            lines += [f"    {name}={value}," for name, value in fields.items()]
            lines += [")"]
        elif fields:
            lines += [f"# {comment}"]
            lines += [f"cfg.{section}.{name} = {one}" for name, one in fields.items()]
    text: str = _FACTS["recipe"]
    return text.format(
        title=job.title.replace("\\", "/").replace('"', "'"),
        version=VERSION,
        imports="".join(f"{line}\n" for line in imports),
        module=module,
        provider=provider,
        fields="".join(f"    {line}\n" for line in lines),
        # The tokenizer has a token more, and may not have more than the model.
        vocabulary=job.model.vocab_size - 1,
    )


def _script_text(job: LaunchJob, values: Mapping[str, Values], *, mapped: bool) -> str:
    """Return the script that starts the recipe."""
    text: str = _FACTS["script"]
    return text.format(
        recipe=RECIPE,
        version=VERSION,
        surroundings=surroundings(values, job, mapped=mapped),
        start=start_text(job, RECIPE, (), mapped=mapped),
    )
