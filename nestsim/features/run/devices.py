"""The plan as a picture over the topology: which device works for what, block by block.

Devices stand in the blocks of the network that they are in: a row of a box is an
innermost block, a box one of the outermost but one. Neighbours in a row that work
together, as ranks of one replica of one stage, are one bar. On large networks rows of a
box that work alike are drawn once, and so are boxes.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from nestsim.document.drawing import (
    SOFT,
    TIP,
    Drawing,
    drawing,
    plain_field,
    records,
    text_layer,
)
from nestsim.document.paints import line_colour
from nestsim.document.parts import DataTable, FigureBlock
from nestsim.document.wording import device_ranges, plural
from planner.step.plan import Plan
from topologies.network import Network

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate

MOST_DEVICES = 4_096
"""Devices that are drawn; of more, the first ones are."""

_MOST_ROWS = 32
"""Rows that are all drawn; of more, those that work alike are drawn once."""

_MOST_COLUMNS = 16
"""Devices in a row of a box; longer innermost blocks take several rows."""

_BOXES = 4
"""Boxes beside each other."""

_ROW, _GAP, _HEAD = 20, 0.6, 1.0
"""Height of a row [pixel]; room around a box and above it, in rows or columns."""


class Workers(NamedTuple):
    """Devices that work for the same replica of the same stage, side by side."""

    stage: int
    """-1 for idle devices."""

    replica: int
    first: int
    """Number of the first device."""

    num_devices: int
    """So many follow each other."""


class Boxes(NamedTuple):
    """How devices are laid out."""

    size: int
    """Devices of a box."""

    columns: int
    """Devices of a row."""

    beside: int
    """Boxes beside each other."""


class AlikeRows(NamedTuple):
    """Rows of a box that work alike, of which the first is drawn."""

    parts: tuple[Workers, ...]
    """What is done in the first one."""

    num_alike: int
    """Rows of this kind, the first included."""


class AlikeBoxes(NamedTuple):
    """Boxes that work alike, of which the first is drawn."""

    box: int
    """Number of the first one."""

    rows: tuple[AlikeRows, ...]
    """What is done in it."""

    num_alike: int
    """Boxes of this kind, the first included."""


def devices_figure(
    candidate: "Candidate", network: Network, stages: DataTable
) -> FigureBlock:
    """Return which stage and replica each device works for.

    Parameters
    ----------
    candidate
        The plan and its replay.
    network
        The cluster.
    stages
        What each stage holds: the table behind the figure.
    """
    plan = candidate.priced.plan
    boxes = boxes_of(network)
    alike = boxes_alike(working_blocks(plan, network.num_devices), boxes)
    drawn = alike[: max(1, MOST_DEVICES // boxes.size)]
    idle = network.num_devices - plan.devices_used
    is_folded = any(
        times > 1
        for alike in drawn
        for times in (alike.num_alike, *(row.num_alike for row in alike.rows))
    )
    rest = " What works alike is drawn once, x how often it is there." * is_folded
    if len(drawn) < len(alike):
        rest += f" The first {len(drawn):,} of {len(alike):,} boxes."
    one_stage = len(plan.stages) == 1
    numbers = "replica" if one_stage else "stage"
    return FigureBlock(
        name="devices",
        title=f"{plural(len(plan.stages), 'stage')} and "
        f"{plural(len(plan.stages[0].devices), 'replica')} on "
        f"{plural(plan.devices_used, 'device')}" + (f", {idle:,} idle" if idle else ""),
        about="Devices in the blocks of the network that they are in, with the stage "
        "and the replica that they work for.",
        drawing=_drawing(network, boxes, drawn, one_stage=one_stage),
        table=stages,
        hint=f"A row is a block of {boxes.columns} devices, a bar the ranks of one "
        f"replica; numbers in narrow bars: the {numbers}.{rest}",
    )


def working_blocks(plan: Plan, num_devices: int) -> list[Workers]:
    """Return what devices work for, neighbours together, in their order."""
    works = {
        device: (number, replica)
        for number, stage in enumerate(plan.stages)
        for replica, row in enumerate(stage.devices)
        for device in row
    }
    blocks: list[Workers] = []
    for device in range(num_devices):
        stage, replica = works.get(device, (-1, -1))
        last = blocks[-1] if blocks else None
        if last is not None and (last.stage, last.replica) == (stage, replica):
            blocks[-1] = last._replace(num_devices=last.num_devices + 1)
        else:
            blocks.append(Workers(stage, replica, device, 1))
    return blocks


def boxes_alike(blocks: Sequence[Workers], boxes: Boxes) -> list[AlikeBoxes]:
    """Return what is drawn: all rows of all boxes, or of many each kind once.

    Rows of a box work alike if the same stages have the same places in them, whichever
    replicas they are; boxes, if they have the same rows in the same order.
    """
    by_row: dict[tuple[int, int], list[Workers]] = {}
    for part in (part for block in blocks for part in _cut(block, boxes.columns)):
        box, inside = divmod(part.first, boxes.size)
        by_row.setdefault((box, inside // boxes.columns), []).append(part)
    in_box: dict[int, list[tuple[Workers, ...]]] = {}
    for (box, _), parts in by_row.items():
        in_box.setdefault(box, []).append(tuple(parts))
    if len(by_row) <= _MOST_ROWS:
        return [
            AlikeBoxes(box, tuple(AlikeRows(parts, 1) for parts in rows), 1)
            for box, rows in in_box.items()
        ]
    alike: dict[object, AlikeBoxes] = {}
    for box, rows in in_box.items():
        kinds = tuple(_kind(parts, boxes) for parts in rows)
        firsts = {kind: rows[kinds.index(kind)] for kind in kinds}
        counts = Counter(kinds)
        drawn = tuple(AlikeRows(firsts[kind], counts[kind]) for kind in firsts)
        first = alike.setdefault(kinds, AlikeBoxes(box, drawn, 0))
        alike[kinds] = first._replace(num_alike=first.num_alike + 1)
    return list(alike.values())


def _kind(parts: Sequence[Workers], boxes: Boxes) -> tuple[tuple[int, int, int], ...]:
    """Return what tells a row apart from others that work otherwise."""
    return tuple(
        (part.stage, part.first % boxes.size % boxes.columns, part.num_devices)
        for part in parts
    )


def boxes_of(network: Network) -> Boxes:
    """Return how the devices of a network are laid out."""
    sizes = network.block_sizes
    columns = min(sizes[0], _MOST_COLUMNS)
    size = sizes[-2] if len(sizes) > 1 else sizes[-1]
    beside = min(_BOXES, math.ceil(network.num_devices / size))
    return Boxes(size, columns, max(1, min(beside, 64 // columns)))


def _cut(block: Workers, columns: int) -> list[Workers]:
    """Return a block's parts row by row."""
    parts, first, end = [], block.first, block.first + block.num_devices
    while first < end:
        count = min(end - first, columns - first % columns)
        parts.append(block._replace(first=first, num_devices=count))
        first += count
    return parts


