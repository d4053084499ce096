import itertools
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from nestsim.simulator.replay import replay
from nestsim.simulator.system import TRANSFER_KINDS
from nestsim.simulator.trace import Threads, write_chrome_trace
from tests import failures
from tests.nestsim.simulator.cases import (
    contended_step,
    pipeline,
    replay_all,
    switch,
)
from tests.nestsim.simulator.folding_cases import steps


@pytest.fixture(scope="module")
def result():
    return replay_all(*contended_step())


@pytest.fixture(scope="module")
def interleaved():
    return replay_all(*contended_step(num_chunks=2, num_microbatches=8))


@pytest.fixture(params=["result", "interleaved"])
def any_result(request):
    return request.getfixturevalue(request.param)


def written(result, path, **options):
    write_chrome_trace(result, path, **options)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    return document["traceEvents"], document["otherData"]


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


def whole_nanoseconds(microseconds):
    nanoseconds = microseconds * 1000
    assert nanoseconds == pytest.approx(round(nanoseconds), abs=1e-3)
    return round(nanoseconds)


KEYS = {
    "M": {"name", "args"},
    "X": {"name", "cat", "dur", "args"},
    "C": {"name", "args"},
    "s": {"name", "cat", "id"},
    "f": {"name", "cat", "id", "bp"},
}
"""What the Trace Event format asks of each phase, beside the common keys."""


def check_rules(events):
    """Check everything that a reader of the format relies on."""
    for event in events:
        assert event.keys() == {"ph", "pid", "tid", "ts", *KEYS[event["ph"]]}
        numbers = [event["pid"], event["tid"], event["ts"], event.get("dur", 0)]
        if event["ph"] == "C":
            numbers += event["args"].values()
        assert all(math.isfinite(value) and value >= 0 for value in numbers)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    moments = [event["ts"] for event in events if event["ph"] != "M"]
    assert moments == sorted(moments)
    names = {}
    for event in of(events, "M"):
        key = event["name"], event["pid"], event["tid"]
        assert key not in names
        names[key] = event["args"]
    processes = {pid for name, pid, _ in names if name == "process_name"}
    assert {event["pid"] for event in events} == processes
    check_slices(events)
    check_pairs(events)


def check_pairs(events):
    tails = {event["id"]: event for event in of(events, "s")}
    heads = {event["id"]: event for event in of(events, "f")}
    assert tails.keys() == heads.keys()
    assert len(tails) == len(of(events, "s")) == len(of(events, "f"))
    slices = {(e["pid"], e["tid"], e["ts"]) for e in of(events, "X")}
    for number, tail in tails.items():
        head = heads[number]
        assert (tail["name"], tail["cat"]) == (head["name"], head["cat"])
        assert tail["ts"] <= head["ts"]
        for end in (tail, head):
            assert (end["pid"], end["tid"], end["ts"]) in slices


@settings(max_examples=25)
@given(step=steps())
def test_every_trace_keeps_the_rules_of_the_format(step):
    result = replay(*step)
    shares = np.linspace(0.0, 1.0, result.links.bin_edges.size - 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for most in (60, 100_000):
            events, _ = written(
                result, path, max_events=most, link_use={"a -> b": shares}
            )
            check_rules(events)


def test_slices_are_complete_and_do_not_overlap_on_a_thread(any_result, tmp_path):
    events, _ = written(any_result, tmp_path / "trace.json")
    assert {event["ph"] for event in events} == set("MXCsf")
    check_slices(events)


def check_slices(events):
    threads = {}
    for event in of(events, "X"):
        begin, length = (whole_nanoseconds(event[key]) for key in ("ts", "dur"))
        assert length >= 0
        threads.setdefault((event["pid"], event["tid"]), []).append((begin, length))
    for slices in threads.values():
        slices.sort()
        for (begin, length), (following, _) in itertools.pairwise(slices):
            assert begin + length <= following
    named = {
        (event["pid"], event["tid"])
        for event in of(events, "M")
        if event["name"] == "thread_name"
    }
    assert set(threads) <= named


def test_passes_are_where_the_replay_has_them_in_microseconds(result, tmp_path):
    events, _ = written(result, tmp_path / "trace.json")
    spans = result.spans
    expected = sorted(
        (s, r, ("F", "B")[kind] + f" {k}", round(start * 1e9))
        for s, r, kind, k, _, start, _ in zip(*spans, strict=True)
        if kind < 2
    )
    found = sorted(
        (
            event["pid"],
            event["args"]["replica"],
            event["name"],
            whole_nanoseconds(event["ts"]),
        )
        for event in of(events, "X")
        if event["cat"] in {"forward", "backward"}
    )
    assert found == expected
    names = {event["name"] for event in of(events, "X")}
    assert {"F 0", "B 5", "optimizer", "activation 3", "gradient 0"} <= names
    assert {"reduce", "gather", "tied"} <= names


def test_chunks_are_told_apart_where_there_are_several(interleaved, tmp_path):
    events, _ = written(interleaved, tmp_path / "trace.json")
    spans = interleaved.spans
    expected = sorted(
        (s, r, "FB"[kind] + f" {k}.{c}", round(start * 1e9))
        for s, r, kind, k, c, start, _ in zip(*spans, strict=True)
        if kind < 2
    )
    passes = [e for e in of(events, "X") if e["cat"] in {"forward", "backward"}]
    found = sorted(
        (e["pid"], e["args"]["replica"], e["name"], whole_nanoseconds(e["ts"]))
        for e in passes
    )
    assert found == expected
    for event in passes:
        number = f"{event['args']['microbatch']}.{event['args']['chunk']}"
        assert event["name"].endswith(f" {number}")
    # Each chunk of the first stage sends on a thread of its own.
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of(events, "M")
        if event["name"] == "thread_name"
    }
    for event in of(events, "X"):
        thread = threads[event["pid"], event["tid"]]
        if event["cat"] in {"activation", "gradient"}:
            chunk, replica = event["args"]["chunk"], event["args"]["replica"]
            expected_thread = f"send {event['cat']}s, chunk {chunk}, replica {replica}"
            assert thread == expected_thread
        elif event["cat"] in {"reduce", "gather", "tied"}:
            assert thread == f"{event['cat']}, replicas together"
            assert event["args"] == {}
        else:
            assert thread == f"compute, replica {event['args']['replica']}"


