"""Links: constants that made the times are found, and the real thing runs on a CPU."""

import io
import json
import math

import pytest
import torch
from rich.console import Console

from estimators.collectives.transports import find_transport
from estimators.operators.profile import OperatorTiming
from estimators.user_files import LinkPoint, LinkSweep, read_user_links
from nestsim.cli import main
from nestsim.document.terminal import print_document
from nestsim.features.profile.document import links_document
from nestsim.features.profile.links import Stated, fit_links
from tests import failures

SIZES = [4**k for k in range(5, 15)]
WRONG_INPUT = 2
RINGS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}

INSIDE = {"launch": 9e-6, "per_rank": 3e-6, "ramp": 30e-6, "efficiency": 0.7}
SENT = {"send_launch": 14e-6, "send_efficiency": 0.9}
BANDWIDTH = 100e9


def ring_time(operation, ranks, nodes, size, law, bandwidth=BANDWIDTH):
    """Return the law as the docstring of `estimators.collectives.transports` has it."""
    part = (ranks - 1) / ranks
    if operation == "send_recv":
        return law["send_launch"] + size / (law["send_efficiency"] * bandwidth)
    latency = law["per_rank"] * (ranks / nodes - 1)
    latency += law.get("per_doubling", 0.0) * math.log2(nodes)
    if operation in {"all_gather", "reduce_scatter"}:
        # Rings alone: a step in a node is half of a rank's, between nodes a quarter
        # of a doubling.
        latency = law["per_rank"] / 2 * (ranks - nodes)
        latency += law.get("per_doubling", 0.0) / 4 * (nodes - 1)
    if operation == "all_to_all":
        tau = part * size / (law["send_efficiency"] * bandwidth)
        return law["send_launch"] + latency + tau
    tau = RINGS[operation] * part * size / (law["efficiency"] * bandwidth)
    return law["launch"] + latency + tau + math.sqrt(tau * law["ramp"])


def sweep_of(groups, law, operations=(*RINGS, "send_recv", "all_to_all"), **changed):
    points = tuple(
        LinkPoint(
            operation=operation,
            num_ranks=ranks,
            num_nodes=nodes,
            num_bytes=size,
            timing=OperatorTiming(
                ring_time(operation, ranks, nodes, size, law), 0.0, 7
            ),
        )
        for ranks, nodes in groups
        for size in SIZES
        for operation in operations
    )
    ranks, nodes = groups[-1]
    facts = {
        "backend": "gloo",
        "device": "a CPU",
        "torch_version": "2.9",
        "num_ranks": ranks,
        "num_nodes": nodes,
    }
    return LinkSweep(points=points, **(facts | changed))


def fitted(sweep, stated):
    return fit_links(sweep, stated, name="links.toml", date="2026-01-31")


def test_the_constants_of_a_node_are_found():
    law = INSIDE | SENT
    found = fitted(sweep_of([(2, 1), (4, 1), (8, 1)], law), Stated(node=BANDWIDTH))
    one = found.links.node.transport
    for name, value in law.items():
        assert getattr(one, name) == pytest.approx(value, rel=0.05), name
    assert found.median_error("node") < 0.01
    assert (one.scope, one.multicast_efficiency) == ("node", 0.0)
    assert found.links.node.bandwidth_is == "stated"
    assert found.links.fabric is None


def test_with_one_size_of_group_the_latency_of_a_rank_is_the_published_one():
    found = fitted(sweep_of([(2, 1)], INSIDE | SENT), Stated(node=BANDWIDTH))
    one = found.links.node.transport
    assert one.per_rank == find_transport("", inside_node=True).per_rank
    # All-reduces wait for both steps of a rank, gathers and scatters for one.
    least = INSIDE["launch"] + INSIDE["per_rank"] / 2
    assert least <= one.launch + one.per_rank <= least + INSIDE["per_rank"] / 2


