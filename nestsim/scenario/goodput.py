"""The table [goodput]: how parts of a cluster fail, and what a job does about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from annotated_types import Ge, Le

from topologies.errors import InputError
from topologies.settings import (
    Bandwidth,
    Duration,
    Examples,
    Listed,
    NameChoice,
    Quantity,
    Seed,
    Size,
    Spec,
    Text,
)

DAY = 86400.0
"""Length of a day [s]."""

COMPONENTS = ("device", "node", "switch", "link", "fabric", "job", "software")
"""What fails: an accelerator, the rest of its node, a switch, a cable outside of nodes,
the fabric's share of one device, what stops the job whatever its size, and the
software's share of one device."""

PARTS_OF_FABRIC = frozenset({"switch", "link"})
"""Components that a published fabric contains: told apart, they are in place of it."""

BREAKS_NODE = frozenset({"device", "node"})
"""Components whose failure takes a node out until it is repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFailures:
    """Interruptions of one cluster over a while."""

    source: str
    """Where they were published."""

    num_devices: int
    """Devices of the cluster."""

    devices_per_node: int
    """Devices of one of its nodes."""

    time: float
    """How long they were counted [s]."""

    causes: Mapping[str, Mapping[str, float]]
    """Component -> cause as it is called there -> interruptions."""

    planned: float = 0.0
    """Planned interruptions in that time."""

    hangs: float = 0.0
    """Interruptions that were noticed by a time limit alone."""

    @property
    def unexpected(self) -> float:
        """All interruptions but planned ones."""
        return sum(sum(counts.values()) for counts in self.causes.values())

    @property
    def hang_share(self) -> float:
        """Share of the unexpected ones that a time limit noticed."""
        return self.hangs / self.unexpected

    def rates(self) -> dict[str, float]:
        """Return how often one of each component fails [1/s]."""
        numbers = {
            "device": self.num_devices,
            "node": self.num_devices // self.devices_per_node,
            "fabric": self.num_devices,
            "software": self.num_devices,
        }
        return {
            name: sum(counts.values()) / (numbers[name] * self.time)
            for name, counts in self.causes.items()
        }


PUBLISHED: Mapping[str, PublishedFailures] = MappingProxyType(
    {
        "llama3": PublishedFailures(
            source='Grattafiori et al., "The Llama 3 Herd of Models", 2024, section '
            "3.3.4 and table 5",
            num_devices=16384,
            devices_per_node=8,
            time=54 * DAY,
            causes={
                "device": {
                    "faulty GPU": 148,
                    "GPU HBM3 memory": 72,
                    "GPU SRAM memory": 19,
                    "GPU system processor": 17,
                    "silent data corruption": 6,
                    "GPU thermal interface and sensor": 6,
                },
                "node": {
                    "host maintenance": 32,
                    "NIC": 7,
                    "SSD": 3,
                    "power supply": 3,
                    "server chassis": 2,
                    "IO expansion board": 2,
                    "CPU": 2,
                    "system memory": 2,
                },
                "fabric": {"network switch or cable": 35},
                "software": {
                    "software bug": 54,
                    "NCCL watchdog timeouts": 7,
                    "dependency": 2,
                },
            },
            planned=47,
            hangs=7,
        ),
        # 6.50 failures for 1,000 node-days: 1.8 h between failures of 16,384 devices.
        "meta-rsc1": PublishedFailures(
            source='Kokolis et al., "Revisiting Reliability in Large-Scale Machine '
            'Learning Research Clusters", HPCA 2025, cluster RSC-1',
            num_devices=8000,
            devices_per_node=8,
            time=DAY,
            causes={"node": {"failures": 6.50}},
        ),
    }
)
"""Name of a publication, as `goodput.failures` takes it -> what it counted."""


NO_PUBLICATION = "none"
"""In place of a publication: what is not given does not fail."""

ELASTIC = ("off", "smaller-batch", "same-batch")
"""What a job does with fewer nodes than it needs: wait, or go on without replicas, the
batch being smaller or the others doing more."""

MOST_SEEDS, MOST_SPARES, MOST_DOMAINS = 100_000, 1_000_000, 100
"""Runs, spare nodes, and kinds of domains, that a scenario may ask for."""

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

BESIDE_PEERS = 3 * 3600.0
"""Training between two checkpoints in the storage beside those in memory where nobody
says, at most: BLOOM's three hours, which Gemini's authors take, too (Wang et al.,
"GEMINI", SOSP 2023) [s]."""

PEER_BANDWIDTH = 400e9 / 8
"""What a node sends to its peers where nobody says: the 400 Gbit/s of the nodes of Wang
et al., "GEMINI", SOSP 2023 [byte/s]."""

WARM_RESTART = 60.0
"""A restart in the same processes where nobody says, an assumption [s]."""

NODE_BANDWIDTH = 25e9 / 8
"""Of a node's storage adapter where nobody says: 25 Gbit/s, an assumption [byte/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeSpec(Spec):
    """How often something fails: by one of two settings."""

    mtbf: Annotated[Period | None, Examples("3300 d")] = None
    """Mean time between failures of one such component [s]."""

    per_thousand_days: Annotated[
        Annotated[float, Ge(0), Le(1e6)] | None, Examples(0.3)
    ] = None
    """Failures of 1,000 such components in a day, in place of `mtbf`."""

    shape: Annotated[float, Ge(0.2), Le(10), Examples(0.8)] = 1.0
    """Shape of the Weibull distribution of times between failures: 1 for a constant
    rate, less where new components fail more often, more where old ones do. All are new
    at the beginning."""

    def __post_init__(self) -> None:
        if (self.mtbf is None) == (self.per_thousand_days is None):
            is_none = self.mtbf is None
            raise InputError(
                "says how often by none or both of its settings",
                where="mtbf",
                got="none" if is_none else "mtbf and per_thousand_days",
                expected='either mtbf = "3300 d" or per_thousand_days = 0.3',
            )

    @property
    def rate(self) -> float:
        """How often it fails on average [1/s]."""
        if self.mtbf is not None:
            return 1.0 / self.mtbf
        assert self.per_thousand_days is not None
        return self.per_thousand_days / (1000.0 * DAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate(LifetimeSpec):
    """How often one of a kind of components fails: by one of two settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRates(Spec):
    """Rates of components, in place of the published ones."""

    device: Annotated[FailureRate | None, Examples({"mtbf": "3300 d"})] = None
    """Rate of one device; its node is out until it is repaired."""

    node: Annotated[FailureRate | None, Examples({"per_thousand_days": 0.5})] = None
    """Rate of what else is in one node; it is out until it is repaired."""

    switch: Annotated[FailureRate | None, Examples({"mtbf": "20000 d"})] = None
    """Rate of one switch outside nodes; the job restarts around it."""

    link: Annotated[FailureRate | None, Examples({"mtbf": "50000 d"})] = None
    """Rate of one cable outside nodes; the job restarts around it."""

    fabric: Annotated[FailureRate | None, Examples({"mtbf": "25000 d"})] = None
    """Rate of one device's share of switches, cables and adapters, where they are not
    told apart; the job restarts around them. The published one does not count beside
    `switch` or `link`."""

    job: Annotated[FailureRate | None, Examples({"mtbf": "1 d"})] = None
    """Rate of what stops the job whatever its size; it restarts on the same nodes."""

    software: Annotated[FailureRate | None, Examples({"mtbf": "14000 d"})] = None
    """Rate of one device's share of what software does; the job restarts on the same
    nodes. Jobs on more devices fail more often."""

    def given(self) -> dict[str, FailureRate]:
        """Return the rates that are given."""
        rates = {name: getattr(self, name) for name in COMPONENTS}
        return {name: rate for name, rate in rates.items() if rate is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDomain(LifetimeSpec):
    """Nodes that one failure takes out together: a rack, a switch, a power feed."""

    name: Annotated[Text, Examples("rack power")]
    """What fails, in words."""

    level: Annotated[Text | None, Examples("leaf")] = None
    """Level of the network whose blocks they are: one failure takes all nodes of a
    block."""

    nodes: Annotated[Annotated[int, Ge(1)] | None, Examples(32)] = None
    """Nodes of one of them, in place of `level`."""

    def __post_init__(self) -> None:
        LifetimeSpec.__post_init__(self)
        if (self.level is None) == (self.nodes is None):
            raise InputError(
                "says which nodes fail together by none or both of its settings",
                where="nodes",
                got="none" if self.level is None else "level and nodes",
                expected='either level = "leaf" or nodes = 32',
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersSpec(Spec):
    """Checkpoints in the memory of other nodes, beside those in the storage."""

    interval: Annotated[Period | None, Examples("1 min")] = None
    """Training between two of them. Left out, a step, or as long as it takes to send
    one if that is longer [s]."""

    replication_factor: Annotated[int, Ge(1), Le(64), Examples(3)] = 2
    """Nodes that keep each part, the one that trains on it among them. A failure of all
    of them sends the job back to the last checkpoint in the storage."""

    replication_jump: Annotated[int, Ge(1), Examples(16)] = 1
    """Nodes from one of these to the next: 1 for neighbours, the nodes of a rack for
    groups that no rack holds whole."""

    stall: Annotated[Seconds, Examples("10 ms", default="0 s")] = 0.0
    """Time for which one stops the training. Left out, none: it is sent while the
    network is idle, as Gemini does [s]."""

    bandwidth: Annotated[Bandwidth, Examples("200 Gbit/s", default="400 Gbit/s")] = (
        PEER_BANDWIDTH
    )
    """What a node sends to its peers beside the training [byte/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec(Spec):
    """What checkpoints are, how often they are written, and how fast."""

    interval: Annotated[Period | None, Examples("30 min")] = None
    """Training between the beginnings of two checkpoints. Left out, the best one by the
    closed form that is no shorter than `least_interval`, nor longer than 3 h beside
    `peers` [s]."""

    least_interval: Annotated[Seconds, Examples("1 min", default="5 min")] = (
        LEAST_INTERVAL
    )
    """Least training between two checkpoints where `interval` is left out. The closed
    form would often have one after a few seconds, whatever the storage is asked to
    write in a day [s]."""

    asynchronous: bool = True
    """Whether training goes on while a checkpoint is written, and only waits for the
    copy into the memory of the hosts. The next one does not begin before it counts."""

    size: Annotated[Size | None, Examples("5.7 TB")] = None
    """Size of a checkpoint. Left out, the model's weights and optimizer states
    [byte]."""

    write_bandwidth: Annotated[Bandwidth | None, Examples("2 TB/s")] = None
    """What the storage writes, all nodes together. Left out, what Llama 3's 2 TB/s
    for 16,384 devices are for these [byte/s]."""

    read_bandwidth: Annotated[Bandwidth | None, Examples("2 TB/s")] = None
    """What the storage reads, all nodes together. Left out, as for `write_bandwidth`
    [byte/s]."""

    node_bandwidth: Annotated[Bandwidth, Examples("25 Gbit/s", default=None)] = (
        NODE_BANDWIDTH
    )
    """What one node sends to the storage, or takes from it. Left out, 25 Gbit/s
    [byte/s]."""

    host_bandwidth: Annotated[Bandwidth | None, Examples("50 GB/s")] = None
    """What one device sends to the memory of its host. Left out, as [cluster.host]
    says [byte/s]."""

    peers: Annotated[PeersSpec | None, Examples({"replication_factor": 2})] = None
    """Checkpoints in the memory of other nodes. Left out, none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseSpec(Spec):
    """What is particular about the failures of one cause."""

    name: Annotated[Text, Examples("device")]
    """A component of `rates`, a domain, or a cause in the log."""

    repair_time: Annotated[Period | None, Examples("8 h")] = None
    """Time until a node that it takes can be used again. Left out,
    `goodput.repair_time` [s]."""

    warm_share: Annotated[float, Ge(0), Le(1), Examples(0.8)] = 0.0
    """Share of its failures after which the job goes on in the processes that are
    there, if they take no node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSpec(Spec):
    """Nodes that are slow before they fail."""

    share: Annotated[float, Ge(0), Le(1), Examples(0.1)]
    """Share of the failures of single nodes and their devices."""

    time: Annotated[Period, Examples("6 h")]
    """Time for which a node is slow before it fails [s]."""

    speed: Annotated[float, Ge(0.01), Le(1), Examples(0.7)]
    """Throughput of the job meanwhile, over that without a slow node."""

    detection_time: Annotated[Seconds | None, Examples("30 min")] = None
    """Time until it is noticed. Then the job saves a checkpoint and goes on without the
    node, which does not get to fail. Left out, never [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSpec(Spec):
    """Stops that are planned: the job saves a checkpoint before them."""

    every: Annotated[Period, Examples("27 h")]
    """Time from one planned stop to the next [s]."""

    time: Annotated[Seconds, Examples(default="0 s")] = 0.0
    """Length of a stop, without the restart behind it [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputSpec(Spec):
    """What `nestsim goodput` asks: how parts fail, and what the job does about it."""

    failures: Annotated[
        Annotated[str, NameChoice((*PUBLISHED, NO_PUBLICATION))], Examples("meta-rsc1")
    ] = "llama3"
    """Publication whose rates hold for components that `rates` does not name: "llama3"
    (54 days on 16,384 H100), "meta-rsc1" (a research cluster of A100), or "none"."""

    rates: Annotated[
        FailureRates, Examples({"device": {"mtbf": "3300 d"}}, default=None)
    ] = field(default_factory=FailureRates)
    """Rates of components, in place of published ones."""

    domains: Annotated[
        tuple[FailureDomain, ...],
        Listed(1, MOST_DOMAINS),
        Examples([{"name": "rack power", "nodes": 4, "mtbf": "5000 d"}], default=None),
    ] = ()
    """What takes several nodes out at once, beside what else fails. The job's nodes are
    whole domains, one after another."""

    trace: Annotated[Text | None, Examples("failures.csv")] = None
    """Log of your cluster's own failures in place of published ones, relative to the
    scenario's folder: CSV with the columns time ("12.5 h", or dates), node (empty where
    the whole job failed) and cause, and perhaps replaced ("no" where the node stayed).
    They come as they were, until the log ends."""

    trace_time: Annotated[Period | None, Examples("54 d")] = None
    """How long the log was kept. Left out, until its last failure [s]."""

    trace_nodes: Annotated[Annotated[int, Ge(1)] | None, Examples(2048)] = None
    """Nodes that it is of. Left out, as many as the job has."""

    fit_trace: bool = False
    """Whether failures come at random, at the rates that fit the log cause by cause:
    constant, or Weibull's where that is so much likelier that chance would give it in
    one of 20 logs."""

    duration: Annotated[Period, Examples(default="365 d")] = 365.0 * DAY
    """How long the job runs [s]."""

    seeds: Annotated[int, Ge(1), Le(MOST_SEEDS), Examples(1000)] = 200
    """Runs with random failures, each of them with a seed of its own."""

    seed: Seed = 0
    """Seed of the first run; the next one has the next."""

    step_time: Annotated[Duration | None, Examples("6.6 s")] = None
    """Time of a step when nothing fails. Left out, that of the plan in [plan] in the
    replay, or of the plan that `nestsim run` finds [s]."""

    checkpoint: Annotated[CheckpointSpec, Examples(default={})] = field(
        default_factory=CheckpointSpec
    )
    """What checkpoints are, how often they are written, and how fast."""

    detection_time: Annotated[Seconds, Examples(default="60 s")] = 60.0
    """Time from a failure until the job is stopped [s]."""

    diagnosis_time: Annotated[Seconds, Examples(default="5 min")] = DIAGNOSIS
    """Time from there until it is known what failed, and what to leave out [s]."""

    hang_share: Annotated[Annotated[float, Ge(0), Le(1)] | None, Examples(0.02)] = None
    """Share of the failures that make the job hang until `hang_timeout`. Left out, as
    published, and 0 where nothing is."""

    hang_timeout: Annotated[Seconds, Examples(default="600 s")] = 600.0
    """Time from such a failure until the job is stopped; by default PyTorch's time
    limit for NCCL's operations [s]."""

    restart_time: Annotated[Seconds, Examples(default="300 s")] = 300.0
    """Time from the diagnosis, or from the end of a planned stop, until training goes
    on, if there are enough nodes: rescheduling, start. Reading the checkpoint comes on
    top [s]."""

    hot_restart_time: Annotated[Seconds | None, Examples("1 min")] = None
    """The same where nodes are replaced by spare ones whose processes are ready, and no
    repair has to be waited for. Left out, as `restart_time` [s]."""

    warm_restart_time: Annotated[Seconds, Examples("20 s", default="1 min")] = (
        WARM_RESTART
    )
    """Time of a restart in the processes that are there, after failures of which
    `causes` has a `warm_share`; nothing is diagnosed before [s]."""

    causes: Annotated[
        tuple[CauseSpec, ...],
        Listed(1, MOST_DOMAINS),
        Examples([{"name": "software", "warm_share": 0.8}], default=None),
    ] = ()
    """What is particular about causes of failures."""

    slow: Annotated[
        SlowSpec | None, Examples({"share": 0.1, "time": "6 h", "speed": 0.7})
    ] = None
    """Nodes that are slow before they fail. Left out, none."""

    repair_time: Annotated[Period, Examples(default="24 h")] = DAY
    """Time until a broken node can be used again, as a spare one [s]."""

    spares: Annotated[Annotated[int, Ge(0), Le(MOST_SPARES)] | None, Examples(16)] = (
        None
    )
    """Spare nodes beside those of the job. Left out, there is always one."""

    elastic: Annotated[str, NameChoice(ELASTIC)] = "off"
    """What a job does that has too few nodes: "off" waits for a repair; otherwise it
    goes on without the replicas that lack nodes, with a "smaller-batch", or with the
    "same-batch" by more microbatches of the others. They come back at the next restart,
    or at a checkpoint if that is worth a restart."""

    maintenance: Annotated[MaintenanceSpec | None, Examples({"every": "27 h"})] = None
    """Planned stops. Left out, none."""
