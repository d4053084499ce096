"""The search: sizes outside, samples of each stage inside, stages by integer program.

Sizes are the tensor-parallel size ``t``, ``G`` (a power of two that divides the batch)
and ``S`` stages on equal meshes, whole nodes or parts of one; ``b = B / (G dp)`` is 1,
2 or 4. A stage has up to two layers more or fewer than its share, any number of them
recomputed. Problems are opened best first, by a bound that counts the compute alone,
then by that of their program, so that few are solved and solutions come best first.

A few points near the Pareto front of a stage's two times.

Of all strategies those are kept that are best for one of 30 weights of steady time
and delta: ``alpha / (1 - alpha) t + delta / G`` with ``alpha = j / 31`` (public
implementation of Mist).
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from planner.rivals.mist.cluster import DeviceRates, Mesh, ModelProfile
from planner.rivals.mist.integer_program import PipelineProgram
from planner.rivals.mist.stage_costs import (
    EVERYTHING,
    MistMemory,
    Role,
    StageTimes,
    Strategies,
    strategy_space,
)
from planner.rivals.protocol import allows
from planner.step.plan import Offload
from planner.work import Work
from topologies.arrays import FloatArray, IntArray

TENSOR_SIZES = (1, 2, 4, 8)
"""Tensor-parallel sizes that Mist tries."""

MICRO_BATCHES = (1, 2, 4)
"""Sequences of a microbatch that Mist tries."""

MOST_UNEVEN = 2
"""Layers that a stage may have more or fewer than its share."""

STAGE_WORK = 40
"""Units of work of one number of layers and of recomputed ones, before strategies."""

STRATEGIES_WORK = 12
"""Strategies of a stage that take one unit of work more."""

OPTION_WORK = 150
"""Units of work of an option of the integer program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerSpace:
    """What may be tried."""

    mesh: Mesh
    """The whole cluster."""

    num_layers: int
    """Blocks of the model."""

    global_batch_size: int
    """Sequences of a step."""

    memory: float
    """What a device has for everything [byte]."""

    tensor_sizes: tuple[int, ...] = TENSOR_SIZES
    """Tensor-parallel sizes."""

    micro_batch_sizes: tuple[int, ...] = MICRO_BATCHES
    """Sequences of a microbatch."""

    stage_counts: tuple[int, ...] | None = None
    """Numbers of stages; None for all."""

    replica_counts: tuple[int, ...] | None = None
    """Data-parallel sizes; None for all."""

    zero_stages: tuple[int, ...] = (1, 2, 3)
    """Stages of ZeRO where there are replicas."""

    keeps: bool = True
    """Whether blocks may be left without recompute."""

    recomputes: bool = True
    """Whether blocks may be recomputed."""

    most_offloaded: Offload = EVERYTHING
    """Largest fractions that hosts may keep."""


class TunerSizes(NamedTuple):
    """Sizes that all stages share."""

    tensor_size: int
    """Tensor-parallel size."""
    num_steps: int
    """Accumulation steps, ``G``."""
    num_stages: int
    """Stages, ``S``."""
    replicas: int
    """Data-parallel size."""
    micro_batch_size: int
    """Sequences of a microbatch."""
    mesh: Mesh
    """Devices of a stage."""


class StageChoice(NamedTuple):
    """What was chosen for one stage."""

    num_layers: int
    """Blocks of the stage."""
    num_recomputed: int
    """How many of them, from the first one on, are recomputed."""
    strategy: tuple[float, ...]
    """``(ws, gs, os, WO, GO, OO, AO)``."""


