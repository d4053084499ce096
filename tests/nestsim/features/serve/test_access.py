"""Who may ask: tokens, names of hosts, pages of other sites."""

from pathlib import Path

import pytest

from nestsim.features.serve.access import (
    ANYBODY,
    COOKIE,
    Tokens,
    is_foreign,
    is_loopback,
    token_of,
)
from tests import failures
from topologies.errors import InputError

LONG = "x" * 20
OTHER = "y" * 20


def tokens(folder: Path, text: str) -> Tokens:
    file = folder / "tokens"
    file.write_text(text)
    return Tokens.of_file(file)


def test_a_token_has_the_name_before_it(tmp_path: Path) -> None:
    known = tokens(tmp_path, f"# ours\nanna {LONG} # new\n\nbert {OTHER}\n")
    assert [known.owner(token) for token in (LONG, OTHER)] == ["anna", "bert"]
    assert [known.owner(token) for token in ("", LONG[1:], f"{LONG}x")] == [None] * 3
    assert LONG not in repr(known)


def test_without_tokens_everybody_is_the_same() -> None:
    assert Tokens.of_file(None).owner("") == ANYBODY


@failures.over(
    ("text", "says"),
    [
        ("", "has no token"),
        (f"anna {LONG[1:]}", "line 1: is no name and token"),
        (LONG, "line 1: is no name and token"),
        (f"anna {LONG}\nanna {OTHER}", "line 2: a name is there twice"),
    ],
)
def test_files_of_tokens_that_are_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says) as caught:
        tokens(tmp_path, text)
    assert LONG[1:] not in str(caught.value)


def test_a_token_comes_as_a_header_or_as_a_cookie() -> None:
    assert token_of({"authorization": f"Bearer {LONG}"}, {COOKIE: OTHER}) == LONG
    assert token_of({"authorization": f"bearer  {LONG}"}, {}) == LONG
    assert token_of({"authorization": f"Basic {LONG}"}, {}) == ""
    assert token_of({}, {COOKIE: OTHER}) == OTHER


@failures.over(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_which_addresses_are_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@failures.over(
    ("headers", "changes", "local", "foreign"),
    [
        ({"host": "127.0.0.1:8700"}, True, True, False),
        ({"host": "localhost"}, False, True, False),
        ({"host": "[::1]:8700"}, True, True, False),
        ({"host": "evil.example:8700"}, False, True, True),
        ({}, False, True, True),
        ({"host": "nestsim.example"}, True, False, False),
        ({"host": "a.example", "origin": "https://a.example"}, True, False, False),
        ({"host": "a.example", "origin": "https://b.example"}, True, False, True),
        ({"host": "a.example", "origin": "null"}, True, False, True),
        ({"host": "a.example", "origin": "https://b.example"}, False, False, False),
        ({"host": "a.example", "sec-fetch-site": "cross-site"}, True, False, True),
        ({"host": "a.example", "sec-fetch-site": "same-site"}, True, False, True),
        ({"host": "a.example", "sec-fetch-site": "same-origin"}, True, False, False),
    ],
)
def test_pages_of_other_sites_are_turned_away(
    headers: dict[str, str], changes: bool, local: bool, foreign: bool
) -> None:
    assert is_foreign(headers, changes=changes, is_local=local) is foreign
