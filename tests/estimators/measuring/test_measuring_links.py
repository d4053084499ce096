"""Which processes measure links, in which groups, and how long: nothing is started."""

import pytest
import torch

from estimators.measuring.link_processes import (
    MOST_RANKS,
    launched_world,
    local_ranks,
    measure_local_links,
)
from estimators.measuring.links import (
    FIRST_SIZES,
    QUICK_SIZES,
    SIZES,
    MeasuredRanks,
    TrainEffort,
    World,
    groups_of,
)
from tests import failures
from topologies.errors import InputError

TWO_NODES = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
}


def test_sizes_go_from_1_kib_to_1_gib_and_begin_with_both_ends_of_the_law():
    assert sorted(SIZES) == [4**k for k in range(5, 16)]
    assert SIZES[:2] == QUICK_SIZES[:2] == FIRST_SIZES
    assert set(QUICK_SIZES) <= set(SIZES) | {2**14, 2**18}


@failures.over(
    ("ranks", "local", "groups"),
    [
        (2, 2, [(2, 1)]),
        (8, 8, [(2, 1), (4, 1), (8, 1)]),
        (6, 6, [(2, 1), (4, 1), (6, 1)]),
        (4, 1, [(2, 2), (4, 4)]),
        (24, 8, [(2, 1), (4, 1), (8, 1), (16, 2), (24, 3)]),
    ],
)
def test_groups_double_inside_a_node_and_then_node_by_node(ranks, local, groups):
    assert groups_of(ranks, local) == tuple(MeasuredRanks(*one) for one in groups)


def test_trains_are_long_enough_and_not_too_long():
    effort = TrainEffort(train_seconds=0.03, most_launches=200)
    assert effort.launches(1e-3) == 30
    assert effort.launches(1e-6) == 200
    assert effort.launches(5.0) == 1


def test_a_launcher_says_which_process_this_is():
    assert launched_world({}, "cpu") is None
    found = launched_world(TWO_NODES, "cpu")
    assert found == World(rank=5, num_ranks=8, local_rank=1, num_local=4, device="cpu")
    assert found.num_nodes == 2
    assert found.meeting == "env://"


@failures.over(
    ("changes", "where", "problem"),
    [
        ({"RANK": ""}, "RANK", "is not set"),
        ({"LOCAL_WORLD_SIZE": ""}, "LOCAL_WORLD_SIZE", "is not set"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE", "is not a whole number"),
        ({"RANK": "-1"}, "RANK", "is not a whole number"),
        ({"RANK": "8"}, "RANK, WORLD_SIZE", "contradict each other"),
        ({"LOCAL_WORLD_SIZE": "3"}, "RANK, WORLD_SIZE", "contradict each other"),
        ({"LOCAL_RANK": "0"}, "RANK, WORLD_SIZE", "contradict each other"),
    ],
)
def test_what_a_launcher_cannot_have_said_is_refused(changes, where, problem):
    with pytest.raises(InputError, match=problem) as caught:
        launched_world(TWO_NODES | changes, "cpu")
    assert caught.value.where.startswith(where)


def test_one_rank_alone_has_no_links():
    alone = dict.fromkeys(TWO_NODES, "1") | {"RANK": "0", "LOCAL_RANK": "0"}
    with pytest.raises(InputError, match="one rank alone has no links"):
        launched_world(alone, "cpu")
    for wanted in (1, 0, -3):
        with pytest.raises(InputError, match="one rank alone") as caught:
            local_ranks("cpu", wanted)
        assert caught.value.where == "--ranks"


def test_ranks_are_at_least_two_and_at_most_what_there_is(monkeypatch):
    assert 2 <= local_ranks("cpu", None) <= 4
    assert local_ranks("cpu", 7) == 7
    with pytest.raises(InputError, match="are more ranks than devices"):
        local_ranks("cpu", MOST_RANKS + 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="one device alone has no links"):
        local_ranks("cuda", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert local_ranks("cuda", None) == 8
    with pytest.raises(InputError, match="are more ranks than devices"):
        local_ranks("cuda", 9)


def test_a_torch_without_the_library_is_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    with pytest.raises(InputError, match="torch was built without gloo"):
        local_ranks("cpu", 2)
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(InputError, match="without its package for several"):
        local_ranks("cpu", 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_processes_that_fail_are_told_and_none_is_left():
    with pytest.raises(InputError, match="could not measure together") as caught:
        measure_local_links("cuda", 2, budget=0.0, quick=True)
    assert "ended with 1" in caught.value.got or "rank" in caught.value.got