class Tuned(NamedTuple):
    """The best choice for some sizes."""

    time: float
    """Time of a step by Mist's model [s]."""
    sizes: TunerSizes
    """Sizes that all stages share."""
    stages: tuple[StageChoice, ...]
    """Stages from the first to the last."""
    is_proven: bool
    """Whether no other choice of these sizes is faster by Mist's model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Problem:
    """The integer program of some sizes, and what its options stand for."""

    program: PipelineProgram
    choices: list[StageChoice]


@dataclass(kw_only=True, eq=False)
class Tuner:
    """Finds the best choices of a space, best first."""

    space: TunerSpace
    """What may be tried."""

    rates: DeviceRates
    """The machines."""

    profile: Callable[[int, int], ModelProfile | None]
    """The model by micro-batch and tensor-parallel size, None where it does not split
    by it."""

    work: Work = field(default_factory=Work)
    """What the search is counted on."""

    num_problems: int = 0
    """Sizes whose stages were sampled."""

    num_programs: int = 0
    """Integer programs that were solved."""

    def solutions(self) -> Iterator[Tuned]:
        """Yield the best choice of all sizes that have one, best first.

        Raises
        ------
        LimitReachedError
            If the work is spent.
        """
        queue: list[tuple[float, int, TunerSizes, _Problem | Tuned | None]] = []
        for number, sizes in enumerate(self.sizes()):
            profile = self.profile(sizes.micro_batch_size, sizes.tensor_size)
            if profile is not None:
                bound = _compute_bound(profile, sizes)
                heapq.heappush(queue, (bound, number, sizes, None))
        while queue:
            _, number, sizes, known = heapq.heappop(queue)
            if isinstance(known, Tuned):
                yield known
                continue
            if known is None:
                problem = self._problem(sizes)
                bound = problem.program.lower_bound
                item: _Problem | Tuned | None = problem
            else:
                item = self._solved(sizes, known)
                bound = item.time if item is not None else np.inf
            if np.isfinite(bound):
                heapq.heappush(queue, (bound, number, sizes, item))

    def sizes(self) -> Iterator[TunerSizes]:
        """Yield all sizes of the space."""
        space, whole = self.space, self.space.mesh
        for t, num_stages in product(
            sorted(space.tensor_sizes), range(1, space.num_layers + 1)
        ):
            mesh = _stage_mesh(whole, num_stages)
            if mesh is None or mesh.size % t or mesh.devices % t:
                continue
            if not allows(space.stage_counts, num_stages):
                continue
            replicas = mesh.size // t
            if not allows(space.replica_counts, replicas):
                continue
            for b in sorted(space.micro_batch_sizes):
                steps, left = divmod(space.global_batch_size, b * replicas)
                if left or not steps or steps & (steps - 1):
                    continue
                yield TunerSizes(t, steps, num_stages, replicas, b, mesh)

    def _solved(self, sizes: TunerSizes, problem: _Problem) -> Tuned | None:
        self.num_programs += 1
        self.work.spend(OPTION_WORK * len(problem.choices))
        choice = problem.program.solve()
        if choice is None:
            return None
        stages = tuple(problem.choices[option] for option in choice.options)
        return Tuned(choice.time, sizes, stages, choice.is_proven)

    def _problem(self, sizes: TunerSizes) -> _Problem:
        """Sample the stages of some sizes."""
        self.num_problems += 1
        profile = self.profile(sizes.micro_batch_size, sizes.tensor_size)
        assert profile is not None
        strategies = self._strategies(sizes)
        sampler = _StageSampler(
            space=self.space,
            sizes=sizes,
            strategies=strategies,
            times=StageTimes(
                profile=profile,
                rates=self.rates,
                mesh=sizes.mesh,
                num_steps=sizes.num_steps,
                strategies=strategies,
            ),
            memory=MistMemory(
                profile=profile, replicas=sizes.replicas, strategies=strategies
            ),
            work=self.work,
        )
        return sampler.problem()

    def _strategies(self, sizes: TunerSizes) -> Strategies:
        """Return the strategies of a stage: without replicas there is nothing to share.

        Mist calls that ZeRO-1, which then shards nothing.
        """
        space = self.space
        zero_stages = space.zero_stages if sizes.replicas > 1 else (1,)
        return strategy_space(zero_stages, space.most_offloaded)


class _Samples(NamedTuple):
    """Samples of one number of layers at one place of the pipeline."""

    steady: FloatArray
    delta: FloatArray
    choices: list[StageChoice]


@dataclass(kw_only=True, eq=False)
class _StageSampler:
    """Samples the stages of some sizes."""

    space: TunerSpace
    sizes: TunerSizes
    strategies: Strategies
    times: StageTimes
    memory: MistMemory
    work: Work
    _known: dict[tuple[int, int, Role], _Samples] = field(default_factory=dict)

    def problem(self) -> _Problem:
        """Return the integer program over all samples."""
        columns: list[tuple[int, int]] = []
        steady: list[FloatArray] = []
        delta: list[FloatArray] = []
        choices: list[StageChoice] = []
        for stage, num_layers in product(range(self.sizes.num_stages), self._layers()):
            samples = self._samples(stage, num_layers)
            columns += [(stage, num_layers)] * len(samples.choices)
            steady.append(samples.steady)
            delta.append(samples.delta)
            choices += samples.choices
        options = np.array(columns, dtype=np.int64).reshape(-1, 2)
        program = PipelineProgram(
            stage=options[:, 0],
            layers=options[:, 1],
            steady=np.concatenate(steady),
            delta=np.concatenate(delta),
            num_stages=self.sizes.num_stages,
            num_layers=self.space.num_layers,
            num_steps=self.sizes.num_steps,
        )
        return _Problem(program=program, choices=choices)

    def _layers(self) -> range:
        """Return how many layers a stage may have."""
        total, stages = self.space.num_layers, self.sizes.num_stages
        share = round(total / stages)
        uneven = 0 if self.sizes.num_steps == 1 else MOST_UNEVEN
        least, most = max(share - uneven, 1), min(share + uneven, total - stages + 1)
        return range(least, most + 1)

    def _samples(self, stage: int, num_layers: int) -> _Samples:
        """Return the samples of all numbers of recomputed layers together."""
        stages = self.sizes.num_stages
        role = Role(is_first=stage == 0, is_last=stage == stages - 1)
        saved = min(stages - stage - 1, self.sizes.num_steps - 1)
        key = num_layers, saved, role
        if key not in self._known:
            self._known[key] = self._pooled(num_layers, saved, role)
        return self._known[key]

    def _pooled(self, num_layers: int, num_saved: int, role: Role) -> _Samples:
        samples = [
            self._sampled(num_layers, again, num_saved, role)
            for again in self._recomputed(num_layers, role)
        ]
        steady = np.concatenate([item.steady for item in samples])
        delta = np.concatenate([item.delta for item in samples])
        choices = [choice for item in samples for choice in item.choices]
        kept = pareto_samples(steady, delta)
        # A step is never shorter than its steady microbatches.
        delta = np.maximum(delta[kept], 0.0)
        return _Samples(steady[kept], delta, [choices[k] for k in kept])

    def _recomputed(self, num_layers: int, role: Role) -> list[int]:
        """Return how many layers may be recomputed.

        The last stage never recomputes all but one layer, as Mist has it.
        """
        some = (
            range(1, num_layers) if self.space.keeps and self.space.recomputes else ()
        )
        none = [0] if self.space.keeps else []
        all_of_them = [num_layers] if self.space.recomputes else []
        return [
            count
            for count in [*none, *some, *all_of_them]
            if not (role.is_last and count == num_layers - 1 and count)
        ]

    def _sampled(
        self, num_layers: int, num_recomputed: int, num_saved: int, role: Role
    ) -> _Samples:
        """Return the samples of one number of recomputed layers."""
        self.work.spend(STAGE_WORK + len(self.strategies) // STRATEGIES_WORK)
        steady, delta = self.times.times(num_layers, num_recomputed, role)
        peaks = self.memory.peaks(num_layers, num_recomputed, num_saved, role)
        is_pipelined = self.sizes.num_stages > 1
        factor = self.memory.factor(is_pipelined=is_pipelined, role=role)
        needed = np.maximum(peaks.forward, peaks.backward) * factor
        (fitting,) = np.nonzero(needed <= self.space.memory)
        steady, delta = steady[fitting], delta[fitting]
        kept = pareto_samples(steady, delta / self.sizes.num_steps)
        choices = [
            StageChoice(num_layers, num_recomputed, self.strategies.row(k))
            for k in fitting[kept]
        ]
        return _Samples(steady[kept], delta[kept], choices)


def _compute_bound(profile: ModelProfile, sizes: TunerSizes) -> float:
    """Return what the compute alone takes, spread evenly over the stages [s].

    Of the head the forward pass: its backward pass may hide.
    """
    block, steps = profile.block, sizes.num_steps
    embedding = profile.embedding
    once = profile.num_layers * (block.forward_time + block.backward(steps))
    once += embedding.forward_time + embedding.backward(steps)
    once += profile.head.forward_time
    return once * (1.0 + (steps - 1) / sizes.num_stages)


def _stage_mesh(whole: Mesh, num_stages: int) -> Mesh | None:
    """Return the mesh of a stage: whole nodes, or an equal part of one."""
    if whole.nodes % num_stages == 0:
        return Mesh(whole.nodes // num_stages, whole.devices)
    devices, left = divmod(whole.size, num_stages)
    if left or not devices or whole.devices % devices:
        return None
    return Mesh(1, devices)


NUM_SAMPLES = 30
"""Weights that are tried."""

_SHARES = np.arange(1, NUM_SAMPLES + 1) / (NUM_SAMPLES + 1)

WEIGHTS = _SHARES / (1.0 - _SHARES)
"""Weights of the steady time, rising."""


def pareto_samples(steady: FloatArray, delta: FloatArray) -> IntArray:
    """Return which points are best for a weight, each once, from small weights on.

    What is best for two weights is best for all between them: halves of the list of
    weights whose ends agree are not looked at. O(n) for each point that is found.

    Parameters
    ----------
    steady, delta
        The two times, shape ``(n,)``; ties go to the first point [s].
    """
    if not len(steady):
        return np.zeros(0, dtype=np.int64)
    best = {k: _best(steady, delta, k) for k in (0, NUM_SAMPLES - 1)}
    open_ends = [(0, NUM_SAMPLES - 1)]
    while open_ends:
        low, high = open_ends.pop()
        if best[low] == best[high] or high - low < 2:
            continue
        middle = (low + high) // 2
        best[middle] = _best(steady, delta, middle)
        open_ends += [(low, middle), (middle, high)]
    return np.array(list(dict.fromkeys(best[k] for k in sorted(best))), dtype=np.int64)


def _best(steady: FloatArray, delta: FloatArray, weight: int) -> int:
    return int(np.argmin(WEIGHTS[weight] * steady + delta))
