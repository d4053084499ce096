"""Scenarios whose switches add up, and rail-only ones: settings, refusals, worth."""

import json

import pytest

from nestsim.cli import main
from nestsim.evaluate.cluster import job_network
from nestsim.evaluate.job import simulate_job
from nestsim.scenario import load_scenario
from tests import failures
from topologies import InputError

RAIL = """
kind = "rail"
devices_per_node = 8
node_bandwidth = "450 GB/s"
node_latency = "500 ns"
nodes_per_unit = 4
num_units = 2
nic_bandwidth = "50 GB/s"
nic_latency = "1 us"
spine_latency = "1 us"
"""

TREE = """
kind = "fat-tree"
nic = "device"
[[cluster.network.levels]]
name = "node"
fan_out = 8
bandwidth = "450 GB/s"
latency = "500 ns"
[[cluster.network.levels]]
name = "leaf"
fan_out = 8
bandwidth = "50 GB/s"
latency = "1 us"
"""


def write(
    folder, network, plan="micro_batch_size = 1\nzero_stage = 0", *, preset="ideal"
):
    text = f"""
name = "job"
[model]
name = "gpt3-1.3b"
[training]
global_batch_size = 512
[cluster]
accelerator = "h100-sxm"
[cluster.network]
{network}
[software]
preset = "{preset}"
overlap_grad_reduce = false
overlap_param_gather = false
[plan]
{plan}
"""
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def network_of(folder, network):
    return job_network(load_scenario(write(folder, network)))


@pytest.mark.parametrize("table", [RAIL, TREE])
def test_sums_inside_nodes_are_off_unless_named(tmp_path, table):
    assert network_of(tmp_path, table).rules.summed_weight == 0.0
    assert network_of(tmp_path, "nvls = true" + table).rules.summed_weight == 1.0


def test_the_transport_says_what_sums_reach(tmp_path):
    named = 'nvls = true\nnode_transport = "nvswitch-h100"' + RAIL
    assert network_of(tmp_path, named).rules.summed_weight == pytest.approx(
        0.836 / 0.706
    )
    said = named + "nvls_efficiency = 0.5\n"
    assert network_of(tmp_path, said).rules.summed_weight == pytest.approx(0.836 / 0.5)
    # Sums are never faster than what the switches pass on.
    fast = "nvls = true\nnode_efficiency = 0.6\nnvls_efficiency = 0.9" + RAIL
    assert network_of(tmp_path, fast).rules.summed_weight == 1.0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('nvls = true\nnode_transport = "nvswitch-a100"' + RAIL, "add up nothing"),
        ("nvls_efficiency = 0.7" + RAIL, "add up nothing"),
        ("nvls_efficiency = 0.7" + TREE, "add up nothing"),
    ],
)
def test_sums_that_no_switch_does_are_refused(tmp_path, table, words):
    with pytest.raises(InputError, match=words) as caught:
        network_of(tmp_path, table)
    assert "cluster.network" in str(caught.value)
    assert "nvls" in str(caught.value)


def test_nodes_of_two_levels_add_up_nothing(tmp_path):
    levels = TREE.replace(
        'latency = "500 ns"\n',
        'latency = "500 ns"\ntransport = "nvlink-pair"\n[[cluster.network.levels]]\n'
        'name = "host"\nfan_out = 2\nlatency = "1 us"\ntransport = "pcie-peer"\n',
    )
    with pytest.raises(InputError, match="one level of switches"):
        network_of(tmp_path, "nvls = true\nnvls_efficiency = 0.7" + levels)


@pytest.mark.parametrize("name", ["nvls", "sharp"])
def test_a_plan_that_names_sums_that_nobody_does_is_refused(tmp_path, capsys, name):
    plan = f'micro_batch_size = 1\ngradient_algorithm = "{name}"'
    status = main(["simulate", str(write(tmp_path, RAIL, plan))])
    assert status == 2
    error = capsys.readouterr().err
    assert "no switches of the network add up all-reduces" in error
    assert "plan.gradient_algorithm" in error
    assert f"{name} = true" in error


