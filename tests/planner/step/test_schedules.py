import math
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.timeline import BoundaryTimes, InstructionLists, timeline
from planner.step.instructions import (
    BACKWARD,
    FORWARD,
    MAX_PASSES,
    PAIRED_FORWARD,
    WEIGHT,
    ScheduleSizes,
)
from planner.step.rounds import group_takes
from planner.step.schedules import (
    SCHEDULES,
    deals_as_usual,
    find_schedule,
    grouped_name,
    schedule_name,
)
from tests import failures
from topologies.errors import InputError

grouped = [
    "interleaved-1f1b in groups of 5",
    "combined-interleaved-1f1b in groups of 4",
]
every = failures.over("name", [*SCHEDULES, *grouped])
interleaving = [*(name for name, one in SCHEDULES.items() if one.interleaves), *grouped]
sequential = [name for name in SCHEDULES if name not in interleaving]


@st.composite
def sizes(draw, name):
    """Stages, microbatches and chunks that the schedule takes."""
    schedule = SCHEDULES[name]
    if schedule.interleaves:
        p, v = draw(st.integers(2, 6)), schedule.num_chunks or draw(st.integers(2, 4))
        if (group := schedule.group) is not None:
            p = draw(st.integers(2, group))
            numbers = [m for m in range(p, 4 * group) if group_takes(group, p, m)]
            return p, draw(st.sampled_from(numbers)), v
        if schedule.deals_rounds:
            rounds = draw(st.integers(1, 4))
            return p, rounds * (p + draw(st.integers(0, (p - 1) // rounds))), v
        least = max(schedule.least_rounds * p, 1)
        return p, draw(st.integers(least, least + 4 * p)), v
    return draw(st.integers(1, 9)), draw(st.integers(1, 20)), 1


def passes(name, stage, size):
    """List kind, microbatch and chunk of what a stage does."""
    columns = SCHEDULES[name].instructions(stage, *size)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@every
@settings(max_examples=30)
@given(data=st.data())
def test_each_chunk_has_each_pass_of_each_microbatch_once_after_the_one_it_needs(
    name, data
):
    p, m, v = data.draw(sizes(name))
    kinds = kinds_of(name)
    for stage in range(p):
        done = [set() for _ in kinds]
        for kind, *one in passes(name, stage, (p, m, v)):
            assert tuple(one) not in done[kind]
            if kind > FORWARD:
                assert tuple(one) in done[kind - 1]
            done[kind].add(tuple(one))
        assert done == [{(k, c) for k in range(m) for c in range(v)}] * len(kinds)


def kinds_of(name):
    """List the kinds of passes that a schedule has."""
    splits = SCHEDULES[name].splits_backward
    return (FORWARD, BACKWARD, WEIGHT) if splits else (FORWARD, BACKWARD)


def alive_after_each_pass(name, stage, size):
    """List how many activations of each chunk are kept, pass by pass."""
    alive = [0] * size[2]
    last = kinds_of(name)[-1]
    every = list(passes(name, stage, size))
    warmup, forward = warm_up_of_pairs(name, stage, size), 0
    for (kind, _, chunk), (follows, *_) in zip(
        every, [*every[1:], (None,)], strict=True
    ):
        # The last pass still holds its own activation while it runs.
        alive[chunk] += (kind == FORWARD) - (kind == last)
        forward += kind == FORWARD
        in_pair = kind == FORWARD and follows == BACKWARD and forward > warmup
        # A pair that goes through its layers in step never has both as a whole.
        if not in_pair:
            yield tuple(alive)


def warm_up_of_pairs(name, stage, size):
    """Forward passes before the first pair that shares its memory."""
    p, m, v = size
    if not name.startswith("combined"):
        return math.inf
    length = 1 if v == 1 else SCHEDULES[name].round_length(p, m)
    return (v > 1) * (p - 1 - stage) + p - stage + (v - 1) * length


@every
@settings(max_examples=30)
@given(data=st.data())
def test_in_flight_is_the_most_activations_that_wait_for_their_last_pass(name, data):
    size = data.draw(sizes(name))
    for stage in range(size[0]):
        most = max(map(sum, alive_after_each_pass(name, stage, size)))
        assert SCHEDULES[name].in_flight(stage, *size) == most
        assert SCHEDULES[name].held(stage, *size).sum(axis=1).max() == most


@every
@settings(max_examples=30)
@given(data=st.data())
def test_whatever_the_chunks_save_the_most_is_held_in_one_of_the_rows(name, data):
    p, m, v = size = data.draw(sizes(name))
    lists = st.lists(st.integers(0, 9), min_size=v, max_size=v)
    saved = np.array(data.draw(lists))
    for stage in range(p):
        alive = set(alive_after_each_pass(name, stage, size))
        held = SCHEDULES[name].held(stage, p, m, v)
        assert {tuple(row) for row in held.tolist()} <= alive
        assert (held @ saved).max() == max(np.dot(row, saved) for row in alive)


@every
@settings(max_examples=30)
@given(data=st.data())
def test_what_waits_is_what_was_allocated_and_not_yet_released(name, data):
    size = p, _, v = data.draw(sizes(name))
    kinds = kinds_of(name)
    for stage in range(p):
        begun, states = [[0] * v for _ in range(3)], set()
        for kind, _, chunk in passes(name, stage, size):
            waiting = [begun[FORWARD][c] - begun[BACKWARD][c] for c in range(v)]
            kept = [begun[BACKWARD][c] - begun[WEIGHT][c] for c in range(v)]
            waiting[chunk] += kind == FORWARD
            if kind != WEIGHT:
                states.add((*waiting, *(kept if len(kinds) == 3 else [0] * v)))
            begun[kind][chunk] += 1
        found = SCHEDULES[name].waiting(stage, *size)
        rows = [tuple(row) for row in found.reshape(-1, 2 * v).tolist()]
        assert len(rows) == len(states)
        assert set(rows) == states
        # No weight pass is fuller than all forward and backward passes.
        most = found.sum(axis=(1, 2)).max()
        shared = SCHEDULES[name].pairs_layers
        assert most - shared <= SCHEDULES[name].in_flight(stage, *size) <= most


@every
@settings(max_examples=30)
@given(data=st.data())
def test_the_stages_do_not_wait_for_each_other_in_a_circle(name, data):
    p, m, v = data.draw(sizes(name))
    program = SCHEDULES[name].program(p, m, v)
    length = len(kinds_of(name)) * m * v
    assert program.indptr.tolist() == [length * stage for stage in range(p + 1)]
    durations, boundaries = np.ones((3, v * p)), np.ones(v * p - 1)
    status, *_ = timeline(
        InstructionLists(*program), m, durations, BoundaryTimes(*[boundaries] * 4)
    )
    assert status == 0


def words(name, stage, *size):
    chunk = ".{}" if size[2:] else ""
    return " ".join(
        "FBW"[kind] + str(microbatch) + chunk.format(c)
        for kind, microbatch, c in passes(name, stage, size)
    )


@failures.over(
    ("name", "expected"),
    [
        (
            "1f1b",
            [
                "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
                "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
                "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
                "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
            ],
        ),
        ("gpipe", ["F0 F1 F2 F3 F4 B0 B1 B2 B3 B4"] * 4),
        (
            "zb-h1",
            [
                "F0 F1 F2 F3 B0 W0 F4 B1 W1 B2 W2 B3 W3 B4 W4",
                "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 B3 W2 B4 W3 W4",
                "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 B4 W2 W3 W4",
                "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 W2 W3 W4",
            ],
        ),
    ],
)
def test_schedules_read_as_in_the_papers(name, expected):
    assert [words(name, i, 4, 5) for i in range(4)] == expected


@failures.over(("p", "m"), [(1, 1), (1, 4), (3, 2), (4, 4), (4, 9), (8, 21)])
def test_zb_h1_is_that_of_pytorch(p, m):
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = {
        torch.FORWARD: FORWARD,
        torch.BACKWARD_INPUT: BACKWARD,
        torch.BACKWARD_WEIGHT: WEIGHT,
    }
    # One stage per rank: the list of actions needs these numbers only.
    schedule = SimpleNamespace(
        n_local_stages=1, pp_group_size=p, microbatches_per_round=p, _n_microbatches=m
    )
    for stage in range(p):
        theirs = torch.ScheduleInterleavedZeroBubble
        actions = theirs._calculate_single_rank_operations(schedule, stage)
        expected = [
            (kinds[one.computation_type], one.microbatch_index, 0)
            for one in actions
            if one is not None
        ]
        assert passes("zb-h1", stage, (p, m, 1)) == expected
        assert {one.stage_index for one in actions if one is not None} == {stage}


def test_zb_h2_reads_as_in_the_paper():
    # Qi et al., figure 3, below: four stages, and seven microbatches in the first.
    assert [words("zb-h2", i, 4, 9) for i in range(4)] == [
        "F0 F1 F2 F3 F4 F5 F6 B0 W0 F7 B1 W1 F8 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 "
        "B7 W7 B8 W8",
        "F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 W0 F7 B3 W1 F8 B4 W2 B5 W3 B6 W4 B7 W5 "
        "B8 W6 W7 W8",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 W0 F7 B5 W1 F8 B6 W2 B7 W3 B8 W4 "
        "W5 W6 W7 W8",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 W0 F7 B7 W1 F8 B8 W2 W3 W4 "
        "W5 W6 W7 W8",
    ]


@settings(max_examples=30)
@given(p=st.integers(1, 12), m=st.integers(1, 60))
def test_zb_h2_warms_up_twice_as_long_in_twice_the_memory(p, m):
    # Qi et al., section 2.2.
    for stage in range(p):
        kinds = [kind for kind, *_ in passes("zb-h2", stage, (p, m, 1))]
        assert kinds.index(BACKWARD) == min(m, 2 * (p - stage) - 1)
        assert SCHEDULES["zb-h2"].in_flight(stage, p, m) == min(m, 2 * p - 1)


def v_shaped_of_pytorch(theirs, p, m):
    """List kind, microbatch and virtual stage of what each rank does in PyTorch."""
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = {
        torch.FORWARD: [FORWARD],
        torch.BACKWARD_INPUT: [BACKWARD],
        torch.BACKWARD_WEIGHT: [WEIGHT],
        torch.FULL_BACKWARD: [BACKWARD, WEIGHT],
    }

    def spelled_out(actions):
        for one in actions:
            if one is not None and one.sub_actions:
                yield from spelled_out(one.sub_actions)
            elif one is not None:
                for kind in kinds[one.computation_type]:
                    yield kind, one.microbatch_index, one.stage_index

    # The lists need these numbers only, no stages and no process group.
    sizes = SimpleNamespace(
        n_local_stages=2, pp_group_size=p, num_stages=2 * p, _n_microbatches=m
    )
    schedule = getattr(torch, theirs)
    for rank in range(p):
        yield list(spelled_out(schedule._calculate_single_rank_operations(sizes, rank)))


@failures.over("p", range(2, 9))
@failures.over(
    ("name", "theirs"),
    [("zb-v", "ScheduleZBVZeroBubble"), ("dualpipe-v", "ScheduleDualPipeV")],
)
def test_v_shaped_schedules_are_those_of_pytorch(name, theirs, p):
    least = 2 * p if name == "dualpipe-v" else 1
    for m in {least, least + 1, 2 * p - 1, 2 * p, 3 * p + 1, 32} - set(range(least)):
        number = SCHEDULES[name].virtual_stages(p, 2).number
        for stage, expected in enumerate(v_shaped_of_pytorch(theirs, p, m)):
            found = [
                (kind, microbatch, number[stage, chunk])
                for kind, microbatch, chunk in passes(name, stage, (p, m, 2))
            ]
            assert found == expected


@failures.over(("p", "m"), [(2, 4), (4, 8), (4, 13), (7, 20)])
def test_dualpipe_v_pairs_what_pytorch_overlaps(p, m):
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    sizes = SimpleNamespace(
        n_local_stages=2, pp_group_size=p, num_stages=2 * p, _n_microbatches=m
    )
    schedule = SCHEDULES["dualpipe-v"]
    number = schedule.virtual_stages(p, 2).number
    for stage in range(p):
        kind, microbatch, chunk = schedule.instructions(stage, p, m, 2)
        written = schedule.written_kinds(kind, chunk, np.array([0, kind.size]))
        begins = np.flatnonzero(written == PAIRED_FORWARD)
        found = [
            tuple((microbatch[n], number[stage, chunk[n]]) for n in (one, one + 1))
            for one in begins
        ]
        expected = [
            tuple((sub.microbatch_index, sub.stage_index) for sub in one.sub_actions)
            for one in torch.ScheduleDualPipeV._calculate_single_rank_operations(
                sizes, stage
            )
            if one is not None and one.sub_actions
        ]
        # Their last rank does not overlap its first pair, here it does.
        assert found[stage == p - 1 :] == expected


@failures.over("name", ["zb-v", "dualpipe-v"])
def test_a_v_goes_down_the_stages_and_comes_back(name):
    virtual = SCHEDULES[name].virtual_stages(4, 2)
    assert virtual.stage.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    assert virtual.number.tolist() == [[0, 7], [1, 6], [2, 5], [3, 4]]


@failures.over("p", range(2, 9))
def test_a_v_keeps_as_much_on_every_stage(p):
    # Half stages: ZB-V keeps what the first stage of 1F1B does, DualPipe-V one more
    # (DualPipe's README: PP + 1 where there are PP half stages).
    for m in (2 * p, 3 * p, 5 * p + 1):
        for stage in range(p):
            assert SCHEDULES["zb-v"].in_flight(stage, p, m, 2) == 2 * p
            assert SCHEDULES["dualpipe-v"].in_flight(stage, p, m, 2) == 2 * p + 1


@settings(max_examples=50)
@given(p=st.integers(1, 12), m=st.integers(1, 40))
def test_zb_h1_is_1f1b_with_weight_gradients_and_the_memory_of_its_first_stage(p, m):
    one, split = SCHEDULES["1f1b"], SCHEDULES["zb-h1"]
    for stage in range(p):
        order = passes("zb-h1", stage, (p, m, 1))
        rest = [one for one in order if one[0] != WEIGHT]
        assert rest == passes("1f1b", stage, (p, m, 1))
        # Qi et al., section 2.1: all stages keep as many as the first one of 1F1B.
        assert split.in_flight(stage, p, m) == one.in_flight(0, p, m)
        # No more wait for their backward pass than with 1F1B.
        waiting, kept = split.waiting(stage, p, m)[..., 0].T
        assert waiting.max() == one.in_flight(stage, p, m)
        assert kept.max() == min(stage, m - 1)


def test_interleaved_1f1b_reads_as_in_megatron():
    assert [words("interleaved-1f1b", i, 2, 4, 2) for i in range(2)] == [
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 "
        "B2.1 B3.1 B2.0 B3.0",
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 "
        "F3.1 B3.1 B2.0 B3.0",
    ]
    # As many microbatches as stages: nothing is left to alternate with on the first.
    assert words("interleaved-1f1b", 0, 2, 2, 2) == (
        "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"
    )


@failures.over("p", [2, 3, 4, 8])
@failures.over("v", [2, 3, 4])
@failures.over("m", [1, 2, 3, 4, 6, 7, 8, 10, 11, 16, 20])
def test_interleaved_1f1b_is_that_of_pytorch(p, v, m):
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    taken = SCHEDULES["interleaved-1f1b"].allows(p, m, v)
    stages = [MagicMock(group_size=p, num_stages=p * v, group_rank=0)] * v
    try:
        made = torch.ScheduleInterleaved1F1B(stages, m)
    except ValueError:
        assert not taken
        return
    assert taken
    rounds = made.number_of_rounds
    # The list of actions needs these numbers only, no stages and no process group.
    schedule = SimpleNamespace(
        n_local_stages=v,
        pp_group_size=p,
        microbatches_per_round=made.microbatches_per_round,
        _n_microbatches=m,
    )
    kinds = {torch.FORWARD: FORWARD, torch.FULL_BACKWARD: BACKWARD}
    for stage in range(p):
        actions = torch.ScheduleInterleaved1F1B._calculate_single_rank_operations(
            schedule, stage
        )
        expected = [
            (kinds[one.computation_type], one.microbatch_index, one.stage_index // p)
            for one in actions
            if one is not None
        ]
        assert passes("interleaved-1f1b", stage, (p, m, v)) == expected
        assert {one.stage_index % p for one in actions if one is not None} == {stage}
        back = [chunk for kind, _, chunk in expected if kind == BACKWARD]
        # One round goes back through one chunk after the other (`frees_gradients`).
        assert (back == sorted(back, reverse=True)) == (rounds == 1)


@failures.over(
    ("name", "theirs"), [("1f1b", "Schedule1F1B"), ("gpipe", "ScheduleGPipe")]
)
@failures.over(("p", "m"), [(1, 1), (1, 5), (2, 3), (4, 2), (4, 9), (8, 8)])
def test_1f1b_and_gpipe_are_what_pytorch_runs(name, theirs, p, m):
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    for stage in range(p):
        done = []
        # Its loop runs on a stage that sends and receives nothing, and takes notes.
        fake = MagicMock(stage_index=stage)
        fake.forward_one_chunk = lambda k, *_, done=done, **__: done.append((0, k, 0))
        fake.backward_one_chunk = lambda k, *, done=done, **_: done.append((1, k, 0))
        for way in ("fwd_recv", "fwd_send", "bwd_recv", "bwd_send"):
            getattr(fake, f"get_{way}_ops").return_value = []
        runner = MagicMock(_stage=fake, _num_stages=p, _n_microbatches=m)
        runner._check_inputs.return_value = [()] * m, [{}] * m
        getattr(torch, theirs)._step_microbatches(runner)
        assert passes(name, stage, (p, m, 1)) == done


@failures.over(("p", "m", "v"), [(2, 2, 2), (2, 4, 3), (4, 8, 2), (4, 4, 5)])
def test_circular_is_the_breadth_first_schedule_of_pytorch(p, m, v):
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    schedule = SimpleNamespace(_stages=[None] * v, pp_group_size=p, _n_microbatches=m)
    kinds = {torch.FORWARD: FORWARD, torch.FULL_BACKWARD: BACKWARD}
    for stage in range(p):
        actions = torch.ScheduleLoopedBFS._calculate_single_rank_operations(
            schedule, stage
        )
        expected = [
            (kinds[one.computation_type], one.microbatch_index, one.stage_index // p)
            for one in actions
            if one is not None
        ]
        assert passes("circular", stage, (p, m, v)) == expected


@failures.over(("p", "m", "v"), [(2, 2, 1), (4, 8, 1), (2, 4, 3), (4, 8, 2)])
def test_maxtext_goes_through_its_loop_and_keeps_all_of_it(p, m, v):
    # MaxText, layers/pipeline.py: in turn t stage s is at t - s of the microbatches of
    # all repeats (get_microbatch_and_repeat_ids), m v + p - 1 turns (total_iterations),
    # of each of which jax.lax.scan keeps what a turn saves.
    name = "circular" if v > 1 else "scanned"
    turns = m * v + p - 1
    for stage in range(p):
        at = [turn - stage for turn in range(turns)]
        forward = [(n % m, n // m) for n in at if 0 <= n < m * v]
        done = passes(name, stage, (p, m, v))
        assert [tuple(one) for kind, *one in done if kind == FORWARD] == forward
        # jax.grad goes through the loop from its end.
        backward = [tuple(one) for kind, *one in done if kind == BACKWARD]
        assert backward == forward[::-1]
        assert done[: len(forward)] == [(FORWARD, *one) for one in forward]
        kept = SCHEDULES[name].in_flight(stage, p, m, v)
        assert kept + SCHEDULES[name].bubbles_kept(p) == turns


def test_interleaving_keeps_more_but_smaller_activations():
    # Narayanan et al., figure 4: four stages, eight microbatches, two chunks.
    one, two = SCHEDULES["1f1b"], SCHEDULES["interleaved-1f1b"]
    assert [one.in_flight(i, 4, 8) for i in range(4)] == [4, 3, 2, 1]
    assert [two.in_flight(i, 4, 8, 2) for i in range(4)] == [11, 9, 7, 5]
    # The last stage never has two microbatches in its last chunk: one set of logits.
    assert two.held(3, 4, 8, 2).tolist() == [[4, 1], [5, 0]]


@failures.over("name", sequential)
def test_one_chunk_is_the_default_and_the_only_choice(name):
    one = SCHEDULES[name]
    for plain, spelled in zip(one.program(3, 5), one.program(3, 5, 1), strict=True):
        assert plain.tolist() == spelled.tolist()
    assert one.in_flight(0, 3, 5) == one.in_flight(0, 3, 5, 1)
    with pytest.raises(InputError, match="chunks per stage") as caught:
        one.program(4, 8, 2)
    assert (caught.value.got, caught.value.expected) == (2, "1")


_NO_STAGES_OR_CHUNKS = [
    ((1, 4, 2), "pipeline stages", 1, "2 or more"),
    ((4, 8, 1), "chunks per stage", 1, "2"),
    ((4, 8), "chunks per stage", 1, "2"),
]


@failures.over(
    ("name", "size", "what", "got", "expected"),
    [
        *((name, *case) for name in interleaving for case in _NO_STAGES_OR_CHUNKS),
        ("interleaved-1f1b", (4, 11, 2), "microbatches", 11, "multiple of the 4"),
        ("interleaved-1f1b", (4, 9, 2), "microbatches", 9, "multiple of the 4"),
        ("zb-v", (4, 8, 3), "chunks per stage", 3, "2"),
        ("dualpipe-v", (4, 8, 3), "chunks per stage", 3, "2"),
        ("dualpipe-v", (4, 7, 2), "microbatches", 7, "8 or more, 2 for each of the 4"),
    ],
)
def test_several_chunks_need_stages_and_microbatches(name, size, what, got, expected):
    one = SCHEDULES[name]
    for ask in (one.check, one.program):
        with pytest.raises(InputError, match=what) as caught:
            ask(*size)
        assert caught.value.got == got
        assert expected in caught.value.expected
    for ask in (one.instructions, one.in_flight, one.held):
        with pytest.raises(InputError, match=what):
            ask(0, *size)


@pytest.mark.parametrize("family", ["interleaved-1f1b", "combined-interleaved-1f1b"])
@settings(max_examples=60)
@given(data=st.data())
def test_what_is_kept_of_the_last_virtual_stage_is_counted(family, data):
    p, v = data.draw(st.integers(2, 5)), data.draw(st.integers(2, 4))
    group = data.draw(st.integers(p, 9))
    name = grouped_name(family, group)
    m = data.draw(
        st.sampled_from([m for m in range(p, 30) if group_takes(group, p, m)])
    )
    rows = alive_after_each_pass(name, p - 1, (p, m, v))
    most = SCHEDULES[name].last_in_flight(ScheduleSizes(p, m, v))
    assert max(row[v - 1] for row in rows) == most


# What Megatron-LM's own functions return, run by themselves: get_schedule_table and,
# for the first and the last rank, get_pp_rank_microbatches (core_v0.16.1 and d98e8a64,
# megatron/core/pipeline_parallel/schedules.py). Keys are p, m, v and the group.
MEGATRON = {
    (2, 5, 2, 3): ("0.0 1.0 2.0 0.1 1.1 2.1 3.0 4.0 3.1 4.1", (5, 3)),
    (2, 6, 3, 4): (
        "0.0 1.0 2.0 3.0 0.1 1.1 2.1 3.1 0.2 1.2 2.2 3.2 4.0 5.0 4.1 5.1 4.2 5.2",
        (10, 8),
    ),
    (4, 11, 2, 6): (
        "0.0 1.0 2.0 3.0 4.0 5.0 0.1 1.1 2.1 3.1 4.1 5.1 "
        "6.0 7.0 8.0 9.0 10.0 6.1 7.1 8.1 9.1 10.1",
        (12, 6),
    ),
}


@failures.over("sizes", list(MEGATRON))
@failures.over("ahead", [0, 1])
def test_groups_are_those_of_megatron(sizes, ahead):
    (p, m, v, group), (table, warmups) = sizes, MEGATRON[sizes]
    name = grouped_name(schedule_name(v, pairs=bool(ahead)), group)
    for stage, warmup in ((0, warmups[0]), (p - 1, warmups[1])):
        done = passes(name, stage, (p, m, v))
        forward = [f"{k}.{c}" for kind, k, c in done if kind == FORWARD]
        backward = [f"{k}.{v - 1 - c}" for kind, k, c in done if kind == BACKWARD]
        assert forward == table.split() == backward
        kinds = [kind for kind, *_ in done]
        # After the warm-up forward and backward passes take turns.
        assert kinds.index(BACKWARD) == min(warmup + ahead + 1, m * v)
    assert not deals_as_usual(name, p, m)


@failures.over(("group", "m"), [(3, 8), (9, 8), (5, 6), (5, 12), (4, 11)])
def test_groups_that_megatron_refuses_are_refused(group, m):
    schedule = SCHEDULES[grouped_name("interleaved-1f1b", group)]
    with pytest.raises(InputError, match="does not deal out") as caught:
        schedule.program(4, m, 2)
    assert caught.value.where == "microbatch_group_size_per_vp_stage"
    assert f"groups of {group} of {m}" in caught.value.got
    listed = caught.value.expected.rpartition(": ")[2]
    for size in listed.split(", "):
        SCHEDULES[grouped_name("interleaved-1f1b", int(size))].program(4, m, 2)


@failures.over("name", ["1f1b", "zb-v", "circular"])
def test_other_schedules_have_no_groups(name):
    with pytest.raises(InputError, match="interleaved 1F1B alone"):
        grouped_name(name, 4)
    assert f"{name} in groups of 4" not in SCHEDULES


def test_groups_as_usual_do_the_same_as_none():
    usual = SCHEDULES["interleaved-1f1b"]
    for p, m, group in ((4, 8, 4), (4, 10, 5), (4, 7, 7)):
        name = grouped_name("interleaved-1f1b", group)
        assert deals_as_usual(name, p, m)
        for plain, sized in zip(
            usual.program(p, m, 2), SCHEDULES[name].program(p, m, 2), strict=True
        ):
            assert plain.tolist() == sized.tolist()


@every
def test_names_are_the_keys(name):
    assert SCHEDULES[name].name == name
    assert find_schedule(name) is SCHEDULES[name]


@every
def test_an_unknown_schedule_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match="no such schedule") as caught:
        find_schedule("zigzag")
    assert (f'"{name}"' in caught.value.expected) == (name not in grouped)


@failures.over("name", list(SCHEDULES))
def test_reading_schedules_imports_no_compiler(name):
    chunks = 2 if name in interleaving else 1
    code = f"""
import sys, planner.step.schedules as s
s.SCHEDULES[{name!r}].program(4, 8, {chunks})
sys.exit(any(heavy in sys.modules for heavy in ("numba", "torch", "simpy")))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@failures.over("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
def test_a_step_of_more_passes_than_memory_holds_is_refused(schedule):
    kinds = 3 if schedule.splits_backward else 2
    most = MAX_PASSES // (kinds * 4 * 2)
    schedule.check_length(4, most, 2)
    with pytest.raises(InputError, match="too many passes") as caught:
        schedule.check_length(4, most + 1, 2, where="training.global_batch_size")
    assert caught.value.where == "training.global_batch_size"
    assert f"here {most:,} microbatches" in caught.value.expected
    with pytest.raises(InputError, match="too many passes"):
        schedule.check_length(4, most // 2 + 1, 2, copies=2)
