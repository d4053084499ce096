"""The plan of a space that needs the least memory, and why even that does not fit.

The memory that a configuration needs is bisected with the search's own test of room.
Two sizes are never the way out of a lack of memory, and are left at 1 where the space
allows that: virtual stages, since an interleaved pipeline keeps more activations in
flight [1]_, and the micro-batch, since what is in flight grows with it.

References
----------
.. [1] Narayanan et al., SC 2021, section 2.2.
"""

from typing import NamedTuple

import numpy as np

from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.search.candidates import CandidateSet, assemble_plan
from planner.search.device_kinds import placed_kinds
from planner.search.space import Configuration
from topologies.arrays import FloatArray, IntArray
from topologies.units import format_size

PRECISION = 0.01
"""Relative precision that the least memory is found to."""


class ThriftiestPlan(NamedTuple):
    """The plan of a space that needs the least memory."""

    configuration: Configuration
    """Sizes of the plan."""
    priced: PricedPlan
    """Fastest plan of those that need the least memory, on its best placement."""
    stage: int
    """Number of the plan's fullest stage."""
    scarcity: float
    """Factor by which the most memory of any device exceeds that of the stage's."""

    @property
    def peak(self) -> float:
        """Memory of the fullest stage's devices [byte]."""
        return self.priced.stages[self.stage].peak_memory

    @property
    def needed(self) -> float:
        """What that is on devices with the most memory, shares being equal [byte]."""
        return self.peak * self.scarcity


def fullest_stage(priced: PricedPlan, scarcity: FloatArray | float = 1.0) -> int:
    """Return the stage whose devices need the most memory, the first of equals.

    Where devices differ, by what they have: ``scarcity`` as in
    `planner.search.device_kinds.PlacedKinds`.
    """
    peaks = np.array([stage.peak_memory for stage in priced.stages])
    return int(np.argmax(peaks * scarcity))


def space_infeasibility(candidates: CandidateSet) -> str:
    """Say what stops every configuration of the space, and by how much."""
    if not len(candidates):
        reasons = ", ".join(
            f"{n} {why}" for why, n in candidates.statistics.items() if n
        )
        return f"The search space is empty: {reasons or 'no size is left to try'}."
    memory, workload = candidates.memory, candidates.workload
    name = workload.accelerator.name
    if memory <= 0:
        return f"The memory reserve leaves nothing of {name}'s memory to plan with."
    least = thriftiest_plan(candidates)
    room = memory / least.scarcity
    name = workload.smallest_of(least.priced.plan.stages[least.stage].devices).name
    if least.needed <= memory:
        return (
            "The search was stopped before it found a plan: the least demanding "
            f"configuration ({sizes_label(least.configuration)}) would fit "
            f"{format_size(room)} of {name}."
        )
    missing = format_size(least.peak - room)
    return (
        f"Out of memory: the least demanding configuration "
        f"({sizes_label(least.configuration)}) needs {format_size(least.peak)} per "
        f"device, and {name} has {format_size(room)} to give, {missing} too little. "
        f"{memory_sentence(least.priced, least.stage)}"
    )


def memory_sentence(priced: PricedPlan, index: int) -> str:
    """Say what the memory of a plan's fullest stage is made of, most first."""
    held = priced.stages[index].memory
    parts = sorted(held.items(), key=lambda part: -part[1])
    listed = ", ".join(f"{name} {format_size(n)}" for name, n in parts if n)
    saved = priced.plan.stages[index]
    return (
        f"Its fullest stage, {index + 1} of {len(priced.stages)} (recompute "
        f"{saved.recompute}, ZeRO-{saved.zero_stage}), holds {listed}."
    )


