"""What jobs on one fabric do to each other, against closed forms and brute force."""

import copy
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest

import nestsim
from nestsim.features.jobs.command import TenancyReport
from nestsim.features.jobs.replay import lost_devices
from nestsim.features.jobs.results import TenancyResult
from nestsim.features.jobs.scenario import JobsScenario
from tests import failures
from tests.nestsim.features.jobs.jobs_files import MODEL, NETWORK, PLAN, document, job

ONE_EACH = {
    **NETWORK,
    "devices_per_node": 1,
    "num_leaves": 2,
    "num_spines": 1,
    "nic_bandwidth": "10 GB/s",
    "oversubscription": 2.0,  # a leaf's two devices have one link's worth up
}
"""Two devices below each of two leaves, whose link up is as fast as one of theirs."""

ALONE = {"tensor_model_parallel_size": 1, "micro_batch_size": 1}


def crossed(**settings: Any) -> dict[str, Any]:
    """Return two alike jobs, each with a device below each leaf."""
    return document(
        job("a", "0, 2"),
        job("b", "1, 3", **settings),
        cluster={"accelerator": "h100-sxm", "network": ONE_EACH},
        plan=ALONE,
    )


def outcomes(data: dict[str, Any]) -> TenancyResult:
    report = nestsim.jobs(data)
    assert isinstance(report, TenancyReport)
    return report.result


def test_two_alike_jobs_send_at_half_speed_over_one_link() -> None:
    """The gradients' all-reduce of two members sends each byte once, at B or B / 2."""
    first, second = outcomes(crossed()).outcomes
    table = first.made.workload.table(first.made.plan.degrees)
    sent = float(table.parameters.sum()) * first.made.workload.parameter_bytes.reduce
    for one in (first, second):
        assert one.together - one.alone == pytest.approx(sent / 10e9, rel=1e-6)
        assert one.slowdown == pytest.approx(one.together / one.alone, rel=1e-12)
    assert first.slowdown == second.slowdown > 1.01


def test_the_link_where_they_meet_is_named_and_as_busy_as_both_make_it() -> None:
    result = outcomes(crossed())
    first, _ = result.outcomes
    (up,) = [one for one in result.links if one.link == "leaf 0 -> spine 0"]
    table = first.made.workload.table(first.made.plan.degrees)
    sent = float(table.parameters.sum()) * first.made.workload.parameter_bytes.reduce
    assert up.level == "spine"
    assert up.num_alike == 4  # both leaves, both directions
    assert up.shares == pytest.approx([sent / 10e9 / first.together] * 2, rel=1e-6)
    spine = next(one for one in result.levels if one.level == "spine")
    assert (spine.num_links, spine.num_shared) == (4, 4)
    assert spine.total == pytest.approx(up.total)


def test_jobs_below_leaves_of_their_own_do_not_disturb_each_other() -> None:
    data = document(job("a", "0-3"), job("b", "4-7"), job("c", "8-15"))
    result = outcomes(data)
    assert [one.slowdown for one in result.outcomes] == [1.0, 1.0, 1.0]
    assert result.links == ()
    assert result.lost == 0.0


def test_jobs_out_of_step_do_not_disturb_each_other() -> None:
    """Begun while the other computes, a job sends alone."""
    in_step = outcomes(crossed()).outcomes
    sends = in_step[0].together - in_step[0].alone
    assert in_step[0].alone > 2.5 * sends, "computes longer than it sends"
    late = outcomes(crossed(start=f"{1.2e6 * sends:.3f} us")).outcomes
    assert [one.slowdown for one in late] == pytest.approx([1.0, 1.0], abs=1e-9)


def test_the_order_of_the_jobs_makes_no_difference() -> None:
    jobs = [
        job("a", "0-1, 4-5", training={"global_batch_size": 16}),
        job("b", 4, placement="best"),
        job("c", 4, placement="spread", training={"global_batch_size": 4}),
    ]
    found = []
    for order in permutations(jobs):
        result = outcomes(document(*copy.deepcopy(order)))
        found.append(
            {
                one.tenant.name: (one.alone, one.together, one.devices.tolist())
                for one in result.outcomes
            }
        )
    assert all(one == found[0] for one in found)


def test_jobs_are_where_the_file_says() -> None:
    data = document(
        job("near", 4, placement="compact"), job("far", 4, placement="spread")
    )
    near, far = outcomes(data).outcomes
    # Of equals the first by name is placed first: "far" has a node of leaves 0 and 1.
    assert far.devices.tolist() == [0, 1, 4, 5]
    assert near.devices.tolist() == [8, 9, 10, 11]


HEAVY = {"global_batch_size": 4}
"""A step that sends as much as others after less compute."""


def among(*placed: dict[str, Any]) -> dict[str, Any]:
    """Return two jobs, of which one computes long, and a third job."""
    return document(
        job("long", "0-1, 4-5", training={"global_batch_size": 64}),
        job("short", "8-9, 12-13", training=HEAVY),
        *placed,
        cluster={
            "accelerator": "h100-sxm",
            "network": {**NETWORK, "nic_bandwidth": "10 GB/s", "oversubscription": 4.0},
        },
    )


