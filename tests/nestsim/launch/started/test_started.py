"""Exported plans of tiny models are really started, on four to eight gloo processes.

Groups, microbatches and the blocks of each stage that the framework makes are those of
``groups.json``. Frameworks that the project's environment does not have run in one of
their own (`make frameworks`), and are left out where it was not made.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.launch.check_launch import expanded, group_of
from tests.nestsim.launch.megatron.small import small_scenario

HERE = Path(__file__).parent
FRAMEWORKS = Path(__file__).parents[4] / ".frameworks"

pytestmark = pytest.mark.slow

needs_megatron = pytest.mark.skipif(
    find_spec("megatron") is None, reason="needs megatron-core"
)


def exported(
    folder: Path, format_name: str, plan: Mapping[str, Any], ranks: int = 8, **more: Any
) -> dict[str, Any]:
    """Export a plan of eight blocks on one node, and return its ``groups.json``."""
    document = small_scenario({}, **more).document()
    document["plan"] = {"micro_batch_size": 1, "zero_stage": 1, **plan}
    if format_name == "deepspeed":  # experts are not in its pipelines
        document["model"] = DENSE
    cluster = document["cluster"]
    cluster["num_devices"] = ranks
    cluster["network"]["levels"] = cluster["network"]["levels"][:1]
    cluster["network"]["levels"][0]["fan_out"] = ranks
    for name, content in nestsim.export(document, format_name).launch.files.items():
        text = content if isinstance(content, str) else content.decode()
        (folder / name).write_text(text)
    groups: dict[str, Any] = json.loads((folder / "groups.json").read_text())
    return groups


def started(
    folder: Path, *words: str, python: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command where torchrun and python are those of an environment."""
    seen = folder / "seen"
    seen.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    programs = (python or Path(sys.executable)).parent
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder}:{programs}:{os.environ['PATH']}",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "SEEN": str(seen),
            "MEGATRON_DEEPSPEED": str(folder),
        },
    )