def thriftiest_plan(candidates: CandidateSet) -> ThriftiestPlan:
    """Return the plan that needs the least memory, to `PRECISION`.

    The space must not be empty.
    """
    memory, index = _least_memory(candidates)
    configuration = candidates[index]
    while (priced := plan_within(candidates, configuration, memory)) is None:
        # Room is necessary for a split on a true placement, not sufficient.
        memory *= 1 + PRECISION
    best = _thriftiest(candidates, configuration, priced)
    # So another configuration, which seemed to need more, may need less.
    numbers = thrifty_configurations(candidates)
    held = candidates.outer.memory[numbers]
    for number in numbers[np.argsort(held, kind="stable")].tolist():
        if candidates.outer.memory[number] >= best.needed * (1 - PRECISION):
            break
        best = _thriftier(candidates, number, best)
    return best


def _thriftier(
    candidates: CandidateSet, number: int, best: ThriftiestPlan
) -> ThriftiestPlan:
    """Return a configuration's plan if it needs less than the best by the precision."""
    configuration = candidates[number]
    while True:
        memory = best.needed * (1 - PRECISION)
        if not candidates.fits(configuration, memory):
            return best
        priced = plan_within(candidates, configuration, memory)
        if priced is None:
            return best
        best = _thriftiest(candidates, configuration, priced)


def _thriftiest(
    candidates: CandidateSet, configuration: Configuration, priced: PricedPlan
) -> ThriftiestPlan:
    """Return a plan with the stage that fills its devices most."""
    devices = [stage.devices for stage in priced.plan.stages]
    kinds = placed_kinds(
        candidates.workload, np.array(devices), candidates.spec.memory_reserve
    )
    stage = fullest_stage(priced, kinds.scarcity)
    return ThriftiestPlan(configuration, priced, stage, float(kinds.scarcity[stage]))


def plan_within(
    candidates: CandidateSet, configuration: Configuration, memory: float
) -> PricedPlan | None:
    """Return a configuration's best plan within a memory [byte], None if none fits."""
    within = candidates.within(memory)
    solution = within.solve(configuration, np.inf)
    if solution is None:
        return None
    plan = assemble_plan(within, configuration, solution)
    return price_plan(candidates.network, candidates.workload, plan)


def sizes_label(configuration: Configuration) -> str:
    """Write a configuration: ``tp 8, cp 1, ep 1, b 1, v 1, pp 4, dp 16``."""
    sizes = configuration._asdict().items()
    return ", ".join(f"{size} {n}" for size, n in sizes if size != "grouping")


def thrifty_configurations(candidates: CandidateSet) -> IntArray:
    """Return the indices of those that may need the least memory (see above)."""
    found = np.arange(len(candidates))
    inner = candidates.inner
    for is_one in (
        np.array([item.v == 1 for item in inner], dtype=np.bool_),
        np.array([item.degrees.micro_batch_size == 1 for item in inner], np.bool_),
    ):
        kept = found[is_one[candidates.outer.inner[found]]]
        found = kept if kept.size else found
    return found


def _least_memory(candidates: CandidateSet) -> tuple[float, int]:
    """Return the least memory under which some configuration fits, and which it is.

    Goes through the configurations by their bound and stops at one that cannot do
    better; each is bisected only if it beats the best so far by the precision.
    """
    best, found = np.inf, 0
    numbers = thrifty_configurations(candidates)
    held = candidates.outer.memory[numbers]
    for index in numbers[np.argsort(held, kind="stable")]:
        bound = float(candidates.outer.memory[index])
        if bound >= best * (1 - PRECISION):
            break
        configuration = candidates[int(index)]
        high = best * (1 - PRECISION)
        if np.isinf(best):
            high = max(bound, 1.0)
            while not candidates.fits(configuration, high):
                high *= 2.0
        elif not candidates.fits(configuration, high):
            continue
        best, found = _bisected(candidates, configuration, bound, high), int(index)
    return best, found


def _bisected(
    candidates: CandidateSet, configuration: Configuration, low: float, high: float
) -> float:
    """Return the least memory that leaves a configuration room, from above [byte]."""
    while high - low > PRECISION * high:
        middle = 0.5 * (low + high)
        if candidates.fits(configuration, middle):
            high = middle
        else:
            low = middle
    return high
