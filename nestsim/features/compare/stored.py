"""What ``comparison.json`` holds, of planners or of networks."""

from collections.abc import Mapping
from typing import Annotated, Any

from nestsim.document.dumps import ABSENT, Of, Record
from nestsim.features.compare.results import BusyLink
from nestsim.features.run.result_record import ThroughputRecord


class PlannedRecord(ThroughputRecord):
    """What the common evaluator expects of a plan."""

    terms_s: Mapping[str, float]
    """Cause -> its part of the iteration time [s]."""


class EntryRecord(Record):
    """What one planner found."""

    planner: str
    """Name of the planner."""

    valid: bool
    """Whether there is a plan that the replay finds room for."""

    verdict: Annotated[str | None, Of("found.verdict")]
    """Verdict of the replay; None without a plan."""

    reason: str
    """Reason of the verdict, or why there is no plan."""

    plan: Annotated[Mapping[str, object] | None, Of("found.plan.to_json")]
    """The plan as JSON; None without one."""

    planned: Annotated[ThroughputRecord | None, Of("found.planned")]
    """What the common evaluator expects of the plan; None without one."""

    simulated: Annotated[ThroughputRecord | None, Of("found.simulated")]
    """What the plan reaches in the replay; None without one."""

    lower_bound_s: float | None
    """Time that no plan goes below; None where nothing is proven [s]."""

    work: Annotated[int, Of("spent.work")]
    """Work of the search [unit]."""

    stopped_by: Annotated[str | None, Of("spent.stopped_by")]
    """Limit that ended the search; None for none."""

    reproducible: Annotated[bool, Of("spent.is_reproducible")]
    """Whether the search finds the same in every run."""

    notes: tuple[str, ...]
    """What the planner says of what it found."""

    search_time_s: float | None = None
    """Time of the search; None where it is not told [s]."""

    cost: Mapping[str, Any] | None = None
    """What the plan costs; None without prices."""


class PlannerRecord(EntryRecord):
    """What one planner found for one scenario."""

    keys = (
        *("planner", "sees", "valid", "verdict", "reason", "plan", "broken_rules"),
        *("launchable_time_s", "free_time_s", "search_time_s", "evaluations", "work"),
        *("stopped_by", "reproducible", "lower_bound_s", "belief_s", "seeds_s"),
        *("notes", "planned", "simulated", "cost", "gap", "relative_throughput"),
        *("simulated_minus_belief_s", "longer_than_fastest_s"),
    )

    sees: str
    """What the planner sees of the network; empty if it never ran."""

    broken_rules: Annotated[tuple[str, ...], Of("found.broken_rules", ())]
    """Rules of the framework that the plan breaks."""

    launchable_time_s: float | None
    """Fastest replay of a plan that can be launched; None without one [s]."""

    free_time_s: float | None
    """Fastest replay of a plan that no rules hold; None without one [s]."""

    evaluations: int
    """Plans or parts of plans that were priced."""

    belief_s: float | None
    """Iteration time by the planner's own model; None without one [s]."""

    seeds_s: Annotated[tuple[float | None, ...], Of("spread")]
    """Best iteration time of each seed; None where a walk found nothing [s]."""

    planned: PlannedRecord | None
    """What the common evaluator expects of the plan; None without one."""

    gap: Mapping[str, object] | None
    """Simulated less planned time, by cause; None without a plan."""

    relative_throughput: Mapping[str, float | None]
    """``"planned"`` and ``"simulated"`` -> throughput relative to the base's."""

    simulated_minus_belief_s: Mapping[str, float] | None
    """Cause -> part of simulated less believed time; None without both [s]."""

    longer_than_fastest_s: Mapping[str, float] | None
    """Cause -> how much longer the plan takes than the fastest; None without [s]."""


class OnNetworkRecord(EntryRecord):
    """What one planner found on one network."""

    keys = (
        *("planner", "valid", "verdict", "reason", "plan", "simulated", "planned"),
        *("exposed_communication_s", "bubble_s", "hottest_link", "relative_speed"),
        *("tokens_per_s_per_port", "relative_per", "cost", "lower_bound_s"),
        *("optimality_gap", "work", "stopped_by", "reproducible", "notes"),
        *("search_time_s",),
    )

    exposed_communication_s: Annotated[float | None, Of("load.exposed")]
    """Communication that no compute hides; None where it is not known [s]."""

    bubble_s: Annotated[float | None, Of("load.bubble")]
    """Time that stages wait for each other; None where it is not known [s]."""

    hottest_link: Annotated[BusyLink | None, Of("load.busiest")]
    """The link that the plan uses most; None where it is not known."""

    relative_speed: float | None
    """Throughput relative to that of the base network; None where it is not known."""

    tokens_per_s_per_port: float | None
    """Throughput for each port outside of nodes; None without ports [token/s]."""

    relative_per: Mapping[str, float | None]
    """``"port"``, or a currency -> throughput for each, relative to the base's."""

    optimality_gap: Annotated[float | None, Of("gap")]
    """How far the plan is above the bound, relative to it; None without a bound."""


