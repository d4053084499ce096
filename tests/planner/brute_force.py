"""The best plans by trying everything: configurations, placements, splits, choices.

Shares layer tables, routes and the phases of collectives with the search; lists the
space, places, prices and splits by itself. It leaves out only what cannot matter:

- choices of a stage of which another one is at most as large in both work and tail:
  iteration time never falls when either grows;
- of all stages' choices together those that are not the fastest of each stage for the
  longest tail that they have: with that given, stages are independent;
- configurations, placements and splits that take longer than the k-th best plan found
  before, even if nothing but compute (and transfers, and every stage's least work and
  least tail) took time: nothing takes less than none.
"""

from typing import NamedTuple

import numpy as np
import pytest

from estimators.platform import optimizer_step_bytes
from planner.search.best_first import search
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.step.plan import Plan
from tests.planner.naive_costs import Job, Option, Piece, Pieces, splits
from tests.planner.naive_placements import naive_grids, naive_placements
from tests.planner.naive_rates import NaiveRates, StageRates
from tests.planner.naive_space import Sizes, Space
from tests.planner.naive_wires import Wires
from topologies import Network

ROUNDING = 1.0 + 1e-9
"""Differences smaller than this are none."""


class Pace(NamedTuple):
    """Iteration time without its tail, as a function of the stages' work."""

    sum_weight: float
    max_weight: float
    transfers: tuple[tuple[float, ...], ...]
    """Of each stage, by replica; replicas that are alike once."""

    def time(self, works: list[float]) -> float:
        """``max_r { (sum_s t_s) / v + (m - 1 / v) max_s t_s }``, t work + transfers."""
        slowest = 0.0
        for row in self.transfers:
            loads = [work + extra for work, extra in zip(works, row, strict=True)]
            time = self.sum_weight * sum(loads) + self.max_weight * max(loads)
            slowest = max(slowest, time)
        return slowest