def _words(block: Workers, times: int, *, one_stage: bool) -> tuple[str, str]:
    """Return what stands in a bar with and without room.

    Parameters
    ----------
    block
        Who works there.
    times
        Rows that the bar stands for; the replica is that of the first.
    one_stage
        Whether there are no others.
    """
    if block.stage < 0:
        return "idle", ""
    if times > 1:
        return ("", "") if one_stage else (f"stage {block.stage}", str(block.stage))
    replica = f"replica {block.replica}"
    if one_stage:
        return replica, str(block.replica)
    return f"stage {block.stage}, {replica}", str(block.stage)


def _times(words: str, times: int) -> str:
    """Return words with how often what they stand for is there."""
    return f"{words} x {times:,}".strip() if times > 1 else words


def _corners(
    boxes: Boxes, drawn: Sequence[AlikeBoxes]
) -> tuple[list[tuple[float, float]], float]:
    """Return column and row of each box's first device, and the rows of all."""
    corners: list[tuple[float, float]] = []
    top = 0.0
    for first in range(0, len(drawn), boxes.beside):
        line = drawn[first : first + boxes.beside]
        corners += [
            (across * (boxes.columns + _GAP), top + _HEAD)
            for across in range(len(line))
        ]
        top += _HEAD + max(len(alike.rows) for alike in line) + _GAP
    return corners, top - _GAP


