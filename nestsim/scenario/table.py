"""All tables of a scenario, and of files with several jobs."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from estimators.training import TrainingSpec
from nestsim.scenario.assertions import Assertion, AssertTable
from nestsim.scenario.base import BuiltFrom, Table
from nestsim.scenario.goodput import GoodputSpec
from nestsim.scenario.hardware.cluster import ClusterTable
from nestsim.scenario.hardware.cost import CostSpec
from nestsim.scenario.jitter import JitterSpec, JitterTable
from nestsim.scenario.model import ModelSetting
from nestsim.scenario.rl import RlSpec
from nestsim.scenario.search import SearchTable
from nestsim.scenario.simulation import SimulationTable
from nestsim.scenario.sites import SitesSpec
from nestsim.scenario.software import SoftwareTable
from nestsim.scenario.stress import StressSpec, SweepSpec
from planner.plans.spec import PlanSpec
from topologies.settings import (
    Argument,
    Count,
    Distinct,
    Examples,
    Latency,
    Listed,
    NameChoice,
    Seed,
    Spec,
    Text,
)

PLACEMENTS = ("compact", "spread", "best")
"""How a job's devices are chosen where it says only how many."""

OWN_TABLES = ("model", "training", "software", "search", "plan")
"""Tables of a scenario that each job may have for itself."""

MOST_JOBS = 64
"""Jobs of one file."""

MOST_SHIFTS = 1000
"""Starts of a job that are replayed."""

Settings = Annotated[dict[str, Any], Field(min_length=1)]


Ranges = Annotated[str, Field(min_length=1, max_length=20_000)]


class JobTable(Table):
    """One of several jobs on the cluster.

    Its tables stand over those that the file has for all jobs, setting by setting.
    """

    name: Text = Field(examples=["pretraining"])
    """Name of the job, by which reports call it."""

    devices: Ranges | None = Field(None, examples=["0-511", "0-255, 512-767"])
    """Numbers of the devices that the job runs on: ranges, with commas between them;
    "0-62:2" is every second one. Their order does not matter."""

    num_devices: Count | None = Field(None, examples=[512])
    """Number of devices that the job runs on, in place of `devices`."""

    placement: Annotated[str, NameChoice(PLACEMENTS)] | None = Field(
        None, examples=["best"]
    )
    """Where `num_devices` devices are taken, of those that are free: close to each
    other ("compact"), in turn from all parts of the network ("spread"), or where all
    jobs together lose the least ("best"): after the others, all such jobs together.
    Left out, "compact"."""

    start: Latency = Field(
        0.0, json_schema_extra={"default": "0 s"}, examples=["500 ms"]
    )
    """Moment at which the job begins its first step, the others' clocks being at 0
    [s]."""

    model: Settings | None = Field(None, examples=[{"name": "llama2-7b"}])
    """Settings of [model] for this job alone."""

    training: Settings | None = Field(None, examples=[{"global_batch_size": 512}])
    """Settings of [training] for this job alone."""

    software: Settings | None = Field(None, examples=[{"preset": "megatron-core"}])
    """Settings of [software] for this job alone."""

    search: Settings | None = Field(None, examples=[{"micro_batch_sizes": [1]}])
    """Settings of [search] for this job alone: without a plan, it is searched for the
    best one on its devices."""

    plan: Settings | None = Field(None, examples=[{"micro_batch_size": 1}])
    """Settings of [plan] for this job alone: the plan that it runs."""


class SharedTable(Table):
    """How jobs that share a cluster are replayed together."""

    ecmp_seeds: Distinct[Seed] | None = Field(None, examples=[[0, 1, 2]])
    """Seeds of the hash that picks a cable: the jobs are replayed once for each, and
    parallel cables are then separate links. Left out, the network is as
    [cluster.network] says."""

    most_steps: Annotated[int, Field(ge=4, le=100_000)] = Field(128, examples=[1000])
    """Steps of the slowest of the jobs that meet until which they are replayed: until
    they are locked into a period, or their means no longer move. Where neither comes in
    so many steps, results are ranges."""

    shifts: Annotated[int, Field(ge=0, le=MOST_SHIFTS)] = Field(0, examples=[16])
    """Starts of each job that meets others, in equal parts of its step, for which they
    are replayed: what the best of these starts would save, and which orbits hold. 0 for
    none."""


OptionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec(Spec):
    """What a launch configuration said beside the job, for `nestsim export`."""

    format: Annotated[Text, Examples("megatron")]
    """Name of the format that `nestsim import` read."""

    options: Annotated[
        dict[OptionName, Argument],
        Examples({"rotary-base": "500000", "bf16": True}, default={}),
    ] = field(default_factory=dict)
    """Options that no other setting stands for, by their names there: words, lists of
    words, true for options that stand alone. An export to the same format has them as
    they are; nothing else reads them."""


