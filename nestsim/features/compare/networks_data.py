"""A comparison of networks as JSON, as CSV and as a folder of files.

The folder holds a copy of the scenario and one of each network's file below
``networks/``; its other files have the names that a comparison of planners has.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nestsim.document.dumps import dump_json, plain_values
from nestsim.document.folder import Writer
from nestsim.features.compare.data import (
    FILES,
    TIMES,
    copies_of,
    folder_writers,
    rows_csv,
)
from nestsim.features.compare.networks_document import networks_document
from nestsim.features.compare.networks_files import NetworkFile
from nestsim.features.compare.networks_record import (
    EQUAL_WITHIN,
    ComparedNetwork,
    NetworkComparison,
    NetworkEntry,
    step_parts,
)
from nestsim.features.compare.networks_words import (
    are_equal,
    assumptions,
    decisions,
    equality_sentence,
    fairness,
    networks_title,
    relative,
    tokens_per_port,
    yardsticks,
)
from nestsim.features.run.cost import cost_cells, cost_json
from nestsim.features.run.record import _throughput
from nestsim.scenario.load import Scenario


def networks_json(
    comparison: NetworkComparison, *, with_times: bool = True
) -> dict[str, Any]:
    """Return a comparison for programs.

    Parameters
    ----------
    comparison
        What was found.
    with_times
        Whether to add how long the searches took, which differs from run to run.
    """
    fastest = comparison.fastest
    report = {
        "headline": networks_title(comparison),
        "scenario": comparison.scenario,
        "model": comparison.model,
        "num_devices": comparison.num_devices,
        "device": comparison.device,
        "device_memory_bytes": comparison.device_memory,
        "planners": comparison.planners,
        "objective": comparison.objective,
        "work_limit": comparison.work_limit,
        "base": comparison.base.label,
        "fastest": fastest.label if fastest else None,
        "leaders": [one.label for one in comparison.leaders],
        "asked_equal": comparison.asked,
        "equal_within": EQUAL_WITHIN,
        "equal": {
            what: {
                "is_equal": are_equal(comparison, what),
                "spread": {one.name: one.spread for one in sticks},
                "in_words": equality_sentence(comparison, what),
            }
            for what, sticks in yardsticks(comparison).items()
        },
        "networks": [
            _network_json(comparison, one, with_times=with_times)
            for one in comparison.networks
        ],
        "decisions": decisions(comparison),
        "fairness": fairness(comparison),
        "assumptions": assumptions(comparison),
        "currency": comparison.currency or None,
    }
    plain: dict[str, Any] = plain_values(report)
    return plain


def _network_json(
    comparison: NetworkComparison, network: ComparedNetwork, *, with_times: bool
) -> dict[str, Any]:
    step = step_parts(network)
    return {
        "network": network.label,
        "file": network.file,
        **_made_of(network),
        "bisection_rule": network.bisection_rule,
        "tiers": [
            {
                "name": tier.name,
                "inside_nodes": tier.is_inside_nodes,
                "cables": tier.num_cables,
                "cable_bandwidth_bytes_per_s": tier.cable_bandwidth,
                "device_ports": tier.num_device_ports,
                "switch_ports": tier.num_switch_ports,
                "switches": tier.num_switches,
                "ports_per_switch": tier.ports_per_switch,
            }
            for tier in network.inventory.tiers
        ],
        "confirmed": network.is_confirmed,
        "step_s": None if step is None else step._asdict(),
        "best": network.best.entry.planner if network.best.entry.is_valid else None,
        "entries": [
            _entry_json(comparison, network, one, with_times=with_times)
            for one in network.entries
        ],
    }


def _made_of(network: ComparedNetwork) -> dict[str, Any]:
    """Return what a network is made of, in SI units; ports are outside of nodes."""
    parts = network.inventory
    return {
        "kind": network.kind,
        "nic_ports": parts.num_nic_ports,
        "switches": parts.num_switches,
        "switch_ports": parts.num_switch_ports,
        "ports": parts.num_ports,
        "cables": parts.num_cables,
        "cable_bandwidth_bytes_per_s": parts.bandwidth,
        "bisection_bandwidth_bytes_per_s": network.bisection,
        "oversubscription": network.oversubscription,
        **_cost(network),
    }


def _cost(network: ComparedNetwork) -> dict[str, Any]:
    """Return what a network costs, in the currency; nothing without prices."""
    cost = network.cost
    if cost is None:
        return {}
    return {
        "network_capital": cost.network_capital,
        "network_cost_per_s": cost.network_rate,
        "network_power_w": cost.network_power,
    }


def _entry_json(
    comparison: NetworkComparison,
    network: ComparedNetwork,
    one: NetworkEntry,
    *,
    with_times: bool,
) -> dict[str, Any]:
    entry, made, load = one.entry, one.entry.found, one.load
    run = network.run_cost(one)
    return {
        "planner": entry.planner,
        "valid": entry.is_valid,
        "verdict": made.verdict if made else None,
        "reason": (made.reason if made else "") or entry.obstacle,
        "plan": made.plan.to_json() if made else None,
        "simulated": _throughput(made.simulated) if made else None,
        "planned": _throughput(made.planned) if made else None,
        "exposed_communication_s": load.exposed if load else None,
        "bubble_s": load.bubble if load else None,
        "hottest_link": asdict(load.busiest) if load and load.busiest else None,
        "relative_speed": comparison.speed(one.tokens_per_second),
        "tokens_per_s_per_port": tokens_per_port(network, one.tokens_per_second),
        "relative_per": dict(
            zip(
                ("port", *([comparison.currency] if comparison.currency else ())),
                relative(comparison, network, one)[1:],
                strict=True,
            )
        ),
        **(
            {}
            if network.cost is None
            else {"cost": None if run is None else cost_json(run)}
        ),
        "lower_bound_s": entry.lower_bound,
        "optimality_gap": one.gap,
        "work": entry.spent.work,
        "stopped_by": entry.spent.stopped_by or None,
        "reproducible": entry.spent.is_reproducible,
        "notes": list(entry.notes),
        **({"search_time_s": entry.search_time} if with_times else {}),
    }


_PLAN_COLUMNS = (
    "micro_batch_size",
    "num_microbatches",
    "schedule",
    "recompute",
    "zero_stage",
    "placement",
)
"""Settings of a plan that have a column."""


def networks_rows(comparison: NetworkComparison) -> list[dict[str, Any]]:
    """Return one row for each network and planner, in SI units."""
    rows = [
        {
            "network": network.label,
            "file": network.file,
            **_made_of(network),
            "planner": one.entry.planner,
            **_result_cells(comparison, network, one),
        }
        for network in comparison.networks
        for one in network.entries
    ]
    # A network without a plan has no cost of one.
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def _result_cells(
    comparison: NetworkComparison, network: ComparedNetwork, one: NetworkEntry
) -> dict[str, Any]:
    made, load = one.entry.found, one.load
    data = made.plan.settings_json() if made else {"parallel": {}}
    parallel = ("tensor", "pipeline", "data", "context", "expert")
    sizes = {
        f"{name}_parallel_size": data["parallel"].get(f"{name}_parallel_size")
        or data["parallel"].get(f"{name}_model_parallel_size")
        for name in parallel
    }
    hot = load.busiest if load else None
    return {
        "verdict": made.verdict if made else "none",
        "valid": one.entry.is_valid,
        **sizes,
        **{name: data.get(name) for name in _PLAN_COLUMNS},
        "iteration_time_s": made.simulated.iteration_time if made else None,
        "tokens_per_s": made.simulated.tokens_per_second if made else None,
        "mfu": made.simulated.mfu if made else None,
        "peak_memory_bytes": made.simulated.peak_memory if made else None,
        "exposed_communication_s": load.exposed if load else None,
        "bubble_s": load.bubble if load else None,
        "hottest_link": hot.name if hot else None,
        "hottest_link_utilisation": hot.utilisation if hot else None,
        "relative_speed": comparison.speed(one.tokens_per_second),
        "tokens_per_s_per_port": tokens_per_port(network, one.tokens_per_second),
        **cost_cells(network.run_cost(one)),
        "lower_bound_s": one.entry.lower_bound,
        "optimality_gap": one.gap,
        "stopped_by": one.entry.spent.stopped_by or None,
        "obstacle": one.entry.obstacle,
    }


def networks_files(scenario: Scenario, files: Sequence[NetworkFile]) -> list[str]:
    """Return the names of all files of the folder, but the store and the manifest."""
    return [*copies(scenario, files), *FILES]


def copies(scenario: Scenario, files: Sequence[NetworkFile]) -> dict[str, bytes]:
    """Return the files that were read, as the user wrote them, by name."""
    networks = ((f"networks/{file.path.stem}", file.text) for file in files)
    return copies_of([(scenario.path.stem, scenario.text), *networks])


def networks_writers(
    comparison: NetworkComparison, scenario: Scenario, files: Sequence[NetworkFile]
) -> dict[str, Writer]:
    """Return what writes each file, by name."""
    times = [
        {
            "network": network.label,
            "planner": one.entry.planner,
            "search_time_s": one.entry.search_time,
        }
        for network in comparison.networks
        for one in network.entries
    ]
    data = networks_json(comparison, with_times=False)
    texts: dict[str, str | bytes] = {
        **copies(scenario, files),
        "comparison.csv": rows_csv(networks_rows(comparison)),
        "comparison.json": dump_json(data),
        TIMES: rows_csv(times),
    }
    return folder_writers(texts, networks_document(data))


def networks_manifest(
    comparison: NetworkComparison, scenario: Scenario
) -> dict[str, Any]:
    """Return what the manifest says beside the hash of each file."""
    return {
        "scenarios": {f"{scenario.path.stem}.toml": scenario.name},
        "networks": {one.label: one.file for one in comparison.networks},
    }
