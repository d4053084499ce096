"""From a row to a fixed plan on a fixed cluster, or to the reason why not.

A row is read as the tables of a scenario, which `nestsim.scenario` reads as those of a
file; a case is that scenario, and what no scenario says.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from estimators.models.spec import TransformerSpec
from estimators.software import Software
from estimators.training import TrainingSpec
from nestsim.evaluate.uncertainty import Setting, traits_of
from nestsim.features.validation.cluster_table import (
    accelerator_setting,
    cluster_table,
    single_device_table,
)
from nestsim.features.validation.columns import Row, RowRefusedError, refusing
from nestsim.features.validation.model_table import model_table
from nestsim.features.validation.plan_table import (
    plan_tables,
    read_num_devices,
    software_table,
    training_table,
)
from nestsim.features.validation.reading import JobReading, Table, Value
from nestsim.features.validation.recipes import release_of
from nestsim.features.validation.run_columns import read_run
from nestsim.features.validation.stages import (
    SizedStage,
    is_staged,
    read_mist_plan,
    read_sized_stage,
    read_stages,
)
from nestsim.scenario.load import Scenario
from planner.plans.spec import PlanSpec
from planner.step.execution import Execution
from topologies.accelerators import Accelerator, Host
from topologies.errors import InputError
from topologies.records import check_num_devices
from topologies.specs import FatTreeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row as the planner and the simulator see it."""

    row: Row
    """Row as it was written."""

    tables: Mapping[str, Table]
    """Tables of the scenario that the row is."""

    model: TransformerSpec
    """Architecture and sequence length."""

    training: TrainingSpec
    """Batch, precision, optimizer."""

    accelerator: Accelerator
    """Device that was measured."""

    network: FatTreeSpec
    """Nodes and links."""

    host: Host
    """What stands behind each device."""

    plan: PlanSpec
    """Parallel sizes and settings."""

    software: Software
    """Kernels and host."""

    execution: Execution
    """Overlaps of communication and compute."""

    num_devices: int
    """Devices that were measured; the network may have a few more, which stay idle."""

    alternatives: tuple[PlanSpec, ...] = ()
    """Plans that may have been meant as well, where the row does not say its
    micro-batch; what is predicted is the fastest that fits."""

    stages: tuple[SizedStage, ...] = ()
    """Sizes of each stage where no plan expresses them, or of the only one that was
    measured; `plan` has those of the first then."""

    assumes_layout: bool = False
    """Whether a size that decides the time is not the row's."""

    preset: str
    """Name of the framework's preset."""

    assumed: tuple[str, ...]
    """What the row does not say."""

    leaves_recompute_open: bool = False
    """Whether the row does not say what is recomputed; the plan has the preset's."""

    @property
    def content(self) -> tuple[Hashable, ...]:
        """What a prediction depends on."""
        return (
            self.model,
            self.training,
            self.accelerator.name,
            self.software,
            self.network,
            self.plan,
            self.alternatives,
            self.stages,
            self.execution,
        )

    def setting(self, source: str = "") -> Setting:
        """Return what the band of its prediction depends on.

        Parameters
        ----------
        source
            Source of the row; empty for a new cluster.
        """
        return Setting(
            source=source,
            software=self.software.name,
            release=release_of(self.row),
            accelerator=self.accelerator.name,
            num_devices=self.num_devices,
            has_experts=bool(self.model.num_moe_experts),
            traits=traits_of(self.model, self.software),
            assumes_layout=self.assumes_layout,
        )

    def with_recompute(self, mode: str) -> "Case":
        """Return the same with another recompute mode, as the least that fits."""
        assumption = f"recompute {mode}, the least that fits in memory"
        return replace(
            self,
            plan=replace(self.plan, recompute=mode),
            alternatives=tuple(
                replace(other, recompute=mode) for other in self.alternatives
            ),
            assumed=(*self.assumed, assumption),
        )


def read_case(row: Row) -> Case:
    """Turn a row into a case.

    Raises
    ------
    RowRefusedError
        If it cannot be expressed.
    """
    reading = JobReading(row)
    accelerator, tables = _job_tables(reading)
    num_layers = tables["model"]["num_layers"]
    assert isinstance(num_layers, int)
    given = read_mist_plan(reading, num_layers)
    stages = (read_stages(reading, num_layers) or ()) if given is None else ()
    if stages:
        num_devices = sum(sized.degrees.tp * sized.dp for sized in stages)
    else:
        num_devices = read_num_devices(reading)
    with refusing("no-such-cluster"):
        check_num_devices("num_devices", num_devices)
    if given is not None:
        plans = [given]
    elif stages:
        plans = [_first_sizes(stages)]
    else:
        plans = plan_tables(reading, tables, accelerator, num_devices)
        run = read_run(reading, num_layers)
        plans = [plan | run["plan"] for plan in plans]
        tables["software"] |= run["software"]
    tables["plan"] = plans[0]
    _keep_16_bits(reading, tables)
    tables["cluster"] = cluster_table(reading, accelerator, num_devices)
    case = _case(reading, tables, num_devices)
    return replace(
        case, stages=stages, alternatives=_alternatives(case.plan, plans[1:])
    )


