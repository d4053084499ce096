"""Plans as files: read from a folder of results, or written as people write them.

A plan as people write it: the settings that it can be built of again.

What `planner.plans.build` does, backwards. Where the devices stand in an order of whole
dimensions, as Megatron numbers its ranks, it is written as one; other nestings keep
their names.
"""

from pathlib import Path
from typing import Any

from estimators.layers.saved_activations import RECOMPUTE_MODULES
from planner.plans.spec import DEFAULT_ORDER, DIMENSIONS, PlanSpec, T
from planner.step.plan import (
    MOST_DEVICES,
    STAGE_SETTINGS,
    Offload,
    Plan,
    parsed_ranges,
)
from planner.step.recompute import SENDING_AGAIN
from planner.step.schedules import find_schedule, schedule_name
from planner.step.virtual import block_span
from topologies.arrays import FloatArray
from topologies.errors import InputError
from topologies.input_file import Value, read_json

MAX_FILE = 128 * 2**20
"""Longest file that is read [byte]: a plan on 16 million devices takes as much in
lists."""

MOST = 1_000_000_000
"""Largest size that a plan may name: those above it are slips of the keyboard."""

_EXPECTED = "a plan in JSON, such as plan.json in a folder of results"
_COUNTS = (
    "virtual_pipeline_model_parallel_size",
    "micro_batch_size",
    "num_microbatches",
)


def read_plan(path: Path) -> Plan:
    """Read a plan; that it fits a scenario, `planner.plans.checks.check_plan` says.

    Raises
    ------
    InputError
        If the file cannot be read or does not hold a plan. The message starts with
        the file and the key.
    """
    try:
        return plan_of(Value(read_json(path, expected=_EXPECTED, most_bytes=MAX_FILE)))
    except InputError as error:
        raise error.at(str(path), ": ") from None


def plan_of(data: Value) -> Plan:
    """Return the plan that is written in a file, or in a part of one.

    Raises
    ------
    InputError
        If that is no plan.
    """
    _check_forms(data)
    return Plan.from_json(data.table())


def _check_forms(file: Value) -> None:
    """Refuse values of another type or out of range, naming the key."""
    for name, value in file["parallel"].items():
        if name == "sequence_parallel":
            value.flag()
        elif name == "cp_comm_type":
            value.text()
        elif name == "hierarchical_context_parallel_sizes":
            for size in value.array(least=1):
                _count(size)
        else:
            _count(value)
    for name in _COUNTS:
        _count(file[name])
    file.get("recompute_modules", []).each(
        lambda module: module.choice(tuple(RECOMPUTE_MODULES))
    )
    stages = file["stages"]
    if sum(_check_stage(stage) for stage in stages.array(least=1)) > MOST_DEVICES:
        raise InputError(
            "names too many devices",
            where=stages.where,
            expected=f"at most {MOST_DEVICES:,} devices",
        )


def _count(value: Value, *, least: int = 1, most: int = MOST) -> None:
    """Refuse what is no whole number; the fractions of a plan are those of hosts."""
    if isinstance(value.raw, float):
        raise value.error("must be a whole number", "whole numbers: 8, not 8.0")
    value.whole(least=least, most=most)


def _check_stage(stage: Value) -> int:
    """Check a stage and count its devices."""
    for name, setting in STAGE_SETTINGS.items():
        usual = setting.usual
        value = stage[name] if usual is ... else stage.get(name, usual)
        if setting.read is int and value.raw is not usual:
            _count(value, least=setting.least, most=setting.most or MOST)
    for name, part in stage.get("offload", {}).items():
        if name not in Offload._fields:
            raise part.error("is nothing that hosts keep", ", ".join(Offload._fields))
        part.number()
    for chunk in stage["chunks"].array(least=1):
        ends = [end.whole(least=0, most=MOST) for end in chunk.array(least=2)]
        if len(ends) > 2:
            raise chunk.error("is not an interval", "the first and the last layer")
    return _check_devices(stage["devices"])


def _check_devices(devices: Value) -> int:
    """Count devices, given as ranges or as a list of numbers for each replica."""
    rows = devices.array(least=1)
    if isinstance(rows[0].raw, str):
        try:
            return sum(len(numbers) for numbers in parsed_ranges(devices.raw))
        except InputError as error:
            raise error.at(devices.where, "") from None
    for row in rows:
        for device in row.array(least=1):
            device.whole(least=0, most=MOST)
    return sum(len(row.raw) for row in rows)


