"""A comparison as a sweep: a point is a scenario and a planner, a row its entry."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nestsim.compare.measure import measure
from nestsim.scenario.settings import Scenario
from nestsim.sweep.points import Point, Row, content_key
from planner.planners.protocol import PlannerSettings
from planner.work import Progress
from topologies.fabrics.link_file import link_file_bytes
from topologies.specs import CustomSpec


class Details:
    """Shows what happens inside a point beside how many points are done.

    It stays behind when a task travels to another process, where nobody looks.
    """

    def __init__(self, progress: Progress | None, num_points: int) -> None:
        self._progress, self._num_points = progress, num_points
        self._doing, self._share = "", 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Details, (None, self._num_points)

    def point(self, doing: str, share: float | None) -> None:
        """Take what the sweep says of itself."""
        self._doing, self._share = doing, share or 0.0
        self._say(doing, self._share)

    def detail(self, doing: str, share: float | None) -> None:
        """Take what a point says of itself."""
        inside = (share or 0.0) / self._num_points
        self._say(f"{self._doing}: {doing}", min(self._share + inside, 1.0))

    @property
    def listener(self) -> Progress | None:
        """What points tell, None where nobody listens."""
        return None if self._progress is None else self.detail

    def _say(self, doing: str, share: float) -> None:
        if self._progress is not None:
            self._progress(doing, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareTask:
    """Takes a planner through a scenario."""

    scenarios: Mapping[str, Scenario]
    """By the label that points name them by, as `for_comparison` returns them."""

    time_limit: float | None
    """Of each search; None for the scenario's own [s]."""

    details: Details = field(default_factory=lambda: Details(None, 1))
    """Shows progress inside a point."""

    def __call__(self, point: Point) -> Row:
        """Return the row of the entry."""
        scenario, planner = self.scenarios[point["scenario"]], point["planner"]
        settings = self.settings(scenario)
        listener = self.details.listener
        return measure(scenario, planner, settings, progress=listener).to_row()

    def key(self, point: Point) -> str:
        """Return a hash of the planner's name and all that it is told."""
        scenario = self.scenarios[point["scenario"]]
        settings = self.settings(scenario)
        return content_key([dict(point), digest(scenario), repr(settings)])

    def settings(self, scenario: Scenario) -> PlannerSettings:
        """Return what planners are told beside the space."""
        return replace(
            scenario.planner_settings, time_limit=self.time_limit, fixed=scenario.plan
        )


def digest(scenario: Scenario) -> str:
    """Return a hash of what a scenario says, defaults and files resolved.

    Where the file lies and how it is written does not matter.
    """
    links = b""
    if isinstance(scenario.network_spec, CustomSpec):
        links = link_file_bytes(scenario.network_spec.path)
        network_spec = replace(scenario.network_spec, path=Path("links"))
        scenario = replace(scenario, network_spec=network_spec)
    said = repr(replace(scenario, path=Path(), text=b""))
    return hashlib.sha256(said.encode() + links).hexdigest()


def comparison_points(
    labels: Sequence[str], planners: Sequence[str]
) -> list[dict[str, str]]:
    """Return the points, scenario by scenario."""
    return [
        {"scenario": label, "planner": planner}
        for label in labels
        for planner in planners
    ]
