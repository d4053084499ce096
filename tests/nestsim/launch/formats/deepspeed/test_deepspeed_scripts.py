"""The scripts that are written do in a shell what we read of them."""

import os
import shutil
import subprocess

import pytest

from nestsim.launch.formats.deepspeed.writing import WORKER, write_deepspeed
from nestsim.launch.shell.follow import follow_script
from nestsim.launch.training import CHECK
from planner.plans.spec import DEFAULT_ORDER, PlanSpec
from tests import failures
from tests.nestsim.launch.jobs import planned, small_job

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def written(folder, **given):
    """Write a launch into a folder, beside a deepspeed that prints its words."""
    job = planned(small_job(), PlanSpec(**{"micro_batch_size": 1, **given}))
    for name, content in write_deepspeed(job).files.items():
        (folder / name).write_text(content)
    stub = folder / "deepspeed"
    stub.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    stub.chmod(0o755)
    return job


def run(folder, *words, **environment):
    """Return the lines that a command prints."""
    done = subprocess.run(
        ["bash", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=folder,
        env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
    )
    return done.stdout.splitlines()


@needs_bash
@failures.over(
    "given",
    [
        {},
        {"pipeline_model_parallel_size": 5, "data_parallel_size": 2}
        | {"zero_stage": 1, "pipeline_model_parallel_layout": (1, 2, 2, 2, 1)},
        {"pipeline_model_parallel_size": 4, "order": "tp-pp-dp-cp-ep"},
    ],
    ids=["plain", "quoted", "mapped"],
)
def test_a_shell_starts_the_words_that_are_read(tmp_path, given):
    written(tmp_path, **given)
    text = (tmp_path / "launch.sh").read_text()
    (command,) = [
        one.words
        for one in follow_script(text, {}).commands
        if one.words[0] == "deepspeed" and not any(CHECK in word for word in one.words)
    ]
    assert run(tmp_path, "launch.sh") == list(command[1:])


@needs_bash
def test_each_process_takes_the_rank_of_its_device(tmp_path):
    job = written(
        tmp_path,
        pipeline_model_parallel_size=2,
        data_parallel_size=4,
        order="tp-pp-dp-cp-ep",
    )
    devices = job.devices_of_ranks(DEFAULT_ORDER).tolist()
    show = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $CUDA_VISIBLE_DEVICES"'
    for device in range(16):
        lines = run(
            tmp_path,
            *(WORKER, "bash", "-c", show),
            RANK=str(device),
            LOCAL_RANK=str(device % 4),
            WORLD_SIZE="16",
            CUDA_VISIBLE_DEVICES="0,1,2,3",
        )
        if device in devices:
            assert lines == [f"{devices.index(device)} 0 8 {device % 4}"]
        else:
            assert lines == []
