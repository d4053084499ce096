"""Small scenarios that are valid, nearly all of them: what mutations start from.

At most sixteen devices and eight layers, so that a search takes a tenth of a second.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tomli
from hypothesis import strategies as st

from tests.fuzz.documents import (
    LINKS,
    PROFILE,
    hugging_face_configs,
    link_files,
    profiles,
)
from tests.fuzz.formats import Tree

SCENARIO = "scenario.toml"
CONFIG = "config.json"

MOST_DEVICES = 16

SHIPPED = {
    path.name: tomli.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))
    if not path.stem.endswith("_links")
}
"""The scenarios that come with nestsim, by name of their file."""

SMALL = ("bert_large_16_v100.toml", "gpt3_1.3b_8_a100.toml")
"""Those of them that are small enough for a search."""

_BANDWIDTHS = st.sampled_from(
    ["50 GB/s", "400 Gbit/s", "12.5 GB/s", "900 GB/s", "1 MB/s"]
)
_LATENCIES = st.sampled_from(["1 us", "500 ns", "0 s", "2 ms"])
_RATIOS = st.sampled_from([1.0, 2.0, 4.0, 0.5, 3.0])
_EFFICIENCIES = st.sampled_from([1.0, 0.9, 0.5])


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A scenario, the files it names, and what a strategy must know of it."""

    document: dict[str, Tree]
    num_devices: int
    files: dict[str, Tree] = field(default_factory=dict)
    """Name -> tree."""


@st.composite
def worlds(draw: st.DrawFn, *, uses: tuple[str, ...] = ()) -> World:
    """Draw a scenario with some of its optional tables.

    Parameters
    ----------
    draw
        Of hypothesis.
    uses
        What it is to have in any case: names of tables, or ``"links"``, ``"config"``
        and ``"profile"`` for a file of that sort.
    """

    def has(what: str, percent: int) -> bool:
        return what in uses or draw(st.integers(0, 99)) < percent

    if not uses and draw(st.integers(0, 99)) < 3:
        return World(document=SHIPPED[draw(st.sampled_from(SMALL))], num_devices=8)
    files: dict[str, Tree] = {}
    cluster, num_devices, parts = _cluster(draw, has, files)
    model = draw(_models())
    if has("config", 3):
        files[CONFIG] = draw(hugging_face_configs())
        model = {"config": CONFIG, "sequence_length": 64}
    document: dict[str, Tree] = {
        "name": draw(st.sampled_from(["a small job", "é", "job 1"])),
        "model": model,
        "training": draw(_training()),
        "cluster": cluster,
    }
    tables: dict[str, tuple[int, st.SearchStrategy[Tree]]] = {
        "software": (35, _softwares()),
        "search": (60, _searches()),
        "plan": (30, _plans(document, num_devices)),
        "simulation": (35, _simulations()),
        "assert": (6, _asserts()),
        "sweep": (0, _sweeps(document)),
        "stress": (0, _stresses(parts, num_devices)),
        "shared": (0, st.sampled_from([{}, {"ecmp_seeds": [0, 1]}, {"shifts": 2}])),
        "jobs": (0, _jobs(num_devices)),
        "jitter": (0, _jitters()),
        "goodput": (0, _goodputs()),
        "sites": (0, _sites()),
    }
    for name, (percent, strategy) in tables.items():
        if has(name, percent):
            document[name] = draw(strategy)
    return World(document=document, num_devices=num_devices, files=files)


