"""Run a system on the engine that suits it, and say beforehand how long it will take.

Both engines give bitwise the same run, so the choice is one of time alone. Times were
measured on one core of a small shared machine (Python 3.11, SimPy 4.1, numba 0.68), for
rings and pipelines of 16 to 6,400 actors, in-layer collectives included; compiling is
not counted.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nestsim.simulator.compiled import end_of_compiled_run, simulate_compiled
from nestsim.simulator.engine import end_of_run, simulate
from nestsim.simulator.posts import num_posts
from nestsim.simulator.settings import ReplaySettings
from nestsim.simulator.system import Run, System

LONG = 0.3
"""A run that SimPy needs longer for is compiled. Loading the compiled engine takes 0.01
s, but seconds the first time after an installation, which short runs are spared [s]."""


class _Cost(NamedTuple):
    """What an engine takes, on average."""

    per_step: float
    """Without its message [s]."""

    per_message: float
    """From its post to its arrival, solving the rates included [s]."""


# A step with a message: SimPy 13 us where each flow has links of its own, 18 us where
# many share; compiled 1.1 and 3.4 us, of 2.4 million with misaligned stages 2.0 us.
_COSTS: Mapping[str, _Cost] = MappingProxyType(
    {
        "simpy": _Cost(2e-6, 14e-6),
        "compiled": _Cost(0.2e-6, 2.0e-6),
    }
)
"""Engine -> cost."""


def run_system(system: System, settings: ReplaySettings) -> Run:
    """Run all actors of a system to their ends.

    The run is bitwise the same for every engine, and with or without skipping, but for
    `Run.num_events` and `Run.skips`, which tell of skipping.
    """
    if choose_engine(system, settings) == "compiled":
        return simulate_compiled(system, skipping=settings.skipping)
    return simulate(system, skipping=settings.skipping)


def system_time(system: System, settings: ReplaySettings, cutoff: float) -> float:
    """Return the end of a system's run, infinity if it is later than the cutoff [s].

    Bitwise that of `run_system`. With the engine ``"auto"`` it is compiled: who asks
    for the time alone, asks often.
    """
    end = end_of_run if settings.engine == "simpy" else end_of_compiled_run
    return end(system, skipping=settings.skipping, cutoff=cutoff)


def choose_engine(system: System, settings: ReplaySettings) -> str:
    """Return the engine that `run_system` takes: ``"simpy"`` or ``"compiled"``."""
    if settings.engine != "auto":
        return settings.engine
    return "compiled" if forecast_seconds(system)["simpy"] > LONG else "simpy"


def forecast_seconds(system: System) -> Mapping[str, float]:
    """Return about what a run takes with each engine, by name, nothing skipped [s].

    Right to about a factor of two for stages, and up to four times too much for
    collectives inside of passes, many of which start together and are solved at once.
    Flows that share links with hundreds of others take longer, and memory and other
    work on the machine matter.
    """
    length = np.array([len(steps) for steps in system.programs], np.int64)
    num_steps = int(length[system.program].sum())
    # A message of several senders takes a post of each.
    each = num_posts(system.programs, system.slots.shape[1])[system.program]
    sources = np.append(system.num_sources, 1)[system.slots]
    num_messages = round(float((each / sources).sum()))
    return {
        engine: num_steps * cost.per_step + num_messages * cost.per_message
        for engine, cost in _COSTS.items()
    }
