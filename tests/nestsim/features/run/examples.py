"""Realistic results made by a plain-Python 1F1B timeline, for reports to show.

Stages along the pipeline on a spine-leaf network, messages that take a fixed time
per replica, ring collectives over the replicas. Small enough to be checked by eye;
the simulator has nothing to do with it.
"""

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from estimators.software import IDEAL
from estimators.training import ParallelismConfig, TrainingSpec
from nestsim.evaluate.results import (
    Assumptions,
    Candidate,
    JobResult,
    PlannedCandidate,
    PlanResult,
    ReplayedResult,
    Throughput,
)
from nestsim.evaluate.verdict import Gap, Verdict
from nestsim.simulator.system import (
    SPAN_KINDS,
    TRANSFER_KINDS,
    LinkUse,
    MemoryTimeline,
    Replay,
    Spans,
    Transfers,
)
from planner.cost.objective import PricedPlan, StageCost
from planner.step.execution import Execution
from planner.step.plan import Plan, Stage
from planner.work import WORK_LIMIT, Spent, stopped_sentence
from topologies import Network, SpineLeafSpec, build_network, load_accelerator

GIB = 2.0**30
MEMORY = 80 * GIB
USABLE = 72 * GIB
"""Of `MEMORY`, what tensors may take."""
SEQUENCE = 4096
PEAK_FLOPS = 989e12


