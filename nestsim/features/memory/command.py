"""``nestsim memory``: what it is called with, and what it returns."""

from dataclasses import dataclass
from functools import partial

from nestsim.commands.calls import ProgressTarget, ScenarioSource, reported, request_of
from nestsim.commands.report import Parts, ScenarioReport
from nestsim.document.folder import json_writer
from nestsim.document.wording import plan_label
from nestsim.features.memory.document import memory_document
from nestsim.features.memory.job import MemoryResult, memory_job
from nestsim.features.memory.record import memory_json, stage_rows
from planner.explain.request import Request
from planner.step.plan import Plan
from topologies.errors import InputError


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MemoryReport(ScenarioReport):
    """What a job holds in memory, and what would fit."""

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

    def facts(self) -> dict[str, object]:
        """Return whether it fits, the plan, and the fewest devices."""
        memory, fewest = self.result.memory, self.result.fewest
        facts: dict[str, object] = {
            "scenario": self.scenario.name,
            "fits": self.succeeded,
        }
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

    def parts(self) -> Parts:
        """Return record, a row for each stage, place and part, and the figure."""
        record = memory_json(self.result)
        return Parts(
            record=record,
            rows=stage_rows(self.result),
            document=partial(memory_document, self.result),
            files={"memory.json": json_writer(record)},
            pictures={"memory": ()},
            has_page=False,
            manifest=self.manifest(),
        )


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
    request = request_of(sizes, "sizes") if sizes else None
    return reported(
        MemoryReport, memory_job, scenario, progress, sizes=request, explain=explain
    )


def arguments(  # noqa: PLR0913, PLR0917 - one for each size
    tp: int | None,
    pp: int | None,
    dp: int | None,
    cp: int | None,
    ep: int | None,
    micro_batch: int | None,
    zero: int | None,
    recompute: str | None,
) -> dict[str, object]:
    """Return the sizes that are given as one request, each checked on its own."""
    sizes = {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "cp": cp,
        "ep": ep,
        "micro-batch": micro_batch,
    }
    items = []
    for name, value in {**sizes, "zero": zero, "recompute": recompute}.items():
        if value is None:
            continue
        if "," in str(value):
            raise InputError("not one value", where=f"--{name}", got=value)
        items.append(f"{'b' if name == 'micro-batch' else name}={value}")
        request_of(items[-1], f"--{name}")
    return {"sizes": ",".join(items)}
