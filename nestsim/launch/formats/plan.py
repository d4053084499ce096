"""Our own: the plan as JSON, and as the table [plan] of a scenario."""

from dataclasses import asdict, fields
from typing import Any

from nestsim.launch.job import LaunchJob
from nestsim.launch.written import LaunchFiles
from nestsim.report.json import dump_json
from nestsim.scenario.editing import toml_text
from planner.plans.spec import PlanSpec


def write_plan(job: LaunchJob) -> LaunchFiles:
    """Write a plan for `nestsim simulate`: nothing is left out."""
    return LaunchFiles(
        files={
            "plan.toml": toml_text({"plan": plan_table(job.settings)}),
            "plan.json": dump_json(job.plan.to_json()),
        }
    )


def plan_table(settings: PlanSpec) -> dict[str, Any]:
    """Return the table [plan] of settings.

    What a preset would decide is always written; of the rest, what is not its default.
    """
    decided = {"micro_batch_size", "sequence_parallel", "recompute", "zero_stage"}
    defaults = {one.name: one.default for one in fields(settings)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(settings).items()
        if value is not None and (name in decided or value != defaults[name])
    }
