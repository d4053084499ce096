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
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

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
from planner.search.space import SearchSpec
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
            outside = _outside(self.request.spec, launched)
            return (None, outside) if outside else (launched, "")
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


def _outside(spec: SearchSpec, plan: Plan) -> str:
    """Say what of a plan a scenario's [search] does not list; empty if nothing."""
    for name, values in _listed(plan).items():
        listed = getattr(spec, name)
        if listed is not None and not values <= {*listed}:
            missing = ", ".join(
                str(value) for value in sorted(values - {*listed}, key=str)
            )
            return f"search.{name} does not list {missing}"
    asked = spec.sequence_parallel
    is_split = plan.parallel.tensor_model_parallel_size > 1
    if asked is not None and is_split and plan.parallel.sequence_parallel != asked:
        return f"search.sequence_parallel is {str(asked).lower()}"
    return ""


def _listed(plan: Plan) -> dict[str, set[Any]]:
    """Return what a plan has of the sizes and choices that [search] may list."""
    parallel = plan.parallel
    return {
        "micro_batch_sizes": {plan.micro_batch_size},
        "tensor_model_parallel_sizes": {parallel.tensor_model_parallel_size},
        "pipeline_model_parallel_sizes": {parallel.pipeline_model_parallel_size},
        "data_parallel_sizes": {parallel.data_parallel_size},
        "context_parallel_sizes": {parallel.context_parallel_size},
        "expert_model_parallel_sizes": {parallel.expert_model_parallel_size},
        "virtual_pipeline_model_parallel_sizes": {
            plan.virtual_pipeline_model_parallel_size
        },
        "recompute": {stage.recompute for stage in plan.stages},
        "zero_stages": {stage.zero_stage for stage in plan.stages},
        "offload": {stage.offload for stage in plan.stages},
    }


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

    token: str = field(default_factory=lambda: uuid4().hex)
    """What tells a function that is given from all others."""

    sees = "What its function looks at."

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the best of what the function proposes, by the common evaluator."""
        assert self.scenario is not None, "`of` says what is asked"
        problem = PlanningProblem(scenario=self.scenario, request=request)
        plans: list[Plan] = []
        refused: list[str] = []
        number, why_not = 0, ""
        try:
            with redirect_stdout(sys.stderr):  # results go to standard output alone
                proposed = self._called()(problem)
                if proposed is None:
                    raise TypeError("it returns nothing, in place of plans")
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
        except (Exception, SystemExit) as error:
            why_not = f"Its function failed: {type(error).__name__}: {error}."
        priced = priced_best_first(request.network, request.workload, plans)
        best = priced[: request.spec.keep_best]
        none = " ".join(refused[:1]) or "Its function proposes no plan."
        return PlannerOutcome(
            plans=best,
            belief=believed_time(best),
            spent=request.work.total(),
            evaluations=number,
            why_not="" if best else why_not or none,
            notes=(*filter(None, [why_not]), *refused[:MOST_NOTES]) if best else (),
        )

    def of(self, scenario: Scenario) -> "OwnPlanner":
        """Return the planner, asked about a scenario."""
        return OwnPlanner(
            name=self.name,
            function=self.function,
            source=self.source,
            scenario=scenario,
            token=self.token,
        )

    def digest(self) -> str:
        """Return a hash of the Python files of its folder.

        Of a function that is given, a name that no other has: what it closes over may
        change.
        """
        try:
            folder = (
                Path(inspect.getfile(self._called())).parent if self.source else None
            )
        except TypeError:
            folder = None
        if folder is None:
            return self.token
        digest = hashlib.sha256()
        for file in sorted(folder.glob("*.py")):
            digest.update(f"{file.name}\n".encode() + file.read_bytes())
        return digest.hexdigest()

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
            file, _, function = planner.partition(":")
            name = Path(file).stem
            name += f":{function}" if function not in {"", FUNCTION} else ""
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
        point, *_ = entry_points(group=GROUP, name=name)
        function = _run(name, point.load)
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
    if not Path(file).is_file():
        raise InputError(
            "no such file", where=f"--planners {file}", expected="a Python file"
        )
    folder = str(Path(file).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as Python does for a file that it runs
    defined: Mapping[str, Any] = _run(file, lambda: runpy.run_path(file))
    return defined


def _run(name: str, load: Callable[[], Any]) -> Any:
    """Return what a user's code makes; what it prints is no result.

    Raises
    ------
    InputError
        If it fails.
    """
    try:
        with redirect_stdout(sys.stderr):
            return load()
    except (Exception, SystemExit) as error:  # whatever it does
        raise InputError(
            f"it fails: {type(error).__name__}: {error}",
            where=f"--planners {name}",
            expected="code that Python runs",
        ) from None
