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
    from nestsim.commands.report import FolderReport, Report
    from nestsim.features.advise.command import AdviceReport, advise
    from nestsim.features.certificate.command import VerifyReport, verify
    from nestsim.features.collectives.command import CollectivesReport, collectives
    from nestsim.features.compare.command import (
        CompareReport,
        NetworksReport,
        compare,
        compare_networks,
    )
    from nestsim.features.goodput.command import GoodputReport, goodput
    from nestsim.features.jitter.command import (
        JitterFitReport,
        JitterReport,
        jitter,
        jitter_fit,
    )
    from nestsim.features.jobs.command import TenancyReport, jobs
    from nestsim.features.memory.command import MemoryReport, memory
    from nestsim.features.rl.command import RlReport, rl
    from nestsim.features.run.command import (
        ExplainReport,
        JobReport,
        PlanReport,
        explain,
        plan,
        run,
        simulate,
    )
    from nestsim.features.run.pages import ReportPage, report_page
    from nestsim.features.sites.command import SitesReport, sites
    from nestsim.features.stress.command import StressReport, stress
    from nestsim.features.sweep.command import SweepReport, sweep
    from nestsim.features.sweep.executors.dask import DaskWorkers
    from nestsim.features.validation.command import ValidateReport, validate
    from nestsim.launch.command import (
        ExportReport,
        ImportReport,
        export,
        import_launch,
    )
    from nestsim.scenario.load import Scenario, load_scenario
    from nestsim.scenario.one_line import scenario_of
    from planner.step.plan import Plan
    from topologies.errors import InputError

__all__ = [
    "AdviceReport",
    "CollectivesReport",
    "CompareReport",
    "DaskWorkers",
    "ExplainReport",
    "ExportReport",
    "FolderReport",
    "GoodputReport",
    "ImportReport",
    "InputError",
    "JitterFitReport",
    "JitterReport",
    "JobReport",
    "MemoryReport",
    "NetworksReport",
    "Plan",
    "PlanReport",
    "Report",
    "ReportPage",
    "RlReport",
    "Scenario",
    "SitesReport",
    "StressReport",
    "SweepReport",
    "TenancyReport",
    "ValidateReport",
    "VerifyReport",
    "advise",
    "collectives",
    "compare",
    "compare_networks",
    "explain",
    "export",
    "goodput",
    "import_launch",
    "jitter",
    "jitter_fit",
    "jobs",
    "load_scenario",
    "memory",
    "plan",
    "report_page",
    "rl",
    "run",
    "scenario_of",
    "simulate",
    "sites",
    "stress",
    "sweep",
    "validate",
    "verify",
]

_NAMES = MappingProxyType(
    {
        "nestsim.launch.command": "ExportReport ImportReport export import_launch",
        "nestsim.commands.report": "FolderReport Report",
        "nestsim.features.run.command": (
            "ExplainReport JobReport PlanReport explain plan run simulate"
        ),
        "nestsim.features.run.pages": "ReportPage report_page",
        "nestsim.features.advise.command": "AdviceReport advise",
        "nestsim.features.certificate.command": "VerifyReport verify",
        "nestsim.features.collectives.command": "CollectivesReport collectives",
        "nestsim.features.compare.command": (
            "CompareReport NetworksReport compare compare_networks"
        ),
        "nestsim.features.goodput.command": "GoodputReport goodput",
        "nestsim.features.jitter.command": (
            "JitterFitReport JitterReport jitter jitter_fit"
        ),
        "nestsim.features.jobs.command": "TenancyReport jobs",
        "nestsim.features.memory.command": "MemoryReport memory",
        "nestsim.features.rl.command": "RlReport rl",
        "nestsim.features.sites.command": "SitesReport sites",
        "nestsim.features.stress.command": "StressReport stress",
        "nestsim.features.sweep.command": "SweepReport sweep",
        "nestsim.features.sweep.executors.dask": "DaskWorkers",
        "nestsim.features.validation.command": "ValidateReport validate",
        "nestsim.scenario.load": "Scenario load_scenario",
        "nestsim.scenario.one_line": "scenario_of",
        "planner.step.plan": "Plan",
        "topologies.errors": "InputError",
    }
)
"""Module -> names that come from it, imported when they are first asked for (PEP 562),
so that importing nestsim takes no time."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("nestsim")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
