"""Who may ask: tokens, and pages of other sites kept out.

A token is compared with all known ones in a time that does not depend on it. In a
browser it is kept as a cookie that scripts cannot read and that no other site's page
can send. Without tokens a server hears this machine alone; then the name by which it
is called must be this machine's, so that no name works that somebody else points here
[1]_.

References
----------
.. [1] D. Jackson et al., "Protecting browsers from DNS rebinding attacks", CCS 2007.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from topologies.errors import InputError
from topologies.input_file import read_text

COOKIE = "nestsim_token"

ANYBODY = "local"
"""Owner of questions where there are no tokens."""

SHORTEST = 20
"""Letters of a token, at least."""

_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a server, as hashes."""

    owners: Mapping[bytes, str]
    """Hash of a token -> its name; empty where nobody needs one."""

    @classmethod
    def of_file(cls, file: Path | None) -> "Tokens":
        """Read tokens: one a line, with a name before it; ``#`` begins a remark.

        Raises
        ------
        InputError
            If a line is no name and token, or a name is there twice.
        """
        if file is None:
            return cls({})
        expected = f"lines of a name and a token of at least {SHORTEST} letters"
        try:
            text = read_text(file, expected=expected, most_bytes=1_000_000)
            owners: dict[bytes, str] = {}
            for number, line in enumerate(text.splitlines(), start=1):
                words = line.partition("#")[0].split()
                if not words:
                    continue
                if len(words) != 2 or len(words[1]) < SHORTEST:
                    raise InputError(
                        "is no name and token",
                        where=f"line {number}",
                        expected=expected,
                        hint="Python's secrets.token_urlsafe() makes one",
                    )
                if words[0] in owners.values():
                    raise InputError(
                        "a name is there twice", where=f"line {number}", got=words[0]
                    )
                owners[_hashed(words[1])] = words[0]
            if not owners:
                raise InputError("has no token", expected=expected)
        except InputError as error:
            raise error.at(str(file), ": ") from None
        return cls(owners)

    def owner(self, token: str) -> str | None:
        """Return the name of a token; None if it is none."""
        if not self.owners:
            return ANYBODY
        asked, found = _hashed(token), None
        for known, name in self.owners.items():
            if hmac.compare_digest(known, asked):
                found = name
        return found


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def token_of(headers: Mapping[str, str], cookies: Mapping[str, str]) -> str:
    """Return the token that came with a request; empty without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else cookies.get(COOKIE, "")


def is_foreign(headers: Mapping[str, str], *, changes: bool, is_local: bool) -> bool:
    """Return whether a request comes from a page of another site.

    Parameters
    ----------
    headers
        Of the request.
    changes
        Whether it changes anything.
    is_local
        Whether the server hears this machine alone, and without tokens.
    """
    host = headers.get("host", "")
    if is_local and _name_of(host) not in _LOCAL:
        return True
    if not changes:
        return False
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != host


def _name_of(host: str) -> str:
    """Return a host's name without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
