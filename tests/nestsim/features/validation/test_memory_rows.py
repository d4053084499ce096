"""Rows about single stages, and what a metric counts of a device's memory."""

import math
from dataclasses import replace

import pytest

from estimators.layers.work import Degrees
from estimators.software import IDEAL
from nestsim.features.validation.case import read_case, read_stage
from nestsim.features.validation.columns import Measurements, RowRefusedError
from nestsim.features.validation.predict import CLEARLY, Predictor
from nestsim.features.validation.runner import (
    counted,
    published_measurements,
    score_memory,
    validate,
)
from nestsim.features.validation.stages import with_notes_of_run
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.step.memory import BlockStage, block_stage_memory
from planner.step.plan import Offload
from tests import failures
from tests.nestsim.features.validation.validation_rows import gpt, memory
from topologies.builders import build_network

GIB = 2.0**30

MIST = (
    "stages: layers=[5, 3], ckpt layers=[2, 0], per-stage [mbs,dp,tp,Wshard]="
    "[[1, 2, 1, 0, 0, 1, 0.0, 0.0, 0.25, 0.0], [2, 1, 1, 0, 0, 0, 0, 0, 0, 0]]"
)
ACESO = (
    "stage gpus=[1, 2], ops per stage=[54, 53], "
    "recomputed-op fraction per stage=[1.0, 0.0]"
)


def staged(notes, where="stage 0", **changed):
    cells = {"source": "one run", "tp": "1", **changed}
    return memory(notes=notes, where=where, **cells)


def only_stage(row):
    (sized,) = read_stage(row).stages
    return sized


def test_stages_of_mist_are_read_from_notes():
    degrees, _, blocks = only_stage(staged(MIST))
    assert degrees == Degrees(micro_batch_size=1)
    assert blocks == BlockStage(
        num_blocks=5,
        num_weights=5,
        recomputed=2,
        ends=(0,),
        in_flight=2,
        zero_stage=1,
        group_size=2,
        offload=Offload(optimizer=0.25),
    )
    last = only_stage(staged(MIST, "stage 1")).blocks
    assert (last.num_blocks, last.zero_stage, last.in_flight) == (3, 0, 1)
    assert last.ends == (9, 10)


def test_stages_of_aceso_are_cut_between_operators():
    """Embedding, 4 layers and the norm of the fifth; the rest, final norm and head."""
    first, last = (
        only_stage(staged(ACESO, f"stage {n}", tp="1/2", dp="1")) for n in (0, 1)
    )
    assert first.blocks.num_blocks == pytest.approx(4 + 1 / 13)
    assert first.blocks.num_weights == pytest.approx(4)
    assert first.blocks.recomputed == pytest.approx(first.blocks.num_blocks)
    assert last.blocks.num_weights == pytest.approx(4)
    assert last.degrees.tp == 2
    total = first.blocks.num_blocks + last.blocks.num_blocks
    assert total == pytest.approx(8)
    assert (first.blocks.ends, last.blocks.ends) == ((0,), (9, 10))


@failures.over(
    ("notes", "where", "code"),
    [
        (MIST, "any GPU", "other-place"),
        (MIST, "stage 2", "contradiction"),
        (MIST.replace("0.25, 0.0]", "0.25, 1.5]"), "stage 0", "uneven-plan"),
        (ACESO.replace("53", "40"), "stage 0", "uneven-plan"),
        (ACESO, "stage 7", "contradiction"),
    ],
)
def test_stages_that_cannot_be_expressed_are_refused(notes, where, code):
    with pytest.raises(RowRefusedError) as refused:
        read_stage(staged(notes, where))
    assert refused.value.code == code


def test_rows_without_stages_are_plans():
    assert read_stage(memory(notes="test type ckpt-resume")) is None


def test_what_stands_with_one_row_of_a_run_holds_for_the_others():
    rows = (staged(MIST), staged("", "stage 1"), memory(source="another run"))
    own, other, third = with_notes_of_run(rows)
    assert own.words("notes") == other.words("notes") == MIST
    assert not third.words("notes")


def test_a_stage_of_whole_layers_is_what_the_planner_prices():
    predictor = Predictor()
    case = read_case(memory())
    network, workload = build_network(case.network), predictor.workload(case)
    priced = price_plan(network, workload, build_plan(network, workload, case.plan))
    for index, stage in enumerate(priced.stages):
        held = block_stage_memory(
            workload.parameter_bytes,
            workload.table(Degrees(tp=2, micro_batch_size=2)),
            BlockStage(
                num_blocks=4,
                num_weights=4,
                recomputed=4,
                ends=(0,) if index == 0 else (9, 10),
                in_flight=2 - index,
            ),
        )
        assert held == pytest.approx(dict(stage.memory))


