"""Compute of routed experts: what a skewed routing makes longer."""

import numpy as np

from estimators.layer_work import Degrees
from estimators.sharding import layer_work
from nestsim.placing.passes import Experts
from planner.workload import Workload


def expert_compute(workload: Workload, degrees: Degrees) -> Experts:
    """Return the part of each layer's compute that experts' products are.

    From the traced operators; 0 for a graph without.
    """
    graph, training = workload.graph, workload.training
    if not graph.layers:
        return Experts(*np.zeros((3, len(graph.names))))
    model = workload.platform.operator_times(training, graph.spec)
    totals = []
    for kind, layer in enumerate(graph.layers):
        work = layer_work(graph, kind, degrees, training.element_bytes)
        times = [
            model.operator_time(operator)
            for operator, traced in zip(work.operators, layer.operators, strict=True)
            if traced.sharding.startswith("expert")
        ]
        totals.append(np.sum(times, axis=0) if times else np.zeros(3))
    return Experts(*np.array(totals)[np.array(graph.kinds)].T)
