"""Mist's configurations as scenarios, and what is refused of them."""

import copy

import pytest
import yaml

from nestsim.cli import main
from nestsim.evaluate.cluster import job_network
from nestsim.scenario.load import load_scenario
from planner.rivals.mist.cluster import (
    GATHER,
    GIGABYTE,
    Mesh,
    cluster_mesh,
    device_rates,
)
from planner.step.plan import NO_OFFLOAD, Offload
from tests import failures
from topologies import InputError

PLAIN = [0, 0, 1, 0.0, 0.0, 0.0, 0.0]


def configuration() -> dict:
    """Return GPT-1.3B on two L4, two stages, with what Mist measured of such cards."""
    return {
        "seed": None,
        "training": {
            "max_sequence_length": 2048,
            "vocab_size": 50304,
            "global_batch_size": 32,
            "params_dtype": "float16",
            "exec_dtype": "float16",
            "optimizer_dtype": "float32",
            "optimizer_name": "adamw",
        },
        "hardware": {
            "gpu_type": None,
            "num_nodes": 1,
            "num_gpus_per_node": 2,
            "gpu_gpu_comm_params": [
                *(4.5, 0.0, 2.964, 0.0001, 4.1635, 0.0004, 4.6832, 0.0003),
                *(0.4895, 0.0045, 0.9791, 0.0076, 1.7183, 0.0, 3.3215, 0.0013),
                *(0.4609, 0.0102, 0.9195, 0.0008, 1.6759, 0.0045, 2.9659, 0.003),
                *(4.5, 0.0, 4.5, 0.0, 4.5, 0.0, 4.5, 0.0),
            ],
            "cpu_gpu_comm_params": [5.7546, 0.0004],
            "gpu_cpu_comm_params": [6.1252, 0.0004],
            "interference_model_params": [1.0] * 28,
            "nvlink": False,
            "memory_capacity": 22.488,
        },
        "strategy": {
            "enabled": True,
            "layer_partitions": [13, 11],
            "device_assignment": [[1, 1], [1, 1]],
            "gradient_checkpointing": [5, 0],
            "gradient_accumulation_steps": 16,
            "stage_strategies": [[2, 1, 1, *PLAIN], [2, 1, 1, *PLAIN]],
            "pre_post_strategy": "preset",
            "pre_post_strategy_array": [2, 1, 1, *PLAIN],
        },
        "tuning": {"enabled": False},
        "disable_tp_tuning": True,
        "model": {
            "name": "gpt2-1.3b",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_heads_kv": None,
            "vocab_size": 50304,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": False,
            "encoder_attn_mask_type": "causal",
            "normalization": "layernorm",
            "activation_function": "gelu_fast",
            "mlp_type": "mlp",
            "use_flash_attn": True,
        },
    }


def changed(path: str, value: object) -> dict:
    """Return the configuration with another value somewhere."""
    document = copy.deepcopy(configuration())
    *outer, last = path.split(".")
    table = document
    for key in outer:
        table = table[key]
    table[last] = value
    return document


@pytest.fixture
def load(tmp_path):
    """Return what reads a configuration as a scenario."""

    def read(document):
        file = tmp_path / "mist.yaml"
        text = document if isinstance(document, str) else yaml.safe_dump(document)
        file.write_text(text, encoding="utf-8")
        return load_scenario(file)

    return read


def test_the_job_is_the_files(load):
    scenario = load(configuration())
    assert scenario.name == "gpt2-1.3b (Mist)"
    spec = scenario.spec
    assert (spec.family, spec.num_layers, spec.hidden_size) == ("gpt", 24, 2048)
    assert (spec.sequence_length, spec.vocab_size) == (2048, 50304)
    assert spec.attention_implementation == "flash"
    assert not spec.add_bias_linear
    assert not spec.tie_word_embeddings
    assert scenario.training.global_batch_size == 32
    assert scenario.training.precision == "fp16"
    assert scenario.accelerator.name == "l4"
    assert scenario.software_preset == "mist"


