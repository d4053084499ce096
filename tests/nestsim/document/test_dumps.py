"""Tables of results by pandas, against Python's own writer of CSV."""

import csv
import io
import math

from nestsim.document.dumps import csv_of, frame_of

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
