"""Compare networks: one job on each, the same search and the replay as the judge.

A comparison is a sweep: a point is a network and a planner, a row its entry.

A file says its network in one of three ways: a table ``[cluster.network]``, as in a
scenario; a whole scenario, of which the network alone is taken; or the settings of that
table alone, with ``kind`` at the top. In the first and in the last one ``name`` may say
what reports call it; without that it is the file's own name. A system's name stands for
the network of that system.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from nestsim.evaluate.cluster import build_job, cluster_network
from nestsim.evaluate.cost import ClusterCost, cluster_cost
from nestsim.evaluate.results import Candidate
from nestsim.features.compare.job import (
    CompareSettings,
    CompareTask,
    ReplayedEntry,
    checked_settings,
    compared_entries,
    for_comparison,
    model_label,
)
from nestsim.features.compare.results import (
    BusyLink,
    ComparedNetwork,
    Equal,
    NetworkComparison,
    NetworkLoad,
    PlannerEntry,
)
from nestsim.features.run.record import optimality_gap
from nestsim.features.run.statistics import hottest_links, iteration_causes
from nestsim.features.sweep.executors.protocol import Executor
from nestsim.features.sweep.scenario_task import scenario_digest
from nestsim.features.topology.document import has_ideal_trunks
from nestsim.running.store import Store, content_key
from nestsim.scenario.editing import toml_text
from nestsim.scenario.hardware.cost import CostSpec, LinkPrice, SwitchPrice
from nestsim.scenario.hardware.described import with_whole_paths
from nestsim.scenario.hardware.systems import load_system, names_system
from nestsim.scenario.load import Scenario, scenario_of
from planner.cost.objective import HOST, HOST_TRANSFERS
from planner.work import Progress
from topologies.errors import InputError, located, short_repr
from topologies.fabrics.inventory import (
    bisection_rule,
    count_parts,
    links_up,
    network_parts,
)
from topologies.input_file import parse_toml, read_file
from topologies.network import Network

MAX_FILE = 1_000_000
"""Longest file of a network [byte]."""

_EXPECTED = (
    'a table [cluster.network], a whole scenario, or its settings with kind = ".." at '
    "the top"
)
_TABLE = "cluster.network"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFile:
    """A file that holds a network, as the user wrote it."""

    path: Path
    """The file."""

    text: bytes
    """What it says."""

    label: str
    """What reports call the network."""

    network: Mapping[str, object]
    """Its table [cluster.network]; a file that it names is written with its folder."""

    is_bare: bool
    """Whether the settings of the table stand at the top."""

    __repr__ = short_repr


def read_network_file(path: Path, job: Scenario) -> NetworkFile:
    """Read a file that holds a network, or take a system's; it is not checked yet.

    Raises
    ------
    InputError
        If it cannot be read or holds none, or the system is of other devices.
    """
    if names_system(path):
        return _of_system(str(path), job)
    try:
        text = read_file(path, expected=f"a file with {_EXPECTED}", most_bytes=MAX_FILE)
        return _network_file(path, text, parse_toml(text))
    except InputError as error:
        raise error.at(str(path), ": ") from None


def _of_system(name: str, job: Scenario) -> NetworkFile:
    """Return the network that joins a job's devices where they are a system's."""
    system = load_system(name)
    if system.accelerator != job.accelerator.name:
        raise InputError(
            "is a system of other devices",
            where=f"--networks {name}",
            got=system.accelerator,
            expected=f"a system of {job.device_names}, the devices of {job.path}",
        )
    with located(f"--networks {name}"):
        network = system.network(job.network_spec.num_devices)
    text = toml_text({"name": name, "cluster": {"network": network}}).encode()
    return NetworkFile(
        path=Path(name), text=text, label=name, network=network, is_bare=False
    )


def _network_file(
    path: Path, text: bytes, document: Mapping[str, object]
) -> NetworkFile:
    is_bare = "kind" in document
    is_scenario = "model" in document
    network: Mapping[str, object]
    if is_bare:
        network = {key: value for key, value in document.items() if key != "name"}
    else:
        network = _inner_table(document)
        if not is_scenario:
            _refuse_more(document)
    name = path.stem if is_scenario else document.get("name", path.stem)
    if not isinstance(name, str) or not name.strip():
        expected = 'what reports call the network, e.g. "rail, 1:1"'
        raise InputError("is no name", where="name", got=name, expected=expected)
    listed = network.get("path")
    if isinstance(listed, str):
        network = {**network, "path": str(path.parent.absolute() / listed)}
    return NetworkFile(
        path=path, text=text, label=name.strip(), network=network, is_bare=is_bare
    )


def _inner_table(document: Mapping[str, object]) -> Mapping[str, object]:
    """Return the table [cluster.network] of a file."""
    cluster = document.get("cluster")
    network = cluster.get("network") if isinstance(cluster, dict) else None
    if not isinstance(network, dict):
        listed = ", ".join(sorted(document)) or "nothing"
        raise InputError("holds no network", got=listed, expected=_EXPECTED)
    assert isinstance(cluster, dict)
    if "degraded" in cluster:
        raise InputError(
            "networks are compared as they were built",
            where="cluster.degraded",
            expected="left out",
            hint="nestsim stress compares plans on worse networks",
        )
    return network


def _refuse_more(document: Mapping[str, object]) -> None:
    """Refuse settings beside the network, which would have no effect."""
    cluster = document["cluster"]
    assert isinstance(cluster, dict)
    others = [key for key in document if key not in {"name", "cluster"}]
    others += [f"cluster.{key}" for key in cluster if key != "network"]
    if others:
        raise InputError(
            "is no part of a network, which alone is taken from this file",
            where=others[0],
            expected=f"name and [{_TABLE}] alone, or a whole scenario",
        )


def read_network_files(paths: Sequence[Path], job: Scenario) -> tuple[NetworkFile, ...]:
    """Read a job's networks, at least two, each with another label.

    Raises
    ------
    InputError
        If one is wrong, or two cannot be told apart.
    """
    if len(paths) < 2:
        raise InputError(
            "there is nothing to compare",
            where="--networks",
            got=" ".join(map(str, paths)) or None,
            expected="two or more files or systems, e.g. rail.toml torus.toml",
        )
    files = tuple(read_network_file(path, job) for path in paths)
    label, times = Counter(file.label for file in files).most_common(1)[0]
    if times > 1:
        raise InputError(
            "networks cannot be told apart",
            where="--networks",
            got=label,
            expected='files of different names, or another name = ".." in each',
        )
    return files


def on_network(base: Scenario, file: NetworkFile) -> Scenario:
    """Return a scenario with another network, all else the same.

    Raises
    ------
    InputError
        If the network is wrong, or does not join as many devices.
    """
    document = base.document()
    cluster = dict(document["cluster"])
    if "degraded" in cluster:
        raise InputError(
            "networks are compared as they were built",
            where=f"{base.path}: cluster.degraded",
            expected="left out: its names are those of one network's links",
        )
    # The scenario's own number would be checked against the network: here, below.
    cluster.pop("num_devices", None)
    document |= {
        "cluster": {
            **cluster,
            "network": with_whole_paths(file.network, file.path.parent),
        }
    }
    try:
        scenario = scenario_of(document, base.path, toml_text(document).encode())
    except InputError as error:
        raise _in_file(error, file) from None
    joined = scenario.network_spec.num_devices
    asked = base.network_spec.num_devices
    if joined != asked:
        raise InputError(
            "does not join as many devices as the scenario has",
            where=f"{file.path}: {'kind' if file.is_bare else _TABLE}",
            got=f"{joined} devices",
            expected=f"{asked}, those of {base.path}",
        )
    return scenario


def _in_file(error: InputError, file: NetworkFile) -> InputError:
    """Return a mistake in a network with the file and the setting as it is there."""
    where = error.where
    if file.is_bare and where.startswith(f"{_TABLE}."):
        where = where.removeprefix(f"{_TABLE}.")
    return error.moved(where).at(str(file.path), ": ")


WORK_OF_DEVICES = ("compute", HOST, "recompute", HOST_TRANSFERS)
"""Parts of a stage's passes that are no communication between devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTask(CompareTask):
    """Takes a planner to a network; a point's scenario is the label of the network."""

    def entry(self, scenario: Scenario, replayed: ReplayedEntry) -> PlannerEntry:
        """Return the entry with what the plan asks of the network."""
        entry, made = replayed.entry, replayed.candidate
        if made is None:
            return entry
        load = network_load(made, replayed.network)
        return replace(entry, load=load, gap=proven_gap(scenario, entry, made))


