"""Launch scripts of Megatron-LM, complete but for data, and recipes of Megatron Bridge.

Options of an imported script come back (`nestsim.launch.carried` is how; here is which,
and what does not go together). A recipe has the same options as fields of a
`ConfigContainer`; one that has no field is a gap.

Facts of the recipe: the classes of megatron-bridge 0.3.1, which build on those of
megatron-core 0.16: ``megatron/bridge/training/config.py``,
``training/mixed_precision.py``, ``training/comm_overlap.py``,
``models/gpt_provider.py``, ``recipes/common.py``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from nestsim.launch.carried import (
    OptionGroup,
    array_text,
    brought_back,
    carried_options,
    joined,
    taken_outside,
    with_imported,
    words_of_option,
)
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.composed import (
    Launched,
    read_tables,
    read_vocabulary,
)
from nestsim.launch.formats.megatron.gaps import find_gaps
from nestsim.launch.formats.megatron.options import GivenOptions, read_list
from nestsim.launch.formats.megatron.settings import (
    Options,
    Values,
    job_options,
    rank_order,
    script_of,
)
from nestsim.launch.job import RANK_MAP, LaunchFiles, LaunchGap, LaunchJob, rank_map
from nestsim.launch.training import CHECK_COMMAND, check_text
from planner.frameworks.options import LaunchOption
from topologies.errors import InputError

VERSION: str = known.TABLE.facts["release"]
"""Version whose options are written."""

SCRIPT = "launch.sh"
"""Name of the script."""


def write_megatron(job: LaunchJob) -> LaunchFiles:
    """Write a plan as a script around torchrun, and a rank map where one is needed."""
    groups, changes = with_script(job, (*job_options(job), *_yours(job)))
    values = joined(groups)
    mapped = needs_rank_map(job)
    script = _script(job, groups, mapped=mapped)
    return LaunchFiles(
        files={SCRIPT: script, **_rank_files(job, mapped=mapped)},
        gaps=(*find_gaps(job, values), *changes),
        notes=tuple(_notes(job, values)),
    )


def needs_rank_map(job: LaunchJob) -> bool:
    """Whether ranks are not started node by node in order."""
    world, node = job.plan.parallel.num_devices, job.devices_per_node
    return rank_order(job) is None or (world > node and world % node > 0)


def _rank_files(job: LaunchJob, *, mapped: bool) -> dict[str, str]:
    """Return the rank map of a job by its name, where one is needed."""
    devices = job.devices_of_ranks(rank_order(job) or known.USUAL_ORDER)
    return {RANK_MAP: rank_map(devices, job.devices_per_node)} if mapped else {}


def environment(values: Mapping[str, Sequence[str]], job: LaunchJob) -> tuple[str, str]:
    """Return what ``CUDA_DEVICE_MAX_CONNECTIONS`` is, empty if unset, and why.

    ``validate_args`` of ``megatron/training/arguments.py`` asks for it.
    """
    if "use-megatron-fsdp" in values:
        return "", "Megatron FSDP asks for it to be unset."
    if "overlap-moe-expert-parallel-comm" in values:
        return "32", "all-to-alls of experts run beside compute on streams of their own"
    tp = job.settings.tensor_model_parallel_size
    if tp > 1 or job.settings.context_parallel_size > 1:
        return "1", "tensor and context parallelism ask for it before Blackwell"
    return "1", "communication starts before the compute that it hides behind"


def _notes(job: LaunchJob, values: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if script_options(job) is None:
        yield (
            "Data, tokenizer, checkpoints and learning rates are yours: DATA_ARGS and "
            "SCHEDULE_ARGS hold placeholders that run on made-up data."
        )
    left = {"norm-epsilon": "1e-5"}
    if job.model.position_embedding_type == "rope":
        left["rotary-base"] = "10000"
    if unsaid := [
        f"--{name} {value}" for name, value in left.items() if name not in values
    ]:
        yield (
            f"Megatron-LM takes {' and '.join(unsaid)} where nothing says otherwise, "
            "and no plan depends on it: give the model's own."
        )
    yield from taken_outside(word for value in values.values() for word in value)
    yield f"The options are those of {VERSION}."
    if not job.scenario.software_preset.startswith(("megatron", "nemo")):
        yield (
            f"The plan was made for {job.scenario.software_preset}: Megatron-LM takes "
            "other times and other memory."
        )
    stages = job.settings.pipeline_model_parallel_size
    if stages > 1 and job.settings.virtual_pipeline_model_parallel_size == 1:
        yield "Without interleaving, Megatron-LM waits for transfers between stages."
    if needs_rank_map(job):
        yield f"{RANK_MAP} says on which node and device each rank runs."


def _script(job: LaunchJob, groups: Sequence[OptionGroup], *, mapped: bool) -> str:
    names = [group.name for group in groups]
    return _TEMPLATES["script"].format(
        title=job.title,
        version=VERSION,
        surroundings=surroundings(joined(groups), job, mapped=mapped),
        arrays="\n".join(map(array_text, groups)),
        start=start_text(job, script_of(job.model), names, mapped=mapped),
    )


def _yours(job: LaunchJob) -> Iterator[OptionGroup]:
    """Yield placeholders of what users say for themselves, and their script has not."""
    script = script_options(job)
    schedule: Options = {}
    if script is None:
        schedule["lr-decay-style"] = ("constant",)
    if not script or not {"train-iters", "train-samples", "train-tokens"} & set(script):
        schedule["train-iters"] = ("100",)
    if not script or "lr" not in script:
        schedule["lr"] = ("1e-4",)
    if schedule:
        yield OptionGroup("SCHEDULE_ARGS", "Yours: how long, and how fast.", schedule)
    if data := _data(job):
        comment = "Yours: tokenizer and data; made-up tokens run at the same speed."
        yield OptionGroup("DATA_ARGS", comment, data)


def _data(job: LaunchJob) -> Options:
    if job.model.family == "vit":
        return {} if has_data(job) else {"data-path": ("train", "valid")}
    options: Options = {}
    if not has_data(job):
        options |= {"mock-data": ()}
        if "split" not in (script_options(job) or {}):
            options |= {"split": ("99,1,0",)}
    if not has_tokens(job):
        options |= made_up_tokens(job.model.vocab_size)
    return options


def made_up_tokens(size: int) -> Options:
    """Return a tokenizer with a vocabulary of a size, which is not padded.

    ``NullTokenizer`` has a token to end documents beside those that it is given, and
    the vocabulary is a multiple of tensor-parallel ranks times a number that is 128
    unless said (``megatron/training/tokenizer/tokenizer.py`` of Core 0.16.1).
    """
    return {
        "tokenizer-type": ("NullTokenizer",),
        "vocab-size": (str(size - 1),),
        "make-vocab-size-divisible-by": ("1",),
    }


def surroundings(
    values: Mapping[str, Sequence[str]], job: LaunchJob, *, mapped: bool
) -> str:
    """Return the environment that options ask for, and how nodes find each other."""
    number, why = environment(values, job)
    variable = "CUDA_DEVICE_MAX_CONNECTIONS"
    world, node = job.plan.parallel.num_devices, job.devices_per_node
    per_node = min(world, node)
    nodes = -(-world // per_node)
    if mapped:
        nodes = int(job.devices_of_ranks(known.USUAL_ORDER).max()) // node + 1
    return _TEMPLATES["surroundings"].format(
        why=f"{why[0].upper()}{why[1:].rstrip('.')}.",
        connections=f"export {variable}={number}" if number else f"unset {variable}",
        world=world,
        sizes=job.plan.parallel.sizes(),
        nodes=nodes,
        per_node=per_node,
    )


def start_text(
    job: LaunchJob, program: str, names: Sequence[str], *, mapped: bool
) -> str:
    """Return the start of a program on every node, with arrays of arguments.

    In front of it that of the check, where that is beside the script; with a map of
    ranks a function that starts one rank, and a loop over those of this node.
    """
    arrays = {name: f'"${{{name}[@]}}"' for name in names}
    checked = [CHECK_COMMAND, *(arrays[name] for name in names if name in _CHECKED)]
    if mapped:
        check = " \\\n    ".join(["python -u", *checked])
        return _TEMPLATES["mapped"].format(
            check=indent(check_text(check, stop=" || return"), "    "),
            program=" \\\n        ".join([program, *arrays.values()]),
            ranks=RANK_MAP,
            world=job.plan.parallel.num_devices,
        )
    check, start = (
        _TEMPLATES["torchrun"].format(program=" \\\n    ".join(words))
        for words in (checked, [program, *arrays.values()])
    )
    return f"{check_text(check)}\n{start}\n"


_TEMPLATES: Mapping[str, str] = known.TABLE.facts["templates"]

_CHECKED = ("PARALLEL_ARGS", "BATCH_ARGS")
"""Options that the check of a launch takes."""


_FINER = frozenset({"attention-backend", "fp4-recipe", "fp8-recipe"})
_FINER |= {"moe-flex-dispatcher-backend", "moe-token-dispatcher-type"}
_FINER |= {"recompute-modules"}
"""Options that say more than the setting that they are read into."""

_RETIRED = frozenset(known.TABLE.facts["retired"].split())
_DATA = re.compile(r"data-(args-)?path|split-paths")


def script_options(job: LaunchJob) -> Options | None:
    """Return the options that a job has of a script of Megatron-LM; None if of none."""
    options = carried_options(job, known.FORMAT)
    if options is None:
        return None
    return {name: words_of_option(value) for name, value in options.items()}


def with_script(
    job: LaunchJob, groups: tuple[OptionGroup, ...]
) -> tuple[tuple[OptionGroup, ...], tuple[LaunchGap, ...]]:
    """Return the options of a job with those of its script, and what does not fit.

    An option of the script stays as it was, unless the plan asks for another value, the
    vocabulary is another one, or this version does not take it.

    Parameters
    ----------
    job
        The job.
    groups
        Its own options.
    """
    script = script_options(job)
    if script is None:
        return groups, ()
    values = joined(groups)
    if "tokenizer-type" not in script:  # the vocabulary is the model's, and no more
        script.pop("vocab-size", None)
    back, gaps = brought_back(
        values,
        script,
        reads=lambda options: _read(job, options),
        matter=known.READ - known.TOKENS,
        refusal=lambda name: _unfit(values, name),
        shown=lambda name, words: (f"--{name}", " ".join(words) or True),
    )
    *kept, rest = with_imported(groups, back, name="SCRIPT_ARGS", file="script")
    return (*kept, *([rest] if rest.options else [])), tuple(gaps)


def has_tokens(job: LaunchJob) -> bool:
    """Whether a job's script says which tokens there are, and they are the model's."""
    script = script_options(job) or {}
    tokens = {name: words for name, words in script.items() if name in known.TOKENS}
    if "tokenizer-type" not in tokens:
        return False
    try:
        size = read_vocabulary(GivenOptions(values=tokens), Launched.of(job))
    except InputError:
        return False
    return size == job.model.vocab_size


def has_data(job: LaunchJob) -> bool:
    """Whether a job's script says what it is trained on."""
    script = script_options(job) or {}
    return any(name == "mock-data" or _DATA.search(name) for name in script)


