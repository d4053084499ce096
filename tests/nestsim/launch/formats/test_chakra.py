"""Chakra traces hold the step that the replay is given, whoever reads them."""

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.evaluate.evaluator import Evaluator
from nestsim.launch.formats import chakra as wire
from nestsim.launch.formats.chakra import GROUPS, write_chakra
from nestsim.lowering.lower import stage_collectives
from planner.plans.spec import PlanSpec
from planner.step.instructions import BACKWARD, FORWARD, WEIGHT
from planner.step.schedules import find_schedule
from tests import failures
from tests.nestsim.launch.jobs import planned, small_job
from topologies import InputError

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7


# A reader of the wire format, written from its specification.


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields_of(data: bytes) -> list[tuple[int, int | bytes]]:
    found, at = [], 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        else:
            assert key & 7 == 2
            size, at = read_varint(data, at)
            value, at = data[at : at + size], at + size
        found.append((key >> 3, value))
    return found


def messages_of(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size, at = read_varint(data, at)
        found.append(data[at : at + size])
        at += size
    return found


@dataclass
class Node:
    id: int = 0
    name: str = ""
    type: int = 0
    deps: list[int] = field(default_factory=list)
    micros: int = 0
    attr: dict = field(default_factory=dict)


def node_of(data: bytes) -> Node:
    node = Node()
    for number, value in fields_of(data):
        match number:
            case 1:
                node.id = value
            case 2:
                node.name = value.decode()
            case 3:
                node.type = value
            case 4 | 5:
                node.deps += numbers_of(value)
            case 7:
                node.micros = value
            case 10:
                (_, name), (_, said) = fields_of(value)
                node.attr[name.decode()] = said
    return node


def numbers_of(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        one, at = read_varint(data, at)
        found.append(one)
    return found


def traces(files) -> dict[int, list[Node]]:
    """Return the nodes of each device."""
    found = {}
    for name, content in files.items():
        if name.endswith(".et"):
            first, *nodes = messages_of(content)
            assert fields_of(first) == [(1, wire.SCHEMA.encode())]
            found[int(name.split(".")[1])] = [node_of(one) for one in nodes]
    return found


def job_of(granularity="stage", family="gpt", **given):
    job = planned(small_job(family), PlanSpec(**{"micro_batch_size": 1, **given}))
    asked = job.scenario.replace({"simulation.granularity": granularity})
    return replace(job, scenario=asked)


def lowered(job):
    evaluator = Evaluator.on(job.scenario, job.network, job.workload)
    priced = evaluator.price(job.plan)
    return evaluator.lower(priced), priced


CASES = [
    {},
    {"zero_stage": 3, "tensor_model_parallel_size": 2},
    {"pipeline_model_parallel_size": 4, "tensor_model_parallel_size": 2},
    {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "zero_stage": 1,
        "recompute": "full",
    },
    {"pipeline_model_parallel_size": 4, "schedule": "zb-h1", "zero_stage": 1},
    {"pipeline_model_parallel_size": 2, "schedule": "zb-v"}
    | {"virtual_pipeline_model_parallel_size": 2},
    {"context_parallel_size": 4, "zero_stage": 1},
    {"context_parallel_size": 2, "cp_comm_type": "a2a", "zero_stage": 2},
    {"pipeline_model_parallel_size": 4, "order": "tp-cp-ep-pp-dp"},
]


@pytest.fixture(params=["stage", "layer"])
def granularity(request):
    return request.param


@pytest.fixture(params=CASES, ids=" ".join)
def job(request, granularity):
    return job_of(granularity, **request.param)


def test_compute_and_bytes_are_those_of_the_replay(job):
    work, priced = lowered(job)
    read = traces(write_chakra(job).files)
    virtual = work.virtual_stages()
    schedule = find_schedule(work.schedule)
    sent = stage_collectives(job.network, job.workload, priced)
    p, m, v = len(work.devices), work.num_microbatches, work.num_chunks
    for stage, devices in enumerate(work.devices):
        kinds, _, chunks = schedule.instructions(stage, p, m, v)
        written = schedule.written_kinds(kinds, chunks, [0, kinds.size])
        moves = [
            move
            for kind, chunk in zip(written.tolist(), chunks.tolist(), strict=True)
            for move in work.pass_moves(kind, int(virtual.number[stage, chunk]))
        ]
        computed = sum(move.duration for move in moves) + work.optimizer_time[stage]
        messages = [message for message, _ in sent[stage].in_passes]
        posted = sum(messages[move.post].num_bytes for move in moves if move.post >= 0)
        in_steps = sum(
            one.num_bytes for one in (*sent[stage].before, *sent[stage].after)
        )
        for device in devices.ravel().tolist():
            nodes = read[device]
            assert abs(sum(node.micros for node in nodes) - computed * 1e6) <= 1
            held = sum(
                node.attr["comm_size"]
                for node in nodes
                if node.type == COLLECTIVE and node.name != "tied embedding"
            )
            hops = sum(
                node.attr["comm_size"] for node in nodes if node.name == "hop of a ring"
            )
            assert held + hops / 2 == pytest.approx(posted + in_steps, rel=1e-3, abs=99)


def test_each_message_has_its_receiver(job):
    work, _ = lowered(job)
    read = traces(write_chakra(job).files)
    ends = {SEND: defaultdict(int), RECEIVE: defaultdict(int)}
    boundary = 0
    for device, nodes in read.items():
        for node in nodes:
            if node.type not in ends:
                continue
            attr = node.attr
            assert device == attr["comm_src" if node.type == SEND else "comm_dst"]
            key = attr["comm_src"], attr["comm_dst"], attr["comm_tag"]
            ends[node.type][*key, attr["comm_size"]] += 1
            boundary += node.type == SEND and not node.name.startswith("hop")
    assert ends[SEND] == ends[RECEIVE]
    assert set(ends[SEND].values()) <= {1}
    virtual = work.virtual_stages()
    crossing = int((~virtual.stays).sum())
    ranks = work.devices[0].size
    assert boundary == 2 * crossing * ranks * work.num_microbatches


def test_groups_agree_on_what_they_do(job):
    files = write_chakra(job).files
    groups = {name: set(group) for name, group in json.loads(files[GROUPS]).items()}
    done = defaultdict(lambda: defaultdict(list))
    for device, nodes in traces(files).items():
        for node in nodes:
            if node.type == COLLECTIVE:
                name = node.attr["pg_name"].decode()
                assert device in groups[name]
                said = node.attr["comm_type"], node.attr["comm_size"]
                done[name][device].append(said)
    for name, by_device in done.items():
        assert set(by_device) == groups[name]
        first = next(iter(by_device.values()))
        assert all(each == first for each in by_device.values())


def meetings_of(read: dict[int, list[Node]]) -> list[list[tuple[int, int]]]:
    """Return the nodes that are one collective: the n-th of a group on each rank."""
    meets = defaultdict(list)
    for device, nodes in read.items():
        counted = defaultdict(int)
        for node in nodes:
            if node.type == COLLECTIVE:
                name = node.attr["pg_name"]
                meets[name, counted[name]].append((device, node.id))
                counted[name] += 1
    return list(meets.values())


def needs_of(read: dict[int, list[Node]]) -> dict[tuple[int, int], list]:
    """Return what each node waits for: its own rank, its sender, its group."""
    senders, receivers, needs = {}, {}, {}
    for device, nodes in read.items():
        for node in nodes:
            key, attr = (device, node.id), node.attr
            needs[key] = [(device, one) for one in node.deps]
            if node.type in {SEND, RECEIVE}:
                ends = senders if node.type == SEND else receivers
                ends[attr["comm_src"], attr["comm_dst"], attr["comm_tag"]] = key
    for message, key in receivers.items():
        needs[key].append(senders[message])
    for several in meetings_of(read):
        together = [one for key in several for one in needs[key]]
        for key in several:
            needs[key] = together
    return needs


def finish(read: dict[int, list[Node]]) -> dict[int, float]:
    """Run traces on a network that takes no time [us].

    Raises
    ------
    CycleError
        If nodes wait for each other.
    """
    needs = needs_of(read)
    ends: dict[tuple[int, int], float] = {}
    for key in TopologicalSorter(needs).static_order():
        device, number = key
        begin = max((ends[one] for one in needs[key]), default=0.0)
        ends[key] = begin + read[device][number].micros
    last = defaultdict(float)
    for (device, _), end in ends.items():
        last[device] = max(last[device], end)
    return last


def compute_only(work) -> float:
    """Return the time of the passes of all stages by their dependencies alone [s]."""
    schedule, virtual = find_schedule(work.schedule), work.virtual_stages()
    p, m, v = len(work.devices), work.num_microbatches, work.num_chunks
    queues = []
    for stage in range(p):
        kinds, batches, chunks = schedule.instructions(stage, p, m, v)
        written = schedule.written_kinds(kinds, chunks, [0, kinds.size])
        columns = (kinds, batches, chunks, written)
        queues.append(list(zip(*(one.tolist() for one in columns), strict=True)))
    ends, now = {}, [0.0] * p
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                kind, batch, chunk, as_written = queue[0]
                number = int(virtual.number[stage, chunk])
                other = number + {FORWARD: -1, BACKWARD: 1, WEIGHT: 0}[kind]
                outside = kind == WEIGHT or not 0 <= other < v * p
                need = 0.0 if outside else ends.get((kind, batch, other))
                if need is None:
                    break
                moves = work.pass_moves(as_written, number)
                now[stage] = max(now[stage], need) + sum(one.duration for one in moves)
                ends[kind, batch, number] = now[stage]
                queue.pop(0)
    return max(one + float(work.optimizer_time[stage]) for stage, one in enumerate(now))


@failures.over("case", [CASES[2], CASES[3], CASES[5]], ids=" ".join)
def test_traces_run_as_long_as_the_passes(case):
    """Without a tied embedding and collectives of a step that wait for others."""
    job = job_of(**case)
    work, _ = lowered(job)
    last = finish(traces(write_chakra(job).files))
    passes = 4 * work.num_microbatches * work.num_chunks * len(work.devices)
    wanted = compute_only(work) * 1e6
    assert max(last.values()) == pytest.approx(wanted, abs=passes, rel=0.01)


def test_traces_have_no_circles(granularity):
    for case in CASES[:2] + CASES[6:8]:
        assert finish(traces(write_chakra(job_of(granularity, **case)).files))


def test_devices_without_work_have_empty_traces():
    job = job_of(data_parallel_size=8)
    read = traces(write_chakra(job).files)
    assert len(read) == 16
    assert sum(bool(nodes) for nodes in read.values()) == 8


def test_what_traces_lack_is_said():
    gaps = {gap.setting for gap in write_chakra(job_of()).gaps}
    assert gaps == {"gradient_algorithm", "tensor_algorithm"}
    offloads = job_of(zero_stage=1, offload_optimizer=1.0)
    assert "offload_optimizer" in {gap.setting for gap in write_chakra(offloads).gaps}


def test_experts_exchange_tokens():
    job = job_of("layer", "mixtral", expert_model_parallel_size=4)
    nodes = traces(write_chakra(job).files)[0]
    kinds = {node.attr.get("comm_type") for node in nodes}
    assert wire.COLLECTIVES["all_to_all"] in kinds


def test_what_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("nestsim.launch.formats.chakra.MOST_NODES", 10)
    with pytest.raises(InputError, match="too large for Chakra"):
        write_chakra(job_of())


@given(st.integers(0, 2**64 - 1))
def test_numbers_are_read_back(value):
    written = wire.varint(value)
    assert read_varint(written, 0) == (value, len(written))


def test_the_schema_reads_the_nodes():
    """Build the messages with protobuf itself, and let it read a trace."""
    pytest.importorskip("google.protobuf", reason="needs protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = {"uint64_val": 4, "int64_val": 3, "int32_val": 5, "bool_val": 8}
    file = descriptor_pb2.FileDescriptorProto(
        name="et.proto", package="chakra", syntax="proto3"
    )
    one = file.message_type.add(name="AttributeProto")
    for name, number in wire.ATTRIBUTE_FIELDS.items():
        one.field.add(name=name, number=number, label=1, type=kinds.get(name, 9))
    node = file.message_type.add(name="Node")
    for name, number in wire.NODE_FIELDS.items():
        if name == "attr":
            node.field.add(
                name=name,
                number=number,
                label=3,
                type=11,
                type_name=".chakra.AttributeProto",
            )
        else:
            many = name.endswith("deps")
            kind = 9 if name == "name" else 4
            node.field.add(name=name, number=number, label=3 if many else 1, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("chakra.Node"))
    files = write_chakra(job_of(pipeline_model_parallel_size=2)).files
    for data in messages_of(files["trace.0.et"])[1:]:
        ours, theirs = node_of(data), made.FromString(data)
        assert (theirs.id, theirs.name, theirs.type) == (ours.id, ours.name, ours.type)
        assert [*theirs.ctrl_deps, *theirs.data_deps] == ours.deps
        assert theirs.duration_micros == ours.micros
        assert {one.name for one in theirs.attr} == set(ours.attr)


def test_a_plan_that_sends_in_its_passes_has_collectives_by_default():
    """As many as ZeRO-3 has: two gathers and a reduction a block and microbatch."""
    job = planned(small_job(), PlanSpec(micro_batch_size=1, zero_stage=3))
    files = write_chakra(job)
    (nodes, *_) = traces(files.files).values()
    sent = sum(node.type == COLLECTIVE for node in nodes)
    assert sent >= 3 * job.num_blocks * job.plan.num_microbatches
    assert "zero_stage" not in {gap.setting for gap in files.gaps}
    asked = job_of("stage", zero_stage=3)
    assert "zero_stage" in {gap.setting for gap in write_chakra(asked).gaps}