def proven_gap(scenario: Scenario, entry: PlannerEntry, made: Candidate) -> float:
    """Return how far a plan is above what no plan goes below; NaN without a proof."""
    minimised = (
        made.priced.closed_form_time
        if scenario.search.objective == "planned"
        else made.simulated.iteration_time
    )
    return optimality_gap(minimised, entry.lower_bound)


def network_load(candidate: Candidate, network: Network) -> NetworkLoad:
    """Return what a replayed plan asks of its network.

    An iteration is, by `iteration_causes`, passes, bubble, uneven stages, transfers,
    synchronisation and optimizer. Of the passes, work of the devices is as the planner
    prices it; what is left of them is communication that they wait for.
    """
    priced, replay = candidate.priced, candidate.replay
    plan = priced.plan
    causes = iteration_causes(replay, plan.schedule, plan.num_microbatches)
    worked = sum(
        stage.parts.get(name, 0.0)
        for stage in priced.stages
        for name in WORK_OF_DEVICES
    )
    once = max(stage.host_waits.step for stage in priced.stages)
    passes = causes["passes"] + causes["host"] - once
    waiting = passes - plan.num_microbatches * worked / len(priced.stages)
    exposed = waiting + causes["transfers"] + causes["synchronisation"]
    hot = hottest_links(replay, network, 1)
    return NetworkLoad(
        exposed=max(0.0, exposed),
        bubble=max(0.0, causes["bubble"] + causes["stage imbalance"]),
        busiest=BusyLink(
            name=hot[0].name, level=hot[0].level, utilisation=hot[0].utilisation
        )
        if hot
        else None,
    )


