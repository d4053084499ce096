"""Correct the memory of a job by one peak that a run of it printed.

``torch.cuda.max_memory_allocated`` counts tensors and the libraries' workspace. What is
printed beyond the workspace, over the tensors that the plan is counted with, is the
constant ``tensors`` of the framework's allocator: later plans of the job need so much
more or less, in the search, the replay and in reports alike. Of several stages that of
the fullest is taken, unless the printed one is another's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from estimators.constants import load_constants
from estimators.user_files import FittedEntry
from nestsim.document.parts import (
    DataTable,
    Document,
    Headline,
    cell,
    table_section,
)
from nestsim.document.wording import percent
from nestsim.evaluate.cluster import build_workload
from nestsim.scenario import Scenario
from planner.frameworks.framework import FRAMEWORKS
from planner.memory.account import MemoryJob, MemoryLimits
from topologies.errors import InputError
from topologies.units import format_size

FARTHEST = 2.0
"""Factor by which a peak may be off before it is taken for that of another job: of 386
published sizes the worst is 1.6. A choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakCorrection:
    """What a printed peak says of a job's memory."""

    scenario_name: str
    """Name of the scenario, whose plan ran."""

    constant: str
    """Dotted name of the constant that is corrected."""

    measured: float
    """Most that was allocated, as it was printed [byte]."""

    stage: int
    """Number of the stage that printed it."""

    tensors: tuple[float, ...]
    """Tensors of each stage at their peak, as they are counted [byte]."""

    workspace: float
    """Workspace of libraries beside them [byte]."""

    shipped: float
    """Value of the constant without the peak."""

    kept: Mapping[str, float]
    """Dotted name and value of what the scenario's own file of constants says else."""

    @property
    def value(self) -> float:
        """Value of the constant: tensors that are there, over those counted."""
        return (self.measured - self.workspace) / self.tensors[self.stage]

    def allocated(self, value: float) -> list[float]:
        """Return what is allocated at the peak of each stage with a value [byte]."""
        return [value * tensors + self.workspace for tensors in self.tensors]

    def entries(self) -> list[FittedEntry]:
        """Return what a file of constants says of it, and what it said before."""
        values = {**self.kept, self.constant: self.value}
        shipped = load_constants().values
        return [
            FittedEntry(
                name=name,
                value=value,
                shipped=shipped.get(name, self.shipped),
                deviation=0.0,
            )
            for name, value in sorted(values.items())
        ]


def correct_peak(
    scenario: Scenario, measured: float, stage: int | None
) -> PeakCorrection:
    """Hold a printed peak against what a scenario's plan is counted with.

    Parameters
    ----------
    scenario
        The job that ran, with its plan.
    measured
        Most that was allocated [byte].
    stage
        Number of the stage that printed it; None for the fullest.

    Raises
    ------
    InputError
        If there is no plan or no such stage, the software has no allocator, or the
        peak is so far off that it is another job's.
    """
    if scenario.plan is None:
        raise InputError(
            "no plan that could have printed a peak",
            where="plan",
            expected="the table [plan] of the run beside --peak",
        )
    if scenario.software_preset == "ideal":
        raise InputError(
            "allocates nothing",
            where="software.preset",
            got="ideal",
            expected="the framework that ran",
        )
    workload = build_workload(scenario, scenario.software, None)
    job = MemoryJob(
        workload=workload,
        rules=scenario.search.rules or FRAMEWORKS["ideal"].rules,
        num_devices=scenario.network_spec.num_devices,
        limits=MemoryLimits(0.0, 0.0),
    )
    try:
        memory = job.memory(scenario.plan)
    except InputError as error:
        raise error.at("plan") from None
    if stage is not None and not 0 <= stage < len(memory.peaks):
        raise InputError(
            "no such stage",
            where="--stage",
            got=stage,
            expected=f"0 to {len(memory.peaks) - 1}",
        )
    constants = workload.allocator.constants
    correction = PeakCorrection(
        scenario_name=scenario.name,
        constant=f"allocator.{workload.software.name}.tensors",
        measured=measured,
        stage=memory.fullest if stage is None else stage,
        tensors=memory.peaks,
        workspace=constants.workspace,
        shipped=constants.tensors,
        kept={} if scenario.constants is None else dict(scenario.constants.values),
    )
    if not 1.0 / FARTHEST <= correction.value <= FARTHEST:
        tensors = memory.peaks[correction.stage]
        low, high = (
            format_size(part * tensors + constants.workspace)
            for part in (1.0 / FARTHEST, FARTHEST)
        )
        raise InputError(
            "is not a peak of this plan",
            where="--peak",
            got=format_size(measured),
            expected=f"{low} to {high}, as stage {correction.stage} is counted with "
            f"{format_size(tensors + constants.workspace)}",
        )
    return correction


def correction_json(correction: PeakCorrection) -> dict[str, object]:
    """Return a correction as JSON values."""
    return {
        "scenario": correction.scenario_name,
        "constant": correction.constant,
        "value": correction.value,
        "shipped": correction.shipped,
        "stage": correction.stage,
        "measured_bytes": correction.measured,
        "allocated_bytes": {
            "counted": correction.allocated(correction.shipped),
            "corrected": correction.allocated(correction.value),
        },
    }


def correction_document(correction: PeakCorrection) -> Document:
    """Return what a printed peak changes."""
    before = correction.allocated(correction.shipped)
    after = correction.allocated(correction.value)
    counted = before[correction.stage]
    return Document(
        subject=correction.scenario_name,
        doing="calibrate",
        headline=Headline(
            verdict=f"{correction.constant} = {correction.value:.4f}",
            tone="plain",
            sentences=(
                f"Stage {correction.stage} allocated "
                f"{format_size(correction.measured)}, and was counted with "
                f"{format_size(counted)}: {percent(counted / correction.measured - 1)} "
                "off. Later plans of the job count as many tensors as this run had.",
            ),
        ),
        sections=(
            table_section(
                "stages",
                DataTable.of(
                    "Most that is allocated",
                    list(enumerate(zip(before, after, strict=True))),
                    {
                        "Stage": lambda row: cell(row[0], "{:d}".format),
                        "Counted": lambda row: cell(row[1][0], format_size),
                        "Corrected": lambda row: cell(row[1][1], format_size),
                    },
                ),
            ),
        ),
    )
