"""The notebook as a page: its words, its cells, and what each cell shows.

It is executed whenever the page is made. Pictures go to ``docs/images``.
"""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
NOTEBOOK = DOCS / "tutorial.ipynb"

TIMEOUT = 600
"""What a cell may take [s]."""


def tutorial() -> str:
    """Return the page as Markdown, and write its pictures."""
    return "\n\n".join(part for cell in executed().cells for part in _parts(cell))


def executed() -> Any:
    """Return the notebook with the outputs of its cells, by nbformat."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=TIMEOUT, resources={"metadata": {"path": str(DOCS)}}
    )
    manager: Any = client.create_kernel_manager()
    manager.kernel_spec.argv[0] = sys.executable
    return client.execute()


def _parts(cell: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source
        return
    lines = (line for line in cell.source.split("\n") if not line.startswith("%"))
    yield "```python\n{}\n```".format("\n".join(lines))
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/png" in data:
            yield _picture(data["image/png"], cell.source)
        elif text := data.get("text/plain", _printed(output)):
            yield f"```text\n{text.rstrip()}\n```"


def _printed(output: Any) -> str:
    """Return what was printed; notes for people on the way are none."""
    return str(output.text) if output.get("name") == "stdout" else ""


def _picture(data: str, source: str) -> str:
    """Write the picture of a cell that names a figure, and return a link to it."""
    name = source.rpartition('figure("')[2].partition('"')[0]
    file = DOCS / "images" / f"tutorial_{name}.png"
    file.write_bytes(base64.b64decode(data))
    return f"![{name}](images/{file.name})"