@failures.over("preset", ["ideal", "megatron-core"])
@failures.over("table", [RAIL, TREE])
def test_sums_in_switches_are_priced_and_replayed_alike(tmp_path, table, preset):
    """64 replicas and tensor groups of a node: each way at its own bytes."""
    times = {}
    for settings in ("", "nvls = true\n", "sharp = true\nnvls = true\n"):
        plan = (
            "micro_batch_size = 1\ntensor_model_parallel_size = 8\n"
            "sequence_parallel = false\nzero_stage = 0"
        )
        path = write(tmp_path, settings + table, plan, preset=preset)
        one = simulate_job(load_scenario(path)).candidate
        planned, replayed = one.planned.iteration_time, one.simulated.iteration_time
        assert replayed == pytest.approx(planned, rel=1e-6)
        times[settings] = replayed
        if settings:
            assert one.priced.plan.tensor_algorithm == "nvls"
    plain, nvls, both = times.values()
    assert both < nvls < plain


def test_the_network_report_says_which_switches_add_up(tmp_path, capsys):
    path = str(write(tmp_path, "nvls = true" + RAIL))
    assert main(["topology", path]) == 0
    assert "Switches inside nodes add up all-reduces (NVLS)" in capsys.readouterr().out
    assert main(["topology", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nvls"]


def test_collectives_are_listed_with_sums_where_switches_do_them(tmp_path, capsys):
    path = str(write(tmp_path, "sharp = true\nnvls = true" + RAIL))
    assert main(["collectives", path, "-b", "64MiB", "-e", "64MiB", "--json"]) == 0
    (table, *_) = json.loads(capsys.readouterr().out)["tables"]
    (row,) = table["rows"]
    assert (table["operation"], row["algorithm"]) == ("all_reduce", "sharp")
    assert {"nvls", "sharp", "ring"} <= set(row["closed_forms_s"])
    # Alone on the links it takes what the closed form says.
    assert row["alone"]["time_s"] == pytest.approx(row["closed_forms_s"]["sharp"])


ONE_RAIL_SWITCH = RAIL.replace("num_units = 2", "num_units = 1").replace(
    'spine_latency = "1 us"\n', ""
)


def test_rail_only_networks_of_one_unit_need_no_spine(tmp_path):
    network = network_of(tmp_path, "rail_only = true" + ONE_RAIL_SWITCH)
    assert [level.name for level in network.levels] == ["node", "rail unit"]
    for table in (ONE_RAIL_SWITCH, "rail_only = true" + RAIL.replace("spine", "#")):
        with pytest.raises(InputError, match="is missing") as caught:
            network_of(tmp_path, table)
        assert "cluster.network.spine_latency" in str(caught.value)


def test_rails_that_nothing_joins_are_not_reached_without_relays(tmp_path):
    table = "rail_only = true\npxn = false" + ONE_RAIL_SWITCH
    with pytest.raises(InputError, match="no way from one rail to another") as caught:
        network_of(tmp_path, table)
    assert "cluster.network.pxn" in str(caught.value)


def test_a_step_takes_as_long_where_no_traffic_needs_the_spine(tmp_path):
    """Rail-only and rail-optimised with PXN: plan and replay, to the last bit."""
    plan = "micro_batch_size = 1\ntensor_model_parallel_size = 4\nzero_stage = 1"
    found = []
    for settings in ("", "rail_only = true\n"):
        path = write(tmp_path, settings + RAIL, plan)
        one = simulate_job(load_scenario(path)).candidate
        found.append((one.planned.iteration_time, one.simulated.iteration_time))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "table", ["rail_only = true" + ONE_RAIL_SWITCH, "rail_only = true" + RAIL]
)
def test_rail_only_networks_are_described_and_drawn(tmp_path, capsys, table):
    path = str(write(tmp_path, table))
    assert main(["topology", path, "--output", str(tmp_path / "rails.svg")]) == 0
    assert "rail unit" in capsys.readouterr().out
    text = (tmp_path / "rails.svg").read_text(encoding="utf-8")
    assert text.startswith("<?xml")