def plan_settings(plan: Plan, is_block: FloatArray, global_batch_size: int) -> PlanSpec:
    """Return the settings of a plan, as few as tell it.

    `planner.plans.build.build_plan` makes the same plan of them on the same cluster, if
    the plan stands in a placement of its space and its last microbatch is not half
    empty.

    Parameters
    ----------
    plan
        The plan.
    is_block
        Whether each layer of the chain is a block, shape ``(L,)``.
    global_batch_size
        Sequences per optimizer step.
    """
    parallel, v = plan.parallel, plan.virtual_pipeline_model_parallel_size
    pairs, family = _hides_experts(plan), plan.schedule_family
    in_order = order_of(plan.placement)
    ranks = parallel.data_parallel_size * parallel.context_parallel_size
    full = plan.micro_batch_size * parallel.data_parallel_size * plan.num_microbatches
    return PlanSpec(
        micro_batch_size=plan.micro_batch_size,
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=v,
        data_parallel_size=parallel.data_parallel_size,
        num_microbatches=None if full == global_batch_size else plan.num_microbatches,
        context_parallel_size=parallel.context_parallel_size,
        expert_model_parallel_size=parallel.expert_model_parallel_size,
        expert_tensor_parallel_size=parallel.grouping.etp or None,
        cp_comm_type=parallel.cp_comm_type,
        hierarchical_context_parallel_sizes=(
            parallel.hierarchical_context_parallel_sizes
        ),
        sequence_parallel=parallel.sequence_parallel,
        schedule=None if family == schedule_name(v, pairs=pairs) else family,
        microbatch_group_size_per_vp_stage=plan.microbatch_group_size_per_vp_stage,
        overlap_moe_expert_parallel_comm=pairs,
        recompute_modules=plan.recompute_modules or None,
        **_stage_settings(plan, ranks),
        pipeline_model_parallel_layout=_layout(plan, is_block),
        order=None if in_order == DEFAULT_ORDER else in_order,
        placement=plan.placement if in_order is None else None,
        gradient_algorithm=plan.gradient_algorithm,
        tensor_algorithm=plan.tensor_algorithm,
    )


def order_of(placement: str) -> str | None:
    """Return the order of ranks that a placement is, innermost dimension first.

    Returns
    -------
    str or None
        All dimensions joined by dashes; None where one of them is split or padded.

    Examples
    --------
    >>> order_of("tp8 pp4 dp2")
    'tp-cp-ep-pp-dp'
    >>> order_of("tp8 dp2 pp4 dp4") is None
    True
    """
    names = [factor.rstrip("0123456789") for factor in placement.split()]
    if len(set(names)) < len(names) or not set(names) <= set(DIMENSIONS):
        return None
    # A dimension of size 1 may stand anywhere: before those that it precedes by
    # default, so that the default order is found wherever it is meant.
    order = list(names)
    for place, name in enumerate(DIMENSIONS):
        if name not in order:
            before = [order.index(one) for one in DIMENSIONS[:place]]
            order.insert(max(before, default=-1) + 1, name)
    return "-".join(order)


def _hides_experts(plan: Plan) -> bool:
    """Return whether settings may say that all-to-alls of experts are hidden.

    A schedule that pairs passes may be there by its name alone: without experts, or
    with passes that send their tokens again (`planner.plans.spec.PlanSpec`).
    """
    again = any(stage.recompute in SENDING_AGAIN for stage in plan.stages)
    has_experts = plan.parallel.expert_model_parallel_size > 1
    return plan.overlap_moe_expert_parallel_comm and has_experts and not again


def _one_or_each(values: list[T]) -> T | tuple[T, ...]:
    """Return the value of all stages if there is one, else that of each."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _stage_settings(plan: Plan, ranks: int) -> dict[str, Any]:
    """Return what stages choose, under the names of settings.

    Shards that all ranks share, or nobody, have no number, and neither have blocks all
    of which are recomputed.
    """
    columns = {
        name: [getattr(stage, name) for stage in plan.stages] for name in STAGE_SETTINGS
    }
    offloads = columns.pop("offload")
    for name, parts in zip(Offload._fields, zip(*offloads, strict=True), strict=True):
        columns[f"offload_{name}"] = list(parts)
    columns["sharding_group_size"] = [
        stage.sharding_group_size if stage.zero_stage else ranks
        for stage in plan.stages
    ]
    if set(columns["recompute_num_layers"]) != {None}:
        counts = columns["recompute_num_layers"]
        columns["recompute_num_layers"] = [count or 0 for count in counts]
    if set(columns["reshard_after_forward"]) != {None}:
        columns["reshard_after_forward"] = [
            stage.reshard_after_forward or max(stage.sharding_group_size, 2)
            for stage in plan.stages
        ]
    settings = {name: _one_or_each(values) for name, values in columns.items()}
    if settings["sharding_group_size"] == ranks:
        settings["sharding_group_size"] = None
    return settings


def _layout(plan: Plan, is_block: FloatArray) -> tuple[int, ...] | None:
    """Return the blocks of each virtual stage; None if all have equally many."""
    first, last = block_span(is_block)
    number = (
        find_schedule(plan.schedule)
        .virtual_stages(len(plan.stages), plan.virtual_pipeline_model_parallel_size)
        .number
    )
    counts = [0] * number.size
    for stage, held in zip(plan.stages, number.tolist(), strict=True):
        for (begin, end), k in zip(stage.chunks, held, strict=True):
            counts[k] = max(min(end + 1, last) - max(begin, first), 0)
    return None if len(set(counts)) == 1 else tuple(counts)
