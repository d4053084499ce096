"""The tables [[jobs]] and [shared]: several training jobs on one cluster."""

from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.base import Table
from topologies.settings import Count, Distinct, Latency, NameChoice, Seed, Text

PLACEMENTS = ("compact", "spread", "best")
"""How a job's devices are chosen where it says only how many."""

OWN_TABLES = ("model", "training", "software", "search", "plan")
"""Tables of a scenario that each job may have for itself."""

MOST_JOBS = 64
"""Jobs of one file."""

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
    jobs together lose the least ("best"). Left out, "compact"."""

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
