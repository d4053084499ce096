"""Planners that users bring: a function of a job that proposes plans.

The function gets a `PlanningProblem` and yields plans, each a mapping of the settings
of a scenario's table ``[plan]``. They are checked, priced and held to memory and to the
framework's rules as everyone's are; the replay judges the best of them.

A planner is found in a file (``mine.py``, its function ``plan``; ``mine.py:other``), is
installed under the entry point group ``nestsim.planners``, or is a callable in Python.
"""

import hashlib
import inspect
import math
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeAlias

from nestsim.scenario.defaults import with_defaults
from nestsim.scenario.errors import checked
from nestsim.scenario.load import Scenario
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.rivals import PLANNERS
from planner.rivals.launched import Launcher
from planner.rivals.protocol import (
    Planner,
    PlannerOutcome,
    PlanRequest,
    believed_time,
    priced_best_first,
    too_little_memory,
)
from planner.step.plan import Plan
from planner.work import PRICED, LimitReachedError, stopped_sentence
from topologies.errors import InputError

GROUP = "nestsim.planners"
"""Entry points of installed planners."""

FUNCTION = "plan"
"""What the function of a planner's file is called where nothing says."""

MOST_NOTES = 3
"""Plans that nothing could be made of, of which a report says why."""

PlanSettings: TypeAlias = Mapping[str, Any]
"""Settings of a table [plan], by Megatron's names."""

OwnFunction: TypeAlias = Callable[
    ["PlanningProblem"], Iterable[PlanSettings] | PlanSettings
]
"""What a user writes."""


@dataclass(frozen=True, kw_only=True)
class PlanningProblem:
    """A job on a cluster, for which plans are wanted."""

    scenario: Scenario
    """Everything: model, training, cluster, software, search."""

    request: PlanRequest = field(repr=False)
    """What planners are asked for, as those of nestsim see it."""

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return self.request.network.num_devices

    @property
    def devices_per_node(self) -> int:
        """Devices of a node, or of the innermost level where there are no nodes."""
        rules = self.request.network.rules
        return self.request.network.block_sizes[0] if rules is None else rules.node_size

    @property
    def num_layers(self) -> int:
        """Blocks of the model."""
        return self.scenario.spec.num_layers

    @property
    def global_batch_size(self) -> int:
        """Sequences of an optimizer step."""
        return self.scenario.training.global_batch_size

    @property
    def framework(self) -> str:
        """Preset of the software."""
        return self.scenario.software.name

    def time(self, plan: PlanSettings) -> float:
        """Return what a step of a plan is planned to take [s].

        Infinite where `why_not` says something.
        """
        made, _ = self._tried(plan)
        if made is None:
            return math.inf
        return price_plan(
            self.request.network, self.request.workload, made
        ).iteration_time

    def why_not(self, plan: PlanSettings) -> str:
        """Say what keeps a plan from being taken; empty if nothing does."""
        return self._tried(plan)[1]

    def taken(self, plan: PlanSettings) -> tuple[Plan | None, str]:
        """Return a plan as it is launched, or None and why it is not taken."""
        try:
            made = self._built(plan)
        except InputError as error:
            return None, f"{error.at('plan')}".replace("\n ", "").strip()
        launched = self._launcher.launched(made)
        if launched is not None:
            return launched, ""
        network, workload, spec = self.request.problem
        if not self._launcher.fits(made):
            return None, f"Memory: {too_little_memory(network, workload, spec, made)}"
        broken = self._launcher.breaches(made)
        rules = ", ".join(f"{rule.rule} ({rule.found})" for rule in broken)
        return None, f"{self.framework} launches nothing like it: {rules}"

    def _tried(self, plan: PlanSettings) -> tuple[Plan | None, str]:
        """Return `taken`, counted as a plan that is priced."""
        self.request.work.spend(PRICED)
        return self.taken(plan)

    def _built(self, plan: PlanSettings) -> Plan:
        """Return a plan of its settings.

        Raises
        ------
        InputError
            If they are no plan of the job.
        """
        if not isinstance(plan, Mapping):
            raise InputError(
                "a planner proposes something else than a plan",
                got=plan,
                expected="a mapping such as {'tensor_model_parallel_size': 8}",
            )
        table = with_defaults({**self._document, "plan": dict(plan)})["plan"]
        spec = checked(PlanSpec, table)
        return build_plan(self.request.network, self.request.workload, spec)

    @cached_property
    def _document(self) -> dict[str, Any]:
        return self.scenario.document()

    @cached_property
    def _launcher(self) -> Launcher:
        return Launcher.of(*self.request.problem)


