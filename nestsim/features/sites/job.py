"""From a scenario to what sites far apart train together.

The inner step is that of the plan in the table [plan] in the replay, or of the plan
that ``nestsim run`` reports: of one site, with the scenario's cluster and batch. The
outer gradient lies in equal parts on the devices of a site, which send at once and
share the uplink; each device's outer optimizer works on its part.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from estimators.layers.adapters import adapted_parts
from nestsim.document.wording import DAY, plan_label
from nestsim.evaluate.cluster import build_job
from nestsim.evaluate.job import run_job, simulate_job
from nestsim.evaluate.results import Candidate
from nestsim.features.sites.closed_form import OuterLoop
from nestsim.features.sites.replay import RoundReplay, replay_rounds
from nestsim.scenario.errors import asked
from nestsim.scenario.load import Scenario
from nestsim.scenario.sites import SitesSpec
from planner.step.execution import Workload
from planner.work import Progress, Spent
from topologies.accelerators import Host
from topologies.errors import short_repr

SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of the time in inner steps for which the least bandwidth is told: those of
Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, table 4."""

LAYERS_OF_FRAGMENT = 3
"""Layers of a fragment where nobody says; those of the same paper."""

WIDE = 4
"""Bytes of a value of the outer optimizer's state, which is kept in fp32."""

LATENCIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Latencies of the curve [s]."""

DOUBLINGS = 5
"""The curve goes so many doublings of the scenario's bandwidth down, and up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterState:
    """What the outer optimizer keeps and does on each device."""

    copy: float
    """Parameters at the last synchronisation [byte]."""

    momentum: float
    """Nesterov's momentum [byte]."""

    gradient: float
    """Sum of a fragment's outer gradients, from its synchronisation on [byte]."""

    resident: float
    """What of them is on the device beside inner steps [byte]."""

    at_once: float
    """What of them is there while the outer optimizer works [byte]."""

    time: float
    """Outer optimizer of all parameters, with transfers to and from the host [s]."""


class Way(NamedTuple):
    """One way to train on all sites."""

    name: str
    """What people call it."""

    loop: OuterLoop
    """What the sites do."""

    is_given: bool
    """Whether it is the scenario's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesFindings:
    """What was found."""

    spec: SitesSpec
    """The table [sites]."""

    plan: str
    """Plan of each site, in short."""

    step_time: float
    """Inner step [s]."""

    is_measured: bool
    """Whether the scenario says how long it takes."""

    tokens: float
    """Tokens of an inner step of one site."""

    num_parameters: float
    """Parameters that are trained."""

    state: OuterState
    """The outer optimizer."""

    room: float
    """Memory of a device that the inner step leaves free [byte]."""

    ways: tuple[Way, ...]
    """Ways to train on all sites; one of them is the scenario's."""

    replayed: RoundReplay
    """The scenario's own way in the replay."""

    __repr__ = short_repr

    @property
    def given(self) -> Way:
        """The scenario's own way."""
        return next(way for way in self.ways if way.is_given)

    @property
    def alone_per_day(self) -> float:
        """Tokens a day of one site that trains alone."""
        return self.tokens / self.step_time * DAY

    def tokens_per_day(self, way: Way, rate: float | None = None) -> float:
        """Return the tokens a day of all sites.

        Parameters
        ----------
        way
            How they train.
        rate
            What an uplink carries; None for the table's [byte/s].
        """
        carried = self.spec.rate() if rate is None else rate
        steps = way.loop.step_rate(carried) * DAY
        return self.spec.count * self.tokens * steps

    def bandwidths(self) -> tuple[float, ...]:
        """Return the bandwidths of the curve, of the slowest uplink [byte/s]."""
        powers = range(-DOUBLINGS, DOUBLINGS + 1)
        return tuple(self.spec.slowest * 2.0**power for power in powers)

    def over_bandwidth(self, way: Way) -> tuple[float, ...]:
        """Return the tokens a day at each of `bandwidths`."""
        rates = (self.spec.rate(bandwidth=uplink) for uplink in self.bandwidths())
        return tuple(self.tokens_per_day(way, rate) for rate in rates)

    def latencies(self) -> tuple[float, ...]:
        """Return the latencies of the curve, the table's among them [s]."""
        return tuple(sorted({*LATENCIES, self.spec.latency} - {0.0}))

    def over_latency(self, way: Way) -> tuple[float, ...]:
        """Return the tokens a day at each of `latencies`."""
        farther = [
            (way._replace(loop=replace(way.loop, latency=latency)), latency)
            for latency in self.latencies()
        ]
        return tuple(
            self.tokens_per_day(there, self.spec.rate(latency=latency))
            for there, latency in farther
        )

    def least_bandwidth(self, way: Way, share: float) -> float:
        """Return the uplink that leaves so much of the time to inner steps [byte/s].

        As large as it is with others on it; infinite where no uplink is enough.
        """
        return way.loop.least_rate(share) / self.spec.share


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesResult:
    """Everything that was found; without a plan only why there is none."""

    scenario_name: str
    """What the user calls the scenario."""

    num_devices: int
    """Devices of a site."""

    device_name: str
    """Their name, or those of all groups."""

    shortfall: str = ""
    """Why there is no plan; empty if there is one."""

    spent: Spent | None = None
    """The work of a search; None without one."""

    findings: SitesFindings | None = None
    """What was found; None without a plan."""

    __repr__ = short_repr


