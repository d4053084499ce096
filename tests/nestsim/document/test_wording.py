"""How numbers, devices and plans are written."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nestsim.document.wording import (
    device_ranges,
    gap_cause,
    gap_sentence,
    layer_span,
    number,
    parallel_sentence,
    percent,
    plan_label,
    plural,
    schedule_label,
    signed_duration,
    signed_percent,
    size_of_limit,
)
from nestsim.evaluate.verdict import Gap
from tests import failures
from tests.nestsim.features.run.examples import Shape, layer_names, make_plan


@failures.over(
    ("terms", "cause", "sentence"),
    [
        (
            {"settings": -2.0, "contention at leaf": 5.0, "synchronisation": 1.0},
            "contention at leaf",
            "The largest part is contention at leaf: messages that share the links of "
            "leaf.",
        ),
        (
            {"settings": -4.0, "contention": 1.0},
            "settings",
            "The largest part is settings: what the replay simulates that the plan "
            "does not know of.",
        ),
        ({"contention": 0.0, "settings": 0.05}, "settings", ""),
        ({"contention": 0.0, "synchronisation": 0.0}, "", ""),
    ],
)
def test_the_cause_of_a_gap_is_the_largest_in_its_direction(
    terms: dict[str, float], cause: str, sentence: str
) -> None:
    gap = Gap(total=sum(terms.values()), terms=terms)
    assert gap_cause(gap) == cause
    assert gap_sentence(gap, 100.0) == sentence


@given(st.sets(st.integers(0, 200)))
def test_ranges_name_exactly_the_devices(devices: set[int]) -> None:
    named = set()
    for part in device_ranges(devices, most=300).split(", ") if devices else []:
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == devices


@failures.over(
    ("devices", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([3, 1, 2, 2], "1-3"),
        ([0, 1, 8, 9], "0-1, 8-9"),
        (
            [d for r in range(8) for d in (16 * r, 16 * r + 1)],
            "0-1, .. 112-113 (8 x 2)",
        ),
        ([0, 2, 4, 6], "0, .. 6 (4)"),
        ([0, 1, 8, 16, 17], "0-1, .. 16-17 (3)"),
    ],
)
def test_many_ranges_are_shortened_and_counted(devices: list[int], text: str) -> None:
    assert device_ranges(devices, most=2) == text


def test_numbers_that_do_not_exist_are_a_dash() -> None:
    for write in (percent, signed_percent, number):
        assert write(math.nan) == "-"
        assert write(math.inf) == "-"


def test_small_and_large_numbers_are_written_for_people() -> None:
    assert number(412345.4) == "412,345"
    assert number(12) == "12"
    assert number(160.0) == "160.0"
    assert number(12.34) == "12.3"
    assert percent(0.4612) == "46.1 %"
    assert plural(1, "device") == "1 device"
    assert plural(1024, "device") == "1,024 devices"
    assert plural(2, "switch") == "2 switches"


def test_no_difference_has_no_minus_sign() -> None:
    assert signed_percent(-1e-9) == "+0.0 %"
    assert signed_percent(-0.012) == "-1.2 %"
    assert signed_duration(-0.0) == "+0 s"
    assert signed_duration(-0.0123) == "-12.3 ms"


def test_memory_is_written_in_the_unit_of_the_limit() -> None:
    assert size_of_limit(71.23 * 2**30, 80 * 2**30) == "71.23 of 80 GiB"
    assert size_of_limit(0.5 * 2**30, 80 * 2**30) == "0.5 of 80 GiB"


def test_a_plan_is_named_by_its_degrees_and_savings() -> None:
    shape = Shape(p=4, d=2, t=8, recompute="full", zero=1)
    assert plan_label(make_plan(shape)) == "tp8 pp4 dp2 b1 recompute full ZeRO-1"
    assert plan_label(make_plan(Shape(zero=0))) == "tp8 pp4 dp2 b1"
    assert plan_label(make_plan(Shape(zero=0, v=2))) == "tp8 pp4 vpp2 dp2 b1"


def test_a_schedule_says_how_many_chunks_it_interleaves() -> None:
    assert schedule_label(make_plan(Shape())) == "1f1b"
    interleaved = schedule_label(make_plan(Shape(v=3)))
    assert interleaved == "interleaved-1f1b, 3 chunks per stage"


def test_idle_devices_are_said() -> None:
    sentence = parallel_sentence(make_plan(Shape(p=3, d=2, t=8)), 64)
    assert sentence == "tensor 8 x pipeline 3 x data 2 (48 of 64 devices, 16 idle)"


def test_layers_are_named_from_the_first_to_the_last() -> None:
    plan = make_plan(Shape(p=34, d=1, t=1))
    assert layer_span(layer_names(), plan.stages[0]) == "embedding"
    whole = make_plan(Shape(p=1)).stages[0]
    assert layer_span(layer_names(), whole) == "embedding .. head"


@failures.over(
    ("chunks", "text"),
    [
        (((0, 3), (12, 15)), "embedding .. block 2, block 11-14"),
        (((4, 7), (16, 19), (28, 31)), "block 3-6, 15-18, 27-30"),
        (((4, 4), (16, 16)), "block 3, 15"),
        (((12, 15), (28, 33)), "block 11-14, block 27 .. head"),
        (((0, 0), (16, 17), (33, 33)), "embedding, block 15-16, head"),
    ],
)
def test_chunks_are_named_in_short(
    chunks: tuple[tuple[int, int], ...], text: str
) -> None:
    stage = replace(make_plan(Shape(p=1)).stages[0], chunks=chunks)
    assert layer_span(layer_names(), stage) == text


def test_only_numbers_after_the_same_word_are_shortened() -> None:
    names = ("encoder 0", "encoder 1", "decoder 0", "layer a", "layer b", "7", "8")
    one = make_plan(Shape(p=1)).stages[0]
    stage = replace(one, chunks=((0, 1), (1, 2), (2, 2), (3, 4), (5, 6)))
    assert layer_span(names, stage) == (
        "encoder 0-1, encoder 1 .. decoder 0, decoder 0, layer a .. layer b, 7 .. 8"
    )
