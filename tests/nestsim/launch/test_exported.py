"""What a search reports can be launched: files say all of each plan.

Small scenarios, one of each framework; `python -m tests.nestsim.launch.exported`
exports those of larger ones.
"""

from collections.abc import Sequence

import pytest

from nestsim.launch.job import LaunchGap
from nestsim.launch.registry import WRITERS
from tests.nestsim.launch import exported
from tests.nestsim.launch.exported import export_all
from tests.regret.scenarios import PRESETS, draw_small

SCENARIOS = [
    drawn for drawn in map(draw_small, range(10, 19)) if drawn.preset != "ideal"
]
"""One of each preset; ideal software is no framework."""


def test_files_say_all_of_every_reported_plan() -> None:
    assert {drawn.preset for drawn in SCENARIOS} == {*PRESETS} - {"ideal"}
    plans, failures = 0, []
    for drawn in SCENARIOS:
        found = export_all(drawn)
        plans += len(found.gaps)
        if not found.gaps or any(_unknown(drawn.preset, gaps) for gaps in found.gaps):
            failures.append("\n".join(found.lines()))
    assert not failures, "\n".join(failures)
    assert plans >= 2 * len(SCENARIOS)


def _unknown(preset: str, gaps: Sequence[LaunchGap]) -> list[LaunchGap]:
    """Return the gaps that nobody knows of.

    Plain PyTorch has checkpoints of one's own for what torchtitan, whose files are
    written for it, saves otherwise.
    """
    plain = {"fsdp", "ddp"}
    return [gap for gap in gaps if preset not in plain or gap.setting != "recompute"]


def test_what_files_of_another_framework_lack_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Megatron keeps weights in 16 bits, which FSDP does not.
    drawn = next(one for one in SCENARIOS if one.preset == "fsdp")
    monkeypatch.setattr(exported, "WRITERS", {"torchtitan": WRITERS["megatron"]})
    assert any(export_all(drawn).gaps)