def checked_planners(planners: Sequence[str], scenario: Scenario) -> tuple[str, ...]:
    """Return the planners of a comparison: those that are named, or the scenario's own.

    Raises
    ------
    InputError
        If one is unknown, named twice, or needs a plan that is not there.
    """
    for planner in planners:
        if ".py" in planner:
            raise InputError(
                "planners of your own are compared on one network",
                where="--planners",
                got=planner,
                expected="names of nestsim's planners beside --networks",
            )
    chosen = CompareSettings(planners=tuple(planners) or (scenario.planner,))
    return checked_settings(chosen, [scenario]).planners


def networks_facts(
    base: Scenario, files: Sequence[NetworkFile], planners: Sequence[str]
) -> dict[str, str]:
    """Return what a store must agree in to be taken up, as names and hashes."""
    scenarios = [_without_prices(on_network(base, file)) for file in files]
    labels = [file.label for file in files]
    return {
        "version of nestsim": version("nestsim"),
        "networks": content_key(
            [labels, [scenario_digest(scenario) for scenario in scenarios]]
        ),
        "planners": ", ".join(planners),
    }


def _without_prices(scenario: Scenario) -> Scenario:
    """Return a scenario as it is compared: no plan depends on prices."""
    return replace(for_comparison(scenario), cost=None)


