"""States of a Metropolis walk: one split of one configuration on one placement.

Their prices are the same numbers as those of `planner.cost.pricing.price_plan`, read
from the tables that the search splits by: a state of a walk, or one of millions of
enumerated splits, costs a look-up for each stage. Stages run from the first to the last
here.
"""

import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from random import Random
from typing import NamedTuple

import numpy as np

from planner.cost.choices import MemoryChoice
from planner.cost.pricing import iteration_weights, plan_degrees
from planner.cost.rates import PlacementRates
from planner.kernels import split as split_kernel
from planner.kernels.rivals import StagedChain
from planner.rivals.launched import Launcher
from planner.search.candidates import CandidateSet, Solution, assemble_plan
from planner.search.launchable_sizes import orders_of
from planner.search.placements import (
    Placement,
    extents_of,
    name_parts,
    whole_dimensions,
)
from planner.search.space import Configuration, Inner, configuration_of
from planner.step.plan import Plan
from planner.step.virtual import chunks_of_bounds
from planner.work import SPLIT, SPLIT_NUMBERS
from topologies.arrays import FloatArray, IntArray

MOST_ENTRIES = 2 * 10**7
"""Numbers in the tables that are kept at a time: 320 MB."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedChain:
    """What any interval costs at any stage of a configuration on a placement."""

    placement: Placement
    """Where the ranks are."""

    rates: PlacementRates
    """Rates of the placement."""

    choices: tuple[MemoryChoice, ...]
    """Memory choices of a stage, cheapest first."""

    priced: StagedChain
    """What intervals of the interleaved chain cost, as the kernels take it; the class
    of an empty one is -1."""

    constant: float
    """Time added to every split: transfers in no maximum, and what each step takes once
    [s]."""

    @cached_property
    def number(self) -> dict[MemoryChoice, int]:
        """Position of each choice."""
        return {choice: index for index, choice in enumerate(self.choices)}

    @cached_property
    def most(self) -> IntArray:
        """Passes in flight that some choice allows, shape ``(mem, K)``."""
        return np.asarray(self.priced.most_in_flight.max(axis=1))

    def classes(self, bounds: IntArray) -> IntArray:
        """Return the class of each stage's interval, shape ``(p,)``."""
        return np.asarray(self.priced.class_of[bounds[:-1], bounds[1:]])

    def value(self, bounds: IntArray, picked: IntArray) -> float:
        """Return the iteration time, infinite if memory does not suffice [s].

        Parameters
        ----------
        bounds
            First layer of each stage in the interleaved chain, and the number of
            layers, shape ``(p + 1,)``.
        picked
            Number of each stage's choice, shape ``(p,)``.
        """
        priced, classes = self.priced, self.classes(bounds)
        most = priced.most_in_flight[priced.memory_row, picked, classes]
        if (most < priced.in_flight).any():
            return np.inf
        time = priced.time[priced.signature, picked, classes]
        step_end = priced.step_end[priced.signature, picked, classes] + priced.tied
        largest = (time + priced.adder).max()
        return float(
            self.constant
            + priced.sum_weight * time.sum()
            + priced.max_weight * largest
            + step_end.max()
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainPrices:
    """The chains of a space, priced when asked for."""

    candidates: CandidateSet
    """Configurations of the space, with their placements and bounds."""
    _chains: dict[tuple[Configuration, int], PlacedChain] = field(default_factory=dict)
    """(Configuration, number of its placement) -> prices of its chain."""
    _held: list[int] = field(default_factory=lambda: [0])
    """Count of numbers that are kept, in a list because the rest is frozen."""

    def chain(self, configuration: Configuration, number: int) -> PlacedChain:
        """Return the prices on one of a configuration's placements, made once."""
        key = configuration, number
        placed = self._chains.get(key)
        if placed is None:
            placement = self.candidates.placements(configuration)[number]
            placed = self._priced(configuration, placement)
            if self._held[0] + placed.priced.time.size > MOST_ENTRIES:
                self._chains.clear()
                self._held[0] = 0
            self._held[0] += placed.priced.time.size
            self._chains[key] = placed
        return placed

    def plan(
        self,
        configuration: Configuration,
        chain: PlacedChain,
        bounds: IntArray,
        choices: tuple[MemoryChoice, ...],
    ) -> Plan:
        """Write a split out as a plan."""
        solution = Solution(0.0, bounds, choices, chain.placement, chain.rates)
        return assemble_plan(self.candidates, configuration, solution)

    def _priced(
        self, configuration: Configuration, placement: Placement
    ) -> PlacedChain:
        candidates, p = self.candidates, configuration.pp
        splitter, workload = candidates.splitter, candidates.workload
        interleaved = splitter.interleaved_chain(configuration)
        rates = candidates.rates(configuration, placement)
        read = rates.stage_rates
        m, v = splitter.num_microbatches(configuration), configuration.v
        weights = iteration_weights(m, v)
        adder, constant = split_kernel.stage_adders(
            read.boundary, interleaved.boundary_bytes, v, weights.sum, weights.max
        )
        table = interleaved.table
        costs = splitter.choice_costs(configuration, read, candidates.kinds(placement))
        candidates.work.spend(SPLIT + costs.size // SPLIT_NUMBERS)
        in_flight, tied = splitter.in_flight(configuration), np.zeros(p)
        if p > 1 and interleaved.tied_bytes > 0.0:
            tied[[0, -1]] = read.tied[0] + interleaved.tied_bytes * read.tied[1]
        return PlacedChain(
            placement=placement,
            rates=rates,
            choices=splitter.choices(configuration, len(rates.shardings)),
            priced=StagedChain(
                class_of=table.classes.class_of,
                time=costs.time,
                step_end=costs.step_end,
                most_in_flight=costs.most_in_flight,
                memory_row=costs.memory_row,
                signature=costs.signature,
                adder=np.ascontiguousarray(adder[:0:-1]),
                tied=tied,
                in_flight=np.ascontiguousarray(in_flight[:0:-1]),
                sum_weight=weights.sum,
                max_weight=weights.max,
            ),
            constant=constant + workload.iteration_time,
        )


class SpaceIndex:
    """Which sizes a space allows beside which others.

    Parameters
    ----------
    inner
        Its configurations, by what their tables depend on.
    """

    def __init__(self, inner: tuple[Inner, ...]) -> None:
        self._inner: dict[tuple[int, ...], Inner] = {}
        for item in inner:
            tp, cp, ep, b, *_ = item.degrees
            self._inner[tp, cp, ep, b, item.v] = item
        self._replicas: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._held = 0
        self.sizes: dict[str, tuple[int, ...]] = {
            name: tuple(sorted({key[place] for key in self._inner}))
            for place, name in enumerate(("tp", "cp", "ep", "b", "v"))
        }
        """Values of each size that some configuration has, rising."""

    def regrouped(self, configuration: Configuration) -> Configuration:
        """Return a configuration with the groups that go with its sizes."""
        tp, cp, ep, b, v, *_ = configuration
        item = self._inner.get((tp, cp, ep, b, v))
        if item is None:
            return configuration
        return configuration._replace(grouping=item.degrees.grouping)

    def stages(self, tp: int, cp: int, ep: int, b: int, v: int = 1) -> tuple[int, ...]:
        """Return the numbers of stages that go with these sizes, rising."""
        item = self._inner.get((tp, cp, ep, b, v))
        return () if item is None else tuple(np.unique(item.pp).tolist())

    def replicas(self, configuration: Configuration) -> tuple[int, ...]:
        """Return the numbers of replicas that go with the other sizes, rising."""
        tp, cp, ep, b, v, pp, *_ = configuration
        item = self._inner.get((tp, cp, ep, b, v))
        if item is None:
            return ()
        key = tp, cp, ep, b, v, pp
        if key not in self._replicas:
            first, last = np.searchsorted(item.pp, (pp, pp + 1))
            if self._held > MOST_ENTRIES:
                self._replicas.clear()
                self._held = 0
            self._replicas[key] = tuple(item.dp[first:last].tolist())
            self._held += int(last - first)
        return self._replicas[key]


MOST_VALUES = 2**17
"""States whose prices are kept at a time."""


class WalkState(NamedTuple):
    """One plan of the space."""

    configuration: Configuration
    """Sizes of the plan."""

    placement: int
    """Number of the placement among those of the configuration."""

    bounds: tuple[int, ...]
    """First layer of each stage in the interleaved chain, and the number of layers."""

    choices: tuple[MemoryChoice, ...]
    """Memory choice of each stage, first to last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walkable:
    """A space that states can be made of, and their prices."""

    index: SpaceIndex
    """Configurations of the space, by their sizes."""
    prices: ChainPrices
    """Prices of the placed chains."""
    once: float
    """Time that each step takes once, whatever the plan [s]."""
    launcher: Launcher | None = None
    """What holds plans to the framework; None where plans are free."""
    _prefixes: dict[tuple[int, ...], FloatArray] = field(default_factory=dict)
    _values: dict[WalkState, float] = field(default_factory=dict)
    """State -> its price [s]."""
    _splits: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = field(
        default_factory=dict
    )
    """Stages and chunks -> the splits that the framework has."""
    _kept: dict[WalkState, bool] = field(default_factory=dict)
    """State -> whether its plan keeps the rules."""

    @classmethod
    def of(
        cls, candidates: CandidateSet, launcher: Launcher | None = None
    ) -> "Walkable":
        """Return what walks need of a space."""
        return cls(
            index=SpaceIndex(candidates.inner),
            prices=ChainPrices(candidates=candidates),
            once=candidates.workload.iteration_time,
            launcher=None if launcher is None or launcher.space is None else launcher,
        )

    def chain(self, state: WalkState) -> PlacedChain:
        """Return the prices that a state is read from."""
        return self.prices.chain(state.configuration, state.placement)

    def value(self, state: WalkState) -> float:
        """Return the iteration time, infinite if memory does not suffice [s]."""
        known = self._values.get(state)
        if known is not None:
            return known
        chain = self.chain(state)
        picked = [chain.number[choice] for choice in state.choices]
        value = chain.value(np.array(state.bounds), np.array(picked))
        if len(self._values) >= MOST_VALUES:
            self._values.clear()
        self._values[state] = value
        return value

    def floor(self, configuration: Configuration, bounds: tuple[int, ...]) -> float:
        """Return a time that a split takes at least, wherever it stands [s]."""
        splitter = self.prices.candidates.splitter
        key = configuration[:5]
        if key not in self._prefixes:
            minima = splitter.interleaved_chain(configuration).minima
            self._prefixes[key] = np.concatenate([[0.0], np.cumsum(minima)])
        starts = self._prefixes[key][list(bounds)]
        times = starts[1:] - starts[:-1]
        m, v = splitter.num_microbatches(configuration), configuration.v
        weights = iteration_weights(m, v)
        total = weights.sum * times.sum() + weights.max * times.max()
        return self.once + float(total)

    def plan(self, state: WalkState) -> Plan:
        """Write a state out as a plan, with a schedule that the framework has."""
        plan = self.prices.plan(
            state.configuration,
            self.chain(state),
            np.array(state.bounds),
            state.choices,
        )
        if self.launcher is None or state.configuration.pp == 1:
            return plan
        rules = self.launcher.spec.rules
        usual = rules and rules.usual_schedule(state.configuration.v)
        return replace(plan, schedule=usual) if usual else plan

    def keeps_rules(self, state: WalkState) -> bool:
        """Tell whether a state's plan can be launched, where that is asked for."""
        if self.launcher is None:
            return True
        known = self._kept.get(state)
        if known is None:
            if len(self._kept) >= MOST_VALUES:
                self._kept.clear()
            known = not self.launcher.breaches(self.plan(state))
            self._kept[state] = known
        return known

    def launched(self, state: WalkState, old: WalkState) -> WalkState | None:
        """Return a state as the framework would have it; itself where plans are free.

        With the nearest split that it has, and with one choice for all stages: the
        first that the old state does not have, or else the first.
        """
        if self.launcher is None or self.launcher.space is None:
            return state
        splits = self.launched_splits(state.configuration)
        if not splits:
            return None
        cuts = np.array(state.bounds)
        bounds = min(
            splits, key=lambda split: int(np.abs(cuts - np.array(split)).sum())
        )
        choices = state.choices
        if self.launcher.space.rules.same_savings:
            new = (choice for choice in choices if choice not in old.choices)
            choices = (next(new, choices[0]),) * len(choices)
        placement = self._launched_placement(state)
        return state._replace(placement=placement, bounds=bounds, choices=choices)

    def _launched_placement(self, state: WalkState) -> int:
        """Return a state's placement if ranks are in one of the framework's orders.

        Otherwise the first that is, if there is one.
        """
        assert self.launcher is not None
        assert self.launcher.space is not None
        extents = extents_of(state.configuration)
        orders = orders_of(self.launcher.space.rules, state.configuration)
        known = {whole_dimensions(order, extents).name for order in orders}
        names = [
            name_parts(placement.name)[0]
            for placement in self.placements(state.configuration)
        ]
        if names[state.placement] in known:
            return state.placement
        can = (number for number, name in enumerate(names) if name in known)
        return next(can, state.placement)

    def launched_splits(
        self, configuration: Configuration
    ) -> tuple[tuple[int, ...], ...]:
        """Return the splits of the interleaved chain that the framework has."""
        assert self.launcher is not None
        assert self.launcher.space is not None
        p, v = configuration.pp, configuration.v
        key = p, v
        if key not in self._splits:
            num_layers, num_blocks = self.prices.candidates.workload.chain
            first = self._first_block(configuration)
            splits = [
                (0, *(first + np.cumsum(counts[: p - 1])).tolist(), last)
                for counts in self.launcher.space.layouts(p, v)
                if counts[:p] * v == counts
                for last in (num_layers - num_blocks + num_blocks // v,)
            ]
            self._splits[key] = tuple(dict.fromkeys(splits))
        return self._splits[key]

    def state_of(self, plan: Plan) -> WalkState | None:
        """Return the state of a plan, None if its chunks are not alike."""
        configuration = configuration_of(plan)
        bounds = self._bounds_of(plan)
        if bounds is None:
            return None
        names = [placement.name for placement in self.placements(configuration)]
        number = names.index(plan.placement)
        groups = [
            option.group_size
            for option in self.prices.chain(configuration, number).rates.shardings
        ]
        choices = tuple(
            MemoryChoice(
                stage.recompute,
                stage.zero_stage,
                groups.index(stage.sharding_group_size) if stage.zero_stage else 0,
                stage.offload,
            )
            for stage in plan.stages
        )
        return WalkState(configuration, number, bounds, choices)

    def _bounds_of(self, plan: Plan) -> tuple[int, ...] | None:
        """Return the split of the interleaved chain that makes a plan, None without."""
        num_layers, num_blocks = self.prices.candidates.workload.chain
        v = plan.virtual_pipeline_model_parallel_size
        if num_blocks % v:
            return None
        starts = tuple(stage.chunks[0][0] for stage in plan.stages)
        bounds = (*starts, num_layers - num_blocks + num_blocks // v)
        is_block = self.prices.candidates.workload.table(plan_degrees(plan)).is_block
        chunks = tuple(stage.chunks for stage in plan.stages)
        alike = chunks_of_bounds(np.array(bounds), is_block, v) == chunks
        return bounds if alike else None

    def placements(self, configuration: Configuration) -> tuple[Placement, ...]:
        """Return a configuration's placements, at least one."""
        return self.prices.candidates.placements(configuration)

    def uniform(self, configuration: Configuration) -> tuple[int, ...]:
        """Return the most even split of blocks, ends of the chain with their stage."""
        interleaved = self.prices.candidates.splitter.interleaved_chain(configuration)
        length = len(interleaved.minima)
        p = configuration.pp
        num_blocks = self.prices.candidates.workload.chain[1] // configuration.v
        if p > num_blocks:
            return tuple(turn * length // p for turn in range(p + 1))
        first = self._first_block(configuration)
        inner = (first + turn * num_blocks // p for turn in range(1, p))
        return (0, *inner, length)

    def split(self, configuration: Configuration, rng: Random) -> tuple[int, ...]:
        """Draw a split: even in blocks, even in layers, or any."""
        kind = rng.choice(("blocks", "layers", "any"))
        if kind == "blocks":
            return self.uniform(configuration)
        interleaved = self.prices.candidates.splitter.interleaved_chain(configuration)
        length, p = len(interleaved.minima), configuration.pp
        if kind == "layers":
            return tuple(turn * length // p for turn in range(p + 1))
        return (0, *sorted(rng.sample(range(1, length), p - 1)), length)

    def choices(self, configuration: Configuration) -> tuple[MemoryChoice, ...]:
        """Return what stages may choose from on any placement."""
        return self.prices.candidates.splitter.choices(configuration, 1)

    def _first_block(self, configuration: Configuration) -> int:
        candidates = self.prices.candidates
        table = candidates.workload.table(candidates.splitter.degrees(configuration))
        return int(table.is_block.argmax())

    def settled(
        self,
        configuration: Configuration,
        placement: int,
        bounds: tuple[int, ...],
        preferred: tuple[MemoryChoice, ...],
    ) -> WalkState | None:
        """Return a state whose stages keep their choices where these fit.

        A stage whose choice does not fit, or is not offered, takes the first that does;
        a split that leaves a stage none gives way to the one that memory asks for. None
        if there is none either.
        """
        chain = self.prices.chain(configuration, placement)
        numbers = _fitting(chain, bounds, preferred)
        if numbers is None:
            bounds = _memory_split(chain, configuration.pp)
            numbers = _fitting(chain, bounds, preferred) if bounds else None
        if numbers is None:
            return None
        choices = tuple(chain.choices[number] for number in numbers)
        return WalkState(configuration, placement, bounds, choices)

    def random(self, rng: Random) -> WalkState | None:
        """Draw a configuration and a placement; None if nothing fits there."""
        candidates = self.prices.candidates
        configuration = candidates[rng.randrange(len(candidates))]
        placement = rng.randrange(len(self.placements(configuration)))
        bounds = self.split(configuration, rng)
        return self.settled(configuration, placement, bounds, ())

    def like(self, state: WalkState, configuration: Configuration) -> int:
        """Return the placement that nests dimensions as a state's does, or the first.

        Sizes do not matter, nor do dimensions of size 1, which names leave out.
        """
        old = self.placements(state.configuration)[state.placement]
        order = _order(old.name)
        for number, placement in enumerate(self.placements(configuration)):
            if _order(placement.name) == order:
                return number
        return 0


@lru_cache(maxsize=4096)
def _order(name: str) -> str:
    return re.sub(r"[0-9]+", "", name)


def _fitting(
    chain: PlacedChain, bounds: tuple[int, ...], preferred: tuple[MemoryChoice, ...]
) -> list[int] | None:
    """Return a choice that fits for each stage, the preferred one where it does.

    None if nothing fits some stage.
    """
    priced, classes = chain.priced, chain.classes(np.array(bounds))
    fits = priced.in_flight <= priced.most_in_flight[priced.memory_row, :, classes].T
    if not fits.any(axis=0).all():
        return None
    chosen: list[int] = fits.argmax(axis=0).tolist()
    for stage, choice in enumerate(preferred[: len(chosen)]):
        number = chain.number.get(choice, -1)
        if number >= 0 and fits[number, stage]:
            chosen[stage] = number
    return chosen


def _memory_split(chain: PlacedChain, p: int) -> tuple[int, ...]:
    """Return a split that fits, each stage from the end as long as can be, or nothing.

    Memory grows with the interval: if any split fits, this one does. O(L + p).
    """
    priced = chain.priced
    end = len(priced.class_of) - 1
    bounds = [end]
    for stage in range(p - 1, -1, -1):
        # Each stage before this one takes at least a layer, and the first all.
        starts = range(stage, end) if stage else (0,)
        needed = priced.in_flight[stage]
        most = chain.most[priced.memory_row[stage]]
        fits = (s for s in starts if most[priced.class_of[s, end]] >= needed)
        end = next(fits, -1)
        if end < 0:
            return ()
        bounds.append(end)
    return tuple(reversed(bounds))
