"""What reports say of a validation whose numbers are known."""

import csv
import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from nestsim.document.sheet import draw_document
from nestsim.document.terminal import print_document
from nestsim.evaluate.uncertainty import Band, Setting, load_uncertainty
from nestsim.features.validation.case import read_case
from nestsim.features.validation.columns import Measurements
from nestsim.features.validation.document import validation_document
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.record import predictions_csv, validation_json
from nestsim.features.validation.results import RowResult, ValidationResult
from nestsim.features.validation.runner import validate
from tests.nestsim.document.pictures import draw
from tests.nestsim.features.validation.validation_rows import gpt


def scored(name, measured, predicted, band=None, **cells):
    return RowResult(
        band=band,
        row=gpt(row_id=name, **cells),
        basis="iter_time_s",
        measured=measured,
        predicted=predicted,
        planned=predicted,
        preset="megatron-lm",
        assumed=("vpp = 1", "cp = 1"),
    )


RESULT = ValidationResult(
    name="own.csv",
    kind="throughput",
    rows=(
        scored("a", 1.0, 1.2),
        scored("b", 2.0, 1.1),
        scored("c", 4.0, 4.2, accelerator="H100-80GB-SXM", source_key="other"),
        RowResult(row=gpt(row_id="d"), code="fine-tuning", reason="of adapters"),
    ),
)


def test_errors_are_those_of_the_rows_by_source_and_by_accelerator():
    report = validation_json(RESULT)
    assert (report["rows"], report["scored"], report["refused"]) == (4, 3, 1)
    assert report["mape"] == pytest.approx((0.2 + 0.45 + 0.05) / 3)
    assert report["by_source"]["own"]["bias"] == pytest.approx((0.2 - 0.45) / 2)
    assert report["by_source"]["own"]["refused"] == 1
    assert report["by_source"]["other"]["max_ape"] == pytest.approx(0.05)
    assert report["by_accelerator"]["H100-80GB-SXM"]["scored"] == 1
    assert report["refusals"] == {"fine-tuning": 1}


def test_plans_for_the_same_job_are_ranked_among_themselves_alone():
    ranking = validation_json(RESULT)["ranking"]
    # b is predicted to be faster than a, which is twice as fast; c has no rival.
    assert (ranking["groups"], ranking["rows"]) == (1, 2)
    assert ranking["kendall_tau"] == -1.0
    assert ranking["top1_regret"] == pytest.approx(1.0)


def test_the_table_has_one_line_for_each_row_with_all_digits():
    lines = list(csv.DictReader(io.StringIO(predictions_csv(RESULT))))
    assert [line["row_id"] for line in lines] == ["a", "b", "c", "d"]
    assert float(lines[1]["error"]) == RESULT.rows[1].error
    assert lines[0]["assumed"] == "vpp = 1; cp = 1"
    assert (lines[3]["code"], lines[3]["error"]) == ("fine-tuning", "")


def test_text_names_sources_accelerators_and_what_was_refused():
    console = Console(file=io.StringIO(), width=120)
    print_document(validation_document(RESULT), console)
    text = console.file.getvalue()
    for words in ("own", "other", "H100-80GB-SXM", "23.3 %", "fine-tuning", "100.0 %"):
        assert words in text


def test_the_picture_says_how_many_rows_lie_within_its_bands(tmp_path):
    assert RESULT.share_within(0.1) == pytest.approx(1 / 3)
    assert RESULT.share_within(0.25) == pytest.approx(2 / 3)
    said = "Predicted step times are 23.3 % off on average, 20.0 % in the median"
    assert validation_document(RESULT).headline.verdict == said
    drawn = draw(
        lambda path: draw_document(validation_document(RESULT), path), tmp_path
    )
    shown = " ".join(drawn.words)
    assert "within 10 % 33.3 %" in shown
    assert "within 25 % 66.7 %" in shown
    assert not drawn.cut_off
    assert not drawn.overlapping


def test_times_on_logarithmic_axes_are_plain_numbers(tmp_path):
    drawn = draw(
        lambda path: draw_document(validation_document(RESULT), path), tmp_path
    )
    assert {"1", "2", "5"} <= set(drawn.words)
    assert not [word for word in drawn.words if "$" in word]


def test_progress_is_told_of_every_row():
    told = []
    rows = tuple(gpt(row_id=name, layers="") for name in "abc")
    file = Measurements(name="own.csv", kind="throughput", rows=rows)
    validate(file, progress=lambda doing, share: told.append((doing, share)))
    assert told == [("row 1 of 3", 0), ("row 2 of 3", 1 / 3), ("row 3 of 3", 2 / 3)]


