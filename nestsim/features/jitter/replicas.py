"""The same plan with fewer replicas."""

from dataclasses import replace

from nestsim.evaluate.evaluator import Evaluator
from planner.cost.objective import PricedPlan
from planner.plans.checks import check_plan
from planner.step.plan import Plan
from topologies.errors import InputError


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
                )
                for stage in plan.stages
            ),
        )
        check_plan(smaller.workload, fewer, evaluator.network.num_devices)
        return smaller, smaller.price(fewer)
    except InputError:
        return None
