"""Results that stand on the pages are what the commands beside them print."""

import re
import shlex
from pathlib import Path

import pytest

from nestsim.cli import main
from nestsim.scenario.load import load_scenario
from tests.docs.made import SCENARIOS
from tests.docs.pages import DOCS, README, ROOT, blocks, commands
from topologies.errors import InputError

MAIN = ["run", "scenarios/glm4_32b_64_h100.toml"]

MOST_LINES = 40
"""Lines of the report of the demo."""

SHOWN = {
    "compare.md": "compare",
    "stress.md": "stress",
    "goodput.md": "goodput",
    "jitter.md": "jitter",
    "rl.md": "rl",
    "sites.md": "sites",
    "sweep.md": "sweep",
    "jobs.md": "jobs",
    "collectives.md": "collectives",
    "validate.md": "validate",
}
"""Page -> the command that printed what it shows."""

_SEARCH_TIME = re.compile(r"^((?:nest|manual|mcmc|phaze) +)[\d.]+ m?s", re.MULTILINE)
"""The one number of a report that differs from run to run."""


_COMMAND = re.compile(r"^\$ (?:.*\\\n)*.*\n", re.MULTILINE)


def plain(text: str) -> str:
    """Return a text without its spaces at the ends of lines and its search times."""
    lines = "\n".join(line.rstrip() for line in text.strip().split("\n"))
    lines = _SEARCH_TIME.sub(r"\1.", lines)
    return re.sub(r"^(\S+) +\. +", r"\1 ", lines, flags=re.MULTILINE)


def printed(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command, and return what it prints."""
    capsys.readouterr()
    assert main([*words, "--output", str(folder), "--no-figures", "--quiet"]) == 0
    return plain(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_report_of_the_demo_is_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = printed(MAIN, tmp_path / "demo", capsys)
    assert len(report.splitlines()) <= MOST_LINES
    whole, *_ = (one for one in blocks("text") if one.page == DOCS / "index.md")
    assert plain(whole.text) == report
    start, *_ = (one for one in blocks("text") if one.page == README)
    assert report.startswith(plain(start.text))


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN)
def test_a_table_on_a_page_is_what_the_command_prints(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, *_ = (
        line for name, line in commands() if name == page and SHOWN[page] in line
    )
    words = shlex.split(line.replace("-o stress", ""), comments=True)
    report = printed(words[words.index("nestsim") + 1 :], tmp_path / "results", capsys)
    shown, *_ = (
        block.text
        for block in [*blocks("text"), *blocks("console")]
        if block.page.name == page
        and re.search("───|^Conditions|^Replicas", block.text, re.M)
    )
    lines = plain(_COMMAND.sub("", shown)).split("\n")
    expected = {*report.split("\n"), ""}
    assert [one for one in lines if one not in expected] == []


@pytest.mark.slow
def test_fitted_constants_on_the_page_are_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the constants the table: the file that is written is another."""
    line = next(line for _, line in commands() if "calibrate scenarios/" in line)
    words = shlex.split(line.partition(" -o")[0])[1:]
    assert main([*words, "--output", str(tmp_path / "my.toml"), "--quiet"]) == 0
    printed = {one.rstrip() for one in capsys.readouterr().out.split("\n")}
    shown = next(one for one in blocks("console") if "calibrate scenarios/" in one.text)
    lines = _COMMAND.sub("", shown.text).split("\n")
    assert [one for one in lines if one.rstrip() not in printed] == []


def test_a_mistake_on_the_page_is_told_so(tmp_path: Path) -> None:
    shown = next(one for one in blocks("text") if "has no unit" in one.text)
    text = (SCENARIOS / "llama2_7b_64_h100.toml").read_text(encoding="utf-8")
    file = tmp_path / "mine.toml"
    mistaken = re.sub(
        r'^node_bandwidth = ".*?"', "node_bandwidth = 450", text, flags=re.M
    )
    file.write_text(mistaken, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_scenario(file)
    assert (
        str(caught.value).replace(str(file), "scenarios/mine.toml")
        == shown.text.strip()
    )


@pytest.mark.slow
def test_the_networks_on_the_page_are_what_the_folder_says(tmp_path: Path) -> None:
    line, *_ = (line for _, line in commands() if "scenarios/networks/*" in line)
    words = shlex.split(line)
    at = words.index("--networks") + 1
    files = sorted(str(one.relative_to(ROOT)) for one in ROOT.glob(words[at]))
    asked = [*words[1:at], *files, "-o", str(tmp_path), "--no-figures", "-q"]
    assert main(asked) == 0
    report = plain((tmp_path / "report.txt").read_text(encoding="utf-8"))
    shown = next(one.text for one in blocks("text") if one.text.startswith("Ports "))
    assert plain(shown) in report


def test_costs_on_the_page_are_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, *_ = (one for name, one in commands() if name == "cost.md")
    report = printed(shlex.split(line)[1:], tmp_path / "results", capsys)
    shown, *_ = (one for one in blocks("text") if one.page.name == "cost.md")
    assert plain(shown.text) in report


@pytest.mark.slow
def test_savings_on_the_page_are_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = next(
        one for name, one in commands() if name == "cost.md" and " stress " in one
    )
    words = shlex.split(line.partition(" --output")[0])[1:]
    report = printed(words, tmp_path / "results", capsys)
    _, shown, *_ = (one for one in blocks("text") if one.page.name == "cost.md")
    assert plain(shown.text) in report