def networks_job(  # noqa: PLR0913 - one for each thing that can be asked
    base: Scenario,
    files: Sequence[NetworkFile],
    planners: Sequence[str] = (),
    *,
    equal: Equal | None = None,
    store: Store | None = None,
    workers: int | None = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> NetworkComparison:
    """Take the job of a scenario to every network.

    Parameters
    ----------
    base
        The job. Its own network only says how many devices there are.
    files
        Networks, as `read_network_files` returns them.
    planners
        Names; empty for the scenario's own.
    equal
        What the report has to judge first: nothing that is computed depends on it.
    store
        Where finished points are kept; None for memory alone.
    workers
        Processes; 1 for this one alone, None for one for each core.
    executor
        Who evaluates points; None for so many processes.
    progress
        Told about every step.

    Returns
    -------
    NetworkComparison
        The same, search times aside, whatever the number of workers, unless a time
        limit ended a search.

    Raises
    ------
    InputError
        If a network is wrong or has another number of devices, or the settings are
        wrong. What stops a single planner is part of the comparison.
    """
    names = checked_planners(planners, base)
    _check_equal(base, equal)
    labels = [file.label for file in files]
    scenarios = [on_network(base, file) for file in files]
    built = []
    for number, (file, scenario) in enumerate(zip(files, scenarios, strict=True)):
        if progress is not None:
            progress(f"check: {file.label}", number / len(files))
        built.append(_checked_network(file, scenario))
    costs = cluster_costs(base.cost, built)
    compared = map(_without_prices, scenarios)
    task = NetworkTask(
        scenarios=dict(zip(labels, compared, strict=True)),
        time_limit=None,
    )
    entries = compared_entries(
        task,
        names,
        store=store,
        workers=workers,
        executor=executor,
        progress=progress,
    )
    return NetworkComparison(
        scenario=base.name,
        model=model_label(base),
        num_devices=base.network_spec.num_devices,
        device=base.device_names,
        device_memory=min(
            (group.accelerator.memory_bytes for group in base.groups),
            default=base.accelerator.memory_bytes,
        ),
        planners=names,
        objective=base.search.objective,
        work_limit=base.search.work_limit,
        asked=equal,
        networks=tuple(
            compared_network(file, network, cost, entries[file.label])
            for file, network, cost in zip(files, built, costs, strict=True)
        ),
    )


def _checked_network(file: NetworkFile, scenario: Scenario) -> Network:
    """Build a network, and refuse parts that do not go together, before the work."""
    try:
        build_job(scenario, None)
        return cluster_network(scenario)
    except InputError as error:
        raise error.at(str(file.path), ": ") from None


def _check_equal(base: Scenario, equal: Equal | None) -> None:
    """Refuse to judge costs where no network has a price."""
    if equal != "cost":
        return
    priced = base.cost is not None and (base.cost.links or base.cost.switches)
    if not (priced and base.cost is not None and base.cost.currency):
        raise InputError(
            "no network has a price",
            where="--equal",
            got=equal,
            expected=f"cost.links or cost.switches in {base.path}, or --equal ports",
        )


def cluster_costs(
    spec: CostSpec | None, networks: Sequence[Network]
) -> tuple[ClusterCost | None, ...]:
    """Return what the cluster costs with each network; None without prices.

    An entry for a level holds in those networks that have the level.

    Raises
    ------
    InputError
        If an entry names a level that none has.
    """
    if spec is None:
        return tuple(None for _ in networks)
    levels = [set(network_parts(network).tiers) for network in networks]
    _check_levels(spec, set().union(*levels))
    return tuple(
        cluster_cost(
            replace(
                spec,
                links=_holding(spec.links, known),
                switches=_holding(spec.switches, known),
            ),
            network,
        )
        for network, known in zip(networks, levels, strict=True)
    )


_Priced = TypeVar("_Priced", LinkPrice, SwitchPrice)


def _holding(entries: Sequence[_Priced], levels: set[str]) -> tuple[_Priced, ...]:
    """Return the entries that hold in a network with these levels."""
    holding = []
    for entry in entries:
        kept = tuple(level for level in entry.levels if level in levels)
        if kept or not entry.levels:
            holding.append(replace(entry, levels=kept))
    return tuple(holding)


def _check_levels(spec: CostSpec, levels: set[str]) -> None:
    """Refuse entries for levels that no network has."""
    entries: list[tuple[str, LinkPrice | SwitchPrice]] = [
        *((f"links[{i}]", name) for i, name in enumerate(spec.links)),
        *((f"switches[{i}]", name) for i, name in enumerate(spec.switches)),
    ]
    for where, entry in entries:
        for level in entry.levels:
            if level not in levels:
                raise InputError(
                    "is no level of any of the networks",
                    where=f"cost.{where}.levels",
                    got=level,
                    expected=" or ".join(f'"{name}"' for name in sorted(levels)),
                )


def compared_network(
    file: NetworkFile,
    network: Network,
    cost: ClusterCost | None,
    entries: tuple[PlannerEntry, ...],
) -> ComparedNetwork:
    """Return a network with what it is made of and what was found on it."""
    inventory = count_parts(network)
    return ComparedNetwork(
        label=file.label,
        file=file.path.name,
        kind=network.kind,
        has_ideal_trunks=has_ideal_trunks(network),
        inventory=inventory,
        bisection=network.bisection_bandwidth(),
        bisection_rule=bisection_rule(network),
        oversubscription=links_up(network) if network.is_tree else math.nan,
        cost=cost,
        entries=entries,
    )
