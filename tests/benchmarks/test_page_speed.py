"""How large the page of the main scenario is, and how soon readers can use it."""

import os
from pathlib import Path
from statistics import median

import pytest

import nestsim
from tests.nestsim.features.conftest import CHROMIUM

SCENARIO = Path(__file__).parents[2] / "scenarios" / "llama2_7b_64_h100.toml"
LARGEST = 3_000_000
"""[byte]"""

ROUNDS = 7


@pytest.mark.benchmark
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_time_until_a_page_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the start of navigation until figures are drawn and a click has sorted."""
    from playwright.sync_api import sync_playwright

    file = tmp_path / "page.html"
    nestsim.run(SCENARIO).save_page(file)
    size = file.stat().st_size
    drawn, sorted_ = [], []
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        for _ in range(ROUNDS):
            view = browser.new_page()
            view.goto(file.as_uri())
            view.wait_for_selector("html[data-ready]", state="attached")
            drawn.append(
                view.evaluate("performance.getEntriesByName('ready')[0].startTime")
            )
            sorted_.append(
                view.evaluate(
                    """() => {
                        const button = document.querySelector(".sortable button");
                        button.click();
                        const heading = button.closest("th");
                        if (!heading.hasAttribute("aria-sort")) throw Error("unsorted");
                        return performance.now();
                    }"""
                )
            )
            view.close()
        browser.close()
    with capsys.disabled():
        print(  # noqa: T201 - what was measured
            f"\npage {size / 1e6:.2f} MB; drawn after {median(drawn):.0f} ms "
            f"({min(drawn):.0f} to {max(drawn):.0f}), sorted after "
            f"{median(sorted_):.0f} ms"
        )
    assert size <= LARGEST
