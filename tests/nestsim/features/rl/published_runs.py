"""Steps that were published, beside what is predicted for them.

`scenarios/rl/published_runs.csv` has a row for each: the time of a step and, where the
source has them, of its phases. One time is no prediction: the rollout of the first row,
which sets what a step of the engine takes beside its kernels.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import nestsim

FOLDER = Path(__file__).parents[4] / "scenarios/rl"
TABLE = FOLDER / "published_runs.csv"

PARTS = {
    "rollout": ("rollout",),
    "training": ("training",),
    "log_probs": ("old log-probs", "reference"),
    "weights": ("weights", "states"),
}
"""Column -> the phases that it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """A step that was run, and its prediction."""

    name: str
    """Name of the scenario."""

    published: dict[str, float]
    """Column -> published time [s]."""

    predicted: dict[str, float]
    """The same, predicted [s]."""

    source: str
    """Where it was published."""

    def error(self, column: str) -> float:
        """Return predicted over published, less 1."""
        return self.predicted[column] / self.published[column] - 1.0


def published_steps() -> tuple[PublishedStep, ...]:
    """Return all published steps with their predictions."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(map(_step, csv.DictReader(file)))


def _step(row: dict[str, str]) -> PublishedStep:
    result = nestsim.rl(FOLDER / f"{row['scenario']}.toml").result
    assert result.step is not None
    times = {phase.name: phase.time for phase in result.step.phases}
    predicted = {
        column: sum(times.get(name, 0.0) for name in names)
        for column, names in PARTS.items()
    }
    predicted["step"] = result.step.time.time
    return PublishedStep(
        name=result.scenario_name,
        published={
            column: float(row[column]) for column in ("step", *PARTS) if row[column]
        },
        predicted=predicted,
        source=row["source"],
    )
