"""Write a solution of the search out as a plan."""

from estimators.training import ParallelismConfig
from planner.candidates import CandidateSet, Solution
from planner.chain_split import schedule_name
from planner.plan import Plan, Stage
from planner.space import Configuration
from planner.virtual import unfold_bounds


def assemble_plan(
    candidates: CandidateSet, configuration: Configuration, solution: Solution
) -> Plan:
    """Return the plan that a solution stands for."""
    degrees = candidates.splitter.degrees(configuration)
    table = candidates.workload.table(degrees)
    chunks = unfold_bounds(solution.bounds, table.is_block, configuration.v)
    stages = tuple(
        Stage(
            chunks=chunks[index],
            devices=tuple(tuple(row) for row in devices.tolist()),
            recompute=choice.recompute,
            zero_stage=choice.zero_stage,
            sharding_group_size=(
                solution.rates.shardings[choice.sharding].group_size
                if choice.zero_stage
                else 1
            ),
        )
        for index, (devices, choice) in enumerate(
            zip(solution.placement.devices, solution.choices, strict=True)
        )
    )
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=configuration.tp,
            pipeline_model_parallel_size=configuration.pp,
            data_parallel_size=configuration.dp,
            context_parallel_size=configuration.cp,
            expert_model_parallel_size=configuration.ep,
            sequence_parallel=degrees.sequence_parallel,
        ),
        virtual_pipeline_model_parallel_size=configuration.v,
        micro_batch_size=configuration.b,
        num_microbatches=candidates.splitter.num_microbatches(configuration),
        schedule=schedule_name(configuration.v),
        placement=solution.placement.name,
        gradient_algorithm=solution.rates.gradient_algorithm,
        tensor_algorithm=solution.rates.tensor_algorithm,
        stages=stages,
    )
