"""The program that writes the tables of the page on the NEST paper."""

import csv
import math
from pathlib import Path

import pytest

from tests import failures
from tests.nestsim.paper_page import (
    PAGE,
    TABLES,
    averages,
    behind,
    cell,
    compared,
    geometric_mean,
    ratio,
    strategy,
    table_text,
    with_tables,
)
from tests.nestsim.paper_sweeps import figure2, plan_sizes, table6

FIELDS = ("scenario", "planner", "simulated_iteration_time_s")


def write_comparison(folder: Path, times: dict[str, dict[str, float | None]]) -> None:
    """Write what `nestsim compare` would, as far as it is read."""
    folder.mkdir(parents=True)
    for stem in times:
        (folder / f"{stem}.toml").write_text(f'name = "Job {stem}"\n')
    with (folder / "comparison.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(FIELDS)
        for stem, planners in times.items():
            for planner, time in planners.items():
                writer.writerow([f"Job {stem}", planner, "" if time is None else time])


def test_a_planner_that_is_missing_or_found_nothing_leaves_a_dash(tmp_path):
    write_comparison(
        tmp_path / "fig5",
        {"fig5_bert_large_64": {"nest": 2.0, "manual": 3.0, "mcmc": None}},
    )
    rows = compared(tmp_path / "fig5")
    names = ("manual", "mcmc", "alpa")
    assert [cell(ratio(rows, "fig5_bert_large_64", one)) for one in names] == [
        "1.50",
        "-",
        "-",
    ]


def test_averages_are_geometric_and_alpas_stops_at_512(tmp_path):
    write_comparison(
        tmp_path / "fig5",
        {
            "fig5_bert_large_64": {"nest": 1.0, "manual": 2.0, "alpa": 3.0},
            "fig5_bert_large_1024": {"nest": 1.0, "manual": 8.0, "alpa": 100.0},
        },
    )
    rows = {(row[0], row[1]): row[2:] for row in averages(tmp_path)}
    assert rows["figure 5", "Manual"] == ["1.59", "4.00", "8.00", "2 of 2"]
    assert rows["figure 5", "Alpa-E"] == ["2.43", "3.00", "3.00", "1 of 1"]
    assert rows["figure 7", "Mist"] == ["1.49", "-", "-", "-"]
    assert math.isnan(geometric_mean([]))


def test_every_point_at_which_another_plan_is_faster_is_named(tmp_path):
    write_comparison(
        tmp_path / "fig7",
        {
            "fig7_a": {"nest": 1.0, "mcmc": 0.995, "phaze": 1.0},
            "fig7_b": {"nest": 1.0, "manual": 0.9},
        },
    )
    first, *rest = behind(tmp_path)
    assert first == ["all 2 scenarios", "by more than 1 %", "1"]
    assert rest == [["`fig7_a`", "MCMC", "0.995"], ["`fig7_b`", "Manual", "0.900"]]


def test_strategies_count_replicas_of_the_whole_model():
    row = {
        "pipeline_model_parallel_size": "8",
        "data_parallel_size": "64",
        "tensor_model_parallel_size": "1",
        "sequence_parallel": "False",
        "expert_model_parallel_size": "4",
        "context_parallel_size": "2",
        "recompute": "full",
        "zero_stage": "1",
    }
    assert strategy(row) == "8,16,1,1,4,2; full; ZeRO 1"
    dense = {
        **row,
        "tensor_model_parallel_size": "4",
        "sequence_parallel": "True",
        "expert_model_parallel_size": "1",
        "context_parallel_size": "1",
        "recompute": "none",
        "zero_stage": "0",
    }
    assert strategy(dense) == "8,64,4,4"
    assert strategy({}) == "-"
    sizes = {"pipeline": 16, "data": 4, "tensor": 1, "expert": 4}
    names = {
        "pipeline": "pipeline_model",
        "data": "data",
        "tensor": "tensor_model",
        "expert": "expert_model",
    }
    plan = {f"{names[key]}_parallel_size": size for key, size in sizes.items()}
    assert plan_sizes(plan) == "16,1,1,1,4"


def test_a_block_is_what_two_hold_more_than_one(tmp_path):
    folder = tmp_path / "table6_llama2_7b"
    folder.mkdir()
    # 0.5e9 parameters a block: 4 B of weight and gradient, 12 or 4 B of states, and
    # 3e9 B of activations; 7e9 B beside the blocks.
    with (folder / "points.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(
            ["model.num_layers", "training.optimizer", "simulated_peak_memory_bytes"]
        )
        for layers in (1, 2):
            for optimizer, states in (("adam", 12), ("adam-bf16", 4)):
                peak = 7e9 + layers * (0.5e9 * (4 + states) + 3e9)
                writer.writerow([layers, optimizer, peak])
    rows = {row[0]: row[4:] for row in table6(tmp_path)}
    assert rows["Llama 2 7B"] == ["2.00", "3.00", "5.00"]
    assert rows["BERT-Large"] == ["-", "-", "-"]


def test_the_share_of_communication_is_what_a_free_network_takes_away(tmp_path):
    folder = tmp_path / "fig2_llama3_70b"
    folder.mkdir()
    plan = (
        '{"pipeline_model_parallel_size":8,"data_parallel_size":1,'
        '"tensor_model_parallel_size":8,"sequence_parallel":true}'
    )
    with (folder / "points.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(
            ["plan", "plan.recompute", "verdict", "simulated_iteration_time_s"]
        )
        writer.writerow([plan, "none", "infeasible", 10.0])
        writer.writerow([plan, "none", "infeasible", 6.0])
        writer.writerow([plan, "full", "confirmed", 20.0])
        writer.writerow([plan, "full", "confirmed", 15.0])
    assert list(figure2(tmp_path)) == [
        ["Llama 3 70B", "8,1,8,8", "40 %*", "10 s", "25 %", "20 s"]
    ]


@failures.over("name", TABLES)
def test_tables_of_the_page_have_the_columns_of_their_heads(name):
    page = PAGE.read_text(encoding="utf-8")
    before, behind_marker = page.split(f"<!-- {name} -->\n")
    head = before.rstrip().splitlines()[-2]
    width = head.count("|")
    body = behind_marker.split("<!-- end -->")[0].splitlines()
    assert body
    assert {line.count("|") for line in body} == {width}


def test_writing_the_tables_twice_changes_nothing_else(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    once = with_tables(page, tmp_path)
    assert with_tables(once, tmp_path) == once
    assert table_text([["a", "b"]]) == "| a | b |\n"
    with pytest.raises(ValueError, match="0 tables"):
        with_tables("no markers", tmp_path)
