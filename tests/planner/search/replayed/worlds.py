"""Small random jobs: a cluster, a model, a framework, and how its steps are replayed.

Sizes are those of real hardware, spread over so many orders that each term of a bound
is now and then the largest.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from estimators.grouping import CP_COMM_TYPES
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from nestsim.lowering.collectives import KeptPhases
from nestsim.lowering.lockstep import lockstep_transfers
from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import replayed_time
from nestsim.simulator.system import ReplaySettings
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.frameworks.framework import FRAMEWORKS, PRESETS
from planner.search.replayed.candidates import LaunchableCandidates
from planner.search.replayed.timelines import TimelineBounds
from planner.search.space import SearchSpec
from planner.step.execution import Execution, Workload
from planner.step.plan import Plan
from planner.work import Work
from tests.planner.fleets import slow_fleet
from topologies.accelerators import load_accelerator
from topologies.arrays import FloatArray
from topologies.builders import build_network
from topologies.degrade import Degradation, SlowDevice, SlowLinks, degrade, slowdowns
from topologies.joined_specs import DragonflySpec, HyperXSpec, PodsSpec
from topologies.network import Network
from topologies.specs import (
    CustomSpec,
    FatTreeSpec,
    LevelSpec,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
)

FAMILIES = {
    "gpt": {},
    "llama": {
        "num_query_groups": 2,
        "tie_word_embeddings": False,
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "normalization": "rmsnorm",
        "position_embedding_type": "rope",
    },
    "mixtral": {
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "tie_word_embeddings": False,
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "normalization": "rmsnorm",
        "position_embedding_type": "rope",
    },
}


ROUNDING = 2e-9
"""How much less than its durations a small replay may take: each is rounded to ticks of
0.9 ps [s]."""


class World(NamedTuple):
    """One problem, and what replays it."""

    network: Network
    workload: Workload
    spec: SearchSpec
    settings: ReplaySettings
    preset: str

    def candidates(self) -> LaunchableCandidates:
        """Return its launchable plans."""
        return LaunchableCandidates.enumerate(
            self.network,
            self.workload,
            self.spec,
            by_layer=self.settings.granularity == "layer",
            work=Work(),
        )

    def with_memory(self, memory: float) -> "World":
        """Return the same job on devices that all have so much memory [byte]."""
        job = self.workload
        own = replace(job.accelerator, memory_bytes=memory)
        other = replace(job, accelerator=own, fleet=None)
        if job.fleet is not None:
            every = [
                replace(one, accelerator=replace(one.accelerator, memory_bytes=memory))
                for one in job.fleet.kinds
            ]
            other = other.on(replace(job.fleet, kinds=tuple(every)))
        return self._replace(workload=other)

    def spec_with(self, **changes: Any) -> "World":
        """Return the same job with another space."""
        return self._replace(spec=replace(self.spec, **changes))

    def priced(self, plan: Plan) -> PricedPlan:
        """Price a plan."""
        return price_plan(self.network, self.workload, plan)

    def transfers(self, plan: Plan) -> FloatArray | None:
        """Return what transfers of a plan take at least, as a search asks for it."""
        if self.settings.granularity == "layer":
            return None
        return lockstep_transfers(KeptPhases(self.network), self.workload, plan)

    def timelines(self, candidates: LaunchableCandidates) -> TimelineBounds:
        """Return what bounds single plans of a search."""
        return TimelineBounds(
            bounds=candidates.bounds, prices=candidates.prices, transfers=self.transfers
        )

    def time(self, plan: Plan) -> float:
        """Replay a plan [s]."""
        return self.time_of(self.priced(plan))

    def time_of(self, priced: PricedPlan) -> float:
        """Replay a plan that has its price [s]."""
        work = lower_plan(self.network, self.workload, priced, self.settings)
        return replayed_time(self.network, work, self.settings)


def every_first_bound(candidates: LaunchableCandidates) -> FloatArray:
    """Return the first bounds of all configurations, families one after another [s]."""
    every = range(len(candidates.families))
    return np.concatenate([np.zeros(0), *map(candidates.first_bounds, every)])


@lru_cache(maxsize=256)
def traced(spec: TransformerSpec) -> LayerGraph:
    """Trace a model once."""
    return trace_model(spec)


RUNTIMES = sorted(set(FRAMEWORKS) - {"nemo", "llm-foundry"})
"""Presets that launch in different ways."""


def random_world(
    seed: int,
    *,
    preset: str | None = None,
    most_devices: int = 16,
    joined: bool = False,
) -> World:
    """Draw a job; the same one for the same seed."""
    rng = random.Random(seed)
    network = random_network(rng, most_devices, joined=joined)
    wear = random_wear(rng, network)
    preset = preset or rng.choice(RUNTIMES)
    settings = ReplaySettings(granularity=rng.choice(("stage", "stage", "layer")))
    spec = SearchSpec(
        rules=FRAMEWORKS[preset].rules,
        cp_comm_types=CP_COMM_TYPES,
        idle_devices=rng.random() < 0.2,
        recompute=("none", "selective", "full", "stage"),
        sequence_parallel=rng.choice((None, None, False)),
        # Drawn apart: other draws stay as they were.
        sharding_group_sizes=random.Random(seed).choice((None, (2, 3, 4, 6, 8))),
    )
    workload = random_workload(rng, preset)
    factors = slowdowns(wear, network.num_devices)
    if (factors > 1.0).any():
        workload = workload.on(slow_fleet(workload, factors))
    return World(degrade(network, wear), workload, spec, settings, preset)


def random_wear(rng: random.Random, network: Network) -> Degradation:
    """Slow links and devices of some clusters down."""
    slow_links, slow_devices = (), ()
    if len(network.links) and rng.random() < 0.25:
        place = rng.randrange(len(network.links))
        ends = (network.links.source[place], network.links.target[place])
        names = [network.vertex_names[int(end)] for end in ends]
        link = f"{names[0]} -> {names[1]}"
        slow_links = (SlowLinks(links=link, factor=rng.choice((1.5, 4.0, 30.0))),)
    if rng.random() < 0.1:
        device = rng.randrange(network.num_devices)
        slow_devices = (SlowDevice(device=device, factor=rng.choice((1.1, 2.0))),)
    return Degradation(slow_links=slow_links, slow_devices=slow_devices)


ROUTING: Mapping[int, Mapping[str, Any]] = {
    4: {},
    6: {"moe_routing": "random", "moe_expert_capacity_factor": 1.0},
    8: {"moe_routing": "power-law", "moe_routing_exponent": 1.2},
}
"""Heads -> where tokens of a model with experts go."""


def random_workload(rng: random.Random, preset: str) -> Workload:
    """Draw a model, a batch, and what is hidden behind what."""
    family = rng.choice(sorted(FAMILIES))
    heads = rng.choice((4, 6, 8))
    length = rng.choice((64, 512, 2048))
    model = TransformerSpec(
        family=family,
        num_layers=rng.randint(1, 9),
        hidden_size=heads * rng.choice((16, 64, 256, 512)),
        num_attention_heads=heads,
        vocab_size=rng.choice((128, 2048, 50_304)),
        sequence_length=length,
        **FAMILIES[family],
    )
    if model.num_moe_experts and heads == 6:
        model = replace(model, moe_shared_expert_intermediate_size=64)
    defaults = PRESETS[preset]
    execution = defaults.execution
    if rng.random() < 0.7:
        execution = Execution(
            overlap_grad_reduce=rng.random() < 0.5,
            overlap_param_gather=rng.random() < 0.5,
            overlap_p2p_comm=rng.random() < 0.7,
            tp_comm_overlap=rng.random() < 0.5,
            communication_slowdown=rng.choice((1.0, 1.0, 1.3)),
            expert_skew=rng.choice((1.0, 1.0, 1.5)),
            delay_wgrad_compute=heads == 4,
            moe_shared_expert_overlap=heads == 6,
        )
    if model.num_moe_experts and execution.expert_skew == 1.0:
        model = replace(model, **ROUTING[heads])
    memory = rng.choice((1e12, 1e12, 80e9, 10e9, 3e9))
    return Workload(
        graph=traced(model),
        training=TrainingSpec(
            global_batch_size=rng.choice((1, 2, 4, 6, 8, 12, 16, 24, 32))
        ),
        accelerator=replace(load_accelerator("h100-sxm"), memory_bytes=memory),
        software=defaults.software,
        execution=execution,
    )


def random_network(
    rng: random.Random, most_devices: int = 16, *, joined: bool = False
) -> Network:
    """Draw a network of any kind, or of copies that a graph joins."""
    kinds = {
        "fat-tree": _fat_tree,
        "shared": _fat_tree,
        "spine-leaf": _spine_leaf,
        "rail": _rail,
        "torus": _torus,
        "custom": _custom,
    }
    if joined:
        kinds = {"pods": _pods, "dragonfly": _dragonfly, "hyperx": _hyperx}
    kind = rng.choice(sorted(kinds))
    while True:
        network = kinds[kind](rng)
        if network.num_devices <= most_devices:
            return network


def _bandwidth(rng: random.Random, low: float = 7.5, high: float = 12.0) -> float:
    return float(10.0 ** rng.uniform(low, high))


def _latency(rng: random.Random) -> float:
    return rng.choice((0.0, 1e-6, 2e-5, 1e-3))


def _fat_tree(rng: random.Random) -> Network:
    fans = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 3))]
    levels = tuple(
        LevelSpec(
            name=f"tier{i}",
            fan_out=fan,
            bandwidth=_bandwidth(rng),
            latency=_latency(rng),
        )
        for i, fan in enumerate(fans)
    )
    return build_network(
        FatTreeSpec(
            levels=levels,
            nic=rng.choice(("node", "device")),
            trunk=rng.choice(("ideal", "ideal", "ecmp")),
            ecmp_seed=rng.randrange(9),
        )
    )


def _spine_leaf(rng: random.Random) -> Network:
    spec = SpineLeafSpec(
        devices_per_node=rng.choice((1, 2, 4)),
        node_bandwidth=_bandwidth(rng, 9.0),
        node_latency=_latency(rng),
        nodes_per_leaf=rng.choice((1, 2, 3)),
        num_leaves=rng.choice((1, 2, 3)),
        nic_bandwidth=_bandwidth(rng, 8.0, 11.0),
        nic_latency=_latency(rng),
        spine_latency=_latency(rng),
        nic=rng.choice(("node", "device")),
        num_spines=rng.choice((1, 2)),
        oversubscription=rng.choice((1.0, 2.0, 8.0)),
        trunk=rng.choice(("ideal", "ideal", "ecmp")),
        ecmp_seed=rng.randrange(9),
    )
    return build_network(spec)


def _rail(rng: random.Random) -> Network:
    spec = RailSpec(
        devices_per_node=rng.choice((2, 4)),
        node_bandwidth=_bandwidth(rng, 9.0),
        node_latency=_latency(rng),
        nodes_per_unit=rng.choice((1, 2)),
        num_units=rng.choice((1, 2)),
        nic_bandwidth=_bandwidth(rng, 8.0, 11.0),
        nic_latency=_latency(rng),
        spine_latency=_latency(rng),
        oversubscription=rng.choice((1.0, 4.0)),
        pxn=rng.random() < 0.5,
    )
    return build_network(spec)


def _torus(rng: random.Random) -> Network:
    sizes = rng.choice(((4,), (8,), (2, 2), (2, 4), (4, 4), (2, 2, 2), (3, 4)))
    return build_network(
        TorusSpec(
            dimensions=sizes,
            wrap=tuple(rng.random() < 0.5 for _ in sizes),
            bandwidth=_bandwidth(rng),
            latency=_latency(rng),
        )
    )


def _custom(rng: random.Random) -> Network:
    """Draw switches in a line with devices below each, every link as it comes."""
    switches = rng.randint(1, 3)
    below = rng.randint(2, 4)
    links = [
        (f"{s * below + d}", f"s{s}") for s in range(switches) for d in range(below)
    ]
    links += [(f"s{s}", f"s{s + 1}") for s in range(switches - 1)]
    text = f"devices = {switches * below}\n"
    for source, target in links:
        text += (
            "[[links]]\n"
            f"source = {source if source.isdigit() else repr(source)}\n"
            f"target = '{target}'\n"
            f'bandwidth = "{_bandwidth(rng) / 1e9:.6f} GB/s"\n'
            f'latency = "{_latency(rng) * 1e6:g} us"\n'
        )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "links.toml"
        path.write_text(text)
        return build_network(CustomSpec(path=path))


def _pods(rng: random.Random) -> Network:
    sides = rng.choice(((4,), (2, 2), (2, 4)))
    pod = TorusSpec(
        dimensions=sides,
        wrap=(True,) * len(sides),
        bandwidth=_bandwidth(rng),
        latency=_latency(rng),
    )
    return build_network(
        PodsSpec(
            pod=pod,
            num_pods=rng.choice((2, 2, 4)),
            nic_bandwidth=_bandwidth(rng),
            nic_latency=_latency(rng),
            latency=_latency(rng),
            devices_per_nic=rng.choice((1, 2, 4)),
            oversubscription=rng.choice((1.0, 4.0)),
        )
    )


def _below(rng: random.Random) -> FatTreeSpec:
    levels = tuple(
        LevelSpec(
            name=name,
            fan_out=rng.choice((1, 2)),
            bandwidth=_bandwidth(rng),
            latency=_latency(rng),
        )
        for name in ("node", "switch")
    )
    return FatTreeSpec(levels=levels, nic=rng.choice(("node", "device")))


def _dragonfly(rng: random.Random) -> Network:
    return build_network(
        DragonflySpec(
            below=_below(rng),
            switches_per_group=2,
            num_groups=rng.choice((2, 3, 4)),
            global_links=2,
            spines_per_group=rng.choice((0, 2)),
            local_bandwidth=_bandwidth(rng),
            local_latency=_latency(rng),
            global_bandwidth=_bandwidth(rng),
            global_latency=_latency(rng),
            routing=rng.choice(("minimal", "minimal", "valiant")),
            trunk=rng.choice(("ideal", "ecmp")),
        )
    )


def _hyperx(rng: random.Random) -> Network:
    sides = rng.choice(((4,), (2, 2), (2, 4)))
    return build_network(
        HyperXSpec(
            below=_below(rng),
            dimensions=sides,
            bandwidths=tuple(_bandwidth(rng) for _ in sides),
            latency=_latency(rng),
            rings=rng.random() < 0.3,
        )
    )
