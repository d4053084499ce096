"""Pages for people: ask, look at a result, change something of it, replay, see.

A page of results is the one that ``--html`` writes, in a frame that can reach nothing
of the server. Around it stands a small form, whose script asks the same API as any
other client. Nothing is loaded from other hosts.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from nestsim.features.serve.questions import KINDS

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
"""What browsers let the pages do."""

ASSETS: Mapping[str, str] = MappingProxyType(
    {
        "service.css": "text/css",
        "service.js": "text/javascript",
        "live.js": "text/javascript",
        "start.js": "text/javascript",
    }
)
"""Files that the pages load, and what they are."""


def start_page() -> str:
    """Return the page that takes a scenario."""
    return _page("start.html", {"kinds": list(KINDS)})


def live_page(answer: Mapping[str, Any], live: bytes | None, source: str) -> str:
    """Return the page of a result.

    Parameters
    ----------
    answer
        As it is stored.
    live
        The scenario with its plan, as JSON, which the reader may change; None where
        there is no plan that could be replayed.
    source
        Where the page of the folder of results is; empty without one.
    """
    changed = None if live is None else json.loads(live)
    return _page("live.html", {"answer": answer, "live": changed, "source": source})


def login_page(*, wrong: bool = False) -> str:
    """Return the page that asks for a token."""
    return _page("login.html", {"wrong": wrong})


@cache
def asset(name: str) -> str:
    """Return a file of this room."""
    return (files("nestsim.features.serve") / "assets" / name).read_text("utf-8")


def _page(name: str, data: Mapping[str, Any]) -> str:
    """Return a page with data for its script, in which no ``<`` is left."""
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return asset(name).replace("{{data}}", text)
