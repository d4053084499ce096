"""What of a job Megatron-LM's options do not say, found by reading them back.

The options that were written are read as any command line is; whatever differs from the
job is a gap. So nothing is dropped silently, whoever forgets an option.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from estimators.models.diffusion import DIFFUSION_FAMILY
from estimators.models.limits import MODULE_FAMILY
from estimators.models.spec import TransformerSpec
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.composed import Launched, read_tables
from nestsim.launch.formats.megatron.options import GivenOptions
from nestsim.launch.formats.megatron.settings import (
    Values,
    hides_shared_experts,
    launch_rules,
    rank_order,
)
from nestsim.launch.formats.usual import expert_group_gaps
from nestsim.launch.job import LaunchGap, LaunchJob
from nestsim.scenario.defaults import checked_plan, checked_training
from nestsim.scenario.model import DOCUMENTS, TAKEN_OF_ROUTING, build_model
from planner.frameworks.framework import PRESETS
from planner.plans.build import outline_plan
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.step.plan import Plan, Stage
from topologies.errors import InputError

_OF_THE_FRAMEWORK = frozenset({"gradient_copies", "casts_gradients"})
"""What of the training is the framework's own way."""

_ALL_DECODERS = frozenset({"family", "whole_because", *TAKEN_OF_ROUTING, *DOCUMENTS})
"""What of the model says how it is built here, or of its data."""

REASONS: Mapping[str, str] = {
    name.rpartition(".")[2]: reason for name, reason in known.TABLE.gaps.items()
}
"""What cannot be said -> why, and what the launch does."""

_REFUSED_AT_START = frozenset(
    {
        "microbatches",
        "tensor_parallelism",
        "context_parallelism",
        "expert_parallelism",
        "expert_overlap",
    }
)
"""Rules of `planner.frameworks.rules` that no option is missing for."""


def find_gaps(job: LaunchJob, values: Mapping[str, Values]) -> tuple[LaunchGap, ...]:
    """Return what a job has and its options do not say.

    Parameters
    ----------
    job
        The job.
    values
        The options, without their dashes.
    """
    gaps: list[LaunchGap] = []
    try:
        tables = read_tables(GivenOptions(values=values), Launched.of(job))
    except InputError as error:
        return (LaunchGap(error.where, error.got, error.problem),)
    gaps += model_gaps(job.model, tables["model"])
    gaps += _training_gaps(job, tables)
    gaps += _plan_gaps(job, tables)
    gaps += _overlap_gaps(job, tables["software"])
    gaps += _saving_gaps(job)
    if job.scenario.software_preset != "megatron-lm":
        gaps += expert_group_gaps(job, "Megatron Core")
    gaps += _orders(job)
    gaps += _refusals(job)
    gaps += _padded(job, values)
    gaps += _biased_experts(job)
    graphs = job.workload.software.cuda_graphs
    if tables["software"].get("cuda_graphs", "none") != graphs:
        gaps.append(_gap("software.cuda_graphs", graphs))
    return tuple(gaps)


def _gap(name: str, value: object, **words: object) -> LaunchGap:
    """Return what cannot be said, for the reason that the table has."""
    reason = REASONS[name.rpartition(".")[2]].format(**words)
    return LaunchGap(name.partition(":")[0], value, reason)


def _biased_experts(job: LaunchJob) -> Iterator[LaunchGap]:
    """Yield biases of experts that tensor parallelism splits."""
    plan = job.settings
    etp = plan.expert_tensor_parallel_size or plan.tensor_model_parallel_size
    if job.model.num_moe_experts and job.model.add_bias_linear and etp > 1:
        yield _gap("expert_tensor_parallel_size: biases", etp)


