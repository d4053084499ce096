"""A launch script of Megatron-LM: complete, commented, ready but for the data."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import indent

from nestsim.launch.carried import OptionGroup, array_text, joined, taken_outside
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.carried import (
    has_data,
    has_tokens,
    script_options,
    with_script,
)
from nestsim.launch.formats.megatron.gaps import find_gaps
from nestsim.launch.formats.megatron.settings import (
    Options,
    job_options,
    rank_order,
    script_of,
)
from nestsim.launch.job import LaunchFiles, LaunchJob
from nestsim.launch.ranks import RANK_MAP, rank_map
from nestsim.launch.training import CHECK_COMMAND, check_text

VERSION: str = known.TABLE.facts["release"]
"""Version whose options are written."""

SCRIPT = "launch.sh"
"""Name of the script."""


def write_megatron(job: LaunchJob) -> LaunchFiles:
    """Write a plan as a script around torchrun, and a rank map where one is needed."""
    groups, changes = with_script(job, (*job_options(job), *_yours(job)))
    values = joined(groups)
    mapped = needs_rank_map(job)
    files: dict[str, str | bytes] = {SCRIPT: _script(job, groups, mapped=mapped)}
    if mapped:
        files[RANK_MAP] = mapped_ranks(job)
    return LaunchFiles(
        files=files,
        gaps=(*find_gaps(job, values), *changes),
        notes=tuple(_notes(job, values)),
    )


def needs_rank_map(job: LaunchJob) -> bool:
    """Whether ranks are not started node by node in order."""
    world, node = job.plan.parallel.num_devices, job.devices_per_node
    return rank_order(job) is None or (world > node and world % node > 0)


def mapped_ranks(job: LaunchJob) -> str:
    """Return the rank map of a job."""
    devices = job.devices_of_ranks(rank_order(job) or known.USUAL_ORDER)
    return rank_map(devices, job.devices_per_node)


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
        f"--{name} {one}" for name, one in left.items() if name not in values
    ]:
        yield (
            f"Megatron-LM takes {' and '.join(unsaid)} where nothing says otherwise, "
            "and no plan depends on it: give the model's own."
        )
    yield from taken_outside(word for one in values.values() for word in one)
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
    for name, comment, options in (
        ("SCHEDULE_ARGS", "Yours: how long, and how fast.", schedule),
        (
            "DATA_ARGS",
            "Yours: tokenizer and data; made-up tokens run at the same speed.",
            _data(job),
        ),
    ):
        if options:
            yield OptionGroup(name=name, comment=comment, options=options)


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
