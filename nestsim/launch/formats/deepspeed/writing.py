"""Write a plan for DeepSpeed: Megatron-DeepSpeed's script, its JSON, hosts and ranks.

Ranks are numbered as DeepSpeed's ``PipeModelDataParallelTopology`` numbers them, the
model-parallel ones innermost, pipeline stages outermost (``deepspeed/runtime/pipe/
topology.py``); with Ulysses the ranks that share a sequence stand between
(Megatron-DeepSpeed, ``megatron/core/parallel_state.py``). Where the plan asks for other
devices, a rank map tells each process its rank.

What a plan says and a launch does not is found by reading the launch back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from estimators.layers.saved_activations import ATTENTION_CORE
from nestsim.document.dumps import dump_json
from nestsim.launch.carried import (
    OptionGroup,
    array_text,
    brought_back,
    carried_options,
    joined,
    leaves,
    nested,
    overlaid,
    taken_outside,
    with_imported,
    words_of_option,
)
from nestsim.launch.formats.deepspeed.config import (
    PREFETCH,
    TRAINER_DECIDES,
    VERSION,
    is_key,
)
from nestsim.launch.formats.deepspeed.config import TABLE as KEYS
from nestsim.launch.formats.deepspeed.reading import (
    ALGORITHMS,
    JSON,
    METHODS,
    PRESET,
    SIZES,
    TRAINER,
    DeepSpeedLaunch,
    LaunchTables,
    launch_tables,
    shared_blocks,
)
from nestsim.launch.formats.deepspeed.script import (
    FORMAT,
    TABLE,
    Words,
    built_model,
    model_words,
    read_options,
)
from nestsim.launch.formats.usual import expert_group_gaps, strongest
from nestsim.launch.job import RANK_MAP, LaunchFiles, LaunchGap, LaunchJob, rank_map
from nestsim.launch.read import Settings
from nestsim.launch.training import CHECK_COMMAND, check_text
from nestsim.scenario.defaults import checked_plan, checked_training
from nestsim.scenario.model import DOCUMENTS, TAKEN_OF_ROUTING
from nestsim.scenario.software import checked_software
from planner.frameworks.framework import PRESETS
from planner.plans.checks import AUTO
from planner.plans.spec import DEFAULT_ORDER, PlanSpec
from planner.search.placements import name_parts
from planner.step.execution import Execution
from topologies.errors import InputError

_MODEL_REASON = "Megatron-DeepSpeed's pretrain_gpt.py has no option for it"
_OTHER_REASON = "DeepSpeed has no setting for it"

_TRAINING: Sequence[str] = TABLE.facts["compared_training"].split()
_EXECUTION: Sequence[str] = TABLE.facts["compared_software"].split()

_GPTS = frozenset({"gpt", "llama", "mixtral"})
"""Families that are the same modules under the same settings."""


def differences(job: LaunchJob, read: LaunchTables) -> tuple[LaunchGap, ...]:
    """Return each setting of a job that its launch, read back, does not give again.

    Parameters
    ----------
    job
        What was to be written.
    read
        What the written launch says.
    """
    return (
        *_plan_gaps(job, read),
        *expert_group_gaps(job, "DeepSpeed"),
        *_model_gaps(job, read),
        *_training_gaps(job, read),
        *_software_gaps(job, read),
    )


def _gap(
    setting: str, wanted: object, has: object, otherwise: str = _OTHER_REASON
) -> LaunchGap:
    reason = TABLE.gaps.get(setting, otherwise)
    value = list(wanted) if isinstance(wanted, tuple) else wanted
    instead = list(has) if isinstance(has, tuple) else has
    if has in (None, "", ()):
        instead = "none"
    return LaunchGap(setting, value, f"{reason}; the launch has {instead}.")


def _plan_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    launched = checked_plan(read.tables["plan"], PRESETS[PRESET])
    for field in fields(launched):
        name = field.name
        wanted, has = getattr(job.settings, name), getattr(launched, name)
        if name == "placement" and name_parts(job.plan.placement)[1]:
            yield LaunchGap(name, wanted, TABLE.gaps["placement: of nodes"])
        elif wanted != has:
            yield _gap(name, wanted, has)


def _model_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    wanted = job.model
    if wanted.family not in _GPTS:
        yield LaunchGap("model.family", wanted.family, TABLE.gaps["model.family"])
        return
    try:
        launched = built_model(read.tables["model"], Path())
    except InputError as error:
        yield LaunchGap("model", wanted.family, f"{error}.")
        return
    others = {"family", *TAKEN_OF_ROUTING, *DOCUMENTS}
    names = [field.name for field in fields(wanted) if field.name not in others]
    yield from _differing("model", wanted, launched, names, _MODEL_REASON)


def _training_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    try:
        launched = checked_training(read.tables["training"], PRESETS[PRESET])
    except InputError as error:
        yield LaunchGap("training", str(read.tables["training"]), f"{error}.")
        return
    yield from _differing("training", job.training, launched, _TRAINING)


def _software_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    launched = checked_software(read.tables["software"]).execution
    yield from _differing("software", job.workload.execution, launched, _EXECUTION)
    modules = tuple(job.workload.software.recompute_modules)
    if modules != tuple(ATTENTION_CORE):
        yield _gap("software.recompute_modules", modules, tuple(ATTENTION_CORE))


def _differing(
    table: str,
    wanted: object,
    launched: object,
    names: Iterable[str],
    otherwise: str = _OTHER_REASON,
) -> Iterator[LaunchGap]:
    """Yield the fields in which what was read is not what was to be written."""
    for name in names:
        value, has = getattr(wanted, name), getattr(launched, name)
        if value != has:
            yield _gap(f"{table}.{name}", value, has, otherwise)


T = TypeVar("T", str, int, float)

CONFIG = "ds_config.json"
"""Name of the JSON."""

HOSTS = "hostfile"
"""Name of the host file."""

WORKER = "worker.sh"
"""Name of the script that gives each process its rank."""


def write_deepspeed(job: LaunchJob) -> LaunchFiles:
    """Write a plan for DeepSpeed with Megatron-DeepSpeed."""
    config, groups, environment = _config(job), _groups(job), _environment(job)
    devices = job.devices_of_ranks(DEFAULT_ORDER)
    num_devices = job.network.num_devices
    in_order = job.is_in_order(DEFAULT_ORDER) and devices.size == num_devices
    # Which nodes are slow stands in no launch: their order is not read back.
    _, nodes = name_parts(job.plan.placement)

    def read(words: Words, config: Mapping[str, Any]) -> LaunchTables:
        return launch_tables(
            DeepSpeedLaunch(
                options=read_options(words),
                config=config,
                num_devices=num_devices,
                devices=None if in_order or nodes else devices,
                environment=environment,
            )
        )

    words = joined(groups)
    back, keys, changes = of_import(
        job, words, config, lambda *both: read(*both).tables
    )
    groups = with_imported(groups, back, name="SCRIPT", file="script")
    config = overlaid(config, keys)
    words |= back
    files = {
        "launch.sh": _script(job, groups, environment, mapped=not in_order),
        CONFIG: dump_json(config),
        HOSTS: _hosts(job),
    }
    if not in_order:
        files |= {
            WORKER: _worker(devices.size, job.devices_per_node),
            RANK_MAP: rank_map(devices, job.devices_per_node),
        }
    return LaunchFiles(
        files=files,
        gaps=(*differences(job, read(words, config)), *changes),
        notes=_notes(words, in_order),
    )


def _notes(words: Words, in_order: bool) -> tuple[str, ...]:
    notes = [
        f"Written for DeepSpeed {VERSION}. Paths of Megatron-DeepSpeed, data and "
        "checkpoints, hosts, the tokenizer and learning rates are yours to put in, "
        "where nothing that was imported says them.",
        *taken_outside(word for values in words.values() for word in values),
    ]
    if {"pp-partition-method", "embed-layernorm", "position-embedding-type"} & {*words}:
        notes.append(
            "Some options are those of BigScience's fork of Megatron-DeepSpeed."
        )
    if not in_order:
        notes.append(
            f"{WORKER} gives each process the rank that {RANK_MAP} has for its device; "
            "nodes are counted in the order of the host file."
        )
    return tuple(notes)


def _most(value: T | tuple[T, ...]) -> T:
    """Return the largest value of stages: DeepSpeed has one for all."""
    return max(value) if isinstance(value, tuple) else value


def _mode(plan: PlanSpec) -> str:
    """Return the recompute mode that saves most of those that stages have."""
    mode = strongest(plan.recompute_by_stage())
    return "full" if mode == "stage" else mode


def _zero_stage(plan: PlanSpec) -> int:
    stage = _most(plan.zero_stage)
    return min(stage, 1) if plan.pipeline_model_parallel_size > 1 else stage


def _config(job: LaunchJob) -> Settings:
    """Return the JSON."""
    plan, training, dp = job.settings, job.training, job.plan.parallel.sizes().dp
    micro, steps = plan.micro_batch_size, job.plan.num_microbatches
    config: Settings = {
        "train_batch_size": micro * steps * dp,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
        **({} if carried_options(job, FORMAT) else TABLE.facts["fillers"]),
        "zero_optimization": _zero_table(plan, job.workload.execution),
    }
    if training.precision != "fp32":
        config[training.precision] = {"enabled": True}
        # Without ZeRO gradients have the weights' format (deepspeed/runtime/engine.py,
        # _do_optimizer_sanity_check).
        is_wide = training.gradient_precision == "fp32" and _zero_stage(plan) > 0
        config["data_types"] = {
            "grad_accum_dtype": "fp32" if is_wide else training.precision
        }
    if training.reduce_precision in {"fp32", "bf16", "fp16"}:
        config["communication_data_type"] = training.reduce_precision
    if _mode(plan) == "full":
        config["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": _most(plan.offload_activations) == 1.0,
            "contiguous_memory_optimization": False,
        }
    return config


def _zero_table(plan: PlanSpec, execution: Execution) -> Settings:
    """Return the table ``zero_optimization``."""
    stage = _zero_stage(plan)
    if stage == 0:
        return {"stage": stage}
    table: Settings = {"stage": stage, "overlap_comm": execution.overlap_grad_reduce}
    table |= TABLE.facts["zero"]
    copies, part = _most(plan.zero_hpz_partition_size), _most(plan.offload_optimizer)
    if stage == 3:
        ahead = KEYS.options[PREFETCH].default if execution.overlap_param_gather else 0
        table["stage3_prefetch_bucket_size"] = ahead
        if copies > 1:
            table["zero_hpz_partition_size"] = copies
    if part:
        ratio = {"ratio": part} if stage == 3 else {}
        table["offload_optimizer"] = {"device": "cpu", "pin_memory": True, **ratio}
    if _most(plan.offload_weights) and stage == 3:
        table["offload_param"] = {"device": "cpu", "pin_memory": True}
    return table


def _environment(job: LaunchJob) -> dict[str, str]:
    """Return the environment variables that the plan asks for."""
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    named = {job.settings.gradient_algorithm, job.settings.tensor_algorithm}
    if len(named) == 1 and AUTO not in named and named <= set(ALGORITHMS):
        variables["NCCL_ALGO"] = ALGORITHMS[named.pop()]
    return variables


def _groups(job: LaunchJob) -> tuple[OptionGroup, ...]:
    """Return the options of the script, group by group."""
    plan = job.settings
    return (
        OptionGroup("MODEL", "The model.", model_words(job.model)),
        OptionGroup("PARALLEL", "How ranks share the work.", _parallel(job)),
        OptionGroup("BATCH", "The batch, as in the JSON.", _batch(job)),
        OptionGroup("PRECISION", "Number formats, as in the JSON.", _formats(job)),
        OptionGroup("RECOMPUTE", "What is computed again.", _recompute(plan)),
        OptionGroup("ZERO", "ZeRO and the host, as in the JSON.", _zero(plan)),
    )


def _zero(plan: PlanSpec) -> Words:
    stage = _zero_stage(plan)
    words = TABLE.saying("launch.zero_stage", stage)
    if _most(plan.offload_optimizer) and stage:
        words |= TABLE.saying("launch.cpu_optimizer", True)
    return words


def _parallel(job: LaunchJob) -> Words:
    plan = job.settings
    words: dict[str, Sequence[str]] = {}
    for setting in SIZES:
        size = getattr(plan, setting)
        if size > 1 or setting.startswith(("tensor", "pipeline")):
            words |= TABLE.saying(f"plan.{setting}", size)
    if plan.pipeline_model_parallel_size == 1:
        words |= TABLE.saying("launch.no_pipeline", True)
    # DeepSpeed's sequence parallelism and Megatron's exclude each other.
    if plan.sequence_parallel and plan.context_parallel_size == 1:
        words |= TABLE.saying("plan.sequence_parallel", True)
    words |= TABLE.saying("plan.schedule", plan.schedule)
    if job.model.num_moe_experts and plan.tensor_model_parallel_size > 1:
        words |= TABLE.saying("launch.expert_tensor", True)
    method = _partition_method(job)
    if method != METHODS[0]:
        words |= TABLE.saying("launch.partition_method", method)
    return words


def _partition_method(job: LaunchJob) -> str:
    """Return the way to share out blocks that makes the plan's stages, if any does."""
    layout, stages = job.blocks_by_virtual_stage(), len(job.plan.stages)
    tied = job.model.tie_word_embeddings
    fitting = (
        method
        for method in METHODS
        if layout == shared_blocks(job.num_blocks, stages, method, tied=tied)
    )
    return next(fitting, METHODS[0])


