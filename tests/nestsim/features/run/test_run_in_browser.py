"""The page of a run in a real browser: complete, usable by all, and safe."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nestsim.document.html import page_html
from nestsim.document.parts import Document, Snippet
from nestsim.features.run.document import launch_section, run_document
from tests.nestsim.features.conftest import DARK, DESKTOP, PHONE, Opened
from tests.nestsim.features.run.examples import FOUR_STAGES, make_job, nothing_fits

Open = Callable[..., Opened]

HOSTILE = "</script><img src=x onerror=\"document.title='hit'\"><b>&amp;'\"${1}"

JOB = make_job(*FOUR_STAGES)
SNIPPET = Snippet(name="run.sh", text='torchrun "$HOST" \\\n  --nproc_per_node 8\n')


def page_of(result: Any, **changes: Any) -> Document:
    named = replace(result, **changes)
    return run_document(named).with_section(launch_section([SNIPPET]))


@pytest.mark.parametrize(
    "options", [DESKTOP, DARK, PHONE], ids=["light", "dark", "phone"]
)
def test_a_page_is_drawn_without_complaints_and_is_accessible(
    opened: Open, options: dict[str, Any]
) -> None:
    one = opened(page_of(JOB), **options)
    plots = one.view.locator(".plot")
    assert plots.count() >= 6
    for number in range(plots.count()):
        plot = plots.nth(number)
        assert plot.locator("svg path, svg text").count() > 1, number
        assert len(plot.get_attribute("aria-label")) > 40
    one.view.evaluate(
        "document.querySelectorAll('details').forEach(d => d.open = true)"
    )
    assert one.violations() == []
    assert one.width() <= options["viewport"]["width"]
    assert one.complaints == []


def test_the_verdict_comes_first_and_headings_are_in_order(opened: Open) -> None:
    one = opened(page_of(JOB))
    headings = one.view.locator("h1, h2").all_inner_texts()
    assert headings[0] == JOB.scenario_name
    assert "CONFIRMED" in headings[1]


def test_names_are_shown_as_text(opened: Open) -> None:
    names = tuple(HOSTILE for _ in JOB.layer_names)
    network = replace(
        JOB.network, vertex_names=tuple(HOSTILE for _ in JOB.network.vertex_names)
    )
    page = page_of(JOB, scenario_name=HOSTILE, layer_names=names, network=network)
    snippet = Snippet(name=HOSTILE, text=HOSTILE, note=HOSTILE)
    one = opened(
        replace(
            page,
            sections=tuple(
                replace(part, blocks=(snippet,)) if part.name == "launch" else part
                for part in page.sections
            ),
        )
    )
    assert one.view.locator("h1").inner_text() == HOSTILE
    assert one.view.locator("pre").inner_text() == HOSTILE
    assert one.view.title().endswith(HOSTILE)
    assert one.view.locator("img, main b").count() == 0
    one.view.locator("#figure-links .mark-rect path").first.hover()
    assert HOSTILE in one.view.locator("#tip").inner_text()
    assert one.violations() == []
    assert one.complaints == []


def test_a_heading_sorts_by_value_with_mouse_and_keyboard(opened: Open) -> None:
    one = opened(page_of(JOB))
    table = one.view.locator("#candidates table")
    times = [row.simulated.iteration_time for row in JOB.candidates]
    assert len(times) > 1
    button = table.get_by_role("button", name="Simulated")

    def shown() -> list[float]:
        column = table.locator("thead th").all_inner_texts().index("Simulated")
        cells = table.locator(f"tbody tr > :nth-child({column + 1})")
        return [float(cell.get_attribute("data-key")) for cell in cells.all()]

    button.click()
    assert shown() == sorted(times)
    button.focus()
    one.view.keyboard.press("Enter")
    assert shown() == sorted(times, reverse=True)
    heading = table.locator("th[aria-sort]")
    assert heading.get_attribute("aria-sort") == "descending"
    assert one.violations() == []


def test_the_window_of_time_moves_all_figures_over_time(opened: Open) -> None:
    one = opened(page_of(JOB))
    said = one.view.locator(".window output")
    before = said.inner_text()
    marks = one.view.locator("#figure-memory .plot svg")
    drawn = marks.inner_html()
    one.view.get_by_role("button", name="Zoom in").click()
    one.until(lambda: marks.inner_html() != drawn)
    assert said.inner_text() != before
    one.view.get_by_role("button", name="The whole step").click()
    assert said.inner_text() == before
    assert one.complaints == []


def test_a_snippet_is_copied(opened: Open) -> None:
    one = opened(page_of(JOB), permissions=["clipboard-read", "clipboard-write"])
    one.view.get_by_role("button", name="Copy run.sh").click()
    one.until(lambda: one.view.locator("#said").inner_text() == "Copied")
    assert one.view.evaluate("navigator.clipboard.readText()") == SNIPPET.text


def test_printing_opens_what_is_folded_and_leaves_out_what_is_to_click(
    opened: Open,
) -> None:
    one = opened(page_of(JOB))
    folded = one.view.locator("details:not([open])")
    before = folded.count()
    assert before > 0
    one.view.emulate_media(media="print")
    one.view.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert folded.count() == 0
    assert not one.view.locator("nav, .window, .copy").first.is_visible()
    assert one.width() <= DESKTOP["viewport"]["width"]
    one.view.evaluate("dispatchEvent(new Event('afterprint'))")
    assert folded.count() == before


def test_the_page_cannot_reach_a_network(opened: Open) -> None:
    one = opened(page_of(JOB))
    said = one.view.evaluate(
        "fetch('http://127.0.0.1:9/').then(() => 'done', error => error.name)"
    )
    assert said == "TypeError"
    assert any("Content Security Policy" in text for text in one.complaints)


def test_no_plan_is_a_page_too(opened: Open) -> None:
    result = nothing_fits()
    one = opened(page_of(result))
    assert result.shortfall in one.view.locator(".headline").inner_text()
    assert one.violations() == []
    assert one.complaints == []


def test_the_same_result_gives_the_same_bytes() -> None:
    assert page_html(page_of(JOB)) == page_html(page_of(JOB))


def test_nothing_outside_is_named() -> None:
    """But the grammar of figures and namespaces, which nobody reads."""
    html = page_html(page_of(JOB))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src &#39;none&#39;")
    assert "unsafe" not in policy[1]
    assert (
        re.findall(r"<(?:link|img|iframe|script src)", html.split("<script>")[0]) == []
    )


def test_figures_are_valid_json_without_markup() -> None:
    html = page_html(page_of(JOB, scenario_name=HOSTILE))
    text = html.split('id="figures">')[1].split("</script>")[0]
    assert "<" not in text
    assert set(json.loads(text)) == {one.name for one in page_of(JOB).figures}
