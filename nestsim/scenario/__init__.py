"""Scenario files: TOML in, checked settings out."""

from nestsim.scenario.load import Scenario, load_scenario
from nestsim.scenario.simulation import SimulationSpec

__all__ = ["Scenario", "SimulationSpec", "load_scenario"]