def test_llama_is_told_by_its_norm_and_its_gate(load):
    document = changed("model.normalization", "rmsnorm")
    document["model"] |= {
        "mlp_type": "gated_mlp",
        "position_embedding_type": "rotary",
        "num_heads_kv": 4,
        "use_flash_attn": False,
    }
    spec = load(document).spec
    assert spec.family == "llama"
    assert spec.position_embedding_type == "rope"
    assert spec.num_query_groups == 4
    assert spec.attention_implementation == "plain"


def test_the_plan_is_the_strategy(load):
    plan = load(configuration()).plan
    assert plan.micro_batch_size == 2
    assert plan.pipeline_model_parallel_size == 2
    assert plan.data_parallel_size == plan.tensor_model_parallel_size == 1
    assert plan.num_layers_per_pipeline_stage == (13, 11)
    assert plan.recompute == ("full", "none")
    assert plan.recompute_num_layers_by_stage() == (5, None)
    # Without replicas there is nothing to share.
    assert plan.zero_stage == (0, 0)
    assert not any(map(any, plan.offload_by_stage()))


def test_shards_and_fractions_are_those_of_each_stage(load):
    document = changed("hardware.num_gpus_per_node", 4)
    document["strategy"] |= {
        "device_assignment": [[1, 2], [1, 2]],
        "gradient_accumulation_steps": 8,
        "gradient_checkpointing": [0, 0],
        "stage_strategies": [
            [2, 2, 1, 1, 1, 1, 0.25, 0.5, 0.75, 1.0],
            [2, 2, 1, 0, 1, 1, 0.0, 0.0, 0.125, 0.0],
        ],
        "pre_post_strategy_array": [2, 2, 1, *PLAIN],
    }
    plan = load(document).plan
    assert plan.zero_stage == (3, 2)
    assert [tuple(part) for part in plan.offload_by_stage()] == [
        (0.25, 0.5, 0.75, 1.0),
        (0.0, 0.0, 0.125, 0.0),
    ]
    assert plan.recompute_num_layers is None


def test_links_are_those_that_were_measured(load):
    scenario = load(configuration())
    network = job_network(scenario)
    assert cluster_mesh(network) == Mesh(1, 2)
    rates = device_rates(network)
    # 1 GB over 2.964 GB/s, half of it, and 0.1 ms: Mist's time of a gather.
    expected = 1.0 / 2.964 / 2 + 1e-4
    assert rates.links.collective_time(GIGABYTE, Mesh(1, 2), GATHER) == pytest.approx(
        expected, rel=1e-6
    )
    assert rates.host.to_device == pytest.approx(5.7546 * GIGABYTE)
    assert rates.host.to_host == pytest.approx(6.1252 * GIGABYTE)
    assert rates.host.to_device_bias == pytest.approx(0.0004)


def test_nodes_have_a_level_of_their_own(load):
    document = changed("hardware.num_nodes", 2)
    document["strategy"]["enabled"] = False
    scenario = load(document)
    assert scenario.plan is None
    network = job_network(scenario)
    assert network.num_devices == 4
    assert network.levels[1].bandwidth == pytest.approx(0.4895 * GIGABYTE)


def test_references_inside_the_file_are_followed(load):
    document = changed("strategy.layer_partitions", ["${model.num_hidden_layers}"])
    document["strategy"] |= {
        "device_assignment": [[1, 2]],
        "gradient_checkpointing": ["${model.num_hidden_layers}"],
        "gradient_accumulation_steps": 8,
        "stage_strategies": [[2, 2, 1, *PLAIN]],
        "pre_post_strategy_array": None,
    }
    plan = load(document).plan
    assert plan.num_layers_per_pipeline_stage == (24,)
    assert plan.recompute_num_layers_by_stage() == (24,)


