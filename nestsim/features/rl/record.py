"""A step of reinforcement learning as JSON and as tables, in SI units."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from nestsim.document.dumps import Of, Record
from nestsim.document.wording import amount, number, percent, plural
from nestsim.features.rl.evaluate import RlStep
from nestsim.features.rl.fabric import FabricReplay
from nestsim.features.rl.job import RlResult
from nestsim.features.rl.step import BOTH, lanes
from topologies.units import format_duration, format_size


class PhaseRecord(Record):
    """What a step does for a while."""

    name: str
    """Name of the phase."""

    pool: str
    """Pool that works: ``"rollout"``, ``"training"`` or ``"both"``."""

    time_s: float
    """Time of the phase in a step [s]."""

    closed_form_s: float | None
    """Time by the closed form; None where the phase has no other [s]."""

    basis: str
    """Basis of the time, in words."""


class ExchangeRecord(Record):
    """A collective that carries the new weights."""

    operation: str
    """Name of the operation."""

    algorithm: str
    """The cheapest algorithm."""

    num_groups: int
    """Groups that do it at the same time."""

    num_members: int
    """Devices of each group."""

    num_bytes: float
    """Size of one copy of the model [byte]."""

    closed_form_s: float
    """Time by the closed form [s]."""

    time_s: float
    """Time in the replay [s]."""


class PoolRecord(Record):
    """Pools that were looked at."""

    rollout_devices: Annotated[int, Of("choice.rollout_devices")]
    """Devices of the rollout alone; 0 where it shares the trainer's."""

    engine_tensor_parallel_size: Annotated[int, Of("choice.engine")]
    """Tensor-parallel size of an engine."""

    spread: Annotated[bool, Of("choice.spread")]
    """Whether the trainer's nodes lie evenly among all; else they are the first."""

    time_s: float | None
    """Time of a step with them; None where it was excluded [s]."""

    contention_s: float | None
    """What sharing links costs the step; None where no two phases go on at a time, or
    none was replayed [s]."""

    reason: str
    """Why it was excluded; empty for one that was evaluated."""


class StepReplayRecord(Record):
    """The replay of both pools on one fabric."""

    apart_s: float
    """Time of the step if no phase met another one on a link [s]."""

    contention_s: float
    """What it costs that phases share links [s]."""

    closed_form_s: float
    """Time of the step with the closed forms of phases that have one [s]."""

    num_events: int
    """Events of the replay."""

    engine: str
    """Engine that replayed it, ``"simpy"`` or ``"compiled"``."""


class RolloutRecord(Record):
    """How responses come."""

    time_s: float
    """Time of the rollout of one batch [s]."""

    replicas: int
    """Engines."""

    batches: int
    """Batches that they make in one go."""

    tokens_per_s: float
    """Tokens of responses of all engines [token/s]."""

    peak_sequences: int
    """Most responses that an engine works on at a time."""

    weight_bytes: float
    """Weights of an engine on a device [byte]."""

    kv_bytes: float
    """Largest cache of keys and values on a device [byte]."""

    idle_share: float
    """Part of the places for responses that stand empty."""

    tail: float
    """Part of the time in which the last tenth of the responses comes."""


class SegmentRecord(Record):
    """A part of what a pool does in a step."""

    pool: str
    """The pool."""

    name: str
    """Phase, or ``"idle"``."""

    start_s: float
    """Moment at which it begins [s]."""

    end_s: float
    """Moment at which it ends [s]."""


