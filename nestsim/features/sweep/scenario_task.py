"""What is done at a point of a sweep over a scenario's settings."""

import contextlib
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from estimators import user_files as tables
from estimators.models import document_lengths, layer_loads
from estimators.models.config_file import MAX_FILE as MAX_CONFIG_FILE
from estimators.operators import profile
from estimators.tracing import user_module
from nestsim.evaluate.job import plan_job, run_job, simulate_job
from nestsim.features.run.cost import cost_cells
from nestsim.features.run.result_record import ThroughputRecord
from nestsim.features.sweep.axes import OWN_TABLES, Axis
from nestsim.running.store import Point, PointFailedError, Row, content_key
from nestsim.scenario import pictures
from nestsim.scenario.editing import Path as SettingPath
from nestsim.scenario.editing import parse_path, spelt, with_values
from nestsim.scenario.hardware.described import MAX_DESCRIBED
from nestsim.scenario.load import scenario_of
from nestsim.scenario.model import module_file
from topologies import link_file
from topologies.errors import InputError
from topologies.input_file import parse_toml, read_file

if TYPE_CHECKING:
    from nestsim.evaluate.results import (
        Candidate,
        PlannedCandidate,
        ReplayedResult,
        Throughput,
    )
    from nestsim.scenario.load import Scenario

FILE_SETTINGS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "model.config": ("a Hugging Face config.json", MAX_CONFIG_FILE),
        "model.module": ("a Python file that builds a module", user_module.MAX_FILE),
        "model.moe_routing_file": (layer_loads.EXPECTED, layer_loads.MAX_FILE),
        "model.document_lengths": (
            "a CSV file of lengths of documents",
            document_lengths.MAX_FILE,
        ),
        "model.image_counts": (pictures.EXPECTED, document_lengths.MAX_FILE),
        "cluster.profile": ("a file that nestsim profile wrote", profile.MAX_FILE),
        "cluster.network.path": ("a TOML file of links", link_file.MAX_FILE),
        "cluster.network.file": ("a file that describes a network", MAX_DESCRIBED),
        "software.constants": ("a file that nestsim calibrate wrote", tables.MAX_FILE),
        "software.links": (
            "a file that nestsim profile-links wrote",
            tables.MAX_FILE,
        ),
    }
)
"""Setting that names a file -> what the file is, and its longest length [byte]."""

NOTHING = "the search found no plan"
"""Reason of a point at which there is no plan."""

PLAN_COLUMNS = (
    *("virtual_pipeline_model_parallel_size", "micro_batch_size", "num_microbatches"),
    *("schedule", "recompute", "zero_stage", "placement"),
)
"""Settings of a plan that tables have a column for, beside its parallel sizes."""

MOST_CHECKED = 200
"""If none of so many points is a scenario, none is taken to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTask:
    """Puts a point's values into a scenario, and plans or replays it."""

    path: Path
    """The scenario file, beside which other files are looked for."""

    document: Mapping[str, object]
    """What it says of the job."""

    what: str
    """One of `nestsim.scenario.stress.SWEPT`."""

    @classmethod
    def of(cls, scenario: "Scenario", what: str | None = None) -> "ScenarioTask":
        """Return the task for a scenario.

        Parameters
        ----------
        scenario
            As loaded from its file.
        what
            What is done at each point; None for what the scenario says or suggests.

        Raises
        ------
        InputError
            If a plan is to be replayed and there is none.
        """
        document = parse_toml(scenario.text)
        what = what or scenario.sweep.what or ("simulate" if scenario.plan else "run")
        if what == "simulate" and scenario.plan is None:
            raise InputError(
                "there is no plan to replay",
                where="plan",
                expected='a table [plan], or another sweep.what: "plan" or "run"',
            )
        job = {key: value for key, value in document.items() if key not in OWN_TABLES}
        return cls(path=scenario.path, document=job, what=what)

    def __call__(self, point: Point) -> Row:
        """Return the results of the scenario with the point's values."""
        return _TASKS[self.what](self.scenario(point))

    def key(self, point: Point) -> str:
        """Return a hash of the scenario with the point's values."""
        return content_key([self.what, with_values(self.document, point)])

    def scenario(self, point: Point) -> "Scenario":
        """Return the scenario with the point's values.

        Raises
        ------
        InputError
            If it is none.
        """
        return scenario_of(with_values(self.document, point), self.path, b"")

    def check(self, points: Sequence[Point]) -> None:
        """Refuse points none of which is a scenario, before any of them is evaluated.

        Raises
        ------
        InputError
            What is wrong with the first of them.
        """
        first: InputError | None = None
        for point in points[:MOST_CHECKED]:
            try:
                self.scenario(point)
            except InputError as error:
                first = first or error.at(f"with {spelt(point)}", ": ")
            else:
                return
        if first is not None:
            raise first

    def files(self, points: Sequence[Point]) -> set[Path]:
        """Return the files that points read."""
        settings = dict.fromkeys(name for point in points for name in point)
        values = {
            name: [point[name] for point in points if name in point]
            for name in settings
            if any(_touches(name, path) for path in FILE_SETTINGS)
        }
        by_setting = _named_files(self.document, values)
        folder = self.path.parent
        return {
            folder / file for named in by_setting.values() for file in named.values()
        }

    def facts(
        self, axes: Sequence[Axis], time_limit: float | None = None
    ) -> dict[str, str]:
        """Return what a store must agree in to be taken up, as names and hashes."""
        values = {axis.path: list(axis.values) for axis in axes}
        return {
            "version of nestsim": version("nestsim"),
            "scenario": content_key(self.document),
            "files": _files_digest(self.path.parent, self.document, values),
            "settings": content_key([self.what, list(values.items()), time_limit]),
        }


