"""JSON results: keys, units, no NaN, the same bytes."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.document.dumps import dump_json
from nestsim.evaluate.uncertainty import Band, Reason
from nestsim.features.run.document import reasons_sentence
from nestsim.features.run.record import (
    optimality_gap,
    plan_json,
    reported_candidate,
    result_json,
)
from nestsim.features.run.statistics import CAUSES
from nestsim.features.topology.document import topology_json
from planner.step.plan import Plan
from tests import failures
from tests.nestsim.features.run.examples import (
    FOUR_STAGES,
    INTERLEAVED,
    ONE_STAGE,
    cluster,
    make_job,
    nothing_fits,
    nothing_found_yet,
    plans_of,
)

DESIGN_KEYS = {
    "scenario",
    "plan",
    "planned",
    "simulated",
    "gap",
    "verdict",
    "lower_bound_s",
    "optimality_gap",
}
THROUGHPUT_KEYS = {
    "iteration_time_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "tflops_per_device",
    "mfu",
    "mfu_causal",
    "peak_memory_bytes",
}
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=60),
    lambda inner: (
        st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=20), inner)
    ),
    max_leaves=30,
)


@settings(max_examples=30)
@given(values)
def test_what_is_written_reads_back_the_same(value: object) -> None:
    text = dump_json(value)
    assert json.loads(text) == value
    assert text.endswith("\n")


@failures.over("missing", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_a_number_that_does_not_exist_is_null(missing: float) -> None:
    assert dump_json({"a": [missing, (1, np.int64(2))]}) == '{"a": [null, [1, 2]]}\n'
    assert dump_json(np.array([1.0, missing])) == "[1.0, null]\n"


def test_long_lists_are_filled_line_by_line() -> None:
    lines = dump_json({"devices": list(range(1000))}).splitlines()
    assert max(len(line) for line in lines) <= 100
    assert len(lines) < 60


def test_a_run_has_the_keys_of_the_design() -> None:
    report = result_json(make_job(*FOUR_STAGES))
    assert report.keys() >= DESIGN_KEYS
    assert report["planned"].keys() >= THROUGHPUT_KEYS
    assert report["simulated"].keys() >= THROUGHPUT_KEYS | {
        "bubble_fraction",
        "breakdown_s",
        "hottest_links",
        "folding",
        "events",
    }
    assert report["gap"].keys() == {"total_s", "terms"}
    simulated = report["simulated"]
    causes = simulated["breakdown_s"]["causes"]
    assert tuple(causes) == CAUSES
    total = simulated["iteration_time_s"]
    assert sum(causes.values()) == pytest.approx(total, rel=1e-12)
    assert report["plan"].keys() >= {
        "parallel",
        "micro_batch_size",
        "schedule",
        "recompute",
        "zero_stage",
        "stages",
        "placement",
    }


def test_the_reported_plan_reads_back() -> None:
    result = make_job(*FOUR_STAGES)
    text = dump_json(result_json(result))
    chosen = reported_candidate(result)
    assert chosen is not None
    assert Plan.from_json(json.loads(text)["plan"]) == chosen.priced.plan


def test_the_same_result_gives_the_same_bytes() -> None:
    make = make_job.__wrapped__
    first, second = (dump_json(result_json(make(*FOUR_STAGES))) for _ in range(2))
    assert first == second


def test_candidates_stand_in_the_order_of_the_replay() -> None:
    result = make_job(*FOUR_STAGES)
    rows = result_json(result)["candidates"]
    assert [row["planner_rank"] for row in rows] == [c.rank for c in result.candidates]
    assert [row["verdict"] for row in rows][-1] == "infeasible"


def test_candidates_that_differ_in_their_chunks_only_are_told_apart() -> None:
    report = result_json(make_job(*INTERLEAVED))
    key = "virtual_pipeline_model_parallel_size"
    assert [row[key] for row in report["candidates"]] == [2, 1]
    assert report["plan"][key] == 2
    assert [len(stage["chunks"]) for stage in report["plan"]["stages"]] == [2] * 4


def test_without_a_confirmed_plan_the_best_one_is_reported_as_what_it_is() -> None:
    result = make_job(*ONE_STAGE)
    report = result_json(result)
    assert result.chosen is None
    assert report["verdict"] == "infeasible"
    assert report["confirmed"] is False
    assert report["plan"] is not None


def test_nothing_fits_is_a_result_with_a_reason() -> None:
    report = json.loads(dump_json(result_json(nothing_fits())))
    assert report.keys() >= DESIGN_KEYS
    assert report["verdict"] == "infeasible"
    assert "92.1 GiB" in report["reason"]
    assert report["plan"] is None
    assert report["lower_bound_s"] is None
    assert report["optimality_gap"] is None


def test_a_stopped_search_is_not_called_infeasible() -> None:
    report = json.loads(dump_json(result_json(nothing_found_yet())))
    assert report["verdict"] == "stopped"
    assert report["lower_bound_s"] == 0.5
    search = report["search"]
    assert (search["stopped_by"], search["reproducible"]) == ("work limit", True)
    assert (search["work"], search["time_limit_s"]) == (250_000_000, None)
    unproven = replace(nothing_fits(), covers_space=False)
    assert result_json(unproven)["verdict"] == "not found"


def test_the_optimality_gap_is_relative_to_the_bound() -> None:
    assert optimality_gap(1.5, 1.0) == 0.5
    assert math.isnan(optimality_gap(1.5, 0.0))
    assert math.isnan(optimality_gap(1.5, math.inf))
    assert math.isnan(optimality_gap(1.5, math.nan))


def test_plans_without_a_replay_have_their_planned_side() -> None:
    report = plan_json(plans_of(make_job(*FOUR_STAGES)))
    ranks = [row["planner_rank"] for row in report["plans"]]
    assert ranks == [1, 2, 3, 4]
    assert all(row["planned"].keys() >= THROUGHPUT_KEYS for row in report["plans"])
    assert all(row["optimality_gap"] >= 0 for row in report["plans"])


def test_a_topology_has_its_tiers_and_no_infinity() -> None:
    network = cluster(64)
    report = json.loads(dump_json(topology_json(network)))
    assert report["num_devices"] == 64
    assert report["bisection_bandwidth_bytes_per_s"] == network.bisection_bandwidth()
    assert report["tiers"][-1]["uplink_bandwidth_bytes_per_s"] is None
    assert [tier["name"] for tier in report["tiers"]] == [
        tier.name for tier in network.tiers()
    ]


def test_a_band_stands_on_both_sides_of_what_was_simulated() -> None:
    job = make_job(*FOUR_STAGES)
    assert result_json(job)["uncertainty"] is None
    reasons = (Reason("no row of b200 was measured", 0.11),)
    report = result_json(replace(job, band=Band(0.8, 1.25), band_reasons=reasons))
    simulated, found = report["simulated"], report["uncertainty"]
    time, rate = simulated["iteration_time_s"], simulated["tokens_per_s"]
    assert found["share"] == 0.8
    assert found["iteration_time_s"] == pytest.approx([0.8 * time, 1.25 * time])
    assert found["tokens_per_s"] == pytest.approx([0.8 * rate, 1.25 * rate])
    assert found["reasons"] == [{"words": "no row of b200 was measured", "added": 0.11}]
    sentence = "That is wider than usual: no row of b200 was measured (+11.0 %)."
    assert reasons_sentence(reasons).strip() == sentence
    assert reasons_sentence(()) == ""


def test_what_a_terminal_would_act_upon_is_escaped():
    value = {"name": "é \x1b[2J \x7f \u202e ü", "other\u2028": 1}
    text = dump_json(value)
    assert text.replace("\n", "").isprintable()
    assert "é" in text
    assert json.loads(text) == value
