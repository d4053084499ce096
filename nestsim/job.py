"""The main job: plan, replay the best plans, judge, and choose."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nestsim.simulator.work import Replay
    from nestsim.verdict import Verdict
    from planner.objective import PricedPlan
    from topologies.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The same quantities for the plan and for the replay."""

    iteration_time: float
    """[s]"""

    tokens_per_second: float
    """[token/s]"""

    tokens_per_second_per_device: float
    """Over all devices of the cluster, idle ones included [token/s]."""

    flops_per_device: float
    """Model FLOPs (forward and backward, no recompute) per second and device."""

    mfu: float
    """`flops_per_device` over the device's peak."""

    peak_memory: float
    """Of the fullest device [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One of the k best plans, replayed."""

    rank: int
    """Position in the planner's order, from 1."""

    priced: "PricedPlan"
    planned: Throughput
    replay: "Replay"
    simulated: Throughput
    verdict: "Verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Everything that a report needs."""

    scenario_name: str
    network: "Network"
    layer_names: tuple[str, ...]
    """Names of the chain's layers."""

    device_memory: float
    """Of one device [byte]."""

    candidates: tuple[Candidate, ...]
    """Re-ranked: by simulated throughput, confirmed or not."""

    chosen: int | None
    """Index into `candidates` of the first confirmed one; None if there is none."""

    lower_bound: float
    """No plan of the search space is faster than this, by the planner's model [s]."""

    search_statistics: "Mapping[str, int]"
    """Configurations considered, priced, and why the others were dropped."""
