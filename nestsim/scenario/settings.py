"""A checked scenario: the frozen parts that the packages below take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.software import IDEAL, Software
from nestsim.scenario.stress_settings import StressSpec
from nestsim.simulator.settings import ReplaySettings
from planner.planners.protocol import PlannerSettings
from planner.step.execution import NOTHING_HIDDEN, Execution

if TYPE_CHECKING:
    from estimators.models.spec import TransformerSpec
    from estimators.operators.profile import Profile
    from estimators.training import TrainingSpec
    from estimators.user_files.constants import UserConstants
    from estimators.user_files.links import UserLinks
    from planner.plans.spec import PlanSpec
    from planner.search.space import SearchSpec
    from topologies.accelerators import Accelerator
    from topologies.degrade import Degradation
    from topologies.specs import NetworkSpec


TRACES = ("representatives", "all")
"""What a trace may show."""

SWEPT = ("simulate", "plan", "run")
"""What may be done at each point of a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """Which settings a sweep varies, and what it does at each point."""

    what: str | None = None
    """One of `SWEPT`; None for what the rest of the scenario suggests."""

    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Dotted path of a setting -> the values that it takes, as written."""

    workers: int | None = None
    """Processes; None for one for each core."""

    time_limit: float | None = None
    """Of one point [s]; None for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """One thing that must come out."""

    name: str
    """The setting of the table [assert]."""

    quantity: str
    """What is compared: a key of `nestsim.asserted.found_values`."""

    operator: str
    """``"<="``, ``">="``, ``"<"``, ``">"`` or ``"=="``."""

    value: float | str
    """What it is compared with, in base units."""

    written: str
    """The comparison as people write it."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario file, read and checked."""

    path: Path
    """The file."""

    text: bytes
    """The file as it is on disk."""

    name: str
    """What the user calls it."""

    spec: "TransformerSpec"
    """The model."""

    training: "TrainingSpec"
    """What is trained at once, and in which precision."""

    accelerator: "Accelerator"
    """The devices."""

    network_spec: "NetworkSpec"
    """What the network is built from."""

    search: "SearchSpec"
    """What the planner may try."""

    simulation: SimulationSpec
    """How its plans are replayed."""

    software_preset: str = "ideal"
    """Name of the framework whose defaults hold where the file is silent."""

    software: Software = IDEAL
    """What drives the devices."""

    execution: Execution = NOTHING_HIDDEN
    """What it hides behind compute."""

    profile: "Profile | None" = None
    """Operator times that were measured, which are taken instead of the device's rates;
    None if there are none."""

    constants: "UserConstants | None" = None
    """Constants of the user in place of those that are shipped; None if there are
    none."""

    links: "UserLinks | None" = None
    """What the user measured of links; None if nothing."""

    degradation: "Degradation | None" = None
    """What of the network and of the devices is slow or gone; None if nothing is."""

    plan: "PlanSpec | None" = None
    """A plan that is given, beside what the planner may try; None if none is."""

    planner: str = "nest"
    """A name of `planner.planners.registry.PLANNERS`."""

    planner_settings: PlannerSettings = field(default_factory=PlannerSettings)
    """What planners are told beside `search`."""

    sweep: SweepSpec = field(default_factory=SweepSpec)
    """What `nestsim sweep` varies."""

    stress: StressSpec = field(default_factory=StressSpec)
    """What `nestsim stress` does to the cluster."""

    assertions: tuple[Assertion, ...] = ()
    """What must come out."""
