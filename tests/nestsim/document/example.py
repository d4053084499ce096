"""A document with every kind of block and of figure."""

from nestsim.document.figures import (
    BarGroups,
    BarsOfGroup,
    Cloud,
    CloudPoint,
    CostFront,
    CurveMarks,
    CurvePoint,
    Curves,
    DrawnCurve,
    FrontPoint,
    GroupedBar,
    HeatCell,
    HeatGroup,
    HeatMap,
    HeatRow,
    Scatter,
    Shape,
    StackedBar,
    StackPart,
    Stacks,
)
from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    Sentences,
    Snippet,
)

LONG = "a name that is so long that no picture has room for all of it, nor a terminal"

HOSTILE = "[bold]$x_1$ | **b** <i>&`"
"""Markup of rich, matplotlib, Markdown and HTML."""

WIDE = DataTable(
    caption="Three conditions",
    columns=(
        "Size",
        "Algorithm",
        *(
            f"{condition}, {quantity}"
            for condition in ("alone", "together", "busy")
            for quantity in ("time", "algbw", "busbw")
        ),
    ),
    rows=tuple(
        (f"{2**row} KiB", "ring", *(f"{row + 1}{place}.25 us" for place in range(9)))
        for row in range(3)
    ),
    numbers=(
        "Size",
        *(
            f"{condition}, {quantity}"
            for condition in ("alone", "together", "busy")
            for quantity in ("time", "algbw", "busbw")
        ),
    ),
    shown=1,
)

CURVES = Curves(
    curves=(
        DrawnCurve(
            "closed form", tuple(CurvePoint(2.0**k, 3.0 * k, "tip") for k in range(9))
        ),
        DrawnCurve(
            f"simulated, {LONG}",
            tuple(
                CurvePoint(2.0**k, 3.0 * k + 1, "tip", 3.0 * k - 2, 3.0 * k + 5)
                for k in range(9)
            ),
            series=4,
        ),
    ),
    across="size of messages [KiB]",
    up="bandwidth [GB/s]",
    names={2.0**k: f"{2**k} KiB" for k in range(9)},
    logarithmic=True,
    marks=CurveMarks((5.0,), (12.0,)),
)

BARS = BarGroups(
    groups=tuple(
        BarsOfGroup(
            group,
            tuple(
                GroupedBar(
                    name,
                    length,
                    f"{length}",
                    f"series-{place}",
                    9.0,
                    dot=dot,
                    whisker=(2.0, 5.0),
                )
                for place, (name, length, dot) in enumerate(
                    (("one", 4.0, 4.5), (LONG, 12.5, 99.0), (HOSTILE, None, None))
                )
            ),
        )
        for group in ("first", HOSTILE)
    ),
    across="time [ms]",
)

STACKS = Stacks(
    bars=tuple(
        StackedBar(
            name,
            tuple(
                StackPart(f"part {k}", 1.0 + k, f"series-{k}", "tip") for k in range(7)
            ),
            "28 ms",
            20.0,
        )
        for name in ("torus", HOSTILE)
    ),
    across="time [ms]",
)

HEAT = HeatMap(
    groups=tuple(
        HeatGroup(
            group,
            tuple(
                HeatRow(
                    name,
                    tuple(
                        None
                        if (row, column) == (1, 2)
                        else HeatCell(row - column, f"{row - column}", "tip")
                        for column in range(5)
                    ),
                )
                for row, name in enumerate(("leaf", HOSTILE, LONG))
            ),
        )
        for group in ("first", "second")
    ),
    columns=("1:1", "2:1", LONG, "8:1", HOSTILE),
    across="oversubscription",
    meaning="worse",
)

FRONT = CostFront(
    points=tuple(FrontPoint(10.0 * k, 7.0 * k, k % 2 == 0, "tip") for k in range(1, 9)),
    across="cost [USD/h]",
    up="thousand tokens/s",
)

SCATTER = Scatter(
    clouds=tuple(
        Cloud(
            f"cloud {number} {HOSTILE}",
            tuple(
                CloudPoint(2.0**k, 1.1 * 2.0**k, f"tip {k}", 2.0**k, 1.3 * 2.0**k)
                for k in range(-3, 8)
            ),
            line=((1.0, 3.0), (4.0, 5.0)) if number else (),
        )
        for number in range(2)
    ),
    across="measured [s]",
    up="predicted [s]",
    bands=(0.1, 0.25),
)

SHAPES: dict[str, Shape] = {
    "curves": CURVES,
    "bars": BARS,
    "stacks": STACKS,
    "heat": HEAT,
    "front": FRONT,
    "scatter": SCATTER,
}


def figure(name: str, shape: Shape) -> FigureBlock:
    """Return a figure of a shape."""
    return FigureBlock(
        name=name,
        title=f"{name}: {LONG}",
        about="An example.",
        drawing=shape,
        table=DataTable(
            caption=name,
            columns=("Name", "Value"),
            rows=((HOSTILE, Cell(f"7{name}", 7.0)),),
            numbers=("Value",),
        ),
        note=f"A note on {name}, {LONG}, which goes on for some more lines: {LONG}.",
    )


def document(*blocks: Block) -> Document:
    """Return a document of blocks, of every kind by default."""
    usual = (
        WIDE,
        FactList(rows={"job": LONG, HOSTILE: "16 devices"}),
        Sentences(sentences=(f"{LONG}. {LONG}.",)),
        Snippet(name="run.sh", text="torchrun ```train.py```"),
        *(figure(name, shape) for name, shape in SHAPES.items()),
    )
    return Document(
        subject=HOSTILE,
        doing="example",
        headline=Headline(
            verdict="CONFIRMED",
            tone="good",
            sentences=(f"It takes 1.5 s, {LONG}.",),
            key_figures=(KeyFigure(name="Step", value="1.5 s"),),
        ),
        sections=(
            Section(name="all", title="All of it", blocks=blocks or usual),
            Section(
                name="more",
                title="On the page alone",
                blocks=(Sentences(sentences=("not here",)),),
                in_text=False,
            ),
        ),
    )
