"""The table of docs/accuracy.md is what the command prints, to 0.1 point."""

import re
from pathlib import Path

import pytest

from nestsim.cli import main
from nestsim.features.validation.runner import published_measurements, validate

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"

POINT = 0.1 + 1e-9
"""What a number of the page may be off by [percentage points]."""


def cells(text):
    lines = [line.strip("| ").split(" | ") for line in text.split("\n") if line]
    return [line for line in lines if "---" not in line[0]]


def value(cell):
    number = re.fullmatch(r"([+-]?[\d,.]+)(?: %)?", cell)
    return float(number[1].replace(",", "")) if number else cell


def test_the_page_says_what_the_command_prints(capsys):
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(
        r"<!-- nestsim validate --markdown -->\n(.*?)<!-- end -->", page, re.DOTALL
    )
    assert found is not None
    assert main(["validate", "--markdown"]) == 0
    tables = re.findall(
        r"## By source\n.*?\n\n(\|.*?)\n\n", capsys.readouterr().out, re.S
    )
    printed, written = cells("\n".join(tables)), cells(found[1])
    assert [line[:3] for line in written] == [line[:3] for line in printed]
    for ours, theirs in zip(written, printed, strict=True):
        for one, other in zip(ours[3:], theirs[3:], strict=True):
            assert value(one) == pytest.approx(value(other), abs=POINT), ours[0]


def test_a_run_that_ran_out_of_memory_is_not_predicted_to_fit():
    _, sizes = published_measurements()
    gone = [row for row in validate(sizes).rows if row.ran_out_of_memory]
    assert gone
    assert not any(row.fits for row in gone)
