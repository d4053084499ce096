"""The plan as a picture over the topology: which device works for what, block by block.

Devices stand in the blocks of the network that they are in: a row of a box is an
innermost block, a box one of the outermost but one. Neighbours in a row that work
together, as ranks of one replica of one stage, are one bar.
"""

import math
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

_MOST_BOXES = 32
"""Boxes that are all drawn; of more, those that work alike are drawn once."""

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

    @property
    def rows(self) -> int:
        """Rows of a box."""
        return math.ceil(self.size / self.columns)

    def place(self, device: int) -> tuple[float, float]:
        """Return column and row of a device in the whole picture."""
        box, inside = divmod(device, self.size)
        down, across = divmod(box, self.beside)
        row, column = divmod(inside, self.columns)
        return (
            across * (self.columns + _GAP) + column,
            down * (self.rows + _GAP + _HEAD) + _HEAD + row,
        )


class AlikeBoxes(NamedTuple):
    """Boxes that work alike, of which the first is drawn."""

    box: int
    """Number of the first one."""

    parts: tuple[Workers, ...]
    """What is done in it, cut into its rows."""

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
    rest = " Of boxes that work alike the first is drawn." * any(
        alike.num_alike > 1 for alike in drawn
    )
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
    """Return what is drawn: all boxes, or of many each kind once.

    Boxes work alike if the same stages have the same places in them; which replica it
    is does not matter.
    """
    parts: dict[int, list[Workers]] = {}
    for part in (part for block in blocks for part in _cut(block, boxes.columns)):
        parts.setdefault(part.first // boxes.size, []).append(part)
    if len(parts) <= _MOST_BOXES:
        return [AlikeBoxes(box, tuple(rows), 1) for box, rows in parts.items()]
    alike: dict[tuple[tuple[int, int, int], ...], AlikeBoxes] = {}
    for box, rows in parts.items():
        kind = tuple(
            (part.stage, part.first % boxes.size, part.num_devices) for part in rows
        )
        first = alike.setdefault(kind, AlikeBoxes(box, tuple(rows), 0))
        alike[kind] = first._replace(num_alike=first.num_alike + 1)
    return list(alike.values())


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


def _words(block: Workers, *, one_stage: bool) -> tuple[str, str]:
    """Return what stands in a bar with and without room."""
    if block.stage < 0:
        return "idle", ""
    replica = f"replica {block.replica}"
    if one_stage:
        return replica, str(block.replica)
    return f"stage {block.stage}, {replica}", str(block.stage)


def _drawing(
    network: Network, boxes: Boxes, drawn: Sequence[AlikeBoxes], *, one_stage: bool
) -> Drawing:
    num_boxes = len(drawn)
    across = boxes.beside * (boxes.columns + _GAP) - _GAP
    down = math.ceil(num_boxes / boxes.beside) * (boxes.rows + _GAP + _HEAD) - _GAP
    rows = []
    for place, alike in enumerate(drawn):
        for part in alike.parts:
            left, top = boxes.place(place * boxes.size + part.first % boxes.size)
            long, short = _words(part, one_stage=one_stage)
            last = part.first + part.num_devices
            rows.append(
                {
                    "left": left,
                    "right": left + part.num_devices,
                    "top": top,
                    "bottom": top + 1,
                    "long": long,
                    "short": short,
                    "colour": "var(--rule-strong)"
                    if part.stage < 0
                    else line_colour(part.stage),
                    "tip": f"{long}: {plural(part.num_devices, 'device')}, "
                    f"{device_ranges(range(part.first, last))}",
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
        _frames(network, boxes, drawn, wide, high),
        height=round(_ROW * down),
        data=records(rows),
    )


def _frames(
    network: Network,
    boxes: Boxes,
    drawn: Sequence[AlikeBoxes],
    wide: Drawing,
    high: Drawing,
) -> Drawing:
    """Return the names of the boxes."""
    corners = [boxes.place(place * boxes.size) for place in range(len(drawn))]
    names = [
        _box_name(network, boxes, alike.box)
        + (f" and {alike.num_alike - 1:,} alike" if alike.num_alike > 1 else "")
        for alike in drawn
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
