"""What goes beside a launch says the groups that the plan is priced with."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import nestsim
from nestsim.launch.check_launch import group_of, sizes_of
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import LaunchSource
from nestsim.launch.readers import READERS
from nestsim.launch.registry import GROUPS, WRITERS, group_files
from nestsim.launch.training import CHECK
from planner.cost.pricing import device_grid
from tests.nestsim.launch.megatron.small import CHANGED, small_scenario
from topologies.arrays import IntArray


def test_every_format_that_starts_training_has_its_groups_beside_it() -> None:
    scenario = small_scenario({"expert_model_parallel_size": 4})
    for name in ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "maxtext"):
        files = nestsim.export(scenario, name).launch.files
        assert json.loads(files[GROUPS])["format"] == name
        assert (CHECK in files) == (name != "maxtext")  # JAX has no ranks of torch
    assert GROUPS not in nestsim.export(scenario, "plan").launch.files


def test_the_file_lists_what_plans_are_priced_with() -> None:
    wrong, count = [], 0
    for name, plan in CHANGED.items():
        job = LaunchJob.of(small_scenario(plan))
        priced: dict[str, Any] = json.loads(group_files(job, "megatron")[GROUPS])
        grid = device_grid(job.plan)  # stages, replicas, experts, context, tensor
        axes = {"tp": (4,), "cp": (3,), "dp": (1, 2), "dp-cp": (1, 2, 3), "pp": (0,)}
        for kind, along in axes.items():
            ends = range(-len(along), 0)
            rows = np.moveaxis(grid, along, ends).reshape(-1, priced_size(grid, along))
            for row in rows.tolist():
                members = group_of(row[-1], priced["groups"][kind])
                wrong += [(name, kind, row)] * (sorted(members) != sorted(row))
                count += 1
        wrong += [(name, "blocks")] * (sum(priced["blocks"]) != 8)
        batch = priced["batch"]
        full = batch["micro_batch_size"] * batch["num_microbatches"]
        wrong += [(name, "batch")] * (
            batch["global_batch_size"] != full * grid[0, ..., 0, 0].size
        )
    assert not wrong
    assert count > 1000


def priced_size(grid: IntArray, along: tuple[int, ...]) -> int:
    """Return the members of a group along some axes."""
    return math.prod(grid.shape[axis] for axis in along)


def test_options_of_every_framework_are_told_from_each_other(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        "[parallelism]\ntensor_parallel_degree = 4\nexpert_parallel_degree = 2\n"
    )
    for words, sizes in (
        ("--expert-tensor-parallel-size 1 --lr 3", {"etp": 1}),
        ("--tensor-model-parallel-size 2 --seed=8", {"tp": 2}),
        ("--parallelism.tensor_parallel_degree=8", {"tp": 8}),
        ("--parallelism.data_parallel_shard_degree -1", {}),
        (
            "--ds-sequence-parallel-size 4 --micro-batch-size 2",
            {"cp": 4, "micro_batch_size": 2},
        ),
        (f"--job.config_file={tmp_path}/t.toml", {"tp": 4, "ep": 2}),
    ):
        assert sizes_of(words.split()) == sizes, words


def test_a_script_with_the_check_in_front_is_read_as_without() -> None:
    job = LaunchJob.of(small_scenario({"pipeline_model_parallel_size": 1}))
    for name, file in (("megatron", "launch.sh"), ("torchtitan", "torchtitan.sh")):
        text = str(WRITERS[name](job).files[file])
        assert CHECK in text
        begin = text.index("# Nothing starts unless")
        end = text.index("\nfi\n", begin) + 4
        read = [
            READERS[name].read(
                LaunchSource(path=Path(file), text=script, model="mixtral-8x7b")
            )
            for script in (text, text[:begin] + text[end:])
        ]
        assert read[0].tables == read[1].tables
        assert read[0].assumptions == read[1].assumptions