def test_arrows_of_chunks_go_round_from_the_last_stage_to_the_first(
    interleaved, tmp_path
):
    events, _ = written(interleaved, tmp_path / "trace.json")
    slices = {(e["pid"], e["tid"], e["ts"]): e for e in of(events, "X")}
    heads = {event["id"]: event for event in of(events, "f")}
    # Seven boundaries, both ways, eight microbatches, four replicas.
    assert len(heads) == 7 * 2 * 8 * 4
    for tail in of(events, "s"):
        head = heads[tail["id"]]
        message = slices[tail["pid"], tail["tid"], tail["ts"]]
        work = slices[head["pid"], head["tid"], head["ts"]]
        for same in ("microbatch", "replica"):
            assert message["args"][same] == work["args"][same]
        step = 1 if message["cat"] == "activation" else -1
        sent, taken = (e["args"]["chunk"] * 4 + e["pid"] for e in (message, work))
        assert taken - sent == step
        begin, length = (whole_nanoseconds(message[key]) for key in ("ts", "dur"))
        assert begin + length <= whole_nanoseconds(work["ts"])
        assert work["cat"] == ("forward" if step == 1 else "backward")


def test_arrows_come_in_pairs_and_bind_to_slices(result, tmp_path):
    events, _ = written(result, tmp_path / "trace.json")
    slices = {(e["pid"], e["tid"], e["ts"]): e for e in of(events, "X")}
    tails = {event["id"]: event for event in of(events, "s")}
    heads = {event["id"]: event for event in of(events, "f")}
    assert tails.keys() == heads.keys()
    assert len(tails) == len(of(events, "s")) == len(of(events, "f"))
    # Three boundaries, both ways, six microbatches, four replicas.
    assert len(tails) == 3 * 2 * 6 * 4
    for number, tail in tails.items():
        head = heads[number]
        assert (tail["name"], tail["cat"]) == (head["name"], head["cat"])
        assert head["bp"] == "e"
        assert tail["ts"] <= head["ts"]
        message = slices[tail["pid"], tail["tid"], tail["ts"]]
        work = slices[head["pid"], head["tid"], head["ts"]]
        assert message["dur"] > 0
        assert work["dur"] > 0
        assert message["args"] == work["args"]
        step = 1 if message["cat"] == "activation" else -1
        assert head["pid"] - tail["pid"] == step
        assert work["cat"] == ("forward" if step == 1 else "backward")


def test_counters_follow_the_memory_of_each_stage(result, tmp_path):
    events, _ = written(result, tmp_path / "trace.json")
    for stage, timeline in enumerate(result.memory):
        counted = [e["args"]["bytes"] for e in of(events, "C") if e["pid"] == stage]
        assert counted == list(timeline.total)


