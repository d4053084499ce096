"""Steps of pipelines whose stages differ: like stages are the oracle."""

import pytest

from nestsim.features.validation.case import read_case
from nestsim.features.validation.columns import RowRefusedError
from nestsim.features.validation.predict import Predictor
from tests import failures
from tests.nestsim.features.validation.validation_rows import gpt

PREDICTOR = Predictor()
NODE = {"num_devices": "4", "dp": "2", "tp": "1", "software": "Mist (PyTorch)"}


def mist(held, recomputed, settings, **changed):
    """Return a row that describes its stages as Mist does."""
    rows = [[*one, 0, 0, 1, 0.0, 0.0, 0.0, 0.0] for one in settings]
    cells = {
        "recompute": "per stage: see notes",
        "zero_or_fsdp": "per stage: see notes",
        "pp": str(len(held)),
        "notes": f"layers={held}, ckpt layers={recomputed}, per-stage [..]={rows}",
    }
    return gpt(**{**NODE, **cells, **changed})


def time_of(row):
    return PREDICTOR.planned_time(read_case(row))


def planned(**changed):
    """Return the planner's time of a row with like stages."""
    return PREDICTOR.planned_time(read_case(gpt(**{**NODE, **changed})))


@pytest.mark.parametrize(
    ("recomputed", "recompute"), [([0, 0], "none"), ([4, 4], "full")]
)
def test_stages_that_do_not_differ_have_the_planners_time(recomputed, recompute):
    described = time_of(mist([4, 4], recomputed, [[2, 2, 1]] * 2))
    even = planned(recompute=recompute, zero_or_fsdp="ZeRO-1")
    assert described == pytest.approx(even, rel=1e-9)


def test_unequal_layers_have_the_planners_time():
    described = time_of(mist([5, 4], [0, 0], [[2, 2, 1]] * 2, layers="9"))
    shared = planned(layers="9", recompute="none", zero_or_fsdp="ZeRO-1")
    assert described == pytest.approx(shared, rel=1e-6)


def test_repeating_half_of_the_layers_takes_half_of_what_repeating_all_does():
    sizes, cells = [[2, 4, 1]], {"dp": "4"}
    none, half, full = (
        time_of(mist([8], [count], sizes, **cells)) for count in (0, 4, 8)
    )
    assert none < half < full
    assert half - none == pytest.approx(full - half, rel=1e-6)


def test_a_stage_on_more_devices_is_between_like_stages():
    cells = {"num_devices": "3", "dp": "1"}
    pair = {"num_devices": "2", "dp": "1"}
    slow = time_of(mist([4, 4], [0, 0], [[2, 1, 1], [2, 1, 1]], **pair))
    mixed = time_of(mist([4, 4], [0, 0], [[2, 1, 1], [1, 2, 1]], **cells))
    fast = time_of(mist([4, 4], [0, 0], [[1, 2, 1], [1, 2, 1]]))
    assert fast < mixed < slow


def test_cuts_between_operators_add_up_to_the_same_work():
    """Aceso's 13 operators of a layer: 8 layers, the embedding and both ends."""
    cells = {
        "software": "Aceso",
        "recompute": "per-op (see notes)",
        "pp": "1",
        "tp": "1/2",
        "dp": "1",
        "num_devices": "2",
        "notes": "stage gpus=[2], ops per stage=[107], "
        "recomputed-op fraction per stage=[0.0]",
    }
    even = {**cells, "recompute": "none", "tp": "2", "notes": ""}
    assert time_of(gpt(**cells)) == pytest.approx(
        PREDICTOR.planned_time(read_case(gpt(**even))), rel=1e-6
    )


def test_layers_repeated_in_some_stages_are_read_from_the_column():
    words = "2 of 4 layers in stage 0, 0 in stage 1"
    case = read_case(gpt(**NODE, recompute=words))
    assert [sized.blocks.recomputed for sized in case.stages] == [2, 0]
    assert [sized.blocks.num_blocks for sized in case.stages] == [4, 4]
    by_notes = mist([4, 4], [2, 0], [[2, 2, 1]] * 2)
    assert time_of(gpt(**NODE, recompute=words, notes="ZeRO-1")) == time_of(by_notes)


def test_described_stages_that_do_not_differ_are_a_plan_of_whole_stages():
    row = mist([4, 4], [0, 0], [[2, 2, 1]] * 2, recompute="none", zero_or_fsdp="none")
    assert read_case(row).stages == ()


@failures.over(
    "row",
    [
        mist([4, 4], [0, 0], [[2, 1, 1], [1, 2, 1]], num_devices="3", software="NeMo"),
        mist([4, 4], [0, 0], [[2, 2, 1], [2, 1, 1]], num_devices="3"),
        mist([4, 4], [0, 0], [[1, 16, 1], [4, 4, 1]], devices_per_node="8"),
        mist([4, 4], [0, 0], [[2, 2, 1]] * 2, notes="no stages"),
    ],
)
def test_what_the_timeline_does_not_have_is_refused(row):
    with pytest.raises(RowRefusedError) as refused:
        time_of(row)
    assert refused.value.code == "uneven-plan"


def test_stages_that_do_not_hold_all_layers_contradict_their_row():
    with pytest.raises(RowRefusedError, match="7 of 8 layers"):
        read_case(mist([4, 3], [0, 0], [[2, 2, 1]] * 2))


def test_stages_that_do_not_differ_hold_what_a_plan_holds():
    row = mist([4, 4], [0, 0], [[2, 2, 1]] * 2)
    described = PREDICTOR.predict(read_case(row), memory=True).memory
    even = gpt(**NODE, recompute="none", zero_or_fsdp="ZeRO-1")
    plan = PREDICTOR.predict(read_case(even), memory=True).memory
    for one, other in zip(described, plan, strict=True):
        assert one.optimizer == pytest.approx(other.optimizer)
        assert one.activations == pytest.approx(other.activations)
        assert one.peak >= 0.99 * other.peak
