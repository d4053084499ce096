"""The table [simulation]: how plans are replayed and judged."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.base import Choice, Factor, Table
from nestsim.scenario.settings import TRACES, SimulationSpec
from nestsim.simulator.settings import ENGINES, GRANULARITIES, ReplaySettings

_DEFAULT = ReplaySettings()


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

    overlap_grad_reduce: bool | None = Field(None, examples=[True])
    """Megatron's: gradients are reduced bucket by bucket behind the last backward
    pass, instead of after it. Left out, as `software.preset` does; "ideal" does
    not."""

    overlap_param_gather: bool | None = Field(None, examples=[True])
    """Megatron's: parameters are gathered bucket by bucket behind the next forward
    pass, instead of after the optimizer step. Left out, as `software.preset` does;
    "ideal" does not."""

    overlap_p2p_comm: bool | None = Field(None, examples=[False])
    """Megatron's: transfers between stages do not stop the stages' work. Left out, as
    `software.preset` does; all presets do."""

    tp_comm_overlap: bool | None = Field(None, examples=[True])
    """Megatron's: tensor-parallel collectives run behind the products next to them.
    Left out, as `software.preset` does; "ideal" does not."""

    communication_slowdown: Factor = Field(
        _DEFAULT.communication_slowdown, examples=[1.1]
    )
    """Factor on the duration of compute while one of the overlaps above has the same
    device communicate beside it; not beside transfers between stages. 1, also what all
    presets have: communication never slows compute down, which is too good where both
    want the same memory or the same processors of a device."""

    expert_skew: Factor = Field(_DEFAULT.expert_skew, examples=[1.5])
    """Tokens that the busiest expert-parallel rank receives, over the mean."""

    seed: int = Field(_DEFAULT.seed, ge=0, le=2**63 - 1, examples=[0])
    """Of everything that is drawn at random."""

    def build(self, defaults: ReplaySettings = _DEFAULT) -> SimulationSpec:
        """Return the settings for the simulator.

        Parameters
        ----------
        defaults
            Overlaps where the table is silent.
        """
        written: dict[str, Any] = self.model_dump(
            exclude={"tolerance", "trace_events", "trace"}, exclude_none=True
        )
        return SimulationSpec(
            tolerance=self.tolerance,
            trace_events=self.trace_events,
            trace=self.trace,
            replay=replace(defaults, **written),
        )
