"""From a job to plans, and from a plan to what it reaches.

A planner's plans are found, the best of them in the replay first; a plan is priced,
lowered to a step of the simulator, replayed, judged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from estimators.layers.adapters import with_adapters
from estimators.layers.packing import drawn_documents, drawn_pictures
from estimators.layers.work import model_flops_per_sequence
from nestsim.evaluate.cluster import (
    build_job,
    device_fleet,
    priced_cluster,
)
from nestsim.evaluate.cost import ClusterCost
from nestsim.evaluate.ramp import ramp_up
from nestsim.evaluate.results import Candidate, Throughput
from nestsim.evaluate.uncertainty import MemoryBand, room_band
from nestsim.evaluate.verdict import DeviceMemory, Gap, Verdict, explain_gap, judge
from nestsim.lowering.collectives import KeptPhases
from nestsim.lowering.lockstep import lockstep_transfers
from nestsim.lowering.lower import lower_plan
from nestsim.scenario.load import Scenario
from nestsim.scenario.simulation import SimulationSpec
from nestsim.simulator.frames import Frames
from nestsim.simulator.jittered import jittered_times
from nestsim.simulator.noise import Jitter
from nestsim.simulator.packed import PackedWork
from nestsim.simulator.replay import (
    confirmed_run,
    replay,
    replayed_time,
    report_forecast,
)
from nestsim.simulator.system import Replay
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.explain.infeasibility import explain_infeasibility
from planner.rivals.protocol import Planner, PlannerOutcome, PlannerSettings, fits
from planner.search.launchable import BrokenRule, broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.search.replayed.replays import Replays, no_transfers
from planner.search.replayed.trail import ProofTrail
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.step.memory import stage_rooms
from planner.step.plan import Plan
from planner.work import Progress, Work
from topologies.arrays import FloatArray
from topologies.circuits import OpticalSpec
from topologies.errors import InputError
from topologies.keeping import Keeper
from topologies.link_events import LinkEvent
from topologies.network import Network


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluator:
    """Finds, prices, lowers, replays and judges plans of one job on one network.

    The one way from a plan to what it reaches: every job takes it.
    """

    network: Network
    """Network of the cluster."""

    workload: Workload
    """Model, job and device."""

    search: SearchSpec = field(default_factory=SearchSpec)
    """What the planner may try, and what it holds plans to."""

    simulation: SimulationSpec = field(default_factory=SimulationSpec)
    """How plans are replayed and judged."""

    cost: ClusterCost | None = None
    """What the cluster costs; None where nobody says or asks."""

    memory_band: MemoryBand | None = None
    """How far off what plans need of memory may be; None for exact."""

    trail: ProofTrail | None = None
    """What a search fills for a certificate; None where nobody asks for one."""

    _frames: Frames = field(init=False)
    """What steps have in common that were replayed for their times alone."""

    _phases: KeptPhases = field(init=False)
    """Phases of collectives of their ends."""

    _lowered: Keeper[int, tuple[PricedPlan, PipelineWork]] = field(init=False)
    """The steps that were lowered last with all that there is to say of them, by the
    identity of their plans."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_frames", Frames(self.network))
        object.__setattr__(self, "_phases", KeptPhases(self.network))
        lowered = Keeper[int, tuple[PricedPlan, PipelineWork]](
            lambda *_: 1, self.search.keep_best
        )
        object.__setattr__(self, "_lowered", lowered)

    @classmethod
    def of(cls, scenario: Scenario, progress: Progress | None = None) -> "Evaluator":
        """Build the network of a scenario, and trace its model.

        Raises
        ------
        InputError
            If parts of the scenario do not go together.
        """
        cost = priced_cluster(scenario)
        return replace(cls.on(scenario, *build_job(scenario, progress)), cost=cost)

    @classmethod
    def on(
        cls, scenario: Scenario, network: Network, workload: Workload
    ) -> "Evaluator":
        """Return the evaluator of a scenario whose network and workload are there.

        The workload is that of the scenario's devices, slow ones included.
        """
        return cls(
            network=network,
            workload=workload.on(device_fleet(scenario, network.num_devices)),
            search=scenario.search,
            simulation=scenario.simulation,
            memory_band=room_band(
                scenario.software_preset, workload.software, workload.constants
            ),
        )

    def price(self, plan: Plan) -> PricedPlan:
        """Return a plan with its planned times and memory."""
        return price_plan(self.network, self.workload, plan)

    def planned(self, priced: PricedPlan) -> Throughput:
        """Return what a plan promises."""
        peak = max(stage.peak_memory for stage in priced.stages)
        return _throughput(self.network, self.workload, priced.iteration_time, peak)

    def lower(self, priced: PricedPlan, *, memory: bool = True) -> PipelineWork:
        """Return one step of a plan as the simulator takes it."""
        if memory:
            # The plan is kept as well, so that no other one has its identity.
            return self._lowered.get(
                id(priced), lambda: (priced, self._lower(priced, memory=True))
            )[1]
        return self._lower(priced, memory=False)

    def _lower(self, priced: PricedPlan, *, memory: bool) -> PipelineWork:
        return lower_plan(
            self.network,
            self.workload,
            priced,
            self.simulation,
            memory=memory,
            known=self._phases,
        )

    def replay(
        self,
        work: PipelineWork,
        *,
        memory: bool = True,
        every_actor: bool = False,
        confirm: bool = False,
        progress: Progress | None = None,
    ) -> Replay:
        """Run one step over the links of the network.

        A long replay says before it starts about how long it will take.
        """
        return replay(
            self.network,
            work,
            self.simulation,
            memory=memory,
            every_actor=every_actor,
            confirm=confirm,
            progress=progress,
        )

    def replayed_time(self, priced: PricedPlan, cutoff: float = math.inf) -> float:
        """Return the replayed iteration time of a plan [s].

        Infinite if the step has too many passes to be replayed; from the cutoff on any
        longer time may stand for it.
        """
        try:
            work = lower_plan(
                self.network,
                self.workload,
                priced,
                self.simulation,
                memory=False,
                notes=False,
                known=self._phases,
            )
        except InputError:
            return math.inf
        settings, frames = self.simulation, self._frames
        return replayed_time(self.network, work, settings, cutoff=cutoff, frames=frames)

    def jittered_times(
        self, priced: PricedPlan, jitter: Jitter, runs: Sequence[int]
    ) -> FloatArray:
        """Return the replayed iteration time of a plan in each of some runs [s]."""
        work = self.lower(priced, memory=False)
        packed = self.packed(priced, jitter)
        return jittered_times(self.network, work, self.simulation, jitter, runs, packed)

    def packed(self, priced: PricedPlan, jitter: Jitter) -> PackedWork | None:
        """Return what a plan's step is with documents or pictures that are drawn.

        None where neither is.

        Raises
        ------
        InputError
            If sequences are whole documents, or have as many pictures each.
        """
        if not jitter.draws_sequences:
            return None
        workload = self.workload
        if jitter.documents:
            graph, sequences = drawn_documents(workload.graph)
        else:
            graph, sequences = drawn_pictures(workload.graph)
            graph = with_adapters(graph, workload.training)
        whole = replace(self, workload=replace(workload, graph=graph))
        return PackedWork(
            whole=whole.lower(whole.price(priced.plan), memory=False),
            sequences=sequences,
            per_microbatch=priced.plan.micro_batch_size,
        )

    def judge(
        self, priced: PricedPlan, done: Replay, rank: int, gap: Gap | None = None
    ) -> Verdict:
        """Compare a plan with its replay; ``rank`` is 0 for a plan that was given.

        A plan that this replay chose promises the replayed time itself.
        """
        by_replay = rank > 0 and self.search.objective == "replayed"
        return judge(
            self.network,
            priced,
            done,
            tolerance=None if by_replay else self.simulation.tolerance,
            memory=DeviceMemory(
                stage_rooms(self.workload, priced.plan, self.search.memory_reserve),
                self.memory_band,
            ),
            gap=gap,
        )

    def evaluate(
        self,
        priced: PricedPlan,
        rank: int,
        progress: Progress | None = None,
        *,
        confirm: bool = False,
    ) -> Candidate:
        """Replay a plan and judge it; ``rank`` is 0 for a plan that was given."""
        done = self.replay(self.lower(priced), confirm=confirm, progress=progress)
        peak = max(timeline.peak for timeline in done.memory)
        return Candidate(
            rank=rank,
            priced=priced,
            planned=self.planned(priced),
            replay=done,
            simulated=_throughput(
                self.network, self.workload, done.iteration_time, peak
            ),
            verdict=self.judge(priced, done, rank),
            broken_rules=self.launch_breaches(priced.plan),
        )

    def explain(
        self,
        candidate: Candidate,
        progress: Progress | None = None,
        *,
        is_confirmed: bool = False,
    ) -> Candidate:
        """Look closer at the plan that is reported: by more runs of its step.

        SimPy has the last word on it (`nestsim.simulator.replay.confirmed_run`), unless
        it had that already. The gap is split by level of the network; where the trace
        shows all devices, the replay records all of them.
        """
        work, settings = self.lower(candidate.priced), self.simulation
        progress_of(progress, "replay: explain the reported plan")
        every_actor, done = settings.trace == "all", candidate.replay
        if every_actor or not is_confirmed:
            done = self.replay(work, every_actor=every_actor, confirm=True)
        known = candidate.replay.iteration_time
        assert done.iteration_time == known, f"{done.engine}: not {known!r} s"
        gap = explain_gap(self.network, candidate.priced, done, work, settings)
        verdict = self.judge(candidate.priced, done, candidate.rank, gap)
        return replace(candidate, replay=done, verdict=verdict)

    def confirm(
        self, candidate: Candidate, progress: Progress | None = None
    ) -> Candidate:
        """Let SimPy's engine replay a plan that has been evaluated."""
        known = candidate.replay
        assert known.system is not None, "a replay was made by somebody else"
        if progress is not None:
            report_forecast(known.system, self.simulation, progress)
        run, engine = confirmed_run(known.system, self.simulation)
        assert run.end == known.iteration_time, f"{engine}: not {run.end!r} s"
        return replace(candidate, replay=replace(known, engine=engine))

    def with_ramp(self, candidate: Candidate) -> Candidate:
        """Return a plan with what batches cost that grow, where they do."""

        def replayed(plan: Plan) -> float:
            try:
                return self.replayed_time(self.price(plan))
            except InputError:  # the schedule has no so few microbatches
                return math.inf

        time = candidate.simulated.iteration_time
        ramp = ramp_up(self.workload, candidate.priced.plan, time, replayed)
        return replace(candidate, ramp=ramp)

    def with_link_events(
        self, candidate: Candidate, events: Sequence[LinkEvent]
    ) -> Candidate:
        """Return a plan with its step in which links fail or slow down, if any do."""
        if not events:
            return candidate
        from nestsim.simulator.changing import replay_changing  # needs SimPy

        work = self.lower(candidate.priced, memory=False)
        plain = candidate.replay.iteration_time
        changed = replay_changing(self.network, work, events, plain)
        return replace(candidate, changed=changed)

    def with_circuits(
        self, candidate: Candidate, optical: OpticalSpec | None
    ) -> Candidate:
        """Return a plan with its step over optical switches, if there are any."""
        if optical is None:
            return candidate
        from nestsim.simulator.circuits import replay_circuits  # needs SimPy

        work = self.lower(candidate.priced, memory=False)
        plain = candidate.replay.iteration_time
        circuits = replay_circuits(self.network, work, optical, plain)
        return replace(candidate, circuits=circuits)

    def launch_breaches(self, plan: Plan) -> tuple[BrokenRule, ...]:
        """Return the rules of the framework that a plan breaks."""
        search = self.search
        if search.rules is None:
            return ()
        idle = search.idle_devices
        facts = LaunchFacts.of(self.workload, self.network, idle_devices=idle)
        return broken_rules(plan, search.rules, facts)

    @property
    def replays(self) -> Replays:
        """How a search for the fastest replay judges plans."""
        by_layer = self.simulation.granularity == "layer"
        return Replays(
            judge=self.replayed_time,
            by_layer=by_layer,
            transfers=no_transfers if by_layer else self._transfers,
            ordinary=self._ordinary_plans,
            trail=self.trail,
        )

    def _transfers(self, plan: Plan) -> FloatArray | None:
        return lockstep_transfers(self._phases, self.workload, plan)

    def find(
        self,
        planner: str | Planner,
        settings: PlannerSettings,
        *,
        starts: Sequence[Plan] = (),
        simplest_within: float = 0.0,
        progress: Progress | None = None,
    ) -> PlannerOutcome:
        """Return the plans of a planner, best first.

        By their replays if that is the scenario's objective: a planner that does not
        look at replays is taken by the best replayed one of the plans that it proposes.

        Parameters
        ----------
        planner
            A name of `planner.rivals.PLANNERS`, or another planner.
        settings
            Seeds, budgets and the like.
        starts
            Plans to choose from beside those that the planner proposes.
        simplest_within
            How much slower than the best, relative, a simpler plan may be that a search
            for the fastest replay looks for; 0 to look for none.
        progress
            Called with every step.

        Raises
        ------
        InputError
            If the planner refuses the space, or the plan that it is given.
        """
        from planner.rivals import PLANNERS

        spec = self.search
        if spec.objective == "replayed":
            replays = replace(
                self.replays, starts=tuple(starts), simplest_within=simplest_within
            )
            settings = replace(settings, replays=replays)
        try:
            known = PLANNERS[planner] if isinstance(planner, str) else planner
            outcome = known.find(
                self.network, self.workload, spec, settings, progress=progress
            )
        except InputError as error:
            raise (error.at("search") if error.where == "planner" else error) from None
        if planner == "nest" and not (outcome.plans or outcome.spent.is_stopped):
            why_not = explain_infeasibility(
                self.network, self.workload, spec, outcome.why_not, progress=progress
            )
            return replace(outcome, why_not=why_not)
        if spec.objective == "planned":
            return outcome
        if planner == "nest":
            return self._with_price_of_rules(outcome)
        plans = [*outcome.plans, *self._priced(starts if outcome.plans else ())]
        times = [self.replayed_time(priced) for priced in plans]
        order = sorted(range(len(times)), key=times.__getitem__)
        return self._with_price_of_rules(
            replace(
                outcome,
                plans=tuple(plans[index] for index in order),
                replayed_times=tuple(times[index] for index in order),
            )
        )

    def _with_price_of_rules(self, outcome: PlannerOutcome) -> PlannerOutcome:
        """Say how fast a planner's plans are within the framework's rules and without.

        Without them only where it had any such plan.
        """
        times = outcome.replayed_times
        within = [outcome.launchable_time] * math.isfinite(outcome.launchable_time)
        free = [self.replayed_time(priced) for priced in self._priced(outcome.refused)]
        for priced, time in zip(outcome.plans, times, strict=True):
            if not self.launch_breaches(priced.plan):
                within.append(time)
            elif self.search.keeps_rules:
                free.append(time)
        if not self.search.keeps_rules:
            free += times
        return replace(
            outcome,
            launchable_time=min(within, default=math.nan),
            free_time=min(free, default=math.nan),
        )

    def _priced(self, plans: Sequence[Plan]) -> list[PricedPlan]:
        """Price plans that fit in memory."""
        return [
            self.price(plan)
            for plan in plans
            if fits(self.workload, self.search, plan, self.network.host)
        ]

    def _ordinary_plans(self) -> Sequence[PricedPlan]:
        """Return what a competent user would try."""
        from planner.rivals.manual import propose

        spec = self.search
        try:
            proposed = propose(self.network, self.workload, spec, Work())
        except InputError:
            return ()
        return proposed.plans[: spec.keep_best]


def _throughput(
    network: Network, workload: Workload, iteration_time: float, peak_memory: float
) -> Throughput:
    sequences = workload.training.global_batch_size
    tokens = sequences * workload.graph.spec.sequence_length / iteration_time
    flops = sequences * model_flops_per_sequence(workload.graph) / iteration_time
    causal = sequences * model_flops_per_sequence(workload.graph, counts_masked=False)
    per_device = flops / network.num_devices
    peak = workload.mean_peak_flops
    return Throughput(
        iteration_time=iteration_time,
        tokens_per_second=tokens,
        tokens_per_second_per_device=tokens / network.num_devices,
        flops_per_device=per_device,
        mfu=per_device / peak,
        mfu_causal=causal / iteration_time / network.num_devices / peak,
        peak_memory=peak_memory,
    )


def progress_of(
    progress: Progress | None, doing: str, share: float | None = None
) -> Progress | None:
    """Say what is being done, and return what takes details of it."""
    if progress is None:
        return None
    progress(doing, share)
    return lambda detail, _: progress(f"{doing}: {detail}", share)
