"""Published throughput of Megatron-LM: Narayanan et al., SC 2021, table 1.

Rows without interleaving, which this version cannot express. DGX A100 nodes with one
200 Gbit/s adapter per device, fp16, full recompute, plain attention. Micro-batch
sizes are those of the paper's published scripts. The bounds are what the model
reaches, not what it aims for.
"""

from dataclasses import replace

import numpy as np
import pytest

from estimators.models.library import load_model
from estimators.parallelism import ParallelismConfig
from estimators.tracing import trace_model
from estimators.training import TrainingSpec
from planner.plan import Plan, Stage
from planner.pricing import price_plan
from planner.workload import Workload
from topologies.accelerators import load_accelerator
from topologies.builders import build_network
from topologies.specs import SpineLeafSpec

pytestmark = pytest.mark.slow

ROWS = {
    # layers, hidden, heads, tp, pp, devices, global batch, micro-batch, TFLOP/s
    # published, and as predicted now (the README's table)
    "1.7B": (24, 2304, 24, 1, 1, 32, 512, 16, 137, 146.7),
    "3.6B": (30, 3072, 32, 2, 1, 64, 512, 16, 138, 144.6),
    "7.5B": (36, 4096, 32, 4, 1, 128, 512, 16, 142, 142.4),
    "18B": (40, 6144, 48, 8, 1, 256, 1024, 8, 135, 137.2),
    "39B": (48, 8192, 64, 8, 2, 512, 1536, 4, 138, 140.1),
}

VOCABULARY = 51200
SEQUENCE = 2048


def network(num_devices):
    """Build nodes of eight A100s, 16 to a leaf, full bisection.

    NVIDIA, "DGX SuperPOD Reference Architecture", 2020.
    """
    num_nodes = num_devices // 8
    per_leaf = min(16, num_nodes)
    return build_network(
        SpineLeafSpec(
            devices_per_node=8,
            node_bandwidth=300e9,
            node_latency=5e-7,
            nic="device",
            nic_bandwidth=25e9,
            nic_latency=1e-6,
            nodes_per_leaf=per_leaf,
            num_leaves=num_nodes // per_leaf,
            num_spines=8,
            spine_latency=5e-7,
            oversubscription=1.0,
        )
    )


def predicted(row):
    """Return TFLOP/s per device as the paper counts them (recompute included)."""
    layers, hidden, heads, tp, pp, num_devices, batch, *_ = row
    spec = replace(
        load_model("gpt3-1.3b", attention_implementation="plain"),
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=heads,
        num_query_groups=heads,
        kv_channels=hidden // heads,
        vocab_size=VOCABULARY,
        sequence_length=SEQUENCE,
    )
    workload = Workload(
        graph=trace_model(spec),
        training=TrainingSpec(global_batch_size=batch, precision="fp16"),
        accelerator=load_accelerator("a100-80gb"),
    )
    priced = price_plan(
        network(num_devices),
        workload,
        megatron_plan(tp, pp, row, len(workload.graph.names)),
    )
    s, h, v = SEQUENCE, hidden, VOCABULARY
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    return flops / priced.timeline_time / num_devices / 1e12


def megatron_plan(tp, pp, row, num_layers):
    """Megatron's rank order (tensor, data, pipeline) and equal numbers of blocks."""
    blocks, num_devices, batch, micro = row[0], *row[5:8]
    dp = num_devices // (tp * pp)
    order = np.arange(num_devices).reshape(pp, dp, tp)
    bounds = [0, *(1 + blocks * s // pp for s in range(1, pp)), num_layers]
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            data_parallel_size=dp,
        ),
        virtual_pipeline_model_parallel_size=1,
        micro_batch_size=micro,
        num_microbatches=batch // (dp * micro),
        schedule="1f1b",
        placement=f"tp{tp} dp{dp} pp{pp}",
        gradient_algorithm="auto",
        tensor_algorithm="auto",
        stages=tuple(
            Stage(
                chunks=((bounds[s], bounds[s + 1] - 1),),
                devices=tuple(tuple(row) for row in order[s].tolist()),
                recompute="full",
                zero_stage=0,
                sharding_group_size=1,
            )
            for s in range(pp)
        ),
    )


@pytest.mark.parametrize("name", ROWS)
def test_predicted_throughput_is_near_the_published(name):
    *_, published, documented = ROWS[name]
    found = predicted(ROWS[name])
    assert found == pytest.approx(published, rel=0.1)
    assert found == pytest.approx(documented, abs=0.05)
