"""``nestsim topology``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestsim.cli.arguments import Force, Json, NoFigures, Quiet, ScenarioFile

if TYPE_CHECKING:
    from topologies.network import Network

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
    from nestsim.cli.errors import naming
    from nestsim.cli.output import result_console, working
    from nestsim.cli.results import check_output_file, inputs_of
    from nestsim.cluster_network import cluster_network
    from nestsim.report.topology import is_topology
    from nestsim.scenario import load_scenario

    if output is not None:
        _check_picture(output, no_figures=no_figures)
    loaded = load_scenario(scenario)
    if output is None and not (as_json or no_figures):
        output = Path("results") / f"{scenario.stem}_topology.png"
    if output is not None:
        inputs = inputs_of(loaded)
        check_output_file(output, is_topology, inputs=inputs, force=force)
    with naming(scenario), working("network: build", quiet=quiet):
        network = cluster_network(loaded)
    if output is not None:
        _draw(network, output, quiet=quiet)
    if as_json:
        from nestsim.report.degraded import degraded_json
        from nestsim.report.json import dump_json
        from nestsim.report.network_json import topology_json

        degraded = degraded_json(loaded.degradation)
        report = {**topology_json(network), "degraded": degraded}
        typer.echo(dump_json(report), nl=False)
    else:
        from nestsim.report.degraded import print_degraded
        from nestsim.report.network_text import print_topology

        console = result_console()
        print_topology(network, loaded.accelerator, console)
        if loaded.degradation is not None:
            print_degraded(network, loaded.degradation, console)


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
    from nestsim.cli.output import note, working
    from nestsim.cli.results import write_output_file
    from nestsim.report.topology import draw_topology

    with working("report: draw the network", quiet=quiet):
        write_output_file(output, lambda path: draw_topology(network, path))
    note(f"The picture is in {output}", quiet=quiet)
