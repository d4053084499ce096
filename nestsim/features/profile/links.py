"""From a sweep over collectives to the constants of the links that it ran on.

The law is that of `estimators.collectives.transports` and the fit that of published
curves (`features.calibration.transports`): robust, in the logarithm of time, with a
weak pull that keeps constants in place that no point decides. For people there are the
table of nccl-tests, and the constants behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from estimators.collectives.transports import Scope, Transport, find_transport
from estimators.user_files import CONSTANTS, LinkPoint, LinkSweep, UserLink, UserLinks
from nestsim.features.calibration.transports import (
    HIGHEST,
    METHOD,
    START,
    changed,
    predicted_by,
    solve,
)
from nestsim.features.validation.collective_rows import CollectiveCase

_SEND = ("send_launch", "send_efficiency")
"""Constants of a message from one device to another."""

_METHODS = {name: START[name] for name in METHOD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What is known of links without measuring."""

    accelerator: str = ""
    """Name in the catalogue; empty for other devices."""

    node: float | None = None
    """Bandwidth of a device's links inside a node, by the datasheet [byte/s]."""

    fabric: float | None = None
    """Bandwidth of all adapters of a node together, by the datasheet [byte/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPoint:
    """A measured collective beside the fitted law."""

    point: LinkPoint
    """Point of the sweep."""

    predicted: float
    """Time by the fitted constants [s]."""

    @property
    def error(self) -> float:
        """Relative, with its sign."""
        return self.predicted / self.point.timing.seconds - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """The constants of measured links, and every point beside them."""

    sweep: LinkSweep
    """Measured collectives."""

    links: UserLinks
    """Fitted constants of the links."""

    points: tuple[FittedPoint, ...]
    """Points of the sweep with their predictions."""

    def median_error(self, scope: Scope) -> float:
        """Return the median absolute error of the points of one kind of link."""
        return median(
            abs(fitted.error) for fitted in self.points if fitted.point.scope == scope
        )


def fit_links(sweep: LinkSweep, stated: Stated, *, name: str, date: str) -> LinkFit:
    """Fit the constants of all kinds of links that were measured.

    Parameters
    ----------
    sweep
        What was measured.
    stated
        Bandwidths that efficiencies are to be fractions of; where nothing is stated,
        the highest bus bandwidth that was measured is taken.
    name, date
        What the result says of its file and its time.
    """
    by_scope = {
        scope: [point for point in sweep.points if point.scope == scope]
        for scope in ("node", "fabric")
    }
    by_scope_fit: dict[str, UserLink] = {}
    points: list[FittedPoint] = []
    if by_scope["node"]:
        by_scope_fit["node"], fitted = _fit_node(by_scope["node"], stated)
        points += fitted
    if by_scope["fabric"]:
        inside = by_scope_fit.get("node")
        by_scope_fit["fabric"], fitted = _fit_fabric(by_scope["fabric"], stated, inside)
        points += fitted
    links = UserLinks(
        name=name,
        date=date,
        device=sweep.device,
        backend=sweep.backend,
        torch_version=sweep.torch_version,
        node=by_scope_fit.get("node"),
        fabric=by_scope_fit.get("fabric"),
    )
    return LinkFit(sweep=sweep, links=links, points=tuple(points))


def _fit_node(
    points: Sequence[LinkPoint], stated: Stated
) -> tuple[UserLink, list[FittedPoint]]:
    """Fit links inside a node."""
    base = _base(stated, inside_node=True)
    bandwidth, words = _bandwidth(points, stated.node)
    names = ["launch", "ramp", "efficiency", *_SEND]
    tied: dict[str, float] = {"per_doubling": 0.0}
    if _sizes(points) > 1:
        names.insert(1, "per_rank")
    else:
        tied["per_rank"] = base.per_rank
    if base.multicast_efficiency:
        names.append("multicast_efficiency")
    cases = [_case(point, base, bandwidth) for point in points]
    return _solved(points, cases, tuple(names), tied, (bandwidth, words))


def _fit_fabric(
    points: Sequence[LinkPoint], stated: Stated, inside: UserLink | None
) -> tuple[UserLink, list[FittedPoint]]:
    """Fit links between nodes; what a node adds is known where it was measured."""
    # What a ring's step takes follows from the doublings that are fitted.
    base = replace(_base(stated, inside_node=False), per_hop=0.0)
    node = inside.transport if inside else _base(stated, inside_node=True)
    bandwidth, words = _bandwidth(points, stated.fabric)
    names = ["per_doubling", "ramp", "efficiency", *_SEND]
    tied = {"launch": node.launch, "per_rank": node.per_rank}
    if inside is None:
        names[0] = "launch"
        tied = {"per_rank": base.per_rank, "per_doubling": base.per_doubling}
        if _sizes(points) > 1:
            names.insert(1, "per_doubling")
            del tied["per_doubling"]
    cases = [
        replace(
            _case(
                point, node, inside.bandwidth if inside else stated.node or bandwidth
            ),
            across=base,
            across_bandwidth=bandwidth,
        )
        for point in points
    ]
    return _solved(points, cases, tuple(names), tied, (bandwidth, words))


def _base(stated: Stated, *, inside_node: bool) -> Transport:
    """Return the published transport that a fit begins from."""
    return replace(
        find_transport(stated.accelerator, inside_node=inside_node), links_by_size=()
    )


def _sizes(points: Sequence[LinkPoint]) -> int:
    """Return how many sizes of groups there are."""
    return len({point.num_ranks for point in points})


def _bandwidth(points: Sequence[LinkPoint], stated: float | None) -> tuple[float, str]:
    """Return what efficiencies are fractions of, and where that is from."""
    if stated is not None:
        return stated, "stated"
    return max(point.bus_bandwidth for point in points), "the highest that was measured"


def _case(point: LinkPoint, inside: Transport, bandwidth: float) -> CollectiveCase:
    return CollectiveCase(
        operation=point.operation,
        device="",
        num_ranks=point.num_ranks,
        num_nodes=point.num_nodes,
        num_bytes=float(point.num_bytes),
        inside=inside,
        inside_bandwidth=bandwidth,
        across=None,
        across_bandwidth=0.0,
        method="tests",
        measured=point.timing.seconds,
        basis="measured here",
        assumed=(),
    )


def _solved(
    points: Sequence[LinkPoint],
    cases: Sequence[CollectiveCase],
    names: tuple[str, ...],
    tied: Mapping[str, float],
    bandwidth: tuple[float, str],
) -> tuple[UserLink, list[FittedPoint]]:
    """Solve for some constants of the outermost links of the cases."""
    constants = solve(cases, names, tied, _METHODS, HIGHEST)
    first = cases[0]
    transport = changed(first.across or first.inside, constants)
    changes: dict[str, Any] = {
        "inside" if first.across is None else "across": transport
    }
    times = [predicted_by(replace(case, **changes), _METHODS) for case in cases]
    fitted = [
        FittedPoint(point=point, predicted=time)
        for point, time in zip(points, times, strict=True)
    ]
    middle = median(abs(point.error) for point in fitted)
    source = f"fit to {len(points)} measured points: half of them within {middle:.0%}"
    link = UserLink(
        transport=replace(
            transport,
            name=f"user-{transport.scope}",
            accelerators=(),
            source=source,
        ),
        num_ranks=max(point.num_ranks for point in points),
        num_nodes=max(point.num_nodes for point in points),
        bandwidth=bandwidth[0],
        bandwidth_is=bandwidth[1],
    )
    return link, fitted


def links_json(fit: LinkFit) -> dict[str, Any]:
    """Return constants and points as JSON values."""
    links = {
        scope: {
            "num_ranks": link.num_ranks,
            "num_nodes": link.num_nodes,
            "bandwidth_bytes_per_s": link.bandwidth,
            "bandwidth_is": link.bandwidth_is,
            "constants": {name: getattr(link.transport, name) for name in CONSTANTS},
            "median_error": fit.median_error(link.transport.scope),
        }
        for scope, link in (("node", fit.links.node), ("fabric", fit.links.fabric))
        if link is not None
    }
    sweep = fit.sweep
    return {
        "backend": sweep.backend,
        "device": sweep.device,
        "torch_version": sweep.torch_version,
        "date": fit.links.date,
        "num_ranks": sweep.num_ranks,
        "num_nodes": sweep.num_nodes,
        "num_skipped": sweep.num_skipped,
        "links": links,
        "points": [
            {
                name: value
                for name, value in asdict(point.point).items()
                if name != "timing"
            }
            | {
                "time_s": point.point.timing.seconds,
                "spread_s": point.point.timing.spread,
                "trains": point.point.timing.samples,
                "bus_bandwidth_bytes_per_s": point.point.bus_bandwidth,
                "fitted_s": point.predicted,
            }
            for point in fit.points
        ],
    }
