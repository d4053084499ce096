"""A document in Markdown, for summaries of a CI and for notes."""

import re
from collections.abc import Iterator

from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Sentences,
    Snippet,
    is_in_text,
)

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")


def markdown(document: Document) -> str:
    """Return what a result says in Markdown; names in it are never markup."""
    headline = document.headline
    lines = [f"# {_plain(headline.verdict)}", _plain(document.subject)]
    lines += map(_plain, headline.sentences)
    for section in document.sections:
        if section.in_text:
            lines.append(f"## {_plain(section.title)}")
            for block in filter(is_in_text, section.blocks):
                lines += _lines(block, section.title)
    return "\n\n".join(lines) + "\n"


def _lines(block: Block, heading: str) -> Iterator[str]:
    """Yield the paragraphs of a block; nothing is drawn, and the heading is there."""
    if isinstance(block, DataTable | FigureBlock):
        table = block if isinstance(block, DataTable) else block.table
        if table.caption != heading:
            yield _plain(table.caption)
        yield _table(table)
        if isinstance(block, FigureBlock) and block.note:
            yield _plain(block.note)
    elif isinstance(block, FactList):
        rows = block.rows.items()
        yield "\n".join(f"* {_plain(name)}: {_plain(value)}" for name, value in rows)
    elif isinstance(block, Sentences):
        yield from map(_plain, block.sentences)
    elif isinstance(block, Snippet):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        yield f"{_plain(block.name)}:\n\n{fence}\n{block.text}\n{fence}"


def _table(table: DataTable) -> str:
    rules = ["---:" if name in table.numbers else "---" for name in table.columns]
    rows = [
        [cell.text if isinstance(cell, Cell) else cell for cell in row]
        for row in table.rows
    ]
    lines = [map(_plain, table.columns), rules, *(map(_plain, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Return a text on one line in which nothing is markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
