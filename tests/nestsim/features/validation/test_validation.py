"""Validation as a whole: files, predictions, results."""

from pathlib import Path

import pytest

from nestsim.evaluate.job import simulate_job
from nestsim.features.validation.case import read_case, read_stage
from nestsim.features.validation.columns import (
    Measurements,
    RowRefusedError,
    read_measurements,
)
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.runner import GIB, measured_time, validate
from nestsim.features.validation.stages import with_notes_of_run
from nestsim.scenario import load_scenario
from nestsim.scenario.editing import toml_text
from tests import failures
from tests.nestsim.features.validation.validation_rows import (
    GPT,
    MEMORY,
    gpt,
    memory,
    write_csv,
)
from topologies.errors import InputError

DATA = Path(__file__).parents[5] / "shared" / "data" / "measurements"

SCENARIO = """
name = "the row"
[model]
family = "gpt"
num_layers = 8
hidden_size = 1024
num_attention_heads = 16
vocab_size = 51200
sequence_length = 1024
hidden_dropout = 0.1
attention_dropout = 0.1
attention = "plain"
[software]
preset = "megatron-lm"
[training]
global_batch_size = 32
precision = "fp16"
[cluster]
accelerator = "a100-80gb"
[cluster.network]
kind = "fat-tree"
nic = "device"
[[cluster.network.levels]]
name = "node"
fan_out = 8
bandwidth = "300 GB/s"
latency = "500 ns"
efficiency = 0.788
[[cluster.network.levels]]
name = "fabric"
fan_out = 2
bandwidth = "200 Gbit/s"
latency = "1 us"
efficiency = 0.95
[plan]
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
micro_batch_size = 2
recompute = "full"
"""


def throughput(*rows):
    return Measurements(name="own.csv", kind="throughput", rows=rows)


def test_a_row_is_predicted_as_simulate_predicts_the_same_scenario(tmp_path):
    file = tmp_path / "row.toml"
    file.write_text(SCENARIO, encoding="utf-8")
    candidate = simulate_job(load_scenario(file)).candidate
    case = read_case(gpt())
    said = Predictor().predict(case, memory=True)
    assert said.iteration_time == candidate.simulated.iteration_time
    file.write_text(toml_text({"name": "the row", **case.tables}), encoding="utf-8")
    of_tables = simulate_job(load_scenario(file)).candidate
    assert of_tables.simulated.iteration_time == said.iteration_time
    assert said.planned_time == candidate.planned.iteration_time
    peaks = tuple(stage.peak for stage in said.memory)
    assert peaks == tuple(timeline.peak for timeline in candidate.replay.memory)


def test_keeping_what_rows_share_changes_nothing():
    rows = [gpt(row_id=str(n), layers=str(n)) for n in (4, 8, 4)]
    kept = [row.predicted for row in validate(throughput(*rows)).rows]
    alone = [Predictor().predict(read_case(row)).iteration_time for row in rows]
    assert kept == alone
    assert kept[0] == kept[2] < kept[1]


def test_each_row_has_a_result_in_the_order_of_the_file():
    rows = (gpt(row_id="a"), gpt(row_id="b", layers=""), gpt(row_id="c", tp="1/2"))
    result = validate(throughput(*rows))
    assert [row.row.row_id for row in result.rows] == ["a", "b", "c"]
    assert [row.code for row in result.rows] == ["", "missing-column", "uneven-plan"]
    assert len(result.scored) + len(result.refused) == 3
    assert result.rows[0].error == result.rows[0].predicted / 0.25 - 1.0


def test_a_plan_that_the_batch_does_not_have_is_refused():
    (row,) = validate(throughput(gpt(global_batch="33"))).rows
    assert row.code == "no-such-plan"
    assert "micro_batch_size" in row.reason


BARE = {"iter_time_s": ""}


@failures.over(
    ("cells", "seconds", "basis"),
    [
        ({"iter_time_s": "0.5", "iter_time_s_derived": "9"}, 0.5, "iter_time_s"),
        ({**BARE, "iter_time_s_derived": "0.7"}, 0.7, "iter_time_s_derived"),
        (
            {**BARE, "tokens_per_s_per_device": "4096"},
            32 * 1024 / 16 / 4096,
            "tokens_per_s_per_device",
        ),
        ({**BARE, "samples_per_s": "64"}, 0.5, "samples_per_s"),
    ],
)
def test_what_was_printed_comes_before_what_was_derived(cells, seconds, basis):
    case = read_case(gpt(**cells))
    found = measured_time(case, Predictor().graph(case))
    assert found.value == pytest.approx(seconds)
    assert found.basis == basis


