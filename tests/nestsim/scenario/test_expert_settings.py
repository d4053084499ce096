"""Models with experts in scenarios: which blocks have them, depths, and a whole job."""

from pathlib import Path

import pytest

from estimators.models.library import pattern_by_frequency
from nestsim.evaluate.job import run_job
from nestsim.scenario import load_scenario
from tests import failures
from topologies.errors import InputError

SMALL = """
name = "small"

[model]
family = "mixtral"
num_layers = 4
hidden_size = 1024
num_attention_heads = 16
vocab_size = 32000
sequence_length = 1024
ffn_hidden_size = 4096
kv_channels = 64
kv_lora_rank = 256
qk_pos_emb_head_dim = 32
num_moe_experts = 16
moe_router_topk = 4
moe_ffn_hidden_size = 512
moe_shared_expert_intermediate_size = 512
moe_layer_freq = "([0]*1+[1]*3)"
moe_router_num_groups = 4
moe_router_group_topk = 2
moe_router_score_function = "sigmoid"
moe_router_enable_expert_bias = true
mtp_num_layers = 1

[software]
preset = "ideal"

[training]
global_batch_size = 32

[cluster]
accelerator = "h100-sxm"
num_devices = 16

[cluster.network]
kind = "rail"
devices_per_node = 4
node_bandwidth = "450 GB/s"
node_latency = "500 ns"
nodes_per_unit = 4
num_units = 1
nic_bandwidth = "400 Gbit/s"
nic_latency = "1 us"
spine_latency = "500 ns"

[search]
micro_batch_sizes = [1]
"""


def dense(pattern: tuple[str, ...]) -> list[int]:
    return [index for index, kind in enumerate(pattern) if kind == "attention+dense"]


def test_a_number_is_the_first_of_so_many_blocks() -> None:
    """Megatron-LM's ``get_moe_layer_pattern``: experts where ``i % N == 0``."""
    assert dense(pattern_by_frequency(3, 6)) == [1, 2, 4, 5]
    assert pattern_by_frequency(1, 6) == ()
    assert pattern_by_frequency(None, 6) == ()


@failures.over(
    "freq", [[0, 0, 1, 1, 1], "[0]*2+[1]*3", "([0]*2 + [1]*3)", "[0,0]+[1,1,1]"]
)
def test_a_list_says_it_for_each_block(freq: list[int] | str) -> None:
    assert dense(pattern_by_frequency(freq, 5)) == [0, 1]


@failures.over("freq", [0, -2, [0, 1], [0, 1, 2], "[0]*2", "3*[0]", "[1]*9999", ""])
def test_other_lists_are_refused(freq: int | list[int] | str) -> None:
    with pytest.raises(InputError, match="moe_layer_freq"):
        pattern_by_frequency(freq, 3)


@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_small_deepseek_is_planned_and_replayed(
    tmp_path: Path, pipeline: int
) -> None:
    """The search's timeline is the replay's, and its optimum is proven."""
    file = tmp_path / "scenario.toml"
    sizes = f"pipeline_model_parallel_sizes = [{pipeline}]\n"
    file.write_text(SMALL + sizes, encoding="utf-8")
    scenario = load_scenario(file)
    result = run_job(scenario)
    assert result.layer_names[-3:] == ("final norm", "mtp 0", "head")
    assert result.chosen is not None
    chosen = result.candidates[result.chosen]
    assert chosen.verdict.kind == "confirmed"
    assert len(chosen.priced.plan.stages) == pipeline
    simulated = chosen.simulated.iteration_time
    assert result.lower_bound <= simulated * (1 + 1e-9)
    assert simulated <= 1.01 * result.lower_bound
