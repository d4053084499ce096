"""One document in the terminal, in Markdown, as a picture and on the page."""

import io
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.console
import seaborn as sns
from matplotlib.collections import PathCollection, QuadMesh
from rich.console import Console

from nestsim.document.html import page_html, specification
from nestsim.document.markdown import markdown
from nestsim.document.parts import (
    DataTable,
    Document,
    FactList,
    Headline,
    Section,
)
from nestsim.document.sheet import MOST_PANELS, draw_document, has_picture
from nestsim.document.terminal import plain_text, print_document
from tests import failures
from tests.nestsim.document import example
from tests.nestsim.document.example import HOSTILE, LONG, SHAPES, WIDE
from tests.nestsim.document.pictures import Picture, draw


def printed(document: Document, **options: Any) -> str:
    text = io.StringIO()
    print_document(document, Console(file=text, highlight=False, **options))
    return text.getvalue()


def test_a_text_is_a_text_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would show it below the cell: reports that a cell keeps had none."""

    def text() -> str:
        return plain_text(lambda console: print_document(example.document(), console))

    plain = text()
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert text() == plain


@failures.over("width", [60, 80, 100, 200])
def test_every_number_is_printed_whole_at_every_width(width: int) -> None:
    text = printed(example.document(), width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []
    assert "…" not in text
    words = {word for line in lines for word in line.split()}
    for row in WIDE.rows:
        assert {str(cell).split()[0] for cell in row} <= words
    for name in SHAPES:
        assert f"7{name}" in words
    assert "".join(HOSTILE.split()) in "".join(text.split())
    assert "not here" not in text


def test_a_narrow_table_is_split_between_groups_of_columns() -> None:
    lines = printed(example.document(WIDE), width=60).splitlines()
    heads = [line.split() for line in lines if line.strip().startswith("Size")]
    assert heads == [["Size", "Algorithm", "time", "algbw", "busbw"]] * 3
    assert (
        sum(
            "Size" in line
            for line in printed(example.document(WIDE), width=120).splitlines()
        )
        == 1
    )


def test_a_terminal_has_in_brief_what_blocks_name_and_all_if_it_is_verbose() -> None:
    table = DataTable(
        caption="Plans",
        columns=("Plan", "Time", "Where"),
        rows=(
            ("first", "1 s", "here"),
            ("second", "2 s", "there"),
            ("third", "3 s", ""),
        ),
        shown=2,
        first=1,
        brief=(0, 2),
        details=("Where",),
    )
    facts = FactList({"size": "8", "order": "tp dp"}, brief=("size",))
    document = Document(
        subject="subject",
        doing="run",
        headline=Headline(verdict="DONE", tone="good"),
        sections=(Section("plans", "Plans", (table, facts)),),
    )
    short = printed(document, width=80).split()
    assert {"first", "third", "size"} <= {*short}
    assert not {"second", "Where", "here", "order"} & {*short}
    assert "more" not in short
    text = io.StringIO()
    print_document(document, Console(file=text, width=80), verbose=True)
    assert {"first", "Where", "here", "order"} <= {*text.getvalue().split()}
    for renderer in (markdown, page_html):
        assert {"second", "Where", "there"} <= {*re.findall(r"\w+", renderer(document))}


def test_a_text_in_a_file_is_plain_and_does_not_depend_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = set()
    for columns in ("30", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("TERM", "xterm-256color")
        texts.add(
            plain_text(lambda console: print_document(example.document(), console))
        )
    (text,) = texts
    assert "\x1b" not in text
    coloured = printed(
        example.document(), width=100, force_terminal=True, color_system="truecolor"
    )
    assert "\x1b[1;32mCONFIRMED" in coloured


def test_markdown_says_the_same_and_names_are_never_markup() -> None:
    text = markdown(example.document())
    assert text.startswith("# CONFIRMED\n")
    plain = re.sub(r"\\(.)", r"\1", text)
    for row in WIDE.rows:
        assert f"| {' | '.join(map(str, row))} |" in plain
    assert plain.count(HOSTILE) == markdown(example.document()).count(
        r"\[bold\]\$x\_1\$ \| \*\*b\*\* \<i\>\&\`"
    )
    assert "````\ntorchrun ```train.py```\n````" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for line in rows:
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1
        assert cells in {2, len(WIDE.columns)}


def drawn(folder: Path, *names: str) -> Picture:
    document = example.document(*(example.figure(name, SHAPES[name]) for name in names))
    return draw(lambda path: draw_document(document, path), folder)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_words_of_a_picture_are_on_it_and_apart(count: int, tmp_path: Path) -> None:
    for names in itertools.combinations(SHAPES, count):
        picture = drawn(tmp_path, *names)
        assert not picture.cut_off, names
        assert not picture.overlapping, names


def test_picture_and_page_draw_the_same_numbers(tmp_path: Path) -> None:
    axes = drawn(tmp_path, *SHAPES).figure.axes
    curves, bars, stacks, heat, front, scatter = axes
    low, high = front.get_ylim()
    assert low < min(point.y for point in example.FRONT.points)
    assert high > max(point.y for point in example.FRONT.points)
    scale = specification(example.FRONT)["layer"][0]["encoding"]["y"]["scale"]
    assert scale["domain"] == pytest.approx([low, high])
    page = specification(example.SCATTER)["data"]["values"]
    points = [row[name] for row in page for name in ("x", "y")]
    clouds = [it for it in scatter.collections if isinstance(it, PathCollection)]
    shown = np.concatenate([cloud.get_offsets() for cloud in clouds])
    assert shown.ravel().tolist() == pytest.approx(points, rel=1e-5)
    values = specification(example.CURVES)["data"]["values"]
    lines = [line for line in curves.get_lines() if len(line.get_xdata()) > 2]
    for number, line in enumerate(lines):
        page = [(row["x"], row["y"]) for row in values if row["curve"] == number]
        assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == page
    assert len(lines) == len(example.CURVES.curves)
    page = specification(example.BARS)["data"]["values"]
    lengths = [row["length"] or 0.0 for row in page if not row["group"]]
    assert [bar.get_width() for bar in bars.patches] == lengths
    page = specification(example.STACKS)["data"]["values"]
    parts = [row["to"] - row["from"] for row in page]
    assert [part.get_width() for part in stacks.patches] == pytest.approx(parts)
    (mesh,) = (one for one in heat.collections if isinstance(one, QuadMesh))
    page = specification(example.HEAT)["data"]["values"]
    shown = np.abs(np.ma.filled(mesh.get_array(), 0.0)).ravel()
    assert shown == pytest.approx([row["strength"] for row in page], abs=6e-4)


def test_a_picture_of_many_figures_has_the_first_ones_and_says_so(
    tmp_path: Path,
) -> None:
    document = example.document(
        *(example.figure(f"stacks-{k}", example.STACKS) for k in range(MOST_PANELS + 1))
    )
    picture = draw(lambda path: draw_document(document, path), tmp_path)
    assert len(picture.figure.axes) == MOST_PANELS
    assert any(f"the first {MOST_PANELS} of" in words for words in picture.words)


def test_without_figures_there_is_no_picture() -> None:
    assert has_picture(example.document())
    assert not has_picture(example.document(WIDE))


def test_names_are_text_on_the_page() -> None:
    html = page_html(example.document())
    assert "<i>&" not in html
    assert LONG in html


def test_pictures_are_drawn_with_seaborn_and_cells_without_a_number_are_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []
    for name in ("lineplot", "heatmap", "scatterplot"):
        plot = getattr(sns, name)

        def counted(*args: Any, name: str = name, plot: Any = plot, **kw: Any) -> Any:
            calls.append(name)
            return plot(*args, **kw)

        monkeypatch.setattr(sns, name, counted)
    axes = drawn(tmp_path, *SHAPES).figure.axes[3]
    assert set(calls) == {"lineplot", "heatmap", "scatterplot"}
    (mesh,) = (one for one in axes.collections if isinstance(one, QuadMesh))
    empty = np.ma.getmaskarray(np.ma.masked_invalid(mesh.get_array())).sum()
    groups, columns = example.HEAT.groups, example.HEAT.columns
    none = sum(c is None for group in groups for row in group.rows for c in row.cells)
    assert empty == none + len(groups) * len(columns)
