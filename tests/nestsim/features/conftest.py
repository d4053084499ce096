"""Pages opened in a real Chromium, which the tests skip without."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nestsim.document.html import write_page
from nestsim.document.parts import Document

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)

DESKTOP = {"viewport": {"width": 1200, "height": 900}}
DARK = {**DESKTOP, "color_scheme": "dark"}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


@dataclass
class Opened:
    """A page in a browser, and what it has complained about."""

    view: Any
    """Playwright's page."""

    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and requests for anything."""

    def violations(self) -> list[str]:
        """Return what axe-core finds wrong with the page as it is now."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.view).response["violations"]
        return [
            f"{one['id']}: {node['html'][:200]}"
            for one in found
            for node in one["nodes"]
        ]

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; the page's policy lets no condition be sent."""
        for _ in range(250):
            if holds():
                return
            self.view.wait_for_timeout(20)
        raise AssertionError("it never came to hold")

    def width(self) -> int:
        """Return how wide the page is [pixel]."""
        return int(self.view.evaluate("document.documentElement.scrollWidth"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Return what opens a page, or a file that has one, once all figures are drawn."""
    contexts = []

    def open_page(page: Document | Path, **options: Any) -> Opened:
        path = page if isinstance(page, Path) else tmp_path / "opened.html"
        if isinstance(page, Document):
            write_page(page, path)
        context = browser.new_context(**(options or DESKTOP))
        contexts.append(context)
        view = context.new_page()
        one = Opened(view)
        view.on("console", lambda said: one.complaints.append(said.text))
        view.on("pageerror", lambda error: one.complaints.append(str(error)))
        view.on(
            "request",
            lambda asked: (
                asked.url.startswith("file:") or one.complaints.append(asked.url)
            ),
        )
        view.goto(path.as_uri())
        view.wait_for_selector("html[data-ready]", state="attached")
        return one

    yield open_page
    for context in contexts:
        context.close()
