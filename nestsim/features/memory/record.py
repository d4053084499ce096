"""The memory of a job as JSON and as a table, in bytes."""

from nestsim.evaluate.uncertainty import need_json
from nestsim.features.memory.job import KeptActivations, MemoryResult, StageNeeds
from planner.memory.account import PlanMemory
from planner.memory.changes import Change, Largest
from planner.memory.thrift import ThriftyPlan
from planner.step.plan import Plan


def memory_json(result: MemoryResult) -> dict[str, object]:
    """Return everything that was found, for programs."""
    memory = result.memory
    return {
        "scenario": result.scenario_name,
        "accelerator": result.accelerator_name,
        "framework": result.framework,
        "num_devices": result.num_devices,
        "device_memory_bytes": result.device_memory,
        "memory_reserve_bytes": result.reserve,
        "usable_memory_bytes": result.limits.device,
        "host_memory_bytes": result.limits.host,
        "plan_is_given": result.is_given,
        "plan_is_the_frameworks_start": result.is_start,
        "fits": result.fits,
        "judgement": result.judgement,
        "memory": need_json(result.need),
        "plan": None if memory is None else _plan_json(memory.plan),
        "fullest_stage": None if memory is None else memory.fullest,
        "stages": [
            _stage_json(result, index, stage)
            for index, stage in enumerate(result.stages)
        ],
        "bytes_per_parameter": [item._asdict() for item in result.items],
        "changes": [_change_json(change) for change in result.changes],
        "changes_together": [_change_json(change) for change in result.together],
        "least_on_these_devices": _thrifty_json(result, result.least),
        "fewest_devices": _thrifty_json(result, result.fewest),
        "fewest_devices_with_hosts": _thrifty_json(result, result.fewest_with_hosts),
        "largest_micro_batch": _largest_json(result.micro_batch),
        "longest_sequence": _largest_json(result.sequence),
        "kept_activations": [_kept_json(kept) for kept in result.kept],
    }


def stage_rows(result: MemoryResult) -> list[dict[str, object]]:
    """Return one row for each stage and part, in bytes."""
    return [
        {"stage": index, "place": place, "part": part, "num_bytes": size}
        for index, stage in enumerate(result.stages)
        for place, parts in (
            ("device", {**stage.parts, **stage.beside._asdict()}),
            ("host", stage.host),
        )
        for part, size in parts.items()
    ]


def _plan_json(plan: Plan) -> dict[str, object]:
    """Return a plan without devices, which it does not have."""
    written = plan.to_json()
    unknown = ("placement", "gradient_algorithm", "tensor_algorithm")
    settings = {name: value for name, value in written.items() if name not in unknown}
    stages = [
        {name: value for name, value in stage.items() if name != "devices"}
        for stage in written["stages"]
    ]
    return {**settings, "stages": stages}


def _stage_json(
    result: MemoryResult, index: int, stage: StageNeeds
) -> dict[str, object]:
    dense, expert = stage.shares
    return {
        "stage": index,
        "parts_bytes": dict(stage.parts),
        "beside_tensors_bytes": stage.beside._asdict(),
        "tensors_bytes": stage.peak,
        "needed_bytes": stage.needed,
        "free_bytes": result.limits.device - stage.peak,
        "host_parts_bytes": dict(stage.host),
        "parameters": float(dense.parameters),
        "parameters_shared_by": int(dense.group_size),
        "expert_parameters": float(expert.parameters),
        "expert_parameters_shared_by": int(expert.group_size),
        "sharded": sorted(stage.sharded),
    }


def _needs_json(memory: PlanMemory) -> dict[str, float]:
    return {"tensors_bytes": memory.needed, "host_bytes": memory.host}


def _change_json(change: Change) -> dict[str, object]:
    settings = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in change.step.settings.items()
    }
    return {
        "kind": change.kind,
        "plan": settings,
        "training": dict(change.step.training),
        "model": dict(change.step.model),
        "fits": change.fits,
        **_needs_json(change.memory),
    }


def _thrifty_json(
    result: MemoryResult, thrifty: ThriftyPlan | None
) -> dict[str, object] | None:
    if thrifty is None:
        return None
    plan = thrifty.memory.plan
    return {
        "num_devices": plan.parallel.num_devices,
        "fits": thrifty.memory.fits(result.limits),
        "plan": _plan_json(plan),
        **_needs_json(thrifty.memory),
    }


def _largest_json(largest: Largest | None) -> dict[str, object] | None:
    return (
        None
        if largest is None
        else {"size": largest.size, **_needs_json(largest.memory)}
    )


def _kept_json(kept: KeptActivations) -> dict[str, object]:
    return {
        "layer": kept.layer,
        "num_layers": kept.num_layers,
        "recompute": kept.mode,
        "total_bytes": kept.total,
        "tensors": [tensor._asdict() for tensor in kept.tensors],
        "rest": kept.rest,
    }
