"""Small random planning problems, with integers as floats where sums must be exact."""

import numpy as np
from hypothesis import strategies as st

from estimators.layer_graph import LayerGraph
from estimators.layer_table import InLayerTraffic, LayerTable
from estimators.layer_work import Degrees
from estimators.models.spec import TransformerSpec
from estimators.training import TrainingSpec
from planner.workload import Workload
from topologies.accelerators import Accelerator
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec, TorusSpec


def tiny_spec(num_blocks: int) -> TransformerSpec:
    """Return an architecture that tensor parallelism of 1, 2, 3 and 4 divides."""
    return TransformerSpec(
        family="gpt",
        num_layers=num_blocks,
        hidden_size=24,
        ffn_hidden_size=96,
        num_attention_heads=12,
        vocab_size=128,
        sequence_length=24,
        max_position_embeddings=24,
    )


def accelerator(memory: float) -> Accelerator:
    """Return a device on which one byte takes one second."""
    return Accelerator(
        name="unit",
        vendor="nobody",
        peak_flops={"bf16": 1.0},
        memory_bytes=memory,
        memory_bandwidth=1.25,
        num_compute_units=1,
        interconnect_bandwidth=1.0,
        sources={},
    )


@st.composite
def networks(draw, max_devices=8):
    """Trees of up to three levels, and small tori."""
    latency = float(draw(st.integers(0, 2)))
    if draw(st.integers(0, 3)) == 0:
        dims = draw(st.sampled_from([(2, 2), (4,), (2, 3), (2, 2, 2), (5,)]))
        return build_network(
            TorusSpec(
                dimensions=dims,
                wrap=tuple(draw(st.booleans()) for _ in dims),
                bandwidth=float(draw(st.integers(1, 8))),
                latency=latency,
            )
        )
    fan_outs = draw(
        st.lists(st.integers(2, 4), min_size=1, max_size=3).filter(
            lambda fan: int(np.prod(fan)) <= max_devices
        )
    )
    levels = tuple(
        LevelSpec(
            name=f"tier{i}",
            fan_out=fan_out,
            bandwidth=float(draw(st.integers(1, 16))),
            latency=latency,
        )
        for i, fan_out in enumerate(fan_outs)
    )
    nic = draw(st.sampled_from(["node", "device"]))
    return build_network(FatTreeSpec(levels=levels, nic=nic))


@st.composite
def layer_tables(draw, kinds: np.ndarray, tp: int):
    """Costs per kind of layer; the first and last layers have kinds of their own."""
    num_kinds = int(kinds.max()) + 1

    def column(low=0, high=9):
        values = draw(
            st.lists(st.integers(low, high), min_size=num_kinds, max_size=num_kinds)
        )
        return np.array(values, dtype=np.float64)[kinds]

    inner = np.ones(len(kinds), dtype=bool)
    inner[[0, -1]] = False
    boundary = np.zeros(len(kinds) + 1)
    boundary[1:-1] = float(draw(st.integers(0, 9)))
    if draw(st.booleans()) and len(kinds) > 2:
        boundary[1] = float(draw(st.integers(0, 9)))
    parameters = column(1, 9)
    traffic = ()
    if tp > 1:
        traffic = (
            InLayerTraffic(
                operation=draw(st.sampled_from(["all_reduce", "all_gather"])),
                group="tensor",
                forward_count=column(high=2),
                forward_bytes=column(),
                backward_count=column(high=2),
                backward_bytes=column(),
            ),
        )
    saved = column()
    tied = draw(st.booleans()) and float(min(parameters[0], parameters[-1]))
    return LayerTable(
        names=tuple(f"layer {i}" for i in range(len(kinds))),
        kinds=kinds,
        forward_time=column(),
        backward_time=column(),
        recompute_time=np.where(inner, column(1, 5), 0.0),
        forward_flops=column(),
        parameters=parameters,
        expert_parameters=np.zeros(len(kinds)),
        tied_parameters=float(tied),
        saved_bytes=saved,
        checkpoint_bytes=np.where(inner, np.minimum(saved, 1.0), saved),
        working_bytes=column(high=3),
        boundary_bytes=boundary,
        traffic=traffic,
    )


@st.composite
def workloads(draw, tps=(1, 2), micro_batches=(1, 2), max_blocks=3, memory=None):
    """A workload whose layer tables are drawn instead of derived from a model."""
    num_blocks = draw(st.integers(1, max_blocks))
    kinds = np.array([0, *[1] * num_blocks, 2], dtype=np.int64)
    if num_blocks > 1 and draw(st.booleans()):
        kinds[2] = 3
        kinds = np.unique(kinds, return_inverse=True)[1].astype(np.int64)
    if memory is None:
        memory = draw(st.sampled_from([60.0, 150.0, 300.0, 1e6]))
    workload = Workload(
        graph=LayerGraph(
            spec=tiny_spec(num_blocks),
            names=tuple(f"layer {i}" for i in range(len(kinds))),
            kinds=tuple(kinds.tolist()),
            layers=(),
        ),
        training=TrainingSpec(global_batch_size=draw(st.integers(2, 6))),
        accelerator=accelerator(memory),
    )
    for tp in tps:
        for b in micro_batches:
            degrees = Degrees(tp=tp, micro_batch_size=b, sequence_parallel=tp > 1)
            workload._tables[degrees] = draw(layer_tables(kinds, tp))
    workload._classes.append(_classes(kinds))
    return workload


def _classes(kinds):
    from planner.intervals import interval_classes

    return interval_classes(kinds)
