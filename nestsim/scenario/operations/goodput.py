"""The table [goodput]: how parts of a cluster fail, and what a job does about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.base import Table
from nestsim.scenario.operations.published_failures import COMPONENTS, DAY, PUBLISHED
from topologies.errors import InputError
from topologies.settings import Bandwidth, Duration, NameChoice, Quantity, Seed, Size

NO_PUBLICATION = "none"
"""In place of a publication: what is not given does not fail."""

ELASTIC = ("off", "smaller-batch", "same-batch")
"""What a job does with fewer nodes than it needs: wait, or go on without replicas, the
batch being smaller or the others doing more."""

MOST_SEEDS, MOST_SPARES = 100_000, 1_000_000
"""Runs, and spare nodes, that a scenario may ask for."""

Period = Annotated[float, Quantity("lifetime", ("365 d", "12 h"))]
"""More than 0, and as long as years [s]."""

Seconds = Annotated[float, Quantity("duration", ("60 s", "0 s"), may_be_zero=True)]
"""0 or more [s]."""

STORAGE_PER_DEVICE = 2e12 / 16384
"""What a storage writes and reads for each device where nobody says: Llama 3's, 2 TB/s
for 16,384 devices (Grattafiori et al., "The Llama 3 Herd of Models", 2024, section
3.3.1) [byte/s]."""

LEAST_INTERVAL = 300.0
"""Training between two checkpoints where nobody says, at least; an assumption: what one
job writes each few seconds is taken from all others' storage [s]."""

DIAGNOSIS = 300.0
"""Time to find what failed where nobody says, an assumption [s]."""

NODE_BANDWIDTH = 25e9 / 8
"""Of a node's storage adapter where nobody says: 25 Gbit/s, an assumption [byte/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """How often one of a kind of components fails."""

    rate: float
    """On average [1/s]."""

    shape: float = 1.0
    """Of the Weibull distribution between failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputSpec:
    """What `nestsim goodput` asks; sizes and bandwidths None for what follows."""

    failures: str = "llama3"
    """Name of a publication, or `NO_PUBLICATION`."""

    rates: Mapping[str, FailureRate] = field(default_factory=dict)
    """Component -> its rate, where it is given."""

    duration: float = 365.0 * DAY
    """Of the run [s]."""

    seeds: int = 200
    """Runs."""

    seed: int = 0
    """Of the first run."""

    step_time: float | None = None
    """Of a healthy step; None for that of the scenario's plan [s]."""

    interval: float | None = None
    """Training between checkpoints; None for the best [s]."""

    least_interval: float = LEAST_INTERVAL
    """Least training between checkpoints, where the best is asked for [s]."""

    asynchronous: bool = True
    """Whether checkpoints are written beside the training."""

    size: float | None = None
    """Of a checkpoint [byte]."""

    write_bandwidth: float | None = None
    """Of the storage; None for `STORAGE_PER_DEVICE` [byte/s]."""

    read_bandwidth: float | None = None
    """Of the storage; None for `STORAGE_PER_DEVICE` [byte/s]."""

    node_bandwidth: float = NODE_BANDWIDTH
    """Between one node and the storage [byte/s]."""

    host_bandwidth: float | None = None
    """Of one device to the memory of its host [byte/s]."""

    detection: float = 60.0
    """From a failure until the job is stopped [s]."""

    diagnosis: float = DIAGNOSIS
    """From there until it is known what failed [s]."""

    hang_share: float | None = None
    """Share of failures that make the job hang; None for the published one."""

    hang_detection: float = 600.0
    """From such a failure until the job is stopped [s]."""

    restart: float = 300.0
    """From enough nodes until training goes on, but for reading a checkpoint [s]."""

    repair: float = DAY
    """Until a broken node can be used again [s]."""

    spares: int | None = None
    """Nodes beside those of the job; None for as many as are ever needed."""

    elastic: str = "off"
    """One of `ELASTIC`."""

    maintenance_every: float | None = None
    """Time from one planned stop to the next; None without [s]."""

    maintenance: float = 0.0
    """Of a planned stop [s]."""


