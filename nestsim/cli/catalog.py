"""What there is: ``nestsim accelerators``, ``models``, ``topology`` and ``schema``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.console.results import Force, Json, NoFigures, Quiet, ScenarioFile

if TYPE_CHECKING:
    from topologies.accelerators import Accelerator
    from topologies.network import Network


def accelerators(as_json: Json = False) -> None:
    """List the accelerators that a scenario can name.

    Rates are dense, without sparsity; `--json` adds where each number was published.

    Example: `nestsim accelerators`, then in a scenario:
    `[cluster] accelerator = "h100-sxm"`
    """
    import typer

    from topologies.accelerators import accelerator_names, load_accelerator

    devices = [load_accelerator(name) for name in accelerator_names()]
    if as_json:
        from nestsim.document.dumps import dump_json

        catalogue = {device.name: _facts(device) for device in devices}
        typer.echo(dump_json(catalogue), nl=False)
        return
    from nestsim.cli.console.output import print_table
    from topologies.units import format_bandwidth, format_size

    print_table(
        {
            "name": False,
            "vendor": False,
            "TFLOP/s bf16": True,
            "fp16": True,
            "fp32": True,
            "memory": True,
            "memory bandwidth": True,
            "scale-up": True,
        },
        [
            (
                device.name,
                device.vendor,
                *(_tera(device, kind) for kind in ("bf16", "fp16", "fp32")),
                format_size(device.memory_bytes),
                format_bandwidth(device.memory_bandwidth),
                format_bandwidth(device.interconnect_bandwidth),
            )
            for device in devices
        ],
    )


def _tera(device: "Accelerator", number_format: str) -> str:
    rate = device.peak_flops.get(number_format)
    return "-" if rate is None else f"{rate / 1e12:.4g}"


def _facts(device: "Accelerator") -> dict[str, object]:
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


def models(as_json: Json = False) -> None:
    """List the models that a scenario can name.

    Example: `nestsim models`, then in a scenario: `[model] name = "llama3-8b"`
    """
    import typer

    from estimators.models.library import model_names, published_model

    library = {name: published_model(name) for name in model_names()}
    if as_json:
        from dataclasses import asdict

        from nestsim.document.dumps import dump_json

        facts = {
            name: {**asdict(model.spec), "source": model.source}
            for name, model in library.items()
        }
        typer.echo(dump_json(facts), nl=False)
        return
    from nestsim.cli.console.output import print_table

    rows = []
    for name, (spec, _) in library.items():
        experts = f"{spec.num_moe_experts}, top {spec.moe_router_topk}"
        sizes = (
            spec.num_layers,
            spec.hidden_size,
            spec.ffn_hidden_size,
            spec.num_attention_heads,
            spec.num_query_groups,
            spec.vocab_size,
            spec.sequence_length,
        )
        rows.append(
            (
                name,
                spec.family,
                *(str(size) for size in sizes),
                experts if spec.num_moe_experts else "",
            )
        )
    print_table(
        {
            "name": False,
            "family": False,
            "layers": True,
            "hidden": True,
            "ffn": True,
            "heads": True,
            "groups": True,
            "vocabulary": True,
            "sequence": True,
            "experts": False,
        },
        rows,
    )


PICTURES = (".png", ".svg", ".pdf")

Picture = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the picture goes (PNG, SVG or PDF). Default: results/ and the "
        "scenario file's name, ending in _topology.png; none with --json or "
        "--no-figures.",
    ),
]


def topology(
    scenario: ScenarioFile,
    output: Picture = None,
    force: Force = False,
    no_figures: NoFigures = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what the network of a scenario is, as text and as a picture.

    Tiers with their counts, the speed of their links, the bisection bandwidth. The
    model is not looked at.

    Example: `nestsim topology scenarios/llama2_7b_64_h100.toml -o network.png`
    """
    from nestsim.cli.console.output import note_all, result_console, working
    from nestsim.cli.console.results import check_output_file
    from nestsim.evaluate.cluster import cluster_network
    from nestsim.features.topology.picture import is_topology
    from nestsim.scenario import load_scenario
    from topologies.errors import naming

    if output is not None:
        _check_picture(output, no_figures=no_figures)
    loaded = load_scenario(scenario)
    if output is None and not (as_json or no_figures):
        output = Path("results") / f"{scenario.stem}_topology.png"
    if output is not None:
        inputs = loaded.files()
        check_output_file(output, is_topology, inputs=inputs, force=force)
    note_all(loaded.notes, quiet=quiet)
    with naming(scenario), working("network: build", quiet=quiet):
        network = cluster_network(loaded)
    if output is not None:
        _draw(network, output, quiet=quiet)
    if as_json:
        from nestsim.document.dumps import dump_json
        from nestsim.features.run.assumptions import groups_json
        from nestsim.features.topology.document import degraded_json, topology_json

        degraded = degraded_json(loaded.degradation, network.num_devices)
        report = {**topology_json(network), "degraded": degraded}
        report |= groups_json(loaded.groups)
        if loaded.network_assumed:
            report["assumed"] = list(loaded.network_assumed)
        typer.echo(dump_json(report), nl=False)
    else:
        from nestsim.document.terminal import print_document
        from nestsim.features.topology.document import topology_document

        document = topology_document(
            network,
            loaded.accelerator,
            loaded.groups,
            assumed=loaded.network_assumed,
            degradation=loaded.degradation,
        )
        print_document(document, result_console())


def _check_picture(path: Path, *, no_figures: bool) -> None:
    """Refuse a file that no picture can be written to, before anything is done."""
    from topologies.errors import InputError

    if no_figures:
        raise InputError(
            "is a picture, and none is to be drawn",
            where="--output",
            got=f"--no-figures --output {path}",
            expected="one of the two",
        )
    if path.suffix.lower() not in PICTURES:
        raise InputError(
            "not a picture",
            where="--output",
            got=str(path),
            expected="a file that ends in " + ", ".join(PICTURES),
        )


def _draw(network: "Network", output: Path, *, quiet: bool) -> None:
    from nestsim.cli.console.output import note, working
    from nestsim.cli.console.results import write_output_file
    from nestsim.features.topology.picture import draw_topology

    with working("report: draw the network", quiet=quiet):
        write_output_file(output, lambda path: draw_topology(network, path))
    note(f"The picture is in {output}", quiet=quiet)


def schema() -> None:
    """Print the JSON Schema of scenario files.

    Editors with a TOML language server complete and check scenarios with it.

    Example: `nestsim schema > scenario.schema.json`, and as the first line of a
    scenario `#:schema ./scenario.schema.json`
    """
    import json

    import typer

    from nestsim.scenario.table import scenario_schema

    typer.echo(json.dumps(scenario_schema(), indent=2, ensure_ascii=False))
