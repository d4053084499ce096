"""The import contracts of pyproject.toml hold."""

from pathlib import Path

import pytest
import tomli
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_the_import_contracts_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    status = lint_imports(no_cache=True)
    assert status == 0, capsys.readouterr().out


def test_the_contracts_cover_all_four_packages() -> None:
    settings = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    linter = settings["tool"]["importlinter"]
    packages = ["nestsim", "planner", "estimators", "topologies"]
    assert linter["root_packages"] == packages
    layers = [one["layers"] for one in linter["contracts"] if one["type"] == "layers"]
    assert packages in layers
