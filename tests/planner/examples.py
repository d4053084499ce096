"""A small job on eight devices, real enough to run short of memory."""

from dataclasses import replace
from typing import Any

from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from planner.step.execution import Execution, Workload
from tests.planner.strategies import tiny_spec
from topologies.accelerators import load_accelerator
from topologies.builders import build_network
from topologies.network import Network
from topologies.specs import FatTreeSpec, LevelSpec


def eight_devices() -> Network:
    """Return two nodes of four."""
    return build_network(
        FatTreeSpec(
            levels=(
                LevelSpec(name="node", fan_out=4, bandwidth=3e11, latency=1e-6),
                LevelSpec(name="leaf", fan_out=2, bandwidth=2.5e10, latency=1e-6),
            )
        )
    )


def executed(job: Workload, message_time: float = 0.0, **overlaps: Any) -> Workload:
    """Return a job under a framework that hides other things; its tables are kept.

    But for those of another load of experts, unless they were made up.

    Hosts take ``message_time`` for each message between stages [s].
    """
    constants = job.constants.replaced({"software.ideal.message_time": message_time})
    other = replace(job, execution=Execution(**overlaps), constants=constants)
    if other.graph is job.graph or not job.graph.layers:
        other._tables.update(job._tables)
    return other


def tiny_job(memory: float, *, num_blocks: int = 4, family: str = "gpt") -> Workload:
    """Return a tiny model on A100s with another memory [byte]."""
    return Workload(
        graph=trace_model(tiny_spec(num_blocks, family=family)),
        training=TrainingSpec(global_batch_size=16),
        accelerator=replace(load_accelerator("a100-80gb"), memory_bytes=memory),
    )
