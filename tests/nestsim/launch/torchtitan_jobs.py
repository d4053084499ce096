"""Small jobs for torchtitan, and plans that are written and read again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nestsim.launch.formats.torchtitan.reading import read_torchtitan
from nestsim.launch.formats.torchtitan.writing import SCRIPT_FILE, TOML_FILE
from nestsim.launch.job import LaunchFiles, LaunchJob
from nestsim.launch.read import ImportedJob, LaunchSource, imported_scenario
from nestsim.scenario.editing import toml_text
from nestsim.scenario.load import Scenario

PATH = Path("job.toml")

DENSE: Mapping[str, Any] = {
    "family": "llama",
    "num_layers": 8,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "ffn_hidden_size": 768,
    "vocab_size": 1024,
    "sequence_length": 128,
}

EXPERTS: Mapping[str, Any] = {
    "name": "qwen3-30b-a3b",
    "sequence_length": 512,
}


def small_job(
    plan: Mapping[str, Any],
    *,
    model: Mapping[str, Any] = DENSE,
    training: Mapping[str, Any] | None = None,
    software: Mapping[str, Any] | None = None,
    preset: str = "torchtitan",
    accelerator: str = "h100-sxm",
) -> LaunchJob:
    """Return a job with a plan on two nodes of eight devices."""
    node = {
        "name": "node",
        "bandwidth": "450 GB/s",
        "latency": "500 ns",
        "fan_out": 8,
    }
    fabric = {**node, "name": "fabric", "bandwidth": "400 Gbit/s", "fan_out": 2}
    document = {
        "name": "small",
        "model": dict(model),
        "training": {"global_batch_size": 64, **(training or {})},
        "software": {"preset": preset, **(software or {})},
        "cluster": {
            "accelerator": accelerator,
            "num_devices": 16,
            "network": {"kind": "fat-tree", "nic": "device", "levels": [node, fabric]},
        },
        "plan": {"micro_batch_size": 1, **plan},
    }
    return LaunchJob.of(Scenario.from_toml(toml_text(document), PATH))


def text_of(files: LaunchFiles, name: str) -> str:
    """Return one of the written files."""
    content = files.files[name]
    assert isinstance(content, str)
    return content


def read_text(
    text: str, name: str = TOML_FILE, *, num_devices: int | None = None
) -> ImportedJob:
    """Read a configuration."""
    source = LaunchSource(path=Path(name), text=text, num_devices=num_devices)
    return read_torchtitan(source)


def read_back(job: LaunchJob, files: LaunchFiles, name: str) -> LaunchJob:
    """Return the job that a written file stands for, on the same cluster."""
    assert name in {TOML_FILE, SCRIPT_FILE}
    imported = read_text(text_of(files, name), name)
    read = imported_scenario(imported, PATH, origin=name, cluster=job.scenario)
    return LaunchJob.of(read.scenario)
