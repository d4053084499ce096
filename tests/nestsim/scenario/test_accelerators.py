"""Devices of a scenario: every one of the catalogue runs, and own ones are read."""

import json

import pytest

import nestsim
from nestsim import InputError, Scenario
from nestsim.evaluate.cluster import cluster_network
from tests import failures
from topologies.accelerators import accelerator_names, load_accelerator, usual_host

LEVEL = {"name": "node", "fan_out": 8, "bandwidth": "100 GB/s", "latency": "1 us"}
BASE = {
    "name": "tiny",
    "model": {
        "family": "gpt",
        "num_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "vocab_size": 1024,
        "sequence_length": 128,
    },
    "training": {"global_batch_size": 16},
    "software": {"preset": "ideal"},
    "search": {"micro_batch_sizes": [2]},
    "cluster": {
        "accelerator": "h100-sxm",
        "network": {"kind": "fat-tree", "levels": [LEVEL]},
    },
}
OWN = {
    "name": "mine",
    "peak_flops": {"bf16": "100 TFLOP/s"},
    "memory_bytes": "32 GB",
    "memory_bandwidth": "1 TB/s",
    "num_compute_units": 64,
    "interconnect_bandwidth": "100 GB/s",
}


def scenario(accelerator, **training):
    precision = training.pop("precision", "bf16")
    return Scenario.from_dict(BASE).replace(
        {
            "cluster.accelerator": accelerator,
            "training": {"global_batch_size": 16, "precision": precision, **training},
        }
    )


def planned(job):
    return json.loads(nestsim.plan(job).to_json())


def accelerator_of(table):
    return scenario(table).accelerator


def assumed(accelerator, **training):
    return planned(scenario(accelerator, **training))["assumptions"]


@failures.over("name", accelerator_names())
def test_a_tiny_model_is_planned_on_eight_of_each(name):
    device = load_accelerator(name)
    precision = "bf16" if "bf16" in device.peak_flops else "fp16"
    if "bf16" not in device.peak_flops and "fp16" not in device.peak_flops:
        precision = "fp32"
    job = scenario(name, precision=precision)
    assert cluster_network(job).num_devices == 8
    assert planned(job)["plans"][0]["planned"]["iteration_time_s"] > 0.0


def test_a_device_like_another_has_its_values_but_for_some():
    base = load_accelerator("h100-sxm")
    device = accelerator_of(
        {
            "like": "h100-sxm",
            "name": "h100-96gb",
            "memory": "96 GB",
            "peak_flops": {"bf16": "800 TFLOP/s"},
        }
    )
    assert (device.name, device.like) == ("h100-96gb", "h100-sxm")
    assert device.memory_bytes == 96e9
    assert device.peak_flops == {**base.peak_flops, "bf16": 800e12}
    assert device.memory_bandwidth == base.memory_bandwidth
    assert device.constants_name == "h100-sxm"
    assert device.overrides == ("memory_bytes", "peak_flops")
    assert "memory_bytes" not in device.sources


def test_a_device_that_only_another_is_like_is_that_one():
    device = accelerator_of({"like": "h800"})
    base = load_accelerator("h800")
    assert device.name == "h800"
    assert device.constants_name == "h100-sxm"
    assert device.overrides == ()
    assert device.peak_flops == base.peak_flops


def test_memory_may_be_written_as_a_whole_table_has_it():
    device = accelerator_of({"like": "h100-sxm", "memory_bytes": "96 GB"})
    assert device.memory_bytes == 96e9


def test_a_device_like_another_stands_in_that_ones_server():
    job = scenario({"like": "gb200", "name": "mine"})
    assert job.host == usual_host("gb200")


def test_what_was_changed_is_said():
    table = {"like": "h100-sxm", "name": "mine", "memory": "96 GB"}
    times = assumed(table)["operator_times"]
    assert times["like"] == "h100-sxm"
    assert times["overrides"] == ["memory_bytes"]
    assert times["reached_as_on"] == "h100-sxm"
    assert assumed("h20")["operator_times"]["reached_as_on"] == "h100-sxm"
    assert "reached_as_on" not in assumed("h100-sxm")["operator_times"]


def test_a_device_that_is_no_other_is_refused_with_the_nearest():
    with pytest.raises(InputError) as caught:
        accelerator_of({"like": "h100-sxn"})
    assert caught.value.where == "scenario.toml: cluster.accelerator.like"
    assert "h100-sxm" in caught.value.hint


def test_a_key_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(InputError) as caught:
        accelerator_of({"like": "h100-sxm", "memory_bandwith": "3 TB/s"})
    assert caught.value.where == "scenario.toml: cluster.accelerator.memory_bandwith"
    assert "memory_bandwidth" in caught.value.hint


def test_all_missing_keys_are_reported_at_once():
    with pytest.raises(InputError) as caught:
        accelerator_of({"name": "mine"})
    missing = [caught.value, *caught.value.others]
    assert {one.where.rpartition(".")[2] for one in missing} == set(OWN) - {"name"}
    assert {one.problem for one in missing} == {"setting is missing"}


