"""On small clusters no other plan replays faster than what was proven.

`make regret` measures larger ones, as people have them.
"""

import csv
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from nestsim.evaluate.cluster import build_job
from nestsim.evaluate.evaluator import Evaluator
from nestsim.scenario.load import scenario_of
from planner.frameworks.framework import FRAMEWORKS
from planner.rivals.manual import manual_plans
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from tests import failures
from tests.regret.__main__ import page_table, wanted
from tests.regret.bounds import KINDS, Hunt, hunt
from tests.regret.measuring import ROUNDING, Row, measure, rows_of
from tests.regret.scenarios import PRESETS, Drawn, draw, draw_small
from topologies.input_file import parse_toml

NUM_OTHERS = 40


@pytest.mark.parametrize("seed", range(len(PRESETS)))
def test_no_plan_is_faster_than_was_proven(seed: int) -> None:
    row = measure(draw_small(seed), most_others=NUM_OTHERS)
    assert not row.stopped
    assert math.isfinite(row.answer)
    # Whatever the plan, and the one whose bound comes nearest to its time.
    assert row.lower_bound <= row.best_inside * (1.0 + ROUNDING), row.other_plan
    assert row.worst_bound <= 1.0 + ROUNDING, row.worst_plan
    assert row.answer <= row.best_inside * (1.0 + row.proven_gap + ROUNDING)
    assert row.proven_gap <= 0.01 + ROUNDING
    assert not row.faults


def test_other_plans_are_found_by_several_means() -> None:
    row = measure(draw_small(0), most_others=NUM_OTHERS)
    assert row.manual > 0
    assert row.others == NUM_OTHERS


def test_a_table_that_was_begun_is_gone_on_with(tmp_path: Path) -> None:
    empty = {field.name: 0 for field in fields(Row)}
    texts = dict.fromkeys(("best_source", "answer_plan", "other_plan"), "")
    texts |= {"scenario": "a, b", "preset": "ddp", "network": "", "worst_plan": ""}
    numbers = {"answer": 0.1 + 0.2, "answer_in_full": 3.0, "best_inside": math.inf}
    numbers |= {"best_other": 4.0, "regret": 0.0, "lower_bound": 0.3}
    numbers |= {"cpu_seconds": 1.5, "worst_bound": 0.5}
    rows = [
        Row(**{**empty, **texts, **numbers, "seed": seed, "stopped": seed == 4})
        for seed in (2, 4)
    ]
    table = tmp_path / "regret.csv"
    assert rows_of(table) == []
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0].values()))
        writer.writeheader()
        writer.writerows(row.values() for row in rows)
    assert rows_of(table) == rows
    assert wanted(1, 5, rows) == [1, 3, 5]


def test_a_hunt_counts_plans_and_shows_a_bound_that_is_too_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = 2 * len(KINDS) + list(KINDS).index("ideal")
    assert not hunt(1, seed).above
    monkeypatch.setattr("tests.regret.bounds.FASTER", 0.5)
    found = Hunt()
    found.add(seed)
    assert found.plans["ideal"] == found.plans.total() > 0
    assert found.above
    assert f"--seed {seed}: ideal" in found.above[0]


def test_a_seed_draws_the_same_scenario_again() -> None:
    assert draw(7) == draw(7)
    assert draw(7).text != draw(7 + len(PRESETS)).text


@failures.over("seed", range(2 * len(PRESETS)))
def test_scenarios_are_valid_and_of_each_preset_in_turn(seed: int) -> None:
    for drawn in (draw(seed), draw_small(seed)):
        text = drawn.text.encode()
        scenario = scenario_of(parse_toml(text), Path("scenario.toml"), text)
        assert scenario.software_preset == PRESETS[seed % len(PRESETS)]