def _padded(job: LaunchJob, values: Mapping[str, Values]) -> Iterator[LaunchGap]:
    """Yield a vocabulary of ours that tensor parallelism pads.

    ``_vocab_size_with_padding`` of ``megatron/training/tokenizer/tokenizer.py``.
    """
    size, tp = job.model.vocab_size, job.settings.tensor_model_parallel_size
    if values.get("make-vocab-size-divisible-by") == ("1",) and size % tp:
        yield _gap("vocab_size: padded", size, entries=-(-size // tp) * tp)


def model_gaps(model: TransformerSpec, table: Mapping[str, Any]) -> Iterator[LaunchGap]:
    """Yield what a model has and the one that was read back has not.

    Parameters
    ----------
    model
        The model.
    table
        The table that its options are read into.
    """
    if model.family in {MODULE_FAMILY, DIFFUSION_FAMILY}:
        yield _gap(f"model.family: {model.family}", model.family)
        return
    try:
        read = build_model(table, Path())
    except InputError as error:
        reason = f"Megatron-LM's options make no such model here: {error.problem}."
        value = getattr(model, error.where, model.family)
        yield LaunchGap(error.where or "model", value, reason)
        return
    if model.has_decoder:
        yield _gap("activation_func: T5", model.nonlinearity)
    yield from _differing("activation_func", model.nonlinearity, read.nonlinearity)
    left_out = {*_ALL_DECODERS, "activation_func"}
    if model.position_embedding_type != "learned":
        left_out.add("max_position_embeddings")
    for field in fields(TransformerSpec):
        if field.name not in left_out:
            yield from _differing(
                field.name, getattr(model, field.name), getattr(read, field.name)
            )


def _differing(name: str, asked: object, launched: object) -> Iterator[LaunchGap]:
    """Yield a gap where the launch has something else."""
    if asked == launched:
        return
    default = f"Megatron-LM has no option for it: the launch has {_short(launched)}."
    yield LaunchGap(name, asked, REASONS.get(name, default))


def _short(value: object) -> str:
    if value in ("", None, False, 0, ()):
        return "nothing of the kind"
    text = str(value)
    return text if len(text) < 60 else text[:60] + ".."


def _training_gaps(job: LaunchJob, tables: Mapping[str, Any]) -> Iterator[LaunchGap]:
    preset = PRESETS[tables["software"]["preset"]]
    read = checked_training(tables["training"], preset)
    for field in fields(type(job.training)):
        asked = getattr(job.training, field.name)
        if (
            field.name == "keep_fp8_transpose_cache"
            and not job.training.fp8_param_gather
        ):
            continue
        if field.name not in _OF_THE_FRAMEWORK:
            yield from _differing(field.name, asked, getattr(read, field.name))


def _plan_gaps(job: LaunchJob, tables: Mapping[str, Any]) -> Iterator[LaunchGap]:
    preset = PRESETS[tables["software"]["preset"]]
    plan = job.plan
    try:
        spec = checked_plan(tables["plan"], preset)
        read = outline_plan(job.workload, spec, job.network.num_devices)
    except InputError as error:
        yield from _impossible(job, error)
        return
    for name in ("parallel", "micro_batch_size", "num_microbatches", "schedule"):
        yield from _differing(name, getattr(plan, name), getattr(read, name))
    yield from _stage_gaps(plan, read)
    for name in ("gradient_algorithm", "tensor_algorithm"):
        yield from _differing(name, getattr(job.settings, name), "auto")


def _impossible(job: LaunchJob, error: InputError) -> Iterator[LaunchGap]:
    """Yield why the options make no plan that Megatron-LM would run."""
    asked = job.settings
    if asked.schedule is not None:
        yield _gap("schedule", asked.schedule)
    if asked.num_microbatches is not None:
        yield _gap("num_microbatches", asked.num_microbatches)
        return
    reason = f"Megatron-LM would refuse it: {error.problem}; {error.expected}."
    yield LaunchGap(error.where or "plan", error.got, reason)


def _stage_gaps(plan: Plan, read: Plan) -> Iterator[LaunchGap]:
    """Yield what stages have, and have not in the launch."""
    columns: dict[str, list[tuple[Any, Any]]] = {}
    for stage, other in zip(plan.stages, read.stages, strict=False):
        for name, value in _savings(stage).items():
            columns.setdefault(name, []).append((value, _savings(other)[name]))
    for name, pairs in columns.items():
        asked = [value for value, _ in pairs]
        if asked != [other for _, other in pairs]:
            alike = asked[0] if len(set(map(str, asked))) == 1 else asked
            yield from _differing(name, alike, [other for _, other in pairs])


def _savings(stage: Stage) -> dict[str, Any]:
    """Return what a stage holds and saves, by the names of settings."""
    return {
        "pipeline_model_parallel_layout": stage.chunks,
        "recompute": stage.recompute,
        "recompute_num_layers": stage.recompute_num_layers,
        "zero_stage": stage.zero_stage,
        "sharding_group_size": stage.sharding_group_size,
        "zero_hpz_partition_size": stage.zero_hpz_partition_size,
        "reshard_after_forward": stage.reshard_after_forward,
        **{f"offload_{name}": part for name, part in stage.offload._asdict().items()},
    }


def _overlap_gaps(job: LaunchJob, software: Mapping[str, Any]) -> Iterator[LaunchGap]:
    execution, settings = job.workload.execution, job.settings
    matters = {
        "overlap_grad_reduce": settings.data_parallel_size != 1,
        "overlap_param_gather": max(settings.zero_stage_by_stage()) > 0,
        "tp_comm_overlap": settings.tensor_model_parallel_size > 1,
        "overlap_p2p_comm": settings.virtual_pipeline_model_parallel_size > 1,
        "delay_wgrad_compute": settings.overlap_moe_expert_parallel_comm,
        "moe_shared_expert_overlap": hides_shared_experts(job),
    }
    for option in known.TABLE.part("overlaps"):
        name = option.key
        if matters[name]:
            has = software.get(name, option.default)
            yield from _differing(name, getattr(execution, name), has)


def _saving_gaps(job: LaunchJob) -> Iterator[LaunchGap]:
    """Yield what saves memory or time and no option of a command line asks for."""
    for name in ("activation_func_fp8_input_store", "fp8_dot_product_attention"):
        if getattr(job.workload.software, name):
            yield _gap(name, True)
    if job.workload.execution.frees_gradients:
        yield _gap("frees_gradients", True)


def _orders(job: LaunchJob) -> Iterator[LaunchGap]:
    """Yield a placement that is no order of ranks that Megatron-LM has."""
    if rank_order(job) is None:
        yield _gap("placement", job.plan.placement)


def _refusals(job: LaunchJob) -> Iterator[LaunchGap]:
    """Yield what can be said, and Megatron-LM would refuse when it starts."""
    facts = LaunchFacts.of(job.workload, job.network, idle_devices=True)
    rules = launch_rules(job)
    for broken in broken_rules(job.plan, rules, facts):
        if broken.rule in _REFUSED_AT_START:
            taken = f"it takes {broken.expected} ({broken.source})."
            reason = f"{rules.framework} would refuse it: {taken}"
            yield LaunchGap(broken.rule, broken.found, reason)