@failures.over("left_out", sorted(set(OWN)))
def test_a_whole_table_needs_every_key(left_out):
    with pytest.raises(InputError, match="setting is missing") as caught:
        accelerator_of({key: one for key, one in OWN.items() if key != left_out})
    assert caught.value.where == f"scenario.toml: cluster.accelerator.{left_out}"
    assert accelerator_of(OWN).memory_bytes == 32e9


def memory_of(**training):
    job = Scenario.from_dict(BASE).replace(
        {
            "cluster.accelerator": "b200",
            "training": {"global_batch_size": 16, **training},
            "search": {
                "micro_batch_sizes": [2],
                "zero_stages": [0],
                "tensor_model_parallel_sizes": [1],
                "pipeline_model_parallel_sizes": [1],
            },
        }
    )
    return planned(job)


NARROW = {"matmul_precision": "fp8", "fp8_param_gather": True}


@failures.over(
    ("training", "where"),
    [
        ({"fp8_param_gather": True}, "fp8_param_gather"),
        ({**NARROW, "weights_in_fp32": True}, "fp8_param_gather"),
        ({**NARROW, "optimizer": "adam8bit"}, "optimizer"),
        ({"optimizer": "adam-bf16", "exp_avg_dtype": "fp8"}, "exp_avg_dtype"),
        ({"optimizer": "sgd", "exp_avg_sq_dtype": "fp8"}, "exp_avg_sq_dtype"),
        ({"weights_in_fp32": True, "main_params_dtype": "fp16"}, "main_params_dtype"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(training, where):
    with pytest.raises(InputError) as caught:
        scenario("b200", **training)
    assert caught.value.where == f"scenario.toml: training.{where}"


@pytest.mark.parametrize("narrow", ["mxfp8", "nvfp4"])
def test_formats_that_a_device_has_no_units_for_are_refused(narrow):
    with pytest.raises(InputError) as caught:
        scenario("h100-sxm", matmul_precision=narrow)
    assert caught.value.where == "scenario.toml: training.matmul_precision"
    assert narrow not in caught.value.expected
    assert scenario("b200", matmul_precision=narrow).training.matmul_precision


def test_memory_wire_and_report_read_the_same_bytes():
    plain = memory_of()
    narrow = memory_of(
        matmul_precision="mxfp8", exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16"
    )
    each = narrow["assumptions"]["bytes_per_parameter"]
    assert each["optimizer"] == 8
    parts = [
        one["plans"][0]["planned"]["stages"][0]["memory_bytes"]
        for one in (plain, narrow)
    ]
    assert parts[1]["optimizer"] == pytest.approx(parts[0]["optimizer"] * 8 / 12)
    assert parts[1]["weights"] == parts[0]["weights"]


def test_reports_state_the_mean_of_matrices_and_the_rest():
    assumed = memory_of(optimizer="muon")["assumptions"]
    assert 8 < assumed["bytes_per_parameter"]["optimizer"] < 12


def test_hosts_do_not_orthogonalise():
    changes = {
        "training.optimizer": "muon",
        "search.offload": ["none", "optimizer"],
    }
    with pytest.raises(InputError) as caught:
        Scenario.from_dict(BASE).replace(changes)
    assert caught.value.where == "scenario.toml: training.optimizer"
    plan = {"micro_batch_size": 2, "data_parallel_size": 8}
    given = {"training.optimizer": "muon", "plan": {**plan, "offload_optimizer": 1.0}}
    with pytest.raises(InputError):
        Scenario.from_dict(BASE).replace(given)
    assert Scenario.from_dict(BASE).replace({**given, "plan": plan}).plan is not None
    changes["software.cpu_adam"] = False
    assert Scenario.from_dict(BASE).replace(changes).training.optimizer == "muon"


def test_muon_takes_longer_at_the_end_of_a_step_and_less_memory():
    adam, muon = memory_of(), memory_of(optimizer="muon")
    stages = [one["plans"][0]["planned"]["stages"][0] for one in (adam, muon)]
    assert stages[1]["optimizer_s"] > stages[0]["optimizer_s"]
    held = [one["memory_bytes"]["optimizer"] for one in stages]
    each = muon["assumptions"]["bytes_per_parameter"]["optimizer"]
    assert held[1] == pytest.approx(held[0] * each / 12)


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "muon"},
        {"matmul_precision": "mxfp8", "fp8_param_gather": True},
        {"optimizer": "adam8bit", "gather_precision": "fp8"},
    ],
)
def test_the_search_is_exact_with_them(training):
    job = scenario("b200", **training).replace(
        {
            "search.objective": "planned",
            "search.tensor_model_parallel_sizes": [1, 2],
            "search.pipeline_model_parallel_sizes": [1, 2],
            "search.recompute": ["none"],
        }
    )
    every = job.replace({"search.planner": "exhaustive"})
    found = [planned(one)["plans"][0]["planned"] for one in (job, every)]
    assert found[0]["iteration_time_s"] == found[1]["iteration_time_s"]
