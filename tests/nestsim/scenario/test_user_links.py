"""A user's own links in a scenario: what they change, and what is wrong with a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from estimators.collectives.transports import find_transport
from estimators.layers.work import Degrees
from nestsim.cli import main
from nestsim.evaluate.cluster import build_job, cluster_network
from nestsim.evaluate.job import simulate_job
from nestsim.features.sweep.scenario_task import ScenarioTask, scenario_digest
from nestsim.scenario import load_scenario
from nestsim.scenario.load import Scenario
from tests import failures
from topologies.errors import InputError

HEAD = """
name = "a job"
[model]
name = "{model}"
[training]
global_batch_size = 16
[cluster]
accelerator = "h100-sxm"
[software]
preset = "megatron-core"
{links}
[plan]
micro_batch_size = 1
tensor_model_parallel_size = 4
data_parallel_size = 2
[cluster.network]
"""

TREE = """
kind = "fat-tree"
[[cluster.network.levels]]
name = "node"
fan_out = 4
bandwidth = "450 GB/s"
latency = "1 us"
[[cluster.network.levels]]
name = "leaf"
fan_out = 2
bandwidth = "200 GB/s"
latency = "2 us"
"""

RAIL = """
kind = "rail"
devices_per_node = 4
node_bandwidth = "450 GB/s"
node_latency = "1 us"
nodes_per_unit = 2
num_units = 1
nic_bandwidth = "50 GB/s"
nic_latency = "1 us"
spine_latency = "1 us"
"""

TORUS = """
kind = "torus"
dimensions = [8]
bandwidth = "100 GB/s"
latency = "1 us"
"""

OWN = 'links = "own/links.toml"'

LINKS = """
format = "nestsim links 1"
date = "2026-01-31"
device = "NVIDIA H100 80GB HBM3"
backend = "nccl"
torch_version = "2.9"
[node]
num_ranks = 4
num_nodes = 1
bandwidth = 450e9
bandwidth_is = "stated"
launch = 9e-6
per_rank = 2e-6
per_doubling = 0.0
ramp = 30e-6
efficiency = 0.5
multicast_efficiency = 0.0
send_launch = 14e-6
send_efficiency = 0.4
source = "fit"
[fabric]
num_ranks = 8
num_nodes = 2
bandwidth = 200e9
launch = 9e-6
per_rank = 2e-6
per_doubling = 20e-6
ramp = 30e-6
efficiency = 0.25
multicast_efficiency = 0.0
send_launch = 14e-6
send_efficiency = 0.25
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Return what writes a scenario and its links beside it."""

    def write_files(
        text: str = LINKS,
        *,
        links: str = OWN,
        network: str = TREE,
        model: str = "gpt3-125m",
    ) -> Path:
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / "links.toml").write_text(text, encoding="utf-8")
        path = tmp_path / "job.toml"
        job = HEAD.format(links=links, model=model) + network
        path.write_text(job, encoding="utf-8")
        return path

    return write_files


def slowed(scenario: Scenario, plain: Scenario) -> list[float]:
    """Return the bandwidths of links over those of another scenario, each once."""
    bandwidths = [cluster_network(one).links.bandwidth for one in (scenario, plain)]
    return sorted(set((bandwidths[0] / bandwidths[1]).round(9).tolist()))


@pytest.mark.parametrize(
    ("network", "parts"),
    [(TREE, [0.25, 0.5]), (RAIL, [0.25, 0.5]), (TORUS, [0.5])],
)
def test_links_reach_what_was_measured(
    network: str, parts: list[float], write: Any
) -> None:
    plain = load_scenario(write(links="", network=network))
    assert slowed(load_scenario(write(network=network)), plain) == parts


def test_what_the_network_says_wins_and_what_was_not_measured_stays(
    write: Any,
) -> None:
    plain = load_scenario(write(links=""))
    said = TREE.replace("fan_out = 4", "fan_out = 4\nefficiency = 0.9")
    assert slowed(load_scenario(write(network=said)), plain) == [0.25, 0.9]
    node_only = LINKS[: LINKS.index("[fabric]")]
    assert slowed(load_scenario(write(node_only)), plain) == [0.5, 1.0]


def test_what_was_fitted_to_runs_counts_where_links_were_not_measured(
    write: Any,
) -> None:
    plain = load_scenario(write(links=""))
    folder = plain.path.parent / "own"
    constants = """
