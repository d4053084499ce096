"""Assemble the planner's table of a model from its traced layers and an accelerator."""

import numpy as np

from estimators.layer_graph import LayerGraph
from estimators.layer_table import InLayerTraffic, LayerTable
from estimators.layer_work import Degrees, LayerWork
from estimators.operators import OperatorModel
from estimators.sharding import layer_work, tied_parameters
from estimators.training import TrainingSpec
from topologies.accelerators import Accelerator


def build_layer_table(
    graph: LayerGraph,
    *,
    degrees: Degrees,
    training: TrainingSpec,
    accelerator: Accelerator,
) -> LayerTable:
    """Return the costs of every layer of the chain for one microbatch on one device.

    Each distinct kind of layer is worked out once; the table repeats it. Only blocks
    are recomputed (Megatron's ``recompute_granularity = "full"``): the embedding, the
    final norm and the head keep what they save.

    Raises
    ------
    InputError
        If the accelerator has no rate for the job's precision.
    """
    model = OperatorModel.of(accelerator, training.precision, training.element_bytes)
    works = [
        layer_work(graph, kind, degrees, training.element_bytes)
        for kind in range(len(graph.layers))
    ]
    times = [
        np.array([model.operator_time(op) for op in work.operators])
        .reshape(-1, 2)
        .sum(axis=0)
        for work in works
    ]
    kinds = np.array(graph.kinds, dtype=np.int64)
    blocks = np.array([name.startswith("block") for name in graph.names])

    def column(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array(values, dtype=np.float64)[kinds]

    saved = column([work.saved_bytes["none"] for work in works])
    full = column([work.saved_bytes["full"] for work in works])
    boundary = np.zeros(len(kinds) + 1)
    boundary[:-1] = column([work.input_bytes for work in works])
    boundary[0] = 0.0
    return LayerTable(
        names=tuple(graph.names),
        kinds=kinds,
        forward_time=column([time[0] for time in times]),
        backward_time=column([time[1] for time in times]),
        recompute_time=np.where(blocks, column([time[0] for time in times]), 0.0),
        forward_flops=column([work.model_flops for work in works]),
        parameters=column([work.parameters for work in works]),
        expert_parameters=column([work.expert_parameters for work in works]),
        tied_parameters=tied_parameters(graph, degrees),
        saved_bytes=saved,
        checkpoint_bytes=np.where(blocks, full, saved),
        working_bytes=column([work.working_bytes for work in works]),
        boundary_bytes=boundary,
        traffic=_traffic(works, kinds),
    )


def _traffic(
    works: list[LayerWork], kinds: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[InLayerTraffic, ...]:
    present = sorted(
        {(c.operation, c.group) for work in works for c in work.collectives}
    )
    rows: list[InLayerTraffic] = []
    for operation, group in present:
        columns = np.zeros((4, len(works)))
        for kind, work in enumerate(works):
            for item in work.collectives:
                if (item.operation, item.group) == (operation, group):
                    columns[:, kind] += (
                        item.forward_count,
                        item.forward_bytes,
                        item.backward_count,
                        item.backward_bytes,
                    )
        rows.append(
            InLayerTraffic(
                operation=operation,
                group=group,
                forward_count=columns[0, kinds],
                forward_bytes=columns[1, kinds],
                backward_count=columns[2, kinds],
                backward_bytes=columns[3, kinds],
            )
        )
    return tuple(rows)