def test_without_a_stated_bandwidth_the_highest_is_taken():
    sweep = sweep_of([(2, 1)], INSIDE | SENT)
    link = fitted(sweep, Stated()).links.node
    best = max(one.bus_bandwidth for one in sweep.points)
    assert link.bandwidth == best
    assert best == pytest.approx(0.9 * BANDWIDTH, rel=0.01)
    reached = link.transport.efficiency * link.bandwidth
    assert reached == pytest.approx(0.7 * BANDWIDTH, rel=0.05)
    assert "highest" in link.bandwidth_is


def test_a_known_switch_that_adds_up_is_told_from_rings():
    """Of H100: all-reduces send (n + 1) / n of a tensor, not 2 (n - 1) / n."""
    law = INSIDE | SENT
    points = []
    sweep = sweep_of([(8, 1)], law, device="NVIDIA H100 80GB HBM3", backend="nccl")
    for one in sweep.points:
        seconds = one.timing.seconds
        if one.operation == "all_reduce":
            tau = 9 / 8 * one.num_bytes / (0.6 * BANDWIDTH)
            chain = law["per_rank"] * 7
            seconds = law["launch"] + chain + tau + math.sqrt(tau * law["ramp"])
        points.append((one, seconds))
    sweep = LinkSweep(
        backend="nccl",
        device=sweep.device,
        torch_version="2.9",
        num_ranks=8,
        num_nodes=1,
        points=tuple(
            LinkPoint(
                operation=one.operation,
                num_ranks=8,
                num_nodes=1,
                num_bytes=one.num_bytes,
                timing=OperatorTiming(seconds, 0.0, 7),
            )
            for one, seconds in points
        ),
    )
    found = fitted(sweep, Stated(accelerator="h100-sxm", node=BANDWIDTH))
    one = found.links.node.transport
    assert one.multicast_efficiency == pytest.approx(0.6, rel=0.05)
    assert one.efficiency == pytest.approx(0.7, rel=0.05)


def test_between_nodes_a_doubling_costs_what_it_cost():
    law = INSIDE | SENT | {"per_doubling": 25e-6}
    rings = (*RINGS, "send_recv")
    sweep = sweep_of([(2, 2), (4, 4), (8, 8)], law, rings)
    found = fitted(sweep, Stated(fabric=BANDWIDTH))
    assert found.links.node is None
    one = found.links.fabric.transport
    assert one.scope == "fabric"
    assert one.per_doubling == pytest.approx(25e-6, rel=0.05)
    assert one.efficiency == pytest.approx(0.7, rel=0.05)
    assert one.launch == pytest.approx(9e-6, rel=0.1)


def test_what_nodes_add_is_taken_from_the_links_inside_them():
    """Rings through nodes of four: launch and chain are those of the node."""
    law = INSIDE | SENT | {"per_doubling": 25e-6}
    groups = [(2, 1), (4, 1), (8, 2), (16, 4)]
    sweep = sweep_of(groups, law, (*RINGS, "send_recv"))
    found = fitted(sweep, Stated(node=BANDWIDTH, fabric=BANDWIDTH))
    node, fabric = found.links.node.transport, found.links.fabric.transport
    assert (fabric.launch, fabric.per_rank) == (node.launch, node.per_rank)
    assert fabric.per_doubling == pytest.approx(25e-6, rel=0.1)
    assert found.links.fabric.num_nodes == 4


def test_the_file_says_what_was_found(tmp_path):
    law = INSIDE | SENT | {"per_doubling": 25e-6}
    groups = [(2, 1), (4, 1), (8, 2)]
    sweep = sweep_of(groups, law, (*RINGS, "send_recv"), device='odd "name" \\')
    links = fitted(sweep, Stated(node=BANDWIDTH, fabric=BANDWIDTH)).links
    path = tmp_path / "links.toml"
    path.write_text(links.toml(), encoding="utf-8")
    read = read_user_links(path)
    assert (read.device, read.backend, read.date) == (
        'odd "name" \\',
        "gloo",
        "2026-01-31",
    )
    for one, other in ((read.node, links.node), (read.fabric, links.fabric)):
        assert one.transport.scope == other.transport.scope
        assert one.num_ranks == other.num_ranks
        assert one.bandwidth == pytest.approx(other.bandwidth, rel=1e-3)
        for name in ("launch", "per_rank", "ramp", "efficiency", "send_launch"):
            mine, its = getattr(one.transport, name), getattr(other.transport, name)
            assert mine == pytest.approx(its, rel=1e-3)


