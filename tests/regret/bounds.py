"""``python -m tests.regret --bounds N``: no bound is above the replay of its plan.

Random plans of small random jobs, each with all its bounds and its replay.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from planner.frameworks.framework import FRAMEWORKS
from planner.step.schedules import SCHEDULES
from tests.planner.search.replayed.test_bounds import (
    FASTER,
    adding_world,
    experts_behind_passes,
    grouped_world,
    held_bounds,
    paired_world,
    shared_world,
    split_world,
)
from tests.planner.search.replayed.worlds import ROUNDING, World, random_world

CONFIGURATIONS, PLANS = 10, 5
"""Of a job, at most, and of each configuration."""


def _split(schedule: str) -> Callable[[int], World]:
    return lambda seed: split_world(seed, schedule)


def _of(preset: str) -> Callable[[int], World]:
    return lambda seed: random_world(seed, preset=preset)


KINDS: dict[str, Callable[[int], World | None]] = {
    **{preset: _of(preset) for preset in sorted(FRAMEWORKS)},
    **{
        name: _split(name)
        for name, schedule in SCHEDULES.items()
        if schedule.splits_backward
    },
    "gpipe": lambda seed: random_world(seed, preset="ideal").spec_with(
        schedules=("gpipe",), pipeline_model_parallel_sizes=(2, 3, 4, 6, 8)
    ),
    "joined networks": lambda seed: random_world(seed, joined=True),
    "shared adapters": shared_world,
    "switches that add": adding_world,
    "experts behind passes": experts_behind_passes,
    "groups of microbatches": grouped_world,
    "pairs of passes": paired_world,
}
"""Jobs, in turn: seed s draws one of kind s modulo their number."""


@dataclass(slots=True)
class Hunt:
    """What came of all plans that were replayed."""

    plans: Counter[str] = field(default_factory=Counter)
    """Plans of each kind of job."""
    ratios: dict[str, list[float]] = field(default_factory=dict)
    """Bound over replay, by the step of the search that makes the bound."""
    above: list[str] = field(default_factory=list)
    """Bounds above their replay, with the seed that shows them."""

    def add(self, seed: int) -> None:
        """Hold the bounds of the job of a seed against replays."""
        names = list(KINDS)
        kind = names[seed % len(names)]
        world = KINDS[kind](seed)
        if world is None:
            return
        for leaf, time, bounds in held_bounds(
            world, seed, configurations=CONFIGURATIONS, plans=PLANS
        ):
            self.plans[kind] += 1
            for step, bound in bounds.items():
                if bound > 0.0:  # a plan without a pipeline has no timeline
                    self.ratios.setdefault(step, []).append(bound / time)
                if bound > time * FASTER + ROUNDING:
                    self.above.append(
                        f"--bounds 1 --seed {seed}: {kind}, {step} bound "
                        f"{bound / time - 1.0:.3g} above the replay of {leaf}"
                    )

    def lines(self) -> Iterator[str]:
        """Yield how many plans there were, how near bounds are, and what is above."""
        yield f"{self.plans.total():,} plans of {len(self.plans)} kinds of jobs"
        yield "  " + ", ".join(f"{name} {n:,}" for name, n in self.plans.items())
        yield "bound over replay: least, tenth, median, nine tenths, most"
        for step, ratios in self.ratios.items():
            some = np.quantile(ratios, (0.0, 0.1, 0.5, 0.9, 1.0))
            numbers = "".join(f" {ratio:14.10f}" for ratio in some)
            yield f"  {step:9}{numbers} of {len(ratios):,}"
        yield f"bounds above their replay: {len(self.above)}"
        yield from (f"  {text}" for text in self.above)


def hunt(plans: int, seed: int) -> Hunt:
    """Replay at least so many plans of the jobs of this seed and those behind it."""
    found = Hunt()
    for number in count(seed):
        if found.plans.total() >= plans:
            return found
        found.add(number)
    raise AssertionError  # `count` does not end
