"""The table [simulation]: how plans are replayed and judged."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.base import Table
from nestsim.scenario.software import EXECUTION
from nestsim.simulator.replay import ENGINES, GRANULARITIES, ReplaySettings
from topologies.settings import Factor, NameChoice

TRACES = ("representatives", "all")
"""What a trace may show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """How plans are replayed and judged."""

    tolerance: float = 0.05
    """A plan is confirmed if its replay is at most this much slower, relative."""

    trace_events: int = 100_000
    """The most events that the exported trace holds."""

    trace: str = "representatives"
    """A name of `TRACES`: whether the exported trace shows one of each class of devices
    that are alike, or all."""

    replay: ReplaySettings = field(default_factory=ReplaySettings)
    """What is simulated event by event, and how."""


_DEFAULT = ReplaySettings()


def _moved() -> Any:
    """Return the field of a setting that stood here before it moved to [software]."""
    return Field(None, json_schema_extra={"deprecated": True})


class SimulationTable(Table):
    """How plans are replayed and judged."""

    tolerance: float = Field(0.05, gt=0, lt=1, examples=[0.05])
    """How much slower than planned, relative, a replay may be and still confirm a plan
    that was given."""

    trace_events: int = Field(100_000, ge=0, le=100_000_000, examples=[100_000])
    """Events that the exported trace holds at most."""

    trace: Annotated[str, NameChoice(TRACES)] = "representatives"
    """What the exported trace shows: of devices that are provably alike the first ones
    ("representatives"), or all of them ("all"), which takes memory in proportion to the
    cluster and may need more `trace_events`."""

    granularity: Annotated[str, NameChoice(GRANULARITIES)] = _DEFAULT.granularity
    """Whether collectives inside layers are part of the stages' times ("stage"), or
    each a flow over the links ("layer")."""

    folding: bool = _DEFAULT.folding
    """Whether one of each class of devices that are provably alike is simulated for all
    of them; the result is exact."""

    skipping: bool = _DEFAULT.skipping
    """Whether whole periods are skipped once the state of the pipeline repeats; the
    result is exact."""

    engine: Annotated[str, NameChoice(ENGINES)] = _DEFAULT.engine
    """What runs the events: "simpy", "compiled", or "auto", which compiles long runs.
    The results are the same to the bit."""

    seed: int = Field(_DEFAULT.seed, ge=0, le=2**63 - 1, examples=[0])
    """Seed of everything that is drawn at random."""

    overlap_grad_reduce: bool | None = _moved()
    """Moved to `software.overlap_grad_reduce`; still read here in this release."""

    overlap_param_gather: bool | None = _moved()
    """Moved to `software.overlap_param_gather`; still read here in this release."""

    overlap_p2p_comm: bool | None = _moved()
    """Moved to `software.overlap_p2p_comm`; still read here in this release."""

    tp_comm_overlap: bool | None = _moved()
    """Moved to `software.tp_comm_overlap`; still read here in this release."""

    communication_slowdown: Factor | None = _moved()
    """Moved to `software.communication_slowdown`; still read here in this release."""

    expert_skew: Factor | None = _moved()
    """Moved to `software.expert_skew`; still read here in this release."""

    @property
    def moved(self) -> dict[str, Any]:
        """What is set here that now belongs to [software]."""
        return {
            name: value
            for name in EXECUTION
            if (value := getattr(self, name, None)) is not None
        }

    def build(self) -> SimulationSpec:
        """Return the settings for the simulator."""
        return SimulationSpec(
            tolerance=self.tolerance,
            trace_events=self.trace_events,
            trace=self.trace,
            replay=ReplaySettings(
                granularity=self.granularity,
                folding=self.folding,
                skipping=self.skipping,
                engine=self.engine,
                seed=self.seed,
            ),
        )