def seen_by_ranks(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Return what each rank wrote."""
    return [
        json.loads((folder / "seen" / f"{rank}.json").read_text())
        for rank in range(ranks)
    ]


def differing_groups(
    priced: Mapping[str, Any], ranks: list[dict[str, Any]]
) -> list[tuple[int, str, list[int]]]:
    """Return the groups that are others than those that were priced."""
    devices = [*expanded(priced["devices"])]
    return [
        (rank, kind, members)
        for rank, seen in enumerate(ranks)
        for kind, members in seen["groups"].items()
        if {devices[member] for member in members}
        != {*group_of(devices[rank], priced["groups"][kind])}
    ]


DENSE = {
    "family": "gpt",
    "num_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "vocab_size": 512,
    "sequence_length": 64,
}

PLANS: tuple[dict[str, Any], ...] = (
    {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "expert_model_parallel_size": 2,
    },
    {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 4,
        "context_parallel_size": 2,
        "sequence_parallel": False,
        "num_layers_in_first_pipeline_stage": 1,
        "num_layers_in_last_pipeline_stage": 1,
    },
)


@needs_megatron
@pytest.mark.parametrize("plan", PLANS, ids=["interleaved", "uneven"])
def test_a_launch_of_megatron_is_what_was_priced(
    tmp_path: Path, plan: Mapping[str, Any]
) -> None:
    priced = exported(tmp_path, "megatron", plan)
    job = (HERE / "megatron_job.py").read_text()
    (tmp_path / "pretrain_gpt.py").write_text(job)
    done = started(tmp_path, "bash", "launch.sh")
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = seen_by_ranks(tmp_path, priced["ranks"])
    assert differing_groups(priced, ranks) == []
    stages = priced["sizes"]["pp"]
    for seen in ranks:
        assert seen["num_microbatches"] == priced["batch"]["num_microbatches"]
        assert seen["blocks"] == priced["blocks"][seen["stage"] :: stages]


@needs_megatron
def test_a_launch_that_was_changed_is_refused(tmp_path: Path) -> None:
    exported(tmp_path, "megatron", PLANS[0])
    (tmp_path / "pretrain_gpt.py").write_text("raise SystemExit('it was started')\n")
    script = (tmp_path / "launch.sh").read_text()
    groups = (tmp_path / "groups.json").read_text()
    wrong = []
    for text, priced, reason in (
        (
            script.replace("model-parallel-size 2", "model-parallel-size 4", 1),
            groups,
            "tp is 4, and was priced as 2",
        ),
        (
            script.replace("GPUS_PER_NODE=8", "GPUS_PER_NODE=4"),
            groups,
            "4 ranks are started, and 8 were priced",
        ),
        (  # as priced, two nodes of four
            script,
            groups.replace('"devices_per_node": 8', '"devices_per_node": 4'),
            "and node 0 was priced with [0, 1, 2, 3]",
        ),
        (  # as priced, stages are neighbours
            script,
            groups.replace(
                '"pp": {"size": 2, "by_place"', '"pp": {"size": 2, "devices"'
            ),
            "the pp group of rank 0 is devices [0, 4], and was priced as [0, 1]",
        ),
    ):
        (tmp_path / "launch.sh").write_text(text)
        (tmp_path / "groups.json").write_text(priced)
        done = started(tmp_path, "bash", "launch.sh")
        if done.stderr.count("Not started: ") != 1 or reason not in done.stderr:
            wrong.append((reason, done.stderr[-2000:]))
        if done.returncode == 0 or "it was started" in done.stderr:
            wrong.append((reason, "it was started"))
    assert not wrong


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_pipeline_of_torch_runs_what_was_priced(tmp_path: Path, chunks: int) -> None:
    plan = {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": chunks,
        "sequence_parallel": False,
        "data_parallel_size": 1,
    }
    if chunks == 1:
        plan["num_layers_per_pipeline_stage"] = [1, 3, 2, 2]
    training = {"global_batch_size": 8}
    priced = exported(tmp_path, "torchtitan", plan, ranks=4, training=training)
    words = ("torchrun", "--nproc_per_node=4", str(HERE / "pipelining_job.py"))
    done = started(tmp_path, *words, "groups.json")
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = seen_by_ranks(tmp_path, 4)
    passes = {name: n for seen in ranks for name, n in seen["passes"].items()}
    count = priced["batch"]["num_microbatches"]
    assert passes == {
        f"{kind}{place}.{number}": count
        for kind in "fb"
        for place, blocks in enumerate(priced["blocks"])
        for number in range(blocks)
    }
    assert [seen["losses"] for seen in ranks] == [0, 0, 0, count]


def python_of(name: str) -> Path:
    """Return the Python of a framework's environment; the test is skipped without."""
    pythons = sorted(FRAMEWORKS.glob(f"{name}*/bin/python"))
    if not pythons:
        pytest.skip(f"needs {name}: make frameworks")
    return pythons[0].absolute()


@pytest.mark.parametrize("release", ["0.2", "0.3"])
def test_torchtitan_makes_the_groups_that_were_priced(
    tmp_path: Path, release: str
) -> None:
    python = python_of(f"torchtitan-{release}")
    plan = {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
        "zero_stage": 3,
    }
    exported(tmp_path, "torchtitan", plan, software={"preset": "torchtitan"})
    words = ("torchrun", "--nproc_per_node=8", "check_launch.py", "groups.json")
    options = {"0.2": ("torchtitan.toml",), "0.3": ("--parallelism.pipeline_degree=2",)}
    done = started(tmp_path, *words, *options[release], python=python)
    assert done.returncode == 0, done.stderr[-3000:]
    groups = json.loads((tmp_path / "groups.json").read_text())
    groups["groups"]["pp"]["devices"] = groups["groups"]["pp"].pop("by_place")
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    done = started(tmp_path, *words, *options[release], python=python)
    assert "the pp group of rank 0 is devices [0, 4]" in done.stderr


def test_a_launch_of_deepspeed_is_what_was_priced(tmp_path: Path) -> None:
    python = python_of("deepspeed")
    plan = {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 2,
        "sequence_parallel": False,
    }
    priced = exported(
        tmp_path,
        "deepspeed",
        plan,
        ranks=4,
        training={"precision": "fp32"},
        software={"preset": "deepspeed"},
    )
    (tmp_path / "pretrain_gpt.py").write_text((HERE / "deepspeed_job.py").read_text())
    # DeepSpeed's launcher wants its hosts; the ranks are torchrun's here.
    stub = tmp_path / "deepspeed"
    stub.write_text('#!/bin/bash\nshift 6\nexec torchrun --nproc_per_node=4 "$@"\n')
    stub.chmod(0o755)
    done = started(tmp_path, "bash", "launch.sh", python=python)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = seen_by_ranks(tmp_path, 4)
    assert differing_groups(priced, ranks) == []
    for seen in ranks:
        batch = {name: seen[name] for name in priced["batch"]}
        assert batch == priced["batch"]
        assert seen["blocks"] == priced["blocks"][seen["stage"]]
