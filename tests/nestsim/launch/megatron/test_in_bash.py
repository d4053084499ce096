"""Scripts that are written run in Bash: what they start is what they say."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nestsim.launch.formats.megatron.settings import job_options
from nestsim.launch.formats.megatron.writing import SCRIPT, write_megatron
from nestsim.launch.job import RANK_MAP, LaunchJob
from tests.nestsim.launch.megatron.small import CHANGED, small_scenario

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no Bash")


def run(job: LaunchJob, folder: Path, node: int) -> list[list[str]]:
    """Run a script with programs that write down how they are started."""
    files = write_megatron(job)
    for name, content in files.files.items():
        assert isinstance(content, str)
        (folder / name).write_text(content)
    for name in ("torchrun", "python"):
        program = folder / name
        program.write_text(
            "#!/bin/bash\n"
            'printf "%s\\n" "${RANK:-} ${LOCAL_RANK:-} ${WORLD_SIZE:-} '
            '${CUDA_DEVICE_MAX_CONNECTIONS:-unset} $*"\n'
        )
        program.chmod(0o755)
    done = subprocess.run(
        ["bash", str(folder / SCRIPT)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "NODE_RANK": str(node),
            "MASTER_ADDR": "first",
            "CUDA_DEVICE_MAX_CONNECTIONS": "7",
        },
    )
    return [line.split(" ") for line in done.stdout.splitlines()]


def test_torchrun_gets_every_option(tmp_path: Path) -> None:
    plan = {"pipeline_model_parallel_layout": [3, 5], "recompute": "full"}
    job = LaunchJob.of(small_scenario(plan))
    ((*_, connections, first), *others) = [
        (row[0], row[1], row[2], row[3], row[4:]) for row in run(job, tmp_path, 1)
    ]
    assert others == []
    assert connections == "1"
    assert first[first.index("--nnodes") + 1] == "2"
    assert first[first.index("--nproc_per_node") + 1] == "8"
    assert first[first.index("--node_rank") + 1] == "1"
    assert first[first.index("--master_addr") + 1] == "first"
    behind = first[first.index("pretrain_gpt.py") + 1 :]
    for group in job_options(job):
        for name, words in group.options.items():
            start = behind.index(f"--{name}") + 1
            assert behind[start : start + len(words)] == list(words)


def test_ranks_of_a_map_start_on_their_devices(tmp_path: Path) -> None:
    job = LaunchJob.of(small_scenario(CHANGED["placement"]))
    found = {}
    for node in (0, 1):
        for rank, device, world, *_ in run(job, tmp_path, node):
            assert world == "16"
            found[int(rank)] = 8 * node + int(device)
    rows = (tmp_path / RANK_MAP).read_text().splitlines()[1:]
    written = [tuple(map(int, row.split(","))) for row in rows]
    assert found == {rank: 8 * node + device for rank, node, device in written}
    assert sorted(found.values()) == list(range(16))


def test_megatron_fsdp_finds_the_variable_unset(tmp_path: Path) -> None:
    plan = {"zero_stage": 3, "pipeline_model_parallel_size": 1}
    (row,) = run(LaunchJob.of(small_scenario(plan)), tmp_path, 0)
    assert row[3] == "unset"
