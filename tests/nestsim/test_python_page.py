"""The page about the Python face and the tutorial notebook say what is true."""

import re
from pathlib import Path
from typing import Any

import pytest

import nestsim
from docs.builder.tutorial import NOTEBOOK, executed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    names: dict[str, Any] = {}
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) >= 8
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert (tmp_path / "results" / "first" / "figures" / "timeline.png").is_file()


def test_the_page_names_every_function_and_report() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [name for name in nestsim.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == ["FolderReport", "Plan", "Report"]


def test_the_notebook_runs_and_is_kept_without_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [one for one in notebook.cells if one.cell_type == "code"]
    assert all(not one.outputs and one.execution_count is None for one in code)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    code = [one for one in executed().cells if one.cell_type == "code"]
    kinds = {
        kind for one in code for out in one.outputs for kind in out.get("data", ())
    }
    assert {"text/html", "text/plain", "image/png"} <= kinds
