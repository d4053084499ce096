"""The scenario as a whole: its outermost table."""

from typing import Annotated

from pydantic import Field

from nestsim.scenario.assertions import AssertTable
from nestsim.scenario.base import Table, Text
from nestsim.scenario.cluster import ClusterTable
from nestsim.scenario.model import IN_ONE_WAY, WHICH_MODEL, AnyModel
from nestsim.scenario.plan import PlanTable
from nestsim.scenario.search import SearchTable, TrainingTable
from nestsim.scenario.simulation import SimulationTable
from nestsim.scenario.software import SoftwareTable
from nestsim.scenario.stress import StressTable
from nestsim.scenario.sweep import SweepTable


class ScenarioTable(Table):
    """One training job on one cluster, and what to find out about it.

    Quantities are strings with a unit, such as "450 GB/s", "400 Gbit/s", "80 GiB" or
    "2 us". GB is 1e9 bytes and GiB 2**30; bandwidths are per direction.
    """

    name: Text = Field(examples=["Llama 2 7B on 64 H100"])
    """What reports call it."""

    model: Annotated[AnyModel, IN_ONE_WAY] = Field(
        discriminator=WHICH_MODEL,
        examples=[{"name": "llama2-7b", "sequence_length": 4096}],
    )
    """The model: a name of the library, a Hugging Face config.json, or an architecture
    spelled out in Megatron's names."""

    training: TrainingTable = Field(examples=[{"global_batch_size": 512}])
    """What is trained at once, and in which precision."""

    cluster: ClusterTable
    """The devices and the network that joins them."""

    software: SoftwareTable = Field(
        SoftwareTable.model_validate({}),
        json_schema_extra={"default": {}},
        examples=[{"preset": "megatron-core"}],
    )
    """Which framework runs it; left out, none that takes any time."""

    search: SearchTable = Field(
        SearchTable.model_validate({}), json_schema_extra={"default": {}}
    )
    """What the planner may try."""

    plan: PlanTable | None = Field(None, examples=[{"micro_batch_size": 1}])
    """One plan, under Megatron's names, for `nestsim simulate` and the planner
    "fixed"; others do not read it."""

    simulation: SimulationTable = Field(
        SimulationTable.model_validate({}), json_schema_extra={"default": {}}
    )
    """How plans are replayed and judged."""

    sweep: SweepTable = Field(
        SweepTable.model_validate({}), json_schema_extra={"default": {}}
    )
    """Which settings `nestsim sweep` varies; other commands do not read it."""

    stress: StressTable = Field(
        StressTable.model_validate({}), json_schema_extra={"default": {}}
    )
    """What `nestsim stress` does to the cluster; other commands do not read it."""

    assertions: AssertTable = Field(
        AssertTable.model_validate({}),
        alias="assert",
        json_schema_extra={"default": {}},
        examples=[{"verdict": "confirmed", "throughput": ">= 1.2e6 tokens/s"}],
    )
    """What must come out, or the exit status is 3."""
