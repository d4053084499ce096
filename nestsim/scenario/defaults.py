"""What holds where the tables [training], [search] and [plan] are silent."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from estimators.rampup import ramp_phases
from estimators.training import OPTIMIZER_BYTES, TrainingSpec, states_of
from nestsim.scenario.errors import checked
from nestsim.scenario.hardware.systems import with_system
from nestsim.scenario.software import DEFAULT_PRESET, with_software_defaults
from planner.frameworks.framework import FRAMEWORKS, IDEAL_PRESET, PRESETS, Preset
from planner.frameworks.rules import LaunchRules
from planner.plans.spec import PlanSpec
from planner.step.schedules import SCHEDULES
from planner.work import DEFAULT_WORK
from topologies.errors import InputError


def with_training_defaults(
    table: Mapping[str, Any], defaults: Preset
) -> dict[str, Any]:
    """Return a table [training] in which nothing is left to the framework.

    Parameters
    ----------
    table
        The table, as it is written.
    defaults
        What holds where it is silent.
    """
    optimizer, precision = table.get("optimizer", "adam"), table.get("precision")
    # A preset's habit gives way to what was asked for.
    goes = isinstance(optimizer, str) and (optimizer, False) in OPTIMIZER_BYTES
    goes = goes and not table.get("fp8_param_gather")
    known = defaults.gradients
    settings = {
        "gradient_precision": known.get(str(precision), known["bf16"]),
        "weights_in_fp32": defaults.weights_in_fp32 and goes,
        "gradient_copies": defaults.gradient_copies,
    }
    wire = {"gather_precision": defaults.gather, "reduce_precision": defaults.reduce}
    return settings | {name: value for name, value in wire.items() if value} | {**table}


def settled_training(spec: TrainingSpec, defaults: Preset) -> TrainingSpec:
    """Return what is trained as the framework does it.

    Raises
    ------
    InputError
        If settings do not go together.
    """
    mixed = spec.precision != "fp32"
    if (spec.optimizer, mixed) not in OPTIMIZER_BYTES:
        raise _optimizer_error(spec, f"precision {spec.precision}")
    _check_fp8_param_gather(spec)
    _check_adapter(spec, defaults)
    if spec.weights_in_fp32 and (spec.optimizer, False) not in OPTIMIZER_BYTES:
        raise _optimizer_error(spec, "weights_in_fp32")
    _check_states(spec, masters=mixed and not spec.weights_in_fp32)
    ramp_phases(spec.rampup_batch_size, spec.global_batch_size)  # refuses what is none
    return replace(spec, casts_gradients=defaults.casts_gradients)


def checked_training(
    table: Mapping[str, Any], defaults: Preset = IDEAL_PRESET
) -> TrainingSpec:
    """Check a table [training] by itself.

    Parameters
    ----------
    table, defaults
        As `with_training_defaults` takes them.

    Raises
    ------
    InputError
        If something in it is wrong.
    """
    spec = checked(TrainingSpec, with_training_defaults(table, defaults))
    return settled_training(spec, defaults)


def _check_states(spec: TrainingSpec, *, masters: bool) -> None:
    """Refuse formats of states that the optimizer does not have."""
    known = states_of(spec.optimizer)
    for name in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        if getattr(spec, name) != "fp32" and name not in known:
            raise InputError(
                f'"{spec.optimizer}" has no such state to choose a format for',
                where=name,
                got=getattr(spec, name),
                expected="left out, or another optimizer",
            )
    if spec.main_params_dtype != "fp32" and not masters:
        raise InputError(
            "there is no master copy beside weights in fp32",
            where="main_params_dtype",
            got=spec.main_params_dtype,
            expected="left out",
        )


def _check_adapter(spec: TrainingSpec, defaults: Preset) -> None:
    """Refuse adapters that the framework has not, or that settings do not go with."""
    if spec.adapter == "none":
        return
    framework = FRAMEWORKS[defaults.name]
    if spec.adapter not in framework.adapters:
        having = [
            name for name, known in FRAMEWORKS.items() if spec.adapter in known.adapters
        ]
        raise InputError(
            f"is not known to be launched by {framework.title.rstrip(',')}",
            where="adapter",
            got=spec.adapter,
            expected=" or ".join(f'"{name}"' for name in framework.adapters)
            or '"none"',
            hint=f"software.preset {', '.join(having)} has it",
        )
    if spec.precision == "fp32" and spec.adapter == "qlora":
        raise _adapter_error(spec, "precision", spec.precision)
    if spec.tells_matrices_apart:
        if spec.optimizer == "muon":
            raise _adapter_error(spec, "optimizer", spec.optimizer)
        raise _adapter_error(spec, "fp8_param_gather", value=True)


def _adapter_error(spec: TrainingSpec, setting: str, value: object) -> InputError:
    return InputError(
        f'does not go with adapter = "{spec.adapter}"',
        where=setting,
        got=value,
        expected="left out",
    )


def _check_fp8_param_gather(spec: TrainingSpec) -> None:
    """Refuse to keep weights in a narrow format where nothing says in which."""
    if not spec.fp8_param_gather:
        return
    if spec.matmul_precision in {"", "int8"}:
        raise InputError(
            "keeps weights in the narrow format of products, and there is none",
            where="fp8_param_gather",
            got=True,
            expected='matmul_precision, e.g. "fp8"',
        )
    if spec.precision == "fp32" or spec.weights_in_fp32:
        raise InputError(
            "does not go with weights in fp32",
            where="fp8_param_gather",
            got=True,
            expected="left out",
            hint='gather_precision = "fp8" sends weights in fp32 as fp8, as FSDP can',
        )
    if "main_params_dtype" not in states_of(spec.optimizer):
        raise _optimizer_error(spec, "fp8_param_gather: it keeps no master copy")


def _optimizer_error(spec: TrainingSpec, what: str) -> InputError:
    return InputError(
        f"does not go with {what}",
        where="optimizer",
        got=spec.optimizer,
        expected='"adam" or "sgd"',
    )


def with_plan_defaults(table: Mapping[str, Any], defaults: Preset) -> dict[str, Any]:
    """Return a table [plan] in which nothing is left to the framework.

    Parameters
    ----------
    table
        The table, as it is written.
    defaults
        What holds where it is silent.
    """
    chunks = "virtual_pipeline_model_parallel_size"
    settings = {
        "sequence_parallel": defaults.sequence_parallel,
        "recompute": defaults.recompute,
        "zero_stage": defaults.zero_stage,
        **table,
    }
    schedule, stages = (
        settings.get("schedule"),
        settings.get("pipeline_model_parallel_size"),
    )
    if isinstance(schedule, str) and schedule in SCHEDULES and chunks not in table:
        settings[chunks] = SCHEDULES[schedule].num_chunks or 1
    if schedule is None and isinstance(stages, int) and stages > 1:
        rules, number = FRAMEWORKS[defaults.name].rules, settings.get(chunks, 1)
        settings["schedule"] = rules.usual_schedule(
            number if isinstance(number, int) else 1
        )
    return settings


def checked_plan(table: Mapping[str, Any], defaults: Preset = IDEAL_PRESET) -> PlanSpec:
    """Check a table [plan] by itself.

    Parameters
    ----------
    table, defaults
        As `with_plan_defaults` takes them.

    Raises
    ------
    InputError
        If something in it is wrong.
    """
    return checked(PlanSpec, with_plan_defaults(table, defaults))


def with_search_defaults(
    table: Mapping[str, Any], rules: LaunchRules
) -> dict[str, Any]:
    """Return a table [search] in which nothing is left to the framework.

    Parameters
    ----------
    table
        The table, as it is written.
    rules
        What the framework can launch.
    """
    stages = list(rules.usual_zero_stages)
    return {"work_limit": DEFAULT_WORK, "zero_stages": stages, **table}


def with_defaults(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a scenario in which nothing is left to the framework."""
    software = document.get("software", {})
    software = software if isinstance(software, Mapping) else {}
    preset = PRESETS.get(str(software.get("preset", DEFAULT_PRESET)), IDEAL_PRESET)
    framework = FRAMEWORKS[preset.name]
    release = software.get("release")
    rules = framework.rules_of(release if release in framework.releases else None)
    filled: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
        "cluster": with_system,
        "training": lambda table: with_training_defaults(table, preset),
        "software": lambda table: with_software_defaults(table, preset),
        "search": lambda table: with_search_defaults(table, rules),
        "plan": lambda table: with_plan_defaults(table, preset),
    }
    return {
        key: filled[key](table)
        if key in filled and isinstance(table, Mapping)
        else table
        for key, table in {"search": {}, "software": {}, **document}.items()
    }