@failures.over(
    ("metric", "of"),
    [
        ("torch max allocated", "allocated"),
        ("peak memory as logged (max reserved)", "reserved"),
        ("GPU memory used (nvidia-smi style, rounded)", "reading"),
        ("OOM", "device"),
        ("params+grads+optimizer", "tensors"),
    ],
)
def test_a_metric_says_what_it_counts(metric, of):
    assert counted(metric).of == of


def test_reserved_and_device_exceed_allocated_as_the_allocator_says():
    predictor = Predictor()
    shown = [
        score_memory(predictor, memory(metric=metric, value_gib="3")).predicted
        for metric in ("max allocated", "max reserved", "GPU memory used")
    ]
    constants = predictor.constants.allocator("megatron-lm")
    assert shown[1] == pytest.approx(shown[0] * (1 + constants.fragmentation))
    assert shown[2] == pytest.approx(shown[1] + constants.context)


def test_more_recompute_and_offloading_never_take_more():
    predictor = Predictor()
    sizes = [
        score_memory(predictor, staged(notes)).predicted
        for notes in (
            MIST.replace("ckpt layers=[2", "ckpt layers=[1"),
            MIST,
            MIST.replace("0.25, 0.0]", "0.75, 0.0]"),
        )
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_a_run_that_ran_out_of_memory_is_held_against_the_device():
    rows = (memory(metric="OOM", value_gib="", layers="2000"),)
    (result,) = validate(Measurements(name="m", kind="memory", rows=rows)).rows
    assert result.ran_out_of_memory
    assert math.isnan(result.measured)
    assert result.predicted > 80 * GIB
    assert not result.fits
    assert not result.is_misjudged


def test_what_the_framework_keeps_is_no_room_for_tensors():
    predictor = Predictor()
    case = read_case(memory())
    workload = predictor.workload(case)
    assert workload.allocator.needed(workload.tensor_memory()) == pytest.approx(
        80 * GIB
    )
    assert workload.tensor_memory(GIB) < workload.tensor_memory() < 80 * GIB
    ideal = replace(workload, software=IDEAL)
    assert ideal.tensor_memory(GIB) == 79 * GIB


def test_rows_without_software_take_that_of_their_source():
    case = read_case(memory(software="", source="github:pytorch/torchtitan@1:a.md"))
    assert case.preset == "torchtitan"
    assert "software = torchtitan, by the source" in case.assumed


def open_row(**cells):
    """Return a row that leaves recompute open and needs much without."""
    given = {"recompute": "", "micro_batch": "16", "global_batch": "256"}
    return gpt(**{**given, "layers": "48", "hidden": "4096", "ffn": "16384", **cells})


def test_the_least_recompute_that_fits_is_assumed_where_a_row_leaves_it_open():
    predictor = Predictor()
    small = read_case(open_row(micro_batch="1"))
    assert small.leaves_recompute_open
    assert predictor.settled(small) is small
    large = predictor.settled(read_case(open_row(flash_attention="yes")))
    assert large.plan.recompute == "full"
    assert "recompute full, the least that fits in memory" in large.assumed
    close = read_case(open_row(micro_batch="8", flash_attention="yes"))
    share = predictor.predict(close, memory=True).memory_share
    assert 1.0 < share < CLEARLY
    assert predictor.settled(close) is close
    said = read_case(open_row(recompute="none", flash_attention="yes"))
    assert predictor.settled(said) is said
    huge = read_case(open_row(layers="960"))
    assert predictor.settled(huge) is huge


@failures.over(
    ("model", "notes", "attention"),
    [
        ("gpt3_mcore_tp1_pp2", "test type ckpt-resume", "plain"),
        ("gpt3_mcore_te_tp2_pp2", "test type regular", "plain"),
        ("gpt3_mcore_te_tp2_pp2", "test type ckpt-resume", "flash"),
        ("gpt3_mcore_te_tp2_pp1_cp2", "test type regular", "flash"),
        ("gpt3_7b_tp4_pp1", "test type regular", "flash"),
    ],
)
def test_tests_of_megatron_say_whether_attention_is_fused(model, notes, attention):
    row = memory(model=model, notes=notes, flash_attention="not stated (TE/cuDNN auto)")
    assert read_case(row).model.attention_implementation == attention


def test_gradients_that_were_cast_are_there_at_the_end_of_a_step():
    end = memory(software="Megatron-Core", precision="fp16", metric="end of step")
    case = read_case(end)
    parts = case.training.parameter_bytes
    assert parts.copies == 4
    predictor = Predictor()
    stage = predictor.predict(case, memory=True).memory[0]
    assert stage.copies == pytest.approx(stage.optimizer * 4 / 12)
    allocator = predictor.workload(case).allocator
    static = stage.weights + stage.gradients + stage.optimizer + stage.copies
    expected = allocator.allocated(static)
    assert score_memory(predictor, end).predicted == pytest.approx(expected)


def test_whole_weights_of_fsdp_are_in_16_bits_beside_shards_in_fp32():
    sharded = {"software": "PyTorch FSDP", "precision": "bf16", "pp": "1", "dp": "8"}
    for stage, kept in ((2, False), (3, True)):
        row = memory(**sharded, zero_or_fsdp=f"ZeRO-{stage}")
        assert read_case(row).training.weights_in_fp32 == kept
    gathered = memory(**sharded, zero_or_fsdp="ZeRO-2")
    default = memory(
        **{**sharded, "precision": "amp_bf16, MP mode DEFAULT"}, zero_or_fsdp="ZeRO-2"
    )
    # Both gather 16 bits (Composer, pull request 2047).
    assert not read_case(default).training.weights_in_fp32
    assert not read_case(gathered).training.weights_in_fp32


SMALL = {"layers": "24", "hidden": "2048", "ffn": "8192", "heads": "16", "dp": "1"}
MIDDLE = {"layers": "32", "hidden": "2560", "ffn": "10240", "heads": "32", "dp": "2"}
LARGE = {"layers": "32", "hidden": "4096", "ffn": "16384", "heads": "32", "dp": "2"}

PEAKS = (
    ((SMALL, "no", 32, 1), ((13, 0, 0.0, 18.0723), (11, 0, 0.0, 13.0918))),
    ((SMALL, "yes", 32, 2), ((13, 0, 0.0, 17.9268), (11, 0, 0.0, 13.375))),
    ((MIDDLE, "yes", 64, 1), ((17, 0, 0.0, 19.1475), (15, 0, 0.0, 15.0527))),
    (
        (LARGE, "no", 128, 1),
        (
            (7, 5, 0.125, 19.5635),
            (8, 1, 0.875, 18.876),
            (9, 0, 0.875, 17.7197),
            (8, 0, 0.375, 18.6143),
        ),
    ),
)
"""What Mist's repository measured of GPTs on L4 (github:Dazz993/Mist,
benchmark/mist/tuned_configs/l4-24gb/gpt/expected_summary.json, Apache-2.0): the model,
whether attention is fused, the batch and the micro-batch; of each stage blocks, those
that are recomputed, the part of the states on the host, the peak [GiB]."""


def test_ten_peaks_that_mist_measured_are_met() -> None:
    predictor, errors = Predictor(), []
    for (model, fused, batch, b), stages in PEAKS:
        blocks, again = ([one[place] for one in stages] for place in (0, 1))
        each = [[b, int(model["dp"]), 1, 0, 0, 1, 0, 0, one[2], 0] for one in stages]
        notes = f"stages: layers={blocks}, ckpt layers={again}, per-stage [mbs]={each}"
        for index, (_, _, _, peak) in enumerate(stages):
            kv = {"kv_heads": model["heads"], "vocab": "50304", "seq_len": "2048"}
            row = memory(
                **{**model, **kv},
                accelerator="L4-24GB",
                software="Mist (PyTorch)",
                num_devices=str(len(stages) * int(model["dp"])),
                global_batch=str(batch),
                micro_batch=str(b),
                tp="1",
                pp=str(len(stages)),
                zero_or_fsdp="per stage",
                flash_attention=fused,
                recompute="per stage",
                where=f"stage {index}",
                notes=notes,
                value_gib=str(peak),
            )
            errors.append(score_memory(predictor, row).predicted / GIB / peak - 1.0)
    assert len(errors) == 10
    assert max(map(abs, errors)) < 0.05
    assert math.fsum(map(abs, errors)) / len(errors) < 0.02


def test_the_logits_are_gone_when_blocks_are_run_again() -> None:
    """The first example of Mist's README: full recompute, eight sequences at once.

    19,273.8 MiB were measured (README.md, step 2.3). Logits in fp32 beside one block's
    activations would make it 11 % more.
    """
    _, sizes = published_measurements()
    (row,) = (row for row in sizes.rows if row.row_id == "mist-1.3b-full")
    score = score_memory(Predictor(), row)
    assert score.predicted == pytest.approx(19273.8 * 2**20, rel=0.03)
    assert score.memory_share < 1.0
