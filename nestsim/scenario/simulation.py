"""The table [simulation]: how plans are replayed and judged."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field

from nestsim.scenario.software import EXECUTION
from nestsim.simulator.system import ReplaySettings
from topologies.settings import Examples, Factor, NameChoice

TRACES = ("representatives", "all")
"""What a trace may show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec(ReplaySettings):
    """How plans are replayed and judged."""

    tolerance: Annotated[float, Gt(0), Lt(1), Examples(0.05)] = 0.05
    """How much slower than planned, relative, a replay may be and still confirm a plan
    that was given."""

    trace_events: Annotated[int, Ge(0), Le(100_000_000), Examples(100_000)] = 100_000
    """Events that the exported trace holds at most."""

    trace: Annotated[str, NameChoice(TRACES)] = "representatives"
    """What the exported trace shows: of devices that are provably alike the first ones
    ("representatives"), or all of them ("all"), which takes memory in proportion to the
    cluster and may need more `trace_events`."""


_T = TypeVar("_T")
_Moved = Annotated[_T | None, Field(json_schema_extra={"deprecated": True})]
"""What stood here before it moved to [software]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationTable(SimulationSpec):
    """How plans are replayed and judged."""

    overlap_grad_reduce: _Moved[bool] = None
    """Moved to `software.overlap_grad_reduce`; still read here in this release."""

    overlap_param_gather: _Moved[bool] = None
    """Moved to `software.overlap_param_gather`; still read here in this release."""

    overlap_p2p_comm: _Moved[bool] = None
    """Moved to `software.overlap_p2p_comm`; still read here in this release."""

    tp_comm_overlap: _Moved[bool] = None
    """Moved to `software.tp_comm_overlap`; still read here in this release."""

    communication_slowdown: _Moved[Factor] = None
    """Moved to `software.communication_slowdown`; still read here in this release."""

    expert_skew: _Moved[Factor] = None
    """Moved to `software.expert_skew`; still read here in this release."""

    @property
    def moved(self) -> dict[str, Any]:
        """What is set here that now belongs to [software]."""
        given = {name: getattr(self, name, None) for name in EXECUTION}
        return {name: value for name, value in given.items() if value is not None}

    def build(self) -> SimulationSpec:
        """Return the settings for the simulator."""
        names = (field.name for field in fields(SimulationSpec))
        return SimulationSpec(**{name: getattr(self, name) for name in names})
