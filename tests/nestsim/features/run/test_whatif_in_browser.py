"""Candidates in a real browser: sliders, brushes and tables, by mouse and keyboard."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nestsim.document.parts import Document
from nestsim.features.run.document import run_document
from nestsim.features.run.whatif import (
    CandidatesRecord,
    candidates_section,
    estimated_times,
)
from tests.nestsim.features.conftest import DARK, DESKTOP, PHONE, Opened
from tests.nestsim.features.run.examples import FOUR_STAGES, make_job

Open = Callable[..., Opened]

JOB = make_job(*FOUR_STAGES)

NUM = 24

TERMS = ("compute", "tensor collectives", "tail")


def _of_tensor(*changes: float) -> list[float]:
    return [number for change in changes for number in (0.0, change, 0.0)]


def _of_tail(*changes: float) -> list[float]:
    return [number for change in changes for number in (0.0, 0.0, change)]


def example() -> dict[str, Any]:
    """Return candidates of which the first is fastest while the spine is fast."""
    numbers = range(NUM)
    terms = [(1.0 + 0.02 * k, 0.2, 0.5 - 0.02 * k) for k in numbers]
    changes = [
        [*_of_tensor(0.3, 0.1, -0.05), *_of_tail(3 * t[2], t[2], -t[2] / 2)]
        for t in terms
    ]
    data = {
        "num_devices": 64,
        "tokens": 1e6,
        "device_hour": 2.5,
        "currency": "USD",
        "levels": [
            {"name": "<b>", "bandwidth_bytes_per_s": 4.5e11, "oversubscription": None},
            {"name": "spine", "bandwidth_bytes_per_s": 5e10, "oversubscription": None},
        ],
        "terms": TERMS,
        "reported": 0,
        **{axis: [1] * NUM for axis in ("cp", "ep", "v")},
        **{axis: [2 ** (k % 4) for k in numbers] for axis in ("tp", "pp", "b")},
        "dp": [8] * NUM,
        "recompute": [("none", "full")[k % 2] for k in numbers],
        "recomputed": [("recompute none", "recompute full")[k % 2] for k in numbers],
        "zero": ["1"] * NUM,
        "memory_bytes": [(60.0 - k) * 2**30 for k in numbers],
        "planned_s": [sum(t) + 0.001 * k for k, t in enumerate(terms)],
        "bound_s": [1.5] * NUM,
        "replayed_s": [1.7, *([None] * (NUM - 1))],
        "terms_s": terms,
        "changes_s": changes,
    }
    return dict(json.loads(json.dumps(data)))


RECORD = CandidatesRecord.read(example())


def page() -> Document:
    return run_document(JOB).with_section(candidates_section(example()), "candidates")


def answer(one: Opened) -> str:
    return str(one.view.locator(".answer").inner_text())


def ranking(one: Opened) -> list[int]:
    rows = one.view.locator(".listing tbody button")
    return [int(rows.nth(k).get_attribute("data-row")) for k in range(rows.count())]


@pytest.mark.parametrize(
    "options", [DESKTOP, DARK, PHONE], ids=["light", "dark", "phone"]
)
def test_candidates_are_drawn_and_accessible(
    opened: Open, options: dict[str, Any]
) -> None:
    one = opened(page(), **options)
    assert one.view.locator(".chart path.kept").count() == NUM
    assert one.view.locator(".chart circle.bounded").count() == NUM - 1
    assert len(ranking(one)) == NUM
    assert "the replay is the judge" in answer(one)
    one.view.evaluate(
        "document.querySelectorAll('details').forEach(d => d.open = true)"
    )
    assert one.violations() == []
    assert one.width() <= options["viewport"]["width"]
    assert one.complaints == []


def test_a_slider_ranks_anew_by_the_closed_form(opened: Open) -> None:
    one = opened(page())
    assert ranking(one) == [*range(NUM)]
    slider = one.view.get_by_label("Bandwidth of level spine")
    slider.focus()
    for _ in range(8):
        slider.press("ArrowLeft")
    expected = estimated_times(RECORD, [1.0, 0.5])
    assert ranking(one) == np.argsort(expected, kind="stable").tolist()
    assert ranking(one)[0] == NUM - 1
    assert f"place {NUM}" in answer(one)
    assert "0.5 x, 25 GB/s" in one.view.locator(".sliders output").nth(1).inner_text()
    one.view.get_by_role("button", name="As built").click()
    assert ranking(one) == [*range(NUM)]


def test_a_price_is_that_of_all_devices_for_the_estimated_time(opened: Open) -> None:
    one = opened(page())
    hour = one.view.get_by_label("Price of a device for an hour")
    costs = one.view.locator(".listing tbody tr").first.locator("td")
    place = one.view.locator(".listing thead th").all_inner_texts()
    column = place.index("USD for 10⁹ tokens") - 1
    expected = 2.5 * 64 * RECORD.planned_s[0] / 3600 * 1e9 / 1e6
    assert float(costs.nth(column).inner_text()) == pytest.approx(expected, rel=1e-3)
    hour.focus()
    for _ in range(8):
        hour.press("ArrowRight")
    twice = float(costs.nth(column).inner_text())
    assert twice == pytest.approx(2 * expected, rel=1e-3)


def test_a_pick_is_marked_in_both_drawings_and_the_table(opened: Open) -> None:
    one = opened(page())
    button = one.view.locator(".listing tbody button").nth(3)
    button.focus()
    button.press("Enter")
    assert one.view.locator(".chart .picked").count() == 2
    again = one.view.locator(".listing button[aria-pressed=true]")
    assert again.get_attribute("data-row") == "3"
    assert again.evaluate("node => node === document.activeElement")
    one.view.locator(".chart circle[data-row='5']").click()
    picked = one.view.locator(".listing button[aria-pressed=true]")
    assert picked.get_attribute("data-row") == "5"
    terms = one.view.locator("[aria-label='Terms of a candidate']")
    assert "tail" in terms.inner_text()


def test_dragging_along_an_axis_keeps_what_lies_there(opened: Open) -> None:
    one = opened(page())
    grip = one.view.locator(".chart .grip").last
    grip.scroll_into_view_if_needed()
    box = grip.bounding_box()
    x, top = box["x"] + box["width"] / 2, box["y"] + 8
    one.view.mouse.move(x, top)
    one.view.mouse.down()
    one.view.mouse.move(x, top + (box["height"] - 16) / 2, steps=4)
    one.view.mouse.up()
    memory = RECORD.memory_bytes
    middle = (min(memory) + max(memory)) / 2
    few = [row for row in range(NUM) if memory[row] >= middle]
    assert ranking(one) == few
    assert one.view.locator(".chart path.kept").count() == len(few)
    assert one.view.locator(".chart circle.kept").count() == len(few)


def test_what_is_kept_can_be_said_by_keyboard(opened: Open) -> None:
    one = opened(page())
    one.view.get_by_text("Keep candidates by settings").click()
    slider = one.view.get_by_label("tp from")
    slider.focus()
    slider.press("End")
    assert ranking(one) == [row for row in range(NUM) if RECORD.tp[row] == 8]
    batch = one.view.get_by_label("Micro-batch", exact=True)
    batch.focus()
    batch.press("ArrowRight")
    assert ranking(one) == []
    assert "widen" in answer(one)
