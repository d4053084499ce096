"""What selective recompute runs again, chosen by a search, in the files of Megatron."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nestsim.launch.formats.megatron.gaps import find_gaps
from nestsim.launch.formats.megatron.settings import job_options
from nestsim.launch.job import LaunchJob
from nestsim.scenario.load import load_scenario
from planner.plans.build import outline_plan
from planner.plans.spec import PlanSpec
from planner.plans.written import plan_settings, read_plan
from planner.step.plan import Plan
from topologies.errors import InputError

SCENARIO = Path(__file__).parents[4] / "scenarios" / "llama2_7b_64_h100.toml"
CHOSEN = ("layernorm", "mlp")
PLAN = PlanSpec(
    micro_batch_size=2, recompute="selective", zero_stage=1, recompute_modules=CHOSEN
)


@pytest.fixture(scope="module")
def job() -> LaunchJob:
    return LaunchJob.of(replace(load_scenario(SCENARIO), plan=PLAN))


def test_the_launch_has_the_modules_of_the_plan(job):
    values = {
        name: words
        for group in job_options(job)
        for name, words in group.options.items()
    }
    assert values["recompute-granularity"] == ("selective",)
    assert values["recompute-modules"] == CHOSEN
    assert not [gap for gap in find_gaps(job, values) if "recompute" in gap.setting]
    assert job.workload.software.recompute_modules == CHOSEN


def test_a_plan_keeps_its_modules_in_files(job, tmp_path):
    plan = replace(job.plan, recompute_modules=CHOSEN)
    assert Plan.from_json(plan.to_json()) == plan
    is_block = job.workload.table(plan.degrees).is_block
    settings = plan_settings(plan, is_block, job.training.global_batch_size)
    assert settings.recompute_modules == CHOSEN
    again = outline_plan(job.workload, settings, job.network.num_devices)
    assert again.recompute_modules == CHOSEN
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**plan.to_json(), "recompute_modules": ["nothing"]}))
    with pytest.raises(InputError, match="recompute_modules"):
        read_plan(file)
