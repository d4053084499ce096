"""A plan's step as MLCommons Chakra traces: a file for each device, and the groups.

Files are called as ASTRA-sim looks for them, ``trace.N.et`` of device ``N``: devices
stand in the trace as in the cluster, so that the placement is part of it. The step is
the one that the replay is given (`nestsim.simulator.work.PipelineWork`): the passes of
the schedule in their order, each with its moves; what they send between stages; the
collectives around the optimizer step. Ranks of a stage have one program; whom they send
to, and with whom, is theirs (`Peers`).

A message of protobuf is a sequence of fields, each a number and a wire type in one
varint, then a varint or a length and that many bytes (protobuf.dev, "Encoding"). A
trace is a sequence of messages, each behind its length: the metadata, then the nodes.
Numbers of fields and values, and names of attributes, are in ``chakra.toml``.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources

import numpy as np
import tomli

from nestsim.document.dumps import dump_json
from nestsim.evaluate.cluster import device_fleet
from nestsim.evaluate.evaluator import Evaluator
from nestsim.launch.job import LaunchFiles, LaunchGap, LaunchJob
from nestsim.lowering.lower import StageCollectives, stage_collectives
from nestsim.simulator.system import NONE
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.step.instructions import BACKWARD, FORWARD, USUAL_KIND, WEIGHT
from planner.step.ledger import LEDGER, PASSES
from planner.step.offload import TO_DEVICE, TO_HOST
from planner.step.schedules import find_schedule
from topologies.arrays import IntArray
from topologies.errors import InputError

_FACTS = tomli.loads((resources.files(__package__) / "chakra.toml").read_text("utf-8"))

SCHEMA: str = _FACTS["schema"]
"""Version of the schema, in a trace's metadata."""

NODE_FIELDS: Mapping[str, int] = _FACTS["node_fields"]
"""Field of the message Node -> its number."""

ATTRIBUTE_FIELDS: Mapping[str, int] = _FACTS["attribute_fields"]
"""Field of the message AttributeProto -> its number."""

NODE_TYPES: Mapping[str, int] = _FACTS["node_types"]
"""What a node does -> value of the enumeration NodeType."""

COLLECTIVES: Mapping[str, int] = _FACTS["collectives"]
"""Our name of a collective -> value of the enumeration CollectiveCommType."""

ATTRIBUTES: Mapping[str, str] = _FACTS["attributes"]
"""Name of an attribute -> field of its value."""

GAPS: Mapping[str, str] = _FACTS["gaps"]
"""Setting -> why it is not in a trace."""

_VARINT, _LENGTH = 0, 2


