"""Why no launchable plan fits: what binds, where, and by how much."""

from planner.pricing import price_plan
from planner.replayed.candidates import LaunchableCandidates
from planner.shortfall import fullest_stage, memory_sentence, sizes_label
from topologies.units import format_size


def launchable_shortfall(candidates: LaunchableCandidates) -> str:
    """Say what stops every plan of a space that can be launched.

    In one sentence, and what fills the fullest stage of the plan that needs the least
    memory.
    """
    if not len(candidates):
        reasons = ", ".join(
            f"{count} {why}" for why, count in candidates.statistics.items() if count
        )
        return (
            f"{candidates.rules.framework} can launch nothing of the search space: "
            f"{reasons or 'no sizes divide the batch and the devices'}."
        )
    memory = candidates.bounds.memory
    name = candidates.workload.accelerator.name
    if memory <= 0:
        return f"The memory reserve leaves nothing of {name}'s memory to plan with."
    leaf = candidates.thriftiest()
    priced = price_plan(candidates.network, candidates.workload, candidates.plan(leaf))
    needed = priced.stages[fullest_stage(priced)].peak_memory
    return (
        f"Out of memory: the least demanding configuration that "
        f"{candidates.rules.framework} can launch "
        f"({sizes_label(leaf.configuration)}) needs {format_size(needed)} per device, "
        f"and {name} has {format_size(memory)} to give, "
        f"{format_size(needed - memory)} too little. {memory_sentence(priced)}"
    )
