"""The tables [plan] and [launch]: a plan, and what a launch said beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.errors import checked
from planner.frameworks.framework import FRAMEWORKS, IDEAL_PRESET, Preset
from planner.plans.spec import PlanSpec
from planner.step.schedules import SCHEDULES
from topologies.settings import Argument, Examples, Spec, Text

OptionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec(Spec):
    """What a launch configuration said beside the job, for `nestsim export`."""

    format: Annotated[Text, Examples("megatron")]
    """Name of the format that `nestsim import` read."""

    options: Annotated[
        dict[OptionName, Argument],
        Examples({"rotary-base": "500000", "bf16": True}, default={}),
    ] = field(default_factory=dict)
    """Options that no other setting stands for, by their names there: words, lists of
    words, true for options that stand alone. An export to the same format has them as
    they are; nothing else reads them."""


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