@pytest.mark.parametrize(
    ("kind", "factor", "share"), [("model", 72, 12), ("hardware (96Bslh^2)", 96, 16)]
)
def test_flops_are_counted_as_the_row_says(kind, factor, share):
    """Narayanan et al., SC'21, equation 3, and the same without recompute."""
    cells = {**BARE, "tflops_per_device": "100", "tflops_kind": kind}
    case = read_case(gpt(**cells))
    found = measured_time(case, Predictor().graph(case))
    batch, s, layers, h, v = 32, 1024, 8, 1024, 51200
    flops = factor * batch * s * layers * h**2
    flops *= 1 + s / (6 * h) + v / (share * layers * h)
    assert found.value == pytest.approx(flops / (100e12 * 16), rel=1e-12)
    assert found.basis.endswith(f"{kind.split()[0]} FLOPs")


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        (BARE, "missing-measurement"),
        ({**BARE, "tflops_per_device": "9"}, "ambiguous-measurement"),
        (
            {**BARE, "tflops_per_device": "9", "tflops_kind": "as reported"},
            "ambiguous-measurement",
        ),
    ],
)
def test_a_row_that_measures_nothing_is_refused(cells, code):
    case = read_case(gpt(**cells))
    with pytest.raises(RowRefusedError) as refused:
        measured_time(case, Predictor().graph(case))
    assert refused.value.code == code


def test_memory_is_that_of_the_stage_and_the_parts_that_were_measured():
    rows = {
        "first": memory(row_id="first"),
        "last": memory(row_id="last", where="last rank (last pipeline stage)"),
        "most": memory(row_id="most", where="max over GPUs"),
        "states": memory(row_id="states", metric="params+grads+optimizer"),
        "kept": memory(row_id="kept", metric="activations"),
    }
    result = validate(
        Measurements(name="m.csv", kind="memory", rows=tuple(rows.values()))
    )
    found = {row.row.row_id: row.predicted for row in result.rows}
    assert all(row.measured == 3.5 * GIB for row in result.rows)
    assert found["most"] == max(found["first"], found["last"])
    assert found["states"] + found["kept"] <= found["first"]
    first = Predictor().predict(read_case(memory()), memory=True).memory[0]
    # fp16 weights, fp32 gradients, Adam in fp32: 2 + 4 + 12 bytes a parameter.
    assert found["states"] == pytest.approx(first.weights / 2 * 18)
    assert found["kept"] == first.activations


@failures.over(
    ("cells", "code"),
    [
        ({"unit": "percent"}, "other-metric"),
        ({"metric": "page faults"}, "other-metric"),
        ({"value_gib": ""}, "missing-measurement"),
        ({"where": "stage 2"}, "contradiction"),
        ({"where": "the third rack"}, "other-place"),
    ],
)
def test_memory_that_is_not_a_size_of_a_known_device_is_refused(cells, code):
    (row,) = validate(
        Measurements(name="m.csv", kind="memory", rows=(memory(**cells),))
    ).rows
    assert row.code == code


def test_a_run_out_of_memory_has_no_error_but_a_prediction():
    rows = (memory(metric="OOM", value_gib=""),)
    result = validate(Measurements(name="m.csv", kind="memory", rows=rows))
    assert result.rows[0].ran_out_of_memory
    assert result.rows[0].predicted > 0
    assert not result.scored
    assert not result.refused


def test_files_say_what_they_are_about(tmp_path):
    assert read_measurements(write_csv(tmp_path / "t.csv", GPT)).kind == "throughput"
    assert read_measurements(write_csv(tmp_path / "m.csv", MEMORY)).kind == "memory"


@failures.over(
    ("changed", "where"),
    [
        ({"layers": "many"}, "row one: column layers"),
        ({"layers": "0"}, "row one: column layers"),
        ({"layers": "2.5"}, "row one: column layers"),
        ({"layers": "2/4"}, "row one: column layers"),
        ({"tp": "1/x"}, "row one: column tp"),
        ({"iter_time_s": "-1"}, "row one: column iter_time_s"),
        ({"iter_time_s": "nan"}, "row one: column iter_time_s"),
    ],
)
def test_what_is_no_number_is_named_with_file_row_and_column(tmp_path, changed, where):
    file = write_csv(tmp_path / "own.csv", {**GPT, **changed})
    with pytest.raises(InputError) as wrong:
        read_measurements(file)
    assert wrong.value.where == f"{file}: {where}"