class FailureRateTable(Table):
    """How often one of a kind of components fails: by one of two settings."""

    mtbf: Period | None = Field(None, examples=["3300 d"])
    """Mean time between failures of one such component [s]."""

    per_thousand_days: float | None = Field(None, ge=0, le=1e6, examples=[0.3])
    """Failures of 1,000 such components in a day, in place of `mtbf`."""

    shape: float = Field(1.0, ge=0.2, le=10, examples=[0.8])
    """Shape of the Weibull distribution of times between failures: 1 for a constant
    rate, less where new components fail more often, more where old ones do. All are new
    at the beginning."""

    def build(self) -> FailureRate:
        """Return the record for the simulation."""
        if (self.mtbf is None) == (self.per_thousand_days is None):
            is_none = self.mtbf is None
            raise InputError(
                "says how often by none or both of its settings",
                where="mtbf",
                got="none" if is_none else "mtbf and per_thousand_days",
                expected='either mtbf = "3300 d" or per_thousand_days = 0.3',
            )
        if self.mtbf is not None:
            return FailureRate(rate=1.0 / self.mtbf, shape=self.shape)
        assert self.per_thousand_days is not None
        return FailureRate(
            rate=self.per_thousand_days / (1000.0 * DAY), shape=self.shape
        )


class FailureRatesTable(Table):
    """Rates of components, in place of the published ones."""

    device: FailureRateTable | None = Field(None, examples=[{"mtbf": "3300 d"}])
    """Rate of one device; its node is out until it is repaired."""

    node: FailureRateTable | None = Field(None, examples=[{"per_thousand_days": 0.5}])
    """Rate of what else is in one node; it is out until it is repaired."""

    switch: FailureRateTable | None = Field(None, examples=[{"mtbf": "20000 d"}])
    """Rate of one switch outside nodes; the job restarts around it."""

    link: FailureRateTable | None = Field(None, examples=[{"mtbf": "50000 d"}])
    """Rate of one cable outside nodes; the job restarts around it."""

    fabric: FailureRateTable | None = Field(None, examples=[{"mtbf": "25000 d"}])
    """Rate of one device's share of switches, cables and adapters, where they are not
    told apart; the job restarts around them. The published one does not count beside
    `switch` or `link`."""

    job: FailureRateTable | None = Field(None, examples=[{"mtbf": "1 d"}])
    """Rate of what stops the job whatever its size; it restarts on the same nodes."""

    software: FailureRateTable | None = Field(None, examples=[{"mtbf": "14000 d"}])
    """Rate of one device's share of what software does; the job restarts on the same
    nodes. Jobs on more devices fail more often."""

    def build(self) -> dict[str, FailureRate]:
        """Return the rates that are given."""
        rates = {}
        for name in COMPONENTS:
            table = getattr(self, name)
            if table is not None:
                try:
                    rates[name] = table.build()
                except InputError as error:
                    raise error.at(name) from None
        return rates


class CheckpointTable(Table):
    """What checkpoints are, how often they are written, and how fast."""

    interval: Period | None = Field(None, examples=["30 min"])
    """Training between the beginnings of two checkpoints. Left out, the best one by the
    closed form that is no shorter than `least_interval` [s]."""

    least_interval: Seconds = Field(
        LEAST_INTERVAL, json_schema_extra={"default": "5 min"}, examples=["1 min"]
    )
    """Least training between two checkpoints where `interval` is left out. The closed
    form would often have one after a few seconds, whatever the storage is asked to
    write in a day [s]."""

    asynchronous: bool = True
    """Whether training goes on while a checkpoint is written, and only waits for the
    copy into the memory of the hosts. The next one does not begin before it counts."""

    size: Size | None = Field(None, examples=["5.7 TB"])
    """Size of a checkpoint. Left out, the model's weights and optimizer states
    [byte]."""

    write_bandwidth: Bandwidth | None = Field(None, examples=["2 TB/s"])
    """What the storage writes, all nodes together. Left out, what Llama 3's 2 TB/s
    for 16,384 devices are for these [byte/s]."""

    read_bandwidth: Bandwidth | None = Field(None, examples=["2 TB/s"])
    """What the storage reads, all nodes together. Left out, as for `write_bandwidth`
    [byte/s]."""

    node_bandwidth: Bandwidth | None = Field(None, examples=["25 Gbit/s"])
    """What one node sends to the storage, or takes from it. Left out, 25 Gbit/s
    [byte/s]."""

    host_bandwidth: Bandwidth | None = Field(None, examples=["50 GB/s"])
    """What one device sends to the memory of its host. Left out, as [cluster.host]
    says [byte/s]."""


class MaintenanceTable(Table):
    """Stops that are planned: the job saves a checkpoint before them."""

    every: Period = Field(examples=["27 h"])
    """Time from one planned stop to the next [s]."""

    time: Seconds = Field(0.0, json_schema_extra={"default": "0 s"})
    """Length of a stop, without the restart behind it [s]."""