def test_a_job_is_placed_where_brute_force_finds_the_least_loss() -> None:
    """Every pair of free nodes is tried, the job there by the file's own words."""
    placed = outcomes(
        among({**job("third", 4), "placement": "best", "training": HEAVY})
    )
    choice = placed.choice
    assert choice is not None
    assert choice.is_complete
    chosen = choice.judged[choice.chosen]
    found = {}
    for pair in combinations((2, 6, 10, 14), 2):
        devices = ", ".join(f"{first}-{first + 1}" for first in pair)
        result = outcomes(among(job("third", devices, training=HEAVY)))
        found[pair] = result.outcomes
    fastest = min(third.alone for *_, third in found.values())
    lost = {}
    for pair, (*others, third) in found.items():
        slowdowns = [*(one.slowdown for one in others), third.together / fastest]
        lost[pair] = lost_devices([4, 4, 4], slowdowns)
    least = min(lost.values())
    assert chosen.lost == pytest.approx(least, abs=1e-9)
    assert max(lost.values()) > least + 0.01, "placements differ"
    assert lost[tuple(chosen.devices[0][::2].tolist())] == pytest.approx(
        least, abs=1e-9
    )  # type: ignore[index]
    third = placed.outcomes[2]
    assert np.array_equal(third.devices, chosen.devices[0])
    assert third.together == pytest.approx(chosen.step_times[0], rel=1e-12)


