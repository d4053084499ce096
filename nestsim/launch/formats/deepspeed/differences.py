"""What a plan says and a launch of DeepSpeed does not: both read, and compared."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from pydantic import ValidationError

from estimators.layers.saved_activations import ATTENTION_CORE
from nestsim.launch.formats.deepspeed.architecture import built_model
from nestsim.launch.formats.deepspeed.script import TABLE
from nestsim.launch.formats.deepspeed.tables import PRESET, LaunchTables
from nestsim.launch.formats.usual import expert_group_gaps
from nestsim.launch.job import LaunchGap, LaunchJob
from nestsim.launch.ranks import RANK_MAP
from nestsim.scenario.plan import PlanTable
from nestsim.scenario.search import TrainingTable
from nestsim.scenario.software import SoftwareTable
from planner.frameworks.framework import PRESETS
from planner.search.placements import name_parts
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
    setting: str, wanted: object, found: object, otherwise: str = _OTHER_REASON
) -> LaunchGap:
    reason = TABLE.gaps.get(setting, otherwise)
    value = list(wanted) if isinstance(wanted, tuple) else wanted
    instead = list(found) if isinstance(found, tuple) else found
    if found in (None, "", ()):
        instead = "none"
    return LaunchGap(
        setting=setting,
        value=value,
        reason=f"{reason}; the launch has {instead}.",
    )


def _plan_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    found = PlanTable.model_validate(read.plan).build(PRESETS[PRESET])
    for field in fields(found):
        name = field.name
        wanted, has = getattr(job.settings, name), getattr(found, name)
        if name == "placement" and name_parts(job.plan.placement)[1]:
            yield LaunchGap(
                setting=name,
                value=wanted,
                reason=f"{RANK_MAP} has the nodes in this order, and the launch takes "
                "them so; no import can tell which of them are slow.",
            )
        elif wanted != has:
            yield _gap(name, wanted, has)


def _model_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    wanted = job.model
    if wanted.family not in _GPTS:
        yield LaunchGap(
            setting="model.family",
            value=wanted.family,
            reason="Megatron-DeepSpeed's pretrain_gpt.py builds no such model; the "
            "launch has the sizes of a GPT.",
        )
        return
    try:
        found = built_model(read.model, Path())
    except InputError as error:
        yield LaunchGap(setting="model", value=wanted.family, reason=f"{error}.")
        return
    for field in fields(wanted):
        value, has = getattr(wanted, field.name), getattr(found, field.name)
        if value != has and field.name != "family":
            yield _gap(f"model.{field.name}", value, has, _MODEL_REASON)


def _training_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    try:
        table = TrainingTable.model_validate(read.training)
    except ValidationError as error:
        yield LaunchGap(
            setting="training", value=str(read.training), reason=f"{error}."
        )
        return
    found = table.build(PRESETS[PRESET])
    for name in _TRAINING:
        wanted, has = getattr(job.training, name), getattr(found, name)
        if wanted != has:
            yield _gap(f"training.{name}", wanted, has)


def _software_gaps(job: LaunchJob, read: LaunchTables) -> Iterator[LaunchGap]:
    found = SoftwareTable.model_validate(read.software).build_execution({})
    for name in _EXECUTION:
        wanted, has = getattr(job.workload.execution, name), getattr(found, name)
        if wanted != has:
            yield _gap(f"software.{name}", wanted, has)
    modules = tuple(job.workload.software.recompute_modules)
    if modules != tuple(ATTENTION_CORE):
        yield _gap("software.recompute_modules", modules, tuple(ATTENTION_CORE))
