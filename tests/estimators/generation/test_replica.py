"""Steps, caches and memory of one replica: closed forms, limits and refusals."""

from dataclasses import replace

import numpy as np
import pytest

from estimators.generation.caches import STATE_BYTES, Caches
from estimators.generation.engine import EngineSetup
from estimators.generation.forward import ForwardTimes, node_size
from estimators.generation.memory import device_memory, most_sequences, weight_bytes
from estimators.generation.rollout import Replica
from estimators.models.library import load_model
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.generation.published import node, platform
from topologies import InputError, RailSpec, build_network

H100 = platform("h100-sxm")
LLAMA = load_model("llama3-8b")


def times(model=LLAMA, device=H100, **setup):
    return ForwardTimes.of(model, device, node(), EngineSetup(**setup))


def caches(model, device=H100, **setup):
    return Caches.of(model, times(model, device, **setup))


def test_a_step_of_one_token_is_its_weights_at_the_bandwidth():
    engine = times()
    layers, head = engine.layers_time(1), engine.head_time(1)
    # The embedding is looked up, not read.
    read = weight_bytes(engine) - 2 * LLAMA.vocab_size * LLAMA.hidden_size
    least = read / H100.accelerator.memory_bandwidth
    # Kernels of 3 us for norms, rotary positions and activations lie between.
    assert least < layers + head < 1.3 * least + 4 * 32 * 3e-6


def test_a_step_of_many_tokens_is_its_products_at_their_rate():
    engine = times(batched_tokens=16384)
    flops = (
        2
        * 16384
        * 32
        * sum(item.elements for item in trace_model(LLAMA).layers[1].parameters)
    )
    least = flops / H100.accelerator.peak_flops["bf16"]
    assert least < engine.layers_time(16384) < 1.7 * least


def test_more_tokens_never_take_less_time():
    tokens, layers, heads = times(tp=2).tables
    assert tokens[-1] == 8192
    assert np.all(np.diff(tokens) > 0)
    assert np.all(np.diff(layers) >= 0)
    assert np.all(np.diff(heads) >= 0)


def test_narrow_weights_halve_what_decoding_reads():
    plain, narrow = times(), times(dtype="fp8")
    ratio = narrow.layers_time(1) / plain.layers_time(1)
    assert 0.5 < ratio < 0.75
    # The output layer keeps 16 bits.
    assert narrow.head_time(1) == plain.head_time(1)


def test_tensor_parallel_ranks_wait_for_sums_of_their_own():
    alone, eight = times().layers_time(1), times(tp=8).layers_time(1)
    # 64 sums of 8 kB among eight H100, 3.5 us each.
    assert eight > alone / 8 + 64 * 3e-6
    assert eight < alone / 2


def test_a_network_of_small_nodes_makes_sums_slower():
    wide = build_network(
        RailSpec(
            devices_per_node=2,
            node_bandwidth=450e9,
            node_latency=1e-6,
            nic_bandwidth=50e9,
            nic_latency=2e-6,
            spine_latency=2e-6,
            nodes_per_unit=4,
            num_units=1,
        )
    )
    assert (node_size(node()), node_size(wide)) == (8, 2)
    inside = times(tp=8).layers_time(256)
    across = ForwardTimes.of(LLAMA, H100, wide, EngineSetup(tp=8)).layers_time(256)
    # 64 sums of 2 MB, 7/4 of which pass a NIC of 50 GB/s.
    assert across > inside + 64 * 2e6 * 7 / 4 / 50e9 / 2


def test_a_small_batch_wakes_few_experts():
    model, device = load_model("qwen3-235b-a22b"), platform("h200")
    engine = times(model, device, ep=8)
    single, many = engine.layers_time(1), engine.layers_time(256)
    # 8 tokens wake 28 of 128 experts, 2,048 all: 2.3 B weights of 94 layers.
    expert = 3 * model.hidden_size * model.moe_ffn_hidden_size
    asleep = 128 * (1 - 8 / 128) ** 8 / 8
    spared = 94 * 2 * expert * asleep / device.accelerator.memory_bandwidth
    assert many - single > spared


def test_a_model_of_heads_keeps_keys_and_values_of_its_groups():
    # 2 x 8 groups x 128 channels x 2 bytes x 32 layers.
    held = caches(LLAMA)
    assert held.whole_bytes == 131072
    assert (held.window, held.window_bytes, held.state_bytes) == (0, 0, 0)
    assert caches(LLAMA, tp=8).whole_bytes == 131072 / 8
    assert caches(LLAMA, kv_dtype="fp8").whole_bytes == 131072 / 2


def test_groups_are_copied_where_there_are_more_ranks():
    wide = replace(LLAMA, num_query_groups=2)
    assert caches(wide, tp=2).whole_bytes == 16384
    assert caches(wide, tp=8).whole_bytes == 16384


def test_latent_attention_is_not_split():
    model, device = load_model("deepseek-v3"), platform("h200")
    for setup in ({"ep": 8}, {"tp": 8}):
        # 512 + 64 numbers of 2 bytes in 61 layers.
        held = caches(model, device, dtype="fp8", **setup)
        assert held.whole_bytes == 61 * 576 * 2
    # Products of 128 heads over 8 ranks no longer count beside bytes.
    whole = caches(model, device, ep=8, dtype="fp8").step[2]
    split = caches(model, device, tp=8, dtype="fp8").step[2]
    assert split < whole


