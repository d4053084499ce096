"""Groups of experts that span nodes, and what uneven routing makes of plans."""

from typing import Any

import nestsim
from nestsim.scenario.load import Scenario
from planner.cost.pricing import plan_groups

NODE = 4


def job(**model: Any) -> Scenario:
    """Return a mixture of 8 experts on two nodes of four devices.

    A device has memory for its part of the experts of eight ranks, not of four.
    """
    return Scenario.from_dict(
        {
            "name": "experts over nodes",
            "model": {
                "family": "mixtral",
                "num_layers": 4,
                "hidden_size": 2048,
                "ffn_hidden_size": 8192,
                "num_attention_heads": 16,
                "vocab_size": 1024,
                "sequence_length": 4096,
                "num_moe_experts": 8,
                "moe_router_topk": 2,
                **model,
            },
            "training": {"global_batch_size": 32},
            "software": {"preset": "ideal"},
            "cluster": {
                "accelerator": "h100-sxm",
                "num_devices": 2 * NODE,
                "memory_reserve": "72 GiB",
                "network": {
                    "kind": "fat-tree",
                    "nic": "device",
                    "levels": [
                        {
                            "name": "node",
                            "fan_out": NODE,
                            "bandwidth": "450 GB/s",
                            "latency": "500 ns",
                        },
                        {
                            "name": "fabric",
                            "fan_out": 2,
                            "bandwidth": "400 Gbit/s",
                            "latency": "1 us",
                        },
                    ],
                },
            },
            "search": {
                "micro_batch_sizes": [1],
                "tensor_model_parallel_sizes": [1],
                "pipeline_model_parallel_sizes": [1],
                "context_parallel_sizes": [1],
                "zero_stages": [0],
            },
        }
    )


def test_groups_of_experts_span_nodes_where_nothing_smaller_fits() -> None:
    plan = nestsim.plan(job()).result.candidates[0].priced.plan
    assert plan.parallel.expert_model_parallel_size == 2 * NODE
    (groups,) = plan_groups(plan).experts()
    assert {tuple(sorted(set(group // NODE))) for group in groups} == {(0, 1)}


def test_uneven_routing_is_never_faster_in_any_plan_that_a_search_returns() -> None:
    times = []
    for routing in (
        {},
        {"moe_routing": "random"},
        {"moe_routing": "power-law", "moe_routing_exponent": 1.2},
    ):
        # The busiest rank keeps twice as much: sequences are shorter, so that it fits.
        best = nestsim.run(job(sequence_length=1024, **routing)).best
        assert best is not None
        times.append(best.simulated.iteration_time)
    assert times[0] < times[1] < times[2]