def _cluster(
    draw: st.DrawFn, has: Callable[[str, int], bool], files: dict[str, Tree]
) -> "Networks":
    """Draw the table [cluster], and put the files that it names beside the others."""
    network, num_devices, parts = draw(_networks())
    if has("links", 4):
        files[LINKS], num_devices = draw(link_files())
        network = {"kind": "custom", "path": LINKS}
        parts = Parts("1 hop", ("switch 0 <-> *", "* -> switch 0"))
    cluster: dict[str, Tree] = {
        "accelerator": draw(_accelerators()),
        "network": network,
    }
    if has("profile", 1):
        files[PROFILE] = draw(profiles())
        cluster["profile"] = PROFILE
    if has("num_devices", 20):
        cluster["num_devices"] = num_devices
    if has("memory_reserve", 15):
        cluster["memory_reserve"] = draw(st.sampled_from(["0 B", "20 MB"]))
    if has("degraded", 12):
        cluster["degraded"] = draw(_degraded(parts, num_devices))
    if has("optical", 1):
        cluster["optical"] = {
            "level": draw(st.sampled_from([parts.level] * 4 + ["node", "leaf"])),
            "ports": draw(st.sampled_from([64, 2, 1, 3])),
            "reconfiguration_time": draw(st.sampled_from(["1 ms", "0 s", "3 s"])),
        }
    return cluster, num_devices, parts


@st.composite
def _softwares(draw: st.DrawFn) -> Tree:
    presets = ["ideal", "megatron-lm", "megatron-core", "deepspeed", "fsdp", "ddp"]
    some = {
        "overlap_grad_reduce": [True, False],
        "overlap_param_gather": [True],
        "overlap_p2p_comm": [False],
        "tp_comm_overlap": [True],
        "communication_slowdown": [1.1, 3.0],
        "expert_skew": [2.0],
    }
    chosen = draw(st.lists(st.sampled_from(list(some)), max_size=3, unique=True))
    overlaps = {name: draw(st.sampled_from(some[name])) for name in chosen}
    return {"preset": draw(st.sampled_from(presets)), **overlaps}


