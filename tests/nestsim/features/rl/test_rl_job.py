"""A whole step: its sum, its orders, what it refuses, and what it writes."""

from collections.abc import Mapping
from typing import Any

import pytest

import nestsim
from nestsim.features.rl.document import rl_document
from nestsim.features.rl.evaluate import RlStep
from nestsim.features.rl.job import RlResult, rl_job
from nestsim.features.rl.record import RlRecord, rl_json
from tests.nestsim.features.rl.small import SPLIT, small
from topologies.errors import InputError


def result_of(values: Mapping[str, Any] | None = None) -> RlResult:
    return rl_job(small(values))


def step_of(values: Mapping[str, Any] | None = None) -> RlStep:
    step = result_of(values).step
    assert step is not None
    return step


def times_of(step: RlStep) -> dict[str, float]:
    return {phase.name: phase.time for phase in step.phases}


def test_a_colocated_step_is_the_sum_of_its_phases() -> None:
    step = step_of({"rl.reward_time": "1 s", "rl.mini_batches": 2})
    times = times_of(step)
    assert [*times] == ["rollout", "reward", "old log-probs", "reference", "training"]
    assert step.time.time == pytest.approx(sum(times.values()), rel=1e-12)
    assert times["training"] == 2 * step.trainer.update
    assert times["rollout"] == step.rollout.time
    assert times["reference"] > times["old log-probs"]  # its weights come first
    assert step.time.rollout_idle == pytest.approx(1.0 / step.time.time)


def test_phases_follow_from_the_algorithm() -> None:
    plain = times_of(step_of({"rl.reference": False, "rl.old_log_probs": False}))
    assert [*plain] == ["rollout", "training"]
    step = step_of({"rl.algorithm": "ppo"})
    times = times_of(step)
    assert times["critic"] == times["training"]
    assert times["values"] == times["old log-probs"]
    other = step_of({"rl.algorithm": "ppo", "rl.critic": "gpt3-125m"})
    assert other.critic is not None
    assert times_of(other)["critic"] == other.critic.training != times["critic"]


def test_states_leave_the_devices_where_they_must() -> None:
    kept = step_of()
    assert kept.offloaded == 0.0
    sent = step_of({"rl.offload": "always"})
    held = sent.trainer.held("weights", "optimizer")
    assert sent.offloaded == held > 0.0
    assert "states" in times_of(sent)
    crowded = {"rl.engine.memory_utilisation": 0.99}
    assert step_of(crowded).offloaded == held
    refused = result_of({**crowded, "rl.offload": "never"})
    assert refused.step is None
    assert "do not fit beside the engine" in refused.shortfall


def test_actor_and_critic_take_turns_where_both_do_not_fit() -> None:
    together = step_of({"rl.algorithm": "ppo"})
    assert "swap" not in times_of(together)
    peak, held = (
        together.trainer.peak_memory,
        together.trainer.held("weights", "optimizer"),
    )
    room = int(peak + held / 2)
    device = {"like": "a100-80gb", "memory": f"{room} B"}
    full = {"rl.engine.memory_utilisation": 1.0, "cluster.accelerator": device}
    crowded = step_of({"rl.algorithm": "ppo", **full})
    host = small().host
    moved = 2.0 * held * host.devices_per_link
    swapped = 2.0 * host.latency + moved * (1 / host.to_device + 1 / host.to_host)
    assert times_of(crowded)["swap"] == pytest.approx(swapped, rel=1e-6)


@pytest.mark.parametrize("reward", ["0 s", "1 s"])
def test_running_ahead_is_never_slower(reward: str) -> None:
    split = {**SPLIT, "rl.reward_time": reward}
    synchronous = step_of(split).time
    ahead = step_of({**split, "rl.schedule": "one-step-off"}).time
    free = {**split, "rl.schedule": "asynchronous", "rl.staleness": 3}
    asynchronous = step_of(free).time
    assert synchronous.time >= ahead.time >= asynchronous.time
    assert ahead.time >= ahead.bound
    assert asynchronous.time >= asynchronous.bound


def test_faster_links_and_more_engines_are_never_slower() -> None:
    times = []
    for bandwidth in ("25 GB/s", "100 GB/s"):
        links = {"cluster.network.levels[0].bandwidth": bandwidth}
        times.append(step_of({**SPLIT, **links}).time.time)
    assert times[0] > times[1]
    rollouts = []
    for devices in (2, 4, 6):
        step = step_of({**SPLIT, "rl.rollout_devices": devices})
        rollouts.append(step.rollout.time)
        assert step.trainer.devices.size == 8 - devices
    assert rollouts[0] > rollouts[1] > rollouts[2]


def test_searched_pools_are_as_good_as_any() -> None:
    """All sizes and engines, each by itself."""
    split = {"rl.placement": "split", "rl.schedule": "one-step-off"}
    engines = {"rl.engine": {"memory_utilisation": 0.5}}
    answer = result_of({**split, **engines})
    assert answer.step is not None
    every = []
    for devices in (1, 2, 4):
        for tp in (1, 2, 4):
            if tp <= devices:
                given = {
                    "rl.rollout_devices": devices,
                    "rl.engine.tensor_parallel_size": tp,
                }
                every.append(step_of({**split, **given}).time.time)
    assert len(answer.search.explored) == len(every)
    assert answer.step.time.time <= min(every) / 0.99


def test_a_record_says_what_was_found() -> None:
    result = result_of({**SPLIT, "rl.schedule": "one-step-off"})
    assert result.step is not None
    record = RlRecord.read(rl_json(result))
    assert record.step_time_s == result.step.time.time
    assert record.tokens_per_s == record.tokens / record.step_time_s
    assert record.training_devices + record.rollout_devices == 8
    ends = {part.pool: part.end_s for part in record.timeline}
    assert [*ends.values()] == pytest.approx([record.step_time_s] * 2)
    document = rl_document(rl_json(result))
    assert document.headline.verdict.startswith("A STEP TAKES")


def test_a_report_is_the_same_each_time() -> None:
    first, second = (nestsim.rl(small(SPLIT)).to_dict() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rl.schedule": "one-step-off"}, "on devices of their own"),
        ({"rl.rollout_devices": 4}, "devices of the rollout alone"),
        ({"rl.staleness": 2}, "asynchronous schedule alone"),
        ({"rl.critic": "gpt3-125m"}, "trained by PPO alone"),
        ({"rl.algorithm": "ppo", "rl.critic": "nobody"}, "no model of the library"),
        ({"rl.mini_batches": 1000}, "more than there are responses"),
        ({"rl.response_lengths": "measured"}, "measured lengths alone"),
        ({"rl.response_length_cap": 1024}, "does not fit into a sequence"),
        ({"rl.prompt_length": 1024}, "does not fit into a sequence"),
        ({"rl.engine.tensor_parallel_size": 3}, "does not divide"),
        ({**SPLIT, "rl.rollout_devices": 8}, "leaves no device to the trainer"),
    ],
)
def test_what_does_not_go_together_is_refused(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        result_of(values)


def test_a_scenario_without_the_table_is_refused() -> None:
    scenario = nestsim.load_scenario("scenarios/gpt3_1.3b_8_a100.toml")
    with pytest.raises(InputError, match=r"no table \[rl\]"):
        rl_job(scenario)
