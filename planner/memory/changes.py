"""Single changes of a plan that save memory, from the smallest of each kind on.

The devices stay the same ones, all in use, and so does the batch. Kinds stand in the
order of what they ask for: what costs next to nothing first, then what costs time, then
what rearranges the job, at last what changes numbers, what is trained, or on what. Of
each kind the first step is kept that makes the plan fit, or where none does the one
that needs least. Where no single change suffices, two or three are made together.

What still fits: the largest micro-batch and the longest sequence of a plan.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from estimators.training import OPTIMIZER_BYTES
from planner.memory.account import MemoryJob, PlanMemory
from planner.memory.thrift import layout_settings
from planner.plans.spec import STAGE_NAMES, PlanSpec
from planner.search.replayed.layouts import block_counts
from planner.search.space import divisors
from planner.step.plan import COUNTED_MODES, Offload
from topologies.errors import InputError

FRACTIONS = (0.25, 0.5, 0.75, 1.0)
"""Parts of something that are tried on the host."""

_STRONGER: Mapping[str | None, tuple[str, ...]] = MappingProxyType(
    {
        "none": ("selective", "full"),
        "selective": ("full",),
        "full": (),
        "stage": (),
        None: ("full",),
    }
)
"""Recompute mode -> those that keep less; None for stages that differ."""


class PlanStep(NamedTuple):
    """One way to change a plan."""

    settings: Mapping[str, Any]
    """Settings of the plan that get other values."""

    training: Mapping[str, Any] = MappingProxyType({})
    """Settings of ``[training]`` that get other values."""

    model: Mapping[str, Any] = MappingProxyType({})
    """Settings of ``[model]`` that get other values: ``sequence_length``."""


class Change(NamedTuple):
    """One change, or some together, and what the plan needs with it."""

    kinds: tuple[str, ...]
    """Names of the kinds, of `KINDS`."""

    step: PlanStep
    """Settings that get other values."""

    memory: PlanMemory
    """What the changed plan needs."""

    fits: bool
    """Whether there is as much."""

    @property
    def kind(self) -> str:
        """Name of the kind, or of all of them."""
        return " + ".join(self.kinds)


def single_changes(job: MemoryJob, spec: PlanSpec) -> tuple[Change, ...]:
    """Return one change of each kind that saves memory, those that suffice first."""
    jobs = _Jobs(job, spec)
    before = Change((), PlanStep({}), job.memory(spec), fits=False)
    return _sorted(_further(jobs, before))


def joint_changes(
    job: MemoryJob, spec: PlanSpec, singles: Sequence[Change]
) -> tuple[Change, ...]:
    """Return changes of two kinds, or of three, that make a plan fit together.

    Of the first kind the step that saves most, of each further one the first that
    suffices. Three where no two do. None where a single one suffices, or where three
    do not.
    """
    if any(change.fits for change in singles):
        return ()
    jobs, before = _Jobs(job, spec), list(singles)
    for _ in range(MOST_TOGETHER - 1):
        before.sort(key=lambda change: change.memory.needed)
        after = [
            further for change in before[:BEAM] for further in _further(jobs, change)
        ]
        enough = {change.kinds: change for change in after if change.fits}
        if enough:
            return _sorted(enough.values())
        before = after
    return ()


MOST_TOGETHER = 3
"""Kinds of changes that are made together, at most."""

BEAM = 12
"""Changes that others are added to, those that need least."""


def _sorted(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return those that suffice by what they ask for, then others by what they need."""
    known = tuple(KINDS)
    asks = sorted(changes, key=lambda change: sorted(map(known.index, change.kinds)))
    enough = [change for change in asks if change.fits]
    others = [change for change in asks if not change.fits]
    return (*enough, *sorted(others, key=lambda change: change.memory.needed))


class _Jobs:
    """A job and its plan under changes: each job is made once."""

    def __init__(self, job: MemoryJob, spec: PlanSpec) -> None:
        self.job, self.spec = job, spec
        self._known: dict[tuple[object, ...], MemoryJob] = {}

    def changed(self, step: PlanStep) -> tuple[MemoryJob, PlanSpec] | None:
        """Return the job and the plan with a change; None if there is no such plan."""
        key = (*sorted(step.training.items()), *sorted(step.model.items()))
        try:
            spec = replace(self.spec, **step.settings)
            if key not in self._known:
                self._known[key] = _changed_job(self.job, step)
        except InputError:
            return None
        return self._known[key], spec