def _drawing(
    network: Network, boxes: Boxes, drawn: Sequence[AlikeBoxes], *, one_stage: bool
) -> Drawing:
    across = boxes.beside * (boxes.columns + _GAP) - _GAP
    corners, down = _corners(boxes, drawn)
    rows = []
    for (corner, begin), alike in zip(corners, drawn, strict=True):
        for place, row in enumerate(alike.rows):
            for part in row.parts:
                left = corner + part.first % boxes.size % boxes.columns
                top = begin + place
                long, short = _words(part, row.num_alike, one_stage=one_stage)
                last = part.first + part.num_devices
                is_end = part is row.parts[-1]
                times = row.num_alike if is_end else 1
                rows.append(
                    {
                        "left": left,
                        "right": left + part.num_devices,
                        "top": top,
                        "bottom": top + 1,
                        "long": _times(long, times),
                        "short": _times(short, times),
                        "colour": "var(--rule-strong)"
                        if part.stage < 0
                        else line_colour(part.stage),
                        "tip": f"{_words(part, 1, one_stage=one_stage)[0]}: "
                        f"{plural(part.num_devices, 'device')}, "
                        f"{device_ranges(range(part.first, last))}"
                        + (
                            f"; {plural(row.num_alike, 'row')} of this kind"
                            if row.num_alike > 1
                            else ""
                        ),
                    }
                )
    room = f"(datum.right - datum.left) / {across} * width"
    fitted = (
        f"{room} > 10 + 6.4 * length(datum.long) ? datum.long : "
        f"{room} > 5 + 6.4 * length(datum.short) ? datum.short : ''"
    )
    flat = {"type": "quantitative", "axis": None}
    wide = {**flat, "scale": {"domain": [0, across], "nice": False}}
    high = {**flat, "scale": {"domain": [0, down], "reverse": True, "nice": False}}
    return drawing(
        {
            "mark": {"type": "rect", "fillOpacity": 0.3, "strokeWidth": 1},
            "encoding": {
                "x": {"field": "left", **wide},
                "x2": {"field": "right"},
                "y": {"field": "top", **high},
                "y2": {"field": "bottom"},
                "fill": plain_field("colour"),
                "stroke": plain_field("colour"),
                "tooltip": TIP,
            },
        },
        text_layer(
            {"fontSize": 11},
            transform=[
                {"calculate": "(datum.left + datum.right) / 2", "as": "middle"},
                {"calculate": "(datum.top + datum.bottom) / 2", "as": "centre"},
                {"calculate": fitted, "as": "fitted"},
            ],
            x={"field": "middle", **wide},
            y={"field": "centre", **high},
            text={"field": "fitted"},
        ),
        _frames(network, boxes, drawn, corners, wide, high),
        height=round(_ROW * down),
        data=records(rows),
    )


def _frames(
    network: Network,
    boxes: Boxes,
    drawn: Sequence[AlikeBoxes],
    corners: Sequence[tuple[float, float]],
    wide: Drawing,
    high: Drawing,
) -> Drawing:
    """Return the names of the boxes."""
    names = [
        _times(_box_name(network, boxes, alike.box), alike.num_alike) for alike in drawn
    ]
    return text_layer(
        {**SOFT, "align": "left", "baseline": "bottom", "dy": -3},
        data=records(
            [
                {"x": x, "y": y, "name": name}
                for (x, y), name in zip(corners, names, strict=True)
            ]
        ),
        x={"field": "x", **wide},
        y={"field": "y", **high},
        text={"field": "name"},
    )


def _box_name(network: Network, boxes: Boxes, box: int) -> str:
    if network.is_tree and len(network.block_sizes) > 1:
        return f"{network.levels[-2].name} {box}"
    return device_ranges(range(box * boxes.size, (box + 1) * boxes.size))
