"""Training on sites far apart as others have published it, beside what is predicted.

`scenarios/sites/published_bandwidth.csv` is table 4 of Douillard et al., "Streaming
DiLoCo with overlapping communication: Towards a Distributed Free Lunch", 2025 (arXiv
2501.18512): the bandwidth in Gbit/s that a simulator of its authors needs for a share
of the time in compute, with the step times and spacings of its appendix. It is told on
a grid of 50 bandwidths, at equal distances of their logarithms from 0.1 to 1,000
Gbit/s, whose values all its numbers are. 16 bits of a value follow from the paper's
"400 times fewer bits" of 4 bits every 100 steps.

`INTELLECT_1` is table 2 of Jaghouar et al., "INTELLECT-1 Technical Report", 2024 (arXiv
2412.01152), where 100 inner steps always take 38 minutes, with the ends of the range in
which the bandwidth between nodes lay.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

import nestsim
from nestsim.features.sites.closed_form import OuterLoop
from nestsim.features.sites.job import SHARES, SitesFindings
from nestsim.scenario.load import load_scenario

FOLDER = Path(__file__).parents[4] / "scenarios/sites"
TABLE = FOLDER / "published_bandwidth.csv"

GRID = np.logspace(-1.0, 3.0, 50)
"""Bandwidths of the paper's simulator [Gbit/s]."""

FORWARD = 1.0 / 3.0
"""Share of the forward pass of a step: that paper's nodes are a forward pass and two of
the backward pass for each layer, taken to be of one length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """A row of the table: a model and a method."""

    model: str
    """Size of the model, as the paper has it."""

    method: str
    """What sites do, and in how many bits."""

    loop: OuterLoop
    """The same here, between two sites without latency."""

    layers: int
    """Layers of the model."""

    published: tuple[float, ...]
    """Least bandwidth for each of `SHARES` [Gbit/s]."""

    def needed(self, share: float, size: float = 1.0) -> float:
        """Return the least bandwidth that is predicted [Gbit/s].

        The gradient of the first layer is there when a step is over, and the next step
        begins with it: this part is never hidden.

        Parameters
        ----------
        share
            Of the time in compute.
        size
            Factor on the bytes that are sent.
        """
        loop = self.loop
        rate = loop.least_rate(share)
        if loop.fragments == 1:
            waits = loop.spacing * loop.step_time * (1.0 / share - 1.0)
            rate = max(rate, loop.bytes_sent / self.layers / waits)
        return 8e-9 * size * rate

    def steps_off(self, size: float = 1.0) -> Iterator[int]:
        """Yield by how many steps of the grid each prediction is higher."""
        for share, printed in zip(SHARES, self.published, strict=True):
            needed = self.needed(share, size) * (1.0 - 1e-9)
            published = int(np.abs(np.log(GRID / printed)).argmin())
            yield int(np.searchsorted(GRID, needed)) - published


def published_rows() -> tuple[PublishedRow, ...]:
    """Return the rows of the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(_row(row) for row in csv.DictReader(file))


def _row(row: Mapping[str, str]) -> PublishedRow:
    time, layers = float(row["step_time_s"]), int(row["layers"])
    fragments = int(row["fragments"])
    # The paper's simulator hides reductions behind what a layer need not wait for: the
    # rest of the backward pass, and for a fragment the passes of the layers before it,
    # half a step on average.
    hidden = 0.5 if fragments > 1 else (1.0 - FORWARD) * (1.0 - 1.0 / layers)
    loop = OuterLoop(
        num_sites=2,
        step_time=time,
        num_bytes=float(row["parameters"]) * int(row["bits"]) / 8,
        latency=0.0,
        sync_every=int(row["spacing"]) * fragments,
        fragments=fragments,
        delay=int(row["delay"]),
        hidden=hidden * time,
    )
    return PublishedRow(
        model=row["model"],
        method=f"{row['method']}, {row['bits']} bits",
        loop=loop,
        layers=layers,
        published=tuple(float(row[f"{100 * share:g}"]) for share in SHARES),
    )


FITTED_BITS = 13.4
"""Bits of a value with which the most of 16-bit predictions are the paper's. What its
sizes count is not told."""


class MeasuredRun(NamedTuple):
    """Nodes of a region, and what was measured."""

    region: str
    """Where the nodes were."""

    bandwidth: str
    """End of the published range of bandwidths that is taken for it."""

    all_reduce: float
    """Median time of an all-reduce [s]."""

    compute_share: float
    """Share of the time in inner steps."""

    def uplink(self, loop: OuterLoop) -> float:
        """Return the uplink with which the all-reduce takes as long [byte/s]."""
        return loop.bytes_sent / (self.all_reduce - loop.hops * loop.latency)

    def predicted(self) -> SitesFindings:
        """Return what is predicted for it."""
        scenario = load_scenario(FOLDER / "intellect_1.toml")
        changed = scenario.replace({"sites.bandwidth": self.bandwidth})
        answer = nestsim.sites(changed).result.findings
        assert answer is not None
        return answer


INTELLECT_1 = (
    MeasuredRun("USA", "4 Gbit/s", 103.0, 0.957),
    MeasuredRun("USA and Europe", "500 Mbit/s", 382.0, 0.856),
    MeasuredRun("worldwide", "500 Mbit/s", 469.0, 0.830),
)
"""What was measured of INTELLECT-1."""