TIED = """
name = "a tied embedding behind slow adapters"
[model]
name = "gpt3-1.3b"
num_layers = 2
sequence_length = 256
[training]
global_batch_size = 16
[software]
preset = "megatron-core"
[cluster]
accelerator = "h100-sxm"
[cluster.network]
kind = "spine-leaf"
devices_per_node = 2
node_bandwidth = "450 GB/s"
node_latency = "500 ns"
nic = "node"
nic_bandwidth = "100 Gbit/s"
nic_latency = "1 us"
nodes_per_leaf = 2
num_leaves = 2
spine_latency = "500 ns"
[search]
pipeline_model_parallel_sizes = [1]
"""


def test_weights_that_are_gathered_first_hold_a_tied_embedding_once() -> None:
    row = measure(Drawn(0, TIED, "megatron-core"), most_others=NUM_OTHERS)
    assert row.worst_bound <= 1.0 + ROUNDING, row.worst_plan


def test_a_stopped_search_answers_with_what_can_be_launched() -> None:
    drawn = draw_small(PRESETS.index("fsdp"))
    text = drawn.text.encode()
    scenario = scenario_of(parse_toml(text), Path("scenario.toml"), text)
    search = replace(scenario.search, work_limit=1, proven_gap=0.0)
    scenario = replace(scenario, search=search)
    network, workload = build_job(scenario, None)
    facts = LaunchFacts.of(workload, network)
    rules = FRAMEWORKS["fsdp"].rules
    # What a search would start from if no rules held.
    ordinary = manual_plans(network, workload, replace(search, launchable=False))
    assert any(broken_rules(plan, rules, facts) for plan in ordinary)
    evaluator = Evaluator.on(scenario, network, workload)
    found = evaluator.find("nest", scenario.planner_settings)
    assert found.spent.is_stopped
    assert found.plans
    for priced in found.plans:
        assert not broken_rules(priced.plan, rules, facts)


@pytest.mark.slow
def test_a_stopped_search_looks_at_other_chunks_of_its_best_plan() -> None:
    """Bounds of many plans with chunks are below the replay of one without."""
    text = draw(168).text.encode()
    scenario = scenario_of(parse_toml(text), Path("scenario.toml"), text)
    scenario = replace(scenario, search=replace(scenario.search, work_limit=28_000_000))
    evaluator = Evaluator.on(scenario, *build_job(scenario, None))
    found = evaluator.find("nest", scenario.planner_settings)
    assert found.spent.is_stopped
    # The fastest of 300 other plans; 21.0 s without a look, with twice the work.
    assert found.replayed_times[0] < 19.73
    assert found.plans[0].plan.virtual_pipeline_model_parallel_size == 1


def test_the_table_of_the_page_is_written_as_it_stands_there() -> None:
    empty = {field.name: 0 for field in fields(Row)}
    rows = [
        Row(
            **{
                **empty,
                "preset": preset,
                "answer": 1.0,
                "lower_bound": 1.0 / (1.0 + gap),
                "regret": regret,
                "replays": replays,
                "cpu_seconds": seconds,
                "answer_plan": "tp1",
            }
        )
        for preset, regret, gap, replays, seconds in (
            ("fsdp", 0.0, 0.0, 9, 0.25),
            ("fsdp", 0.0, 0.001, 18, 1.2),
            ("ideal", 0.144, 0.01, 2400, 149.0),
        )
    ]
    rows.append(replace(rows[0], answer=math.inf, answer_plan=""))  # found no plan
    lines = page_table(rows).split("\n")
    page = (Path(__file__).parents[2] / "docs" / "search.md").read_text("utf-8")
    assert lines[0] in page
    assert lines[2:] == [
        "| `fsdp` | 3 | 0 | 0 | 0 | 0 | 0.1 % | 9 | 18 | 0.2 | 1 |",
        "| `ideal` | 1 | 14.4 % | 14.4 % | 14.4 % | 1.0 % | 1.0 % | 2,400 | 2,400 | "
        "149.0 | 149 |",
        "| all | 4 | 0 | 0 | 14.4 % | 0.1 % | 1.0 % | 14 | 2,400 | 0.7 | 149 |",
    ]