def _changed_job(job: MemoryJob, step: PlanStep) -> MemoryJob:
    if step.training:
        job = job.with_training(replace(job.workload.training, **step.training))
    if step.model:
        job = job.with_length(step.model["sequence_length"])
    return job


def _further(jobs: _Jobs, before: Change) -> Iterator[Change]:
    """Yield a change with one of each kind that comes behind its own ones."""
    changed = jobs.changed(before.step)
    assert changed is not None
    known = tuple(KINDS)
    behind = max((known.index(kind) + 1 for kind in before.kinds), default=0)
    for kind in known[behind:]:
        steps = KINDS[kind](*changed)
        change = _first(jobs, before, kind, steps)
        if change is not None:
            yield change


def changed_memory(
    job: MemoryJob, spec: PlanSpec, step: PlanStep
) -> tuple[PlanSpec, PlanMemory] | None:
    """Return a changed plan and what it needs; None if there is no such plan."""
    return _memory(_Jobs(job, spec), step)


def _memory(jobs: _Jobs, step: PlanStep) -> tuple[PlanSpec, PlanMemory] | None:
    """Return what `changed_memory` does of jobs that are kept."""
    changed = jobs.changed(step)
    if changed is None:
        return None
    try:
        return changed[1], changed[0].memory(changed[1])
    except InputError:
        return None


def _first(
    jobs: _Jobs, before: Change, kind: str, steps: Iterable[PlanStep]
) -> Change | None:
    """Return the first step that suffices, or the one that needs least."""
    best: Change | None = None
    devices = before.memory.plan.parallel.num_devices
    for added in steps:
        step = PlanStep(
            *({**old, **new} for old, new in zip(before.step, added, strict=True))
        )
        changed = _memory(jobs, step)
        if changed is None:
            continue
        memory = changed[1]
        if memory.plan.parallel.num_devices != devices:
            continue  # devices would have no work
        if memory.needed >= before.memory.needed:
            continue
        fits = memory.fits(jobs.job.limits)
        change = Change((*before.kinds, kind), step, memory, fits)
        if change.fits:
            return change
        if best is None or memory.needed < best.memory.needed:
            best = change
    return best


