"""The launch of a step with the pools and the plan that were found, for verl."""

from dataclasses import replace

from nestsim.evaluate.cluster import cluster_network, network_in_use
from nestsim.features.rl.evaluate import RlStep
from nestsim.launch.formats.trainers.verl_writing import write_verl
from nestsim.launch.job import LaunchFiles, LaunchJob, with_usual_algorithms
from nestsim.scenario.load import Scenario
from planner.plans.written import plan_settings


def verl_launch(scenario: Scenario, step: RlStep) -> LaunchFiles:
    """Return the files that launch a step with verl, and what they do not say."""
    spec, trainer = scenario.rl, step.trainer
    assert spec is not None
    chosen = replace(
        spec,
        rollout_devices=step.choice.rollout_devices or None,
        engine=replace(spec.engine, tensor_parallel_size=step.choice.engine),
        offload="always" if step.offloaded else "never",
    )
    workload = trainer.evaluator.workload
    plan = with_usual_algorithms(trainer.evaluator.network, workload, trainer.plan)
    is_block = workload.table(plan.degrees).is_block
    batch = workload.training.global_batch_size
    return write_verl(
        LaunchJob(
            scenario=replace(scenario, rl=chosen),
            network=network_in_use(scenario, cluster_network(scenario)),
            workload=workload,
            plan=plan,
            settings=plan_settings(plan, is_block, batch),
        )
    )
