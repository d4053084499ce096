"""``nestsim rl``: what it is called with, and what it returns."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nestsim.commands.calls import ProgressTarget, ScenarioSource, reported
from nestsim.commands.report import Parts, ScenarioReport
from nestsim.document.folder import writer_of
from nestsim.evaluate.cluster import cluster_network, network_in_use
from nestsim.features.rl.document import rl_document
from nestsim.features.rl.evaluate import RlStep
from nestsim.features.rl.job import RlResult, rl_job
from nestsim.features.rl.record import rl_json
from nestsim.scenario.load import Scenario
from planner.plans.written import plan_settings

if TYPE_CHECKING:
    from nestsim.launch.job import LaunchFiles

SCRIPT = "verl.sh"
"""Name of what launches the step with verl."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RlReport(ScenarioReport):
    """How long a step of reinforcement learning takes, phase by phase."""

    result: RlResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether there are pools that can run the step."""
        return self.result.step is not None

    def facts(self) -> dict[str, object]:
        """Return the pools, the time of a step and its tokens."""
        result, step = self.result, self.result.step
        facts: dict[str, object] = {"scenario": result.scenario_name}
        if step is None:
            return {**facts, "reason": result.shortfall}
        return {
            **facts,
            "plan": step.trainer.label,
            "rollout_devices": step.choice.rollout_devices or result.num_devices,
            "engine_tensor_parallel_size": step.choice.engine,
            "step_time_s": step.time.time,
            "tokens_per_s": result.tokens_per_second,
            "rollout_s": step.rollout.time,
        }

    def parts(self) -> Parts:
        """Return record, a row for each phase, figure and page."""
        record, rows = rl_json(self.result), phase_rows(self.result)
        parts = self.parts_of("rl", record, rows, rl_document)
        if self.result.step is None:
            return parts
        return replace(parts, files={**parts.files, SCRIPT: self._write_launch})

    def _write_launch(self, path: Path) -> None:
        """Write what launches the step with verl."""
        assert self.result.step is not None
        (content,) = verl_launch(self.scenario, self.result.step).files.values()
        writer_of(content)(path)


def rl(scenario: ScenarioSource, *, progress: ProgressTarget = None) -> RlReport:
    """Find the time of a step of reinforcement learning, and the best pools for it.

    Other pools: ``scenario.replace({"rl.placement": "split"})``.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it; its table [rl] says what a step is. The trainer's
        plan is the one in its table [plan], or the one that replays fastest.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together.
    """
    return reported(RlReport, rl_job, scenario, progress)


def phase_rows(result: RlResult) -> list[dict[str, object]]:
    """Return one row for each phase of the step."""
    if result.step is None:
        return []
    return [
        {
            "phase": phase.name,
            "pool": phase.pool,
            "time_s": phase.time,
            "closed_form_s": phase.closed_form,
            "share": phase.time / result.step.time.time,
        }
        for phase in result.step.phases
    ]


def verl_launch(scenario: Scenario, step: RlStep) -> "LaunchFiles":
    """Return the files that launch a step with verl, and what they do not say."""
    # Formats of launches: who only looks at a step does not wait for them.
    from nestsim.launch.formats.trainers.verl_writing import write_verl
    from nestsim.launch.job import LaunchJob, with_usual_algorithms

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