def cluster(num_devices: int) -> Network:
    """Return nodes of eight devices, two below a leaf, oversubscribed 2:1 above."""
    num_nodes = -(-num_devices // 8)
    return build_network(
        SpineLeafSpec(
            devices_per_node=8,
            node_bandwidth=450e9,
            node_latency=1e-6,
            nodes_per_leaf=min(2, num_nodes),
            num_leaves=-(-num_nodes // 2),
            nic_bandwidth=50e9,
            nic_latency=2e-6,
            spine_latency=2e-6,
            num_spines=2,
            oversubscription=2.0,
        )
    )


@dataclass
class _Log:
    """What a run of the timeline writes down."""

    spans: list[tuple[float, ...]] = field(default_factory=list)
    """The columns of `Spans`."""
    transfers: list[tuple[float, ...]] = field(default_factory=list)
    """The columns of `Transfers`."""


def one_f_one_b(stage: int, p: int, m: int, v: int) -> list[tuple[str, int, int]]:
    """Return the instructions of one stage: PipeDream-Flush, or Megatron's interleaved.

    Kind, microbatch and chunk of each.
    """
    # Microbatches in groups of p, each group through one chunk after the other.
    group = min(p, m) if v > 1 else m
    turn = [
        (first + k, c)
        for first in range(0, m, group)
        for c in range(v)
        for k in range(group)
    ]
    ahead = [("forward", k, c) for k, c in turn]
    back = [("backward", k, v - 1 - c) for k, c in turn]
    warm_up = p - 1 - stage if v == 1 else 2 * (p - 1 - stage) + (v - 1) * p
    warm_up = min(warm_up, len(turn))
    order = ahead[:warm_up]
    for pair in zip(ahead[warm_up:], back, strict=False):
        order += pair
    return order + back[len(turn) - warm_up :]


def _pipeline(log: _Log, replica: int, shape: "Shape", hop: float) -> list[float]:
    """Run one replica's pipeline; return when each stage ends its last backward."""
    p, m, last = shape.p, shape.m, shape.p * shape.v - 1
    times = [virtual_times(shape, s) for s in range(last + 1)]
    todo = [one_f_one_b(stage, p, m, shape.v) for stage in range(p)]
    clock = [0.0] * p
    done = [0] * p
    channel: dict[tuple[int, str], float] = {}
    arrived = {(0, "forward", k): 0.0 for k in range(m)}
    arrived |= {(last, "backward", k): 0.0 for k in range(m)}
    progress = True
    while progress:
        progress = False
        for stage in range(p):
            while done[stage] < len(todo[stage]):
                kind, k, chunk = todo[stage][done[stage]]
                s = chunk * p + stage
                if (s, kind, k) not in arrived:
                    break
                start = max(clock[stage], arrived[s, kind, k])
                end = start + times[s][kind == "backward"]
                log.spans.append(
                    (stage, replica, SPAN_KINDS.index(kind), k, chunk, start, end)
                )
                clock[stage] = end
                done[stage] += 1
                progress = True
                step = 1 if kind == "forward" else -1
                if not 0 <= s + step <= last:
                    continue
                sent = max(end, channel.get((s, kind), 0.0))
                channel[s, kind] = sent + hop
                name = "activation" if kind == "forward" else "gradient"
                log.transfers.append(
                    (
                        TRANSFER_KINDS.index(name),
                        stage,
                        replica,
                        k,
                        chunk,
                        end,
                        sent,
                        sent + hop,
                        14e6,
                    )
                )
                arrived[s + step, kind, k] = sent + hop
    assert all(done[stage] == len(todo[stage]) for stage in range(p))
    return clock


def _finish(
    log: _Log, ends: list[list[float]], *, reduce: float, step: float, tied: float
) -> None:
    """Add each stage's gradient collective, optimizer step and parameter gather."""
    num_stages, num_replicas = len(ends[0]), len(ends)

    def collective(kind: str, stage: int, start: float, time: float) -> float:
        row = (TRANSFER_KINDS.index(kind), stage, -1, -1, -1, start, start)
        log.transfers.append((*row, start + time, 24e9 * time))
        return start + time

    ready = [max(row[stage] for row in ends) for stage in range(num_stages)]
    if num_replicas > 1:
        ready = [collective("reduce", s, t, reduce) for s, t in enumerate(ready)]
    if tied and num_stages > 1:
        both = collective("tied", 0, max(ready[0], ready[-1]), tied)
        ready[0] = ready[-1] = both
    for stage, start in enumerate(ready):
        for replica in range(num_replicas):
            kind = SPAN_KINDS.index("optimizer")
            log.spans.append((stage, replica, kind, -1, -1, start, start + step))
        if num_replicas > 1:
            collective("gather", stage, start + step, reduce / 2)


def _columns(rows: list[tuple[float, ...]], num_integers: int) -> list[np.ndarray]:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return [
        column.astype(np.int64 if i < num_integers else np.float64)
        for i, column in enumerate(columns)
    ]


def _memory(spans: Spans, stage: int, *, static: float, saved: float) -> MemoryTimeline:
    rows = (spans.stage == stage) & (spans.replica == 0) & (spans.microbatch >= 0)
    changes: dict[float, float] = {0.0: 0.0}
    for kind, start, end in zip(
        spans.kind[rows], spans.start[rows], spans.end[rows], strict=True
    ):
        working = saved / 4
        first = saved + working if kind == 0 else working
        last = working if kind == 0 else saved + working
        changes[float(start)] = changes.get(float(start), 0.0) + first
        changes[float(end)] = changes.get(float(end), 0.0) - last
    times = tuple(sorted(changes))
    total, held = [], static
    for time in times:
        held += changes[time]
        total.append(held)
    peak = max(total)
    return MemoryTimeline(
        times=times,
        total=tuple(total),
        peak=peak,
        peak_time=times[total.index(peak)],
        peak_parts={
            "weights": static / 9,
            "gradients": 2 * static / 9,
            "optimizer": 6 * static / 9,
            "buffers": 0.0,
            "activations": peak - static - saved / 4,
            "working": saved / 4,
        },
    )


def _link_use(
    transfers: Transfers, plan: Plan, network: Network, total: float, bins: int = 200
) -> LinkUse:
    edges = np.linspace(0.0, total, bins + 1)
    carried = np.zeros((len(network.links), bins))
    routed: dict[tuple[int, int, int], np.ndarray] = {}

    def links(kind: int, stage: int, replica: int) -> np.ndarray:
        key = (kind, stage, replica)
        if key not in routed:
            rows = [s.devices for s in plan.stages]
            name = TRANSFER_KINDS[kind]
            if name in ("activation", "gradient"):
                step = 1 if name == "activation" else -1
                other = rows[(stage + step) % len(rows)]
                pairs = zip(rows[stage][replica], other[replica], strict=True)
            elif name == "tied":
                pairs = zip(sum(rows[0], ()), sum(rows[-1], ()), strict=True)
            else:
                ring = rows[stage]
                pairs = (
                    (a, b)
                    for r in range(len(ring))
                    for a, b in zip(ring[r], ring[(r + 1) % len(ring)], strict=True)
                )
            ends = np.array(list(pairs))
            routed[key] = network.routes(ends[:, 0], ends[:, 1]).links
        return routed[key]

    for row in range(len(transfers.kind)):
        a, b = transfers.start[row], transfers.end[row]
        share = np.clip(np.minimum(edges[1:], b) - np.maximum(edges[:-1], a), 0, None)
        use = links(
            int(transfers.kind[row]),
            int(transfers.stage[row]),
            int(transfers.replica[row]),
        )
        np.add.at(carried, use, transfers.num_bytes[row] * share / (b - a))
    num_bytes = carried.sum(axis=1)
    used = np.flatnonzero(num_bytes > 0)
    return LinkUse(
        num_bytes=num_bytes,
        bin_edges=edges,
        rates=carried[used] / np.diff(edges),
        link_ids=used,
        row=rows_of(num_bytes),
    )


def rows_of(num_bytes: np.ndarray) -> np.ndarray:
    """Give each link that carried anything a row of its own."""
    used = num_bytes > 0
    return np.where(used, np.cumsum(used) - 1, -1)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of one example."""

    p: int = 4
    d: int = 2
    t: int = 8
    m: int = 8
    b: int = 1
    v: int = 1
    zero: int = 1
    recompute: str = "none"
    static: float = 30 * GIB
    hop: float = 0.6e-3
    reduce: float = 18e-3
    pace: float = 1.0


def layer_names(num_layers: int = 34) -> tuple[str, ...]:
    blocks = [f"block {i}" for i in range(num_layers - 2)]
    return ("embedding", *blocks, "head")


def make_plan(shape: Shape, num_layers: int = 34) -> Plan:
    num_virtual = shape.p * shape.v
    cuts = [round(i * num_layers / num_virtual) for i in range(num_virtual + 1)]
    devices = np.arange(shape.p * shape.d * shape.t)
    devices = devices.reshape(shape.p, shape.d, shape.t)
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=shape.t,
            pipeline_model_parallel_size=shape.p,
            data_parallel_size=shape.d,
            sequence_parallel=shape.t > 1,
        ),
        virtual_pipeline_model_parallel_size=shape.v,
        micro_batch_size=shape.b,
        num_microbatches=shape.m,
        schedule="1f1b" if shape.v == 1 else "interleaved-1f1b",
        placement=f"tp{shape.t} dp{shape.d} pp{shape.p}",
        gradient_algorithm="ring",
        tensor_algorithm="ring",
        stages=tuple(
            Stage(
                chunks=tuple(
                    (cuts[s], cuts[s + 1] - 1) for s in range(i, num_virtual, shape.p)
                ),
                devices=tuple(tuple(int(x) for x in row) for row in devices[i]),
                recompute=shape.recompute,
                zero_stage=shape.zero,
                sharding_group_size=shape.d if shape.zero else 1,
            )
            for i in range(shape.p)
        ),
    )


def virtual_times(shape: Shape, virtual: int) -> tuple[float, float]:
    """Return the forward and the backward time of a virtual stage."""
    num_virtual = shape.p * shape.v
    with_head = 1.08 if virtual == num_virtual - 1 else 1.0
    forward = shape.pace * 9.6e-3 * 4 / num_virtual * with_head
    again = 1.0 if shape.recompute == "full" else 0.0
    return forward, forward * (2.0 + again)


def make_replay(shape: Shape, plan: Plan, network: Network) -> Replay:
    log = _Log()
    ends = [
        _pipeline(log, r, shape, shape.hop * (1 + 0.1 * (r % 3)))
        for r in range(shape.d)
    ]
    pipeline_time = max(max(row) for row in ends)
    _finish(log, ends, reduce=shape.reduce, step=4e-3, tied=2.5e-3)
    log.spans.sort(key=lambda row: (row[5], row[:5]))
    log.transfers.sort(key=lambda row: (row[6], row[:5]))
    spans = Spans(*_columns(log.spans, 5))
    transfers = Transfers(*_columns(log.transfers or [(0,) * 9], 5))
    if not log.transfers:
        transfers = Transfers(*(column[:0] for column in transfers))
    total = float(max(spans.end.max(), transfers.end.max(initial=0.0)))
    return Replay(
        schedule=plan.schedule,
        iteration_time=total,
        pipeline_time=pipeline_time,
        spans=spans,
        span_multiplicity=np.ones(spans.start.size, dtype=np.int64),
        transfers=transfers,
        transfer_multiplicity=np.ones(transfers.start.size, dtype=np.int64),
        representative=np.tile(np.arange(shape.d), (shape.p, 1)),
        memory=tuple(
            _memory(
                spans,
                stage,
                static=shape.static * (1.15 if stage == 0 else 1.0),
                saved=8 * GIB * 4 / (shape.p * shape.v),
            )
            for stage in range(shape.p)
        ),
        links=_link_use(transfers, plan, network, total),
        engine="simpy",
        num_events=3 * len(log.spans) + 2 * len(log.transfers),
        num_skipped=0,
        notes=(
            "tensor-parallel collectives are part of the forward and backward times",
        ),
    )


def make_priced(shape: Shape, plan: Plan) -> PricedPlan:
    costs = []
    for stage in range(shape.p):
        chunk_times = tuple(
            virtual_times(shape, s) for s in range(stage, shape.p * shape.v, shape.p)
        )
        forward, backward = (sum(times) for times in zip(*chunk_times, strict=True))
        ahead, num_passes = shape.p - 1 - stage, shape.m * shape.v
        in_flight = 1 + (ahead if shape.v == 1 else 2 * ahead + (shape.v - 1) * shape.p)
        in_flight = min(in_flight, num_passes)
        again = forward if shape.recompute == "full" else 0.0
        collectives = 0.12 * (forward + backward - again) if shape.t > 1 else 0.0
        costs.append(
            StageCost(
                forward_time=forward,
                backward_time=backward,
                chunk_times=chunk_times,
                parts={
                    "compute": forward + backward - again - collectives,
                    "tensor collectives": collectives,
                    "recompute": again,
                    "zero gathers": 0.0,
                },
                charged_time=forward + backward,
                boundary_bytes=14e6 if stage < shape.p - 1 else 0.0,
                transfer_time=0.8 * shape.hop if stage < shape.p - 1 else 0.0,
                reduce_time=0.8 * shape.reduce if shape.d > 1 else 0.0,
                tied_time=2.5e-3 if stage in (0, shape.p - 1) and shape.p > 1 else 0.0,
                optimizer_time=4e-3,
                gather_time=0.4 * shape.reduce if shape.d > 1 else 0.0,
                memory={
                    "weights": shape.static / 9,
                    "gradients": 2 * shape.static / 9,
                    "optimizer": 6 * shape.static / 9,
                    "buffers": 0.0,
                    "activations": in_flight * 8 * GIB * 4 / (shape.p * shape.v),
                    "working": 2 * GIB,
                },
            )
        )
    slowest = max(costs, key=lambda cost: cost.forward_time + cost.backward_time)
    whole = sum(cost.forward_time + cost.backward_time for cost in costs)
    hops = 2 * sum(cost.transfer_time for cost in costs)
    worst = slowest.forward_time + slowest.backward_time
    terms = {name: shape.m * seconds for name, seconds in slowest.parts.items()}
    terms["transfers"] = (shape.m - 1) * 2 * slowest.transfer_time
    terms["bubble"] = (whole - worst) / shape.v + hops
    terms["tail"] = costs[0].step_end_time
    total = sum(terms.values())
    return PricedPlan(
        plan=plan,
        stages=tuple(costs),
        iteration_time=total,
        terms=terms,
        pipeline_time=total - terms["tail"],
        closed_form_time=total,
    )


def throughput(
    shape: Shape, time: float, memory: float, num_devices: int
) -> Throughput:
    tokens = SEQUENCE * shape.d * shape.m * shape.b
    flops = 6 * 6.7e9 * tokens
    return Throughput(
        iteration_time=time,
        tokens_per_second=tokens / time,
        tokens_per_second_per_device=tokens / time / num_devices,
        flops_per_device=flops / time / num_devices,
        mfu=flops / time / num_devices / PEAK_FLOPS,
        mfu_causal=0.95 * flops / time / num_devices / PEAK_FLOPS,
        peak_memory=memory,
    )


def make_candidate(shape: Shape, network: Network, rank: int = 1) -> Candidate:
    plan = make_plan(shape)
    priced = make_priced(shape, plan)
    replay = make_replay(shape, plan, network)
    peak = max(timeline.peak for timeline in replay.memory)
    gap = replay.iteration_time - priced.iteration_time
    kind, reason = "confirmed", "the replay reaches 98.3% of the planned throughput"
    if peak > MEMORY:
        kind = "infeasible"
        reason = f"stage 0 needs {peak / GIB:.1f} GiB of 80 GiB"
    elif abs(gap) > 0.05 * priced.iteration_time:
        kind = "slower"
        reason = "contention on node 0 -> spine delays the gradient all-reduce"
    planned_peak = max(cost.peak_memory for cost in priced.stages)
    return Candidate(
        rank=rank,
        priced=priced,
        planned=throughput(
            shape, priced.iteration_time, planned_peak, network.num_devices
        ),
        replay=replay,
        simulated=throughput(shape, replay.iteration_time, peak, network.num_devices),
        verdict=Verdict(
            kind=kind,
            reason=reason,
            gap=Gap(
                total=gap,
                terms={
                    "contention": 0.6 * gap,
                    "synchronisation": 0.4 * gap,
                },
            ),
        ),
    )


ASSUMED = Assumptions(
    preset="ideal",
    software=IDEAL,
    training=TrainingSpec(global_batch_size=512),
    execution=Execution(),
    accelerator=load_accelerator("h100-sxm"),
    parameter_bytes=TrainingSpec(global_batch_size=512).parameter_bytes,
)


@cache
def make_job(*shapes: Shape, name: str = "llama2-7b [64 x h100]") -> ReplayedResult:
    """Return a job whose candidates have these shapes, on devices for the largest."""
    network = cluster(max(s.p * s.d * s.t for s in shapes))
    candidates = [make_candidate(s, network, i + 1) for i, s in enumerate(shapes)]
    candidates.sort(
        key=lambda c: (
            c.verdict.kind == "infeasible",
            c.simulated.iteration_time,
            c.rank,
        )
    )
    confirmed = [i for i, c in enumerate(candidates) if c.verdict.kind == "confirmed"]
    return JobResult(
        kind="run",
        scenario_name=name,
        assumptions=ASSUMED,
        network=network,
        layer_names=layer_names(),
        device_memory=MEMORY,
        usable_memory=USABLE,
        candidates=tuple(candidates),
        chosen=confirmed[0] if confirmed else None,
        lower_bound=0.97 * min(c.priced.iteration_time for c in candidates),
        search_statistics={
            "configurations_considered": 1240,
            "plans_priced": 312,
            "dropped_memory": 871,
            "dropped_layers": 57,
        },
        shortfall="",
    )


def plans_of(job: ReplayedResult) -> PlanResult:
    """Return the same candidates as the search alone would report them."""
    ranked = sorted(job.candidates, key=lambda candidate: candidate.rank)
    return JobResult(
        kind="plan",
        scenario_name=job.scenario_name,
        assumptions=job.assumptions,
        network=job.network,
        layer_names=job.layer_names,
        device_memory=job.device_memory,
        usable_memory=job.usable_memory,
        candidates=tuple(
            PlannedCandidate(rank=c.rank, priced=c.priced, planned=c.planned)
            for c in ranked
        ),
        lower_bound=job.lower_bound,
        search_statistics=job.search_statistics,
        shortfall=job.shortfall,
    )


def nothing_fits() -> ReplayedResult:
    """Return the result of a search that found nothing."""
    return JobResult(
        kind="run",
        scenario_name="too large",
        assumptions=ASSUMED,
        network=cluster(8),
        layer_names=layer_names(),
        device_memory=MEMORY,
        usable_memory=USABLE,
        candidates=(),
        chosen=None,
        lower_bound=float("inf"),
        search_statistics={"configurations_considered": 12, "dropped_memory": 12},
        shortfall="the smallest stage needs 92.1 GiB, the device has 80 GiB",
    )


def nothing_found_yet() -> ReplayedResult:
    """Return the result of a search that a limit stopped before it had a plan."""
    spent = Spent(work=250_000_000, stopped_by=WORK_LIMIT)
    return replace(
        nothing_fits(),
        scenario_name="too much",
        lower_bound=0.5,
        shortfall=stopped_sentence(spent, "7 of 12 configurations"),
        spent=spent,
        covers_space=False,
    )


FOUR_STAGES = (
    Shape(),
    Shape(p=2, d=4, t=8, m=4, zero=2, pace=1.2),
    Shape(p=8, d=2, t=4, m=8, recompute="full", reduce=60e-3, pace=1.1),
    Shape(p=1, d=8, t=8, m=2, static=50 * GIB, zero=0),
)
"""Four stages of two replicas, and the plans that came close."""

ONE_STAGE = (Shape(p=1, d=64, t=1, m=8, static=40 * GIB),)
SIXTEEN_STAGES = (Shape(p=16, d=4, t=8, m=192, static=50 * GIB),)
INTERLEAVED = (
    Shape(p=4, v=2, d=2, t=8, m=8),
    Shape(p=4, d=2, t=8, m=8),
)
"""Two chunks per stage, and the same plan without them."""
