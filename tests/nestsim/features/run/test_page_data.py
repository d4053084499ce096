"""What pages show, before any browser: bars, devices, candidates, paints."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.document.figures import StackedBar, StackPart, Stacks, axis_ends
from nestsim.document.paints import DASHES, PAINTS
from nestsim.document.parts import Cell
from nestsim.features.run.causes import plans_figure
from nestsim.features.run.devices import (
    Boxes,
    Workers,
    boxes_alike,
    devices_figure,
    working_blocks,
)
from nestsim.features.run.document import run_document
from nestsim.features.run.record import candidate_rows
from nestsim.features.run.timeline import (
    BAR_KINDS,
    MIXED,
    Bars,
    Window,
    joined_bars,
    shown_stages,
)
from tests import failures
from tests.nestsim.features.run.examples import FOUR_STAGES, cluster, make_job

JOB = make_job(*FOUR_STAGES)
BEST = JOB.candidates[JOB.chosen or 0]
FORWARD, BACKWARD, SEND = map(BAR_KINDS.index, ("forward", "backward", "send"))


def bars_of(*rows: tuple[int, int, float, float]) -> Bars:
    """Return bars from kind, stage, start and end."""
    kind, stage, start, end = zip(*rows, strict=True)
    whole = [np.array(column, dtype=np.int64) for column in (kind, stage)]
    none = np.full(len(rows), -1)
    times = [np.array(column, dtype=np.float64) for column in (start, end)]
    return Bars(whole[0], whole[1], np.arange(len(rows)), none, *times)


def test_short_bars_are_joined_where_no_window_keeps_them() -> None:
    """In a step of 1000, bars below 2 with gaps below 0.5."""
    bars = bars_of(
        *((FORWARD, 0, start, start + 1.0) for start in (0.0, 1.0, 2.0)),
        *((FORWARD, 0, 500.0, 501.0), (BACKWARD, 0, 501.4, 502.0)),
        *((FORWARD, 0, 502.5, 503.0), (FORWARD, 0, 503.0, 504.0)),
        *((FORWARD, 0, 504.0, 510.0), (FORWARD, 0, 510.0, 511.0)),
        *((SEND, 0, 500.0, 501.0), (SEND, 0, 501.0, 502.0)),
    )
    windows = (Window("all", 0.0, 1000.0), Window("first", 0.0, 10.0))
    joined, counts = joined_bars(bars, windows)
    rows = zip(joined.kind, joined.start, joined.end, counts, strict=True)
    assert [tuple(map(float, row)) for row in rows] == [
        *((FORWARD, start, start + 1.0, 1) for start in (0.0, 1.0, 2.0)),
        (MIXED, 500.0, 502.0, 2),
        (FORWARD, 502.5, 504.0, 2),
        (FORWARD, 504.0, 510.0, 1),
        (FORWARD, 510.0, 511.0, 1),
        (SEND, 500.0, 502.0, 2),
    ]
    assert joined.microbatch.tolist() == [0, 1, 2, -1, -1, 7, 8, -1]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from((FORWARD, BACKWARD, SEND)),
            st.integers(0, 2),
            st.integers(0, 4000).map(lambda tick: tick / 4),
            st.sampled_from((0.25, 0.5, 1.0, 8.0)),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_joining_loses_no_bar_and_covers_each(
    rows: list[tuple[int, int, float, float]],
) -> None:
    bars = bars_of(*((kind, stage, at, at + long) for kind, stage, at, long in rows))
    joined, counts = joined_bars(bars, (Window("all", 0.0, 1000.0),))
    assert counts.sum() == len(rows)
    for kind, stage, at, long in rows:
        sends = kind == SEND
        alike = (joined.stage == stage) & (
            np.isin(joined.kind, (SEND, MIXED + 1)) == sends
        )
        covers = alike & (joined.start <= at) & (joined.end >= at + long)
        assert covers.any()


@failures.over(
    ("most", "expected"),
    [(40, [0, 1, 2, 3]), (39, [0, 2, 3]), (25, [0, 3]), (19, [0])],
)
def test_a_page_shows_as_many_stages_as_it_can_hold(
    most: int, expected: list[int]
) -> None:
    rows = [(FORWARD, stage, 0.0, 1.0) for stage in range(4) for _ in range(10)]
    assert shown_stages(bars_of(*rows), 4, most) == expected


def test_each_device_is_drawn_once_where_it_is() -> None:
    network, plan = JOB.network, BEST.priced.plan
    blocks = working_blocks(plan, network.num_devices)
    devices = [
        device
        for block in blocks
        for device in range(block.first, block.first + block.num_devices)
    ]
    assert devices == list(range(network.num_devices))
    for block in blocks:
        if block.stage >= 0:
            ranks = plan.stages[block.stage].devices[block.replica]
            assert {block.first, block.first + block.num_devices - 1} <= {*ranks}
    table = plans_figure(candidate_rows(JOB), BEST.rank).table
    drawing = devices_figure(BEST, network, table).drawing
    assert isinstance(drawing, dict)
    cells = [
        (column + bar["left"], bar["top"])
        for bar in drawing["data"]["values"]
        for column in range(round(bar["right"] - bar["left"]))
    ]
    assert len(set(cells)) == len(cells) == network.num_devices


def test_the_table_of_candidates_has_their_times_and_marks_the_reported_one() -> None:
    table = plans_figure(candidate_rows(JOB), BEST.rank).table
    assert table.sortable
    assert table.shown == (JOB.chosen or 0)
    column = table.columns.index("Simulated")
    for cells, candidate in zip(table.rows, JOB.candidates, strict=True):
        cell = cells[column]
        assert isinstance(cell, Cell)
        assert cell.key == candidate.simulated.iteration_time
    assert "CP" not in table.columns, "it is 1 everywhere"


def test_no_two_entries_of_a_legend_differ_by_colour_alone() -> None:
    for figure in run_document(JOB).figures:
        for one, other in itertools.combinations(figure.entries, 2):
            if one.line:
                count = len(DASHES)
                assert (
                    DASHES[int(one.paint) % count] != DASHES[int(other.paint) % count]
                )
            else:
                a, b = PAINTS[one.paint], PAINTS[other.paint]
                greys = abs(_grey(a.colour) - _grey(b.colour))
                assert a.texture != b.texture or greys > 0.25, (figure.name, one, other)


def _grey(colour: str) -> float:
    """Return the lightness of a colour, 0 to 1 (Rec. 709)."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return sum(
        weight * part
        for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
    )


