"""Problems that several tests of planners look at."""

from functools import lru_cache

from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from planner.step.execution import Workload
from tests.planner.strategies import tiny_spec
from topologies.accelerators import load_accelerator
from topologies.builders import build_network
from topologies.network import Network
from topologies.specs import FatTreeSpec, LevelSpec


def tree(outer_bandwidth: float = 2.5e10) -> Network:
    """Return two nodes of four devices."""
    return build_network(
        FatTreeSpec(
            levels=(
                LevelSpec(name="node", fan_out=4, bandwidth=3e11, latency=1e-6),
                LevelSpec(
                    name="leaf", fan_out=2, bandwidth=outer_bandwidth, latency=1e-6
                ),
            )
        )
    )


@lru_cache
def small_job(num_layers: int = 4) -> tuple[Network, Workload]:
    """Return a tiny traced model on eight devices."""
    workload = Workload(
        graph=trace_model(tiny_spec(num_layers)),
        training=TrainingSpec(global_batch_size=16),
        accelerator=load_accelerator("a100-80gb"),
    )
    return tree(), workload
