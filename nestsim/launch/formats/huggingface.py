"""A Hugging Face ``config.json``: the model of a scenario, and nothing else."""

import json

from nestsim.launch.read import ImportedJob, LaunchSource

ASSUMED_BATCH = 512
"""Sequences of an optimizer step that are assumed."""


def is_huggingface(source: LaunchSource) -> bool:
    """Whether a file looks like the configuration of a model of the hub."""
    try:
        content = json.loads(source.text)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "model_type" in content


def read_huggingface(source: LaunchSource) -> ImportedJob:
    """Read a model; the job and its plan are left to the user and the search."""
    return ImportedJob(
        name=source.path.resolve().parent.name or source.path.stem,
        tables={
            "model": {"config": str(source.path.resolve())},
            "training": {"global_batch_size": ASSUMED_BATCH},
            "software": {"preset": "megatron-core"},
        },
        num_devices=source.num_devices,
        assumptions=(
            f"A step takes {ASSUMED_BATCH} sequences of the longest length that the "
            "model allows.",
            "The framework is Megatron Core.",
            "There is no plan: `nestsim run` searches one.",
        ),
    )
