"""What batches that grow cost: the plan of the whole batch, replayed at each smaller.

Fewer microbatches fill the same pipeline, and the gradients are reduced as often: a
step of half the sequences takes more than half the time. The plan stays what it is for
the whole batch, as frameworks cannot change it within a run; each step of a batch size
takes as long as its replay, and steps are counted as Megatron counts them
(`estimators.rampup`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from estimators.rampup import ramp_phases
from planner.step.execution import Workload
from planner.step.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RampStep:
    """Steps of one batch size."""

    global_batch_size: int
    """Sequences of each step."""

    num_microbatches: int
    """Microbatches of each replica."""

    num_steps: int
    """How many steps a run takes of it."""

    iteration_time: float
    """Replayed time of one step; infinite if the schedule has no such step [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RampUp:
    """The steps of a run until its batches are whole."""

    steps: tuple[RampStep, ...]
    """By rising batch size."""

    global_batch_size: int
    """Sequences of a step behind the ramp."""

    iteration_time: float
    """Replayed time of such a step [s]."""

    @property
    def sequences(self) -> int:
        """Sequences that are trained on the way up."""
        return sum(step.num_steps * step.global_batch_size for step in self.steps)

    @property
    def num_steps(self) -> int:
        """Steps on the way up."""
        return sum(step.num_steps for step in self.steps)

    @property
    def time(self) -> float:
        """Time of the way up [s]."""
        return math.fsum(step.num_steps * step.iteration_time for step in self.steps)

    @property
    def extra_time(self) -> float:
        """How much longer it takes than as many sequences in whole batches [s]."""
        return self.extra_time_of(math.inf)

    def extra_time_of(self, sequences: float) -> float:
        """Return how much longer a run takes than one of whole batches [s].

        Parameters
        ----------
        sequences
            Of the run, which may end on the way up; a last step counts in part.
        """
        left, extra = sequences, []
        for step in self.steps:
            count = min(step.num_steps, left / step.global_batch_size)
            if count <= 0.0:
                break
            whole = self.iteration_time * step.global_batch_size
            extra.append(count * (step.iteration_time - whole / self.global_batch_size))
            left -= count * step.global_batch_size
        return math.fsum(extra)


def ramp_up(
    workload: Workload,
    plan: Plan,
    iteration_time: float,
    replayed: Callable[[Plan], float],
) -> RampUp | None:
    """Return what the way up to the whole batch takes; None where batches do not grow.

    Parameters
    ----------
    workload
        Model and job.
    plan
        The plan of the whole batch.
    iteration_time
        Replayed time of its step [s].
    replayed
        Returns the replayed time of a step of a plan [s].
    """
    training = workload.training
    dp, steps = plan.parallel.data_parallel_size, []
    times = {plan.num_microbatches: iteration_time}
    for phase in ramp_phases(training.rampup_batch_size, training.global_batch_size):
        # The last microbatch may be padded, where the framework has that.
        m = -(-phase.global_batch_size // (plan.micro_batch_size * dp))
        if m not in times:
            times[m] = replayed(replace(plan, num_microbatches=m))
        steps.append(
            RampStep(
                global_batch_size=phase.global_batch_size,
                num_microbatches=m,
                num_steps=phase.num_steps,
                iteration_time=times[m],
            )
        )
    if not steps:
        return None
    return RampUp(
        steps=tuple(steps),
        global_batch_size=training.global_batch_size,
        iteration_time=iteration_time,
    )
