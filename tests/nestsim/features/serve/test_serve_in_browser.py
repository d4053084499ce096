"""The service's pages in a real browser: ask, look, change something, replay, see."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nestsim.features.compare.small import write
from tests.nestsim.features.conftest import DARK, DESKTOP, PHONE, Opened
from tests.nestsim.features.serve.serving import Served


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("job"), plan=True).read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("serve")) as served:
        yield served


def opened_at(browser: Any, url: str, options: dict[str, Any]) -> Opened:
    """Open a page of a server; requests for other hosts are complaints."""
    host = url.split("/")[2]
    view = browser.new_context(**options).new_page()
    one = Opened(view)
    view.set_default_timeout(60_000)
    view.on("console", lambda said: one.complaints.append(said.text))
    view.on("pageerror", lambda error: one.complaints.append(str(error)))
    view.on(
        "request",
        lambda asked: host in asked.url or one.complaints.append(asked.url),
    )
    view.goto(url)
    return one


@pytest.mark.parametrize(
    "options", [DESKTOP, DARK, PHONE], ids=["light", "dark", "phone"]
)
def test_a_scenario_is_asked_changed_and_replayed(
    browser: Any, served: Served, text: str, options: dict[str, Any]
) -> None:
    one = opened_at(browser, f"{served.url}/", options)
    view = one.view
    view.wait_for_selector("html[data-ready]", state="attached")
    assert one.violations() == []
    view.get_by_label("Scenario").fill(text)
    view.get_by_label("What").select_option("simulate")
    view.get_by_role("button", name="Ask").click()
    view.wait_for_url("**/results/*")
    view.wait_for_selector("html[data-ready]", state="attached")
    frame = view.frame_locator("iframe")
    frame.locator("h1").first.wait_for()
    rows = view.locator("main > table tbody tr")
    assert rows.count() == 1
    view.get_by_label("Tensor parallel").fill("2")
    view.get_by_label("Micro-batch").fill("2")
    slider = view.get_by_label("spine")
    for _ in range(4):
        slider.press("ArrowRight")
    view.get_by_role("button", name="Replay").click()
    rows.nth(1).wait_for()
    said = rows.nth(1).inner_text()
    assert "tensor parallel 2, micro-batch 2, spine 20 GB/s" in said
    expected = text.replace("el_size = 4", "el_size = 2").replace(
        "batch_size = 1\n", "batch_size = 2\n"
    )
    expected = expected.replace('"10 GB/s"', '"20 GB/s"')
    found = served.ask("simulate", scenario=expected).json()["result"]
    seconds = found["simulated"]["iteration_time_s"]
    assert f"{seconds:#.4g} s" in said or f"{1000 * seconds:#.4g} ms" in said
    assert one.width() <= options["viewport"]["width"]
    assert one.violations() == []
    assert one.complaints == []


def test_a_change_that_cannot_be_is_said(
    browser: Any, served: Served, text: str
) -> None:
    asked = served.ask("simulate", scenario=text, page=True).json()["id"]
    one = opened_at(browser, f"{served.url}/results/{asked}", DESKTOP)
    one.view.wait_for_selector("html[data-ready]", state="attached")
    one.view.get_by_label("Tensor parallel").fill("3")
    one.view.get_by_role("button", name="Replay").click()
    state = one.view.locator("#state.mistake")
    state.wait_for()
    assert "tensor_model_parallel_size" in state.inner_text()


def test_a_browser_is_asked_for_a_token(browser: Any, tmp_path: Path) -> None:
    token = "t" * 20
    (tmp_path / "tokens").write_text(f"anna {token}\n")
    with Served(tmp_path / "a", "--token-file", str(tmp_path / "tokens")) as served:
        one = opened_at(browser, f"{served.url}/", DESKTOP)
        assert one.violations() == []
        one.view.get_by_label("Token").fill("wrong")
        one.view.get_by_role("button", name="Go on").click()
        one.view.get_by_label("Token").fill(token)
        one.view.get_by_role("button", name="Go on").click()
        one.view.get_by_label("Scenario").wait_for()
        (cookie,) = one.view.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
