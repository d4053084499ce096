"""Rollouts on several replicas: closed forms, sharing, order and refusals."""

import time

import numpy as np
import pytest

from estimators.generation.engine import EngineSetup
from estimators.generation.lengths import Lengths
from estimators.generation.rollout import Replica, rollout
from estimators.models.library import load_model
from tests.estimators.generation.published import node, platform
from topologies import InputError

H100 = platform("h100-sxm")
LLAMA = load_model("llama3-8b")
ONE = EngineSetup()


def answered(prompts, samples, asked, answers, replicas=1, engine=ONE, seed=0):
    if isinstance(asked, int):
        asked = Lengths.fixed(asked)
    if isinstance(answers, int):
        answers = Lengths.fixed(answers)
    return rollout(
        LLAMA, H100, node(), engine, prompts, samples, asked, answers, replicas, seed
    )


def test_one_response_takes_as_many_steps_as_it_has_tokens():
    made = answered(1, 1, 1, 500)
    replica = Replica.of(LLAMA, H100, node(), ONE)
    steps = sum(replica.step_time(1, keys) for keys in range(1, 501))
    assert made.time == pytest.approx(steps)
    assert made.prefill_time == 0.0
    assert made.finished.tolist() == [made.time]
    assert made.tokens_per_second == pytest.approx(500 / made.time)
    assert made.kv_bytes == 501 * 131072


def test_a_long_prompt_takes_its_products_and_its_attention():
    made = answered(1, 1, 8192, 1)
    flops = 2 * 8192 * 6.98e9 + 2 * 8192**2 * 4096 * 32
    least = flops / H100.accelerator.peak_flops["bf16"]
    assert least < made.prefill_time < 2 * least


def test_equal_responses_end_together():
    made = answered(64, 1, 128, 256)
    assert made.peak_sequences == 64
    assert np.ptp(made.finished) == 0.0
    assert made.idle_share == pytest.approx(0.0, abs=1e-9)
    assert made.decode_tokens == 64 * 256
    assert made.prompt_tokens == 64 * 128


def test_replicas_divide_prompts_and_not_responses():
    single, four = answered(32, 4, 200, 300), answered(32, 4, 200, 300, replicas=4)
    assert four.peak_sequences == single.peak_sequences / 4
    # Weights are read as often, by four times as many devices.
    assert 1.2 < four.tokens_per_second / single.tokens_per_second < 4
    alone = answered(8, 4, 200, 300)
    assert four.time == pytest.approx(alone.time)
    few = answered(2, 4, 200, 300, replicas=4)
    assert few.idle_share == pytest.approx(0.5)


def test_a_long_tail_leaves_places_empty():
    tail = Lengths.log_normal(1000.0, 1.0, cap=16384)
    made = answered(32, 8, 200, tail)
    assert 0.3 < made.idle_share < 0.95
    assert np.all(np.diff(made.finished) >= 0)
    assert made.time_at(1.0) == made.time
    assert made.time_at(0.5) == made.finished[127]
    assert made.time_at(0.0) == made.finished[0]
    assert made.time_at(0.9) < 0.6 * made.time


def test_sharing_prompts_saves_their_passes_and_their_room():
    shared = answered(16, 16, 2000, 100)
    apart = answered(16, 16, 2000, 100, engine=EngineSetup(shares_prompts=False))
    assert shared.prompt_tokens == 16 * 2000
    assert apart.prompt_tokens == 256 * 2000
    assert shared.prefill_time < apart.prefill_time / 8
    assert shared.peak_sequences == 256 > apart.peak_sequences


def test_a_seed_gives_the_same_bytes():
    tail = Lengths.log_normal(500.0, 0.8)
    first, again, other = (answered(16, 4, tail, tail, 2, seed=s) for s in (3, 3, 4))
    assert first.finished.tobytes() == again.finished.tobytes()
    assert first.time == again.time != other.time
    assert first.decode_tokens == other.decode_tokens


def test_expert_ranks_share_responses():
    model, device = load_model("qwen3-30b-a3b"), platform("h200")
    engines = EngineSetup(ep=1, max_sequences=64), EngineSetup(ep=4, max_sequences=256)
    single, four = (
        rollout(
            *(model, device, node(), engine, 64 * engine.ep, 1),
            *(Lengths.fixed(64), Lengths.fixed(128), 1, 0),
        )
        for engine in engines
    )
    assert four.peak_sequences == 4 * single.peak_sequences
    assert four.weight_bytes < single.weight_bytes / 2
    assert four.kv_bytes == single.kv_bytes
    assert 1.5 < four.tokens_per_second / single.tokens_per_second < 8


def test_many_responses_take_little_time():
    tail = Lengths.log_normal(8000.0, 1.0, cap=65536)
    answered(8, 1, tail, tail)
    began = time.process_time()
    made = answered(1024, 32, Lengths.log_normal(500.0, 0.5), tail, replicas=8)
    assert len(made.finished) == 32768
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"prompts": 0}, "prompts"),
        ({"samples": 0}, "samples"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 9}, "replicas"),
        ({"answers": 10**7}, "response_lengths"),
    ],
)
def test_what_cannot_be_answered_is_refused(changes, where):
    usual = {"prompts": 8, "samples": 1, "asked": 10, "answers": 10}
    with pytest.raises(InputError) as made:
        answered(**{**usual, **changes})
    assert made.value.where == where