@st.composite
def _models(draw: st.DrawFn) -> Tree:
    layers = draw(st.sampled_from([2, 4, 1, 8, 3, 6]))
    if draw(st.integers(0, 9)) == 0:
        names = ["llama2-7b", "bert-large", "gpt3-1.3b", "mixtral-8x7b"]
        name = draw(st.sampled_from(names))
        return {"name": name, "num_layers": layers, "sequence_length": 128}
    family = draw(st.sampled_from(["llama", "gpt", "mixtral", "bert"]))
    heads = draw(st.sampled_from([4, 2, 8, 1]))
    model: dict[str, Tree] = {
        "family": family,
        "num_layers": layers,
        "hidden_size": draw(st.sampled_from([64, 256, 1024])),
        "num_attention_heads": heads,
        "vocab_size": draw(st.sampled_from([1000, 32000])),
        "sequence_length": draw(st.sampled_from([64, 256, 1024])),
    }
    if family == "mixtral":
        experts = draw(st.sampled_from([4, 2, 8]))
        model |= {"num_moe_experts": experts, "moe_router_topk": min(2, experts)}
        model |= draw(
            st.sampled_from(
                [
                    {},
                    {"moe_routing": "random", "moe_expert_capacity_factor": 1.0},
                    {
                        "moe_routing": "power-law",
                        "moe_routing_exponent": 1.2,
                        "moe_expert_placement": "balanced",
                    },
                    {"moe_routing": "log-normal", "moe_routing_sigma": 0.4},
                    {"moe_routing": "measured", "moe_expert_loads": [1] * experts},
                ]
            )
        )
    if draw(st.integers(0, 3)) == 0:
        model["num_query_groups"] = max(1, heads // 2)
    if draw(st.integers(0, 5)) == 0:
        model["attention"] = "plain"
    if draw(st.integers(0, 5)) == 0:
        model["hidden_dropout"] = 0.1
    return model


@st.composite
def _training(draw: st.DrawFn) -> Tree:
    training: dict[str, Tree] = {
        "global_batch_size": draw(st.sampled_from([32, 16, 64, 8, 48, 1, 7]))
    }
    if draw(st.booleans()):
        training["precision"] = draw(st.sampled_from(["bf16", "fp32", "fp16"]))
    if draw(st.integers(0, 3)) == 0:
        training["optimizer"] = draw(st.sampled_from(["adam", "sgd"]))
    if draw(st.integers(0, 5)) == 0:
        training["gradient_precision"] = draw(st.sampled_from(["fp32", "bf16"]))
    return training


@st.composite
def _accelerators(draw: st.DrawFn) -> Tree:
    if draw(st.integers(0, 9)) > 0:
        return draw(st.sampled_from(["h100-sxm", "a100-80gb", "h200", "l4"]))
    return {
        "name": "a device",
        "memory_bytes": draw(st.sampled_from(["64 GiB", "1 GiB", "40 MB"])),
        "memory_bandwidth": "1200 GB/s",
        "num_compute_units": draw(st.sampled_from([8, 1])),
        "interconnect_bandwidth": "900 GB/s",
        "peak_flops": {
            "bf16": "275 TFLOP/s",
            "fp32": "70 TFLOP/s",
            "fp16": "1 PFLOP/s",
        },
    }


class Parts(NamedTuple):
    """What a network has that can be degraded."""

    level: str
    """Name of the outermost level."""

    links: tuple[str, ...]
    """Selectors of links."""

    spares: tuple[str, ...] = ()
    """Selectors of links that the network holds together without."""


Networks = tuple[dict[str, Tree], int, Parts]
"""A table [cluster] or [cluster.network], its number of devices, and parts of it."""


@st.composite
def _networks(draw: st.DrawFn) -> Networks:
    drawn = {
        "fat-tree": _fat_trees,
        "spine-leaf": _spine_leaves,
        "rail": _rails,
        "pods": _pods,
        "dragonfly": _dragonflies,
    }
    kind = draw(st.sampled_from([*drawn, "torus", "mesh"]))
    if kind in drawn:
        found: Networks = draw(drawn[kind]())
        return found
    shape = draw(
        st.sampled_from([[4], [2, 2], [8], [3, 2], [2, 2, 2], [4, 4], [1], [16]])
    )
    table = {
        "kind": kind,
        "dimensions": shape,
        "bandwidth": draw(_BANDWIDTHS),
        "latency": draw(_LATENCIES),
    }
    links = ("device 0 <-> *", "* -> device 0") if math.prod(shape) > 1 else ()
    return table, math.prod(shape), Parts("1 hop", links)


@st.composite
def _pods(draw: st.DrawFn) -> Networks:
    shape, count = draw(st.sampled_from([([4], 3), ([2, 2], 4), ([8], 2)]))
    table = {
        "kind": "torus",
        "dimensions": shape,
        "bandwidth": draw(_BANDWIDTHS),
        "latency": draw(_LATENCIES),
        "pods": {
            "count": count,
            "devices_per_nic": draw(st.sampled_from([1, 2, 4])),
            "nic_bandwidth": draw(_BANDWIDTHS),
            "nic_latency": draw(_LATENCIES),
            "latency": draw(_LATENCIES),
        },
    }
    links = ("device 0 <-> *", "pod 0 <-> core")
    return table, count * math.prod(shape), Parts("pods", links)


@st.composite
def _dragonflies(draw: st.DrawFn) -> Networks:
    groups = draw(st.integers(2, 4))
    table = {
        "kind": "dragonfly",
        "devices_per_node": 2,
        "nodes_per_switch": 1,
        "node_bandwidth": draw(_BANDWIDTHS),
        "node_latency": draw(_LATENCIES),
        "nic_bandwidth": draw(_BANDWIDTHS),
        "nic_latency": draw(_LATENCIES),
        "switches_per_group": 2,
        "num_groups": groups,
        "global_links": 2,
        "local_bandwidth": draw(_BANDWIDTHS),
        "local_latency": draw(_LATENCIES),
        "global_bandwidth": draw(_BANDWIDTHS),
        "global_latency": draw(_LATENCIES),
        "routing": draw(st.sampled_from(["minimal", "valiant"])),
        "trunk": draw(st.sampled_from(["ideal", "ecmp"])),
    }
    links = ("switch 0 <-> switch 1", "device 0 <-> *")
    return table, 4 * groups, Parts("system", links)


@st.composite
def _fat_trees(draw: st.DrawFn) -> Networks:
    shapes = [
        [8],
        [4, 2],
        [2, 2, 2],
        [2, 4],
        [4, 4],
        [3, 2],
        [1],
        [1, 4],
        [8, 2],
        [2, 3],
    ]
    fan_outs = draw(st.sampled_from(shapes))
    levels = []
    for index, fan_out in enumerate(fan_outs):
        level: dict[str, Tree] = {"name": f"tier {index}", "fan_out": fan_out}
        level["latency"] = draw(_LATENCIES)
        is_derived = index > 0 and "oversubscription" in levels[-1]
        if not is_derived:
            level["bandwidth"] = draw(_BANDWIDTHS)
        if index + 1 < len(fan_outs) and draw(st.booleans()):
            level["oversubscription"] = draw(_RATIOS)
        if draw(st.integers(0, 4)) == 0:
            level["efficiency"] = draw(_EFFICIENCIES)
        levels.append(level)
    table = {"kind": "fat-tree", "levels": levels}
    if draw(st.booleans()):
        table["nic"] = draw(st.sampled_from(["device", "node"]))
    if draw(st.integers(0, 4)) == 0:
        table |= {"trunk": "ecmp", "ecmp_seed": draw(st.integers(0, 9))}
    outermost = f"tier {len(fan_outs) - 1}"
    links = (f"level {outermost}", "device 0 <-> *", f"{outermost} 0 -> *")
    return table, math.prod(fan_outs), Parts(outermost, links)


@st.composite
def _spine_leaves(draw: st.DrawFn) -> Networks:
    sizes = st.sampled_from([2, 1, 4])
    counts = {"devices_per_node": draw(sizes), "nodes_per_leaf": draw(sizes)}
    counts["num_leaves"] = draw(st.sampled_from([1, 2, 3]))
    table = {"kind": "spine-leaf", **counts, **_links(draw)}
    table |= {"num_spines": draw(sizes), "oversubscription": draw(_RATIOS)}
    if draw(st.booleans()):
        table["trunk"] = draw(st.sampled_from(["ecmp", "ideal"]))
        table["nic"] = draw(st.sampled_from(["device", "node"]))
    links = ("level node", "leaf 0 <-> *", "* -> leaf 0", "level leaf")
    spares = ("leaf 0 <-> spine 0",) if counts["num_leaves"] > 1 else ()
    spares = spares if table["num_spines"] > 1 and table.get("trunk") == "ecmp" else ()
    return table, math.prod(counts.values()), Parts("leaf", links, spares)


@st.composite
def _rails(draw: st.DrawFn) -> Networks:
    sizes = st.sampled_from([2, 1, 4])
    counts = {"devices_per_node": draw(sizes), "nodes_per_unit": draw(sizes)}
    counts["num_units"] = draw(st.sampled_from([1, 2]))
    table = {"kind": "rail", **counts, **_links(draw)}
    if draw(st.booleans()):
        table |= {"num_spines": draw(sizes), "pxn": draw(st.booleans())}
    links = ("level node", "rail unit 0* <-> *", "device 0 <-> *")
    spares = ("device 0 <-> rail*",) if counts["devices_per_node"] > 1 else ()
    return table, math.prod(counts.values()), Parts("rail unit", links, spares)


def _links(draw: st.DrawFn) -> dict[str, Tree]:
    """Return the links of spine-leaf and rail networks."""
    return {
        "node_bandwidth": draw(_BANDWIDTHS),
        "node_latency": draw(_LATENCIES),
        "nic_bandwidth": draw(_BANDWIDTHS),
        "nic_latency": "1 us",
        "spine_latency": "500 ns",
    }


@st.composite
def _degraded(draw: st.DrawFn, parts: Parts, num_devices: int) -> Tree:
    factors = st.sampled_from([2.0, 1.0, 1.5, 1e6])
    table: dict[str, Tree] = {}
    if parts.links and draw(st.booleans()):
        links = draw(st.sampled_from(parts.links))
        table["slow_links"] = [{"links": links, "factor": draw(factors)}]
    if draw(st.booleans()):
        device = draw(st.integers(0, num_devices - 1))
        which = draw(st.sampled_from([{"device": device}, {"fraction": 0.3}]))
        table["slow_devices"] = [{**which, "factor": draw(factors)}]
    if parts.spares and draw(st.booleans()):
        table["removed_links"] = [draw(st.sampled_from(parts.spares))]
    return table


@st.composite
def _searches(draw: st.DrawFn) -> Tree:
    search: dict[str, Tree] = {"keep_best": draw(st.sampled_from([2, 1, 3, 5]))}
    some = {
        "micro_batch_sizes": [[1], [1, 2], [4], [1, 2, 4]],
        "tensor_model_parallel_sizes": [[1], [1, 2], [2]],
        "pipeline_model_parallel_sizes": [[1, 2], [2], [1]],
        "context_parallel_sizes": [[1], [1, 2]],
        "recompute": [["none"], ["none", "full"], ["stage", "selective"]],
        "zero_stages": [[0], [0, 1], [2, 3]],
        "schedules": [["1f1b"], ["1f1b", "interleaved-1f1b"], ["interleaved-1f1b"]],
        "planner": ["nest", "manual", "mcmc", "phaze", "alpa"],
        "sequence_parallel": [True, False],
        "mcmc": [{"budget": 50, "seeds": [0]}],
    }
    chosen = draw(st.lists(st.sampled_from(list(some)), max_size=4, unique=True))
    for name in chosen:
        search[name] = draw(st.sampled_from(some[name]))
    if search.get("planner") == "mcmc":
        search["mcmc"] = {"budget": 50, "seeds": [0, 1]}
    return search


@st.composite
def _plans(draw: st.DrawFn, document: dict[str, Any], num_devices: int) -> Tree:
    """Draw a plan, and make the batch one that it can split."""
    model = document["model"]
    heads, layers = model.get("num_attention_heads", 4), model.get("num_layers", 2)
    heads = min(heads, model.get("num_query_groups", heads))
    divisors = [n for n in (1, 2, 3, 4, 8) if num_devices % n == 0]
    tensor = draw(st.sampled_from([n for n in divisors if n <= 4 and heads % n == 0]))
    left = [n for n in divisors if num_devices // tensor % n == 0 and layers % n == 0]
    pipeline = draw(st.sampled_from(left))
    plan: dict[str, Tree] = {
        "micro_batch_size": draw(st.sampled_from([1, 2])),
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
    }
    at_once = num_devices // (tensor * pipeline) * plan["micro_batch_size"]
    batch = at_once * pipeline * draw(st.sampled_from([1, 2, 4]))
    document["training"]["global_batch_size"] = batch
    some = {
        "recompute": ["full", "selective", "none"],
        "zero_stage": [1, 0, 2, 3],
        "schedule": ["1f1b", "gpipe", "zb-h1", "zb-h2"],
        "sequence_parallel": [True, False],
        "order": ["tp-cp-ep-dp-pp", "tp-pp-dp"],
        "gradient_algorithm": ["ring", "hierarchical", "halving-doubling", "direct"],
        "tensor_algorithm": ["ring", "double-binary-tree"],
        "virtual_pipeline_model_parallel_size": [2],
    }
    for name in draw(st.lists(st.sampled_from(list(some)), max_size=3, unique=True)):
        plan[name] = draw(st.sampled_from(some[name]))
    if plan.get("zero_stage") and draw(st.booleans()):
        plan["sharding_group_size"] = 1
    return plan


@st.composite
def _simulations(draw: st.DrawFn) -> Tree:
    some = {
        "granularity": ["layer", "stage"],
        "folding": [False],
        "skipping": [False],
        "engine": ["compiled", "simpy"],
        "expert_skew": [1.5],  # where it stood before
        "tolerance": [0.05, 0.9],
        "trace": ["all"],
        "trace_events": [0, 10],
        "seed": [7],
    }
    chosen = st.lists(st.sampled_from(list(some)), min_size=1, max_size=4, unique=True)
    return {name: draw(st.sampled_from(some[name])) for name in draw(chosen)}


@st.composite
def _asserts(draw: st.DrawFn) -> Tree:
    some = {
        "verdict": ["confirmed", "slower", "infeasible"],
        "iteration_time": ["<= 12.5 s", "> 1 ns"],
        "throughput": [">= 1.2e6 tokens/s", "< 1e30 tokens/s"],
        "mfu": [">= 0.4", "< 90 %"],
        "peak_memory": ["<= 70 GiB"],
        "gap": ["<= 5 %", ">= -1"],
        "min_mfu": [0.1],
        "max_memory_fraction": [0.9],
        "max_plan_gap": [0.5],
        "tensor_model_parallel_size": [1],
        "schedule": ["1f1b"],
    }
    chosen = st.lists(st.sampled_from(list(some)), min_size=1, max_size=4, unique=True)
    return {name: draw(st.sampled_from(some[name])) for name in draw(chosen)}


@st.composite
def _sweeps(draw: st.DrawFn, document: dict[str, Any]) -> Tree:
    axes = {
        "training.global_batch_size": [16, 32],
        "model.num_layers": [2, 4],
        "cluster.accelerator": ["h100-sxm", "a100-80gb"],
        "software.preset": ["ideal", "megatron-core"],
        "simulation.granularity": ["stage", "layer"],
        "cluster.network.levels[0].bandwidth": ["10 GB/s", "20 GB/s"],
        "cluster.network": [document["cluster"]["network"], {"kind": "none"}],
        "search.micro_batch_sizes": [[1], [2]],
    }
    chosen = draw(st.lists(st.sampled_from(list(axes)), max_size=2, unique=True))
    chosen = chosen or ["training.global_batch_size"]
    sweep: dict[str, Tree] = {"set": {path: axes[path] for path in chosen}}
    if draw(st.booleans()):
        sweep["what"] = draw(st.sampled_from(["plan", "simulate", "run"]))
    return sweep


@st.composite
def _jobs(draw: st.DrawFn, num_devices: int) -> Tree:
    """Draw jobs that share the devices, by their numbers or by how many."""
    count = draw(st.integers(2, 3))
    each = num_devices // count
    jobs: list[dict[str, Tree]] = []
    for number in range(count):
        job: dict[str, Tree] = {"name": f"job {number}"}
        if draw(st.booleans()):
            job["devices"] = f"{number * each}-{(number + 1) * each - 1}"
        else:
            job["num_devices"] = draw(st.sampled_from([each, 1, 2]))
            placements = ["compact", "spread", "best"]
            job["placement"] = draw(st.sampled_from(placements))
        if draw(st.integers(0, 3)) == 0:
            job["start"] = draw(st.sampled_from(["0 s", "1 ms", "10 s"]))
        if draw(st.integers(0, 2)) == 0:
            job["training"] = {"global_batch_size": draw(st.sampled_from([4, 8, 24]))}
        jobs.append(job)
    return jobs


@st.composite
def _jitters(draw: st.DrawFn) -> Tree:
    distributions = ["lognormal", "normal", "gamma", "exponential", "uniform"]
    jitter: dict[str, Tree] = {"runs": 3}
    if draw(st.booleans()):
        jitter["compute"] = {
            "distribution": draw(st.sampled_from(distributions)),
            "cv": draw(st.sampled_from([0.1, 0.0, 0.5])),
            "per": draw(st.sampled_from(["pass", "step", "operator"])),
        }
    if draw(st.booleans()):
        jitter["links"] = {"mean": draw(_LATENCIES), "cv": draw(st.floats(0.0, 1.0))}
    if draw(st.booleans()):
        jitter["slow"] = [{"fraction": draw(st.floats(0.0, 1.0)), "factor": 1.5}]
    return jitter


@st.composite
def _goodputs(draw: st.DrawFn) -> Tree:
    goodput: dict[str, Tree] = {
        "failures": draw(st.sampled_from(["llama3", "meta-rsc1", "none"])),
        "elastic": draw(st.sampled_from(["off", "smaller-batch", "same-batch"])),
    }
    if draw(st.booleans()):
        goodput["step_time"] = draw(st.sampled_from(["1 ms", "6 s", "1 d"]))
    if draw(st.booleans()):
        goodput["spares"] = draw(st.sampled_from([0, 1, 16]))
    if draw(st.booleans()):
        shape = draw(st.sampled_from([1.0, 0.5, 3.0]))
        part = draw(st.sampled_from(["device", "node", "switch", "link", "job"]))
        goodput["rates"] = {part: {"mtbf": "5 d", "shape": shape}}
    if draw(st.booleans()):
        domain = {"name": "rack", "nodes": draw(st.sampled_from([1, 2, 64]))}
        goodput["domains"] = [{**domain, "per_thousand_days": 20.0}]
    if draw(st.booleans()):
        goodput["maintenance"] = {"every": draw(st.sampled_from(["1 h", "2 d"]))}
    if draw(st.booleans()):
        goodput["checkpoint"] = {
            "asynchronous": draw(st.booleans()),
            "interval": draw(st.sampled_from(["1 min", "3 d"])),
        }
    return {**goodput, **draw(_recoveries())}


@st.composite
def _recoveries(draw: st.DrawFn) -> Tree:
    """Draw habits that not every job has."""
    goodput: dict[str, Tree] = {}
    if draw(st.booleans()):
        factor, jump = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
        peers = {"replication_factor": factor, "replication_jump": jump}
        goodput["checkpoint"] = {"peers": peers}
    if draw(st.booleans()):
        name = draw(st.sampled_from(["device", "software", "rack"]))
        cause = draw(st.sampled_from([{"warm_share": 0.5}, {"repair_time": "1 h"}]))
        goodput["causes"] = [{"name": name, **cause}]
    if draw(st.booleans()):
        slow: dict[str, Tree] = {"share": 0.5, "time": "1 d", "speed": 0.5}
        if draw(st.booleans()):
            slow["detection_time"] = draw(_LATENCIES)
        goodput["slow"] = slow
    return goodput


@st.composite
def _sites(draw: st.DrawFn) -> Tree:
    sites: dict[str, Tree] = {
        "count": draw(st.sampled_from([2, 3, 14, 1000])),
        "bandwidth": draw(st.sampled_from(["10 Gbit/s", "1 B/s", "1000 PB/s"])),
        "latency": draw(_LATENCIES),
        "sync_every": draw(st.sampled_from([1, 100, 12, 1_000_000])),
        "outer_optimizer": draw(st.sampled_from(["nesterov", "average"])),
        "offload": draw(st.booleans()),
    }
    if draw(st.booleans()):
        sites["loss"] = draw(st.sampled_from([0.0, 1e-6, 0.5]))
        sites["connections"] = draw(st.sampled_from([1, 1000]))
    if draw(st.integers(0, 3)) == 0:
        sites["slow_uplinks"] = ["2 Gbit/s"] * draw(st.sampled_from([1, 2, 4]))
    if draw(st.booleans()):
        sites["fragments"] = draw(st.sampled_from([1, 2, 4, 10, 1_000_000]))
    if draw(st.booleans()):
        sites["delay"] = draw(st.sampled_from([0, 1, 11, 99, 999_999]))
    if draw(st.booleans()):
        sites["compression"] = draw(st.sampled_from([32, 16, 8, 4]))
    if draw(st.integers(0, 9)) == 0:
        return {key: sites[key] for key in ("count", "bandwidth", "latency")} | {
            "synchronous": True
        }
    if draw(st.booleans()):
        sites["step_time"] = draw(st.sampled_from(["1 ms", "6 s", "1 d"]))
    return sites


@st.composite
def _stresses(draw: st.DrawFn, parts: Parts, num_devices: int) -> Tree:
    degraded = draw(_degraded(parts, num_devices))
    conditions: list[Tree] = [{"name": "worse", "degraded": degraded}]
    if parts.links and draw(st.booleans()):
        share = draw(st.sampled_from([0.3, 0.9]))
        background = [{"links": parts.links[0], "share": share}]
        conditions.append({"name": "busy", "background": background})
    stress: dict[str, Tree] = {"conditions": conditions, "planners": ["manual"]}
    if draw(st.integers(0, 3)) == 0:
        stress["ecmp_seeds"] = [0, 1]
    if parts.spares and draw(st.integers(0, 1)) == 0:
        stress["oversubscription"] = {parts.level: [1.0, 2.0]}
    if draw(st.integers(0, 3)) == 0:
        stress |= {"keep": 0.9, "rank": draw(st.sampled_from(["planned", "simulated"]))}
    return stress
