"""The folder of results of a run: everything about it, complete or not there at all.

Holds ``scenario.toml`` (a copy of the input), ``plan.json``, ``result.json``,
``summary.csv``, ``report.txt``, ``trace.json``, ``figures/*.png``, ``page.html`` where
it was asked for, and ``manifest.json`` with the hash of each. No file holds a time
stamp: the same scenario gives the same folder.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from nestsim.document.dumps import dump_json
from nestsim.document.folder import PAGE, REPORT, Writer, writer_of
from nestsim.features.run.figures import hottest_link_use
from nestsim.features.run.record import (
    reported_candidate,
    result_json,
    summary_csv,
)
from nestsim.features.run.timeline_picture import draw_timeline
from nestsim.features.topology.picture import draw_topology
from nestsim.simulator.trace import write_chrome_trace

if TYPE_CHECKING:
    from nestsim.evaluate.results import ReplayedResult

PICTURES = {
    "figures/memory": ("memory", "memory-parts"),
    "figures/links": ("links", "levels"),
    "figures/gap": ("planned", "gap", "plans"),
}
"""Picture -> figures of the document that it shows."""

FILES = (
    *("scenario.toml", "plan.json", "result.json", "summary.csv", REPORT),
    *("trace.json", "figures/timeline.png", "figures/topology.png"),
    *(f"{name}.png" for name in PICTURES),
    PAGE,
)
"""Files of the folder, but the manifest; without a plan, figures or the page there are
fewer."""


def run_writers(result: "ReplayedResult", scenario_bytes: bytes) -> dict[str, Writer]:
    """Return what writes each file that no document makes, by its name in the folder.

    Parameters
    ----------
    result
        What was found.
    scenario_bytes
        The scenario's file.
    """
    best, network = reported_candidate(result), result.network
    writers: dict[str, Writer] = {
        "scenario.toml": writer_of(scenario_bytes),
        "result.json": _text(lambda: dump_json(result_json(result))),
        "summary.csv": _text(lambda: summary_csv(result)),
    }
    if best is not None:
        writers |= {
            "plan.json": _text(lambda: dump_json(best.priced.plan.to_json())),
            "trace.json": lambda path: write_chrome_trace(
                best.replay,
                path,
                max_events=result.max_trace_events,
                link_use=hottest_link_use(best.replay, network),
            ),
            "figures/timeline.png": lambda path: draw_timeline(best, path),
        }
    writers["figures/topology.png"] = lambda path: draw_topology(network, path)
    return writers


def _text(content: Callable[[], str]) -> Writer:
    """Return what writes a text that is made when it is written."""
    return lambda path: path.write_text(content(), encoding="utf-8", newline="")
