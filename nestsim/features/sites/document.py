"""What sites say: tokens a day of each way to train, and the network that they need."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from nestsim.document.figures import CurveMarks, CurvePoint, Curves, DrawnCurve
from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    cell,
    field_cell,
    table_section,
)
from nestsim.document.wording import amount, long_time, percent, token_unit
from nestsim.features.sites.record import SitesRecord, WayRecord, gigabits
from topologies.units import format_duration, format_size


def sites_document(data: Mapping[str, object]) -> Document:
    """Return what training on several sites says.

    Parameters
    ----------
    data
        As ``sites.json`` has it.
    """
    record = SitesRecord.read(data)
    return Document.of(record.scenario, "sites", _headline(record), _sections(record))


def _sections(data: SitesRecord) -> Iterator[Section]:
    if not data.ways:
        return
    yield table_section("ways", _ways(data))
    yield Section("bandwidth", "Over bandwidth", (_over_bandwidth(data),))
    yield table_section("least", _least(data))
    yield Section("latency", "Over distance", (_over_latency(data),))
    yield Section("basis", "What is assumed", (FactList(data.facts),))


def _headline(data: SitesRecord) -> Headline:
    if not data.ways or data.alone_per_day is None:
        return Headline.without(data.headline, data.reason or "")
    given = next(way for way in data.ways if way.is_given)
    return Headline(
        verdict=data.headline,
        tone="plain",
        sentences=data.in_words,
        key_figures=(
            KeyFigure(
                "Tokens a day",
                amount(given.tokens_per_day),
                f"{amount(data.alone_per_day)} on one site alone",
            ),
            KeyFigure(
                "Inner steps",
                percent(given.compute_share),
                f"of the time; {percent(data.ways[0].compute_share)} synchronous",
            ),
            KeyFigure(
                "Synchronisation",
                long_time(given.all_reduce_s),
                f"{long_time(given.waiting_s)} of it is waited for",
            ),
        ),
    )


def _ways(data: SitesRecord) -> DataTable:
    alone = data.alone_per_day or 0.0

    def times(way: WayRecord) -> Cell:
        share = way.tokens_per_day / alone
        return Cell(f"{share:.2f}", share)

    return DataTable.of(
        f"Ways to train on {data.num_sites} sites",
        data.ways,
        {
            "Way": lambda way: f"{way.name}{' (given)' * way.is_given}",
            "Meet every": field_cell("sync_every", "{:,}".format),
            "Parts": field_cell("fragments", "{:,}".format),
            "Delay": field_cell("delay", "{:,}".format),
            "A site sends": field_cell("sent_bytes", format_size),
            "In": field_cell("all_reduce_s", long_time),
            "Waits": field_cell("waiting_s", long_time),
            "Inner steps": field_cell("compute_share", percent),
            "Tokens a day": field_cell("tokens_per_day", amount),
            "Of one site": times,
        },
        sortable=True,
    )


def _least(data: SitesRecord) -> DataTable:
    places = range(len(data.compute_shares))

    def needed(place: int) -> Callable[[WayRecord], str | Cell]:
        return lambda way: cell(way.least_bandwidth_bytes_per_s[place], gigabits)

    return DataTable.of(
        "Least uplink for a share of the time in inner steps",
        data.ways,
        {
            "Way": lambda way: way.name,
            **{
                f"{100 * data.compute_shares[place]:g} %": needed(place)
                for place in places
            },
        },
    )


def _over_bandwidth(data: SitesRecord) -> FigureBlock:
    return _curves(
        data,
        "bandwidth",
        data.bandwidths_bytes_per_s,
        [way.over_bandwidth for way in data.ways],
        ("uplink of a site, each way", "Uplink", gigabits),
    )


def _over_latency(data: SitesRecord) -> FigureBlock:
    return _curves(
        data,
        "latency",
        data.latencies_s,
        [way.over_latency for way in data.ways],
        ("latency from a site to the next, one way", "Latency", format_duration),
    )


def _curves(
    data: SitesRecord,
    name: str,
    places: Sequence[float],
    heights: Sequence[Sequence[float]],
    words: tuple[str, str, Callable[[float], str]],
) -> FigureBlock:
    """Return tokens a day of each way over a number."""
    across, heading, write = words
    scale, unit = token_unit(max(max(row) for row in heights))
    here = data.bandwidth_bytes_per_s if name == "bandwidth" else data.latency_s
    most = (data.alone_per_day or 0.0) * (data.num_sites or 0)

    def curve(way: WayRecord, row: Sequence[float]) -> DrawnCurve:
        points = (
            CurvePoint(
                place, tokens / scale, f"{way.name}, {write(place)}: {amount(tokens)}"
            )
            for place, tokens in zip(places, row, strict=True)
        )
        return DrawnCurve(way.name, tuple(points))

    def tokens_of(number: int) -> Callable[[int], str | Cell]:
        return lambda place: cell(
            heights[number][place], lambda tokens: f"{tokens / scale:,.3f}"
        )

    return FigureBlock(
        name=name,
        title=f"Tokens a day over {name}",
        about=f"Curves of tokens a day over the {name} between sites.",
        drawing=Curves(
            curves=tuple(map(curve, data.ways, heights)),
            across=across,
            up=f"tokens a day [{unit}]",
            names={place: write(place) for place in places},
            logarithmic=True,
            marks=CurveMarks(
                upright=(here,) if here else (),
                level=(most / scale,),
            ),
        ),
        note=f"Dotted: {write(here or 0.0)}, as given, and what all sites train that "
        "never wait.",
        table=DataTable.of(
            f"Tokens a day [{unit}]",
            range(len(places)),
            {
                heading: lambda place: Cell(write(places[place]), places[place]),
                **{way.name: tokens_of(number) for number, way in enumerate(data.ways)},
            },
        ),
    )
