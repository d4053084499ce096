"""A calibration to a user's own runs, for people."""

from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.own_runs.calibrate import FEWEST_LEFT_OUT, FittedConstant, RunCalibration
from nestsim.report.tables import add_row, new_table
from nestsim.report.wording import percent, plural, signed_percent
from nestsim.validation.metrics import Errors
from topologies.units import format_duration

NOT_TOLD = "the rows do not tell it"

_MEANINGS: Mapping[str, str] = {
    "matmul": "products, of the datasheet's rate at 16 and 32 bits",
    "matmul_8bit": "products, of the rate at 8 bits",
    "flash_attention": "FlashAttention-2 and its like, of the 16-bit rate",
    "fused_attention": "the vendor's fused attention, of the 16-bit rate",
    "layer_gap": "idle time in each layer",
    "iteration_time": "once in each step",
    "iteration_time_many_nodes": "once in each step on several nodes",
    "efficiency": "collectives, of the links' bandwidth",
}

_TIMES = frozenset({"layer_gap", "iteration_time", "iteration_time_many_nodes"})


def print_run_calibration(found: RunCalibration, console: Console) -> None:
    """Print what the rows say of each constant, and the errors before and after."""
    refused = len(found.refused)
    rows = f"{plural(found.num_rows, 'row')} fitted to, {refused:,} refused"
    console.print(Text(f"{found.name}: {rows}", style="bold"), highlight=False)
    for code, count in Counter(one.code for one in found.refused).most_common():
        first = next(one for one in found.refused if one.code == code)
        text = f"  {code} ({count:,}): row {first.row_id}: {first.reason}"
        console.print(Text(text), highlight=False)
    console.print()
    console.print(_constants_table(found))
    console.print()
    console.print(_errors_table(found))
    console.print()
    console.print(Text(_sentence(found)), highlight=False)


def _constants_table(found: RunCalibration) -> Table:
    numbers = ("Shipped", "Fitted", "+-")
    table = new_table("Constant", *numbers, "What it is", numbers=numbers)
    table.columns[0].no_wrap = True  # names are copied
    for one in found.constants:
        constant = one.name.rsplit(".", 1)[1]
        said = _MEANINGS[constant] if one.is_told else NOT_TOLD
        add_row(
            table,
            one.name,
            _value(constant, one.shipped),
            _value(constant, one.value),
            percent(one.deviation),
            said,
            style="" if one.is_told else "dim",
        )
    return table


def _value(constant: str, value: float) -> str:
    return format_duration(value) if constant in _TIMES else f"{value:.3f}"


def _errors_table(found: RunCalibration) -> Table:
    numbers = ("Rows", "MAPE", "Median", "Worst", "Bias")
    table = new_table("Constants", *numbers, numbers=numbers)
    add_row(table, "shipped", *_cells(found.before))
    add_row(table, "fitted", *_cells(found.after))
    if found.left_out is not None:
        add_row(table, "fitted without the row", *_cells(found.left_out))
    return table


def _cells(errors: Errors) -> tuple[str, ...]:
    return (
        f"{errors.rows:,}",
        percent(errors.mape),
        percent(errors.median_ape),
        percent(errors.max_ape),
        signed_percent(errors.bias),
    )


def _sentence(found: RunCalibration) -> str:
    """Say what to make of it."""
    told = [one for one in found.constants if one.is_told]
    if not told:
        return (
            "The rows tell no constant: rows of larger layers, or with other kernels, "
            "would."
        )
    words = [f"The rows tell {len(told)} of {len(found.constants)} constants."]
    if found.left_out is None:
        words.append(
            f"With fewer than {FEWEST_LEFT_OUT} different configurations none is left "
            "out: the error of a new one is not known."
        )
    elif found.left_out.mape > found.before.mape:
        words.append(
            "Rows that were left out are predicted no better than before: keep the "
            "shipped constants, or measure more."
        )
    far = [one for one in told if _is_far(one)]
    if far:
        names = ", ".join(one.name for one in far)
        words.append(
            f"Far from its shipped value: {names}. Does the file say all that the runs "
            "do?"
        )
    return " ".join(words)


def _is_far(one: FittedConstant) -> bool:
    """Return whether a constant is more than two prior deviations off."""
    ratio = one.value / one.shipped
    wide = 1.0 + 2.0 * one.prior_deviation
    return not 1.0 / wide < ratio < wide