def _unfit(values: Options, name: str) -> str:
    """Return why an option of the script does not come back; empty if it may."""
    if name in _RETIRED or not known.is_known(name):
        return "This version of Megatron-LM has no such option."
    if name in known.TOKENS and "tokenizer-type" in values:
        return "The vocabulary is the model's: made-up tokens have it without padding."
    if name in values and name not in _FINER:
        now = " ".join(values[name]) or "given"
        return f"The plan asks for another value: --{name} is {now}."
    return ""


def _read(job: LaunchJob, values: Options) -> Any:
    """Return what options are read as."""
    tables = read_tables(GivenOptions(values=values), Launched.of(job))
    # Which kernel of attention runs is not said by options of ours.
    tables["software"].pop("attention_kernel", None)
    return tables


RECIPE = "recipe.py"
"""Name of the recipe."""

_FIELDS: Mapping[str, Mapping[str, str]] = known.TABLE.facts["bridge"]
"""Option -> fields of the container with their values. Options that are one setting
each and not here are fields of the model."""

_FACTS: Mapping[str, Any] = known.TABLE.facts["bridge_recipe"]
"""What recipes have whatever the plan is."""

BRIDGE_VERSION: str = _FACTS["release"]
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
    script = {
        name: words for name, words in (script_options(job) or {}).items() if words
    }
    fields = set(_FACTS["scripts"].split())
    values = {name: words for name, words in script.items() if name in fields} | options
    recipe = _recipe(job, values)
    mapped = needs_rank_map(job)
    vocabulary = {"vocab-size": (str(job.model.vocab_size),)}
    return LaunchFiles(
        files={
            RECIPE: _recipe_text(job, recipe),
            SCRIPT: _script_text(job, values, mapped=mapped),
            **_rank_files(job, mapped=mapped),
        },
        gaps=(
            *find_gaps(job, values | vocabulary),
            *_bridge_gaps(job, recipe),
            *_script_gaps(job, values),
        ),
        notes=(
            "Data, tokenizer, checkpoints and learning rates are yours: the recipe has "
            "placeholders that run on made-up data.",
            f"The fields are those of {BRIDGE_VERSION}.",
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
        reason = known.TABLE.gaps["model.family: Bridge"]
        yield LaunchGap("model.family", job.model.family, reason)
    for name, words in recipe.missing:
        reason = "Megatron Bridge has no field for this option of Megatron-LM."
        yield LaunchGap(f"--{name}", " ".join(words), reason)


def _script_gaps(job: LaunchJob, values: Mapping[str, Values]) -> Iterator[LaunchGap]:
    """Yield the options of an imported script that are no fields of the recipe."""
    script = script_options(job) or {}
    if left := [name for name, words in script.items() if values.get(name) != words]:
        reason = "The recipe leaves these options of the imported script to you."
        yield LaunchGap("launch.options", ", ".join(left), reason)


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
            lines += [
                f"cfg.{section}.{name} = {value}" for name, value in fields.items()
            ]
    text: str = _FACTS["recipe"]
    return text.format(
        title=job.title.replace("\\", "/").replace('"', "'"),
        version=BRIDGE_VERSION,
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
        version=BRIDGE_VERSION,
        surroundings=surroundings(values, job, mapped=mapped),
        start=start_text(job, RECIPE, (), mapped=mapped),
    )
