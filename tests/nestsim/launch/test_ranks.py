"""Ranks on devices: a rank map and back, and the nesting that they stand in."""

from dataclasses import replace

import numpy as np
import pytest

from nestsim.launch.formats.usual import order_cases
from nestsim.launch.job import nesting, parsed_rank_map, rank_map
from planner.plans.spec import DEFAULT_ORDER
from planner.search.placements import Extents, placements
from tests import failures
from tests.nestsim.launch.jobs import small_job
from topologies.errors import InputError


def test_every_nesting_is_known_by_its_ranks() -> None:
    extents = Extents(tp=2, cp=1, ep=2, dp=4, pp=4)
    known = placements(extents, 96, (4, 12, 96))
    assert len(known) > 20
    for placement in known:
        devices = placement.grid.ravel()  # tp innermost, pp outermost
        name = nesting(devices, extents, "tp-cp-ep-dp-pp")
        assert name == placement.name
        for node in (1, 4, 12):
            text = rank_map(devices, node)
            assert (parsed_rank_map(text, node) == devices).all()


def test_a_map_is_a_table_of_ranks() -> None:
    assert rank_map(np.array([0, 2, 5]), 4) == (
        "rank,node,device\n0,0,0\n1,0,2\n2,1,1\n"
    )


def test_devices_in_no_order_are_no_nesting() -> None:
    extents = Extents(tp=1, cp=1, ep=1, dp=4, pp=2)
    devices = np.array([0, 1, 3, 2, 4, 5, 6, 7])
    assert nesting(devices, extents, DEFAULT_ORDER) is None


@failures.over(
    "text",
    [
        "",
        "0,0,0",
        "rank,node,device",
        "rank,node,device 0,0,0 0,0,1",
        "rank,node,device 0,0,0 2,0,1",
        "rank,node,device 0,0,0 1,0,0",
        "rank,node,device 0,0,4",
        "rank,node,device 0,0,-1",
        "rank,node,device 0,0",
    ],
)
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"rank_map\.csv"):
        parsed_rank_map(text, 4)


@failures.over(
    ("placement", "is_usual", "strange"),
    [
        (None, True, []),
        (None, False, ["order"]),
        ("tp@1", True, []),
        ("tp@1", False, ["placement"]),
    ],
)
def test_the_setting_that_puts_ranks_elsewhere_is_named(
    placement: str | None, is_usual: bool, strange: list[str]
) -> None:
    job = small_job()
    job = replace(job, settings=replace(job.settings, placement=placement))
    cases = order_cases(job, is_usual=is_usual)
    assert [name for name, differs in cases.items() if differs] == strange