def test_two_rows_of_one_name_and_missing_columns_are_wrong_input(tmp_path):
    twice = write_csv(tmp_path / "twice.csv", GPT, GPT)
    with pytest.raises(InputError, match="two rows"):
        read_measurements(twice)
    short = {name: text for name, text in GPT.items() if name not in {"tp", "heads"}}
    with pytest.raises(InputError, match="heads, tp"):
        read_measurements(write_csv(tmp_path / "short.csv", short))
    still = {name: text for name, text in GPT.items() if name != "iter_time_s"}
    with pytest.raises(InputError, match="nothing measured"):
        read_measurements(write_csv(tmp_path / "still.csv", still))


published = pytest.mark.skipif(
    not DATA.is_dir(), reason="the published measurements are not beside the checkout"
)


@published
def test_no_row_of_the_sweep_over_nodes_is_refused():
    file = read_measurements(DATA / "throughput.csv")
    rows = tuple(row for row in file.rows if row.source == "vtrain_multi")
    result = validate(throughput(*rows))
    assert not result.refused
    errors = result.errors()
    assert errors.mape < 0.15
    assert errors.kendall_tau > 0.85


PUBLIC = (
    *("throughput.csv", "throughput-2026.csv", "throughput-a100pcie.csv"),
    *("memory.csv", "memory-2026.csv"),
)


@published
def test_one_published_row_in_twenty_is_refused_at_most_and_says_why():
    cases, reasons = [], []
    for name in PUBLIC:
        file = read_measurements(DATA / name)
        held = file.kind == "memory"
        for row in with_notes_of_run(file.rows) if held else file.rows:
            try:
                cases.append((read_stage(row) if held else None) or read_case(row))
            except RowRefusedError as refusal:
                reasons.append(refusal.reason)
    assert all(reasons)
    assert 0 < len(reasons) <= 0.05 * (len(reasons) + len(cases))
    latencies = [level.latency for case in cases for level in case.network.levels]
    assert all(latency > 0 for latency in latencies)


@published
def test_published_runs_of_adapters_are_predicted_as_far_off_as_the_guide_says():
    rows = [
        row
        for name in ("throughput.csv", "throughput-2026.csv")
        for row in read_measurements(DATA / name).rows
        if row.source == "automodel_lora" or row.words("notes") == "LoRA Performance"
    ]
    result = validate(throughput(*rows))
    assert len(rows) == 7
    assert not result.refused
    errors = {row.row.row_id: row.predicted / row.measured - 1 for row in result.scored}
    bridge = errors.pop("T-megatron_bridge-0070")
    assert bridge == pytest.approx(0.189, abs=0.01)
    assert sum(errors.values()) / 6 == pytest.approx(0.165, abs=0.01)
    assert min(errors.values()) == pytest.approx(0.058, abs=0.01)
    assert max(errors.values()) == pytest.approx(0.314, abs=0.01)


def test_an_open_micro_batch_is_the_fastest_of_those_that_fit():
    predictor = Predictor()
    times = {
        size: predictor.predict(read_case(gpt(micro_batch=str(size)))).iteration_time
        for size in (1, 2, 4)
    }
    left_open = predictor.predict(read_case(gpt(micro_batch="")))
    assert left_open.iteration_time == min(times.values())
    # With plain attention over 16k tokens only the smallest one fits.
    cells = {"seq_len": "16384", "recompute": "none", "hidden": "2048"}
    smallest = predictor.predict(read_case(gpt(micro_batch="1", **cells)))
    assert predictor.predict(read_case(gpt(micro_batch="", **cells))) == smallest


def test_rows_with_an_open_micro_batch_have_a_wider_band(tmp_path):
    file = write_csv(
        tmp_path / "some.csv", GPT, {**GPT, "row_id": "two", "micro_batch": ""}
    )
    stated, left_open = validate(read_measurements(file)).rows
    assert stated.band is not None
    assert left_open.band is not None
    assert left_open.band.high == pytest.approx(stated.band.high**2)
    assert left_open.band.low == pytest.approx(stated.band.low**2)