format = "nestsim constants 1"
[links.node]
efficiency = 0.6
[links.fabric]
efficiency = { value = 0.3 }
"""
    (folder / "mine.toml").write_text(constants, encoding="utf-8")
    own = 'constants = "own/mine.toml"'
    assert slowed(load_scenario(write(links=own)), plain) == [0.3, 0.6]
    node_only = LINKS[: LINKS.index("[fabric]")]
    both = load_scenario(write(node_only, links=f"{own}\n{OWN}"))
    assert slowed(both, plain) == [0.3, 0.5]


def test_they_slow_a_job_down(write: Any) -> None:
    times = []
    for links in ("", OWN):
        scenario = load_scenario(write(links=links, model="llama2-7b"))
        times.append(simulate_job(scenario).candidate.simulated.iteration_time)
    assert times[1] > 1.02 * times[0]


def test_the_platform_has_them_in_place_of_published_ones(write: Any) -> None:
    _, workload = build_job(load_scenario(write()), None)
    own = workload.platform.transport(inside_node=True)
    assert (own.launch, own.ramp, own.send_efficiency) == (9e-6, 30e-6, 0.4)
    assert workload.platform.transport(inside_node=False).per_doubling == 20e-6
    _, plain = build_job(load_scenario(write(links="")), None)
    published = find_transport("h100-sxm", inside_node=True)
    assert plain.platform.transport(inside_node=True) == published


def test_launches_inside_layers_are_those_measured(write: Any) -> None:
    """Two all-reduces in each pass of a block, each launched once."""
    degrees, times = Degrees(tp=4), []
    for launch in ("9e-6", "1009e-6"):
        text = LINKS.replace("launch = 9e-6", f"launch = {launch}", 1)
        _, workload = build_job(load_scenario(write(text, model="llama2-7b")), None)
        table = workload.table(degrees)
        block = int(table.is_block.argmax())
        times.append(table.backward_time[block] + table.forward_time[block])
    assert times[1] - times[0] == pytest.approx(4e-3, rel=0.25)


def test_single_messages_reach_what_was_measured_of_them(write: Any) -> None:
    """An all-to-all of experts sends as if rings' part of a link were the messages'."""
    degrees = Degrees(ep=4)
    sent = []
    for text in (
        LINKS,
        LINKS.replace("send_efficiency = 0.4", "send_efficiency = 0.2"),
    ):
        path = write(text, model="mixtral-8x7b")
        plan, preset = "tensor_model_parallel_size = 4\n", 'preset = "megatron-core"\n'
        sends = preset + 'moe_token_dispatcher_type = "alltoall"\n'
        job = path.read_text("utf-8").replace(plan, "").replace(preset, sends)
        path.write_text(job, encoding="utf-8")
        _, workload = build_job(load_scenario(path), None)
        traffic = workload.table(degrees).traffic
        (one,) = [row for row in traffic if row.operation == "all_to_all"]
        sent.append(one.forward_bytes.max())
    assert sent[1] == pytest.approx(2.0 * sent[0])


def test_reports_say_whose_links_they_are(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["-o", str(out), "--no-figures", "--quiet"]
    assert main(["simulate", str(write()), "--verbose", *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    said = "the user's own: links.toml, nccl on NVIDIA H100 80GB HBM3, 2026-01-31"
    assert said in printed
    assert "50.0 % inside a node and 25.0 % between nodes" in printed
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["user_links"]["node"]["transport"]["ramp"] == 30e-6


def test_nothing_is_kept_that_was_made_with_other_links(write: Any) -> None:
    before = load_scenario(write())
    facts = ScenarioTask.of(before).facts([])["files"]
    after = load_scenario(write(LINKS.replace("launch = 9e-6", "launch = 8e-6")))
    assert scenario_digest(before) != scenario_digest(after)
    assert ScenarioTask.of(after).facts([])["files"] != facts


@failures.over(
    ("found", "written", "where", "problem"),
    [
        ("ramp = 30e-6\nefficiency = 0.5", "efficiency = 0.5", "node.ramp", "missing"),
        ("efficiency = 0.5", "efficiency = 50", "node.efficiency", "out of range"),
        ("efficiency = 0.25", "efficiency = 0", "fabric.efficiency", "out of range"),
        ("per_doubling = 20e-6", "per_doubling = -1", "fabric.per_d", "out of range"),
        ("launch = 9e-6", 'launch = "9 us"', "node.launch", "has the wrong type"),
        ("num_ranks = 4", "num_ranks = 1", "node.num_ranks", "out of range"),
        ('source = "fit"', "speed = 1", "node.speed", "unknown setting"),
        ("[fabric]", "[fabrics]", "fabrics", "unknown setting"),
        ("links 1", "links 2", "format", "is not a file that this version reads"),
        (LINKS[LINKS.index("[node]") :], "", "node", "has no links"),
    ],
)
def test_a_bad_file_is_refused_with_file_and_setting(
    found: str, written: str, where: str, problem: str, write: Any
) -> None:
    assert found in LINKS
    path = write(LINKS.replace(found, written))
    with pytest.raises(InputError, match=problem) as caught:
        load_scenario(path)
    file = path.parent / "own" / "links.toml"
    place = f"{path}: software.links: {file}: {where}"
    assert caught.value.where.startswith(place)
    assert caught.value.expected


def test_a_profile_of_operators_is_no_file_of_links(write: Any) -> None:
    with pytest.raises(InputError, match="not TOML"):
        load_scenario(write('{"format": "nestsim profile 1"}'))
