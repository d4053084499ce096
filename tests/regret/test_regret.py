"""On small clusters no other plan replays faster than what was proven.

`make regret` measures larger ones, as people have them.
"""

import math
from pathlib import Path

import pytest

from nestsim.scenario.load import scenario_of
from tests.regret.measuring import ROUNDING, measure
from tests.regret.scenarios import PRESETS, draw, draw_small
from topologies.input_file import parse_toml

NUM_OTHERS = 40


@pytest.mark.parametrize("seed", range(len(PRESETS)))
def test_no_plan_is_faster_than_was_proven(seed: int) -> None:
    row = measure(draw_small(seed), most_others=NUM_OTHERS)
    assert not row.stopped
    assert math.isfinite(row.answer)
    # Whatever the plan, and the one whose bound comes nearest to its time.
    assert row.lower_bound <= row.best_inside * (1.0 + ROUNDING), row.other_plan
    assert row.worst_bound <= 1.0 + ROUNDING, row.worst_plan
    assert row.answer <= row.best_inside * (1.0 + row.proven_gap + ROUNDING)
    assert row.proven_gap <= 0.01 + ROUNDING
    assert not row.faults


def test_other_plans_are_found_by_several_means() -> None:
    row = measure(draw_small(0), most_others=NUM_OTHERS)
    assert row.manual > 0
    assert row.others == NUM_OTHERS


def test_a_seed_draws_the_same_scenario_again() -> None:
    assert draw(7) == draw(7)
    assert draw(7).text != draw(7 + len(PRESETS)).text


@pytest.mark.parametrize("seed", range(2 * len(PRESETS)))
def test_scenarios_are_valid_and_of_each_preset_in_turn(seed: int) -> None:
    for drawn in (draw(seed), draw_small(seed)):
        text = drawn.text.encode()
        scenario = scenario_of(parse_toml(text), Path("scenario.toml"), text)
        assert scenario.software_preset == PRESETS[seed % len(PRESETS)]