def test_the_tuners_limits_are_the_searchs(load):
    document = changed("tuning.enabled", True)
    document["tuning"] |= {
        "zero_2_and_3_enabled": False,
        "activation_checkpointing_tuning_enabled": False,
        "state_offloading_enabled": False,
    }
    search = load(document).search
    assert search.offload == (NO_OFFLOAD, Offload(activations=1.0))
    assert search.tensor_model_parallel_sizes == (1,)
    assert search.zero_stages == (0, 1)
    assert search.recompute == ("full",)
    assert load(configuration()).search.tensor_model_parallel_sizes is None


def test_a_scenario_of_it_is_written_as_toml(load):
    scenario = load(configuration())
    again = scenario.replace({"training.global_batch_size": 64})
    assert again.training.global_batch_size == 64
    assert scenario.document()["plan"]["num_layers_per_pipeline_stage"] == [13, 11]


@failures.over(
    ("path", "value", "where"),
    [
        ("hardware.memory_capacty", 3, "hardware.memory_capacty"),
        ("hardware.memory_capacity", 23.0, "hardware.memory_capacity"),
        ("hardware.gpu_gpu_comm_params", [1.0] * 6, "hardware.gpu_gpu_comm_params"),
        ("defaults", ["/model/gpt2/7b"], "defaults"),
        ("tuning.enabled", "ftrue", "tuning.enabled"),
        ("model.parallel_block", True, "model.parallel_block"),
        ("model.num_experts", 8, "model.num_experts"),
        ("model.encoder_attn_mask_type", "padding", "model.encoder_attn_mask_type"),
        ("model.hidden_size", "big", "model.hidden_size"),
        ("model.qkv_proj_bias", 1, "model.qkv_proj_bias"),
        ("training.params_dtype", "float8", "training.params_dtype"),
        ("training.exec_dtype", "float32", "training.exec_dtype"),
        ("strategy.layer_partitions", [24], "strategy.layer_partitions"),
        (
            "strategy.device_assignment",
            [[1, 2], [1, 2]],
            "strategy.device_assignment",
        ),
        (
            "strategy.stage_strategies",
            [[2, 1, 1, *PLAIN], [1, 1, 1, *PLAIN]],
            "strategy.stage_strategies",
        ),
        (
            "strategy.gradient_accumulation_steps",
            8,
            "strategy.gradient_accumulation_steps",
        ),
        (
            "strategy.pre_post_strategy_array",
            [2, 2, 1, *PLAIN],
            "strategy.pre_post_strategy_array",
        ),
    ],
)
def test_what_no_scenario_can_say_is_refused_with_file_and_setting(
    load, path, value, where
):
    with pytest.raises(InputError) as caught:
        load(changed(path, value))
    first, _, setting = caught.value.where.partition(": ")
    assert first.endswith("mist.yaml")
    assert setting.startswith(where)


@pytest.mark.parametrize("section", ["training", "hardware", "model"])
def test_a_missing_section_is_named(load, section):
    document = configuration()
    del document[section]
    with pytest.raises(InputError) as caught:
        load(document)
    assert section in caught.value.where


@failures.over(
    "text",
    [
        "a: [1",
        "a: &x [1]\nb: *x",
        "[" * 100,
        "- " * 2000 + "1",
        "!!python/object/apply:os.system ['true']",
        "a: 2001-13-45",
        "just words",
        "",
    ],
)
def test_what_is_no_configuration_ends_in_a_sentence(load, text):
    with pytest.raises(InputError) as caught:
        load(text)
    assert "mist.yaml" in caught.value.where
    assert caught.value.expected


def test_commands_read_it(tmp_path, capsys):
    file = tmp_path / "mist.yaml"
    file.write_text(yaml.safe_dump(configuration()), encoding="utf-8")
    assert main(["plan", str(file), "-q"]) == 0
    assert "gpt2-1.3b (Mist)" in capsys.readouterr().out


def test_a_wrong_setting_ends_with_status_2(tmp_path, capsys):
    file = tmp_path / "mist.yaml"
    text = yaml.safe_dump(changed("model.parallel_block", True))
    file.write_text(text, encoding="utf-8")
    assert main(["plan", str(file), "-q"]) == 2
    assert "mist.yaml: model.parallel_block" in capsys.readouterr().err
