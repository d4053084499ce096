"""What the simulator's measurements replay: the named figures, and how it grows.

Jobs are GPT-3 175B, tensor-parallel inside of nodes. Replicas are next to each other
(Megatron's default order) unless a case says otherwise, so that a pipeline's
transfers cross the leaves, and with them everything else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from nestsim.simulator.system import ReplaySettings
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.execution import Workload
from topologies.accelerators import load_accelerator
from topologies.builders import build_network
from topologies.network import Network
from topologies.specs import SpineLeafSpec

FIGURES = "figure"
WHOLE_STEP = ReplaySettings()
BY_LAYER = ReplaySettings(granularity="layer")
MODEL = load_model("gpt3-175b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a case may take: the figures that the simulator has to meet."""

    seconds: float
    """[s]"""

    megabytes: float | None = None
    """[1e6 byte]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One replay to measure."""

    name: str
    group: str = FIGURES
    """`FIGURES`, or what grows."""
    network: SpineLeafSpec
    pp: int
    dp: int
    num_microbatches: int = 192
    """Per pipeline."""
    tp: int = 8
    settings: ReplaySettings = WHOLE_STEP
    layers: tuple[int, ...] | None = None
    """Of each stage; None for equal numbers."""
    model: TransformerSpec = field(default=MODEL)
    limits: Limits | None = None
    with_trace: bool = False
    """Whether to write the trace as well."""
    size: float = 0.0
    """How far the group has grown."""

    @property
    def num_devices(self) -> int:
        """Devices that have work."""
        return self.tp * self.pp * self.dp

    def problem(self) -> tuple[Network, Workload, PricedPlan]:
        """Return what `lower_plan` takes, nothing of it used before."""
        network = build_network(self.network)
        batch = self.dp * self.num_microbatches
        workload = Workload(
            graph=trace_model(self.model),
            training=TrainingSpec(global_batch_size=batch),
            accelerator=load_accelerator("h100-sxm"),
        )
        spec = PlanSpec(
            micro_batch_size=1,
            tensor_model_parallel_size=self.tp,
            pipeline_model_parallel_size=self.pp,
            data_parallel_size=self.dp,
            sequence_parallel=True,
            num_layers_per_pipeline_stage=self.layers,
            recompute="selective",
            zero_stage=1,
        )
        plan = build_plan(network, workload, spec)
        return network, workload, price_plan(network, workload, plan)


def cluster(num_devices: int, *, oversubscription: float = 1.0) -> SpineLeafSpec:
    """Return at least so many H100, 128 to a leaf, with an NDR NIC for each."""
    return SpineLeafSpec(
        devices_per_node=8,
        node_bandwidth=450e9,
        node_latency=500e-9,
        nodes_per_leaf=16,
        num_leaves=-(-num_devices // 128),
        nic_bandwidth=50e9,
        nic_latency=1e-6,
        spine_latency=500e-9,
        oversubscription=oversubscription,
    )


def figure_cases() -> Iterator[Case]:
    """Yield the cases that have a figure to meet."""
    aligned = ((8, Limits(seconds=0.5, megabytes=500)), (128, Limits(seconds=1)))
    for dp, limits in (*aligned, (800, Limits(seconds=3))):
        for label, settings in (("stage", WHOLE_STEP), ("layer", BY_LAYER)):
            yield Case(
                name=f"{128 * dp}-aligned-{label}",
                network=cluster(128 * dp),
                pp=16,
                dp=dp,
                settings=settings,
                limits=limits,
            )
    worst = ((146, Limits(seconds=2)), (914, Limits(seconds=15, megabytes=2000)))
    for dp, limits in worst:
        yield misaligned(dp, limits=limits)
    yield replace(misaligned(146), name="16384-misaligned-layer", settings=BY_LAYER)
    yield Case(
        name="512-unfolded-layer",
        network=cluster(512),
        pp=4,
        dp=16,
        num_microbatches=8,
        settings=replace(BY_LAYER, folding=False),
        limits=Limits(seconds=5),
    )
    yield Case(
        name="64-one-pipeline-traced",
        network=cluster(64),
        pp=8,
        dp=1,
        num_microbatches=64,
        limits=Limits(seconds=0.3),
        with_trace=True,
    )


def misaligned(
    dp: int, *, oversubscription: float = 2.0, limits: Limits | None = None
) -> Case:
    """Return stages whose replicas fill leaves, but for a rest, on few uplinks."""
    size = 16_384 if dp == 146 else 128 * -(-112 * dp // 128)
    return Case(
        name=f"{size}-misaligned-stage",
        network=cluster(size, oversubscription=oversubscription),
        pp=14,
        dp=dp,
        layers=(7,) * 6 + (6, 6) + (7,) * 6,
        limits=limits,
    )


def growth_cases() -> Iterator[Case]:
    """Yield replays in which one size grows and the others stay."""
    for dp in (4, 16, 64, 256, 800):
        yield Case(
            name=f"devices-{128 * dp}",
            group="devices",
            size=128 * dp,
            network=cluster(128 * dp),
            pp=16,
            dp=dp,
        )
    for dp in (9, 36, 146, 365, 914):
        yield replace(
            misaligned(dp),
            name=f"misaligned-{112 * dp}",
            group="misaligned devices",
            size=112 * dp,
            num_microbatches=32,
        )
    for num_microbatches in (16, 32, 64, 128, 256, 512):
        yield replace(
            misaligned(36),
            name=f"microbatches-{num_microbatches}",
            group="microbatches",
            size=num_microbatches,
            num_microbatches=num_microbatches,
        )
        yield replace(
            misaligned(36),
            name=f"microbatches-{num_microbatches}-unskipped",
            group="microbatches unskipped",
            size=num_microbatches,
            num_microbatches=num_microbatches,
            settings=replace(WHOLE_STEP, skipping=False),
        )
    for pp in (4, 8, 16, 32, 48):
        yield Case(
            name=f"stages-{pp}",
            group="stages",
            size=pp,
            network=cluster(8 * pp * 17),
            pp=pp,
            dp=17,
        )
    for ratio in (1.0, 2.0, 4.0, 8.0, 16.0):
        yield replace(
            misaligned(36, oversubscription=ratio),
            name=f"oversubscription-{ratio:g}",
            group="oversubscription",
            size=ratio,
        )


def warm_up(case: Case) -> Case:
    """Return a small job of the same kind, which loads every kernel."""
    return replace(
        case,
        network=cluster(128, oversubscription=case.network.oversubscription),
        model=replace(case.model, num_layers=4),
        pp=2,
        dp=3,
        num_microbatches=8,
        layers=None,
    )


def all_cases() -> Mapping[str, Case]:
    """Return every case by its name."""
    return {case.name: case for case in (*figure_cases(), *growth_cases())}
