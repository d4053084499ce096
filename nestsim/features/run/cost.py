"""Money and power in reports: as text, as JSON, as cells of a table.

Everything follows from the replayed throughput. What is assumed and what is left out
is said in sentences, which stand in the text and in the JSON.
"""

import math
from typing import TYPE_CHECKING

from nestsim.document.parts import DataTable, FactList, Section, cell
from nestsim.document.wording import (
    DAY,
    KILOWATT_HOUR,
    amount,
    hourly,
    long_time,
    number,
    percent,
    signed_percent,
)
from topologies.units import (
    format_bandwidth,
    format_duration,
    format_energy,
    format_money,
    format_power,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nestsim.evaluate.cost import ClusterCost, CostPart, RunCost
    from nestsim.evaluate.ramp import RampUp
    from nestsim.evaluate.results import Candidate
    from nestsim.scenario.hardware.cost import CostSpec


def cost_json(run: "RunCost") -> dict[str, object]:
    """Return what a replayed plan costs, for programs; null for what nobody priced."""
    cluster = run.cluster
    return {
        "currency": cluster.currency or None,
        "cost_per_s": cluster.rate,
        "rent_per_s": cluster.rent_rate,
        "capital_per_s": cluster.capital_rate,
        "electricity_per_s": cluster.energy_rate,
        "capital": cluster.capital,
        "power_w": cluster.power,
        "step_cost": run.step_cost,
        "step_energy_j": run.step_energy,
        "tokens_per_currency": run.tokens_per_money,
        "tokens_per_j": run.tokens_per_joule,
        "run": None
        if run.run_tokens is None
        else {
            "tokens": run.run_tokens,
            "time_s": run.run_time,
            "cost": run.run_cost,
            "energy_j": run.run_energy,
        },
        "network": {
            "cost_per_s": cluster.network_rate,
            "capital": cluster.network_capital,
            "power_w": cluster.network_power,
            "share_of_cost": run.network_share_of_cost,
            "share_of_capital": run.network_share_of_capital,
            "share_of_power": run.network_share_of_power,
        },
        "parts": [
            {
                "name": part.name,
                "level": part.level or None,
                "count": part.count,
                "bandwidth_bytes_per_s": part.speed,
                "price": part.price,
                "power_w": part.power,
            }
            for part in cluster.parts
        ],
        "assumptions": list(cost_sentences(cluster, run.ramp)),
    }


def cost_cells(run: "RunCost | None") -> dict[str, object]:
    """Return the cells of a row on a replayed plan; none without prices and powers."""
    if run is None:
        return {}
    cluster = run.cluster
    cells: dict[str, object] = {
        "currency": cluster.currency or None,
        "cost_per_s": cluster.rate,
        "power_w": cluster.power,
        "step_cost": run.step_cost,
        "step_energy_j": run.step_energy,
        "tokens_per_currency": run.tokens_per_money,
        "tokens_per_j": run.tokens_per_joule,
        "network_share_of_cost": run.network_share_of_cost,
        "network_share_of_power": run.network_share_of_power,
    }
    if run.run_tokens is None:
        return cells
    return {
        **cells,
        "run_time_s": run.run_time,
        "run_cost": run.run_cost,
        "run_energy_j": run.run_energy,
    }


def cost_rows(run: "RunCost") -> dict[str, str]:
    """Return what a replayed plan costs in words, by name."""
    cluster = run.cluster
    rows = {
        "the cluster": _cluster_words(cluster),
        "power": "-" if cluster.power is None else format_power(cluster.power),
        "a training step": _pair(cluster, run.step_cost, run.step_energy),
        "tokens": _token_words(run),
        "the network": _network_words(run),
    }
    if run.run_tokens is not None:
        days = "unknown" if run.run_time is None else number(run.run_time / DAY)
        rows[f"{amount(run.run_tokens)} tokens"] = (
            f"{days} days, {_pair(cluster, run.run_cost, run.run_energy)}"
        )
    return {name: words for name, words in rows.items() if words not in {"", "-"}}


def ramp_sections(candidate: "Candidate") -> "Iterator[Section]":
    """Yield what smaller batches at the beginning cost; nothing where all are whole."""
    ramp = candidate.ramp
    if ramp is None:
        return
    first, last = ramp.steps[0].global_batch_size, ramp.steps[-1].global_batch_size
    facts = {
        "way up": f"{ramp.num_steps:,} steps of {first:,} to {last:,} sequences, "
        f"{ramp.sequences:,} in all",
        "time": _ramp_words(ramp),
    }
    yield Section("ramp", "Batches that grow", (FactList(facts),))
    table = DataTable.of(
        "Steps until batches are whole",
        ramp.steps,
        {
            "Batch": lambda step: cell(step.global_batch_size, "{:,}".format),
            "Microbatches": lambda step: cell(step.num_microbatches, "{:,}".format),
            "Steps": lambda step: cell(step.num_steps, "{:,}".format),
            "Time of one": lambda step: cell(step.iteration_time, format_duration),
        },
    )
    yield Section("ramp-steps", "Steps while batches grow", (table,), detail=True)


def _ramp_words(ramp: "RampUp") -> str:
    few = next((step for step in ramp.steps if math.isinf(step.iteration_time)), None)
    if few is not None:
        return (
            f"unknown: the schedule has no step of {few.num_microbatches:,} "
            "microbatches for the first of these batches"
        )
    share = ramp.extra_time / (ramp.time - ramp.extra_time)
    return (
        f"{long_time(ramp.time)}, {long_time(ramp.extra_time)} "
        f"({signed_percent(share)}) more than as many sequences in whole batches"
    )


def _cluster_words(cluster: "ClusterCost") -> str:
    if cluster.rate is None:
        return ""
    code = cluster.currency
    terms = {
        "rent": cluster.rent_rate,
        "capital": cluster.capital_rate,
        "electricity": cluster.energy_rate,
    }
    known = [
        f"{name} {hourly(rate, code)}"
        for name, rate in terms.items()
        if rate is not None
    ]
    words = f"{hourly(cluster.rate, code)}: {', '.join(known)}"
    if cluster.capital is not None:
        words += f"; {format_money(cluster.capital, code)} to buy"
    return words


def _pair(cluster: "ClusterCost", cost: float | None, energy: float | None) -> str:
    known = []
    if cost is not None:
        known.append(format_money(cost, cluster.currency))
    if energy is not None:
        known.append(format_energy(energy))
    return ", ".join(known)


def _token_words(run: "RunCost") -> str:
    known = []
    if run.tokens_per_money is not None:
        known.append(f"{number(run.tokens_per_money)} per {run.cluster.currency}")
    if run.tokens_per_joule is not None:
        known.append(f"{number(run.tokens_per_joule * KILOWATT_HOUR)} per kWh")
    return ", ".join(known)


def _network_words(run: "RunCost") -> str:
    shares = {
        "of the cost": run.network_share_of_cost,
        "of what is bought": run.network_share_of_capital,
        "of the power": run.network_share_of_power,
    }
    return ", ".join(
        f"{percent(share)} {what}"
        for what, share in shares.items()
        if share is not None
    )


def parts_table(cluster: "ClusterCost") -> DataTable:
    """Return what a cluster is built of, as far as it has prices or powers."""
    return DataTable.of(
        "What the cluster is built of",
        (
            part
            for part in cluster.parts
            if part.price is not None or part.power is not None
        ),
        {
            "Part": lambda part: part.name,
            "Level": lambda part: part.level or "-",
            "Number": lambda part: cell(part.count, "{:,}".format),
            "Bandwidth each": lambda part: cell(part.speed, format_bandwidth),
            "Price": lambda part: cell(
                part.price, lambda price: format_money(price, cluster.currency)
            ),
            "Power": lambda part: cell(part.power, format_power),
        },
    )


def cost_sentences(
    cluster: "ClusterCost", ramp: "RampUp | None" = None
) -> tuple[str, ...]:
    """Return what cost and power rest on, and what is left out of them."""
    spec = cluster.spec
    sentences = [
        *_power_sentences(spec),
        *_price_sentences(cluster),
        *_network_sentences(cluster),
    ]
    if spec.tokens is not None:
        sentences.append(
            "Every step of the run takes as long as the replayed one"
            f"{'' if ramp is None else ' of its batch'}: no evaluations, "
            "checkpoints, failures or repeats."
        )
    left_out = _left_out(cluster)
    if left_out:
        sentences.append(f"Left out, as the scenario does not say: {left_out}.")
    return tuple(sentences)


def _power_sentences(spec: "CostSpec") -> list[str]:
    if spec.device_power is None:
        return [
            "No power and no energy: the catalogue knows no thermal design power of "
            "the device, and cost.device_power does not say."
        ]
    watts = format_power(spec.device_power)
    source = spec.device_power_source or "as the scenario says"
    share = (
        "that, all the time, waiting or not"
        if spec.power_factor == 1.0
        else f"{percent(spec.power_factor)} of that on average, waiting included"
    )
    site = spec.power_usage_effectiveness
    return [
        f"A device has {watts} ({source}) and draws {share}.",
        "The site draws no more than its machines (PUE 1)."
        if site == 1.0
        else f"The site draws {site:g} times as much as its machines (PUE).",
    ]


def _price_sentences(cluster: "ClusterCost") -> list[str]:
    spec, sentences = cluster.spec, []
    if spec.device_hour is not None:
        sentences.append(
            f"Every device is rented at {hourly(spec.device_hour, spec.currency)}, "
            "idle or not, with host, network and electricity; what is priced beside "
            "comes on top."
        )
    if spec.years is not None:
        sentences.append(
            f"What is bought is written off over {spec.years:g} years in a "
            "straight line, without interest and without a second unused; then it is "
            "worth nothing."
        )
    return sentences


def _network_sentences(cluster: "ClusterCost") -> list[str]:
    if not any(part.is_network for part in cluster.parts):
        return []
    return [
        "Cables, ports and switches are as many as carry the network as built at the "
        "speeds that are priced; links inside nodes come with the nodes, unless an "
        "entry names their level."
    ]


def _left_out(cluster: "ClusterCost") -> str:
    """Name what has no price where things are bought, and what has no power."""
    spec = cluster.spec
    has_network = any(part.is_network for part in cluster.parts)
    unpriced: list[str] = []
    if spec.years is not None:
        unpriced += _names(_unsaid(cluster.parts, "price"))
        if spec.electricity is None and spec.device_hour is None:
            unpriced.append("electricity")
    powerless: list[str] = []
    if spec.device_power is not None:
        powerless += _names(_unsaid(cluster.parts, "power"))
        powerless += [] if has_network else ["the network"]
    levels = cluster.unpriced_levels if spec.years is not None or has_network else ()
    groups = {
        "the price of ": unpriced,
        "the power of ": powerless,
        "the links of level ": levels,
    }
    return "; ".join(
        f"{what}{', '.join(names)}" for what, names in groups.items() if names
    )


PART_OF = {
    "price": {"switch ports": "switches", "transceivers": "cables"},
    "power": {"switch ports": "switches"},
}
"""Quantity -> part -> that of which part it may be in."""


def _unsaid(parts: "Sequence[CostPart]", quantity: str) -> "list[CostPart]":
    """Return the parts without a price or power of their own or of what has them."""
    known = {part.name for part in parts if getattr(part, quantity) is not None}
    if quantity == "power":
        known.add("cables")  # what they draw, their ends draw
    inside = {name for name, whole in PART_OF[quantity].items() if whole in known}
    return [
        part
        for part in parts
        if getattr(part, quantity) is None and part.name not in known | inside
    ]


def _names(parts: "Iterable[CostPart]") -> list[str]:
    """Return what parts are called, each once."""
    return list(dict.fromkeys(part.name for part in parts))
