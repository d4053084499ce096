"""The network of a scenario, as text and as a picture."""

from functools import partial
from pathlib import Path

from nestsim.commands.task import FileOutput, Reply, Task
from nestsim.document.folder import Writer
from nestsim.evaluate.cluster import cluster_network
from nestsim.features.run.assumptions import groups_json
from nestsim.features.topology.document import (
    degraded_json,
    topology_document,
    topology_json,
)
from nestsim.features.topology.picture import draw_topology, is_topology
from nestsim.scenario.load import Scenario, load_scenario
from planner.work import Progress
from topologies.errors import InputError, naming
from topologies.network import Network

PICTURES = (".png", ".svg", ".pdf")


def topology_task(
    scenario: Path, output: Path | None, no_figures: bool, json: bool
) -> Task:
    """Return the task of showing and drawing the network of a scenario."""
    if output is not None:
        _check_picture(output, no_figures=no_figures)
    loaded = load_scenario(scenario)
    if output is None and not (json or no_figures):
        output = Path("results") / f"{scenario.stem}_topology.png"
    picture = FileOutput(
        path=output or Path(),
        is_ours=is_topology,
        title="The picture is in",
        writer=_drawn_network,
        doing="report: draw the network",
    )
    return Task(
        call=partial(_topology, loaded),
        inputs=loaded.files(),
        file=None if output is None else picture,
    )


def _drawn_network(answer: Reply) -> Writer:
    return lambda path: draw_topology(answer.about, path)


def _topology(scenario: Scenario, progress: Progress | None) -> Reply:
    """Build the network of a scenario."""
    if progress is not None:
        progress("network: build", None)
    with naming(scenario.path):
        network = cluster_network(scenario)
    return Reply(
        record=partial(_topology_json, network, scenario),
        document=partial(
            topology_document,
            network,
            scenario.accelerator,
            scenario.groups,
            assumed=scenario.network_assumed,
            degradation=scenario.degradation,
        ),
        notices=tuple(scenario.notes),
        about=network,
    )


def _topology_json(network: Network, scenario: Scenario) -> dict[str, object]:
    degraded = degraded_json(scenario.degradation, network.num_devices)
    assumed = scenario.network_assumed
    return {
        **topology_json(network),
        "degraded": degraded,
        **groups_json(scenario.groups),
        **({"assumed": list(assumed)} if assumed else {}),
    }


def _check_picture(path: Path, *, no_figures: bool) -> None:
    """Refuse a file that no picture can be written to, before anything is done."""
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
