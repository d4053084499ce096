"""What notebooks show of scenarios and results: a heading, facts, a table or a text."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 20
"""Rows of a table; of more, the first and the last."""

_MOST_TEXT = 4_000
"""Characters of a text."""


def html_of(title: str, facts: Mapping[str, Any], text: str = "") -> str:
    """Return facts as HTML, and a text that is folded away below them."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(_words(name))}</th>"
        f"<td style='text-align:left'>{escape(fact_text(fact))}</td></tr>"
        for name, fact in facts.items()
    )
    html = f"<b>{escape(title)}</b><table>{rows}</table>"
    if text:
        shown = escape(text[:_MOST_TEXT])
        html += f"<details><summary>as written</summary><pre>{shown}</pre></details>"
    return html


def html_table(frame: "pd.DataFrame") -> str:
    """Return a table as HTML, long ones without their middle."""
    return str(frame.to_html(max_rows=_MOST_ROWS, index=False, na_rep=""))


def fact_text(fact: Any) -> str:
    """Return a fact as people read it: numbers to six digits."""
    if isinstance(fact, float):
        return f"{fact:.6g}"
    if isinstance(fact, tuple):
        return ", ".join(fact_text(one) for one in fact)
    return str(fact)


def _words(name: str) -> str:
    return name.replace("_", " ")