@dataclass(frozen=True, kw_only=True)
class OwnPlanner(Planner):
    """A user's function as a planner."""

    name: str  # type: ignore[misc]  # one of nestsim has it for the class
    """What reports call it."""

    function: OwnFunction | None = None
    """The function; None for that of `source`, which each process loads itself."""

    source: str = ""
    """Its file and function, ``mine.py:plan``; empty for a function that is given."""

    scenario: Scenario | None = None
    """What it is asked about."""

    sees = "What its function looks at."

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the best of what the function proposes, by the common evaluator."""
        assert self.scenario is not None, "`of` says what is asked"
        problem = PlanningProblem(scenario=self.scenario, request=request)
        plans: list[Plan] = []
        refused: list[str] = []
        number, why_not = 0, ""
        try:
            proposed = self._called()(problem)
            listed = [proposed] if isinstance(proposed, Mapping) else proposed
            for number, settings in enumerate(listed, start=1):
                request.report(f"{self.name}: {number} plans")
                request.work.spend(PRICED)
                plan, reason = problem.taken(settings)
                if plan is None:
                    refused.append(f"Plan {number} is not taken: {reason}")
                elif plan not in plans:
                    plans.append(plan)
                    request.work.note_plan()
        except LimitReachedError:
            why_not = stopped_sentence(request.work.total(), f"{number} plans")
        except InputError:
            raise
        except Exception as error:
            why_not = f"Its function failed: {type(error).__name__}: {error}"
        priced = priced_best_first(request.network, request.workload, plans)
        best = priced[: request.spec.keep_best]
        none = " ".join(refused[:1]) or "Its function proposes no plan."
        return PlannerOutcome(
            plans=best,
            belief=believed_time(best),
            spent=request.work.total(),
            evaluations=number,
            why_not="" if best else why_not or none,
            notes=tuple(refused[:MOST_NOTES]) if best else (),
        )

    def of(self, scenario: Scenario) -> "OwnPlanner":
        """Return the planner, asked about a scenario."""
        return OwnPlanner(
            name=self.name,
            function=self.function,
            source=self.source,
            scenario=scenario,
        )

    def digest(self) -> str:
        """Return a hash of the code of its file, or of its function."""
        function = self._called()
        try:
            code = Path(inspect.getfile(function)).read_bytes()
        except (OSError, TypeError):
            code = repr(getattr(function, "__code__", function)).encode()
        return hashlib.sha256(code).hexdigest()

    def _called(self) -> OwnFunction:
        return self.function or _function_of(self.source)


def own_planners(
    planners: Sequence[str | OwnFunction],
) -> tuple[tuple[str, ...], dict[str, OwnPlanner]]:
    """Return the names of planners, and those of them that nestsim does not have.

    Parameters
    ----------
    planners
        Names of `planner.rivals.PLANNERS` or of installed planners, files, functions.

    Raises
    ------
    InputError
        If a file or its function is not there, or a name is nestsim's own.
    """
    brought: dict[str, OwnPlanner] = {}
    names = []
    installed = {point.name: point for point in entry_points(group=GROUP)}
    for planner in planners:
        name = planner
        if callable(planner):
            name = getattr(planner, "__name__", type(planner).__name__)
            brought[name] = OwnPlanner(name=name, function=planner)
        elif ".py" in planner and planner not in PLANNERS:
            name = Path(planner.partition(":")[0]).stem
            brought[name] = OwnPlanner(name=name, source=planner)
            _function_of(planner)
        elif planner in installed and planner not in PLANNERS:
            brought[planner] = OwnPlanner(name=planner, source=f"{GROUP}:{planner}")
        assert isinstance(name, str)
        if name in brought and name in PLANNERS:
            raise InputError(
                "has the name of a planner of nestsim",
                where="--planners",
                got=name,
                expected="another name than " + ", ".join(PLANNERS),
            )
        names.append(name)
    return tuple(names), brought


def _function_of(source: str) -> OwnFunction:
    """Return the function that a file or an installed package has.

    Raises
    ------
    InputError
        If there is none.
    """
    file, _, name = source.partition(":")
    if file == GROUP:
        (point,) = entry_points(group=GROUP, name=name)
        function = point.load()
    else:
        name = name or FUNCTION
        function = _functions(file).get(name)
    if not callable(function):
        raise InputError(
            "there is no such function" if function is None else "is no function",
            where=f"--planners {source}",
            got=name,
            expected=f"def {name}(problem): .. that yields plans",
        )
    loaded: OwnFunction = function
    return loaded


def _functions(file: str) -> Mapping[str, Any]:
    """Return what a file defines; it is run.

    Raises
    ------
    InputError
        If it is not there, or fails.
    """
    where = f"--planners {file}"
    if not Path(file).is_file():
        raise InputError("no such file", where=where, expected="a Python file")
    try:
        return runpy.run_path(file)
    except Exception as error:  # whatever a user's file does
        raise InputError(
            f"the file fails: {type(error).__name__}: {error}",
            where=where,
            expected="a file that Python runs",
        ) from None