def test_every_part_of_memory_has_a_paint_of_its_own() -> None:
    parts = {name: paint for name, paint in PAINTS.items() if name.startswith("part-")}
    looks = [(paint.colour, paint.texture) for paint in parts.values()]
    assert len(set(looks)) == len(looks)


def test_what_was_not_confirmed_is_bad_news_in_words_too() -> None:
    slower = replace(BEST.verdict, kind="slower")
    candidate = replace(BEST, verdict=slower)
    page = run_document(replace(JOB, candidates=(candidate,), chosen=None))
    assert page.headline.tone == "bad"
    assert page.headline.verdict.startswith("NOT CONFIRMED")


def test_boxes_that_work_alike_are_drawn_once_and_counted() -> None:
    """16,384 devices in nodes of 8: 16 stages of 8 ranks, node after node."""
    boxes, stages, nodes = Boxes(8, 8, 4), 16, 2048
    blocks = [
        Workers(node % stages, node // stages, 8 * node, 8) for node in range(nodes)
    ]
    # One node of the last replica stands idle in half.
    blocks[-1:] = [blocks[-1]._replace(num_devices=4), Workers(-1, -1, 16380, 4)]
    found = boxes_alike(blocks, boxes)
    assert [one.box for one in found] == [*range(stages), nodes - 1]
    assert [one.num_alike for one in found] == [128] * (stages - 1) + [127, 1]
    for one in found:
        parts = [part for row in one.rows for part in row.parts]
        assert sum(part.num_devices for part in parts) == 8
    few = boxes_alike(blocks[:32], boxes)
    assert [one.num_alike for one in few] == [1] * 32


def test_rows_that_work_alike_are_drawn_once_in_their_box() -> None:
    """1,024 devices in units of 256: a node for each replica of a stage."""
    boxes, nodes = Boxes(256, 8, 4), 128
    one_stage = [Workers(0, node, 8 * node, 8) for node in range(nodes)]
    (box,) = boxes_alike(one_stage, boxes)
    assert (box.num_alike, [row.num_alike for row in box.rows]) == (4, [32])
    assert box.rows[0].parts == (one_stage[0],)
    stages = [Workers(node // 8, node % 8, 8 * node, 8) for node in range(nodes)]
    found = boxes_alike(stages, boxes)
    assert [one.num_alike for one in found] == [1] * 4
    rows = [row for one in found for row in one.rows]
    assert [row.parts[0].stage for row in rows] == [*range(16)]
    assert [row.num_alike for row in rows] == [8] * 16
    turns = [Workers(node % 8, node // 8, 8 * node, 8) for node in range(nodes)]
    (box,) = boxes_alike(turns, boxes)
    assert box.num_alike == 4
    assert [row.parts for row in box.rows] == [(part,) for part in turns[:8]]
    assert [row.num_alike for row in box.rows] == [4] * 8
    # Half of a node idle is another kind of node.
    half = [one_stage[0]._replace(num_devices=4), Workers(-1, -1, 4, 4)]
    first, rest = boxes_alike([*half, *one_stage[1:]], boxes)
    assert [row.num_alike for row in first.rows] == [1, 31]
    assert rest.num_alike == 3


def test_the_picture_says_how_often_nodes_are_there() -> None:
    network = cluster(1024)
    plan = BEST.priced.plan
    ranks = tuple(tuple(range(8 * node, 8 * node + 8)) for node in range(128))
    stage = replace(plan.stages[0], devices=ranks)
    priced = replace(BEST.priced, plan=replace(plan, stages=(stage,)))
    table = plans_figure(candidate_rows(JOB), BEST.rank).table
    figure = devices_figure(replace(BEST, priced=priced), network, table)
    assert isinstance(figure.drawing, dict)
    (bar,) = figure.drawing["data"]["values"]
    assert "drawn once" in figure.below
    names = figure.drawing["layer"][-1]["data"]["values"]
    assert (bar["long"], [row["name"] for row in names]) == ("x 2", ["leaf 0 x 64"])
    assert "2 rows of this kind" in bar["tip"]


def test_no_axis_blows_up_a_difference_that_means_nothing() -> None:
    for low, high in ((0.9993, 1.0), (0.0, 1.0), (-5.0, -4.9999), (7.0, 7.0)):
        first, last = axis_ends(low, high)
        assert first <= low
        assert last >= high
        assert last - first >= 0.00999 * max(abs(low), abs(high))
    assert axis_ends(2.0, 3.0) == (2.0, 3.0)
    for sign in (1.0, -1.0):
        part = StackPart("gap", sign * 7e-4, "longer", "")
        bars = (StackedBar("gap", (part,), ""),)
        low, high = Stacks(bars=bars, across="", whole=1.0).reach
        assert (low, high) == ((0.0, 0.01) if sign > 0 else (-0.01, 0.0))
