"""Runs that happened: with the settings that their reports print, each has room."""

from typing import Any

import numpy as np
import pytest
import tomli

from nestsim.evaluate.cluster import build_workload
from nestsim.evaluate.uncertainty import room_band
from nestsim.scenario import Scenario
from planner.memory.account import PlanMemory, plan_memory
from planner.plans.build import outline_plan
from planner.step.memory import RoomKind, judge_room
from tests import failures
from tests.docs.pages import ROOT

Changes = dict[str, dict[str, Any]]

META = "published/meta_llama3_405b_16384_h100"
DEEPSEEK = "deepseek_v3_2048_h800"
KIMI = "memory/kimi_k2_256_h800"

LARGE: Changes = {
    "cluster": {"num_devices": 2048},
    "plan": {"data_parallel_size": 128, "offload_optimizer": 0.0},
}
"""Kimi K2 on more nodes, which share the optimizer states."""


def held(name: str, changes: Changes) -> tuple[PlanMemory, RoomKind]:
    """Return what a run's stages hold, and what is said of it."""
    document = tomli.loads((ROOT / "scenarios" / f"{name}.toml").read_text("utf-8"))
    for table, settings in changes.items():
        document[table] = {**document[table], **settings}
    job = Scenario.from_dict(document)
    workload = build_workload(job, job.software, None)
    assert job.plan is not None
    plan = outline_plan(workload, job.plan, job.network_spec.num_devices)
    memory = plan_memory(workload, plan)
    band = room_band(job.software_preset, workload.software, workload.constants)
    assert band is not None
    need = band.need(memory.needed, workload.tensor_memory())
    return memory, judge_room(need.estimate, need.low, need.room)


@failures.over(
    ("name", "changes"),
    [
        (META, {}),
        ("published/meta_llama3_405b_131k_16384_h100", {}),
        (DEEPSEEK, {}),
        (KIMI, {}),
        (KIMI, LARGE),
        ("memory/pangu_ultra_moe_6144_ascend910b", {}),
        ("memory/palm_540b_6144_tpuv4", {}),
    ],
)
def test_a_run_that_happened_has_room(name: str, changes: Changes) -> None:
    assert held(name, changes)[1] == "fits"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (META, {"software": {"frees_gradients": False}}),
        (KIMI, {"plan": {"offload_activations": 0.0}}),
    ],
)
def test_it_has_by_what_its_report_says_it_saves(name: str, changes: Changes) -> None:
    assert held(name, changes)[1] == "infeasible"


def test_gradients_of_two_chunks_are_whole_where_fsdp_frees_them() -> None:
    """Of Llama 3 405B's blocks, one a chunk, over 8 devices and 128 replicas."""
    h, f, groups = 16384, 53248, 8 / 128
    block = (2 + 2 * groups) * h * h / 8 + 3 * h * f / 8 + 2 * h
    gradients = held(META, {})[0].stages[1].device["gradients"]
    assert gradients == pytest.approx(4 * (2 * block + 8 * block / 128), rel=1e-12)
    # Two rounds of microbatches come back to a chunk: all stay to the end.
    twice = {"training": {"global_batch_size": 4096}}
    assert held(META, twice)[0].stages[1].device["gradients"] == 4 * 8 * block


def test_weights_and_gradients_of_kimi_k2_take_what_its_report_says() -> None:
    """Some 30 GB of each device for all states, those of the optimizer apart."""
    stages = held(KIMI, {})[0].stages
    states = [stage.device["weights"] + stage.device["gradients"] for stage in stages]
    assert np.mean(states) == pytest.approx(30e9, rel=0.1)
