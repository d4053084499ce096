"""Plans drawn at random, and plans of the search, written for Megatron-LM and read."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nestsim.evaluate.job import plan_job
from nestsim.launch.formats.megatron.reading import read_megatron
from nestsim.launch.formats.megatron.writing import SCRIPT, write_megatron
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import LaunchSource
from nestsim.scenario.load import Scenario
from tests.nestsim.launch.megatron.small import small_scenario
from topologies.errors import InputError

pytestmark = pytest.mark.slow

PLANS = st.fixed_dictionaries(
    {
        "micro_batch_size": st.sampled_from([1, 2]),
        "tensor_model_parallel_size": st.sampled_from([1, 2, 4]),
        "pipeline_model_parallel_size": st.sampled_from([1, 2, 4]),
        "virtual_pipeline_model_parallel_size": st.sampled_from([1, 1, 2]),
        "context_parallel_size": st.sampled_from([1, 1, 2]),
        "expert_model_parallel_size": st.sampled_from([1, 2, 4]),
        "sequence_parallel": st.booleans(),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "zero_stage": st.sampled_from([0, 1, 2, 3]),
        "order": st.sampled_from(
            ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "tp-pp-cp-ep-dp"]
        ),
        "offload_optimizer": st.sampled_from([0.0, 0.0, 0.5]),
    }
)


def check(scenario: Scenario, job: LaunchJob) -> None:
    """What comes back is the plan, or what is told is not."""
    files = write_megatron(job)
    source = LaunchSource(path=Path(SCRIPT), text=str(files.files[SCRIPT]))
    imported = read_megatron(source)
    cluster = scenario.document()["cluster"]
    document = {"name": "again", **imported.tables, "cluster": cluster}
    told = {gap.setting for gap in files.gaps}
    again = LaunchJob.of(Scenario.from_dict(document, path=scenario.path))
    if "placement" in told:
        assert again.plan.parallel == job.plan.parallel
    else:
        assert again.plan == job.plan


@given(plan=PLANS)
@settings(max_examples=25)
def test_drawn_plans_come_back(plan: dict[str, Any]) -> None:
    scenario = small_scenario(plan)
    try:
        job = LaunchJob.of(scenario)
    except InputError:
        assume(False)
    check(scenario, job)


def test_a_plan_of_the_search_comes_back() -> None:
    scenario = Scenario.from_file(Path("scenarios/llama2_7b_64_h100.toml"))
    found = plan_job(scenario).candidates[0].priced.plan
    check(scenario, LaunchJob.of(scenario, found))


def test_a_schedule_that_megatron_has_not_is_told() -> None:
    scenario = Scenario.from_file(Path("scenarios/deepseek_v3_2048_h800.toml"))
    job = LaunchJob.of(scenario)
    files = write_megatron(job)
    told = {gap.setting for gap in files.gaps}
    assert {"schedule", "moe_dispatch_precision"} <= told
    assert "--pipeline-model-parallel-layout 'Et|(tt|)*30mL'" in str(
        files.files[SCRIPT]
    )
