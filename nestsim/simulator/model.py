"""From the description of a training step to what an engine runs."""

from typing import NamedTuple

from nestsim.simulator.build import build_system
from nestsim.simulator.flows import Flows
from nestsim.simulator.programs import StageProgram
from nestsim.simulator.system import System
from nestsim.simulator.work import PipelineWork
from topologies.network import Network


class Model(NamedTuple):
    """A training step, ready for the engine."""

    flows: Flows
    """One for each channel of the system."""

    programs: tuple[StageProgram, ...]
    """What the steps of each of the system's programs mean."""

    system: System
    """Actors stage by stage, replica by replica; then communication streams."""

    num_replicas: int
    """Actors of each stage."""

    folded: tuple[str, ...]
    """What the replay does not simulate one by one."""


def build_model(network: Network, work: PipelineWork) -> Model:
    """Prepare the engine's actors, channels and network.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    flows, programs, system, folded = build_system(network, work)
    return Model(flows, programs, system, work.devices.shape[1], folded)