class GroupRecord(Record):
    """One scenario, and what each planner found for it."""

    scenario: str
    """Name of the scenario."""

    model: str
    """Model that is trained."""

    num_devices: int
    """Devices of the cluster."""

    device_memory_bytes: float
    """Memory of one device [byte]."""

    fastest: Annotated[str | None, Of("fastest.planner")]
    """Planner whose plan is fastest in the replay; None without any plan."""

    confirmed: bool
    """Whether the replay confirms the plan of some planner."""

    space: str
    """What planners are held to: ``"launchable"`` or ``"free"``."""

    launchability_price: float | None
    """Best launchable replay over the best free one; None without both."""

    entries: tuple[PlannerRecord, ...]
    """What each planner found."""

    sentences: tuple[str, ...]
    """What is to be said of the scenario."""


class ComparisonRecord(Record):
    """A comparison of planners."""

    headline: str
    """The answer."""

    planners: tuple[str, ...]
    """Names of the planners."""

    base: str
    """Planner whose throughput is 1."""

    groups: tuple[GroupRecord, ...]
    """One for each scenario."""


class TierRecord(Record):
    """One tier of a network."""

    name: str
    """Name of the tier."""

    inside_nodes: bool
    """Whether the tier is inside of nodes."""

    cables: int
    """Cables of the tier."""

    cable_bandwidth_bytes_per_s: float | None
    """Bandwidth of a cable; None where cables differ [byte/s]."""

    device_ports: int
    """Ports of devices that the cables are in."""

    switch_ports: int
    """Ports of switches that the cables are in."""

    switches: int
    """Switches of the tier."""

    ports_per_switch: int | None
    """Ports that each switch uses; None without switches."""


class PartsRecord(Record):
    """What a network is made of; ports are outside of nodes."""

    network: Annotated[str, Of("label")]
    """Name of the network."""

    file: str
    """Name of the file that the network is from."""

    kind: str
    """Kind of the network."""

    nic_ports: Annotated[int, Of("inventory.num_nic_ports")]
    """Ports of NICs."""

    switches: Annotated[int, Of("inventory.num_switches")]
    """Switches outside of nodes."""

    switch_ports: Annotated[int, Of("inventory.num_switch_ports")]
    """Ports of these switches."""

    ports: Annotated[int, Of("inventory.num_ports")]
    """Ports of NICs and switches."""

    cables: Annotated[int, Of("inventory.num_cables")]
    """Cables outside of nodes."""

    cable_bandwidth_bytes_per_s: Annotated[float | None, Of("inventory.bandwidth")]
    """Bandwidth of all cables [byte/s]."""

    bisection_bandwidth_bytes_per_s: Annotated[float, Of("bisection")]
    """Bisection bandwidth, one way [byte/s]."""

    oversubscription: float | None
    """Oversubscription; None of networks that are no trees."""

    network_capital: Annotated[float | None, Of("cost.network_capital", ABSENT)] = None
    """Price of the network; None where nobody says [currency]."""

    network_cost_per_s: Annotated[float | None, Of("cost.network_rate", ABSENT)] = None
    """Cost of the network; None where nobody says [currency/s]."""

    network_power_w: Annotated[float | None, Of("cost.network_power", ABSENT)] = None
    """Power of the network; None where nobody says [W]."""


class NetworkRecord(PartsRecord):
    """One network, and the best plan that each planner found on it."""

    bisection_rule: str
    """How the bisection was found."""

    tiers: Annotated[tuple[TierRecord, ...], Of("inventory.tiers")]
    """Tiers, from the inside out."""

    confirmed: bool
    """Whether the replay confirms the plan of some planner."""

    step_s: Mapping[str, float] | None
    """Part of the best plan's step -> its time; None without a plan [s]."""

    best: Annotated[str | None, Of("fastest.planner")]
    """Planner whose plan is fastest; None without any plan."""

    entries: tuple[OnNetworkRecord, ...]
    """What each planner found."""


class EqualityRecord(Record):
    """Whether networks are equal in something."""

    is_equal: bool
    """Whether they are."""

    spread: Mapping[str, float | None]
    """Number -> how far the largest is above the smallest; None where unknown."""

    in_words: str
    """How far apart they are, in a sentence."""


class NetworksRecord(Record):
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

    device_memory_bytes: float
    """Memory of one device, the least where devices differ [byte]."""

    planners: tuple[str, ...]
    """Names of the planners."""

    objective: str
    """What searches minimise."""

    work_limit: int | None
    """Limit of the work of a search; None for none [unit]."""

    base: Annotated[str, Of("base.label")]
    """Network whose throughput is 1."""

    fastest: Annotated[str | None, Of("fastest.label")]
    """Fastest network; None without any plan."""

    leaders: tuple[str, ...]
    """Fastest network and those that tie with it."""

    asked_equal: Annotated[str | None, Of("asked")]
    """What was asked to be equal; None for nothing."""

    equal_within: float
    """Relative difference up to which networks are equal in a number."""

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
