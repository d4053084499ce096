"""Plan distributed training, replay it link by link, and report it.

Examples
--------
>>> import nestsim
>>> scenario = nestsim.load_scenario("scenarios/gpt3_1.3b_8_a100.toml")
>>> report = nestsim.run(scenario)
>>> report.confirmed
True
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nestsim.face.collectives import CollectivesReport, collectives
    from nestsim.face.comparison import CompareReport, compare
    from nestsim.face.folder import ReportPage, report_page
    from nestsim.face.jobs import (
        ExplainReport,
        JobReport,
        PlanReport,
        explain,
        plan,
        run,
        simulate,
    )
    from nestsim.face.launch import ExportReport, ImportReport, export, import_launch
    from nestsim.face.memory import MemoryReport, memory
    from nestsim.face.networks import NetworksReport, compare_networks
    from nestsim.face.operations.goodput import GoodputReport, goodput
    from nestsim.face.operations.jitter import JitterReport, jitter
    from nestsim.face.operations.jobs import TenancyReport, jobs
    from nestsim.face.report import FolderReport, Report
    from nestsim.face.stress import StressReport, stress
    from nestsim.face.sweep import SweepReport, sweep
    from nestsim.face.validation import ValidateReport, validate
    from nestsim.features.sweep.executors.dask import DaskWorkers
    from nestsim.scenario.load import Scenario, load_scenario
    from planner.step.plan import Plan
    from topologies.errors import InputError

__all__ = [
    "CollectivesReport",
    "CompareReport",
    "DaskWorkers",
    "ExplainReport",
    "ExportReport",
    "FolderReport",
    "GoodputReport",
    "ImportReport",
    "InputError",
    "JitterReport",
    "JobReport",
    "MemoryReport",
    "NetworksReport",
    "Plan",
    "PlanReport",
    "Report",
    "ReportPage",
    "Scenario",
    "StressReport",
    "SweepReport",
    "TenancyReport",
    "ValidateReport",
    "collectives",
    "compare",
    "compare_networks",
    "explain",
    "export",
    "goodput",
    "import_launch",
    "jitter",
    "jobs",
    "load_scenario",
    "memory",
    "plan",
    "report_page",
    "run",
    "simulate",
    "stress",
    "sweep",
    "validate",
]

_HOMES = MappingProxyType(
    {
        "CollectivesReport": "nestsim.face.collectives",
        "CompareReport": "nestsim.face.comparison",
        "DaskWorkers": "nestsim.features.sweep.executors.dask",
        "ExplainReport": "nestsim.face.jobs",
        "ExportReport": "nestsim.face.launch",
        "FolderReport": "nestsim.face.report",
        "GoodputReport": "nestsim.face.operations.goodput",
        "ImportReport": "nestsim.face.launch",
        "InputError": "topologies.errors",
        "JitterReport": "nestsim.face.operations.jitter",
        "JobReport": "nestsim.face.jobs",
        "MemoryReport": "nestsim.face.memory",
        "NetworksReport": "nestsim.face.networks",
        "Plan": "planner.step.plan",
        "PlanReport": "nestsim.face.jobs",
        "Report": "nestsim.face.report",
        "ReportPage": "nestsim.face.folder",
        "Scenario": "nestsim.scenario.load",
        "StressReport": "nestsim.face.stress",
        "SweepReport": "nestsim.face.sweep",
        "TenancyReport": "nestsim.face.operations.jobs",
        "ValidateReport": "nestsim.face.validation",
        "collectives": "nestsim.face.collectives",
        "compare": "nestsim.face.comparison",
        "compare_networks": "nestsim.face.networks",
        "explain": "nestsim.face.jobs",
        "export": "nestsim.face.launch",
        "goodput": "nestsim.face.operations.goodput",
        "import_launch": "nestsim.face.launch",
        "jobs": "nestsim.face.operations.jobs",
        "jitter": "nestsim.face.operations.jitter",
        "load_scenario": "nestsim.scenario.load",
        "memory": "nestsim.face.memory",
        "plan": "nestsim.face.jobs",
        "report_page": "nestsim.face.folder",
        "run": "nestsim.face.jobs",
        "simulate": "nestsim.face.jobs",
        "stress": "nestsim.face.stress",
        "sweep": "nestsim.face.sweep",
        "validate": "nestsim.face.validation",
    }
)
"""Where each name comes from: imported when it is first asked for (PEP 562), so that
importing nestsim takes no time."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
