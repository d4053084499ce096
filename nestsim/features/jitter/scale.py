"""What jitter costs with scale: the same plan on fewer and on more replicas.

A plan's own number of replicas and its halves are simulated. What more of them cost is
what was simulated last, and what the closed form (`closed_form`) says
that they add to it: an error that it has with as many replicas as were simulated is not
taken along.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nestsim.evaluate.evaluator import Evaluator
from nestsim.features.jitter.closed_form import StepForm
from nestsim.features.jitter.pipelines import PipelineForm
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.plans.checks import check_plan
from planner.step.plan import Plan
from topologies.arrays import FloatArray
from topologies.errors import InputError


class SimulatedMean(NamedTuple):
    """The mean of some runs."""

    mean: float
    """Mean time of a step [s]."""

    standard_error: float
    """Standard error of the mean; infinite for one run [s]."""

    num_runs: int
    """Number of runs."""

    @classmethod
    def of(cls, times: FloatArray) -> "SimulatedMean":
        """Return the mean of some steps' times [s]."""
        error = math.inf
        if times.size > 1:
            error = float(times.std(ddof=1)) / math.sqrt(times.size)
        return cls(float(times.mean()), error, times.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRow:
    """The plan on one number of replicas."""

    replicas: int
    """Data-parallel replicas."""

    num_devices: int
    """Devices of all replicas."""

    plain_time: float
    """A step without jitter; with more replicas than the plan's its own [s]."""

    closed_mean: float
    """Mean time of a step in closed form [s]."""

    closed_error: float
    """By how much the first term that is left out moves the closed form [s]."""

    closed_quantiles: tuple[float, ...]
    """The quantiles p50, p95 and p99 of a step in closed form [s]."""

    simulated: SimulatedMean | None
    """Mean of the simulated steps; None where none was simulated."""

    anchor: "ScaleRow | None" = None
    """The most replicas that were simulated, where there are more of them here."""

    @classmethod
    def of(
        cls,
        replicas: int,
        work: PipelineWork,
        plain_time: float,
        form: StepForm | PipelineForm,
        simulated: "SimulatedMean | ScaleRow",
    ) -> "ScaleRow":
        """Return the row of a number of replicas.

        Parameters
        ----------
        replicas
            Number of replicas.
        work
            A step of the same plan, with any number of them.
        plain_time
            A step without jitter [s].
        form
            The closed form.
        simulated
            What was simulated, or the row of the most replicas that were.
        """
        num_stages, _, num_ranks = work.devices.shape
        return cls(
            replicas=replicas,
            num_devices=num_stages * replicas * num_ranks,
            plain_time=plain_time,
            closed_mean=form.mean,
            closed_error=form.error,
            closed_quantiles=tuple(
                form.quantiles(np.array([0.5, 0.95, 0.99])).tolist()
            ),
            simulated=simulated if isinstance(simulated, SimulatedMean) else None,
            anchor=simulated if isinstance(simulated, ScaleRow) else None,
        )

    @property
    def closed_loss(self) -> float:
        """Expected loss in closed form, relative to the step without jitter."""
        return self.closed_mean / self.plain_time - 1.0

    @property
    def simulated_loss(self) -> float | None:
        """Loss of the simulated steps; None where none was simulated."""
        if self.simulated is None:
            return None
        return self.simulated.mean / self.plain_time - 1.0

    @property
    def expected_mean(self) -> float:
        """Mean time of a step: simulated, or from there on as in closed form [s]."""
        if self.anchor is not None:
            added = self.closed_mean - self.anchor.closed_mean
            return self.anchor.expected_mean + added
        return self.closed_mean if self.simulated is None else self.simulated.mean

    @property
    def expected_loss(self) -> float:
        """Expected loss, relative to the step without jitter."""
        return self.expected_mean / self.plain_time - 1.0

    @property
    def loss_error(self) -> float | None:
        """Standard error of `simulated_loss`, or of that which `expected_loss` has."""
        if self.anchor is not None:
            return self.anchor.loss_error
        if self.simulated is None:
            return None
        return self.simulated.standard_error / self.plain_time

    @property
    def difference(self) -> float | None:
        """Simulated less closed form, relative to the step without jitter."""
        if self.simulated is None:
            return None
        return (self.simulated.mean - self.closed_mean) / self.plain_time


def sizes_of(evaluator: Evaluator, plan: Plan) -> tuple[int, ...]:
    """Return the numbers of replicas that are simulated, rising: halves of the plan's.

    Down to one, or to the first that the model cannot have.
    """
    size = plan.parallel.data_parallel_size
    sizes = [size]
    while size % 2 == 0:
        size //= 2
        if fewer_replicas(evaluator, plan, size) is None:
            break
        sizes.append(size)
    return tuple(reversed(sizes))


def fewer_replicas(
    evaluator: Evaluator, plan: Plan, num_replicas: int
) -> tuple[Evaluator, PricedPlan] | None:
    """Return a plan with its first replicas alone, and what evaluates it.

    Each replica works on as many microbatches as before, so that the global batch is
    smaller; the other devices stand idle.

    Parameters
    ----------
    evaluator
        Of the plan as it is.
    plan
        With at least as many replicas.
    num_replicas
        How many are left.

    Returns
    -------
    tuple
        None where the model cannot have so few, as its experts are spread over more.
    """
    ranks = num_replicas * plan.parallel.context_parallel_size
    workload = evaluator.workload
    batch = plan.micro_batch_size * plan.num_microbatches * num_replicas
    training = replace(workload.training, global_batch_size=batch)
    smaller = replace(evaluator, workload=replace(workload, training=training))
    try:
        fewer = replace(
            plan,
            parallel=replace(plan.parallel, data_parallel_size=num_replicas),
            stages=tuple(
                replace(
                    stage,
                    devices=stage.devices[:num_replicas],
                    sharding_group_size=min(stage.sharding_group_size, ranks),
                    zero_hpz_partition_size=min(stage.zero_hpz_partition_size, ranks),
                    reshard_after_forward=stage.reshard_after_forward
                    and min(stage.reshard_after_forward, ranks),
                )
                for stage in plan.stages
            ),
        )
        check_plan(smaller.workload, fewer, evaluator.network.num_devices)
        return smaller, smaller.price(fewer)
    except InputError:
        return None
