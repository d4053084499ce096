"""Versions of the site stand beside each other, the newest release first."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT


@pytest.fixture
def publish(tmp_path: Path) -> Callable[[str, str], dict[str, Any]]:
    """Return what publishes a page as a version, and returns what readers are given."""
    function = runpy.run_path(str(ROOT / "docs" / "builder" / "versions.py"))["publish"]
    published = tmp_path / "published"
    published.mkdir()

    def one(version: str, text: str) -> dict[str, Any]:
        built = tmp_path / f"built {version} {text}"
        built.mkdir()
        (built / f"{text}.html").write_text(text, encoding="utf-8")
        function(published, built, version)
        listed = json.loads((published / "versions.json").read_text(encoding="utf-8"))
        return {
            "names": [entry["version"] for entry in listed],
            "latest": [entry["version"] for entry in listed if entry["aliases"]],
            "first page": (published / "index.html").read_text(encoding="utf-8"),
            "pages": sorted(path.name for path in (published / version).iterdir()),
        }

    return one


def test_before_a_release_there_is_the_main_branch(publish: Any) -> None:
    shown = publish("dev", "a")
    assert (shown["names"], shown["latest"]) == (["dev"], ["dev"])
    assert 'url=dev/"' in shown["first page"]


def test_the_newest_release_comes_first_by_its_number(publish: Any) -> None:
    for version in ("dev", "v0.9.0", "v0.10.0", "v0.2.1"):
        shown = publish(version, "a")
    assert shown["names"] == ["v0.10.0", "v0.9.0", "v0.2.1", "dev"]
    assert shown["latest"] == ["v0.10.0"]
    assert 'url=v0.10.0/"' in shown["first page"]


def test_a_version_is_replaced_as_a_whole(publish: Any) -> None:
    publish("dev", "old")
    assert publish("dev", "new")["pages"] == ["new.html"]
