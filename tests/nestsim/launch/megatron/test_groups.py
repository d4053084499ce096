"""The groups of ranks in plans, against Megatron Core's own, rank by rank."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nestsim.launch.formats.megatron.options import PP_INSIDE_ORDER, USUAL_ORDER
from nestsim.launch.formats.megatron.settings import rank_order
from nestsim.launch.job import LaunchJob
from planner.cost.pricing import plan_groups
from tests.nestsim.launch.megatron.parallel_state import WORLD, Groups
from tests.nestsim.launch.megatron.small import small_scenario
from topologies.arrays import IntArray

pytestmark = pytest.mark.skipif(
    find_spec("megatron") is None, reason="Megatron Core is not installed"
)

SCRIPT = Path(__file__).parent / "parallel_state.py"
DRAWS = 40

SIZES = (
    "tensor_model_parallel_size",
    "context_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
"""Arguments that are settings of [plan]."""


def drawn_plan(rng: random.Random) -> dict[str, Any] | None:
    """Draw sizes that fill the world, as Megatron allows them, or nothing."""
    tp, cp, pp = (rng.choice((1, 2, 4, 8)) for _ in range(3))
    dp, rest = divmod(WORLD, tp * cp * pp)
    ep, etp = rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 4, 8))
    if rest or tp % etp or tp * cp * dp % (etp * ep):
        return None
    return {
        "micro_batch_size": 1,
        "tensor_model_parallel_size": tp,
        "context_parallel_size": cp,
        "pipeline_model_parallel_size": pp,
        "data_parallel_size": dp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": etp,
        "order": rng.choice((USUAL_ORDER, PP_INSIDE_ORDER, "tp-pp-cp-ep-dp")),
    }


def sets(groups: Iterable[Iterable[int]]) -> set[tuple[int, ...]]:
    """Return groups without an order among them or inside."""
    return {tuple(sorted(group)) for group in groups}


def rows(grid: IntArray, *axes: int) -> set[tuple[int, ...]]:
    """Return the devices along some axes."""
    size = int(np.prod([grid.shape[axis] for axis in axes]))
    last = np.moveaxis(grid, axes, range(-len(axes), 0))
    return sets(last.reshape(-1, size).tolist())


def planned(job: LaunchJob) -> dict[str, set[tuple[int, ...]]]:
    """Return the groups of devices that a plan is priced and replayed with."""
    groups = plan_groups(job.plan)
    grid = groups.grid  # stages, replicas, experts, context, tensor
    kinds = {
        "tp": groups.tensor(),
        "cp": groups.context(),
        "dp-cp": groups.dense(),
        "ep": groups.experts(),
        "etp": groups.expert_tensor(),
        "expert dp": groups.expert_data(),
    }
    found = {
        name: sets(one.reshape(-1, one.shape[-1]).tolist())
        for name, one in kinds.items()
    }
    return found | {"dp": rows(grid, 1, 2), "pp": rows(grid, 0)}


def launched(job: LaunchJob, ranks: list[Groups]) -> dict[str, set[tuple[int, ...]]]:
    """Return Megatron's groups of ranks as devices that the launch puts ranks on."""
    devices = job.devices_of_ranks(rank_order(job) or USUAL_ORDER).tolist()
    return {
        name: sets([devices[rank] for rank in groups[name]] for groups in ranks)
        for name in ranks[0]
    }


# Of all plans over gloo most of the time is the starting of processes.
@pytest.mark.parametrize("over_gloo", [2, pytest.param(DRAWS, marks=pytest.mark.slow)])
def test_groups_of_every_kind_are_those_of_megatron_core(over_gloo: int) -> None:
    rng = random.Random(28)
    drawn: list[tuple[LaunchJob, dict[str, Any]]] = []
    while len(drawn) < DRAWS:
        plan = drawn_plan(rng)
        if plan is None:
            continue
        job = LaunchJob.of(small_scenario(plan))
        order = rank_order(job) or USUAL_ORDER
        drawn.append((job, {name: plan[name] for name in SIZES} | {"order": order}))
    # Those first that were counted wrong once: experts beside context parallelism.
    drawn.sort(key=lambda one: -min(one[0].plan.parallel.sizes()[1:3]))
    jobs = [job for job, _ in drawn]
    arguments = [asked for _, asked in drawn]
    assert sum(min(job.plan.parallel.sizes()[1:3]) > 1 for job in jobs) >= DRAWS / 5
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps({"plans": arguments, "gloo": over_gloo}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout[done.stdout.index('{"books"') :])
    assert found["gloo"] == found["books"][:over_gloo]
    wrong = [
        (asked, name)
        for job, asked, ranks in zip(jobs, arguments, found["books"], strict=True)
        for name, groups in launched(job, ranks).items()
        if groups != planned(job)[name]
    ]
    assert not wrong