def test_counters_follow_the_use_of_each_link_and_end_at_nothing(result, tmp_path):
    edges = result.links.bin_edges
    shares = np.zeros(edges.size - 1)
    shares[1:3] = 0.25
    shares[3] = 1.0
    shares[-1] = 0.5
    path = tmp_path / "trace.json"
    events, _ = written(result, path, link_use={"a -> b (x4)": shares})
    counted = [e for e in of(events, "C") if e["name"] == "a -> b (x4)"]
    assert [e["args"]["percent"] for e in counted] == [
        *(0.0, 25.0, 100.0, 0.0),
        *(50.0, 0.0),
    ]
    moments = [whole_nanoseconds(e["ts"]) for e in counted]
    assert moments == np.rint(edges[[0, 1, 3, 4, -2, -1]] * 1e9).tolist()
    processes = {
        e["pid"]: e["args"]["name"]
        for e in of(events, "M")
        if e["name"] == "process_name"
    }
    assert processes == {**{s: f"stage {s}" for s in range(4)}, 4: "links"}
    assert {e["pid"] for e in counted} == {4}


@failures.over("num_chunks", [1, 3])
def test_every_kind_chunk_and_replica_has_a_thread_with_its_name(num_chunks):
    threads = Threads(num_chunks)
    directions = {"activation": "send activations", "gradient": "send gradients"}
    expected = {int(threads.compute(np.array(r))): ("compute", r) for r in range(3)}
    for kind, kind_name in enumerate(TRANSFER_KINDS):
        sends = kind_name in directions
        for replica in range(3) if sends else range(-1, 3):
            for chunk in range(num_chunks) if sends else (-1,):
                thread = threads.transfer(kind, np.array(replica), np.array(chunk))
                name = directions.get(kind_name, kind_name)
                name += f", chunk {chunk}" if sends and num_chunks > 1 else ""
                name += ", replicas together" if replica < 0 else ""
                assert int(thread) not in expected
                expected[int(thread)] = name, replica
    assert {thread: threads.name(thread) for thread in expected} == expected


def test_every_actor_is_shown_on_request(tmp_path):
    net, work = contended_step(num_replicas=6)
    folded, every = replay(net, work), replay(net, work, every_actor=True)
    assert folded.num_classes < every.num_classes == every.num_actors
    events, other = written(every, tmp_path / "trace.json")
    assert other["left_out"] == "nothing"
    forward = [e for e in of(events, "X") if e["cat"] == "forward"]
    assert len(forward) == 4 * 6 * work.num_microbatches
    names = {e["args"]["name"] for e in of(events, "M") if e["name"] == "thread_name"}
    assert {f"compute, replica {replica}" for replica in range(6)} <= names
    assert not any("alike" in name for name in names)


def test_events_are_in_order_of_time(result, tmp_path):
    events, _ = written(result, tmp_path / "trace.json")
    moments = [event["ts"] for event in events if event["ph"] != "M"]
    assert moments == sorted(moments)


def test_a_large_trace_shows_one_replica_and_says_so(result, tmp_path):
    events, other = written(result, tmp_path / "trace.json", max_events=500)
    assert other["replicas_shown"] == 1
    assert other["left_out"] == "replicas 1 to 3"
    assert {event["args"].get("replica", 0) for event in of(events, "X")} == {0}
    # The passes and the collectives of the replica that is shown are all there.
    assert len([e for e in of(events, "X") if e["cat"] == "forward"]) == 4 * 6
    assert [e["name"] for e in of(events, "X")].count("tied") == 1


@failures.over("most", [0, 1, 57, 150])
def test_the_cap_keeps_the_earliest_events_and_whole_arrows(result, tmp_path, most):
    everything, _ = written(result, tmp_path / "trace.json", max_events=500)
    events, other = written(result, tmp_path / "trace.json", max_events=most)
    kept = [event for event in events if event["ph"] != "M"]
    assert len(kept) <= most
    assert "what starts after" in other["left_out"]
    whole = [event for event in everything if event["ph"] != "M"][:most]
    assert [e for e in kept if e["ph"] in "XC"] == [e for e in whole if e["ph"] in "XC"]
    tails, heads = ({e["id"] for e in of(events, phase)} for phase in "sf")
    assert tails == heads


def test_the_same_replay_writes_the_same_bytes(result, tmp_path):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    write_chrome_trace(result, one)
    write_chrome_trace(replay_all(*contended_step()), other)
    assert one.read_bytes() == other.read_bytes()


def test_a_single_stage_has_a_trace_without_arrows(tmp_path):
    alone = replay(switch(1), pipeline([[[0]]], 2), memory=False)
    events, other = written(alone, tmp_path / "trace.json")
    assert other["left_out"] == "nothing"
    assert [e["name"] for e in of(events, "X")] == [
        "F 0",
        "B 0",
        "F 1",
        "B 1",
        "optimizer",
    ]
    assert not of(events, "s")