class RlRecord(Record):
    """``rl.json`` with a step."""

    scenario: str
    """Name of the scenario."""

    algorithm: str
    """``"grpo"`` or ``"ppo"``."""

    placement: str
    """``"colocated"`` or ``"split"``."""

    schedule: str
    """Name of the schedule."""

    num_devices: int
    """Devices of the cluster."""

    training_devices: int
    """Devices of the trainer."""

    rollout_devices: int
    """Devices of the rollout."""

    engine_tensor_parallel_size: int
    """Tensor-parallel size of an engine."""

    spread: bool
    """Whether the trainer's nodes lie evenly among all; else they are the first."""

    plan: str
    """Plan of the trainer, in short."""

    step_time_s: float
    """Time of a step [s]."""

    bound_s: float
    """Time of the busier pool, which no schedule is faster than [s]."""

    tokens: int
    """Tokens of prompts and responses in a step [token]."""

    tokens_per_s: float
    """Tokens over the time of a step [token/s]."""

    tokens_per_s_per_device: float
    """The same for each device of the cluster [token/s]."""

    training_idle: float
    """Part of the step in which the trainer's devices have nothing to do."""

    rollout_idle: float
    """Part of the step in which the rollout's devices have nothing to do."""

    phases: tuple[PhaseRecord, ...]
    """What a step does, in order."""

    fabric: StepReplayRecord | None
    """The replay of both pools on one fabric; None where no two phases go on at a
    time."""

    timeline: tuple[SegmentRecord, ...]
    """What each pool does in a step."""

    rollout: RolloutRecord
    """How responses come."""

    weights: tuple[ExchangeRecord, ...]
    """What carries the new weights."""

    offloaded_bytes: float
    """What leaves each device for the rollout, and comes back [byte]."""

    training_peak_bytes: float
    """Most that a device holds in training [byte]."""

    choices: tuple[PoolRecord, ...]
    """Pools that were looked at."""

    proof: str
    """What the search has looked at, in a sentence."""

    headline: str
    """The answer in a few words."""

    in_words: tuple[str, ...]
    """The answer in sentences."""

    facts: Mapping[str, str]
    """What the step is of, by name."""


def rl_json(result: RlResult) -> dict[str, object]:
    """Return what ``rl.json`` holds."""
    step = result.step
    if step is None:
        return {"scenario": result.scenario_name, "reason": result.shortfall}
    rollout_devices = step.choice.rollout_devices or result.num_devices
    per_second = result.tokens_per_second
    return RlRecord.dump(
        scenario=result.scenario_name,
        algorithm=result.spec.algorithm,
        placement=result.spec.placement,
        schedule=result.spec.schedule,
        num_devices=result.num_devices,
        training_devices=step.trainer.devices.size,
        rollout_devices=rollout_devices,
        engine_tensor_parallel_size=step.choice.engine,
        spread=step.choice.spread,
        plan=step.trainer.label,
        step_time_s=step.time.time,
        bound_s=step.time.bound,
        tokens=result.batch.num_tokens,
        tokens_per_s=per_second,
        tokens_per_s_per_device=per_second / result.num_devices,
        training_idle=step.time.training_idle,
        rollout_idle=step.time.rollout_idle,
        phases=tuple(
            {**PhaseRecord.dump(phase), "closed_form_s": phase.closed_form}
            for phase in step.phases
        ),
        fabric=None
        if step.fabric is None
        else StepReplayRecord.dump(
            step.fabric,
            apart_s=step.fabric.apart,
            contention_s=step.fabric.contention,
            closed_form_s=step.fabric.closed_form,
        ),
        timeline=_timeline(result, step),
        rollout=RolloutRecord.dump(
            step.rollout,
            replicas=step.replicas,
            batches=step.batches,
            tokens_per_s=step.rollout.tokens_per_second,
            tail=1.0 - step.rollout.time_at(0.9) / float(step.rollout.finished[-1]),
        ),
        weights=step.sync,
        offloaded_bytes=step.offloaded,
        training_peak_bytes=step.trainer.peak_memory,
        choices=tuple(
            PoolRecord.dump(
                entry,
                time_s=entry.time,
                contention_s=result.contention.get(entry.choice),
            )
            for entry in result.search.explored
        ),
        proof=result.search.proof(),
        headline=f"A STEP TAKES {format_duration(step.time.time)}",
        in_words=tuple(sentences(result, step)),
        facts=facts(result, step),
    )


def _timeline(result: RlResult, step: RlStep) -> tuple[dict[str, object], ...]:
    """Return what each pool does in a step, moment by moment."""
    segments: list[dict[str, object]] = []
    for pool, lane in lanes(
        step.phases, overlaps=result.spec.overlaps, is_split=result.spec.is_split
    ).items():
        moment = 0.0
        for name, time in lane:
            segments.append(
                SegmentRecord.dump(
                    pool=pool, name=name, start_s=moment, end_s=moment + time
                )
            )
            moment += time
    return tuple(segments)