def _sequence_parallel(_: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    if not spec.sequence_parallel and spec.tensor_model_parallel_size > 1:
        yield PlanStep({"sequence_parallel": True})


def _sharding(job: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    """Yield stronger stages of ZeRO, after larger groups."""
    if spec.sharding_group_size is not None:
        yield PlanStep({"sharding_group_size": None})
    now = max(spec.zero_stage_by_stage())
    for stage in _zero_stages(job, spec, spec.pipeline_model_parallel_size):
        if stage > now:
            yield PlanStep({"zero_stage": stage, "sharding_group_size": None})


def _second_copies(_: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    if max(spec.second_copy_by_stage()) > 1:
        yield PlanStep({"zero_hpz_partition_size": 1})
    if spec.reshard_after_forward is not None:
        yield PlanStep({"reshard_after_forward": None})


def _zero_stages(job: MemoryJob, spec: PlanSpec, num_stages: int) -> tuple[int, ...]:
    """Return the ZeRO stages that the framework has of some stages."""
    sizes = {
        "tp": spec.tensor_model_parallel_size,
        "cp": spec.context_parallel_size,
        "ep": spec.expert_model_parallel_size,
        "etp": spec.expert_tensor_parallel_size or spec.tensor_model_parallel_size,
        "pp": num_stages,
    }
    has_experts = job.workload.graph.spec.num_moe_experts > 0
    asked = {*spec.zero_stage_by_stage(), *job.rules.usual_zero_stages}
    can = job.rules.zero_stages_of(sizes, has_experts=has_experts)
    return tuple(stage for stage in can if stage in asked)


def _recompute(job: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    """Yield stronger modes, each of as few blocks as the framework counts."""
    now = spec.recompute if isinstance(spec.recompute, str) else None
    counted = job.rules.counted_modes(spec.pipeline_model_parallel_size)
    at_most = -(
        -job.workload.chain[1]
        // (
            spec.pipeline_model_parallel_size
            * spec.virtual_pipeline_model_parallel_size
        )
    )
    if isinstance(spec.recompute_num_layers, int) and now in COUNTED_MODES:
        for count in range(spec.recompute_num_layers + 1, at_most):
            yield PlanStep({"recompute_num_layers": count})
        yield PlanStep({"recompute_num_layers": None})
    for mode in _STRONGER[now]:
        if mode not in job.rules.recompute:
            continue
        # Where some blocks repeat their attention, the others would keep all of it.
        if mode in counted and now == "none":
            for count in range(1, at_most):
                yield PlanStep({"recompute": mode, "recompute_num_layers": count})
        yield PlanStep({"recompute": mode, "recompute_num_layers": None})


def _micro_batch(_: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    for size in reversed(divisors(spec.micro_batch_size)[:-1]):
        yield PlanStep({"micro_batch_size": size, "num_microbatches": None})


_RESIZED = {"data_parallel_size": None, "num_microbatches": None}


def _tensor(job: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    model, now = job.workload.graph.spec, spec.tensor_model_parallel_size
    groups = model.num_query_groups or model.num_attention_heads
    if not job.rules.tensor_parallel:
        return
    for size in divisors(model.num_attention_heads):
        if size > now and (job.rules.copies_query_groups or groups % size == 0):
            yield PlanStep({"tensor_model_parallel_size": size, **_RESIZED})


def _pipeline(job: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    per_stage = [getattr(spec, name) for name in STAGE_NAMES]
    if not job.rules.pipeline or any(
        isinstance(setting, tuple) for setting in per_stage
    ):
        return
    v, blocks = spec.virtual_pipeline_model_parallel_size, job.workload.chain[1]
    for size in range(spec.pipeline_model_parallel_size + 1, blocks // v + 1):
        counts = block_counts(
            blocks, size, v, job.rules.splits, empty_ends=job.rules.empty_ends
        )
        if counts and spec.zero_stage in _zero_stages(job, spec, size):
            yield PlanStep(
                {
                    "pipeline_model_parallel_size": size,
                    **_RESIZED,
                    **_SHARED_OUT,
                    **layout_settings(counts[0], size, v),
                }
            )


_SHARED_OUT: Mapping[str, Any] = MappingProxyType(
    {
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
        "num_layers_per_pipeline_stage": None,
        "pipeline_model_parallel_layout": None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
    }
)
"""Settings about blocks of stages, as where none is given."""


def _context(job: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    model, size = job.workload.graph.spec, 2 * spec.context_parallel_size
    if model.attention_implementation != "flash" or not job.rules.context_parallel:
        return
    while size <= min(job.num_devices, model.sequence_length):
        yield PlanStep({"context_parallel_size": size, **_RESIZED})
        size *= 2


def _experts(job: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    if not job.rules.expert_parallel:
        return
    for size in divisors(job.workload.graph.spec.num_moe_experts):
        if size > spec.expert_model_parallel_size:
            yield PlanStep({"expert_model_parallel_size": size})


def _offload(part: str) -> Callable[[MemoryJob, PlanSpec], Iterator[PlanStep]]:
    name = f"offload_{part}"

    def steps(job: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
        now = getattr(spec, name)
        can = job.rules.offload_of(spec.pipeline_model_parallel_size)
        is_alone = part not in job.rules.offload_together
        if part in can and is_alone and not isinstance(now, tuple):
            yield from (PlanStep({name: size}) for size in FRACTIONS if size > now)

    return steps


def _offload_together(job: MemoryJob, spec: PlanSpec) -> Iterator[PlanStep]:
    """Yield what the framework moves to the host together, if it does so."""
    parts = job.rules.offload_together
    can = job.rules.offload_of(spec.pipeline_model_parallel_size)
    if parts and {*parts} <= {*can}:
        yield PlanStep({f"offload_{part}": 1.0 for part in parts})


def _gradients(job: MemoryJob, _: PlanSpec) -> Iterator[PlanStep]:
    training = job.workload.training
    if training.precision != "fp32" and training.gradient_precision == "fp32":
        yield PlanStep({}, {"gradient_precision": "bf16"})


def _states(job: MemoryJob, _: PlanSpec) -> Iterator[PlanStep]:
    """Yield optimizers of the same kind with smaller states."""
    training = job.workload.training
    copied = training.precision != "fp32" and not training.weights_in_fp32
    smaller = [
        (size, name)
        for (name, narrow), size in OPTIMIZER_BYTES.items()
        if narrow == copied and name.startswith(f"{training.optimizer}-")
    ]
    for size, name in sorted(smaller, reverse=True):
        if size < training.parameter_bytes.optimizer:
            yield PlanStep({}, {"optimizer": name})


def _adapter(method: str) -> Callable[[MemoryJob, PlanSpec], Iterator[PlanStep]]:
    def steps(job: MemoryJob, _: PlanSpec) -> Iterator[PlanStep]:
        now = job.workload.training.adapter
        if method in job.rules.adapters and (now == "none" or method == "qlora" != now):
            yield PlanStep({}, {"adapter": method})

    return steps


SHORTEST = 512
"""Shortest sequence that is tried instead of a longer one [token]."""


def _shorter(job: MemoryJob, _: PlanSpec) -> Iterator[PlanStep]:
    length = job.workload.graph.spec.sequence_length
    while job.retraces and length % 2 == 0 and length // 2 >= SHORTEST:
        length //= 2
        yield PlanStep({}, {}, {"sequence_length": length})


KINDS: Mapping[str, Callable[[MemoryJob, PlanSpec], Iterator[PlanStep]]] = (
    MappingProxyType(
        {
            "sequence parallelism": _sequence_parallel,
            "stronger ZeRO": _sharding,
            "no second copy of weights": _second_copies,
            "recompute": _recompute,
            "smaller micro-batch": _micro_batch,
            "more expert parallelism": _experts,
            "more pipeline stages": _pipeline,
            "more tensor parallelism": _tensor,
            "more context parallelism": _context,
            **{f"{part} on the host": _offload(part) for part in Offload._fields},
            "all states on the host": _offload_together,
            "gradients in 16 bits": _gradients,
            "smaller optimizer states": _states,
            "LoRA, not all weights": _adapter("lora"),
            "QLoRA, not all weights": _adapter("qlora"),
            "shorter sequences": _shorter,
        }
    )
)
"""Kind of change -> its steps, the smallest first; ordered by what they ask for."""


LONGEST = 2**23
"""Longest sequence that is tried [token]."""

PARTS = 16
"""Lengths between two that are twice as long as the other are tried in such parts."""


class Largest(NamedTuple):
    """A size, and what the plan needs with it."""

    size: int
    """The largest that fits."""

    memory: PlanMemory
    """What the plan needs with it."""


def largest_micro_batch(job: MemoryJob, spec: PlanSpec) -> Largest | None:
    """Return the largest micro-batch with which the plan fits; None if none does.

    Of those that make the global batch in full microbatches.
    """
    before = job.memory(spec)
    dp = before.plan.parallel.data_parallel_size
    per_replica = max(job.workload.training.global_batch_size // dp, 1)
    for size in reversed(divisors(per_replica)):
        step = PlanStep({"micro_batch_size": size, "num_microbatches": None})
        changed = changed_memory(job, spec, step)
        if changed is not None and changed[1].fits(job.limits):
            return Largest(size, changed[1])
    return None


def longest_sequence(job: MemoryJob, spec: PlanSpec) -> Largest | None:
    """Return the longest sequence with which a plan fits that fits; else None.

    Doubled until it does not fit, then bisected to `PARTS`: longer sequences need more
    memory. Each length is traced, and learned positions grow with it.
    """
    low = job.workload.graph.spec.sequence_length
    best = _at_length(job, spec, low)
    if best is None:
        return None
    while 2 * low <= LONGEST and (changed := _at_length(job, spec, 2 * low)):
        best, low = changed, 2 * low
    fits, fails = 0, PARTS
    while fails - fits > 1:
        middle = (fits + fails) // 2
        changed = _at_length(job, spec, low + low * middle // PARTS)
        if changed is None:
            fails = middle
        else:
            best, fits = changed, middle
    return best


def _at_length(job: MemoryJob, spec: PlanSpec, length: int) -> Largest | None:
    """Return what a plan needs at a length of sequences, None if it does not fit."""
    try:
        memory = job.with_length(length).memory(spec)
    except InputError:
        return None
    return Largest(length, memory) if memory.fits(job.limits) else None
