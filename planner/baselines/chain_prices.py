"""Prices of any split of a chain, once its configuration and placement are known.

The same numbers as `planner.pricing.price_plan`, read from the tables that the search
splits by: a state of a walk, or one of millions of enumerated splits, costs a look-up
for each stage. Stages run from the first to the last here.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.assembly import assemble_plan
from planner.candidates import CandidateSet, Solution
from planner.class_table import Choice
from planner.kernels import split as split_kernel
from planner.kernels import tables
from planner.loads import Weights, iteration_weights
from planner.placements import Placement
from planner.plan import Plan
from planner.space import Configuration, Inner
from planner.stage_rates import PlacementRates
from planner.step.ledger import KERNEL_LEDGER, gathers_once
from planner.work import SPLIT, SPLIT_NUMBERS
from topologies.arrays import FloatArray, IntArray

MOST_ENTRIES = 2 * 10**7
"""Numbers in the tables that are kept at a time: 320 MB."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedChain:
    """What any interval costs at any stage of a configuration on a placement."""

    placement: Placement

    rates: PlacementRates

    choices: tuple[Choice, ...]
    """What each stage may choose from, cheapest first."""

    class_of: IntArray
    """Class of the interval ``i .. j - 1`` of the folded chain, shape ``(L+1, L+1)``;
    -1 if empty."""

    time: FloatArray
    """Of one microbatch, by distinct rates, choice and class, ``(sig, C, K)`` [s]."""

    tail: FloatArray
    """After the last backward pass, likewise [s]."""

    slots: IntArray
    """Passes in flight that memory allows, shape ``(C, K)``."""

    signature: IntArray
    """Row of the rates of each stage, shape ``(p,)``."""

    adder: FloatArray
    """What transfers add to a stage's load in the maximum, shape ``(p,)`` [s]."""

    tied: FloatArray
    """What tied embeddings add to each stage's tail, shape ``(p,)`` [s]."""

    in_flight: IntArray
    """Passes in flight at each stage, shape ``(p,)``."""

    weights: Weights
    """Of the sum and of the maximum of the stages' times."""

    constant: float
    """Added to every split: transfers in no maximum, and what each step takes once
    [s]."""

    @cached_property
    def number(self) -> dict[Choice, int]:
        """Position of each choice."""
        return {choice: index for index, choice in enumerate(self.choices)}

    @cached_property
    def most(self) -> IntArray:
        """Passes in flight that some choice allows, shape ``(K,)``."""
        return np.asarray(self.slots.max(axis=0))

    def classes(self, bounds: IntArray) -> IntArray:
        """Return the class of each stage's interval, shape ``(p,)``."""
        return np.asarray(self.class_of[bounds[:-1], bounds[1:]])

    def value(self, bounds: IntArray, picked: IntArray) -> float:
        """Return the iteration time, infinite if memory does not suffice [s].

        Parameters
        ----------
        bounds
            First folded layer of each stage, and their number, shape ``(p + 1,)``.
        picked
            Number of each stage's choice, shape ``(p,)``.
        """
        classes = self.classes(bounds)
        if (self.slots[picked, classes] < self.in_flight).any():
            return np.inf
        time = self.time[self.signature, picked, classes]
        tail = self.tail[self.signature, picked, classes] + self.tied
        most = (time + self.adder).max()
        return float(
            self.constant
            + self.weights.sum * time.sum()
            + self.weights.max * most
            + tail.max()
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainPrices:
    """The chains of a space, priced when asked for."""

    candidates: CandidateSet
    _chains: dict[tuple[Configuration, int], PlacedChain] = field(default_factory=dict)
    _held: list[int] = field(default_factory=lambda: [0])

    def chain(self, configuration: Configuration, number: int) -> PlacedChain:
        """Return the prices on one of a configuration's placements, made once."""
        key = configuration, number
        found = self._chains.get(key)
        if found is None:
            placement = self.candidates.placements(configuration)[number]
            found = self._priced(configuration, placement)
            if self._held[0] + found.time.size > MOST_ENTRIES:
                self._chains.clear()
                self._held[0] = 0
            self._held[0] += found.time.size
            self._chains[key] = found
        return found

    def plan(
        self,
        configuration: Configuration,
        chain: PlacedChain,
        bounds: IntArray,
        choices: tuple[Choice, ...],
    ) -> Plan:
        """Write a split out as a plan."""
        solution = Solution(0.0, bounds, choices, chain.placement, chain.rates)
        return assemble_plan(self.candidates, configuration, solution)

    def _priced(
        self, configuration: Configuration, placement: Placement
    ) -> PlacedChain:
        candidates, p = self.candidates, configuration.pp
        splitter, workload = candidates.splitter, candidates.workload
        folded = splitter.folded(configuration)
        rates = candidates.rates(configuration, placement)
        read = rates.stage_rates
        m, v = splitter.num_microbatches(configuration), configuration.v
        weights = iteration_weights(m, v)
        adder, constant = split_kernel.stage_adders(
            read.boundary, folded.boundary_bytes, v, weights.sum, weights.max
        )
        numbers = splitter.choice_array(configuration, len(read.group_sizes))
        constants = splitter.constants(configuration, splitter.memory)
        table = folded.table
        time, tail = tables.time_and_tail(
            table.sums,
            table.traffic,
            table.traffic_rate,
            numbers,
            read.group_sizes,
            read.rows,
            constants,
            KERNEL_LEDGER,
        )
        times = gathers_once(numbers[:, tables.CHOICE_ZERO])
        ranks = times * read.senders[numbers[:, tables.CHOICE_SHARDING]]
        tail += workload.shard_time * ranks[:, None]
        slots = tables.memory_slots(
            table.sums, numbers, read.group_sizes, constants, KERNEL_LEDGER
        )
        priced = time.size + tail.size + slots.size
        candidates.work.spend(SPLIT + priced // SPLIT_NUMBERS)
        if v > 1:
            # Every stage has a block in each of its chunks.
            slots[:, folded.no_block] = 0
        tied = np.zeros(p)
        if p > 1 and folded.tied_bytes > 0.0:
            tied[[0, -1]] = read.tied[0] + folded.tied_bytes * read.tied[1]
        return PlacedChain(
            placement=placement,
            rates=rates,
            choices=splitter.choices(configuration, len(rates.shardings)),
            class_of=table.classes.class_of,
            time=time,
            tail=tail,
            slots=slots,
            signature=read.signature,
            adder=np.ascontiguousarray(adder[:0:-1]),
            tied=tied,
            in_flight=np.ascontiguousarray(splitter.in_flight(configuration)[:0:-1]),
            weights=weights,
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
            tp, cp, ep, b, _ = item.degrees
            self._inner[tp, cp, ep, b, item.v] = item
        self._replicas: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._held = 0
        self.sizes: dict[str, tuple[int, ...]] = {
            name: tuple(sorted({key[place] for key in self._inner}))
            for place, name in enumerate(("tp", "cp", "ep", "b", "v"))
        }
        """Values of each size that some configuration has, rising."""

    def stages(self, tp: int, cp: int, ep: int, b: int, v: int = 1) -> tuple[int, ...]:
        """Return the numbers of stages that go with these sizes, rising."""
        item = self._inner.get((tp, cp, ep, b, v))
        return () if item is None else tuple(np.unique(item.pp).tolist())

    def replicas(self, configuration: Configuration) -> tuple[int, ...]:
        """Return the numbers of replicas that go with the other sizes, rising."""
        tp, cp, ep, b, v, pp, _ = configuration
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
