"""``nestsim compare`` of planners or networks: reports, functions, description."""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from nestsim.commands.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    scenario_from,
    store_folder,
)
from nestsim.commands.report import PagedReport, Parts
from nestsim.commands.task import Task
from nestsim.document.dumps import plain_values
from nestsim.document.folder import ResultsFolder, json_writer
from nestsim.document.parts import Document
from nestsim.document.terminal import print_document
from nestsim.features.compare.document import comparison_document
from nestsim.features.compare.job import (
    CompareSettings,
    checked_settings,
    compare_job,
    store_facts,
)
from nestsim.features.compare.networks_document import networks_document
from nestsim.features.compare.networks_job import (
    NetworkFile,
    checked_planners,
    networks_facts,
    networks_job,
    read_network_files,
)
from nestsim.features.compare.networks_record import (
    are_equal,
    leaders_label,
    network_copies,
    networks_json,
    networks_rows,
)
from nestsim.features.compare.own import OwnFunction, own_planners
from nestsim.features.compare.record import (
    FILES,
    STORE,
    TIMES,
    comparison_facts,
    comparison_json,
    comparison_rows,
    rows_csv,
    scenario_copies,
    search_times,
)
from nestsim.features.compare.results import Comparison, Equal, NetworkComparison
from nestsim.features.sweep.command import chosen_executor  # noqa: F401 - its description names it
from nestsim.features.sweep.executors.protocol import Executor
from nestsim.running.store import Store, remove_store
from nestsim.scenario.load import Scenario, load_scenario
from topologies.errors import InputError


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class _ComparisonReport(PagedReport):
    """A comparison, whose finished pairs are kept in its folder until it is written."""

    @abstractmethod
    def printed_dict(self, *, with_times: bool = True) -> dict[str, object]:
        """Return everything, with how long the searches took if that is asked for."""

    @abstractmethod
    def rows(self) -> list[dict[str, object]]:
        """Return one row for each planner where it was compared, in SI units."""

    @abstractmethod
    def times(self) -> list[dict[str, object]]:
        """Return how long each search took, a row each."""

    @abstractmethod
    def copies(self) -> dict[str, bytes]:
        """Return the files that were read, as the user wrote them, by name."""

    @abstractmethod
    def manifest(self) -> dict[str, object]:
        """Return what the manifest says beside the hash of each file."""

    def print_to(self, console: Console, *, verbose: bool = False) -> None:
        """Print what the document says, and how long searches took."""
        print_document(comparison(self.printed_dict()), console, verbose=verbose)

    def parts(self) -> Parts:
        """Return copies of what was read, tables, the figure and the page."""
        record, rows = self.printed_dict(with_times=False), self.rows()
        return Parts(
            record=record,
            rows=plain_values(rows),
            document=partial(comparison, record),
            files={
                **self.copies(),
                "comparison.csv": rows_csv(rows),
                "comparison.json": json_writer(record),
                TIMES: rows_csv(self.times()),
            },
            pictures={"comparison": ()},
            has_report=True,
            manifest=self.manifest(),
            unhashed=(TIMES,),
        )

    def write_to(self, folder: ResultsFolder, **options: Any) -> None:
        """Write into a folder that is claimed; what a killed call left there goes."""
        super().write_to(folder, **options)
        remove_store(folder.path / STORE)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CompareReport(_ComparisonReport):
    """What each planner found for each scenario, in one evaluator and replay."""

    scenarios: tuple[Scenario, ...]
    """What was asked."""

    result: Comparison
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether the replay confirms some planner's plan for every scenario."""
        return all(group.is_confirmed for group in self.result.groups)

    def facts(self) -> dict[str, object]:
        """Return the fastest planner for each scenario."""
        best = {group.scenario: group.fastest for group in self.result.groups}
        return {
            "planners": self.result.planners,
            "base": self.result.base,
            **{
                f"fastest for {name}": entry.planner if entry else "none"
                for name, entry in best.items()
            },
        }

    def printed_dict(self, *, with_times: bool = True) -> dict[str, object]:
        """Return everything, with how long the searches took if that is asked for."""
        return comparison_json(self.result, with_times=with_times)

    def rows(self) -> list[dict[str, object]]:
        """Return one row for each scenario and planner, in SI units."""
        return comparison_rows(self.result)

    def times(self) -> list[dict[str, object]]:
        """Return how long each search took, a row each."""
        groups = {group.scenario: group for group in self.result.groups}
        return search_times("scenario", groups)

    def copies(self) -> dict[str, bytes]:
        """Return the scenarios' files, as the user wrote them, by name."""
        return scenario_copies(self.scenarios)

    def manifest(self) -> dict[str, object]:
        """Return which scenarios there are, and their users' modules."""
        return comparison_facts(self.scenarios)

    def inputs(self) -> Sequence[Path]:
        """Return the scenarios' files."""
        return [file for scenario in self.scenarios for file in scenario.files()]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworksReport(_ComparisonReport):
    """What one job gets on each of several networks."""

    scenario: Scenario
    """The job."""

    files: tuple[NetworkFile, ...]
    """The networks, as they were read."""

    result: NetworkComparison
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether a plan is confirmed on each network, and they are equal if asked."""
        asked = self.result.asked
        return all(network.is_confirmed for network in self.result.networks) and (
            asked is None or are_equal(self.result, asked)
        )

    def facts(self) -> dict[str, object]:
        """Return the fastest network, and the speed of each."""
        result = self.result
        return {
            "fastest": leaders_label(result),
            **{
                f"speed on {network.label}": result.speed(
                    network.best.tokens_per_second
                )
                for network in result.networks
            },
        }

    def printed_dict(self, *, with_times: bool = True) -> dict[str, object]:
        """Return everything, with how long the searches took if that is asked for."""
        return networks_json(self.result, with_times=with_times)

    def rows(self) -> list[dict[str, object]]:
        """Return one row for each network and planner, in SI units."""
        return networks_rows(self.result)

    def times(self) -> list[dict[str, object]]:
        """Return how long each search took, a row each."""
        networks = {network.label: network for network in self.result.networks}
        return search_times("network", networks)

    def copies(self) -> dict[str, bytes]:
        """Return the files that were read, as the user wrote them, by name."""
        return network_copies(self.scenario, self.files)

    def manifest(self) -> dict[str, object]:
        """Return which scenario was compared, and on which networks."""
        return {
            "scenarios": {f"{self.scenario.path.stem}.toml": self.scenario.name},
            "networks": {
                network.label: network.file for network in self.result.networks
            },
        }

    def inputs(self) -> Sequence[Path]:
        """Return the files that were read."""
        return [*self.scenario.files(), *(file.path for file in self.files)]


def compare(  # noqa: PLR0913 - one for each thing that can be asked
    scenarios: ScenarioSource | Sequence[ScenarioSource],
    *,
    planners: Sequence[str | OwnFunction] = (),
    base: str = "",
    time_limit: float | None = None,
    space: str = "",
    workers: int | None = 1,
    executor: Executor | None = None,
    keep_in: str | os.PathLike[str] | None = None,
    restart: bool = False,
    progress: ProgressTarget = None,
) -> CompareReport:
    """Compare planners: one space, one evaluator, and the replay as the judge.

    Parameters
    ----------
    scenarios
        One or several, each as `nestsim.plan` takes it.
    planners
        Names: nest, manual, mcmc, phaze, alpa, mist, exhaustive, fixed; planners of
        your own: functions of a `PlanningProblem`, ``"mine.py"``, or the name of an
        installed one. Empty for all but exhaustive, fixed where every scenario has a
        table [plan].
    base
        The planner whose throughput is 1; empty for nest, or the first one without it.
    time_limit
        Each search ends this long after its first plan, with its best so far; None
        for the scenario's own [s].
    space
        What all planners are held to: "launchable" plans, or "free" for any; empty for
        what each scenario's ``search.launchable`` says.
    workers
        Processes. With more than one, searches slow each other down; None for one for
        each core.
    executor
        As `nestsim.sweep` takes it; a planner of your own that is a file must be there
        on every worker, under the same path.
    keep_in
        Folder in which finished pairs are kept, so that a call that was interrupted
        goes on there; None for memory alone.
    restart
        Forget what is kept there.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If a scenario is wrong, or a planner unknown. What stops a single planner is
        part of the result.
    """
    if isinstance(scenarios, Scenario | str | os.PathLike | Mapping):
        scenarios = (scenarios,)
    loaded = tuple(scenario_from(source) for source in scenarios)
    names, brought = own_planners(planners)
    asked = CompareSettings(
        planners=names, brought=brought, base=base, time_limit=time_limit, space=space
    )
    settings = checked_settings(asked, loaded)
    notes = [note for scenario in loaded for note in scenario.notes]
    facts = partial(store_facts, loaded, settings)
    with (
        calling(progress, notes=notes) as call,
        _kept(keep_in, facts, restart=restart) as store,
    ):
        result = compare_job(
            loaded,
            settings,
            store=store,
            workers=workers,
            executor=executor,
            progress=call.progress,
        )
    return CompareReport(scenarios=loaded, result=result, notices=tuple(call.notices))


def compare_networks(  # noqa: PLR0913 - one for each thing that can be asked
    scenario: ScenarioSource,
    networks: Sequence[str | os.PathLike[str]],
    *,
    planners: Sequence[str] = (),
    equal: Equal | None = None,
    workers: int | None = 1,
    executor: Executor | None = None,
    keep_in: str | os.PathLike[str] | None = None,
    restart: bool = False,
    progress: ProgressTarget = None,
) -> NetworksReport:
    """Compare networks: one job on each, and the best plan that each allows.

    Parameters
    ----------
    scenario
        The job, as `nestsim.plan` takes it. Its own network only says how many devices
        there are.
    networks
        Two or more files, each with a table [cluster.network], with the settings of
        that table alone, or with a whole scenario, of which the network is taken; or
        names of systems of the job's devices. The first one's throughput is 1.
    planners
        Names, as `nestsim.compare` takes them. Empty for the scenario's own.
    equal
        ``"ports"`` or ``"cost"``: what has to be equal for `NetworksReport.succeeded`.
    workers
        Processes; None for one for each core.
    executor
        As `nestsim.sweep` takes it.
    keep_in
        Folder in which finished points are kept, so that a call that was interrupted
        goes on there; None for memory alone.
    restart
        Forget what is kept there.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario or a network is wrong, or a network does not join as many
        devices. What stops a single planner is part of the result.
    """
    job = scenario_from(scenario)
    files = read_network_files([Path(file) for file in networks], job)
    names = checked_planners(planners, job)
    facts = partial(networks_facts, job, files, names)
    with (
        calling(progress, notes=job.notes) as call,
        _kept(keep_in, facts, restart=restart) as store,
    ):
        result = networks_job(
            job,
            files,
            names,
            equal=equal,
            store=store,
            workers=workers,
            executor=executor,
            progress=call.progress,
        )
    notices = tuple(call.notices)
    return NetworksReport(scenario=job, files=files, result=result, notices=notices)


@contextmanager
def _kept(
    folder: str | os.PathLike[str] | None,
    facts: Callable[[], Mapping[str, str]],
    *,
    restart: bool,
) -> Iterator[Store | None]:
    """Give the store of finished pairs in a folder, if there is one."""
    place = store_folder(folder)
    if place is None:
        yield None
        return
    with Store(place / STORE, facts(), restart=restart) as store:
        yield store


def comparison(record: Mapping[str, object]) -> Document:
    """Return the document of a comparison, of planners or of networks."""
    return (
        networks_document(record)
        if "networks" in record
        else comparison_document(record)
    )


def names(text: str) -> tuple[str, ...]:
    """Read ``nest,manual``."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def compare_task(  # noqa: PLR0913, PLR0917 - one for each option
    scenarios: list[Path],
    planners: tuple[str, ...],
    base: str,
    time_limit: float | None,
    space: str | None,
    networks: list[Path],
    equal: Equal | None,
    workers: int | None,
    output: Path | None,
    json: bool,
) -> Task:
    """Return the task of comparing planners or networks."""
    loaded = [load_scenario(path) for path in scenarios]
    if networks:
        job = _one_job(loaded, base, time_limit, space)
        task = _networks_task(job, networks, planners, equal)
    else:
        _refuse_equal(equal)
        settings = {"base": base, "time_limit": time_limit, "space": space or ""}
        task = _planners_task(loaded, planners, settings)
    folder = None if json and output is None else output or task.folder
    return replace(task, call=partial(task.call, workers=workers or 1), folder=folder)