def _batch(job: LaunchJob) -> Words:
    dp = job.plan.parallel.data_parallel_size
    micro, steps = job.settings.micro_batch_size, job.plan.num_microbatches
    words = {
        **TABLE.saying("plan.micro_batch_size", micro),
        **TABLE.saying("training.global_batch_size", micro * steps * dp),
    }
    if job.training.optimizer in {"adam", "sgd"}:
        words |= TABLE.saying("training.optimizer", job.training.optimizer)
    return words


def _formats(job: LaunchJob) -> Words:
    training = job.training
    words = TABLE.saying("training.precision", training.precision)
    if training.matmul_precision == "fp8":
        words |= TABLE.saying("training.matmul_precision", "fp8")
        words["transformer-impl"] = ("transformer_engine",)
    return words


def _recompute(plan: PlanSpec) -> Words:
    mode, count = _mode(plan), plan.recompute_num_layers
    if mode == "none":
        return {}
    if mode == "selective":
        return {"recompute-granularity": ("selective",)}
    if count is not None and plan.pipeline_model_parallel_size == 1:
        return {
            "recompute-granularity": ("full",),
            "recompute-method": ("block",),
            "recompute-num-layers": (str(_most(count)),),
        }
    words: dict[str, Sequence[str]] = {
        "checkpoint-activations": (),
        "checkpoint-num-layers": ("1",),
        "deepspeed-activation-checkpointing": (),
    }
    if _most(plan.offload_activations) == 1.0:
        words["checkpoint-in-cpu"] = ()
    return words