_WITH_DEFAULTS = Examples(default={})
"""Marks a table whose defaults hold where it is left out."""


@dataclass(frozen=True, kw_only=True)
class HandedOn(Spec):
    """What a scenario hands on to commands as its file has it."""

    plan: Annotated[PlanSpec | None, Examples({"micro_batch_size": 1})] = None
    """One plan, under Megatron's names, for `nestsim simulate` and the planner
    "fixed"; others do not read it."""

    launch: Annotated[LaunchSpec | None, Examples({"format": "megatron"})] = None
    """What a launch configuration that was imported said beside the job; only
    `nestsim export` reads it."""

    sweep: Annotated[SweepSpec, _WITH_DEFAULTS] = field(default_factory=SweepSpec)
    """Which settings `nestsim sweep` varies; other commands do not read it."""

    stress: Annotated[StressSpec, _WITH_DEFAULTS] = field(default_factory=StressSpec)
    """What `nestsim stress` does to the cluster; other commands do not read it."""

    goodput: Annotated[GoodputSpec, _WITH_DEFAULTS] = field(default_factory=GoodputSpec)
    """What fails, and what the job does about it: `nestsim goodput` reads it, and
    `nestsim run`, which says it in short."""

    jitter: Annotated[JitterSpec, BuiltFrom(JitterTable), _WITH_DEFAULTS] = field(
        default_factory=JitterSpec
    )
    """What `nestsim jitter` draws at random; other commands do not read it."""

    rl: Annotated[
        RlSpec | None,
        Examples(
            {"prompts": 64, "samples": 16, "prompt_length": 200, "response_length": 900}
        ),
    ] = None
    """A step of reinforcement learning: rollout, log-probabilities, training; only
    `nestsim rl` reads it."""

    sites: Annotated[
        SitesSpec | None,
        Examples({"count": 2, "bandwidth": "10 Gbit/s", "latency": "30 ms"}),
    ] = None
    """Sites far apart that train the model together, each as [cluster] has it; only
    `nestsim sites` reads it."""

    cost: Annotated[CostSpec | None, Examples({"device_hour": "2.50 USD/h"})] = None
    """What the cluster costs and draws: tokens for a dollar, the cost of a run. Left
    out, reports say nothing of money and energy."""

    assertions: Annotated[
        tuple[Assertion, ...],
        BuiltFrom(AssertTable),
        Field(alias="assert"),
        Examples(
            {"verdict": "confirmed", "throughput": ">= 1.2e6 tokens/s"}, default={}
        ),
    ] = ()
    """What must come out; if it does not, the exit status is 1."""


@dataclass(frozen=True, kw_only=True)
class _JobTables(Spec):
    """What a job is, as its file has it."""

    name: Annotated[Text, Examples("Llama 2 7B on 64 H100")]
    """Name of the scenario, by which reports call it."""

    model: Annotated[
        ModelSetting, Examples({"name": "llama2-7b", "sequence_length": 4096})
    ]
    """The model: a name of the library, a Hugging Face config.json, a module of your
    own, or an architecture spelled out in Megatron's names."""

    training: Annotated[TrainingSpec, Examples({"global_batch_size": 512})]
    """What is trained at once, and in which precision."""

    cluster: ClusterTable
    """The devices that the job runs on, and the network that joins them."""

    software: Annotated[
        SoftwareTable, Examples({"preset": "megatron-core"}, default={})
    ] = field(default_factory=SoftwareTable)
    """The framework that runs the job. Left out, none that takes any time."""

    search: Annotated[SearchTable, _WITH_DEFAULTS] = field(default_factory=SearchTable)
    """What the planner may try, and how long it may take."""

    simulation: Annotated[SimulationTable, _WITH_DEFAULTS] = field(
        default_factory=SimulationTable
    )
    """How plans are replayed and judged."""


@dataclass(frozen=True, kw_only=True)
class ScenarioTable(HandedOn, _JobTables):
    """One training job on one cluster, and what to find out about it.

    Quantities are strings with a unit, such as "450 GB/s", "400 Gbit/s", "80 GiB" or
    "2 us". GB is 1e9 bytes and GiB 2**30; bandwidths are per direction.
    """

    jobs: Annotated[
        tuple[JobTable, ...],
        Listed(most=MOST_JOBS),
        Examples([{"name": "pretraining", "devices": "0-511"}]),
    ] = ()
    """Several jobs that share the cluster, for `nestsim jobs`, which needs two or more;
    other commands refuse a file that has any. With jobs, [model], [training] and
    [plan] are what they have in common, and may be left out."""

    shared: Annotated[SharedTable, _WITH_DEFAULTS] = field(default_factory=SharedTable)
    """How the jobs of `nestsim jobs` are replayed together; other commands do not read
    it."""
