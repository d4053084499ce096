"""Goodput of jobs that were run, predicted from the failures of other clusters.

`scenarios/goodput/published_jobs.csv` has a row for each job: what was published,
where, and the settings of its recovery that its source states; empty ones keep their
defaults, the same for all jobs. Columns that begin with ``goodput.`` are settings.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nestsim
from nestsim.scenario.load import load_scenario

FOLDER = Path(__file__).parents[4] / "scenarios/goodput"
TABLE = FOLDER / "published_jobs.csv"

SEEDS = 100
"""Runs of each job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedJob:
    """A job that was run, and what is known of how it recovered."""

    name: str
    """What people call it."""

    num_devices: int
    """Its devices."""

    devices_per_node: int
    """Those of one of its nodes."""

    days: float
    """How long it ran [d]."""

    published: float
    """Share of the time that was useful training."""

    is_bound: bool
    """Whether the source only says "more than"."""

    settings: Mapping[str, str]
    """Setting of [goodput] -> value that the source states."""

    source: str
    """Where it was published."""

    habits: str
    """Where the settings are from; empty if none are published."""

    @property
    def failures(self) -> str:
        """Publication whose rates it is predicted from."""
        return self.settings["goodput.failures"]

    def predicted(self) -> float:
        """Return the mean effective training time of the runs.

        Nothing of it depends on the model but the size of the checkpoint, which is
        given, nor on how fast a step is, as long as it is short beside all else.
        """
        scenario = load_scenario(FOLDER / "llama3_405b_16384_h100.toml")
        nodes = self.num_devices // self.devices_per_node
        asked: dict[str, object] = {
            "cluster.num_devices": self.num_devices,
            "cluster.network.levels[0].fan_out": self.devices_per_node,
            "cluster.network.levels[1].fan_out": nodes,
            "training.global_batch_size": self.num_devices,
            "goodput": {
                "duration": f"{self.days} d",
                "seeds": SEEDS,
                "step_time": "5 s",
            },
        }
        result = nestsim.goodput(scenario.replace(asked).replace(self.settings))
        assert result.result.findings is not None
        return result.result.findings.effective_time.mean


def published_jobs() -> tuple[PublishedJob, ...]:
    """Return the jobs of the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(_job(row) for row in csv.DictReader(file))


def _job(row: Mapping[str, str]) -> PublishedJob:
    return PublishedJob(
        name=row["job"],
        num_devices=int(row["devices"]),
        devices_per_node=int(row["devices_per_node"]),
        days=float(row["days"]),
        published=float(row["published"]),
        is_bound=row["is_bound"] == "yes",
        settings={
            name: value
            for name, value in row.items()
            if name.startswith("goodput.") and value
        },
        source=row["source"],
        habits=row["habits"],
    )
