"""What a launch configuration is written from: a job, its plan, where its ranks stand.

Ranks are those of the framework: its order of parallel dimensions, innermost first,
numbers them, and `LaunchJob.devices_of_ranks` says on which device of the cluster each
must run for the plan's placement to come true.

Where they do not stand in the order of a framework, each format writes the same rank
map beside its files: a table with a row for each rank, its node and the device of the
node. Read back, it is a nesting of dimensions.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from estimators.models.spec import TransformerSpec
from estimators.training import TrainingSpec
from nestsim.evaluate.cluster import build_job, node_size
from nestsim.evaluate.job import price_table_plan
from nestsim.launch.read import MOST_DEVICES
from nestsim.scenario.load import Scenario
from planner.plans.build import with_algorithms
from planner.plans.checks import AUTO, check_plan
from planner.plans.spec import PlanSpec, order_names
from planner.plans.written import order_of, plan_settings
from planner.search.placements import Extents
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.step.virtual import block_span
from planner.work import Progress
from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.input_file import Value
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
        if plan.recompute_modules:
            # Frameworks have them beside kernels, one set for the whole job.
            modules = plan.recompute_modules
            software = replace(workload.software, recompute_modules=modules)
            workload = replace(workload, software=software)
            plan = replace(plan, recompute_modules=())
        is_block = workload.table(plan.degrees).is_block
        settings = plan_settings(
            with_usual_algorithms(network, workload, plan),
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


def with_usual_algorithms(network: Network, workload: Workload, plan: Plan) -> Plan:
    """Return the plan with algorithms left open that would be chosen anyway."""
    left_open = replace(plan, gradient_algorithm=AUTO, tensor_algorithm=AUTO)
    is_usual = with_algorithms(network, workload, left_open) == plan
    return left_open if is_usual else plan


@dataclass(frozen=True, slots=True)
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


RANK_MAP = "rank_map.csv"
"""Name of the file."""

_HEADING = "rank,node,device"
_ROW = re.compile(r"([0-9]{1,8}),([0-9]{1,8}),([0-9]{1,8})")


def rank_map(devices: IntArray, devices_per_node: int) -> str:
    """Return the node and the device of every rank, as lines of a table.

    Parameters
    ----------
    devices
        Device of each rank, shape ``(ranks,)``.
    devices_per_node
        Devices of a node.
    """
    rows = (
        f"{rank},{device // devices_per_node},{device % devices_per_node}"
        for rank, device in enumerate(devices.tolist())
    )
    return "\n".join((_HEADING, *rows)) + "\n"


def parsed_rank_map(text: str, devices_per_node: int) -> IntArray:
    """Return the device of each rank of a rank map, shape ``(ranks,)``.

    Raises
    ------
    InputError
        If it is none, or a rank or a device is missing or there twice.
    """
    lines = text.split()
    expected = f"{_HEADING}, and a row for each rank from 0 on"
    if len(lines) > MOST_DEVICES:
        raise InputError("is too long", where=RANK_MAP, expected=expected)
    devices = np.full(max(len(lines) - 1, 0), -1, dtype=np.int64)
    for line in lines[1:]:
        row = _ROW.fullmatch(line)
        rank, node, device = (-1, 0, 0) if row is None else map(int, row.groups())
        if not 0 <= rank < devices.size or devices[rank] >= 0:
            raise Value(line[:40], RANK_MAP).error(
                "is no row of a rank of its own", expected
            )
        if device >= devices_per_node:
            raise Value(line[:40], RANK_MAP).error(
                "is no device of a node", f"0 to {devices_per_node - 1}"
            )
        devices[rank] = node * devices_per_node + device
    if lines[:1] != [_HEADING] or np.unique(devices).size < max(devices.size, 1):
        raise InputError("is no rank map", where=RANK_MAP, expected=expected)
    return devices


def nesting(devices: IntArray, extents: Extents, order: str) -> str | None:
    """Return the name of the placement in which ranks stand on devices.

    Parameters
    ----------
    devices
        Device of each rank, shape ``(ranks,)``.
    extents
        Sizes of the parallel dimensions.
    order
        How ranks are numbered, innermost dimension first, joined by dashes.

    Returns
    -------
    str or None
        Factors, innermost first, as `planner.search.placements` names them; None if
        the devices are no nesting.
    """
    names = order_names(order)
    sizes = [getattr(extents, name) for name in names]
    grid = devices.reshape(sizes[::-1])
    factors: list[tuple[int, int, str]] = []  # stride, size, dimension
    rebuilt = np.zeros((1,) * len(sizes), dtype=np.int64)
    for axis, (name, size) in enumerate(zip(names, sizes, strict=True)):
        place = tuple(
            slice(None) if other == axis else 0 for other in reversed(range(len(sizes)))
        )
        offsets = grid[place]
        parts = _runs(offsets.tolist())
        if parts is None or int(grid.flat[0]) != 0:
            return None
        factors += [(stride, count, name) for stride, count in parts if count > 1]
        shape = [1] * len(sizes)
        shape[len(sizes) - 1 - axis] = size
        rebuilt = rebuilt + offsets.reshape(shape)
    if not np.array_equal(rebuilt, grid):
        return None
    return _name(sorted(factors), extents.tp)


def placement_settings(
    devices: IntArray | None, extents: Extents, order: str
) -> dict[str, str]:
    """Return what [plan] says of where ranks stand: an order, a placement, or nothing.

    Raises
    ------
    InputError
        If the devices are no nesting of the parallel dimensions.
    """
    if devices is None or bool((devices == np.arange(devices.size)).all()):
        return {}
    name = nesting(devices, extents, order)
    if name is None:
        raise InputError(
            "ranks do not stand in a nesting of the parallel dimensions",
            where=RANK_MAP,
            expected="equal distances between the ranks of each dimension",
            hint="nodes in another order than that of their numbers cannot be imported",
        )
    written = order_of(name)
    return {"placement": name} if written is None else {"order": written}


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return stride and size of the one or two factors of a dimension."""
    size = len(offsets)
    if size == 1:
        return [(1, 1)]
    stride = offsets[1] - offsets[0]
    inner = 1
    while inner < size and offsets[inner] - offsets[inner - 1] == stride:
        inner += 1
    if inner == size:
        return [(stride, size)]
    outer = offsets[inner] - offsets[0]
    if any(
        offsets[k] - offsets[0] != k % inner * stride + k // inner * outer
        for k in range(size)
    ):
        return None
    return [(stride, inner), (outer, -(-size // inner))]


def _name(factors: Sequence[tuple[int, int, str]], tp: int) -> str | None:
    """Return the factors by stride, with a slash where devices are left out."""
    parts, extent = ([f"tp{tp}"], tp) if tp == 1 else ([], 1)
    for stride, size, name in factors:
        if stride != extent:
            if stride < extent or not parts:
                return None
            parts[-1] += f"/{stride}"
        parts.append(f"{name}{size}")
        extent = stride * size
    return " ".join(parts)
