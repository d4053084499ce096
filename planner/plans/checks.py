"""What any plan must satisfy on a cluster and with a model, whoever wrote it.

The search makes plans that do; people and files need not. Every refusal names the
setting as `estimators.training.ParallelismConfig` and `planner.step.plan.Plan` call it.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from estimators.collectives.algorithms import (
    ALGORITHM_NAMES,
    IN_NETWORK,
    algorithm_rules,
)
from estimators.collectives.tori import MULTI_RING, require_axes
from estimators.grouping import PLAIN_GROUPING
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.models.spec import TransformerSpec
from estimators.training import ParallelismConfig
from planner.cost.pricing import plan_degrees
from planner.step.execution import Workload
from planner.step.ledger import shards_weights
from planner.step.offload import is_beside_passes
from planner.step.plan import COUNTED_MODES, STAGE_SETTINGS, Plan, Stage
from planner.step.schedules import find_schedule
from topologies import InputError, Network

AUTO = "auto"
"""The algorithm that stands for the cheapest one."""

MODES = STAGE_SETTINGS["recompute"].known
"""Recompute modes."""

_LARGEST_TRIED = 128
_MOST_LISTED = 8


def check_plan(workload: Workload, plan: Plan, num_devices: int) -> None:
    """Refuse a plan that the model, the batch or the cluster cannot have.

    That the stages cover the chain of layers, and that replicas form the sharding
    groups, `planner.cost.pricing.price_plan` checks.

    Raises
    ------
    InputError
        If so, with the setting in ``where``.
    """
    check_outline(workload, plan, num_devices)
    _check_devices(plan, num_devices)


def check_outline(workload: Workload, plan: Plan, num_devices: int) -> None:
    """Refuse what `check_plan` does, whichever devices stages have.

    Raises
    ------
    InputError
        As `check_plan`.
    """
    try:
        check_sizes(plan.parallel, num_devices)
        check_model(workload.graph.spec, plan_degrees(plan))
    except InputError as error:
        inside = error.where != "micro_batch_size"
        raise (error.at("parallel") if inside else error) from None
    check_schedule(plan)
    for name in ("gradient_algorithm", "tensor_algorithm"):
        _check_choice(
            name, getattr(plan, name), (AUTO, *ALGORITHM_NAMES, *IN_NETWORK, MULTI_RING)
        )
    _check_batch(workload, plan)
    _check_stages(plan)


def check_algorithms(network: Network, plan: Plan) -> None:
    """Refuse algorithms that the network has no switches or no dimensions for.

    Raises
    ------
    InputError
        If so, with the setting in ``where``.
    """
    for name in ("gradient_algorithm", "tensor_algorithm"):
        try:
            algorithm_rules(getattr(plan, name), network.rules)
            if getattr(plan, name) == MULTI_RING:
                require_axes(network)
        except InputError as error:
            raise error.at(name) from None


def check_sizes(parallel: ParallelismConfig, num_devices: int) -> None:
    """Refuse degrees that take more devices than there are."""
    sizes = parallel.sizes()
    if parallel.num_devices > num_devices:
        where, got = _largest_size(parallel)
        raise InputError(
            "the sizes take more devices than the cluster has",
            where=where,
            got=got,
            expected=f"tensor {sizes.tp} x context {sizes.cp} x pipeline {sizes.pp} "
            f"x data {sizes.dp} = {parallel.num_devices:,} to be at most "
            f"{num_devices:,} devices",
        )


def _largest_size(parallel: ParallelismConfig) -> tuple[str, int]:
    """Return the setting that takes most devices, and its value."""
    sizes = parallel.sizes()
    # Replicas that are no more than the experts need follow from those.
    unit = parallel.grouping.replica_unit(sizes[:3])
    by_experts = sizes.dp == unit > 1
    values = {
        "expert_model_parallel_size" if by_experts else "data_parallel_size": sizes.dp,
        "pipeline_model_parallel_size": sizes.pp,
        "tensor_model_parallel_size": sizes.tp,
        "context_parallel_size": sizes.cp,
    }
    return max(values.items(), key=lambda item: item[1])


def check_model(model: TransformerSpec, degrees: Degrees) -> None:
    """Refuse degrees that the model does not split by."""
    problem = divisibility_problem(model, degrees)
    if problem is None:
        return
    for name, field, alone in (
        ("tensor_model_parallel_size", "tp", Degrees(tp=degrees.tp)),
        ("expert_model_parallel_size", "ep", Degrees(ep=degrees.ep)),
        ("context_parallel_size", "cp", degrees._replace(grouping=PLAIN_GROUPING)),
    ):
        if divisibility_problem(model, alone) is None:
            continue
        raise InputError(
            problem,
            where=name,
            got=getattr(degrees, field),
            expected=_sizes_that_work(model, alone, field),
        )
    raise _grouping_error(model, degrees, problem)


def _grouping_error(
    model: TransformerSpec, degrees: Degrees, problem: str
) -> InputError:
    """Return the refusal of groups that the model or the sizes cannot have."""
    ring = degrees.grouping._replace(cp_comm_type="p2p", a2a=0)
    if divisibility_problem(model, degrees._replace(grouping=ring)) is None:
        return InputError(
            problem,
            where="cp_comm_type",
            got=degrees.grouping.cp_comm_type,
            expected='"p2p" or "all_gather", or fewer ranks that exchange heads',
        )
    return InputError(
        problem,
        where="expert_tensor_parallel_size",
        got=degrees.etp,
        expected=f"{degrees.tp}, as tensor_model_parallel_size says, or "
        "sequence_parallel and a model with experts",
    )


def _sizes_that_work(model: TransformerSpec, degrees: Degrees, field: str) -> str:
    """List the sizes of one dimension that the model does split by."""
    written = degrees._asdict()
    sizes = [
        str(size)
        for size in range(1, _LARGEST_TRIED + 1)
        if divisibility_problem(model, Degrees(**{**written, field: size})) is None
    ]
    if not sizes:
        return "another tensor_model_parallel_size, or sequence_parallel off"
    more = ", .." if len(sizes) > _MOST_LISTED else ""
    return f"one of {', '.join(sizes[:_MOST_LISTED])}{more}"


def check_schedule(plan: Plan) -> None:
    """Refuse a schedule that is not known or does not have such sizes."""
    sizes = (
        plan.parallel.pipeline_model_parallel_size,
        plan.num_microbatches,
        plan.virtual_pipeline_model_parallel_size,
    )
    try:
        schedule = find_schedule(plan.schedule)
        schedule.check(*sizes)
    except InputError as error:
        raise (error if error.where else error.at("schedule")) from None
    schedule.check_length(*sizes)


def check_savings(stage: Stage, num_chunks: int) -> None:
    """Refuse ways to save memory that there are not."""
    for name, setting in STAGE_SETTINGS.items():
        if setting.known:
            _check_choice(name, getattr(stage, name), setting.known)
    if stage.recompute == "stage" and num_chunks > 1:
        raise InputError(
            "a stage of several chunks is not run again as a whole",
            where="recompute",
            got=stage.recompute,
            expected=", ".join(f'"{mode}"' for mode in MODES[:-1])
            + f", or one chunk per stage, not {num_chunks}",
        )
    _check_partial_recompute(stage)
    _check_second_copy(stage)
    _check_resharding(stage)
    for name, part in stage.offload._asdict().items():
        if not 0.0 <= part <= 1.0:
            raise InputError(
                "is no fraction",
                where=f"offload.{name}",
                got=part,
                expected="0 to 1",
            )
    if is_beside_passes(stage) and stage.recompute == "stage":
        raise InputError(
            "does not go with weights, gradients or activations on the host",
            where="recompute",
            got=stage.recompute,
            expected=", ".join(f'"{mode}"' for mode in MODES[:-1]),
        )


def _check_partial_recompute(stage: Stage) -> None:
    """Refuse a number of recomputed blocks that says nothing."""
    count = stage.recompute_num_layers
    if count is None:
        return
    if stage.recompute not in COUNTED_MODES:
        raise InputError(
            "counts the blocks that a stage recomputes one by one",
            where="recompute_num_layers",
            got=f"{count} with recompute {stage.recompute}",
            expected='recompute "full" or "selective" beside it',
        )
    if count < 0:
        raise InputError(
            "is no number of blocks",
            where="recompute_num_layers",
            got=count,
            expected="0 or more",
        )


def _check_second_copy(stage: Stage) -> None:
    """Refuse a second copy of weights that are whole, elsewhere, or not so divided."""
    size, shards = stage.zero_hpz_partition_size, stage.sharding_group_size
    if size == 1:
        return
    where = "zero_hpz_partition_size"
    if not shards_weights(stage.zero_stage):
        raise InputError(
            "there are no sharded weights to keep a second copy of",
            where=where,
            got=f"{size} with ZeRO-{stage.zero_stage}",
            expected="zero_stage 3 beside it, or 1 for no copy",
        )
    if size < 1 or shards % size:
        raise InputError(
            "the ranks that share ZeRO's shards do not form groups of that size",
            where=where,
            got=size,
            expected=f"a divisor of {shards}, the ranks of a sharding group",
        )
    if stage.offload.weights > 0.0:
        raise InputError(
            "does not go with weights on the host: a copy there is not modelled",
            where=where,
            got=size,
            expected="1, or offload_weights = 0 beside it",
        )


def _check_resharding(stage: Stage) -> None:
    """Refuse weights that are not sharded again as FSDP2 does it."""
    size, shards = stage.reshard_after_forward, stage.sharding_group_size
    if size is None:
        return
    where = "reshard_after_forward"
    problems = (
        (
            not shards_weights(stage.zero_stage),
            "there are no sharded weights to shard again",
            "zero_stage 3 beside it",
        ),
        (
            not 1 < size < shards or shards % size > 0,
            "the ranks that share ZeRO's shards do not form groups of that size",
            f"a divisor of {shards}, the ranks of a sharding group, above 1",
        ),
        (
            stage.zero_hpz_partition_size > 1,
            "does not go with a second copy of the weights",
            "zero_hpz_partition_size = 1 beside it",
        ),
        (
            stage.offload.weights > 0.0,
            "does not go with weights on the host: that is not modelled",
            "offload_weights = 0 beside it",
        ),
    )
    for is_broken, problem, expected in problems:
        if is_broken:
            raise InputError(problem, where=where, got=size, expected=expected)


def _check_choice(where: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        listed = ", ".join(
            f'"{name}"' if isinstance(name, str) else str(name) for name in known
        )
        raise InputError(
            "is not one of the known values",
            where=where,
            got=value,
            expected=f"one of {listed}",
        )


def _check_batch(workload: Workload, plan: Plan) -> None:
    """Refuse a plan for another batch, which its time would not be about."""
    dp = plan.parallel.data_parallel_size
    needed = workload.num_microbatches(plan.micro_batch_size, dp)
    if plan.num_microbatches != needed:
        raise InputError(
            "does not make the global batch",
            where="num_microbatches",
            got=plan.num_microbatches,
            expected=f"{needed}, with micro-batches of {plan.micro_batch_size} on "
            f"{dp} replicas and a global batch of "
            f"{workload.training.global_batch_size}",
        )


def _check_stages(plan: Plan) -> None:
    """Refuse stages in another number, and ways of theirs that there are not."""
    pp = plan.parallel.pipeline_model_parallel_size
    if len(plan.stages) != pp:
        raise InputError(
            "are not as many as the pipeline has",
            where="stages",
            got=len(plan.stages),
            expected=f"{pp}, as parallel.pipeline_model_parallel_size says",
        )
    v = plan.virtual_pipeline_model_parallel_size
    schedule = find_schedule(plan.schedule)
    for index, stage in enumerate(plan.stages):
        if is_beside_passes(stage) and schedule.splits_backward:
            raise InputError(
                "does not go with weights, gradients or activations on the host",
                where="schedule",
                got=plan.schedule,
                expected="a schedule that does not split the backward pass",
            )
        try:
            check_savings(stage, v)
            _check_spread(plan, stage)
            _check_chunks(stage, v)
        except InputError as error:
            raise error.at(f"stages[{index}]") from None


def _check_spread(plan: Plan, stage: Stage) -> None:
    """Refuse a second copy where neighbours hold other experts.

    DeepSpeed 0.19.8 does so, too (``deepspeed/runtime/engine.py:2224-2228``).
    """
    parallel = plan.parallel
    apart = parallel.expert_model_parallel_size > 1 or parallel.grouping.etp > 0
    if apart and stage.nearby_size > 1:
        is_copy = stage.zero_hpz_partition_size > 1
        raise InputError(
            "does not go with experts that are not divided as other layers are",
            where="zero_hpz_partition_size" if is_copy else "reshard_after_forward",
            got=stage.nearby_size,
            expected="none, or expert_model_parallel_size = 1 beside it, and no "
            "expert_tensor_parallel_size",
        )


def _check_chunks(stage: Stage, num_chunks: int) -> None:
    """Refuse chunks in another number than the schedule has."""
    if len(stage.chunks) != num_chunks:
        raise InputError(
            "does not have the chunks of its schedule",
            where="chunks",
            got=[list(chunk) for chunk in stage.chunks],
            expected=f"{num_chunks} intervals of layers",
        )


def _check_devices(plan: Plan, num_devices: int) -> None:
    """Refuse devices that are not there, are used twice, or are too few."""
    sizes = plan.parallel.sizes()
    shape = (sizes.dp, sizes.cp * sizes.tp)
    for index, stage in enumerate(plan.stages):
        where = f"stages[{index}].devices"
        widths = {len(row) for row in stage.devices}
        if len(stage.devices) != shape[0] or widths != {shape[1]}:
            raise InputError(
                "do not have the shape of the parallel sizes",
                where=where,
                got=f"{len(stage.devices)} rows of {sorted(widths)}",
                expected=f"{shape[0]} rows (data) of {shape[1]} (context x tensor)",
            )
        devices = np.array(stage.devices, dtype=np.int64)
        wrong = devices[(devices < 0) | (devices >= num_devices)]
        if wrong.size:
            raise InputError(
                "no such device",
                where=where,
                got=int(wrong[0]),
                expected=f"0 to {num_devices - 1}",
            )
    used = np.concatenate(
        [np.array(stage.devices, dtype=np.int64).ravel() for stage in plan.stages]
    )
    if np.bincount(used).max() > 1:
        raise InputError(
            "a device is used more than once",
            where="stages",
            got=Counter(used.tolist()).most_common(1)[0][0],
            expected="every device in one stage and one replica",
        )
