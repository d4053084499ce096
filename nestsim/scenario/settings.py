"""A checked scenario: the frozen parts that the packages below take."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.models.spec import TransformerSpec
    from estimators.training import TrainingSpec
    from planner.search_spec import SearchSpec
    from topologies.accelerators import Accelerator
    from topologies.specs import NetworkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """How plans are replayed and judged."""

    tolerance: float = 0.05
    """A plan is confirmed if its replay is at most this much slower, relative."""

    trace_events: int = 100_000
    """The most events that the exported trace holds."""


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
