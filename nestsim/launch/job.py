"""What a launch configuration is written from: a job, its plan, where its ranks stand.

Ranks are those of the framework: its order of parallel dimensions, innermost first,
numbers them, and `LaunchJob.devices_of_ranks` says on which device of the cluster each
must run for the plan's placement to come true.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from estimators.models.spec import TransformerSpec
from estimators.training import TrainingSpec
from nestsim.evaluate.cluster import node_size
from nestsim.evaluate.evaluator import build_job
from nestsim.evaluate.job import price_table_plan
from nestsim.scenario.load import Scenario
from planner.plans.build import with_algorithms
from planner.plans.checks import AUTO, check_plan
from planner.plans.spec import PlanSpec, order_names
from planner.plans.written import plan_settings
from planner.search.placements import Extents
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.step.virtual import block_span
from planner.work import Progress
from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.network import Network

_IN_SWITCHES: Mapping[str, str] = MappingProxyType(
    {
        "nvls": "Switches of nodes add up all-reduces in this plan: NCCL does so "
        "unless NCCL_NVLS_ENABLE is 0.",
        "sharp": "Switches between nodes add up all-reduces in this plan: NCCL does so "
        "with its SHARP plug-in and NCCL_COLLNET_ENABLE=1.",
    }
)
"""Algorithm of `estimators.collectives.cost.IN_NETWORK` -> what a launch needs
for it (NCCL, "Environment Variables")."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaunchJob:
    """A job that is to be launched: scenario, cluster, model and plan, all resolved."""

    scenario: Scenario
    """What was asked: training, software, accelerator and their files."""

    network: Network
    """Network of the cluster."""

    workload: Workload
    """Model, batch, device and how the framework executes a step."""

    plan: Plan
    """The plan, with the devices of every stage."""

    settings: PlanSpec
    """The same plan as settings under Megatron's names, as few as tell it."""

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        plan: Plan | None = None,
        *,
        source: str = "plan",
        progress: Progress | None = None,
    ) -> "LaunchJob":
        """Build the cluster, trace the model and check the plan against both.

        Parameters
        ----------
        scenario
            The job.
        plan
            Its plan; None for the one of the scenario's table [plan].
        source
            What errors call ``plan``: the file that it was read from.
        progress
            Told about every step.

        Raises
        ------
        InputError
            If there is no plan, or it does not fit the model, the batch or the cluster.
        """
        if plan is None and scenario.plan is None:
            raise InputError(
                "there is no plan",
                where="plan",
                expected="a table [plan] in the scenario, or the plan of a search",
                hint="`nestsim run SCENARIO --output DIR` finds one, and "
                "`nestsim export DIR` writes it",
            )
        network, workload = build_job(scenario, progress)
        if plan is None:
            plan = price_table_plan(scenario, network, workload).plan
        else:
            try:
                check_plan(workload, plan, network.num_devices)
            except InputError as error:
                raise error.at(source, ": ") from None
            plan = with_algorithms(network, workload, plan)
        is_block = workload.table(plan.degrees).is_block
        settings = plan_settings(
            _with_usual_algorithms(network, workload, plan),
            is_block,
            workload.training.global_batch_size,
        )
        return cls(
            scenario=scenario,
            network=network,
            workload=workload,
            plan=plan,
            settings=settings,
        )

    @property
    def model(self) -> TransformerSpec:
        """Architecture of the model."""
        return self.workload.graph.spec

    @property
    def training(self) -> TrainingSpec:
        """Batch, precision and optimizer."""
        return self.workload.training

    @property
    def num_blocks(self) -> int:
        """Blocks of the model's chain."""
        first, last = block_span(self.workload.table(self.plan.degrees).is_block)
        return last - first

    @property
    def devices_per_node(self) -> int:
        """Devices of one host."""
        return min(node_size(self.network), self.network.num_devices)

    def sums_in_switches(self) -> tuple[str, ...]:
        """Return what NCCL must be told where switches add up, a sentence each."""
        named = {self.plan.gradient_algorithm, self.plan.tensor_algorithm}
        return tuple(words for name, words in _IN_SWITCHES.items() if name in named)

    def blocks_by_virtual_stage(self) -> tuple[int, ...]:
        """Return how many blocks each virtual stage holds, in the order of the chain.

        Chunk 0 of every stage, then chunk 1, and so on.
        """
        layout = self.settings.pipeline_model_parallel_layout
        if layout is not None:
            return layout
        parts = len(self.plan.stages) * self.plan.virtual_pipeline_model_parallel_size
        return (self.num_blocks // parts,) * parts

    @property
    def title(self) -> str:
        """Name of the scenario in one line of letters that can be printed."""
        name = self.scenario.name
        return "".join(letter if letter.isprintable() else "?" for letter in name)

    def devices_of_ranks(self, order: str) -> IntArray:
        """Return the device that each rank must run on, shape ``(ranks,)``.

        Parameters
        ----------
        order
            How the framework numbers its ranks: `planner.plans.spec.DIMENSIONS` joined
            by dashes, innermost first. Experts are spread over neighbours among data-
            parallel ranks wherever ``ep`` precedes ``dp``, as Megatron spreads them.
        """
        parallel = self.plan.parallel.sizes()
        ep = self.plan.parallel.placed_expert_size
        extents = Extents(parallel.tp, parallel.cp, ep, parallel.dp // ep, parallel.pp)
        grid = np.array(
            [stage.devices for stage in self.plan.stages], dtype=np.int64
        ).reshape(extents[::-1])
        axes = [len(extents) - 1 - extents._fields.index(n) for n in order_names(order)]
        return np.ascontiguousarray(grid.transpose(axes[::-1])).ravel()

    def is_in_order(self, order: str) -> bool:
        """Whether each rank runs on the device of its own number."""
        devices = self.devices_of_ranks(order)
        return bool((devices == np.arange(devices.size)).all())


def _with_usual_algorithms(network: Network, workload: Workload, plan: Plan) -> Plan:
    """Return the plan with algorithms left open that would be chosen anyway."""
    left_open = replace(plan, gradient_algorithm=AUTO, tensor_algorithm=AUTO)
    is_usual = with_algorithms(network, workload, left_open) == plan
    return left_open if is_usual else plan


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchGap:
    """Something of the plan that the framework's configuration has no words for."""

    setting: str
    """What of the plan, under the name that [plan] or [training] has for it."""

    value: object
    """What the plan says there."""

    reason: str
    """Why it cannot be expressed, and what the launch does instead, in a sentence."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"setting": self.setting, "value": self.value, "reason": self.reason}

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.setting} = {self.value}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFiles:
    """Launch configuration of one plan."""

    files: Mapping[str, str | bytes]
    """Content of each file by its name; the first one is what people look at."""

    gaps: tuple[LaunchGap, ...] = ()
    """What the plan says and the files do not."""

    notes: tuple[str, ...] = ()
    """What users must still fill in or know, a sentence each: paths of data, host
    names, versions."""
