"""How long the passes of one layer take on a platform, without what goes over a wire.

Operators follow each other, unless the accelerator has an engine of its own for
elementwise work: then they are scheduled on both (`estimators.engines`).
"""

from typing import NamedTuple

from estimators.engines.layer_time import layer_time
from estimators.host_time import HostTimes, host_times
from estimators.layer_graph import LayerGraph
from estimators.layer_work import Degrees, LayerWork
from estimators.operators import OperatorTime
from estimators.platform import Platform
from estimators.training import TrainingSpec


class LayerTimes(NamedTuple):
    """Passes of one layer [s]."""

    forward: float

    backward: float
    """Without recompute."""

    weight_gradient: float
    """The part of `backward` that can be put off. On two engines what putting it off
    makes the pass shorter by."""

    repeated: float
    """What selective recompute adds."""


def layer_times(
    graph: LayerGraph,
    works: list[LayerWork],
    degrees: Degrees,
    training: TrainingSpec,
    platform: Platform,
) -> list[LayerTimes]:
    """Return the times of each distinct layer.

    Blocks take what software adds to them, too (`estimators.host_time`).

    Parameters
    ----------
    graph, works
        The traced model, and the work of each of its distinct layers.
    degrees, training, platform
        How it is split, in which number formats, on what.

    Raises
    ------
    InputError
        If the platform has no rate for the job's precision.
    """
    model = platform.operator_times(training, graph.spec)
    blocks = {
        kind
        for name, kind in zip(graph.names, graph.kinds, strict=True)
        if name.startswith("block")
    }
    found = []
    for kind, work in enumerate(works):
        times = [model.operator_time(operator) for operator in work.operators]
        device = _device_times(graph, kind, work, times, platform)
        added = HostTimes(0.0, 0.0)
        if kind in blocks:
            passes = (device.forward, device.backward)
            added = host_times(work, passes, degrees, platform)
        whole = device._replace(
            forward=device.forward + added.forward,
            backward=device.backward + added.backward,
        )
        found.append(LayerTimes(*(platform.slowest * time for time in whole)))
    return found


def _device_times(
    graph: LayerGraph,
    kind: int,
    work: LayerWork,
    times: list[OperatorTime],
    platform: Platform,
) -> LayerTimes:
    """Return what the device itself takes for a layer."""
    products = platform.software.saves_products
    repeated = sum(
        time.forward * (op.repeated if products else float(op.core))
        for time, op in zip(times, work.operators, strict=True)
    )
    if not platform.accelerator.vector_engine:
        return LayerTimes(
            sum(time.forward for time in times),
            sum(time.backward for time in times),
            sum(time.weight_gradient for time in times),
            repeated,
        )
    both = layer_time(graph.layers[kind], work.operators, times)
    return LayerTimes(
        both.forward,
        both.backward,
        max(0.0, both.backward - both.input_gradient),
        repeated if products else both.core,
    )
