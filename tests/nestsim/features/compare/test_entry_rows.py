"""Entries go into rows of a store and come back as they were."""

import json
import math

import pytest

from nestsim.features.compare.results import BusyLink, NetworkLoad, PlannerEntry


def test_a_record_comes_back_bit_for_bit_through_json() -> None:
    link = BusyLink(name="a -> b", level="leaf", utilisation=0.1 + 0.2)
    entry = PlannerEntry(
        planner="nest",
        spread=(1 / 3, math.inf, -math.inf),
        load=NetworkLoad(exposed=5e-324, bubble=1.7976931348623157e308, busiest=link),
        notes=("one", "\u00e9<\n"),
    )
    row = json.loads(json.dumps(entry.to_row(), allow_nan=False))
    again = PlannerEntry.from_row(row)
    assert math.isnan(again.belief)
    assert (again.spread, again.load, again.notes, again.spent) == (
        *(entry.spread, entry.load, entry.notes, entry.spent),
    )
    assert again.to_row() == row


def test_a_row_of_something_else_is_refused() -> None:
    row = dict(PlannerEntry(planner="nest").to_row())
    for wrong in ({**row, "spread": "wide"}, {**row, "load": {"exposed": 1.0}}):
        with pytest.raises(ValueError, match="PlannerEntry"):
            PlannerEntry.from_row(wrong)