_OF_THE_PLAN = frozenset({"transformer-impl"})
"""Options of the script that a plan asks for, whatever they are read as."""


def of_import(
    job: LaunchJob,
    words: Words,
    config: Mapping[str, Any],
    reads: Callable[[Words, Mapping[str, Any]], Any],
) -> tuple[dict[str, tuple[str, ...]], Settings, list[LaunchGap]]:
    """Return the options and the keys that come back, and what is changed of them.

    Parameters
    ----------
    job
        The job.
    words
        Options of the script that are written for its plan.
    config
        The JSON that is written for it.
    reads
        What a script and a JSON are read as.
    """
    written: Settings = {**words}
    written |= {f"{JSON}{name}": value for name, value in leaves(config)}
    carried = {
        name: value if name.startswith((JSON, TRAINER)) else words_of_option(value)
        for name, value in (carried_options(job, FORMAT) or {}).items()
    }
    back, gaps = brought_back(
        written,
        carried,
        reads=lambda options: reads(*_parted(options)),
        matter=written.keys() | TABLE.finer | {f"{JSON}{name}" for name in KEYS.finer},
        refusal=lambda name: _refusal(name, carried[name], written),
        shown=_shown,
    )
    return *_parted(back), gaps


def _refusal(name: str, value: Any, written: Mapping[str, Any]) -> str:
    """Return why an option cannot come back; empty if it may."""
    if name.startswith(TRAINER):
        return "Megatron-DeepSpeed, whose launch this is, has options of its own."
    if name.startswith(JSON) and value == TRAINER_DECIDES:
        return "No trainer puts in its own value here."
    if not _is_known(name):
        return "DeepSpeed has no such key, or Megatron-DeepSpeed no such option."
    other = next(
        (
            option
            for option in written
            if option.startswith(f"{name}.") or name.startswith(f"{option}.")
        ),
        name,
    )
    if other != name or (name in _OF_THE_PLAN and name in written):
        label, now = _shown(other, written[other])
        return f"The plan asks for another value: {label} is {now}."
    return ""