class BruteForce:
    """Everything that one problem is made of."""

    def __init__(self, network: Network, workload: Workload, spec: SearchSpec) -> None:
        self.space = Space(network, workload, spec)
        self.configurations = sorted(self.space.configurations())
        self.num_priced = 0
        """Pairs of a placement and a split that some choices fit."""
        self._wires = Wires(network)
        self._pieces: dict[object, tuple[list[list[Piece]], Pieces]] = {}
        self._options: dict[object, list[list[Option]]] = {}
        self._rates: dict[object, NaiveRates] = {}

    def best(self) -> list[float]:
        """Return the times of the k best configurations, or of all that fit."""
        keep = self.space.spec.keep_best
        every = sorted(
            (self.least(sizes, ((0.0,) * sizes.pp,)), sizes)
            for sizes in self.configurations
        )
        found: list[float] = []
        for least, sizes in every:
            cutoff = found[-1] if len(found) == keep else np.inf
            if least > cutoff * ROUNDING:
                break
            value = self.best_of(sizes, cutoff)
            if np.isfinite(value):
                found = sorted([*found, value])[:keep]
        # What each step takes once is no matter of the plan.
        return [value + self.space.workload.iteration_time for value in found]

    def best_of(self, sizes: Sizes, cutoff: float) -> float:
        """Return the best time of one configuration, or infinity if above a cutoff."""
        value = np.inf
        for grid in naive_grids(*self._cluster(sizes)):
            value = min(value, self.best_split(sizes, grid, min(value, cutoff)))
        return value

    def best_split(self, sizes: Sizes, grid: np.ndarray, cutoff: float) -> float:
        """Return the best time of one placement, or infinity if above the cutoff."""
        transfers = self.transfers(sizes, grid)
        if self.least(sizes, transfers) > cutoff * ROUNDING:
            return np.inf
        pace = self.pace(sizes, transfers)
        stages, tied = self.priced(sizes, grid)
        every, pieces = self.pieces(sizes)
        options = [
            self.options(sizes, rates, flying)
            for rates, flying in zip(stages, self.space.in_flight(sizes), strict=True)
        ]
        best = np.inf
        for split in every:
            fronts = [
                options[stage][pieces.number[piece]]
                for stage, piece in enumerate(split)
            ]
            if all(fronts):
                limit = min(best, cutoff * ROUNDING)
                best = min(best, best_choices(fronts, pace, tied, limit))
                self.num_priced += 1
        return best

    def pace(self, sizes: Sizes, transfers: tuple[tuple[float, ...], ...]) -> Pace:
        """Return the objective of a configuration: design, section 5."""
        share = 1.0 / sizes.v
        return Pace(share, self.space.num_microbatches(sizes) - share, transfers)

    def least(self, sizes: Sizes, transfers: tuple[tuple[float, ...], ...]) -> float:
        """Return a time that no plan beats: all but compute and transfers free [s].

        The slowest stage takes at least the mean of the stages, and no less than the
        slowest layer.
        """
        table = self.space.table(sizes)
        compute = table.forward_time + table.backward_time
        pace = self.pace(sizes, transfers)
        return max(
            pace.sum_weight * total
            + pace.max_weight * max(total / sizes.pp, compute.max())
            for total in (float(compute.sum()) + sum(row) for row in transfers)
        )

    def rates(self, sizes: Sizes, grid: np.ndarray) -> NaiveRates:
        """Return a placement's rates, made once."""
        key = grid.shape, grid.tobytes(), sizes.ep
        if key not in self._rates:
            self._rates[key] = NaiveRates(self._wires, grid, sizes.ep)
        return self._rates[key]

    def transfers(
        self, sizes: Sizes, grid: np.ndarray
    ) -> tuple[tuple[float, ...], ...]:
        """Return what each stage waits for boundaries, by replica, each case once."""
        boundary = self.space.table(sizes).boundary_bytes[1:-1].max(initial=0.0)
        rates = self.rates(sizes, grid)
        return tuple(sorted(set(rates.transfers(float(boundary), sizes.v))))

    def priced(
        self, sizes: Sizes, grid: np.ndarray
    ) -> tuple[list[StageRates], list[float]]:
        """Return the rates of a placement's stages, and what tied embeddings add."""
        table, rates = self.space.table(sizes), self.rates(sizes, grid)
        tensor = [item for item in table.traffic if item.group == "tensor"]
        num_bytes = sum(float(item.forward_bytes.sum()) for item in tensor)
        count = sum(float(item.forward_count.sum()) for item in tensor)
        gradients = self.space.workload.parameter_bytes.reduce
        stages = rates.stages(
            num_bytes / count if count else 0.0,
            float(table.parameters.sum()) * gradients / sizes.pp,
        )
        tied = [0.0] * sizes.pp
        if sizes.pp > 1 and table.tied_parameters > 0:
            latency, inverse = rates.tied
            tied[0] = tied[-1] = latency + inverse * gradients * table.tied_parameters
        return stages, tied

    def pieces(self, sizes: Sizes) -> tuple[list[list[Piece]], Pieces]:
        """Return the splits of a chain, and what stages may hold."""
        key = self.space.degrees(sizes), sizes.v, sizes.pp
        if key not in self._pieces:
            every = list(splits(*self.space.workload.chain, sizes.pp, sizes.v))
            pieces = sorted({piece for split in every for piece in split})
            self._pieces[key] = every, Pieces(self.space.table(sizes), pieces)
        return self._pieces[key]

    def options(
        self, sizes: Sizes, rates: StageRates, flying: int
    ) -> list[list[Option]]:
        """Return the choices of every piece at one stage."""
        job = self.job(sizes)
        key = self.space.degrees(sizes), sizes.v, sizes.pp, rates, job, flying
        if key not in self._options:
            _, pieces = self.pieces(sizes)
            self._options[key] = pieces.options(rates, job, flying)
        return self._options[key]

    def job(self, sizes: Sizes) -> Job:
        """Return what a stage's costs depend on beside its rates and its layers."""
        workload, members = self.space.workload, sizes.dp * sizes.cp
        each, zeros = workload.parameter_bytes, sorted(self.space.spec.zero_stages)
        return Job(
            modes=self.space.modes(sizes),
            # With nothing to share all ZeRO stages are one.
            zeros=tuple(zeros if members > 1 else zeros[:1]),
            each=each,
            step_time=optimizer_step_bytes(each) / workload.memory_rate(),
            shard_time=workload.shard_time,
            expert_group=members // sizes.ep,
            memory=self.space.memory,
        )

    def price(self, plan: Plan) -> tuple[float, list[float]]:
        """Return the time of one plan of the space, and the memory of its stages.

        Fails if the plan is not of the space.
        """
        sizes = sizes_of(plan)
        assert sizes in self.configurations
        assert plan.num_microbatches == self.space.num_microbatches(sizes)
        on = self.space.degrees(sizes).sequence_parallel
        assert plan.parallel.sequence_parallel == on
        numbers = [one for stage in plan.stages for row in stage.devices for one in row]
        assert tuple(numbers) in naive_placements(*self._cluster(sizes))
        grid = np.array(numbers).reshape(self.space.extents(sizes)[::-1])
        split = [
            tuple((first, last + 1) for first, last in stage.chunks)
            for stage in plan.stages
        ]
        assert split in self.pieces(sizes)[0]
        stages, tied = self.priced(sizes, grid)
        flying, job = self.space.in_flight(sizes), self.job(sizes)
        works, tails, peaks = [], [], []
        for index, stage in enumerate(plan.stages):
            choice = stage.recompute, stage.zero_stage, stage.sharding_group_size
            piece = Pieces(self.space.table(sizes), [split[index]])
            work, tail, peak = piece.price(stages[index], job, flying[index], choice)
            works.append(work)
            tails.append(tail + tied[index])
            peaks.append(peak)
        pace = self.pace(sizes, self.transfers(sizes, grid))
        once = self.space.workload.iteration_time
        return pace.time(works) + max(tails) + once, peaks

    def _cluster(self, sizes: Sizes) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        network = self.space.network
        return self.space.extents(sizes), network.num_devices, network.block_sizes