def _planners_task(
    loaded: Sequence[Scenario], planners: Sequence[str], settings: Mapping[str, Any]
) -> Task:
    names, brought = own_planners(planners)
    checked = checked_settings(
        CompareSettings(planners=names, brought=brought, base=settings["base"]), loaded
    )
    stem = f"{loaded[0].path.stem}_comparison" if len(loaded) == 1 else "comparison"
    asked = {**settings, "planners": planners or checked.planners, "base": checked.base}
    return Task(
        call=partial(compare, loaded, **asked),
        files=[*scenario_copies(loaded), *FILES],
        inputs=[file for scenario in loaded for file in scenario.files()],
        folder=Path("results") / stem,
    )


def _networks_task(
    job: Scenario,
    networks: Sequence[Path],
    planners: Sequence[str],
    equal: Equal | None,
) -> Task:
    files = read_network_files(networks, job)
    names = checked_planners(planners, job)
    return Task(
        call=partial(compare_networks, job, networks, planners=names, equal=equal),
        files=[*network_copies(job, files), *FILES],
        inputs=[*job.files(), *(file.path for file in files if file.path.exists())],
        folder=Path("results") / f"{job.path.stem}_networks",
    )


def _one_job(
    loaded: Sequence[Scenario],
    base: str,
    time_limit: float | None,
    space: str | None,
) -> Scenario:
    """Return the scenario that is taken to every network."""
    if len(loaded) > 1:
        raise InputError(
            "networks are compared by one job",
            where="SCENARIO",
            got=" ".join(str(scenario.path) for scenario in loaded),
            expected="one scenario before --networks, and the networks behind it",
        )
    if base:
        raise InputError(
            "the network of the first file is the one whose throughput is 1",
            where="--base",
            got=base,
            expected="left out, and that file first in --networks",
        )
    (job,) = loaded
    changed: dict[str, object] = {}
    if time_limit is not None:
        changed["search.time_limit"] = f"{time_limit!r} s"
    if space is not None:
        changed["search.launchable"] = space == "launchable"
    return job.replace(changed) if changed else job


def _refuse_equal(equal: str | None) -> None:
    if equal is not None:
        raise InputError(
            "is about networks",
            where="--equal",
            got=equal,
            expected="two or more files of networks in --networks",
        )
