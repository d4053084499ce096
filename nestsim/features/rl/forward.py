"""Forward passes alone, over a plan's own stages: log-probabilities and values.

The step of the plan is replayed without its backward passes, without collectives of
gradients and without the optimizer. Each stage does all its chunks in one pass, and all
microbatches go through one after another: stage ``i`` begins its first when the stage
before has sent it. What layers send in their forward passes is in their times, as in
the step. Beside the replay stands the closed form: all stages once with what is sent
between them, and the slowest stage for each further microbatch.
"""

from dataclasses import replace

import numpy as np

from nestsim.simulator.replay import replay
from nestsim.simulator.system import SPAN_KINDS, ReplaySettings
from nestsim.simulator.work import ActorTimes, PipelineWork
from planner.step.instructions import FORWARD
from topologies.arrays import FloatArray
from topologies.network import Network

_FORWARD_SPAN = SPAN_KINDS.index("forward")


def forward_time(
    network: Network, work: PipelineWork, settings: ReplaySettings
) -> float:
    """Return when the last forward pass of a step is done that has no others [s].

    Parameters
    ----------
    network
        Links and routes.
    work
        `forward_only`.
    settings
        Of the replay.

    Raises
    ------
    InputError
        If there are too many microbatches to be replayed.
    """
    done = replay(network, work, settings, memory=False)
    passes = done.spans.kind == _FORWARD_SPAN
    return float(done.spans.end[passes].max())


def closed_form_time(work: PipelineWork, transfer: float = 0.0) -> float:
    """Return the same by the closed form, on a network where nothing meets [s].

    Parameters
    ----------
    work
        `forward_only`.
    transfer
        Of the activations of a microbatch from one stage to the next [s].
    """
    times = np.array(
        [work.forward_time, *(other.forward_time for other in work.others)]
    ).max(axis=0)
    hops = (len(times) - 1) * transfer
    return float(times.sum() + hops + (work.num_microbatches - 1) * times.max())


def forward_only(work: PipelineWork, num_microbatches: int) -> PipelineWork:
    """Return a step of forward passes alone.

    Parameters
    ----------
    work
        A step of the plan, its collectives inside of passes being part of their times.
    num_microbatches
        Of each replica.
    """
    assert work.layers is None, "collectives inside of layers are part of passes"
    num_stages = len(work.devices)
    stage = work.virtual_stages().stage

    def of_stages(times: FloatArray) -> FloatArray:
        sums: FloatArray = np.bincount(stage, times, num_stages).astype(np.float64)
        return sums

    nothing = np.zeros(num_stages)
    usual = {
        "unusual_time": {},
        "backward_time": nothing,
        "weight_time": nothing,
        "optimizer_time": nothing,
    }

    def alone(times: ActorTimes | PipelineWork) -> dict[str, object]:
        sent = times.sent_time.get(FORWARD)
        return {
            **usual,
            "forward_time": of_stages(times.forward_time),
            "sent_time": {} if sent is None else {FORWARD: of_stages(sent)},
        }

    none = ((),) * num_stages
    others = tuple(
        replace(other, **alone(other), passes=None, reduce_at=none, gather_at=none)  # type: ignore[arg-type]
        for other in work.others
    )
    between = float(work.boundary_bytes.max(initial=0.0))
    return replace(
        work,
        **alone(work),  # type: ignore[arg-type]
        schedule="gpipe",
        num_chunks=1,
        num_microbatches=num_microbatches,
        segments={},
        boundary_bytes=np.full(num_stages - 1, between),
        reduce_buckets=none,
        reduce_phases=none,
        gather_phases=none,
        gather_buckets=none,
        tied_phases=(),
        host_time=None,
        others=others,
        memory=(),
    )
