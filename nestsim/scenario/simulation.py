"""The table [simulation]: how plans are replayed and judged."""

from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.base import Choice, Factor, Table
from nestsim.scenario.settings import TRACES, SimulationSpec
from nestsim.scenario.software import EXECUTION
from nestsim.simulator.settings import ENGINES, GRANULARITIES, ReplaySettings

_DEFAULT = ReplaySettings()


def _moved() -> Any:
    """Return the field of a setting that stood here before it moved to [software]."""
    return Field(None, json_schema_extra={"deprecated": True})


class SimulationTable(Table):
    """How plans are replayed and judged."""

    tolerance: float = Field(0.05, gt=0, lt=1, examples=[0.05])
    """A plan is confirmed if its replay is at most this much slower, relative."""

    trace_events: int = Field(100_000, ge=0, le=100_000_000, examples=[100_000])
    """The most events that the exported trace holds."""

    trace: Annotated[str, Choice(TRACES)] = "representatives"
    """What the exported trace shows: of devices that are provably alike the first ones
    ("representatives"), or all of them ("all"), which takes memory in proportion to the
    cluster and may need more `trace_events`."""

    granularity: Annotated[str, Choice(GRANULARITIES)] = _DEFAULT.granularity
    """Whether collectives inside layers are part of the stages' times ("stage"), or
    each a flow over the links ("layer")."""

    folding: bool = _DEFAULT.folding
    """Simulate one of each class of devices that are provably alike; exact."""

    skipping: bool = _DEFAULT.skipping
    """Skip whole periods once the state of the pipeline repeats; exact."""

    engine: Annotated[str, Choice(ENGINES)] = _DEFAULT.engine
    """What runs the events: "simpy", "compiled", or "auto", which compiles long runs.
    The results are the same to the bit."""

    seed: int = Field(_DEFAULT.seed, ge=0, le=2**63 - 1, examples=[0])
    """Of everything that is drawn at random."""

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
            if (value := getattr(self, name)) is not None
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