def read_stage(row: Row) -> Case | None:
    """Return the stage that a row is about; None if its notes have no stages.

    Raises
    ------
    RowRefusedError
        If they have, and it cannot be expressed.
    """
    if not is_staged(row):
        return None
    reading = JobReading(row)
    accelerator, tables = _job_tables(reading)
    num_layers = tables["model"]["num_layers"]
    assert isinstance(num_layers, int)
    sized = read_sized_stage(reading, num_layers)
    tables["plan"] = _first_sizes([sized])
    tables["cluster"] = single_device_table(accelerator)
    return replace(_case(reading, tables, 1), stages=(sized,))


def _job_tables(reading: JobReading) -> tuple[Value, dict[str, Table]]:
    """Return the accelerator of a row, and the tables that all rows have."""
    accelerator = accelerator_setting(reading)
    tables = {
        "model": model_table(reading),
        "training": training_table(reading),
        "software": software_table(reading),
    }
    return accelerator, tables


def _keep_16_bits(reading: JobReading, tables: Mapping[str, Table]) -> None:
    """Keep weights in 16 bits beside ZeRO-1 and ZeRO-2 of FSDP.

    It keeps fp32 shards beside whole weights in 16 bits then: what a sharded master
    copy comes to.
    """
    training, stage = tables["training"], tables["plan"]["zero_stage"]
    gathered = training.get("gather_precision", reading.preset.gather)
    if stage in (1, 2) and gathered != "fp32":
        training["weights_in_fp32"] = False


def _first_sizes(stages: Sequence[SizedStage]) -> Table:
    """Return the table [plan] of the first stage's sizes."""
    first = stages[0]
    return {
        "micro_batch_size": first.degrees.micro_batch_size,
        "tensor_model_parallel_size": first.degrees.tp,
        "pipeline_model_parallel_size": len(stages),
        "data_parallel_size": first.dp,
        "zero_stage": first.blocks.zero_stage,
        "sequence_parallel": False,
        "recompute": "none",
    }


def _alternatives(plan: PlanSpec, tables: Sequence[Table]) -> tuple[PlanSpec, ...]:
    """Return what differs from a plan in the layers of stages and in microbatches."""
    layouts = dict.fromkeys(
        ("num_layers_per_pipeline_stage", "pipeline_model_parallel_layout")
    )
    with refusing("no-such-plan"):
        return tuple(
            replace(
                plan,
                **{  # type: ignore[arg-type]  # settings of a plan
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in {**layouts, **table}.items()
                },
            )
            for table in tables
        )


_CODES = {
    "model": "no-such-model",
    "cluster": "no-such-cluster",
    "training.precision": "low-precision",
    "training.matmul_precision": "low-precision",
}
"""What of a scenario is wrong -> code; of all else, there is no such plan."""


def _case(reading: JobReading, tables: Mapping[str, Table], num_devices: int) -> Case:
    """Return the scenario that tables describe, and what the row says beside it."""
    file = "row"
    try:
        scenario = Scenario.from_dict({"name": file, **tables}, file)
    except InputError as error:
        where = error.where.removeprefix(f"{file}: ")
        known = (code for start, code in _CODES.items() if where.startswith(start))
        reason = error.one_line().removeprefix(f"{file}: ")
        raise RowRefusedError(next(known, "no-such-plan"), reason) from None
    network = scenario.network_spec
    assert isinstance(network, FatTreeSpec)
    assert scenario.plan is not None
    return Case(
        row=reading.row,
        tables=tables,
        model=scenario.spec,
        training=scenario.training,
        accelerator=scenario.accelerator,
        network=network,
        host=scenario.host,
        plan=scenario.plan,
        software=_software(reading, scenario.software, network, num_devices),
        execution=scenario.execution,
        num_devices=num_devices,
        assumes_layout=reading.assumes_layout,
        preset=reading.preset.name,
        assumed=tuple(reading.assumed),
        leaves_recompute_open=reading.leaves_recompute_open,
    )


def _software(
    reading: JobReading, software: Software, network: FatTreeSpec, num_devices: int
) -> Software:
    """Return the software, with the sizes of the part of the network that ran."""
    dispatcher = software.moe_token_dispatcher_type
    per_node = reading.row.whole("devices_per_node") or 8
    joined = math.prod(level.fan_out for level in network.levels[: network.node_levels])
    return replace(
        software,
        num_ranks=num_devices,
        node_step=2 * network.levels[0].latency,
        many_nodes=num_devices > per_node,
        ranks_per_node=joined,
        moe_token_dispatcher_type=dispatcher or reading.preset.dispatcher,
    )