def judged(name, share, *, measured=1.0, **cells):
    return replace(scored(name, measured, 1.0, **cells), memory_share=share)


def test_runs_are_held_against_the_judgement_of_memory():
    result = ValidationResult(
        name="own.csv",
        kind="throughput",
        rows=(
            judged("a", 0.7, quality="A"),
            judged("b", 1.25, quality="A-"),
            judged("c", 1.5, quality="C", source_key="other"),
            judged("d", 0.5, measured=math.nan, quality="A"),
            judged("e", 2.0, measured=math.nan, quality="A"),
            judged("g", 0.95, measured=math.nan, quality="A"),
            RowResult(row=gpt(row_id="f"), code="fine-tuning", reason="of adapters"),
        ),
    )
    report = validation_json(result)
    assert report["judgement"] == {
        "ran": 3,
        "ran_but_too_large": 2,
        "complete": 2,
        "complete_but_too_large": 1,
        "ran_in_doubt": 0,
        "out_of_memory": 3,
        "out_of_memory_but_fit": 1,
        "out_of_memory_in_doubt": 1,
        "largest_share": 1.5,
    }
    assert report["by_source"]["other"]["judgement"]["ran_but_too_large"] == 1
    assert report["by_source"]["own"]["judgement"]["out_of_memory_but_fit"] == 1
    lines = list(csv.DictReader(io.StringIO(predictions_csv(result))))
    fits = ["true", "false", "false", "true", "false", "false", ""]
    assert [line["fits"] for line in lines] == fits
    assert lines[1]["peak_memory_share"] == "1.25"
    console = Console(record=True, width=200, file=io.StringIO())
    print_document(validation_document(result), console)
    text = console.export_text()
    assert "Of 3 runs that happened, 2 (66.7 %) are judged not to fit" in text
    assert "1 of 2" in text
    table = validation_document(result).figures[0].table
    place = table.columns.index("Too large")
    counts = [row[place].text for row in table.rows]
    assert counts == ["1", "1", "2"]


def test_rows_are_judged_by_the_rule_of_scenarios():
    rows = (gpt(row_id="a"), gpt(row_id="b", layers="4000"))
    result = validate(Measurements(name="own.csv", kind="throughput", rows=rows))
    predictor = Predictor()
    for row in result.rows:
        case = read_case(row.row)
        peak = max(stage.peak for stage in predictor.predict(case, memory=True).memory)
        usable = predictor.workload(case).tensor_memory()
        assert row.memory_share == pytest.approx(peak / usable)
    assert [row.fits for row in result.rows] == [True, False]
    assert [row.need.fits_in_ten for row in result.rows] == [10, 0]


def test_bands_are_written_beside_predictions_and_counted():
    narrow = Band(0.9, 1.1)
    result = ValidationResult(
        name="own.csv",
        kind="throughput",
        rows=(
            scored("a", 1.0, 1.05, narrow),
            scored("b", 2.0, 1.0, narrow),
            scored("c", 4.0, 9.9),
        ),
    )
    assert result.coverage() == 0.5
    assert validation_json(result)["band"] == {"share": 0.8, "coverage": 0.5}
    lines = list(csv.DictReader(io.StringIO(predictions_csv(result))))
    ends = [(line["predicted_low"], line["predicted_high"]) for line in lines]
    assert [float(end) for end in ends[0]] == pytest.approx([0.945, 1.155])
    assert ends[2] == ("", "")
    console = Console(record=True, width=200, file=io.StringIO())
    print_document(validation_document(result), console)
    assert "50.0 % of the measured times lie in the 80 % band" in console.export_text()


def test_a_rows_band_is_that_of_its_kind_of_job():
    experts = {"num_experts": "8", "moe_topk": "2", "moe_ffn": "4096", "ep": "2"}
    rows = (gpt(row_id="a"), gpt(row_id="b", **experts))
    result = validate(Measurements(name="own.csv", kind="throughput", rows=rows))
    shipped = load_uncertainty()
    for row, has_experts in zip(result.rows, (False, True), strict=True):
        job = Setting(
            source="own",
            software="megatron-lm",
            accelerator="a100-80gb",
            num_devices=16,
            has_experts=has_experts,
            traits=frozenset({"experts reached by alltoall"} if has_experts else ()),
        )
        assert row.band == shipped.band(job)