def scenario_digest(scenario: "Scenario") -> str:
    """Return a hash of what a scenario says, defaults and files resolved.

    Where the file lies and how it is written does not matter.
    """
    spec = scenario.network_spec
    links = b"".join(link_file.link_file_bytes(path) for path in spec.files)
    anywhere = replace(scenario, network_spec=spec.without_folders())
    return hashlib.sha256(anywhere.content().encode() + links).hexdigest()


def _files_digest(
    folder: Path, document: Mapping[str, object], values: Mapping[str, Sequence[object]]
) -> str:
    """Return a hash of every file that a setting names, in the file or on an axis."""
    digests = {}
    for path, named in _named_files(document, values).items():
        expected, most_bytes = FILE_SETTINGS[path]
        for name, file in named.items():
            # What cannot be read is told where the point is evaluated.
            with contextlib.suppress(InputError):
                content = read_file(
                    folder / file, expected=expected, most_bytes=most_bytes
                )
                digests[f"{path} = {name}"] = hashlib.sha256(content).hexdigest()
    return content_key(digests)


def _named_files(
    document: Mapping[str, object], values: Mapping[str, Sequence[object]]
) -> dict[str, dict[str, str]]:
    """Return each setting of `FILE_SETTINGS` with its values, and the files they name.

    Parameters
    ----------
    document
        What the scenario says.
    values
        Dotted path of a setting -> its values, instead of what the scenario says.
    """
    files: dict[str, dict[str, str]] = {}
    for path in FILE_SETTINGS:
        setting = parse_path(path)
        named = {_inner(document, setting)}
        for text, settled in values.items():
            outer = parse_path(text)
            if setting[: len(outer)] == outer:
                inner = setting[len(outer) :]
                named.update(_inner(value, inner) for value in settled)
        files[path] = {
            name: module_file(name) if path == "model.module" else name
            for name in sorted(file for file in named if file)
        }
    return files


def _touches(name: str, path: str) -> bool:
    """Tell whether a setting is one that names a file, or a table with it."""
    outer = parse_path(name)
    return parse_path(path)[: len(outer)] == outer


def _inner(value: object, path: SettingPath) -> str | None:
    """Return the text at a path inside a value; None if there is none."""
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value if isinstance(value, str) else None


def _simulate(scenario: "Scenario") -> Row:
    result = simulate_job(scenario)
    return _replayed(result, result.candidate)


def _run(scenario: "Scenario") -> Row:
    result = run_job(scenario)
    if not result.candidates:
        raise PointFailedError(result.shortfall or NOTHING)
    best = result.candidates[result.chosen or 0]
    return {
        **_replayed(result, best),
        "planner_rank": best.rank,
        "lower_bound_s": _finite(result.lower_bound),
        "stopped_by": result.spent.stopped_by or None,
    }


def _plan(scenario: "Scenario") -> Row:
    result = plan_job(scenario)
    if not result.candidates:
        raise PointFailedError(result.shortfall or NOTHING)
    best = result.candidates[0]
    return {
        **_throughput("planned", best.planned),
        **_settings(best),
        "lower_bound_s": _finite(result.lower_bound),
        "stopped_by": result.spent.stopped_by or None,
    }


_TASKS = {"simulate": _simulate, "plan": _plan, "run": _run}


def _replayed(result: "ReplayedResult", candidate: "Candidate") -> Row:
    return {
        "verdict": candidate.verdict.kind,
        "reason": candidate.verdict.reason,
        **_throughput("simulated", candidate.simulated),
        **_throughput("planned", candidate.planned),
        "gap_s": candidate.verdict.gap.total,
        **_settings(candidate),
        **cost_cells(result.cost_of(candidate)),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


_THROUGHPUT = (
    *("iteration_time_s", "tokens_per_s", "tokens_per_s_per_device", "mfu"),
    "peak_memory_bytes",
)
"""Keys of a throughput that tables have a column for."""


def _throughput(whose: str, throughput: "Throughput") -> Row:
    reached = ThroughputRecord.dump(throughput)
    return {f"{whose}_{name}": reached[name] for name in _THROUGHPUT}


def _settings(candidate: "Candidate | PlannedCandidate") -> dict[str, object]:
    plan = candidate.priced.plan
    data = plan.settings_json()
    return {
        **data["parallel"],
        **{name: data[name] for name in PLAN_COLUMNS},
        "devices_used": plan.devices_used,
    }
