"""Write a plan's step as Chakra traces: a file for each device, and the groups.

Files are called as ASTRA-sim looks for them, ``trace.N.et`` of device ``N``: devices
stand in the trace as in the cluster, so that the placement is part of it.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from nestsim.document.dumps import dump_json
from nestsim.evaluate.cluster import device_fleet
from nestsim.evaluate.evaluator import Evaluator
from nestsim.launch.formats.chakra import wire
from nestsim.launch.formats.chakra.program import TraceNode, TraceProgram, numbered
from nestsim.launch.job import LaunchFiles, LaunchGap, LaunchJob
from nestsim.lowering.lower import stage_collectives
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.step.ledger import LEDGER, PASSES
from topologies.arrays import IntArray
from topologies.errors import InputError

MOST_NODES = 2_000_000
"""Most nodes of all traces together: some 200 MB."""

GROUPS = "comm_group.json"
"""Name of the file with the communicator groups."""

_LARGEST_TAG = 2**31 - 1


def write_chakra(job: LaunchJob) -> LaunchFiles:
    """Write a plan's step as Chakra execution traces.

    Raises
    ------
    InputError
        If the traces would be too large.
    """
    evaluator = _finest(job, Evaluator.on(job.scenario, job.network, job.workload))
    priced = evaluator.price(job.plan)
    work = evaluator.lower(priced, memory=False)
    sent = stage_collectives(job.network, job.workload, priced)
    _check_size(job, work)
    programs = [
        TraceProgram(work, stage, sent[stage], _tied(job, work, stage)).write()
        for stage in range(len(work.devices))
    ]
    total = sum(
        len(items) * devices.size
        for items, devices in zip(programs, work.devices, strict=True)
    )
    _check_nodes(total)
    groups = numbered(
        item.groups for items in programs for item in items if item.groups is not None
    )
    traces = {device: wire.metadata() for device in range(job.network.num_devices)}
    for items, devices in zip(programs, work.devices, strict=True):
        ranks = devices.ravel().tolist()
        for place, device in enumerate(ranks):
            traces[device] += b"".join(_nodes(items, place, device, groups))
    named = {str(number): list(group) for group, number in groups.items()}
    return LaunchFiles(
        files={
            GROUPS: dump_json(named),
            **{f"trace.{device}.et": trace for device, trace in traces.items()},
        },
        gaps=tuple(_gaps(job, priced, work)),
        notes=_notes(job, work),
    )


def _finest(job: LaunchJob, evaluator: Evaluator) -> Evaluator:
    """Return an evaluator that tells apart what passes send, if it is much.

    Whose passes gather weights or reduce gradients has no collective of them outside of
    its passes: without them a trace would be compute alone. The replay has them in the
    passes' time, and so has the trace where the scenario asks for it.
    """
    simulation = job.scenario.document().get("simulation", {})
    in_passes = any(LEDGER[one.zero_stage].sent_at(*PASSES) for one in job.plan.stages)
    if not in_passes or "granularity" in simulation:
        return evaluator
    settings = replace(evaluator.simulation.replay, granularity="layer")
    return replace(evaluator, simulation=replace(evaluator.simulation, replay=settings))


def _check_size(job: LaunchJob, work: PipelineWork) -> None:
    """Refuse before anything is written: each pass is a node at least."""
    p, d, t = work.devices.shape
    _check_nodes(p * d * t * 2 * work.num_chunks * work.num_microbatches)
    boundaries = max(work.boundary_bytes.size, 1)
    if 4 * work.num_microbatches * boundaries > _LARGEST_TAG:
        raise InputError("has more messages than tags", got=job.plan.num_microbatches)


def _check_nodes(total: int) -> None:
    if total > MOST_NODES:
        raise InputError(
            "is too large for Chakra traces",
            where="--to",
            got=f"{total:,} nodes of all devices together",
            expected=f"at most {MOST_NODES:,}",
            hint="fewer devices, a smaller global batch, or "
            'simulation.granularity = "stage"',
        )


def _tied(
    job: LaunchJob, work: PipelineWork, stage: int
) -> tuple[IntArray, float] | None:
    """Return who holds the tied embedding with whom, and its size [byte]."""
    if not work.tied_phases or stage not in {0, len(work.devices) - 1}:
        return None
    ends = work.devices[0].ravel(), work.devices[-1].ravel()
    parameters = job.workload.table(job.plan.degrees).tied_parameters
    size = parameters * job.workload.parameter_bytes.reduce
    return np.stack(ends, axis=1), float(size)


def _nodes(
    items: Sequence[TraceNode],
    place: int,
    device: int,
    groups: dict[tuple[int, ...], int],
) -> Iterator[bytes]:
    """Yield the nodes of one device, each behind its length.

    Times are whole microseconds in Chakra: each is the difference of two rounded
    moments, so that they add up to the whole.
    """
    member: dict[int, int] = {}
    done = 0.0
    fields = wire.NODE_FIELDS
    for number, item in enumerate(items):
        node = wire.number_field(fields["id"], number)
        node += wire.bytes_field(fields["name"], item.name.encode())
        node += wire.number_field(fields["type"], wire.NODE_TYPES[item.what])
        control = [one for one in item.after if items[one].what == "compute"]
        data = [one for one in item.after if items[one].what != "compute"]
        node += wire.numbers_field(fields["ctrl_deps"], control)
        node += wire.numbers_field(fields["data_deps"], data)
        if item.what == "compute":
            micros = round((done + item.duration) * 1e6) - round(done * 1e6)
            done += item.duration
            node += wire.number_field(fields["duration_micros"], micros)
        node += wire.attribute("is_cpu_op", 0)
        node += _traffic(item, place, device, groups, member)
        yield wire.delimited(node)


def _traffic(
    item: TraceNode,
    place: int,
    device: int,
    groups: dict[tuple[int, ...], int],
    member: dict[int, int],
) -> bytes:
    """Return the attributes of what a node sends."""
    size = round(item.num_bytes)
    if item.what in {"load", "store"}:
        return wire.attribute("tensor_size", size)
    if item.groups is not None:
        key = id(item.groups)
        if key not in member:
            row = int(np.flatnonzero((item.groups == device).any(axis=1))[0])
            member[key] = groups[tuple(item.groups[row].tolist())]
        return (
            wire.attribute("comm_type", wire.COLLECTIVES[item.operation])
            + wire.attribute("comm_size", size)
            + wire.attribute("pg_name", str(member[key]))
        )
    if item.peers is None:
        return b""
    other = int(item.peers[place])
    ends = (device, other) if item.what == "send" else (other, device)
    return b"".join(
        itertools.starmap(
            wire.attribute,
            (
                ("comm_size", size),
                ("comm_src", ends[0]),
                ("comm_dst", ends[1]),
                ("comm_tag", item.tag),
            ),
        )
    )


def _gaps(
    job: LaunchJob, priced: PricedPlan, work: PipelineWork
) -> Iterator[LaunchGap]:
    plan, execution = job.plan, job.workload.execution
    overlaps = execution.overlap_grad_reduce
    fleet = device_fleet(job.scenario, job.network.num_devices)
    in_passes = any(LEDGER[stage.zero_stage].sent_at(*PASSES) for stage in plan.stages)
    transfers = any(any(stage.step_transfers) for stage in priced.stages)
    is_slow = fleet is not None and bool((fleet.factors() > 1.0).any())
    cases: dict[str, tuple[bool, object]] = {
        "gradient_algorithm": (True, plan.gradient_algorithm),
        "tensor_algorithm": (True, plan.tensor_algorithm),
        "zero_stage": (work.layers is None and in_passes, plan.stages[0].zero_stage),
        "software.overlap_grad_reduce": (
            overlaps or execution.overlap_param_gather,
            overlaps,
        ),
        "offload_optimizer": (transfers, plan.stages[0].offload.optimizer),
        "cluster.groups": (bool(job.scenario.groups), "several accelerators"),
        "cluster.degraded": (is_slow, "slow devices"),
    }
    for setting, (lacks, value) in cases.items():
        if lacks:
            reason = wire.GAPS[setting]
            yield LaunchGap(setting=setting, value=value, reason=reason)


def _notes(job: LaunchJob, work: PipelineWork) -> tuple[str, ...]:
    inside = (
        "Collectives inside layers are nodes."
        if work.layers is not None
        else "Passes are one node each, with what layers send in them: "
        'simulation.granularity = "layer" tells it apart.'
    )
    return (
        inside,
        f"{GROUPS} has the communicator groups, for ASTRA-sim's comm-group option; "
        f"{job.network.num_devices} traces, one a device.",
    )
