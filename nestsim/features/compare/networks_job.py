"""Compare networks: one job on each, the same search and the replay as the judge.

A comparison is a sweep: a point is a network and a planner, a row its entry.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TypeVar

from nestsim.evaluate.cluster import cluster_network
from nestsim.evaluate.cost import ClusterCost, cluster_cost
from nestsim.evaluate.evaluator import build_job
from nestsim.evaluate.results import Candidate
from nestsim.features.compare.job import (
    CompareSettings,
    CompareTask,
    Details,
    checked_settings,
    comparison_points,
    digest,
    model_label,
)
from nestsim.features.compare.measure import for_comparison, measured
from nestsim.features.compare.networks_files import NetworkFile, on_network
from nestsim.features.compare.networks_record import (
    BusyLink,
    ComparedNetwork,
    Equal,
    NetworkComparison,
    NetworkEntry,
    NetworkLoad,
)
from nestsim.features.compare.record import PlannerEntry
from nestsim.features.run.record import optimality_gap
from nestsim.features.run.statistics import hottest_links, iteration_causes
from nestsim.features.sweep.runner import run_sweep
from nestsim.features.topology.document import has_ideal_trunks
from nestsim.running.store import Outcome, Point, Row, Store, content_key
from nestsim.scenario.hardware.cost import CostSpec, LinkPrice, SwitchPrice
from nestsim.scenario.load import Scenario
from planner.cost.objective import HOST, HOST_TRANSFERS
from planner.work import Progress
from topologies.errors import InputError
from topologies.fabrics.inventory import (
    bisection_rule,
    count_parts,
    links_up,
    network_parts,
)
from topologies.network import Network

WORK_OF_DEVICES = ("compute", HOST, "recompute", HOST_TRANSFERS)
"""Parts of a stage's passes that are no communication between devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTask(CompareTask):
    """Takes a planner to a network; a point's scenario is the label of the network."""

    def __call__(self, point: Point) -> Row:
        """Return the row of the entry."""
        scenario, planner = self.scenarios[point["scenario"]], point["planner"]
        found = measured(
            scenario,
            planner,
            self.settings(scenario),
            progress=self.details.listener,
        )
        gap, load = math.nan, None
        if found.candidate is not None:
            gap = proven_gap(scenario, found.entry, found.candidate)
            load = network_load(found.candidate, found.network)
        return NetworkEntry.of(found.entry, load, gap).to_row()


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
    passes = causes["passes"] + causes["host"]
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
        "networks": content_key([labels, [digest(one) for one in scenarios]]),
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
    points = comparison_points(labels, names)
    details = Details(progress, len(points))
    costs = cluster_costs(base.cost, built)
    compared = map(_without_prices, scenarios)
    task = NetworkTask(
        scenarios=dict(zip(labels, compared, strict=True)),
        time_limit=None,
        details=details,
    )
    listener = None if progress is None else details.point
    found = run_sweep(points, task, store, workers=workers, progress=listener)
    entries = [_entry(outcome) for outcome in found.outcomes]
    width = len(names)
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
            compared_network(file, network, cost, entries[i * width : (i + 1) * width])
            for i, (file, network, cost) in enumerate(
                zip(files, built, costs, strict=True)
            )
        ),
    )


def _checked_network(file: NetworkFile, scenario: Scenario) -> Network:
    """Build a network, and refuse parts that do not go together, before the work."""
    try:
        build_job(scenario, None)
        return cluster_network(scenario)
    except InputError as error:
        raise error.at(str(file.path), ": ") from None


def _entry(outcome: Outcome) -> NetworkEntry:
    if outcome.row is None:
        failed = PlannerEntry(planner=outcome.point["planner"], why_not=outcome.reason)
        return NetworkEntry.of(failed, None, math.nan)
    return NetworkEntry.from_row(outcome.row)


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
    found = []
    for entry in entries:
        kept = tuple(level for level in entry.levels if level in levels)
        if kept or not entry.levels:
            found.append(replace(entry, levels=kept))
    return tuple(found)


def _check_levels(spec: CostSpec, levels: set[str]) -> None:
    """Refuse entries for levels that no network has."""
    entries: list[tuple[str, LinkPrice | SwitchPrice]] = [
        *((f"links[{i}]", one) for i, one in enumerate(spec.links)),
        *((f"switches[{i}]", one) for i, one in enumerate(spec.switches)),
    ]
    for where, entry in entries:
        for level in entry.levels:
            if level not in levels:
                raise InputError(
                    "is no level of any of the networks",
                    where=f"cost.{where}.levels",
                    got=level,
                    expected=" or ".join(f'"{one}"' for one in sorted(levels)),
                )


def compared_network(
    file: NetworkFile,
    network: Network,
    cost: ClusterCost | None,
    entries: Sequence[NetworkEntry],
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
        entries=tuple(entries),
    )
