"""The memory of a job, counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.dumps import dump_json, frame_of
from nestsim.document.folder import Writer, writer_of
from nestsim.document.parts import Document
from nestsim.document.wording import plan_label
from nestsim.face.calls import ProgressTarget, ScenarioSource, calling, scenario_from
from nestsim.face.report import Contents, PagedReport
from nestsim.features.memory.document import memory_document
from nestsim.features.memory.job import MemoryResult, memory_job
from nestsim.features.memory.record import memory_json, stage_rows
from nestsim.scenario.load import Scenario
from planner.explain.request import Request
from planner.step.plan import Plan
from topologies.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MemoryReport(PagedReport):
    """What a job holds in memory, and what would fit."""

    scenario: Scenario
    """What was asked."""

    result: MemoryResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether all stages of the plan fit."""
        return self.result.fits

    @property
    def plan(self) -> Plan | None:
        """The plan, without devices; None if nothing can be launched."""
        memory = self.result.memory
        return None if memory is None else memory.plan

    def facts(self) -> dict[str, Any]:
        """Return whether it fits, the plan, and the fewest devices."""
        memory, fewest = self.result.memory, self.result.fewest
        facts: dict[str, Any] = {"scenario": self.scenario.name, "fits": self.succeeded}
        if memory is not None:
            facts |= {
                "plan": plan_label(memory.plan),
                "fullest_stage": memory.fullest,
                "tensors_bytes": memory.needed,
                "usable_memory_bytes": self.result.limits.device,
            }
        if fewest is not None:
            facts["fewest_devices"] = fewest.memory.plan.parallel.num_devices
        return facts

    def to_dict(self) -> dict[str, Any]:
        """Return everything that stands in ``memory.json``."""
        return memory_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each stage, place and part [byte]."""
        return frame_of(stage_rows(self.result))

    def document(self) -> Document:
        """Return what text, picture and page say."""
        return memory_document(self.result)

    def contents(self) -> Contents:
        """Return record and figure; no figure where there is no plan."""
        result = self.result
        writers: dict[str, Writer] = {
            "memory.json": writer_of(dump_json(memory_json(result)))
        }
        writers |= self.picture_writers("memory")
        facts = {"scenario": result.scenario_name, **self.scenario.module_facts()}
        return Contents(writers=writers, manifest=facts)

    def inputs(self) -> Sequence[Path]:
        """Return the scenario's files."""
        return self.scenario.files()


def memory(
    scenario: ScenarioSource,
    sizes: str | Request = "",
    *,
    explain: bool = False,
    progress: ProgressTarget = None,
) -> MemoryReport:
    """Count what a job holds in memory, and look for what would fit.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it; it needs no network. The plan is the one in its
        table [plan], or the one that needs the least memory.
    sizes
        Sizes in place of the plan's, or of those that may be searched: ``"tp=4,b=1"``.
        Keys as `nestsim.explain` takes them.
    explain
        Whether to list the tensors that layers keep.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together. That nothing fits is
        a result.
    """
    loaded = scenario_from(scenario)
    request = _request(sizes)
    with calling(progress, loaded.path, loaded.notes) as call:
        result = memory_job(
            loaded, sizes=request, explain=explain, progress=call.progress
        )
    return MemoryReport(scenario=loaded, result=result, notices=tuple(call.notices))


def _request(sizes: str | Request) -> Request | None:
    if isinstance(sizes, Request):
        return sizes
    try:
        return Request.parse(sizes) if sizes else None
    except InputError as error:
        raise error.at("sizes") from None