@pytest.fixture
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_launcher")
def test_two_ranks_of_this_machine_are_measured_fitted_and_written(tmp_path, capsys):
    target = tmp_path / "links.toml"
    options = ["--ranks", "2", "--quick", "--budget", "0 s"]
    assert main(["profile-links", *options, "--json", "-o", str(target)]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["backend"], found["num_ranks"]) == ("gloo", 2)
    # Both first sizes of five operations; all others were left to another time.
    assert len(found["points"]) == 10
    assert found["num_skipped"] == 15
    assert {one["operation"] for one in found["points"]} == {
        *RINGS,
        "send_recv",
        "all_to_all",
    }
    assert {one["num_bytes"] for one in found["points"]} == {2**10, 2**20}
    assert all(one["time_s"] > 0 for one in found["points"])
    assert f"The links are in {target}" in captured.err
    read = read_user_links(target)
    assert read.fabric is None
    assert read.node.transport.efficiency == pytest.approx(
        found["links"]["node"]["constants"]["efficiency"], rel=1e-3
    )


@pytest.mark.usefixtures("no_launcher")
@failures.over(
    ("options", "message"),
    [
        (["--ranks", "1"], "--ranks: one rank alone has no links"),
        (["--ranks", "65"], "--ranks: are more ranks than devices"),
        (["--bandwidth", "5"], "--bandwidth: quantity has no unit"),
        (["--bandwidth", "0 GB/s"], "--bandwidth: must be more than 0"),
        (["--budget", "5"], "--budget: quantity has no unit"),
        (["--output", "."], "--output: is a folder"),
    ],
)
def test_mistakes_are_told_before_anything_is_started(
    options, message, tmp_path, capsys
):
    arguments = ["profile-links", "--output", str(tmp_path / "l.toml"), *options]
    assert main(arguments) == WRONG_INPUT
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_other_ranks_than_the_launchers_are_refused(tmp_path, capsys, monkeypatch):
    for name, value in (
        *(("RANK", "0"), ("WORLD_SIZE", "2")),
        *(("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")),
    ):
        monkeypatch.setenv(name, value)
    options = ["--ranks", "3", "-o", str(tmp_path / "l.toml")]
    assert main(["profile-links", *options]) == WRONG_INPUT
    assert "a launcher has started the ranks already" in capsys.readouterr().err


def test_a_launcher_that_names_no_meeting_is_refused(tmp_path, capsys, monkeypatch):
    for name, value in (
        *(("RANK", "0"), ("WORLD_SIZE", "2")),
        *(("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert main(["profile-links", "-o", str(tmp_path / "l.toml")]) == WRONG_INPUT
    told = capsys.readouterr().err
    assert "the processes did not find each other" in told
    assert "MASTER_ADDR" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_launcher")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_gpus_that_are_not_there_are_refused(tmp_path, capsys):
    options = ["--device", "cuda", "-o", str(tmp_path / "l.toml")]
    assert main(["profile-links", *options]) == WRONG_INPUT
    assert "torch finds no such device here" in capsys.readouterr().err


def test_the_report_has_every_point_and_what_to_state():
    law = INSIDE | SENT | {"per_doubling": 25e-6}
    sweep = sweep_of([(2, 1), (4, 1), (8, 2)], law, num_skipped=3)
    text = io.StringIO()
    document = links_document(fitted(sweep, Stated(node=BANDWIDTH)))
    print_document(document, Console(file=text, width=120))
    printed = text.getvalue()
    assert "a CPU; gloo of torch 2.9; 8 ranks on 2 nodes  2026-01-31" in printed
    assert "3 points left out" in printed
    assert printed.count("\nall-reduce ") == 3 * len(SIZES)
    inside, between = printed.split("Between nodes")
    assert "70.0 % of 100 GB/s (stated)" in inside
    assert "the highest that was measured" in between
    assert "A scenario that names the file states" in between
    assert "A scenario that names" not in inside
    assert "each doubling of the nodes" in between
