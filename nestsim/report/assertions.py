"""Assertions of a scenario as text and as JSON: what was found beside the expected."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import Console

from nestsim.asserted import Checked
from nestsim.report.sections import print_section
from nestsim.report.tables import add_row, new_table
from topologies.units import format_duration, format_size

_WRITERS: Mapping[str, Callable[[float], str]] = MappingProxyType(
    {
        "iteration_time": format_duration,
        "throughput": lambda value: f"{value:.6g} tokens/s",
        "mfu": lambda value: f"{value:.4g}",
        "gap": lambda value: f"{value:+.4g}",
        "memory_fraction": lambda value: f"{value:.4g}",
        "peak_memory": format_size,
    }
)

_WORDS = {True: "holds", False: "FAILED", None: "not checked"}


def print_assertions(checked: Sequence[Checked], console: Console) -> None:
    """Print each assertion with what was found; nothing if there is none."""
    if not checked:
        return
    table = new_table("assertion", "expected", "found", "")
    for one in checked:
        style = "bold red" if one.holds is False else ""
        add_row(
            table,
            one.assertion.name,
            one.assertion.written,
            _found(one),
            _WORDS[one.holds],
            style=style,
        )
    print_section(console, "Assertions", table)


def _found(checked: Checked) -> str:
    write = _WRITERS.get(checked.assertion.quantity)
    if write is None or isinstance(checked.found, str):
        return str(checked.found)
    return write(checked.found)


def assertions_json(checked: Sequence[Checked]) -> dict[str, Any]:
    """Return what a report says of assertions; nothing if there is none."""
    if not checked:
        return {}
    return {
        "assertions": [
            {
                "name": one.assertion.name,
                "operator": one.assertion.operator,
                "expected": one.assertion.value,
                "found": one.found,
                "holds": one.holds,
            }
            for one in checked
        ]
    }
