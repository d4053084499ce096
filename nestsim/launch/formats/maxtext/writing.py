"""Plans as configurations of MaxText: a YAML file on ``base.yml``, and its start.

What a plan, its training and its software say and MaxText has no words for is a gap.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimators.models.spec import TransformerSpec
from nestsim.launch.carried import (
    OptionGroup,
    brought_back,
    carried_options,
    joined,
    quoted,
    variables_of,
    with_imported,
)
from nestsim.launch.formats.maxtext import sources as maxtext
from nestsim.launch.formats.maxtext.reading import read_maxtext
from nestsim.launch.formats.usual import (
    is_llama,
    is_published,
    order_cases,
    sizes_in_words,
    stated_gaps,
    training_gaps,
    written_plain,
)
from nestsim.launch.job import LaunchFiles, LaunchGap, LaunchJob
from nestsim.launch.read import LaunchSource, Settings
from planner.frameworks.framework import FRAMEWORKS
from planner.frameworks.rules import is_tpu
from planner.search.placements import name_parts
from planner.step.plan import Offload


def find_gaps(
    job: LaunchJob, mesh: maxtext.AxisMesh, name: str | None
) -> Iterator[LaunchGap]:
    """Yield what cannot be expressed.

    Parameters
    ----------
    job
        The job.
    mesh
        The mesh that is written for it.
    name
        MaxText's name of its model, None if it has none.
    """
    optimizer = job.training.optimizer
    known = {*maxtext.OPTIONS["opt_type"].words.values(), "adam-bf16"}
    usual = {
        "optimizer": optimizer if optimizer in known else "adam",
        "weights_in_fp32": optimizer != "adam-bf16",
    }
    products = maxtext.OPTIONS["quantization"].words.values()
    yield from training_gaps(job, "MaxText", products, usual)
    nesting, nodes = name_parts(job.plan.placement)
    blocks, size = job.blocks_by_virtual_stage(), maxtext.blocks_of_layer(name)
    is_usual = not nodes and mesh.factors == maxtext.placed_factors(nesting)
    cases = {
        "model": name is None and not is_llama(job.model, tied=True),
        "pipeline_model_parallel_size": any(count % size for count in blocks),
        **_plan_cases(job),
        **_offload_cases(job),
        **_sharding_cases(job),
        **order_cases(job, is_usual=is_usual),
    }
    values = {
        "model": job.model.family,
        "sizes": sizes_in_words(job.model),
        "num_microbatches": job.plan.num_microbatches,
        "num_stages": len(job.plan.stages),
        "blocks_of_layer": size,
        "blocks_of_stage": blocks[0],
    }
    yield from stated_gaps(job, maxtext.TABLE, cases, values)


def _plan_cases(job: LaunchJob) -> dict[str, bool]:
    plan, parallel = job.plan, job.plan.parallel
    count, pp = plan.num_microbatches, len(plan.stages)
    rules = FRAMEWORKS["maxtext"].rules
    known = rules.schedules
    ways = rules.on(job.workload.accelerator.name).context_parallel
    return {
        "training.matmul_precision: in rounds": pp == 1 < count
        and job.training.matmul_precision == "fp8",
        "num_microbatches: not of the stages": pp > 1 and count % pp > 0,
        "schedule": pp > 1 and plan.schedule not in known,
        "overlap_moe_expert_parallel_comm": plan.overlap_moe_expert_parallel_comm,
        "cp_comm_type": parallel.context_parallel_size > 1
        and parallel.cp_comm_type not in ways,
    }


def _offload_cases(job: LaunchJob) -> dict[str, bool]:
    kept = {"weights", "optimizer"}
    if job.settings.recompute == "full":
        kept.add("activations")
    values = {
        part: getattr(job.settings, f"offload_{part}") for part in Offload._fields
    }
    return {
        f"offload_{part}": value != 0.0 and not (value == 1.0 and part in kept)
        for part, value in values.items()
    }


def _sharding_cases(job: LaunchJob) -> dict[str, bool]:
    """Return which ZeRO stages and groups cannot be had; the first one is said."""
    parallel, stage = job.plan.parallel, job.plan.stages[0]
    cp, dp = parallel.context_parallel_size, parallel.data_parallel_size
    ep, zero = parallel.placed_expert_size, stage.zero_stage
    group = stage.sharding_group_size
    if isinstance(job.settings.zero_stage, tuple):
        return {}
    cases: Settings = {
        "zero_stage: alone": zero and dp * cp == 1,
        "zero_stage: in groups": zero == 1 and cp * ep == 1 and group < dp,
        "zero_stage: low": zero < 2 and cp * ep > 1,
        "zero_stage: 2": zero == 2 and len(job.plan.stages) == 1,
        "zero_stage: in groups of one": zero > 1 and group == 1,
    }
    first = next((name for name, holds in cases.items() if holds), "")
    return {first: True, "sharding_group_size": zero > 1 and group % (cp * ep) > 0}


YAML_FILE = "maxtext.yml"
"""What people look at."""

SCRIPT_FILE = "maxtext.sh"
"""Starts it."""

PROGRAM = "maxtext.trainers.pre_train.train"
"""What trains (maxtext 0.2.5, ``maxtext/trainers/pre_train/train.py``)."""

_YOURS = {"run_name": "${RUN_NAME}", "base_output_directory": "${OUTPUT_PATH}"}
"""What users say for themselves."""


def write_maxtext(job: LaunchJob) -> LaunchFiles:
    """Write a plan for MaxText."""
    mesh = _mesh(job)
    model = _model_options(job) | _attention(job)
    places = (
        "Axes inside a slice, which on GPUs is a node (ici), and among slices (dcn)."
    )
    named = {
        "The model.": model,
        "Sequences of a step; a device's part may be less than one.": _batches(job),
        "Number formats and optimizer.": _training(job),
        places: _axes(job, mesh),
        "The pipeline; stages come round again after each chunk.": _pipeline(job),
        "What is computed again, and what the host keeps.": _recompute(job),
    }
    groups = [OptionGroup("", comment, options) for comment, options in named.items()]
    gaps = [*find_gaps(job, mesh, model_name(job.model))]
    back, changes = _of_import(job, joined(groups))
    command = _YOURS | {
        name: value for name, value in back.items() if _in_command(value)
    }
    command = {
        name: value for name, value in command.items() if back.get(name, value) == value
    }
    *groups, rest = with_imported(groups, back, name="", file="configuration")
    in_file = {name: v for name, v in rest.options.items() if not _in_command(v)}
    groups.append(replace(rest, options=in_file))
    gaps += changes
    return LaunchFiles(
        files={YAML_FILE: _yaml(job, groups), SCRIPT_FILE: _script(job, command)},
        gaps=tuple(gaps),
        notes=tuple(
            note.format(release=maxtext.VERSION)
            for note in maxtext.TABLE.facts["notes"]
        ),
    )


def _is_tpu(job: LaunchJob) -> bool:
    return is_tpu(job.workload.accelerator.name)


def _mesh(job: LaunchJob) -> maxtext.AxisMesh:
    """Return the mesh that comes nearest to the plan's placement."""
    plan, stage = job.plan, job.plan.stages[0]
    parallel = plan.parallel
    cp, ep = parallel.context_parallel_size, parallel.placed_expert_size
    exchanging = parallel.grouping.a2a or 1
    dp = parallel.data_parallel_size // ep
    fsdp = 1
    if stage.zero_stage > 1:
        fsdp = max(stage.sharding_group_size // (cp * ep), 1)
        fsdp = fsdp if dp % fsdp == 0 else dp
    tensor = "tensor_sequence" if parallel.sequence_parallel else "tensor"
    axes = {
        "expert": ep,
        tensor: parallel.tensor_model_parallel_size,
        "context_usp_ulysses": exchanging,
        "context": cp // exchanging,
        "fsdp": fsdp,
        "data": dp // fsdp,
        "pipeline": parallel.pipeline_model_parallel_size,
    }
    per_slice = job.network.num_devices if _is_tpu(job) else job.devices_per_node
    return maxtext.mesh_of(maxtext.placed_factors(plan.placement), axes, per_slice)


def _model_options(job: LaunchJob) -> Settings:
    """Return the name of the model, or its sizes."""
    spec = job.model
    shared = {"max_target_length": spec.sequence_length}
    name = model_name(spec)
    if name is not None:
        depths = {"mtp_num_layers": spec.mtp_num_layers} if spec.mtp_num_layers else {}
        return {"model_name": name, **depths, **shared}
    return {
        "model_name": "default",
        "decoder_block": "llama2",
        **written_plain(job, maxtext.TABLE, "model"),
        **shared,
    }


def _attention(job: LaunchJob) -> dict[str, str]:
    """Return which kernel of attention runs."""
    if job.model.attention_implementation == "plain":
        return {"attention": "dot_product"}
    if _context_kernel(job):
        return {"attention": "flash"}
    fused = job.workload.software.attention_kernel == "fused"
    return {"attention": "cudnn_flash_te" if fused else "autoselected"}


def _context_kernel(job: LaunchJob) -> dict[str, bool]:
    """Return what rings and exchanges of heads are refused without on TPUs.

    ``configs/types.py`` of 0.2.5, lines 3923 to 4017 and 5205 to 5313.
    """
    parallel, model = job.plan.parallel, job.model
    cp, kind = parallel.context_parallel_size, parallel.cp_comm_type
    if not _is_tpu(job) or cp == 1 or kind == "all_gather":
        return {}
    ring = parallel.grouping.ring(cp)
    named = {"use_tokamax_splash": True}
    if ring == 1 or ring % 2 or model.mtp_num_layers:
        named["context_parallel_load_balance"] = False
    if model.kv_lora_rank:
        named["packing"] = False
    return named


def model_name(spec: TransformerSpec) -> str | None:
    """Return MaxText's name of a model, None if it has none."""
    for name, ours in maxtext.MODELS.items():
        if is_published(spec, ours):
            return name
    return None


def _batches(job: LaunchJob) -> Settings:
    """Return what a device takes, and how often before an optimizer step."""
    plan = job.plan
    parallel, pp = plan.parallel, len(plan.stages)
    sharing = parallel.tensor_model_parallel_size * parallel.context_parallel_size * pp
    count = plan.num_microbatches if pp > 1 else 1
    return {
        "per_device_batch_size": plan.micro_batch_size * count / sharing,
        "gradient_accumulation_steps": 1 if pp > 1 else plan.num_microbatches,
    }


def _training(job: LaunchJob) -> Settings:
    """Return number formats and optimizer."""
    narrow = job.training.optimizer == "adam-bf16"
    return {
        **written_plain(job, maxtext.TABLE, "training"),
        "weight_dtype": "bfloat16" if narrow else "float32",
    }


def _axes(job: LaunchJob, mesh: maxtext.AxisMesh) -> Settings:
    """Return the sizes of axes; those with a default of their own always."""
    always = {"ici_fsdp_parallelism": 1, "dcn_data_parallelism": 1}
    axes = {
        f"{kind}_{axis}_parallelism": size
        for kind, sizes in (("ici", mesh.inside), ("dcn", mesh.among))
        for axis, size in sizes.items()
        if size > 1
    }
    parallel, stage = job.plan.parallel, job.plan.stages[0]
    named: Settings = {"hardware": "tpu" if _is_tpu(job) else "gpu", **always, **axes}
    if parallel.context_parallel_size > 1:
        strategy = "context_parallel_strategy"
        named[strategy] = maxtext.OPTIONS[strategy].word(parallel.cp_comm_type)
        named |= _context_kernel(job)
    if stage.zero_stage == 1:
        named["shard_optimizer_over_data"] = True
    return named


def _pipeline(job: LaunchJob) -> Settings:
    """Return the options of the pipeline."""
    plan = job.plan
    pp, chunks = len(plan.stages), plan.virtual_pipeline_model_parallel_size
    if pp == 1:
        return {}
    layers = job.num_blocks // maxtext.blocks_of_layer(model_name(job.model))
    per_stage, rest = divmod(layers, pp * chunks)
    named: Settings = {
        "num_layers_per_pipeline_stage": max(per_stage, 1),
        "num_pipeline_repeats": chunks,
        "num_pipeline_microbatches": plan.num_microbatches,
        "scan_layers": False,
    }
    if rest:
        named["pipeline_parallel_layers"] = layers - rest
    if plan.stages[0].zero_stage == 2:
        named["pipeline_fsdp_ag_once"] = True
    return named


def _recompute(job: LaunchJob) -> Settings:
    """Return what is computed again, and what the host keeps."""
    modes = {stage.recompute for stage in job.plan.stages}
    offload = job.plan.stages[0].offload
    kept = offload.activations == 1.0 and modes == {"full"}
    if modes == {"none"}:
        named: Settings = {"remat_policy": "custom"}
        named |= dict.fromkeys(maxtext.REMAT_TENSORS, "device")
    elif kept:
        named = {"remat_policy": "custom", "decoder_layer_input": "offload"}
    else:
        full = modes & {"full", "stage"}
        named = {"remat_policy": "full" if full else "minimal"}
    return {
        **named,
        "optimizer_memory_host_offload": offload.optimizer == 1.0,
        "parameter_memory_host_offload": offload.weights == 1.0,
    }


def _yaml(job: LaunchJob, groups: Sequence[OptionGroup]) -> str:
    """Return the options as YAML, with a word on each group."""
    lines = [
        f"# {job.scenario.name}: MaxText, {maxtext.VERSION}.".replace("\n", " "),
        'base_config: "base.yml"',
    ]
    for group in groups:
        if group.options:
            lines += ["", f"# {group.comment}"]
            lines += [_yaml_line(*option) for option in group.options.items()]
    return "\n".join(lines) + "\n"


def _script(job: LaunchJob, command: Mapping[str, str]) -> str:
    """Return what each host runs.

    Parameters
    ----------
    job
        The job.
    command
        Options that stand in the command.
    """
    taken = variables_of(list(command.values()))
    words = [f"{name}={quoted(value)}" for name, value in command.items()]
    templates = maxtext.TABLE.facts["templates"]
    text: str = templates["script"]
    return text.format(
        title=job.scenario.name.replace("\n", " "),
        yours=f"; {' and '.join(taken)} are yours." if taken else ".",
        environment=templates["tpu" if _is_tpu(job) else "gpu"],
        start=" \\\n    ".join([f"python3 -m {PROGRAM} {YAML_FILE}", *words]),
    )


def _of_import(
    job: LaunchJob, values: Mapping[str, Any]
) -> tuple[Settings, list[LaunchGap]]:
    """Return what of an imported configuration comes back, and what is changed of it.

    Parameters
    ----------
    job
        The job.
    values
        What is written for its plan.
    """
    return brought_back(
        values,
        carried_options(job, maxtext.FORMAT) or {},
        reads=lambda options: _read(job, options),
        matter=maxtext.OPTIONS.keys() | values.keys(),
        refusal=_unknown,
    )


def _unknown(name: str) -> str:
    known = (
        name in maxtext.OPTIONS
        or name in maxtext.TABLE.assumed
        or name in maxtext.TABLE.silent - {maxtext.BUILT}
    )
    return "" if known else "MaxText has no such option."


def _in_command(value: Any) -> bool:
    """Whether a value takes variables of a shell, and stands in the command."""
    return isinstance(value, str) and bool(variables_of([value]))


def _yaml_line(name: str, value: Any) -> str:
    """Return a line of the YAML file."""
    return f"{name}: {json.dumps(value)}"


def _read(job: LaunchJob, values: Mapping[str, Any]) -> Any:
    """Return what options are read as."""
    text = "\n".join(_yaml_line(name, value) for name, value in values.items())
    count = job.plan.parallel.num_devices
    read = read_maxtext(
        LaunchSource(path=Path("read.yml"), text=text, num_devices=count)
    )
    tables = {name: table for name, table in read.tables.items() if name != "launch"}
    return tables, read.num_devices, read.devices_per_node
