"""Small random planning problems, with integers as floats where sums must be exact."""

from itertools import product

import numpy as np
from hypothesis import strategies as st

from estimators.grouping import Grouping
from estimators.layers.work import Degrees, InLayerTraffic, LayerTable
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.training import TrainingSpec
from planner.step.execution import Workload
from topologies.accelerators import Accelerator
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec, TorusSpec


def tiny_spec(num_blocks: int, *, family: str = "gpt") -> TransformerSpec:
    """Return an architecture that tensor parallelism of 1, 2, 3 and 4 divides."""
    experts = {
        "num_moe_experts": 2,
        "moe_router_topk": 1,
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "normalization": "rmsnorm",
        "position_embedding_type": "rope",
    }
    return TransformerSpec(
        family=family,
        num_layers=num_blocks,
        hidden_size=24,
        ffn_hidden_size=96,
        num_attention_heads=12,
        vocab_size=128,
        sequence_length=48,
        max_position_embeddings=48,
        **(experts if family == "mixtral" else {}),
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


TRAFFIC = (
    ("tensor", "all_reduce"),
    ("tensor", "all_gather"),
    ("context", "send_recv"),
    ("expert", "all_to_all"),
)


def in_layer_traffic(operation, group, forward, backward, inner):
    """Counts and bytes of a pass; some are repeated with the attention core."""
    again = {"context": 1.0, "tensor": inner, "expert": 0.0}[group]
    if operation in {"all_gather", "reduce_scatter"}:
        again = 0.0
    return InLayerTraffic(
        operation=operation,
        group=group,
        forward_count=forward[0],
        forward_bytes=forward[1],
        backward_count=backward[0],
        backward_bytes=backward[1],
        repeated_count=again * forward[0],
        repeated_bytes=again * forward[1],
    )


def random_table(rng, kinds, degrees, *, boundary, has_tied):
    """Costs per kind of layer; the first and the last layer are no blocks."""
    num_kinds = int(kinds.max()) + 1

    def column(low=0, high=9):
        return rng.integers(low, high + 1, num_kinds).astype(float)[kinds]

    inner = np.ones(len(kinds))
    inner[[0, -1]] = 0.0
    sizes = {"tensor": degrees.tp, "context": degrees.cp, "expert": degrees.ep}
    traffic = tuple(
        in_layer_traffic(
            operation,
            group,
            (column(high=2), column()),
            (column(high=2), column()),
            inner,
        )
        for group, operation in TRAFFIC
        if sizes[group] > 1 and rng.integers(0, 2)
    )
    parameters = column(1, 9)
    expert = np.minimum(column(), parameters - 1) * inner * (degrees.ep > 1)
    forward, core, backward = column(1, 9), column(0, 1), column()
    saved = column(2, 9)
    kept = {
        "none": saved,
        "selective": saved - 1.0,
        "full": np.where(inner > 0, np.minimum(saved, 1.0), saved),
    }
    working = column(high=3)
    tied = float(min(parameters[0], parameters[-1])) if has_tied else 0.0
    frozen = float(rng.integers(0, 40) * rng.integers(0, 2))
    return LayerTable(
        names=tuple(
            f"block {i}" if inside else f"end {i}" for i, inside in enumerate(inner)
        ),
        kinds=kinds,
        forward_time=forward,
        backward_time=backward,
        weight_gradient_time=backward // 2.0,
        recompute_time={"selective": core, "full": forward * inner, "stage": forward},
        forward_flops=column(),
        parameters=parameters,
        expert_parameters=expert,
        tied_parameters=tied,
        largest_parameters=parameters,
        is_block=inner,
        saved_bytes=kept,
        working_bytes={mode: working + saved - kept[mode] for mode in kept},
        weight_gradient_bytes=saved - 1.0,
        frozen_weights=frozen * (kinds == kinds[0]),
        boundary_bytes=np.array([0.0, *[boundary] * (len(kinds) - 1), 0.0]),
        traffic=traffic,
    )


@st.composite
def workloads(draw, *, wide=False, max_blocks=4, memory=None):
    """A workload whose layer tables are drawn instead of derived from a model.

    ``wide`` ones may be split by context and by experts, too.
    """
    num_blocks = draw(st.integers(1, max_blocks))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = np.array([0, *[1] * num_blocks, 2], dtype=np.int64)
    if num_blocks > 1 and draw(st.booleans()):
        kinds[2] = 3
        kinds = np.unique(kinds, return_inverse=True)[1].astype(np.int64)
    if memory is None:
        memory = draw(st.sampled_from([60.0, 100.0, 150.0, 300.0, 1e6]))
    has_tied, boundary = draw(st.booleans()), float(draw(st.integers(0, 9)))
    names = ("embedding", *(f"block {i}" for i in range(num_blocks)), "head")
    workload = Workload(
        graph=LayerGraph(
            spec=tiny_spec(num_blocks, family="mixtral" if wide else "gpt"),
            names=names,
            kinds=tuple(kinds.tolist()),
            layers=(),
        ),
        training=TrainingSpec(global_batch_size=draw(st.sampled_from([2, 3, 4, 6, 8]))),
        accelerator=accelerator(memory),
    )
    sizes = (1, 2) if wide else (1,)
    for tp, cp, ep, b in product((1, 2), sizes, sizes, (1, 2)):
        degrees = Degrees(tp, cp, ep, b, tp > 1, Grouping.of((tp, cp, ep)))
        workload._tables[degrees] = random_table(
            rng, kinds, degrees, boundary=boundary, has_tied=has_tied
        )
    return workload
