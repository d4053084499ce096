"""Tables against Python's own writer of CSV, and records that are read back."""

import csv
import io
import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.document.dumps import (
    ABSENT,
    Of,
    Record,
    csv_of,
    dump_json,
    frame_of,
    json_pieces,
)

ROWS = [
    {"name": 'a "b", c', "whole": 2**53 + 1, "part": 0.1 + 0.2, "flag": True},
    {"name": "ü\nz", "whole": None, "part": 1e-300, "flag": False},
    {"name": "", "whole": 0, "part": math.nan, "flag": None},
]


def test_numbers_are_exact_and_whole_ones_stay_whole() -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(ROWS[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if value != value else value for key, value in row.items()}  # noqa: PLR0124 - NaN
        for row in ROWS
    )
    assert csv_of(ROWS) == text.getvalue()
    assert csv_of([list(row.values()) for row in ROWS], [*ROWS[0]]) == text.getvalue()


def test_nothing_has_a_heading_if_it_is_given() -> None:
    assert (csv_of([]), csv_of([], ["a", "b"])) == ("", "a,b\n")
    assert frame_of(ROWS)["flag"].tolist() == [True, False, None]


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=60),
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=30), inner, max_size=6)
    ),
    max_leaves=60,
)


def laid_out(value: Any, indent: str = "", used: int = 0) -> str:
    """Return plain values as JSON: each line is written before it is measured."""
    line = json.dumps(value, ensure_ascii=False)
    is_short = used + len(line) <= 100
    if is_short or not isinstance(value, dict | list) or not value:
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        names = [f"{deeper}{json.dumps(key, ensure_ascii=False)}: " for key in value]
        rows = [
            name + laid_out(item, deeper, len(name) + 1)
            for name, item in zip(names, value.values(), strict=True)
        ]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if any(isinstance(item, dict | list) for item in value):
        rows = [deeper + laid_out(item, deeper, len(deeper) + 1) for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    lines = [deeper + json.dumps(value[0], ensure_ascii=False)]
    for item in value[1:]:
        word = json.dumps(item, ensure_ascii=False)
        if len(lines[-1]) + len(word) + 3 > 100:
            lines.append(deeper + word)
            lines[-2] += ","
        else:
            lines[-1] += f", {word}"
    return "[\n" + "\n".join(lines) + f"\n{indent}]"


@given(VALUES)
def test_lines_break_where_writing_them_out_first_would_break_them(value: Any) -> None:
    def plain(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: plain(inner) for key, inner in item.items()}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        is_missing = isinstance(item, float) and not math.isfinite(item)
        return None if is_missing else item

    text = dump_json(value)
    assert "".join(json_pieces(value)) == text
    assert json.loads(text) == plain(value)
    shown = laid_out(plain(value))
    if shown.replace("\n", "").isprintable():
        assert text == shown + "\n"


def test_a_large_record_is_written_in_small_pieces() -> None:
    record = {"points": [{"number": n, "row": {"time_s": 0.1}} for n in range(5000)]}
    assert max(map(len, json_pieces(record))) < 120


class Band(NamedTuple):
    """Ends of a band."""

    low: float
    high: float


class CableRecord(Record):
    """A cable."""

    name: str
    bandwidth_bytes_per_s: float | None


class NetworkRecord(Record):
    """A network."""

    label: Annotated[str, Of("title.upper")]
    ports: int
    slow: bool
    reason: str | None
    first_s: Annotated[float | None, Of("times.0")]
    times_s: tuple[float | None, ...]
    band: Band | None
    cables: tuple[CableRecord, ...]
    by_name: Annotated[Mapping[str, CableRecord], Of("cable_of")]
    price: Annotated[float | None, Of("cost.price", ABSENT)] = None
    power_w: Annotated[float | None, Of("cost.power")] = None


CABLE = SimpleNamespace(name="a", bandwidth=np.float64(2.0))
NETWORK = SimpleNamespace(
    title="tree",
    num_ports=3,
    is_slow=np.bool_(True),
    reason="",
    times=np.array([1.0, np.nan]),
    band=Band(1.0, 2.0),
    cables=[CABLE],
    cable_of=lambda: {"a": CABLE},
    cost=None,
)
CABLE_JSON = {"name": "a", "bandwidth_bytes_per_s": 2.0}
JSON = {
    "label": "TREE",
    "ports": 3,
    "slow": True,
    "reason": None,
    "first_s": 1.0,
    "times_s": [1.0, None],
    "band": {"low": 1.0, "high": 2.0},
    "cables": [CABLE_JSON],
    "by_name": {"a": CABLE_JSON},
    "power_w": None,
}


def test_keys_are_the_fields_and_values_those_of_the_source() -> None:
    assert list(NetworkRecord.dump(NETWORK).items()) == list(JSON.items())


def test_what_was_written_is_read_back_and_written_alike() -> None:
    record = NetworkRecord.read(JSON)
    assert record.cables == (CableRecord(name="a", bandwidth_bytes_per_s=2.0),)
    assert record.band == Band(1.0, 2.0)
    assert record.price is None
    assert NetworkRecord.dump(record) == {**JSON, "price": None}


@pytest.mark.parametrize(
    ("given_values", "changed"),
    [
        ({"cables": [CABLE_JSON]}, {}),
        ({"band": None}, {"band": None}),
        ({"price": 4.0}, {"price": 4.0}),
        ({"ports": 0, "reason": "none"}, {"ports": 0, "reason": "none"}),
    ],
)
def test_values_that_are_given_come_first(
    given_values: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert NetworkRecord.dump(NETWORK, **given_values) == JSON | changed


def test_a_path_that_ends_at_none_leaves_out_what_may_be_absent() -> None:
    cost = SimpleNamespace(price=None, power=1.0)
    priced = SimpleNamespace(**{**vars(NETWORK), "cost": cost})
    assert NetworkRecord.dump(priced) == {**JSON, "price": None, "power_w": 1.0}


class SlowCableRecord(CableRecord):
    """A cable whose delay comes first."""

    keys = ("latency_s", "name", "bandwidth_bytes_per_s")
    latency_s: float


def test_keys_have_an_order_of_their_own_where_it_is_given() -> None:
    dumped = SlowCableRecord.dump(CABLE, latency_s=1.0)
    assert list(dumped.items()) == [("latency_s", 1.0), *CABLE_JSON.items()]


def test_what_nothing_holds_or_nobody_knows_is_refused() -> None:
    with pytest.raises(AttributeError, match="nothing for the key bandwidth_bytes"):
        CableRecord.dump(SimpleNamespace(name="a"))
    with pytest.raises(AssertionError, match="speed"):
        CableRecord.dump(CABLE, speed=1.0)
    with pytest.raises(ValueError, match="bandwidth_bytes_per_s"):
        CableRecord.read({"name": "a"})


@given(st.builds(CableRecord, name=st.text(), bandwidth_bytes_per_s=st.floats()))
def test_any_record_survives_but_for_numbers_that_do_not_exist(
    record: CableRecord,
) -> None:
    again = CableRecord.read(CableRecord.dump(record))
    bandwidth = record.bandwidth_bytes_per_s or 0.0
    kept = record.bandwidth_bytes_per_s if np.isfinite(bandwidth) else None
    assert again == CableRecord(name=record.name, bandwidth_bytes_per_s=kept)
