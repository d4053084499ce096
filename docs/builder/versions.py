"""Put the site of one version beside those of others, and list them for readers.

``python docs/builder/versions.py PUBLISHED BUILT VERSION``: the folder that is
published, the site, and its version: a tag, or ``dev``. The newest tag is what the
first page leads to, ``dev`` where there is none.
"""

import json
import shutil
import sys
from pathlib import Path

LIST = "versions.json"
"""What the theme reads the versions from, in the form of mike's."""

DEV = "dev"
"""Version of the main branch."""

_FIRST_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>nestsim</title>
<meta http-equiv="refresh" content="0; url={0}/">
<a href="{0}/">nestsim {0}</a>
"""


def publish(published: Path, built: Path, version: str) -> None:
    """Replace one version's site, the list of versions and the first page."""
    place = published / version
    if place.exists():
        shutil.rmtree(place)
    shutil.copytree(built, place)
    tags = sorted(
        (path.name for path in published.glob("v*") if path.is_dir()),
        key=_number,
        reverse=True,
    )
    names = [*tags, *([DEV] if (published / DEV).is_dir() else [])]
    listed = [
        {"version": name, "title": name, "aliases": ["latest"] if place == 0 else []}
        for place, name in enumerate(names)
    ]
    _write(published / LIST, json.dumps(listed, indent=1) + "\n")
    _write(published / "index.html", _FIRST_PAGE.format(names[0]))
    _write(published / ".nojekyll", "")


def _number(tag: str) -> tuple[int, ...]:
    return tuple(map(int, tag.removeprefix("v").split(".")))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