class GoodputTable(Table):
    """What `nestsim goodput` asks: how parts fail, and what the job does about it."""

    failures: Annotated[str, NameChoice((*PUBLISHED, NO_PUBLICATION))] = Field(
        "llama3", examples=["meta-rsc1"]
    )
    """Publication whose rates hold for components that `rates` does not name: "llama3"
    (54 days on 16,384 H100), "meta-rsc1" (a research cluster of A100), or "none"."""

    rates: FailureRatesTable | None = Field(
        None, examples=[{"device": {"mtbf": "3300 d"}}]
    )
    """Rates of components, in place of published ones."""

    duration: Period = Field(365.0 * DAY, json_schema_extra={"default": "365 d"})
    """How long the job runs [s]."""

    seeds: int = Field(200, ge=1, le=MOST_SEEDS, examples=[1000])
    """Runs with random failures, each of them with a seed of its own."""

    seed: Seed = 0
    """Seed of the first run; the next one has the next."""

    step_time: Duration | None = Field(None, examples=["6.6 s"])
    """Time of a step when nothing fails. Left out, that of the plan in [plan] in the
    replay, or of the plan that `nestsim run` finds [s]."""

    checkpoint: CheckpointTable = Field(
        CheckpointTable(), json_schema_extra={"default": {}}
    )
    """What checkpoints are, how often they are written, and how fast."""

    detection_time: Seconds = Field(60.0, json_schema_extra={"default": "60 s"})
    """Time from a failure until the job is stopped [s]."""

    diagnosis_time: Seconds = Field(DIAGNOSIS, json_schema_extra={"default": "5 min"})
    """Time from there until it is known what failed, and what to leave out [s]."""

    hang_share: float | None = Field(None, ge=0, le=1, examples=[0.02])
    """Share of the failures that make the job hang until `hang_timeout`. Left out, as
    published, and 0 where nothing is."""

    hang_timeout: Seconds = Field(600.0, json_schema_extra={"default": "600 s"})
    """Time from such a failure until the job is stopped; by default PyTorch's time
    limit for NCCL's operations [s]."""

    restart_time: Seconds = Field(300.0, json_schema_extra={"default": "300 s"})
    """Time from the diagnosis, or from the end of a planned stop, until training goes
    on, if there are enough nodes: rescheduling, start. Reading the checkpoint comes on
    top [s]."""

    repair_time: Period = Field(DAY, json_schema_extra={"default": "24 h"})
    """Time until a broken node can be used again, as a spare one [s]."""

    spares: int | None = Field(None, ge=0, le=MOST_SPARES, examples=[16])
    """Spare nodes beside those of the job. Left out, there is always one."""

    elastic: Annotated[str, NameChoice(ELASTIC)] = "off"
    """What a job does that has too few nodes: "off" waits for a repair; otherwise it
    goes on without the replicas that lack nodes, with a "smaller-batch", or with the
    "same-batch" by more microbatches of the others. They come back at the next restart,
    or at a checkpoint if that is worth a restart."""

    maintenance: MaintenanceTable | None = Field(None, examples=[{"every": "27 h"}])
    """Planned stops. Left out, none."""

    def build(self) -> GoodputSpec:
        """Return the settings for the simulation."""
        checkpoint, stops = self.checkpoint, self.maintenance
        optional: dict[str, Any] = {}
        if checkpoint.node_bandwidth is not None:
            optional["node_bandwidth"] = checkpoint.node_bandwidth
        if stops is not None:
            optional |= {"maintenance_every": stops.every, "maintenance": stops.time}
        try:
            rates = {} if self.rates is None else self.rates.build()
        except InputError as error:
            raise error.at("rates") from None
        return GoodputSpec(
            failures=self.failures,
            rates=rates,
            duration=self.duration,
            seeds=self.seeds,
            seed=self.seed,
            step_time=self.step_time,
            interval=checkpoint.interval,
            least_interval=checkpoint.least_interval,
            asynchronous=checkpoint.asynchronous,
            size=checkpoint.size,
            write_bandwidth=checkpoint.write_bandwidth,
            read_bandwidth=checkpoint.read_bandwidth,
            host_bandwidth=checkpoint.host_bandwidth,
            detection=self.detection_time,
            diagnosis=self.diagnosis_time,
            hang_share=self.hang_share,
            hang_detection=self.hang_timeout,
            restart=self.restart_time,
            repair=self.repair_time,
            spares=self.spares,
            elastic=self.elastic,
            **optional,
        )