@pytest.mark.parametrize("most_together", [128, 0])
def test_jobs_are_placed_together_where_brute_force_finds_the_least_loss(
    most_together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every two pairs of free nodes are tried; moved one by one, jobs get there too."""
    monkeypatch.setattr("nestsim.features.jobs.floor.MOST_TOGETHER", most_together)
    third, fourth = {"training": HEAVY}, {"training": {"global_batch_size": 8}}
    placed = outcomes(
        among(
            job("third", 4, placement="best", **third),
            job("fourth", 4, placement="best", **fourth),
        )
    )
    choice = placed.choice
    assert choice is not None
    assert [tenant.name for tenant in choice.tenants] == ["third", "fourth"]
    assert choice.is_complete == bool(most_together)
    chosen = choice.judged[choice.chosen]
    assert chosen.lost == min(candidate.lost for candidate in choice.judged)
    found = {}
    free = (2, 6, 10, 14)
    for pair in combinations(free, 2):
        nodes = [pair, tuple(node for node in free if node not in pair)]
        first, second = (
            ", ".join(f"{at}-{at + 1}" for at in of_job) for of_job in nodes
        )
        result = outcomes(
            among(job("third", first, **third), job("fourth", second, **fourth))
        )
        found[pair] = result.outcomes
    fastest = [
        min(of_all[place].alone for of_all in found.values()) for place in (2, 3)
    ]
    lost = {}
    for pair, of_all in found.items():
        slowdowns = [outcome.slowdown for outcome in of_all[:2]]
        slowdowns += [
            outcome.together / least
            for outcome, least in zip(of_all[2:], fastest, strict=True)
        ]
        lost[pair] = lost_devices([4] * 4, slowdowns)
    assert chosen.lost == pytest.approx(min(lost.values()), abs=1e-8)
    assert max(lost.values()) > min(lost.values()) + 0.01, "placements differ"
    there = tuple(chosen.devices[0][::2].tolist())
    assert lost[there] == pytest.approx(min(lost.values()), abs=1e-8)  # type: ignore[index]
    for outcome, devices in zip(placed.outcomes[2:], chosen.devices, strict=True):
        assert np.array_equal(outcome.devices, devices)
    assert [outcome.together for outcome in placed.outcomes[2:]] == pytest.approx(
        chosen.step_times, rel=1e-9
    )


def test_the_best_start_saves_what_it_says() -> None:
    """Begun then, the jobs do what the row of that start has."""
    data = {**crossed(), "shared": {"shifts": 6}}
    (shifts,) = outcomes(data).shifts
    assert (shifts.job, shifts.beside) == ("b", ("a", "b"))
    best = shifts.starts[shifts.best]
    assert shifts.saves > 0.01
    moved = crossed(start=f"{1e6 * best.offset:.6f} us")
    again = outcomes(moved).outcomes
    assert [outcome.slowdown for outcome in again] == pytest.approx(
        best.slowdowns, rel=1e-6
    )


def test_jobs_that_meet_nobody_have_no_other_starts() -> None:
    data = document(job("a", "0-3"), job("b", "4-7"), shared={"shifts": 3})
    assert outcomes(data).shifts == ()


def test_equal_placements_are_taken_in_their_order() -> None:
    data = document(job("a", "0-3"), job("b", 4, placement="best"))
    result = outcomes(data)
    choice = result.choice
    assert choice is not None
    assert choice.chosen == 0
    assert choice.judged[0].labels == ("compact",)
    assert result.outcomes[1].devices.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("plan", [{}, {"plan": PLAN | {"zero_stage": 0}}])
def test_a_job_is_placed_where_its_plan_fits(plan: dict[str, Any]) -> None:
    kinds = [("l4", 8), ("h100-sxm", 8)]
    groups = [{"accelerator": kind, "num_devices": count} for kind, count in kinds]
    data = document(
        job("small", "0-1", plan=PLAN, model=MODEL),
        job("large", 4, placement="best", model={"name": "llama2-7b"}, **plan),
        cluster={"accelerator": "h100-sxm", "network": NETWORK, "groups": groups},
    )
    del data["model"], data["plan"]
    found = outcomes(data)
    assert found.shortfall == ""
    assert found.outcomes[1].made.fits
    choice = found.choice
    assert choice is not None
    dropped = 21 - len(choice.judged)
    assert dropped > 0
    assert found.notes[0].startswith(
        f'On {dropped} of 21 placements of "large" no plan'
    )


def test_a_job_that_finds_its_plan_finds_that_of_a_cluster_of_its_size() -> None:
    """Two leaves of the cluster are a cluster of two leaves."""
    data = document(job("a", "8-15"), job("b", "0-7"), search={"keep_best": 1})
    del data["plan"]
    found = outcomes(data).outcomes[0]
    alone = {name: one for name, one in data.items() if name != "jobs"}
    alone["cluster"]["network"]["num_leaves"] = 2
    best = nestsim.plan(alone).result.candidates[0].priced
    assert not found.made.is_given
    assert found.made.plan.settings_json() == best.plan.settings_json()
    assert found.priced.iteration_time == pytest.approx(best.iteration_time, rel=1e-12)
    shifted = [
        [device + 8 for device in row]
        for stage in best.plan.stages
        for row in stage.devices
    ]
    rows = [list(row) for stage in found.made.plan.stages for row in stage.devices]
    assert rows == shifted


def test_seeds_pick_cables_and_leave_the_rest_as_it_is() -> None:
    data = crossed()
    data["cluster"]["network"] |= {"num_spines": 4, "oversubscription": 1.0}
    plain = outcomes(data).outcomes
    data["shared"] = {"ecmp_seeds": [0, 1, 2, 3]}
    seeded = outcomes(data)
    assert seeded.seeds == (0, 1, 2, 3)
    for one, before in zip(seeded.outcomes, plain, strict=True):
        assert (one.alone, one.together) == (before.alone, before.together)
        least, median, largest = one.seed_range
        assert 1.0 <= least <= median <= largest
    # Four spines, two jobs: some seed has them on one, and some on two.
    slowdowns = [
        max(found) for found in np.transpose([o.by_seed for o in seeded.outcomes])
    ]
    assert min(slowdowns) == 1.0
    assert max(slowdowns) > 1.01


def test_seeds_need_cables_to_pick_from() -> None:
    torus = {"kind": "torus", "dimensions": [4, 4], "bandwidth": "50 GB/s"}
    torus |= {"latency": "1 us"}
    data = document(
        job("a", "0-3"),
        job("b", "4-7"),
        cluster={"accelerator": "h100-sxm", "network": torus},
        shared={"ecmp_seeds": [1]},
    )
    with pytest.raises(nestsim.InputError) as caught:
        nestsim.jobs(data)
    assert caught.value.where == "scenario.toml: shared.ecmp_seeds"


@failures.over("granularity", ["stage", "layer"])
@failures.over("nodes", [1, 2])
def test_tensor_groups_that_leave_nodes_are_said_to_meet_nobody(
    granularity: str, nodes: int
) -> None:
    data = document(
        job("a", "0-1, 4-5"),
        job("b", "2-3, 6-7"),
        simulation={"granularity": granularity},
        plan=PLAN | {"tensor_model_parallel_size": 2 * nodes},
    )
    found = outcomes(data)
    is_said = any("tensor-parallel ones" in note for note in found.notes)
    assert is_said == (granularity == "stage" and nodes == 2)
    if nodes == 2:
        assert (found.worst.slowdown > 1.0) == (granularity == "layer")


@pytest.mark.parametrize("kind", ["torus", "custom"])
def test_other_networks_have_jobs_too(kind: str, tmp_path: Any) -> None:
    if kind == "torus":
        network = {"kind": "torus", "dimensions": [4, 4], "bandwidth": "50 GB/s"}
        network |= {"latency": "1 us"}
    else:
        names = [f"d{number}" for number in range(8)]
        links = "".join(
            f'[[links]]\nsource = "{one}"\ntarget = "switch"\nbandwidth = "50 GB/s"\n'
            'latency = "1 us"\n'
            for one in names
        )
        (tmp_path / "links.toml").write_text(
            f"devices = {names}\n{links}".replace("'", '"')
        )
        network = {"kind": "custom", "path": "links.toml"}
    data = document(
        job("a", "0-3"),
        job("b", "4-7"),
        cluster={"accelerator": "h100-sxm", "network": network},
    )
    file = JobsScenario.from_dict(data, tmp_path / "jobs.toml")
    assert all(one.slowdown >= 1.0 for one in nestsim.jobs(file).result.outcomes)
