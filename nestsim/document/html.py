"""The page: a document as one HTML file, with style sheet, script and library in it.

Nothing of the file reaches outside: its Content Security Policy allows the scripts
and the one style sheet that are in it, by their hashes, and nothing else; no network,
no evaluation of text as code, no forms. Texts reach the file through the template,
which escapes them, and through JSON, in which no ``<`` is left.
"""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.drawing import vega_library
from nestsim.document.dumps import plain_values
from nestsim.document.paints import DASHES, DISTINCT, PAINTS
from nestsim.document.parts import Document, FigureBlock
from nestsim.document.vega import specification

if TYPE_CHECKING:
    from jinja2 import Environment

_ASSETS = "assets"


def page_html(document: Document) -> str:
    """Return a document as HTML; the same document gives the same text."""
    from markupsafe import Markup

    style, script, library = _asset("page.css"), _asset("page.js"), vega_library()
    explorers = {
        block.name: plain_values(block.columns) for block in document.explorers
    }
    explorer = _asset("explorer.js") if explorers else ""
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=document,
            policy=_policy(
                scripts=(library, script, *filter(None, [explorer])), style=style
            ),
            # Files of the package, not texts of a scenario.
            style=Markup(style),
            script=Markup(script),
            explorer=Markup(explorer),
            explorers=explorers,
            library=Markup(library),
            figures={block.name: _figure_data(block) for block in document.figures},
            paints=PAINTS,
            series=DISTINCT,
            dashes=DASHES,
        )
    )


_MARK = b'<meta name="generator" content="nestsim">'
"""Stands in the head of every page."""


def is_page(ends: bytes) -> bool:
    """Return whether a file of this beginning and end is one of `page_html`."""
    return _MARK in ends


def write_page(document: Document, path: Path) -> None:
    """Write a document into a file."""
    path.write_text(page_html(document), encoding="utf-8")


def _figure_data(figure: FigureBlock) -> Any:
    """Return what the script draws a figure from."""
    return plain_values(
        {
            "drawing": specification(figure.drawing),
            "bars": figure.bars,
            "follows": figure.follows_window,
        }
    )


def _policy(*, scripts: tuple[str, ...], style: str) -> str:
    """Return the policy that allows these texts and nothing else."""
    allowed = " ".join(_hash_source(text) for text in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash_source(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _asset(name: str) -> str:
    """Return a file of this room as an element of HTML holds it."""
    source = files("nestsim.document") / _ASSETS / name
    return source.read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