def sentences(result: RlResult, step: RlStep) -> list[str]:
    """Say what a step gives, what it waits for, and what was looked at."""
    rate = result.tokens_per_second
    longest = max(step.phases, key=lambda phase: phase.time)
    lines = [
        f"{amount(result.batch.num_tokens)} tokens in a step: {number(rate)} tokens/s, "
        f"{number(rate / result.num_devices)} on each of {result.num_devices:,} "
        f"devices. The longest phase is {longest.name}, "
        f"{percent(longest.time / step.time.time)} of the step."
    ]
    if result.spec.is_split:
        lines.append(
            f"{step.trainer.devices.size:,} devices train and idle for "
            f"{percent(step.time.training_idle)} of a step; "
            f"{step.choice.rollout_devices:,} make responses and idle for "
            f"{percent(step.time.rollout_idle)}. No schedule of these pools takes less "
            f"than {format_duration(step.time.bound)}."
        )
    if step.fabric is not None and step.fabric.costs:
        cost = step.fabric.contention
        lines.append(
            f"Phases of both pools share links, which costs {format_duration(cost)} of "
            f"a step, {percent(cost / step.time.time)}."
        )
    tail = 1.0 - step.rollout.time_at(0.9) / float(step.rollout.finished[-1])
    lines.append(
        f"The last tenth of the responses takes {percent(tail)} of the rollout."
    )
    return [*lines, result.search.proof()]


def facts(result: RlResult, step: RlStep) -> dict[str, str]:
    """Return what the step is of, by name."""
    spec, batch, made = result.spec, result.batch, step.rollout
    memory = result.device_memory
    engine = f"{plural(step.replicas, 'engine')} of tp{step.choice.engine}"
    if spec.engine.expert_parallel_size > 1:
        engine += f" ep{spec.engine.expert_parallel_size}"
    rows = {
        "responses": f"{spec.prompts:,} prompts of {spec.prompt_length:,} tokens, "
        f"{spec.samples:,} responses to each, {number(batch.mean_response)} tokens on "
        f"average, {batch.longest_response:,} at most",
        "batch": f"{plural(batch.mini_batches, 'update')} of {batch.num_rows:,} rows "
        f"of {batch.row_length:,} tokens; rows are packed to {percent(batch.fill)}",
        "trainer": f"{step.trainer.devices.size:,} {result.device_name}, "
        f"{step.trainer.label}, {format_size(step.trainer.peak_memory)} of "
        f"{format_size(memory)} a device",
        "rollout": f"{engine}, up to {made.peak_sequences:,} responses at a time; "
        f"weights {format_size(made.weight_bytes)} and caches "
        f"{format_size(made.kv_bytes)} a device",
    }
    if step.critic is not None:
        rows["critic"] = f"{spec.critic}, {step.critic.label}"
    if step.batches > 1:
        rows["ahead"] = f"{step.batches:,} batches in one go"
    if step.offloaded:
        rows["states"] = (
            f"{format_size(step.offloaded)} of each device wait in the host's memory "
            "during the rollout"
        )
    for sent in step.sync:
        rows[f"weights, {sent.operation.replace('_', '-')}"] = (
            f"{format_size(sent.num_bytes)} by {sent.algorithm}, "
            f"{plural(sent.num_groups, 'group')} of {sent.num_members:,}: "
            f"{format_duration(sent.time)}, closed form "
            f"{format_duration(sent.closed_form)}"
        )
    return {**rows, **dict(_of_both(result, step))}


def _of_both(result: RlResult, step: RlStep) -> Iterator[tuple[str, str]]:
    """Yield what concerns both pools, by name."""
    if step.choice.spread:
        yield "trainer's nodes", "lie evenly among all"
    if step.fabric is not None:
        yield "one fabric", _one_fabric(step.fabric)
    if any(phase.pool == BOTH for phase in step.phases):
        yield (
            "both pools",
            "wait for new weights" if result.spec.is_split else "are one",
        )


def _one_fabric(fabric: FabricReplay) -> str:
    """Say what the replay of both pools found, beside its parts and closed forms."""
    engine = "SimPy" if fabric.engine == "simpy" else "the compiled engine"
    cost = (
        f"sharing links costs {format_duration(fabric.contention)}"
        if fabric.costs
        else "no phase slows another one"
    )
    return (
        f"{format_duration(fabric.time)} in {fabric.num_events:,} events by {engine}; "
        f"phases by themselves {format_duration(fabric.apart)}, by closed forms "
        f"{format_duration(fabric.closed_form)}; {cost}"
    )
