"""The code weighs no more than its budget; what it won back stays won."""

from pathlib import Path

import pytest

from tests.architecture import budget
from tests.architecture.budget import SLACK, Module, counts, lowered, over, read_budget

HINT = "`python -m tests.architecture.budget` lowers it; --raise says who buys more"


def test_the_code_is_within_its_budget() -> None:
    assert over(counts(), read_budget()) == [], HINT


def test_what_was_won_back_is_not_left_to_be_spent() -> None:
    now, most = counts(), read_budget()
    loose = {
        name: f"{value} of {most[title][name]}"
        for title, rows in now.items()
        for name, value in rows.items()
        if value < most[title][name] - SLACK
    }
    gone = {*most["lines"]} - {*now["lines"]}
    assert (loose, gone) == ({}, set()), HINT


def test_prose_weighs_nothing() -> None:
    text = '''"""A module."""

# A comment.
NUMBERS = (
    1,  # one
)


def double(value: int) -> int:
    """Return it twice.

    Always.
    """
    text = """kept
    as it is"""
    return 2 * value
'''
    assert Module("nestsim/a/b/c.py", text).code_lines == [4, 5, 6, 9, 14, 15, 16]
    assert Module("nestsim/a/b/c.py", text).room == "nestsim/a"


def test_a_number_falls_by_itself_and_rises_only_by_its_name() -> None:
    known = {"lines": {"a": 10, "b": 10, "all": 20}}
    now = {"lines": {"a": 8, "b": 13, "c": 2, "all": 23}}
    kept = {"lines": {"a": 8, "b": 10, "c": 0, "all": 20}}
    assert lowered(now, known, "") == kept
    assert over(now, kept) == ["b: 13, of 10", "c: 2, of 0", "all: 23, of 20"]
    assert lowered(now, known, "b")["lines"] == {"a": 8, "b": 13, "c": 0, "all": 23}


def test_what_stands_twice_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = "".join(f"    field_{number}: int\n" for number in range(8))
    found = "def f(one: int) -> int:\n    found = one\n    return found\n"
    texts = (f"class A:\n{fields}", f"class B:\n{fields}{found}")
    files = tuple(
        Module(f"{name}.py", text) for name, text in zip("ab", texts, strict=True)
    )
    monkeypatch.setattr(budget, "modules", lambda: files)
    assert budget.ratchets() == {
        "modules": 2,
        "Any": 0,
        "empty names": 2,
        "twin classes": 1,
        # Of eight lines three windows of six.
        "repeated lines": 3,
    }


def test_the_file_is_as_the_program_writes_it() -> None:
    kept = read_budget()
    tables = {title: kept[title] for title in ("lines", "ratchets")}
    text = budget.budget_text(tables, kept["bought"])
    assert text == Path(budget.BUDGET).read_text("utf-8")
