"""The table [sweep]: which settings `nestsim sweep` varies."""

from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.base import Choice, Count, Duration, Table
from nestsim.scenario.settings import SWEPT, SweepSpec

Values = Annotated[
    list[Any], Field(min_length=1, json_schema_extra={"uniqueItems": True})
]


class SweepTable(Table):
    """Which settings `nestsim sweep` varies: every combination of their values."""

    what: Annotated[str, Choice(SWEPT)] | None = Field(None, examples=["simulate"])
    """What is done at each point: replay the fixed [plan] ("simulate"), plan anew
    ("plan"), or plan anew and replay the best plans ("run"). Left out, "simulate" where
    there is a [plan], else "run"."""

    set: dict[str, Values] = Field(
        {},
        examples=[{"cluster.network.nic_bandwidth": ["200 Gbit/s", "400 Gbit/s"]}],
    )
    """Dotted path of a setting, such as "cluster.network.levels[1].bandwidth", and its
    values. The last setting changes fastest."""

    workers: Count | None = Field(None, examples=[8])
    """Processes; left out, one for each core. Results do not depend on it."""

    time_limit: Duration | None = Field(None, examples=["60 s"])
    """A point that takes longer is recorded as failed, which depends on the machine;
    left out, none is."""

    def build(self) -> SweepSpec:
        """Return the settings for the sweep."""
        return SweepSpec(
            what=self.what,
            values={path: tuple(values) for path, values in self.set.items()},
            workers=self.workers,
            time_limit=self.time_limit,
        )