def varint(value: int) -> bytes:
    """Return a whole number that is not negative, seven bits a byte, the low first.

    Examples
    --------
    >>> varint(300).hex()
    'ac02'
    """
    if value < 0x80:  # most of them
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """Return a field with a whole number."""
    return varint(number << 3 | _VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field with bytes: a text, or a message."""
    return varint(number << 3 | _LENGTH) + varint(len(value)) + value


def attribute(name: str, value: int | str) -> bytes:
    """Return an attribute of a node, as a field."""
    field = ATTRIBUTE_FIELDS[ATTRIBUTES[name]]
    content = (
        bytes_field(field, value.encode())
        if isinstance(value, str)
        else number_field(field, int(value))
    )
    inner = bytes_field(ATTRIBUTE_FIELDS["name"], name.encode()) + content
    return bytes_field(NODE_FIELDS["attr"], inner)


def attributes(**values: int | str) -> bytes:
    """Return attributes of a node, as fields."""
    return b"".join(itertools.starmap(attribute, values.items()))


def numbers_field(number: int, values: Iterable[int]) -> bytes:
    """Return a field with several whole numbers; nothing without any."""
    packed = b"".join(map(varint, values))
    return bytes_field(number, packed) if packed else b""


def delimited(message: bytes) -> bytes:
    """Return a message behind its length."""
    return varint(len(message)) + message


def metadata() -> bytes:
    """Return the first message of a trace, GlobalMetadata, behind its length."""
    return delimited(bytes_field(1, SCHEMA.encode()))


_NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight gradients"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNode:
    """One node of a stage's program."""

    what: str
    """A key of `NODE_TYPES`."""

    name: str
    """What people read."""

    after: tuple[int, ...]
    """Nodes before it on the same rank."""

    duration: float = 0.0
    """Compute [s]."""

    num_bytes: float = 0.0
    """What is sent: of a collective the full tensor [byte]."""

    operation: str = ""
    """Collective."""

    groups: IntArray | None = None
    """Devices of each group of a collective, shape ``(G, n)``."""

    peers: IntArray | None = None
    """Device at the other end for each device of the stage, in the order of
    `PipelineWork.devices`."""

    tag: int = 0
    """Number that a message and its receiver share."""


@dataclass(slots=True)
class TraceProgram:
    """Writes the nodes of one stage."""

    work: PipelineWork
    """The step."""

    stage: int
    """Which stage it is."""

    sent: StageCollectives
    """What it sends."""

    tied: tuple[IntArray, float] | None
    """Pairs of devices that hold the tied embedding, shape ``(G, 2)``, and its size
    [byte]; None if this stage has none."""

    items: list[TraceNode] = field(default_factory=list)
    """Nodes so far."""

    frontier: tuple[int, ...] = ()
    """Nodes that what comes next waits for."""

    pending: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Number of a collective -> its nodes that were started last."""

    def write(self) -> tuple[TraceNode, ...]:
        """Return the program."""
        work = self.work
        schedule = find_schedule(work.schedule)
        virtual = work.virtual_stages()
        kinds, microbatches, chunks = schedule.instructions(
            self.stage, len(work.devices), work.num_microbatches, work.num_chunks
        )
        written = schedule.written_kinds(
            kinds, chunks, np.array([0, kinds.size]), first=work.tells_first
        )
        gathered: tuple[int, ...] = ()
        if work.gather_buckets[self.stage]:
            gathered = self._step_collectives(self.sent.after)
        rows = zip(
            *(column.tolist() for column in (kinds, microbatches, chunks, written)),
            strict=True,
        )
        for kind, microbatch, chunk, as_written in rows:
            number = int(virtual.number[self.stage, chunk])
            self._transfer(kind, microbatch, number, sends=False)
            self.frontier = (*self.frontier, *gathered)
            gathered = ()
            self._pass(kind, as_written, microbatch, number)
            self._transfer(kind, microbatch, number, sends=True)
        self._end()
        return tuple(self.items)

    def _add(self, what: str, name: str, after: Sequence[int], **rest: object) -> int:
        unique = tuple(dict.fromkeys(after))
        self.items.append(TraceNode(what=what, name=name, after=unique, **rest))  # type: ignore[arg-type]
        return len(self.items) - 1

    def _compute(self, name: str, duration: float) -> None:
        if duration > 0.0:
            node = self._add("compute", name, self.frontier, duration=duration)
            self.frontier = (node,)

    # Between stages.

    def _neighbour(self, number: int, step: int) -> IntArray | None:
        """Return the devices that hold a virtual stage's neighbour, if others do."""
        virtual = self.work.virtual_stages()
        other = number + step
        if not 0 <= other < virtual.stage.size:
            return None
        holder = int(virtual.stage[other])
        if holder == self.stage:
            return None
        return np.asarray(self.work.devices[holder].ravel(), dtype=np.int64)

    def _tag(self, kind: int, microbatch: int, boundary: int) -> int:
        """Return the number of a message over the boundary after a virtual stage."""
        boundaries = self.work.boundary_bytes.size
        place = microbatch * boundaries + boundary
        return 2 * place + (kind == BACKWARD)

    def _transfer(
        self, kind: int, microbatch: int, number: int, *, sends: bool
    ) -> None:
        """Send the output of a pass, or wait for its input."""
        ahead = (kind == FORWARD) == sends
        peers = None if kind == WEIGHT else self._neighbour(number, 1 if ahead else -1)
        if peers is None:
            return
        boundary = number if ahead else number - 1
        node = self._add(
            "send" if sends else "receive",
            f"{'send of' if sends else 'receive for'} {_NAMES[kind]} {microbatch}",
            self.frontier if sends else (),
            num_bytes=float(self.work.boundary_bytes[boundary]),
            peers=peers,
            tag=self._tag(kind, microbatch, boundary),
        )
        if not sends or self.work.blocking_transfers:
            self.frontier = (*self.frontier, node)

    # Passes.

    def _pass(self, kind: int, written: int, microbatch: int, number: int) -> None:
        name = f"{_NAMES[kind]} {microbatch}, part {number}"
        assert USUAL_KIND.get(written, written) == kind
        for wait, duration, post in self.work.pass_moves(written, number):
            if wait != NONE:
                self.frontier = (*self.frontier, *self.pending.get(wait, ()))
            self._compute(name, duration)
            if post != NONE:
                before = self.pending.get(post, ())
                self.pending[post] = self._post(post, name, before)

    def _post(self, number: int, name: str, before: tuple[int, ...]) -> tuple[int, ...]:
        """Send one of the stage's collectives; one of a number follows another."""
        message, groups = self.sent.in_passes[number]
        after = (*self.frontier, *before)
        if message.kind in {TO_DEVICE, TO_HOST}:
            what = "load" if message.kind == TO_DEVICE else "store"
            node = self._add(what, name, after, num_bytes=message.num_bytes)
            return (node,)
        if message.operation == "send_recv":
            return tuple(self._hops(message.num_bytes, message.num_hops, groups, after))
        name = f"{message.kind} {message.operation}, {name}"
        return self._collect(name, after, message.operation, groups, message.num_bytes)

    def _collect(
        self,
        name: str,
        after: Sequence[int],
        operation: str,
        groups: IntArray,
        num_bytes: float,
    ) -> tuple[int]:
        """Do a collective."""
        sent = {"num_bytes": num_bytes, "operation": operation, "groups": groups}
        return (self._add("collective", name, after, **sent),)

    def _hops(
        self, num_bytes: float, hops: int, groups: IntArray, after: Sequence[int]
    ) -> list[int]:
        """Send round the rings: to the next of each, from the one before."""
        following, before = _ring_neighbours(groups, self.work.devices[self.stage])
        first = 2 * self.work.num_microbatches * max(self.work.boundary_bytes.size, 1)
        waited = list(after)
        for _ in range(max(hops, 1)):
            tag = first + len(self.items)
            share = num_bytes / max(hops, 1)
            waited = [
                self._add(
                    what, "hop of a ring", waited, num_bytes=share, peers=peers, tag=tag
                )
                for what, peers in (("send", following), ("receive", before))
            ]
        return waited

    # The end of the step.

    def _end(self) -> None:
        """Reduce gradients, update, gather weights."""
        # Nothing that was started is left behind.
        left = (node for nodes in self.pending.values() for node in nodes)
        self.frontier = (*self.frontier, *left)
        self.frontier = self._step_collectives(self.sent.before) or self.frontier
        if self.tied is not None:
            pairs, num_bytes = self.tied
            self.frontier = self._collect(
                "tied embedding", self.frontier, "all_reduce", pairs, num_bytes
            )
        self._compute("optimizer", float(self.work.optimizer_time[self.stage]))
        if not self.work.gather_buckets[self.stage]:
            self._step_collectives(self.sent.after)

    def _step_collectives(self, collectives: Sequence) -> tuple[int, ...]:  # type: ignore[type-arg]
        """Do collectives of the step's end one after another."""
        last = self.frontier
        for operation, groups, num_bytes in collectives:
            name = f"step {operation}"
            last = self._collect(name, last, operation, groups, num_bytes)
        return last if collectives else ()


def _ring_neighbours(groups: IntArray, devices: IntArray) -> tuple[IntArray, IntArray]:
    """Return who follows and who precedes each device in its ring."""
    size = int(max(groups.max(), devices.max())) + 1
    following = np.arange(size)
    before = np.arange(size)
    following[groups] = np.roll(groups, -1, axis=1)
    before[groups] = np.roll(groups, 1, axis=1)
    return following[devices.ravel()], before[devices.ravel()]


def numbered(groups: Iterator[IntArray]) -> dict[tuple[int, ...], int]:
    """Return the number of each group of devices, from 1 on as they come."""
    numbers: dict[tuple[int, ...], int] = {}
    for several in groups:
        for group in several.tolist():
            numbers.setdefault(tuple(group), len(numbers) + 1)
    return numbers


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
    traces = {device: metadata() for device in range(job.network.num_devices)}
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
    in_passes = any(
        LEDGER[stage.zero_stage].sent_at(*PASSES) for stage in job.plan.stages
    )
    if not in_passes or "granularity" in simulation:
        return evaluator
    settings = replace(evaluator.simulation, granularity="layer")
    return replace(evaluator, simulation=settings)


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
    fields = NODE_FIELDS
    for number, item in enumerate(items):
        node = number_field(fields["id"], number)
        node += bytes_field(fields["name"], item.name.encode())
        node += number_field(fields["type"], NODE_TYPES[item.what])
        control = [node for node in item.after if items[node].what == "compute"]
        data = [node for node in item.after if items[node].what != "compute"]
        node += numbers_field(fields["ctrl_deps"], control)
        node += numbers_field(fields["data_deps"], data)
        if item.what == "compute":
            micros = round((done + item.duration) * 1e6) - round(done * 1e6)
            done += item.duration
            node += number_field(fields["duration_micros"], micros)
        node += attributes(is_cpu_op=0)
        node += _traffic(item, place, device, groups, member)
        yield delimited(node)


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
        return attributes(tensor_size=size)
    if item.groups is not None:
        key = id(item.groups)
        if key not in member:
            row = int(np.flatnonzero((item.groups == device).any(axis=1))[0])
            member[key] = groups[tuple(item.groups[row].tolist())]
        kind = COLLECTIVES[item.operation]
        return attributes(comm_type=kind, comm_size=size, pg_name=str(member[key]))
    if item.peers is None:
        return b""
    other = int(item.peers[place])
    ends = (device, other) if item.what == "send" else (other, device)
    return attributes(
        comm_size=size, comm_src=ends[0], comm_dst=ends[1], comm_tag=item.tag
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
            yield LaunchGap(setting, value, GAPS[setting])


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
