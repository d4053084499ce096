"""Systems: one word for the devices and the network, and a job in a few words."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.cli import main
from nestsim.scenario.hardware.prices import published_prices
from nestsim.scenario.hardware.systems import load_system, systems
from nestsim.scenario.load import Scenario, load_scenario
from nestsim.scenario.one_line import (
    LEAST_SHARE,
    MOST_SEQUENCES,
    TOKENS,
    scenario_of,
    usual_batch,
)
from topologies import InputError
from topologies.accelerators import accelerator_names, load_accelerator
from topologies.builders import build_network

ROOT = Path(__file__).parents[3]

MODEL = {"name": "llama3-8b", "num_layers": 2}


def scenario(system, num_devices, **cluster):
    return Scenario.from_dict(
        {
            "name": "job",
            "model": MODEL,
            "training": {"global_batch_size": 1024},
            "cluster": {"system": system, "num_devices": num_devices, **cluster},
        }
    )


def sizes(system):
    """Return numbers of devices that a system has."""
    if system.slices:
        counts = []
        for shape in system.slices[:6]:
            count = 1
            for length in shape:
                count *= length
            counts.append(count)
        return counts
    if system.adapter is None and system.node_adapter is None:
        return [1, 2, system.devices]
    return [1, system.devices, 2 * system.devices, 12 * system.devices]


def test_systems_have_as_many_devices_as_are_asked_for_and_links_of_data_sheets():
    assert len(systems()) > 30
    for name, system in systems().items():
        assert system.accelerator in accelerator_names()
        device = load_accelerator(system.accelerator)
        for number in sizes(system):
            loaded = scenario(name, number)
            network = build_network(loaded.network_spec)
            assert network.num_devices == number, name
            assert loaded.accelerator.name == system.accelerator
            if number > 1 and not system.slices:
                inside = network.links.bandwidth[network.links.level == 0].max()
                full = system.link or device.interconnect_bandwidth
                assert 0.1 * full < inside <= full, name


def test_a_torus_has_all_ports_of_its_devices():
    for name, number, ports in (("tpu-v5p", 64, 6), ("tpu-v5e", 256, 4)):
        network = build_network(scenario(name, number).network_spec)
        leaving = network.links.source == 0
        assert leaving.sum() == ports
    # Below a cube of 4 x 4 x 4 nothing wraps around: a corner has three neighbours.
    network = build_network(scenario("tpu-v5p", 32).network_spec)
    assert (network.links.source == 0).sum() == 3


@pytest.mark.parametrize(
    ("system", "number", "below"),
    [("gb200-nvl72", 256, 64), ("gb200-nvl72", 72, 72), ("gb200-nvl72", 144, 72)],
)
def test_jobs_take_whole_trays_of_each_rack(system, number, below):
    network = build_network(scenario(system, number).network_spec)
    assert network.block_sizes[0] == below


def test_what_the_scenario_says_beside_a_system_counts():
    slower = {"network": {"nvls": True}, "accelerator": "h200"}
    loaded = scenario("dgx-h100", 64, **slower)
    assert loaded.accelerator.name == "h200"
    assert loaded.network_spec.nvls
    assert loaded.network_spec.num_devices == 64
    other = {
        "kind": "torus",
        "dimensions": [8, 8],
        "bandwidth": "50 GB/s",
        "latency": "1 us",
    }
    assert scenario("dgx-h100", 64, network=other).network_spec.kind == "torus"


@pytest.mark.parametrize(
    ("cluster", "where", "words"),
    [
        ({"system": "dgx-h10", "num_devices": 64}, "cluster.system", '"dgx-h100"'),
        ({"system": "dgx-h100"}, "cluster.num_devices", "missing"),
        ({"system": "dgx-h100", "num_devices": 12}, "cluster.num_devices", "of 8"),
        ({"system": "tpu-v5e", "num_devices": 48}, "cluster.num_devices", "slice"),
        (
            {"system": "workstation-4090", "num_devices": 16},
            "cluster.num_devices",
            "1 to 8",
        ),
    ],
)
def test_wrong_systems_end_in_a_sentence(cluster, where, words):
    document = {"model": MODEL, "training": {"global_batch_size": 64}}
    with pytest.raises(InputError) as caught:
        Scenario.from_dict({"name": "x", **document, "cluster": cluster})
    assert where in str(caught.value)
    assert words in str(caught.value)


@given(st.integers(1, 2**20), st.sampled_from([512, 2048, 4096, 8192, 131_072]))
def test_usual_batches_divide_among_devices_and_have_millions_of_tokens(number, length):
    batch = usual_batch(number, length)
    odd = number // (number & -number)
    assert batch % odd == 0
    assert (batch // odd).bit_count() == 1
    wanted = min(TOKENS / length, MOST_SEQUENCES * number)
    assert batch >= max(wanted, number / LEAST_SHARE)
    assert batch == odd or batch < 2 * max(wanted + 1, number / LEAST_SHARE + 1)


def test_a_few_words_are_a_scenario_that_can_be_saved(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--model", "llama3-8b", "--gpus", "2", "--system", "workstation-l40s"]
    words += ["--framework", "fsdp", "--seq", "1024", "--batch", "8"]
    assert main(["memory", *words, "--save", "saved.toml", "--json", "-q"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert main(["memory", "saved.toml", "--json", "-q"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert answer == again
    made = scenario_of(
        *("llama3-8b", 2, "workstation-l40s"),
        framework="fsdp",
        batch=8,
        sequence_length=1024,
    )
    assert made.text == (tmp_path / "saved.toml").read_bytes()
    assert load_system("tpu-v5p").framework == "maxtext"


def test_a_price_of_a_list_stands_in_the_scenario_with_its_day(tmp_path):
    words = ("llama3-8b", 16, "aws-p5")
    made = scenario_of(*words, prices="published")
    assert made.cost.device_hour == pytest.approx(55.04 / 8 / 3600)
    assert "read on 2026-11-09; https://" in made.text.decode()
    assert scenario_of(*words).cost is None
    other = tmp_path / "prices.toml"
    other.write_text('[aws-p5]\ndevice_hour = "2 EUR/h"\n')
    assert scenario_of(*words, prices=other).cost.currency == "EUR"
    with pytest.raises(InputError, match=r"one of aws-p5\n"):
        scenario_of("llama3-8b", 16, "dgx-h100", prices=other)
    other.write_text('[aws-p5]\ndevice_hour = "2 EUR"\n')
    with pytest.raises(InputError, match=r"prices.toml: aws-p5.device_hour"):
        scenario_of(*words, prices=other)
    assert set(published_prices()) < set(systems())
    for price in published_prices().values():
        assert price.read
        assert price.source.startswith("https://")


def test_a_module_is_a_model_too(tmp_path):
    """What its file says is traced, wherever the scenario is written."""
    module = ROOT / "scenarios" / "my_model.py"
    made = scenario_of(
        f"{module}:build", 8, "dgx-a100", sequence_length=2048, path=tmp_path / "x.toml"
    )
    written = load_scenario(ROOT / "scenarios" / "custom_module.toml")
    assert made.spec == written.spec
    assert made.name.startswith("my_model on 8")
    with pytest.raises(InputError, match="--seq: is missing"):
        scenario_of(f"{module}:build", 8, "dgx-a100")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a scenario file, or --model"),
        (["--model", "llama3-8b"], "--gpus"),
        (["file.toml", "--model", "llama3-8b"], "either a scenario file"),
        (["--model", "llama3-8b", "--gpus", "8", "--system", "dgx"], "unknown system"),
        (["--model", "lama", "--gpus", "8", "--system", "dgx-h100"], "model.name"),
    ],
)
def test_too_few_words_end_in_a_sentence(words, message, capsys):
    for command in ("run", "memory"):
        assert main([command, *words, "-q"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
