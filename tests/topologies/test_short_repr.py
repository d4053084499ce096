"""Records that hold a lot are shown in a few lines."""

from dataclasses import dataclass, make_dataclass
from typing import Any, NamedTuple

import numpy as np

from tests import failures
from topologies.errors import MOST, short_repr, shortened


class Pair(NamedTuple):
    first: int
    second: tuple[int, ...]


@dataclass
class Record:
    value: Any
    __repr__ = short_repr


@failures.over(
    ("value", "text"),
    [
        (1.5, "1.5"),
        ("abc", "'abc'"),
        (None, "None"),
        ((1,), "(1,)"),
        ([1, "a"], "[1, 'a']"),
        ({1}, "{1}"),
        ({"a": 1}, "{'a': 1}"),
        (Pair(1, (2, 3)), "Pair(first=1, second=(2, 3))"),
        (list(range(10**6)), "<list of 1,000,000>"),
        ({str(one): one for one in range(100)}, "<dict of 100>"),
        (np.zeros((3, 4)), "<array of 3 x 4, float64>"),
        (range(10**9), "range(0, 1000000000)"),
    ],
)
def test_values_are_written_or_counted(value: Any, text: str) -> None:
    assert shortened(value) == text
    assert repr(Record(value)) == f"Record(value={text})"


def test_nothing_is_long() -> None:
    deep: Any = "a" * 10**6
    for _ in range(50):
        deep = Record([deep, (deep,), {"deep": deep}])
    assert len(repr(deep)) < MOST


def test_many_fields_are_cut() -> None:
    names = [f"f{index}" for index in range(90)]
    wide = make_dataclass("Wide", names, namespace={"__repr__": short_repr})
    text = repr(wide(*("b" * 70 for _ in names)))
    assert text.endswith("..)")
    assert len(text) == MOST + 3
