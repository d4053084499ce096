"""Our own format: the table [plan] and plan.json give the same plan again."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.launch.registry import write_plan
from nestsim.scenario.defaults import checked_plan
from planner.frameworks.framework import PRESETS
from planner.plans.build import build_plan
from planner.plans.written import read_plan
from tests import failures
from tests.nestsim.launch.jobs import jobs
from topologies.input_file import parse_toml


@failures.over("preset", ["deepspeed", "megatron-core", "torchtitan"])
@given(data=st.data())
@settings(max_examples=40)
def test_a_plan_that_is_written_is_read_as_it_was(preset, tmp_path_factory, data):
    """Whatever the preset would decide, the table says it."""
    job = data.draw(jobs(), label="job")
    files = write_plan(job).files
    table = parse_toml(str(files["plan.toml"]).encode())["plan"]
    spec = checked_plan(table, PRESETS[preset])
    assert spec == job.settings
    assert build_plan(job.network, job.workload, spec) == job.plan
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(str(files["plan.json"]))
    assert read_plan(path) == job.plan