def _is_known(name: str) -> bool:
    if name.startswith(JSON):
        return is_key(name.removeprefix(JSON).split(".")[0])
    return name in TABLE.options or name in TABLE.assumed or TABLE.is_silent(name)


def _shown(name: str, value: Any) -> tuple[str, Any]:
    if name.startswith(JSON):
        return name.removeprefix(JSON), value
    if isinstance(value, tuple):
        value = " ".join(value) or True
    return f"--{name.removeprefix(TRAINER)}", value


def _parted(options: Mapping[str, Any]) -> tuple[Settings, Settings]:
    """Return the options of the script and the JSON of options of both."""
    words = {
        name: value for name, value in options.items() if not name.startswith(JSON)
    }
    config = nested(
        (name.removeprefix(JSON), value)
        for name, value in options.items()
        if name.startswith(JSON)
    )
    return words, config


# Files.


def _hosts(job: LaunchJob) -> str:
    nodes = job.network.num_devices // job.devices_per_node
    width = len(str(nodes - 1))
    lines = [
        f"node-{node:0{width}d} slots={job.devices_per_node}" for node in range(nodes)
    ]
    comment = (
        "# Your hosts in the order of the network: neighbours here are neighbours "
        "there."
    )
    return "\n".join([comment, *lines]) + "\n"


