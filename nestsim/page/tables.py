"""Tables of a page from those of the printed report: the same rows, the same words."""

from typing import TYPE_CHECKING

from nestsim.document.parts import DataTable

if TYPE_CHECKING:
    from rich.table import Table


def data_table(table: "Table", caption: str) -> DataTable:
    """Return a table of `nestsim.report.tables` as one of a page.

    Parameters
    ----------
    table
        Its cells are plain texts.
    caption
        What the rows are.
    """
    columns = tuple(str(column.header) or "Quantity" for column in table.columns)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    return DataTable(
        caption=caption,
        columns=columns,
        rows=tuple(zip(*cells, strict=True)),
        numbers=tuple(
            name
            for name, column in zip(columns, table.columns, strict=True)
            if column.justify == "right"
        ),
    )
