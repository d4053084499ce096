"""Measured links for people: the table of nccl-tests, and the constants behind it."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.own_runs.links import LinkFit
from nestsim.report.tables import add_row, new_table
from nestsim.report.wording import percent, plural, signed_percent
from topologies.units import format_bandwidth, format_duration, format_size

if TYPE_CHECKING:
    from estimators.user_files.links import UserLink

DISTURBED = 0.25
"""Half of the points further than that from the law: other programs ran, or the law
does not hold here. A choice."""

_WHERE = {"node": "inside a node", "fabric": "between nodes"}


def print_links(found: LinkFit, console: Console) -> None:
    """Print every point beside the fitted law, and the constants."""
    sweep = found.sweep
    nodes = f" on {sweep.num_nodes} nodes" if sweep.num_nodes > 1 else ""
    headline = (
        f"{sweep.device}; {sweep.backend} of torch {sweep.torch_version}; "
        f"{plural(sweep.num_ranks, 'rank')}{nodes}; {found.links.date}"
    )
    console.print(Text(headline, style="bold"), highlight=False)
    console.print(
        Text(
            "Sizes are of the full tensor, bus bandwidth is that of nccl-tests; fitted "
            "is the law that a scenario takes."
        ),
        highlight=False,
    )
    if sweep.num_skipped:
        skipped = plural(sweep.num_skipped, "point")
        console.print(
            Text(f"{skipped} left out: the time or the memory did not suffice."),
            highlight=False,
        )
    console.print()
    console.print(_points_table(found))
    for scope, link in (("node", found.links.node), ("fabric", found.links.fabric)):
        if link is not None:
            console.print()
            console.print(Text(_WHERE[scope].capitalize(), style="bold"))
            for line in _link_lines(found, link):
                console.print(Text(f"  {line}"), highlight=False)


def _points_table(found: LinkFit) -> Table:
    numbers = ("Ranks", "Size", "Time", "+-", "Bus bandwidth", "Fitted", "Error")
    table = new_table("Collective", *numbers, numbers=numbers)
    ordered = sorted(
        found.points,
        key=lambda one: (one.point.operation, one.point.num_ranks, one.point.num_bytes),
    )
    for one in ordered:
        point, timing = one.point, one.point.timing
        add_row(
            table,
            point.operation.replace("_", "-"),
            f"{point.num_ranks:,}",
            format_size(point.num_bytes),
            format_duration(timing.seconds),
            percent(timing.spread / timing.seconds),
            format_bandwidth(point.bus_bandwidth),
            format_duration(one.predicted),
            signed_percent(one.error),
        )
    return table


def _link_lines(found: LinkFit, link: "UserLink") -> list[str]:
    one = link.transport
    stated = format_bandwidth(link.bandwidth)
    reached = format_bandwidth(one.efficiency * link.bandwidth)
    lines = [
        f"large collectives reach {reached}, {percent(one.efficiency)} of {stated} "
        f"({link.bandwidth_is}); single messages {percent(one.send_efficiency)}",
        f"launch {format_duration(one.launch)}, of a message "
        f"{format_duration(one.send_launch)}; each further rank of a node "
        f"{format_duration(one.per_rank)}; ramp {format_duration(one.ramp)}",
    ]
    if one.scope == "fabric":
        each = format_duration(one.per_doubling)
        lines.append(f"each doubling of the nodes {each}")
    if one.multicast_efficiency:
        share = percent(one.multicast_efficiency)
        lines.append(f"all-reduces in the switch reach {share}")
    error = found.median_error(one.scope)
    lines.append(f"half of the points lie within {percent(error)} of the law")
    if error > DISTURBED:
        lines.append(
            "That is far: other programs ran, or links are not alike. Measure again on "
            "a quiet machine."
        )
    if link.bandwidth_is != "stated":
        lines.append(
            f"A scenario that names the file states {stated} as bandwidth of such "
            "links; or measure again with the datasheet's bandwidth stated."
        )
    return lines
