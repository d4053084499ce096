"""Scenario files: TOML in, checked settings out."""

from nestsim.scenario.load import load_scenario
from nestsim.scenario.settings import Scenario, SimulationSpec

__all__ = ["Scenario", "SimulationSpec", "load_scenario"]
