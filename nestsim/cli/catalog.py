"""What there is to name in scenarios: accelerators, models, settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from nestsim.commands.task import Reply, Task, known
from topologies.accelerators import Accelerator, accelerator_names, load_accelerator
from topologies.units import format_bandwidth, format_size


def accelerators_task() -> Task:
    """Return the task of listing accelerators."""
    devices = [load_accelerator(name) for name in accelerator_names()]
    return known(
        Reply(
            record=lambda: {device.name: _device_facts(device) for device in devices},
            text=partial(_print_accelerators, devices),
        )
    )


def _print_accelerators(devices: Sequence[Accelerator], console: Console) -> None:
    formats = ("bf16", "fp16", "fp32")
    names = ("name", "vendor", "TFLOP/s bf16", "fp16", "fp32")
    rows = [
        (
            device.name,
            device.vendor,
            *(_tera(device, number_format) for number_format in formats),
            format_size(device.memory_bytes),
            format_bandwidth(device.memory_bandwidth),
            format_bandwidth(device.interconnect_bandwidth),
        )
        for device in devices
    ]
    headings = [*names, "memory", "memory bandwidth", "scale-up"]
    _print_table(
        dict.fromkeys(headings, True) | {"name": False, "vendor": False}, rows, console
    )


def _tera(device: Accelerator, number_format: str) -> str:
    rate = device.peak_flops.get(number_format)
    return "-" if rate is None else f"{rate / 1e12:.4g}"


def _device_facts(device: Accelerator) -> dict[str, object]:
    return {
        "vendor": device.vendor,
        "peak_flops": dict(device.peak_flops),
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth,
        "num_compute_units": device.num_compute_units,
        "interconnect_bandwidth_bytes_per_s": device.interconnect_bandwidth,
        **({} if device.tdp is None else {"tdp_w": device.tdp}),
        **({"measured_as": device.measured_as} if device.measured_as else {}),
        "sources": dict(device.sources),
    }


def models_task() -> Task:
    """Return the task of listing models."""
    from estimators.models.library import model_names, published_model

    library = {name: published_model(name) for name in model_names()}
    return known(
        Reply(
            record=partial(_models_json, library), text=partial(_print_models, library)
        )
    )


def _models_json(library: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {**asdict(model.spec), "source": model.source}
        for name, model in library.items()
    }


def _print_models(library: Mapping[str, Any], console: Console) -> None:
    columns = {
        "layers": "num_layers",
        "hidden": "hidden_size",
        "ffn": "ffn_hidden_size",
        "heads": "num_attention_heads",
        "groups": "num_query_groups",
        "vocabulary": "vocab_size",
        "sequence": "sequence_length",
    }
    rows = []
    for name, (spec, _) in library.items():
        sizes = (str(getattr(spec, field)) for field in columns.values())
        experts = f"{spec.num_moe_experts}, top {spec.moe_router_topk}"
        rows.append(
            (name, spec.family, *sizes, experts if spec.num_moe_experts else "")
        )
    headings = {"name": False, "family": False, **dict.fromkeys(columns, True)}
    _print_table({**headings, "experts": False}, rows, console)


def _print_table(
    columns: Mapping[str, bool],
    rows: Sequence[tuple[str, ...]],
    console: Console,
) -> None:
    """Print a plain table.

    Parameters
    ----------
    columns
        Heading -> whether the column holds numbers, which are aligned to the right.
    rows
        One string for each column.
    console
        Where it goes.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, is_number in columns.items():
        justify = "right" if is_number else "left"
        wraps = heading == "what it is"
        table.add_column(heading, justify=justify, no_wrap=not wraps)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    console.print(table)


def systems_task() -> Task:
    """Return the task of listing systems."""
    from nestsim.scenario.hardware.prices import published_prices
    from nestsim.scenario.hardware.systems import systems

    prices = {name: asdict(price) for name, price in published_prices().items()}
    return known(
        Reply(
            record=lambda: {
                name: {
                    key: value
                    for key, value in {
                        **asdict(system),
                        "price": prices.get(name),
                    }.items()
                    if value
                }
                for name, system in systems().items()
            },
            text=partial(_print_systems, systems(), published_prices()),
        )
    )


def _print_systems(
    known_systems: Mapping[str, Any], prices: Mapping[str, Any], console: Console
) -> None:
    headings = {"name": False, "accelerator": False, "per device": True}
    headings |= {"what it is": False}
    rows = [
        (
            name,
            system.accelerator,
            prices[name].written if name in prices else "",
            system.words,
        )
        for name, system in known_systems.items()
    ]
    _print_table(headings, rows, console)


def schema_task(of: str) -> Task:
    """Return the task of printing the JSON Schema of scenarios, or of what is written.

    Parameters
    ----------
    of
        "scenario", or what is written: "result", "plan" or "manifest".
    """
    text = json.dumps(schema_of(of), indent=2, ensure_ascii=False)
    return known(Reply(record=dict, text=lambda _: print(text)))  # noqa: T201


def schema_of(name: str) -> dict[str, Any]:
    """Return one of the JSON Schemas; the parameter is that of `schema_task`."""
    from nestsim.scenario.schema import record_schema, scenario_schema

    if name == "scenario":
        return scenario_schema()
    from nestsim.document.folder import ManifestRecord
    from nestsim.features.run.result_record import PlanRecord, ResultRecord

    records = {"result": ResultRecord, "plan": PlanRecord, "manifest": ManifestRecord}
    return record_schema(name, records[name])