def _script(
    job: LaunchJob,
    groups: Sequence[OptionGroup],
    environment: Mapping[str, str],
    *,
    mapped: bool,
) -> str:
    nodes = job.network.num_devices // job.devices_per_node
    yours = [
        f"    {stand_in['line']}"
        for stand_in in TABLE.facts["yours"].values()
        if joined(groups).keys().isdisjoint(stand_in["options"])
    ]
    data = [line for line in yours if "DATA_PATH" in line]
    launcher = f"deepspeed --hostfile {HOSTS} --num_nodes {nodes}"
    launcher += f" --num_gpus {job.devices_per_node}"
    if mapped:
        launcher += f" --no_python --no_local_rank bash {WORKER} python -u"
    written = [group for group in groups if group.options]
    arrays = {group.name: f'"${{{group.name}[@]}}"' for group in written}
    checked = [arrays[name] for name in ("PARALLEL", "BATCH") if name in arrays]
    arguments = [*arrays.values(), *['"${YOURS[@]}"'] * bool(yours)]
    check = f"{launcher} \\\n    {' '.join([CHECK_COMMAND, *checked])}"
    text: str = TABLE.facts["templates"]["script"]
    return text.format(
        title=job.title,
        release=VERSION,
        data="DATA_PATH=${DATA_PATH:-/path/to/data}\n" if data else "",
        yours="\n".join(["YOURS=(", *yours, ")\n"]) if yours else "",
        environment="".join(f"export {n}={v}\n" for n, v in environment.items()),
        arrays="\n".join(map(array_text, written)),
        check=check_text(check),
        launcher=launcher,
        # One variable less than what a shell may hold in a line.
        arguments="".join(f"    {name} \\\n" for name in arguments),
        config=CONFIG,
    )


def _worker(num_ranks: int, devices_per_node: int) -> str:
    """Return a script that starts a process under the rank of its device."""
    text: str = TABLE.facts["templates"]["worker"]
    return text.format(ranks=RANK_MAP, per_node=devices_per_node, count=num_ranks)
