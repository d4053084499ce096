"""What frameworks train with whatever a plan asks for, and where a plan differs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from estimators.training import TrainingSpec
from nestsim.launch.job import LaunchJob
from nestsim.launch.written import LaunchGap


def plain_mixed_precision(
    training: TrainingSpec, matmuls: Iterable[str]
) -> dict[str, Any]:
    """Return settings of training with masters and states in fp32, and no extras.

    Parameters
    ----------
    training
        What the plan is for.
    matmuls
        Formats of products that the framework has beside that of the weights.
    """
    matmul = training.matmul_precision
    return {
        "main_params_dtype": "fp32",
        "exp_avg_dtype": "fp32",
        "exp_avg_sq_dtype": "fp32",
        "matmul_precision": matmul if matmul in set(matmuls) else "",
        "fp8_param_gather": False,
        "moe_dispatch_precision": "",
        "gather_precision": "",
        "reduce_precision": "",
        "gradient_copies": False,
        "casts_gradients": False,
    }


def full_batch(job: LaunchJob) -> int:
    """Return the sequences of a step in which all microbatches are full."""
    plan = job.plan
    replicas = plan.parallel.data_parallel_size
    return plan.micro_batch_size * replicas * plan.num_microbatches


def differing_training(
    training: TrainingSpec, usual: Mapping[str, Any], framework: str
) -> Iterator[LaunchGap]:
    """Yield the settings of [training] that are others than a framework's."""
    for field in fields(training):
        value = getattr(training, field.name)
        if field.name in usual and value != usual[field.name]:
            has = "none of its own" if usual[field.name] == "" else usual[field.name]
            yield LaunchGap(
                setting=f"training.{field.name}",
                value=value,
                reason=f"{framework} has {has}.",
            )
