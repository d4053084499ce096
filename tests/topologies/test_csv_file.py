"""CSV as users write it, against Python's own writer, and what is refused."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import failures
from topologies.csv_file import csv_cells, csv_lines
from topologies.errors import InputError

CELL = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=6
)


@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=8), st.permutations("abc"))
def test_what_was_written_is_read_whatever_the_order_of_columns(rows, order) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(order)
    for row in rows:
        writer.writerow([dict(zip("abc", row, strict=True))[name] for name in order])
    lines = csv_lines(text.getvalue(), "ba", "CSV")
    assert [[line.values[name] for name in "abc"] for line in lines] == [
        [cell.strip() for cell in row] for row in rows if any(row)
    ]


def test_lines_have_their_numbers_and_may_be_short() -> None:
    first, second = csv_lines('a, b\n\n1,"x\ny"\n 2\n', "ab", "CSV")
    assert (first.number, first.values) == (4, {"a": "1", "b": "x\ny"})
    assert (second.place("b"), second.values["b"]) == ("line 5: b", "")
    assert csv_cells("", "CSV") == ([], [])


@failures.over(
    ["text", "words"],
    [
        ("", "header: columns are missing"),
        ("a\n1\n", "header: columns are missing"),
        ("a,b,a\n", "header: two columns of one name"),
        ("a,b\n1,2,3\n", "line 2: has more values than there are columns"),
        ('a,b\n1,"2\n', "line 2: not CSV"),
        ('a,b\n1,"2"x\n', "line 2: not CSV"),
    ],
)
def test_what_is_no_such_file_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        csv_lines(text, "ab", "CSV with the columns a and b")
    assert str(caught.value).startswith(words)
