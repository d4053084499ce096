"""What documents read of ``comparison.json``, of planners or of networks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRecord:
    """What a plan reaches."""

    iteration_time_s: float
    """Time of an iteration [s]."""

    tokens_per_s: float
    """Throughput [token/s]."""

    mfu: float | None
    """Share of the devices' peak rate that the model's FLOPs need."""

    peak_memory_bytes: float
    """Most that a device holds [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """The link that a plan uses most."""

    name: str
    """Ends of the link."""

    utilisation: float
    """Share of what the link could have carried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecord:
    """What one planner found for one scenario, or on one network."""

    planner: str
    """Name of the planner."""

    valid: bool
    """Whether there is a plan that the replay finds room for."""

    verdict: str | None
    """Verdict of the replay; None without a plan."""

    reason: str
    """Reason of the verdict, or why there is no plan."""

    plan: Mapping[str, Any] | None
    """The plan as JSON; None without one."""

    simulated: ThroughputRecord | None
    """What the plan reaches in the replay; None without one."""

    planned: ThroughputRecord | None
    """What the common evaluator expects of the plan; None without one."""

    cost: Mapping[str, Any] | None = None
    """What the plan costs; None without prices."""

    search_time_s: float | None = None
    """Time of the search; None where it is not told [s]."""

    sees: str = ""
    """What the planner sees of the network."""

    belief_s: float | None = None
    """Iteration time by the planner's own model; None without one [s]."""

    relative_throughput: Mapping[str, float | None] = field(default_factory=dict)
    """``"planned"`` and ``"simulated"`` -> throughput relative to the base's."""

    exposed_communication_s: float | None = None
    """Communication that no compute hides; None where it is not known [s]."""

    hottest_link: LinkRecord | None = None
    """The link that the plan uses most; None where it is not known."""

    relative_speed: float | None = None
    """Throughput relative to that of the base network; None where it is not known."""

    relative_per: Mapping[str, float | None] = field(default_factory=dict)
    """``"port"``, or a currency -> throughput for each, relative to the base's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """One scenario, and what each planner found for it."""

    scenario: str
    """Name of the scenario."""

    model: str
    """Model that is trained."""

    num_devices: int
    """Devices of the cluster."""

    fastest: str | None
    """Planner whose plan is fastest in the replay; None without any plan."""

    confirmed: bool
    """Whether the replay confirms the plan of some planner."""

    entries: tuple[EntryRecord, ...]
    """What each planner found."""

    sentences: tuple[str, ...]
    """What is to be said of the scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord:
    """A comparison of planners."""

    headline: str
    """The answer."""

    planners: tuple[str, ...]
    """Names of the planners."""

    base: str
    """Planner whose throughput is 1."""

    groups: tuple[GroupRecord, ...]
    """One for each scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRecord:
    """One tier of a network."""

    name: str
    """Name of the tier."""

    inside_nodes: bool
    """Whether the tier is inside of nodes."""

    cables: int
    """Cables of the tier."""

    cable_bandwidth_bytes_per_s: float | None
    """Bandwidth of a cable; None where cables differ [byte/s]."""

    switch_ports: int
    """Ports of switches that the cables are in."""

    switches: int
    """Switches of the tier."""

    ports_per_switch: int | None
    """Ports that each switch uses; None without switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRecord:
    """One network, and the best plan that each planner found on it."""

    network: str
    """Name of the network."""

    kind: str
    """Kind of the network."""

    nic_ports: int
    """Ports of NICs."""

    switches: int
    """Switches outside of nodes."""

    switch_ports: int
    """Ports of these switches."""

    ports: int
    """Ports of NICs and switches."""

    cables: int
    """Cables outside of nodes."""

    cable_bandwidth_bytes_per_s: float | None
    """Bandwidth of all cables [byte/s]."""

    bisection_bandwidth_bytes_per_s: float
    """Bisection bandwidth, one way [byte/s]."""

    oversubscription: float | None
    """Oversubscription; None of networks that are no trees."""

    network_capital: float | None = None
    """Price of the network; None where nobody says [currency]."""

    network_cost_per_s: float | None = None
    """Cost of the network; None where nobody says [currency/s]."""

    network_power_w: float | None = None
    """Power of the network; None where nobody says [W]."""

    tiers: tuple[TierRecord, ...]
    """Tiers, from the inside out."""

    confirmed: bool
    """Whether the replay confirms the plan of some planner."""

    step_s: Mapping[str, float] | None
    """Part of the best plan's step -> its time; None without a plan [s]."""

    best: str | None
    """Planner whose plan is fastest; None without any plan."""

    entries: tuple[EntryRecord, ...]
    """What each planner found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualityRecord:
    """Whether networks are equal in something."""

    is_equal: bool
    """Whether they are."""

    in_words: str
    """How far apart they are, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworksRecord:
    """A comparison of networks."""

    headline: str
    """The answer."""

    scenario: str
    """Name of the scenario."""

    model: str
    """Model that is trained."""

    num_devices: int
    """Devices that each network joins."""

    device: str
    """Name of the device."""

    planners: tuple[str, ...]
    """Names of the planners."""

    base: str
    """Network whose throughput is 1."""

    fastest: str | None
    """Fastest network; None without any plan."""

    leaders: tuple[str, ...]
    """Fastest network and those that tie with it."""

    asked_equal: str | None
    """What was asked to be equal; None for nothing."""

    equal: Mapping[str, EqualityRecord]
    """What networks may be equal in -> whether they are."""

    networks: tuple[NetworkRecord, ...]
    """The networks, in the order of their files."""

    decisions: tuple[str, ...]
    """What decides, in sentences."""

    fairness: tuple[str, ...]
    """What is the same for all, and what is not, in sentences."""

    assumptions: tuple[str, ...]
    """What cost and power rest on, in sentences."""

    currency: str | None
    """Currency of all prices; None without."""
