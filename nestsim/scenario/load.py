"""Read a scenario file and hand out its parts, or say what is wrong with it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from estimators.collectives.transports import Scope
from estimators.operators.profile import Profile
from estimators.software import Software
from estimators.training import TrainingSpec
from estimators.user_files.links import measured_efficiencies
from nestsim.scenario.errors import explain, one_of
from nestsim.scenario.network import link_names
from nestsim.scenario.settings import Scenario
from nestsim.scenario.tables import ScenarioTable
from planner.search.launch_rules import LAUNCH_RULES
from topologies.accelerators import Accelerator
from topologies.degrade import Degradation
from topologies.errors import InputError, Problems
from topologies.fabrics.link_file import read_link_file
from topologies.input_file import parse_toml, read_file
from topologies.notices import NOTICES
from topologies.specs import CustomSpec, NetworkSpec

MAX_FILE = 1_000_000
"""Scenarios are written by hand; a longer file is not one [byte]."""


def load_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Read and check a scenario file.

    Parameters
    ----------
    path
        The file. Files that it names are looked for in its folder.

    Returns
    -------
    Scenario
        Checked, in base units.

    Raises
    ------
    InputError
        If the file cannot be read or something in it is wrong. The message starts
        with the file and the setting.
    """
    file = Path(path)
    try:
        expected = "a scenario file in TOML"
        text = read_file(file, expected=expected, most_bytes=MAX_FILE)
        return scenario_of(parse_toml(text), file, text)
    except InputError as error:
        raise error.at(str(file), separator=": ") from None


def scenario_of(document: Mapping[str, Any], file: Path, text: bytes) -> Scenario:
    """Check what a scenario file says, or would say with other values.

    Parameters
    ----------
    document
        The file's content, as TOML has it.
    file
        The file. Files that it names are looked for in its folder.
    text
        The file as it is on disk.

    Raises
    ------
    InputError
        If something in it is wrong. The message starts with the setting.
    """
    return _build(file, text, _check(document))


def _check(document: Mapping[str, Any]) -> ScenarioTable:
    try:
        return ScenarioTable.model_validate(document)
    except ValidationError as error:
        raise explain(error, ScenarioTable) from None


def _build(file: Path, text: bytes, table: ScenarioTable) -> Scenario:
    software, folder, problems = table.software, file.parent, Problems()
    with problems.noted("model"):
        spec = table.model.build(folder)
    constants = links = None
    with problems.noted("software"):
        constants = software.read_constants(folder)
    with problems.noted("software"):
        links = software.read_links(folder)
    with problems.noted("cluster"):
        reached = measured_efficiencies(links, constants)
        accelerator, network_spec = _cluster(table, folder, reached)
        # What else needs the accelerator is looked at if there is one.
        with problems.noted("training"):
            training = _training(table, accelerator)
            with problems.noted():
                profile = _profile(table, training, folder)
    with problems.noted():
        execution = software.build_execution(table.simulation.moved)
    with problems.noted("search"):
        rules = LAUNCH_RULES[software.preset]
        search = table.search.build(table.cluster.memory_reserve, rules)
    with problems.noted("plan"):
        plan = None if table.plan is None else table.plan.build(software.defaults)
        with problems.noted("search"):
            planner_settings = table.search.settings(plan)
    with problems.noted("stress"):
        stress = table.stress.build()
    problems.refuse()
    for name in table.simulation.moved:
        NOTICES.setting_moved(f"{file}: simulation.{name}", f"software.{name}")
    return Scenario(
        path=file,
        text=text,
        name=table.name,
        spec=spec,
        training=training,
        accelerator=accelerator,
        network_spec=network_spec,
        degradation=_degradation(table),
        software_preset=software.preset,
        software=_software(table),
        execution=execution,
        profile=profile,
        constants=constants,
        links=links,
        search=search,
        simulation=table.simulation.build(),
        plan=plan,
        planner=table.search.planner,
        planner_settings=planner_settings,
        sweep=table.sweep.build(),
        stress=stress,
        assertions=table.assertions.build(),
    )


def _software(table: ScenarioTable) -> Software:
    """Return the software, told what the links are that its library uses."""
    node, fabric = link_names(table.cluster.network)
    return replace(
        table.software.build(), node_transports=node, fabric_transport=fabric
    )


def _cluster(
    table: ScenarioTable, folder: Path, reached: Mapping[Scope, float]
) -> tuple[Accelerator, NetworkSpec]:
    problems = Problems()
    with problems.noted():
        network_spec = table.cluster.build_network(folder, reached)
        table.cluster.check_num_devices(_num_devices(network_spec))
    with problems.noted():
        accelerator = table.cluster.build_accelerator()
    problems.refuse()
    return accelerator, network_spec


def _degradation(table: ScenarioTable) -> Degradation | None:
    if table.cluster.degraded is None:
        return None
    return table.cluster.degraded.build()


def _num_devices(network_spec: NetworkSpec) -> int:
    """Return how many devices there are, and refuse a list of links that is wrong."""
    if not isinstance(network_spec, CustomSpec):
        return network_spec.num_devices
    try:
        return read_link_file(network_spec.path).num_devices
    except InputError as error:
        raise error.at("network.path", ": ") from None


def _training(table: ScenarioTable, accelerator: Accelerator) -> TrainingSpec:
    training = table.training.build(table.software.defaults)
    wide, narrow = ("bf16", "fp16", "fp32"), ("fp8", "int8", "fp4")
    _check_rate("precision", training.precision, wide, accelerator)
    if training.matmul_precision:
        _check_rate("matmul_precision", training.matmul_precision, narrow, accelerator)
    return training


def _check_rate(
    where: str, precision: str, formats: tuple[str, ...], accelerator: Accelerator
) -> None:
    """Refuse a number format in which the device has no matrix rate."""
    known = [one for one in formats if one in accelerator.peak_flops]
    if precision not in known:
        raise InputError(
            f"{accelerator.name} has no matrix rate in this format",
            where=where,
            got=precision,
            expected=one_of(known) if known else "none: leave it out",
        )


def _profile(
    table: ScenarioTable, training: TrainingSpec, folder: Path
) -> Profile | None:
    """Return the measured operator times that the scenario names."""
    try:
        profile = table.cluster.read_profile(folder)
    except InputError as error:
        raise error.at("cluster") from None
    if profile is not None:
        _check_measured(profile, training)
    return profile


def _check_measured(profile: Profile, training: TrainingSpec) -> None:
    """Refuse number formats that the profile knows nothing of."""
    if training.matmul_precision:
        raise InputError(
            "does not go with measured operator times",
            where="training.matmul_precision",
            got=training.matmul_precision,
            expected="left out, as profiles have no products in narrow formats",
            hint="leave out cluster.profile to use the accelerator's rates",
        )
    # The optimizer's step is measured in fp32, whatever else is.
    known = {one.precision for one in profile.measurements if one.operation != "adam"}
    if training.precision not in known:
        raise InputError(
            "the profile has no measurement in the job's number format",
            where="cluster.profile",
            got=training.precision,
            expected=one_of(sorted(known)),
            hint="write training.precision as it was measured, or measure again",
        )