def test_windows_bound_what_is_kept_and_read():
    held = caches(load_model("gpt-oss-20b"))
    assert held.window == 128
    # Every second of 24 layers, 2 x 8 groups x 64 channels x 2 bytes.
    assert held.whole_bytes == held.window_bytes == 12 * 2048
    assert held.kept(np.array([100.0, 1000.0])).tolist() == [
        *(24 * 2048 * 100, 12 * 2048 * 1128)
    ]


def test_chosen_keys_bound_what_is_read_but_not_what_is_kept():
    held = caches(load_model("deepseek-v3.2"), platform("h200"), tp=8, dtype="fp8")
    assert held.window == 2048
    assert held.window_bytes == 0
    # Latent keys, and those of the indexer: 128 numbers.
    assert held.whole_bytes == 61 * (576 + 128) * 2


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        # 24 and 64 Mamba-2 layers of heads x 64 x state; delta nets 32 x 128 x 128.
        ("nemotron-h-8b", 24 * 128 * 64 * 128),
        ("mamba2-2.7b", 64 * 80 * 64 * 128),
        ("qwen3-next-80b-a3b", 36 * 32 * 128 * 128),
    ],
)
def test_recurrences_keep_a_state_whatever_the_length(name, numbers):
    held = caches(load_model(name), platform("b300"))
    assert held.state_bytes == STATE_BYTES * numbers
    kinds = [kind for kind in held.kinds if kind.state_bytes]
    assert all(kind.per_sequence > 0 and kind.per_key == 0 for kind in kinds)


def test_attention_of_prompts_grows_with_their_square():
    lengths, per_token = caches(LLAMA).mixing
    assert (lengths[0], lengths[-1], per_token[0]) == (1.0, 2.0**17, 0.0)
    assert np.all(np.diff(per_token[7:]) > 0)
    # Twice the time for a token of twice as many, once products are all that counts.
    flops = 4 * 2.0**17 * 4096 * 32 / 2
    least = flops / H100.accelerator.peak_flops["bf16"]
    assert least < per_token[-1] < 2 * least
    assert per_token[-1] == pytest.approx(2 * per_token[-2], rel=0.1)


def test_weights_are_those_of_the_model():
    parameters = trace_model(LLAMA).num_parameters
    assert weight_bytes(times()) == 2 * parameters
    # The vocabulary is padded for eight ranks.
    assert 8 * weight_bytes(times(tp=8)) == pytest.approx(2 * parameters, rel=2e-3)
    halves = weight_bytes(times(dtype="fp8"))
    ends = 2 * 2 * LLAMA.vocab_size * LLAMA.hidden_size
    assert halves == pytest.approx(parameters + ends / 2, rel=1e-3)


def test_what_is_left_holds_sequences():
    engine = times(max_sequences=4096)
    memory = device_memory(LLAMA, engine)
    capacity = H100.accelerator.memory_bytes
    assert sum(memory) == pytest.approx(0.9 * capacity)
    held = most_sequences(engine.engine, memory, caches(LLAMA), 2048)
    assert held == memory.caches // (131072 * 2048)


def test_a_step_time_is_a_line_over_keys():
    replica = Replica.of(LLAMA, H100, node(), EngineSetup())
    none, some, more = (replica.step_time(64, keys) for keys in (0, 1000, 2000))
    assert more - some == pytest.approx(some - none)
    read = 64 * 1000 * 131072 / H100.accelerator.memory_bandwidth
    assert read < some - none < 1.2 * read
    assert replica is Replica.of(LLAMA, H100, node(), EngineSetup())


def test_an_overhead_is_added_to_each_step():
    slow = Replica.of(LLAMA, H100, node(), EngineSetup(step_overhead=1e-3))
    quick = Replica.of(LLAMA, H100, node(), EngineSetup())
    assert slow.step_time(8, 9) - quick.step_time(8, 9) == pytest.approx(1e-3)


@failures.over(
    "changes, where",
    [
        ({"dtype": "fp7"}, "dtype"),
        ({"kv_dtype": ""}, "kv_dtype"),
        ({"tp": 0}, "tp"),
        ({"ep": 0}, "ep"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"batched_tokens": 0}, "batched_tokens"),
        ({"memory_utilisation": 1.5}, "memory_utilisation"),
        ({"step_overhead": -1.0}, "step_overhead"),
    ],
)
def test_what_is_no_engine_is_refused(changes, where):
    with pytest.raises(InputError) as held:
        EngineSetup(**changes)
    assert held.value.where == where


@failures.over(
    "name, setup, text",
    [
        ("bert-large", {}, "answers no prompts"),
        ("llama3-8b", {"tp": 3}, "cannot be split"),
        ("qwen3-30b-a3b", {"ep": 16}, "more devices"),
        ("llama3-70b", {}, "too small for the model"),
    ],
)
def test_what_an_engine_cannot_run_is_refused(name, setup, text):
    with pytest.raises(InputError, match=text):
        Replica.of(load_model(name), H100, node(), EngineSetup(**setup))
