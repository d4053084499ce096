"""Whether a plan has room is judged once: all commands agree, host and devices."""

import random
from typing import Any

import pytest

import nestsim
from nestsim.evaluate.verdict import NO_ROOM

DOCUMENT: dict[str, Any] = {
    "name": "edge",
    "model": {
        "family": "llama",
        "num_layers": 8,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "vocab_size": 8192,
        "sequence_length": 512,
    },
    "training": {"global_batch_size": 16},
    "search": {"planner": "fixed", "launchable": False},
}
"""A small job; what is searched is the plan that is given."""

NETWORK: dict[str, Any] = {
    "kind": "fat-tree",
    "levels": [
        {"name": "node", "fan_out": 4, "bandwidth": "3 GB/s", "latency": "10 us"}
    ],
}

LEVELS = (0.7, 0.97, 1.03, 1.3)
"""What devices, and hosts, have over what a plan needs."""


def drawn(draw: random.Random) -> dict[str, Any]:
    """Return a scenario whose plan offloads or not, on devices that are near full."""
    pp, dp = draw.choice([(1, 4), (2, 2), (4, 1)])
    parts = ("weights", "gradients", "optimizer", "activations")
    kept = {f"offload_{part}": draw.choice([0.0, 0.0, 0.5, 1.0]) for part in parts}
    plan = {
        "pipeline_model_parallel_size": pp,
        "data_parallel_size": dp,
        "micro_batch_size": draw.choice([1, 2]),
        "zero_stage": draw.choice([0, 1]),
        "recompute": draw.choice(["none", "full"]),
        **kept,
    }
    cluster = {"accelerator": "l4", "num_devices": 4, "network": NETWORK}
    roomy = {**DOCUMENT, "plan": plan, "cluster": cluster}
    needs = nestsim.memory(roomy).result
    device = draw.choice(LEVELS) * needs.memory.needed
    host = draw.choice(LEVELS) * needs.memory.host
    reserve = {"memory_reserve": f"{needs.limits.device - device:.0f} B"}
    hosts = {"host": {"memory": f"{host:.0f} B"}}
    return {**roomy, "cluster": {**cluster, **reserve, **hosts}}


def judgements(data: dict[str, Any]) -> dict[str, bool]:
    """Return for each command whether it finds room for the plan."""
    (level,) = NETWORK["levels"]
    wider = {**NETWORK, "levels": [{**level, "fan_out": 8}]}
    pair = [{"name": "a", "devices": "0-3"}, {"name": "b", "devices": "4-7"}]
    cluster = {**data["cluster"], "num_devices": 8, "network": wider}
    several = nestsim.jobs({**data, "cluster": cluster, "jobs": pair}).result
    compared = nestsim.compare(data, planners=["fixed"]).result
    return {
        "memory": nestsim.memory(data).result.fits,
        "simulate": nestsim.simulate(data).result.candidate.verdict.kind not in NO_ROOM,
        "run": nestsim.run(data).result.chosen is not None,
        "compare": compared.groups[0].entries[0].is_valid,
        "jobs": several.outcomes[0].made.fits,
    }


@pytest.mark.parametrize("plans", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_plans_near_the_edge_have_room_in_all_commands_or_in_none(plans: int) -> None:
    draw = random.Random(28)
    found = [(data, judgements(data)) for data in (drawn(draw) for _ in range(plans))]
    apart = [(data, said) for data, said in found if len({*said.values()}) > 1]
    assert not apart
    fitting = [data for data, said in found if said["memory"]]
    away = [
        data
        for data in fitting
        if any("offload" in k and v for k, v in data["plan"].items())
    ]
    assert len(away) >= plans // 10
    assert len(found) - len(fitting) >= plans // 6


NARROW: dict[str, Any] = {
    "tensor_model_parallel_sizes": [1],
    "context_parallel_sizes": [1],
    "pipeline_model_parallel_sizes": [1],
    "micro_batch_sizes": [1],
    "recompute": ["none"],
    "zero_stages": [1],
}
"""A space of one configuration."""


def with_room(data: dict[str, Any], share: float) -> dict[str, Any]:
    """Return a job on devices that have a share of what its least plan needs."""

    def reserving(reserve: float) -> dict[str, Any]:
        kept = {"memory_reserve": f"{reserve:.0f} B"}
        return {**data, "cluster": {**data["cluster"], **kept}}

    none, some = (nestsim.memory(reserving(one)).result for one in (0.0, 1e9))
    rate = (none.limits.device - some.limits.device) / 1e9
    return reserving((none.limits.device - share * none.memory.needed) / rate)


@pytest.mark.parametrize(
    ("share", "kind"), [(1.02, "fits"), (0.96, "doubtful"), (0.8, "infeasible")]
)
def test_the_band_decides_in_memory_alone_and_where_a_search_finds_nothing(
    share: float, kind: str
) -> None:
    cluster = {"accelerator": "l4", "num_devices": 4, "network": NETWORK}
    software = {"preset": "megatron-core"}
    document = {**DOCUMENT, "search": NARROW, "cluster": cluster, "software": software}
    data = with_room(document, share)
    report = nestsim.memory(data)
    assert report.result.judgement == report.to_dict()["judgement"] == kind
    headline = {"fits": "FITS", "doubtful": "MAY FIT", "infeasible": "DOES NOT FIT"}
    assert str(report).startswith(headline[kind])
    assert "jobs like this one" in " ".join(str(report).split())
    found = nestsim.run(data)
    verdict = found.to_dict()["verdict"]
    assert verdict == ("confirmed" if kind == "fits" else kind)
    if kind != "fits":
        assert found.to_dict()["memory"]["usable_bytes"] < report.result.memory.needed
