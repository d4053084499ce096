"""What the planner's measurements search: the named figures, and how it grows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from nestsim.evaluate.cluster import build_job
from nestsim.scenario.load import load_scenario
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from topologies.accelerators import load_accelerator
from topologies.builders import build_network
from topologies.joined_specs import NetworkSpec
from topologies.network import Network
from topologies.specs import FatTreeSpec, LevelSpec, SpineLeafSpec

RESERVE = 4.0 * 2**30
FIGURES = "figure"
POWERS = tuple(2**k for k in range(11))
EVERYTHING = SearchSpec(memory_reserve=RESERVE)
SEARCHES = Path(__file__).parent / "searches"
"""Scenarios of which all is searched, by the rules of a framework."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One search to measure."""

    name: str
    group: str
    """`FIGURES`, or what grows: ``"layers"``, ``"devices"``, ``"levels"``."""
    model: TransformerSpec
    batch: int
    """Sequences per optimizer step."""
    network: NetworkSpec
    levels: int
    accelerator: str = "h100-sxm"
    spec: SearchSpec = EVERYTHING
    scenario: Path | None = None
    """What to search instead of the model, batch and network, which it has too."""

    def problem(self, time_limit: float | None) -> tuple[Network, Workload, SearchSpec]:
        """Return what `search` takes, nothing of it used before."""
        if self.scenario is not None:
            scenario = load_scenario(self.scenario)
            spec = replace(scenario.search, time_limit=time_limit)
            return (*build_job(scenario, None), spec)
        workload = Workload(
            graph=trace_model(self.model),
            training=TrainingSpec(global_batch_size=self.batch),
            accelerator=load_accelerator(self.accelerator),
        )
        spec = replace(self.spec, time_limit=time_limit)
        return build_network(self.network), workload, spec


def usual(num_leaves: int) -> SpineLeafSpec:
    """Return 128 H100 to a leaf: an NDR NIC for each, and spines that do not block."""
    return SpineLeafSpec(
        devices_per_node=8,
        node_bandwidth=450e9,
        node_latency=500e-9,
        nodes_per_leaf=16,
        num_leaves=num_leaves,
        nic_bandwidth=50e9,
        nic_latency=1e-6,
        spine_latency=500e-9,
    )


def slowest(num_leaves: int) -> SpineLeafSpec:
    """Return the same with one NIC of 25 GB/s for the eight devices of a node."""
    return replace(usual(num_leaves), nic="node", nic_bandwidth=25e9)


def figure_cases() -> Iterator[Case]:
    """Yield the cases that have a figure to meet, everything in them searched."""
    jobs = (
        ("gpt3-175b", 1024, 1536),
        ("mixtral-8x7b", 1024, 1024),
        ("llama3-405b", 16384, 2048),
    )
    for model, devices, batch in jobs:
        for label, kind in (("usual", usual), ("slowest", slowest)):
            yield Case(
                name=f"{model}-{devices}-{label}",
                group=FIGURES,
                model=load_model(model),
                batch=batch,
                network=kind(devices // 128),
                levels=3,
            )
    yield powers_of_two()


def scenario_cases() -> Iterator[Case]:
    """Yield the searches of a framework's whole space that scenarios describe."""
    for path in sorted(SEARCHES.glob("*.toml")):
        scenario = load_scenario(path)
        yield Case(
            name=path.stem,
            group=FIGURES,
            model=scenario.spec,
            batch=scenario.training.global_batch_size,
            network=scenario.network_spec,
            levels=len(build_network(scenario.network_spec).block_sizes),
            scenario=path,
        )


def powers_of_two() -> Case:
    """Return the space that Calculon enumerates point by point.

    Of the configurations (tp, pp, virtual stages, micro-batch, replicas, all powers of
    two), 230 use all 1,024 devices. With recompute on or off, ZeRO 0 or 1 and two
    choices of communication these are 1,840 points, where Calculon has 1,836. The
    search has 2,125 configurations: it also counts those that leave devices idle, which
    no list can leave out, and lets each stage choose its recompute and ZeRO for itself.
    """
    return Case(
        name="gpt3-175b-1024-a100-powers-of-two",
        group=FIGURES,
        model=load_model("gpt3-175b"),
        batch=1536,
        # HGX A100: NVLink 3, and one HDR InfiniBand adapter for each device.
        network=replace(usual(8), node_bandwidth=300e9, nic_bandwidth=25e9),
        levels=3,
        accelerator="a100-80gb",
        spec=SearchSpec(
            tensor_model_parallel_sizes=POWERS[:4],
            pipeline_model_parallel_sizes=POWERS[:7],
            virtual_pipeline_model_parallel_sizes=POWERS[:6],
            micro_batch_sizes=POWERS[:5],
            data_parallel_sizes=POWERS[1:],
            context_parallel_sizes=(1,),
            expert_model_parallel_sizes=(1,),
            recompute=("none", "full"),
            zero_stages=(0, 1),
            memory_reserve=RESERVE,
        ),
    )


def growth_cases() -> Iterator[Case]:
    """Yield GPTs on fat-trees: one of the three sizes grows, the others stay."""
    for num_layers in (24, 36, 48, 72, 96, 126):
        yield _grown("layers", num_layers, num_layers=num_layers)
    for devices in (64, 128, 256, 512, 1024, 2048, 4096):
        yield _grown("devices", devices, fan_outs=(8, 4, devices // 32))
    for fan_outs in ((512,), (8, 64), (8, 4, 16), (8, 4, 4, 4)):
        yield _grown("levels", len(fan_outs), fan_outs=fan_outs)


def _grown(
    group: str,
    size: int,
    *,
    num_layers: int = 48,
    fan_outs: tuple[int, ...] = (8, 4, 16),
) -> Case:
    return Case(
        name=f"{group}-{size}",
        group=group,
        model=replace(load_model("gpt3-35b"), num_layers=num_layers),
        batch=1024,
        network=_fat_tree(fan_outs),
        levels=len(fan_outs),
    )


def _fat_tree(fan_outs: tuple[int, ...]) -> FatTreeSpec:
    """Return NVLink inside, a NIC for each device, and nothing that blocks above."""
    names = ("node", "leaf", "spine", "core")
    latencies = (500e-9, 1e-6, 500e-9, 500e-9)
    bandwidths = (450e9, 50e9, None, None)
    return FatTreeSpec(
        levels=tuple(
            LevelSpec(name=name, fan_out=fan_out, latency=latency, bandwidth=bandwidth)
            for name, fan_out, latency, bandwidth in zip(
                names, fan_outs, latencies, bandwidths, strict=False
            )
        ),
        nic="device",
    )


def warm_up(case: Case) -> Case:
    """Return a small job of the same kind, which loads every kernel."""
    network = replace(usual(1), nodes_per_leaf=2, num_leaves=2)
    model = replace(case.model, num_layers=4)
    return replace(case, model=model, batch=16, network=network, scenario=None)


def all_cases() -> Mapping[str, Case]:
    """Return every case by its name."""
    cases = (*figure_cases(), *scenario_cases(), *growth_cases())
    return {case.name: case for case in cases}