def sizes_of(plan: Plan) -> Sizes:
    """Return a plan's configuration."""
    tp, cp, ep, dp, pp = plan.parallel.sizes()
    v = plan.virtual_pipeline_model_parallel_size
    return Sizes(tp, cp, ep, plan.micro_batch_size, v, pp, dp)


def best_choices(
    fronts: list[list[Option]], pace: Pace, tied: list[float], limit: float
) -> float:
    """Return the best time over all choices of all stages, infinity if above a limit.

    For each tail that some stage may have: every stage's fastest choice with a tail at
    most as long. Fronts run by rising work and falling tail.
    """
    ends = [
        [(work, tail + extra) for work, tail in front]
        for front, extra in zip(fronts, tied, strict=True)
    ]
    shortest = max(front[-1][1] for front in ends)
    if pace.time([front[0][0] for front in ends]) + shortest > limit:
        return np.inf
    best = np.inf
    for longest in {tail for front in ends for _, tail in front if tail >= shortest}:
        works = [
            next(work for work, tail in front if tail <= longest) for front in ends
        ]
        best = min(best, pace.time(works) + longest)
    return best


def check(network: Network, workload: Workload, spec: SearchSpec) -> BruteForce:
    """Hold a search against everything that it might have found."""
    force = BruteForce(network, workload, spec)
    expected = force.best()
    result = search(network, workload, spec)
    found = [priced.closed_form_time for priced in result.plans]
    assert found == pytest.approx(expected, rel=1e-9)
    assert result.statistics["configurations"] == len(force.configurations)
    assert bool(result.infeasibility) == (not expected)
    best = expected[0] if expected else np.inf
    assert result.lower_bound == pytest.approx(best, rel=1e-9)
    assert len({sizes_of(priced.plan) for priced in result.plans}) == len(found)
    for priced in result.plans:
        time, peaks = force.price(priced.plan)
        assert priced.closed_form_time == pytest.approx(time, rel=1e-9)
        assert max(peaks) <= force.space.memory
    return force
