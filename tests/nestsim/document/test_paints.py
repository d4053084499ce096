"""Colours belong to names, whatever else a figure shows."""

import re
from pathlib import Path

from nestsim.document.paints import (
    INK,
    MEMORY_PARTS,
    PLANNERS,
    ink_on,
    level_colour,
    planner_colours,
)
from nestsim.features.memory.job import LOGITS
from nestsim.lowering import memory as account
from planner import rivals
from planner.step.memory import STEP_END


def test_every_part_of_memory_has_a_colour_of_its_own() -> None:
    source = Path(account.__file__).read_text(encoding="utf-8")
    held = set(re.findall(r'Held\("([^"]+)"', source))
    assert {"activations", "gradient bucket"} <= held
    # `nestsim memory` counts without a replay: its buffers are whole layers.
    parts = {*held, *account._STATIC, "working", STEP_END, LOGITS, "buffers"}
    assert parts == set(MEMORY_PARTS)
    assert len(set(MEMORY_PARTS.values())) == len(MEMORY_PARTS)


def test_a_planner_keeps_its_colour_whoever_stands_beside_it() -> None:
    assert set(PLANNERS) == set(rivals.PLANNERS)
    assert len(set(PLANNERS.values())) == len(PLANNERS)
    (alone,) = planner_colours(["phaze"])
    *_, behind = planner_colours(["mcmc", "mine", "phaze"])
    assert alone == behind
    names = ["mine", "nest", "theirs"]
    assert len(set(planner_colours(names))) == len(names)


def test_levels_have_different_colours() -> None:
    assert len({level_colour(number) for number in range(6)}) == 6


def test_words_stand_out_from_their_ground() -> None:
    assert ink_on("#000033") == "white"
    assert ink_on((1.0, 1.0, 0.8)) == INK
