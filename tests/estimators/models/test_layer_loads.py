"""Files of the tokens that each expert of each layer got."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import nestsim
from estimators.models.layer_loads import LayerLoads, layer_loads
from nestsim.features.sweep.scenario_task import FILE_SETTINGS
from nestsim.scenario.load import Scenario, load_scenario
from tests import failures
from topologies.errors import InputError

ROWS = "layer,expert,tokens\n" + "".join(
    f"{layer},{expert},{10 + layer * expert}\n"
    for layer in (1, 0)
    for expert in range(4)
)
MODEL = {
    "family": "mixtral",
    "num_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "sequence_length": 512,
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_routing": "measured",
    "moe_routing_file": "loads.csv",
}


def read(folder: Path, text: str) -> LayerLoads:
    (folder / "loads.csv").write_text(text)
    loads = layer_loads(folder, "loads.csv")
    assert loads is not None
    return loads


def job(folder: Path, **model: Any) -> Scenario:
    document = {
        "name": "uneven layers",
        "model": {**MODEL, **model},
        "training": {"global_batch_size": 8},
        "software": {"preset": "ideal"},
        "cluster": {
            "accelerator": "h100-sxm",
            "num_devices": 4,
            "network": {
                "kind": "fat-tree",
                "nic": "device",
                "levels": [
                    {
                        "name": "node",
                        "fan_out": 4,
                        "bandwidth": "450 GB/s",
                        "latency": "500 ns",
                    }
                ],
            },
        },
        "plan": {"expert_model_parallel_size": 4, "micro_batch_size": 1},
    }
    return Scenario.from_dict(document, folder / "scenario.toml")


def test_rows_come_in_any_order_and_columns_too(tmp_path: Path) -> None:
    loads = read(tmp_path, ROWS)
    assert loads == LayerLoads((0, 1), ((10.0,) * 4, (10.0, 11.0, 12.0, 13.0)))
    turned = "tokens, layer ,expert\n\n" + "".join(
        f"{tokens},{layer},{expert}\n"
        for layer, expert, tokens in (row.split(",") for row in ROWS.split()[1:])
    )
    assert read(tmp_path, turned) == loads
    assert layer_loads(tmp_path, None) is None


def test_equal_loads_have_one_hash_wherever_they_come_from(tmp_path: Path) -> None:
    loads = read(tmp_path, ROWS)
    again = pickle.loads(pickle.dumps(loads))
    assert again == loads
    assert hash(again) == hash(loads) == hash(read(tmp_path, ROWS))
    assert loads != LayerLoads((0, 1), ((1.0,) * 4, (10.0, 11.0, 12.0, 13.0)))


@failures.over(
    ["text", "words"],
    [
        ("", "columns are missing"),
        ("layer,expert\n0,0\n", "columns are missing"),
        ("layer,expert,tokens\n", "has no loads"),
        ("layer,expert,tokens\n0,0\n", "cannot be"),
        ("layer,expert,tokens\n0,0,1\n0,0,1\n", "line 3: is there twice"),
        ("layer,expert,tokens\n-1,0,1\n", "line 2.layer: is no number of one"),
        ("layer,expert,tokens\n0,1000001,1\n", "line 2.expert: is no number of one"),
        ("layer,expert,tokens\n0,0,-1\n", "line 2.tokens: cannot be"),
        ("layer,expert,tokens\n0,0,nan\n", "line 2.tokens: cannot be"),
        ("layer,expert,tokens\n0,0,many\n", "line 2.tokens: cannot be"),
        ("layer,expert,tokens\n0,0,1\n0,2,1\n", "expert 1 of layer 0 is missing"),
        ("layer,expert,tokens\n0,0,1\n0,1,1\n1,1,1\n", "expert 0 of layer 1 is"),
        ('layer,expert,tokens\n0,0,"1\n', "not CSV"),
    ],
)
def test_a_file_that_does_not_say_all_of_it_once_is_refused(
    text: str, words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path_factory.mktemp("loads"), text)
    message = str(caught.value)
    assert message.startswith("moe_routing_file: loads.csv: ")
    assert words in message


@failures.over(
    ["model", "words"],
    [
        ({"moe_routing": "random"}, 'only moe_routing = "measured" reads'),
        ({"moe_expert_loads": [1, 1, 1, 1]}, 'only moe_routing = "measured" reads'),
        ({"num_moe_experts": 8}, "has not as many experts as the model"),
        ({"num_layers": 3}, "layer 2 has experts, and no loads"),
        ({"num_layers": 1}, "layer 1 has no experts"),
        ({"moe_layer_freq": [0, 1]}, "layer 0 has no experts"),
        ({"moe_router_topk": 4}, "more than each token could bring"),
        ({"moe_routing_file": "other.csv"}, "no such file"),
    ],
)
def test_loads_that_are_not_the_model_s_are_refused(
    model: dict[str, Any],
    words: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("loads")
    (folder / "loads.csv").write_text(ROWS)
    with pytest.raises(InputError, match="moe_routing_file") as caught:
        job(folder, **model)
    assert words in str(caught.value)


def test_a_scenario_names_the_file_and_is_another_with_other_loads(
    tmp_path: Path,
) -> None:
    (tmp_path / "loads.csv").write_text(ROWS)
    scenario = job(tmp_path)
    assert scenario.files()[1:] == (tmp_path / "loads.csv",)
    assert scenario.named_files() == {"model.moe_routing_file": "loads.csv"}
    assert "model.moe_routing_file" in FILE_SETTINGS
    (tmp_path / "loads.csv").write_text(ROWS.replace("1,3,13", "1,3,14"))
    assert job(tmp_path).content() != scenario.content()


def test_a_known_model_at_another_depth_has_its_own_layers(tmp_path: Path) -> None:
    rows = [
        f"{layer},{expert},{expert + 1}" for layer in (3, 4) for expert in range(256)
    ]
    (tmp_path / "loads.csv").write_text("\n".join(["layer,expert,tokens", *rows]))
    path = tmp_path / "scenario.toml"
    text = job_text().format(layers=5)
    path.write_text(text)
    loads = load_scenario(path).spec.moe_layer_loads
    assert loads is not None
    assert loads.layers == load_scenario(path).spec.expert_blocks == (3, 4)
    path.write_text(text.replace("num_layers = 5", "num_layers = 6"))
    with pytest.raises(InputError, match="layer 5 has experts, and no loads"):
        load_scenario(path)


def job_text() -> str:
    """Return DeepSeek-V3, whose first three blocks have no experts."""
    return """
name = "deep"
[model]
name = "deepseek-v3"
num_layers = {layers}
mtp_num_layers = 0
moe_routing = "measured"
moe_routing_file = "loads.csv"
[training]
global_batch_size = 8
[software]
preset = "ideal"
[cluster]
accelerator = "h100-sxm"
num_devices = 8
[cluster.network]
kind = "fat-tree"
nic = "device"
levels = [{{ name = "node", fan_out = 8, bandwidth = "450 GB/s", latency = "1 us" }}]
"""


def test_reports_say_how_far_layers_are_apart(tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text(
        "layer,expert,tokens\n"
        + "".join(
            f"{layer},{expert},{tokens}\n"
            for layer, row in enumerate([(10, 10, 10, 10), (16, 12, 8, 4)])
            for expert, tokens in enumerate(row)
        )
    )
    best = nestsim.simulate(job(tmp_path)).best
    assert best is not None
    text = " ".join(best.replay.notes)
    assert "compute 1.3 times an even share of the tokens" in text
    assert "Layers have 1 to 1.6 times, of which that is the mean" in text
    assert "differs from it by -23% to +23% at most" in text
    assert "They keep 1.6 times in all." in text