def sites_job(scenario: Scenario, *, progress: Progress | None = None) -> SitesResult:
    """Find what the sites of a scenario train together.

    Raises
    ------
    InputError
        If there is no table [sites], or parts of the scenario do not go together.
    """
    spec = asked(
        scenario.sites,
        "sites",
        "there are no sites",
        'a table [sites], e.g. count = 2, bandwidth = "10 Gbit/s", latency = "30 ms"',
    )
    network, workload = build_job(scenario, progress)
    replayed = (run_job if scenario.plan is None else simulate_job)(
        scenario, progress=progress
    )
    result = SitesResult(
        scenario_name=scenario.name,
        num_devices=network.num_devices,
        device_name=scenario.device_names,
        spent=replayed.spent,
    )
    if not replayed.candidates:
        return replace(result, shortfall=replayed.shortfall)
    candidate = replayed.candidates[replayed.chosen or 0]
    if progress is not None:
        progress("replay: the sites", None)
    findings = find(spec, workload, scenario.host, candidate, replayed.usable_memory)
    return replace(result, findings=findings)


def find(
    spec: SitesSpec,
    workload: Workload,
    host: Host,
    candidate: Candidate,
    usable_memory: float,
) -> SitesFindings:
    """Return what sites train with a plan that has been replayed."""
    graph, training = workload.graph, workload.training
    trained = float(graph.num_parameters)
    if training.adapter != "none":
        trained *= adapted_parts(graph).adapters
    plan = candidate.priced.plan
    state = outer_state(spec, workload, host, trained / plan.devices_used)
    step_time = spec.step_time or candidate.simulated.iteration_time
    hidden = min(_last_backward(workload, candidate), step_time)
    apart = OuterLoop(
        num_sites=spec.count,
        step_time=step_time,
        num_bytes=trained,
        latency=spec.latency,
        optimizer_time=state.time,
    )
    together = replace(
        apart,
        num_bytes=trained * workload.parameter_bytes.reduce,
        optimizer_time=0.0,
        hidden=hidden,
    )
    most = max(2, graph.spec.num_layers // LAYERS_OF_FRAGMENT)
    ways = (
        Way("synchronous", together, spec.synchronous),
        *_apart(spec, apart, most),
    )
    given = next(way for way in ways if way.is_given)
    return SitesFindings(
        spec=spec,
        plan=plan_label(plan),
        step_time=step_time,
        is_measured=spec.step_time is not None,
        tokens=float(training.global_batch_size * graph.spec.sequence_length),
        num_parameters=trained,
        state=state,
        room=usable_memory - candidate.simulated.peak_memory,
        ways=ways,
        replayed=replay_rounds(given.loop, spec.rates()),
    )


def outer_state(
    spec: SitesSpec, workload: Workload, host: Host, parameters: float
) -> OuterState:
    """Return what the outer optimizer keeps and does for some parameters of a device.

    The state is read and written once, as are the inner weights; the sum of the outer
    gradients is read. A host's share goes over its link, there and back.
    """
    momenta = int(spec.outer_optimizer == "nesterov")
    moved = WIDE + (1 + momenta) * 2 * WIDE + workload.parameter_bytes.weights
    time = parameters * moved / workload.memory_rate()
    copy = parameters * WIDE
    momentum = momenta * copy
    kept = at_once = copy + momentum
    gradient = copy / spec.fragments
    if spec.offload:
        kept, at_once = 0.0, at_once / spec.fragments
        shared = host.devices_per_link * (copy + momentum)
        time += shared / host.to_device + shared / host.to_host
    return OuterState(
        copy=copy,
        momentum=momentum,
        gradient=gradient,
        resident=kept + gradient * bool(spec.delay),
        at_once=at_once + gradient,
        time=time,
    )


def _apart(spec: SitesSpec, bytewise: OuterLoop, most: int) -> Iterator[Way]:
    """Yield the ways to train apart, the scenario's among them.

    Parameters
    ----------
    spec
        The table [sites].
    bytewise
        All parameters at once after each step, in 8 bits.
    most
        Fragments where the table has one.
    """
    apart = replace(spec, synchronous=False)

    def outer(name: str, fragments: int, delay: int) -> Way:
        other = replace(apart, fragments=fragments, delay=delay)
        loop = replace(
            bytewise,
            num_bytes=bytewise.num_bytes * other.compression / 8,
            sync_every=other.sync_every,
            fragments=other.fragments,
            delay=other.delay,
        )
        return Way(name, loop, other == spec)

    nesterov = spec.outer_optimizer == "nesterov"
    ways = [outer("DiLoCo" if nesterov else "local SGD", 1, 0)]
    parts = spec.fragments if spec.fragments > 1 else apart.most_fragments(most)
    if parts > 1:
        ways.append(outer("streaming", parts, 0))
        ways.append(outer("overlapped", parts, apart.delay or 1))
    if not (spec.synchronous or any(way.is_given for way in ways)):
        ways.append(outer("as given", apart.fragments, apart.delay))
    yield from ways


def _last_backward(workload: Workload, candidate: Candidate) -> float:
    """Return how much of a step's end can hide the gradients' way over sites [s].

    The last backward pass of a microbatch, where the software reduces behind it.
    """
    if not workload.execution.overlap_grad_reduce:
        return 0.0
    stages = candidate.priced.stages
    return min(stage.backward_time + stage.weight_gradient_time for stage in stages)
