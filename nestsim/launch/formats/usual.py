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


def expert_group_gaps(
    job: LaunchJob, framework: str, *, within_data: bool
) -> Iterator[LaunchGap]:
    """Yield groups of experts that are counted otherwise than a framework's.

    ``within_data`` is `estimators.software.Software.experts_within_data`.
    """
    parallel = job.plan.parallel
    ways = "all ranks of a stage", "data-parallel ranks alone"
    others = (
        parallel.grouping.is_folded if within_data else parallel.experts_within_data
    )
    if others:
        yield LaunchGap(
            setting="expert_model_parallel_size",
            value=parallel.expert_model_parallel_size,
            reason=f"{framework} spreads experts over {ways[within_data]}, the plan "
            f"over {ways[not within_data]}.",
        )
