"""Read a scenario file and hand out its parts, or say what is wrong with it."""

import codecs
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli
from pydantic import ValidationError

from estimators.models.spec import TransformerSpec
from estimators.profile import Profile
from estimators.training import TrainingSpec
from nestsim.presets import ALL_ZERO_STAGES, ZERO_STAGES
from nestsim.scenario.errors import explain, one_of
from nestsim.scenario.settings import Scenario
from nestsim.scenario.stress_settings import StressSpec
from nestsim.scenario.tables import ScenarioTable
from planner.baselines.protocol import PlannerSettings
from planner.plan_spec import PlanSpec
from topologies.accelerators import Accelerator
from topologies.degradation import Degradation
from topologies.errors import InputError
from topologies.link_file import read_link_file
from topologies.specs import CustomSpec, NetworkSpec

MAX_FILE = 10_000_000
"""Scenarios are written by hand; a longer file is not one [byte]."""

_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


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
        text = _read(file)
        return scenario_of(parse_document(text), file, text)
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


def _read(file: Path) -> bytes:
    expected = "a scenario file in TOML"
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_FILE + 1)
    except IsADirectoryError:
        raise InputError("is a folder, not a file", expected=expected) from None
    except FileNotFoundError:
        raise InputError("no such file", expected=expected) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be read: {reason}", expected=expected) from None
    if len(text) > MAX_FILE:
        raise InputError(f"is longer than {MAX_FILE} bytes", expected=expected)
    return text


def parse_document(text: bytes) -> dict[str, Any]:
    """Return what a scenario file says, unchecked."""
    expected = "TOML, see https://toml.io"
    try:
        return tomli.loads(_decode(text))
    except tomli.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", expected=expected) from None
    except RecursionError:
        raise InputError("not TOML: nested too deeply", expected=expected) from None
    except InputError:
        raise
    except ValueError:  # Python's limit on the digits of a number
        raise InputError("not TOML: a number is too long", expected=expected) from None


def _decode(text: bytes) -> str:
    for mark, encoding in _OTHER_ENCODINGS:
        if text.startswith(mark):
            raise InputError(
                f"is encoded in {encoding}",
                expected="UTF-8",
                hint="save the file as UTF-8",
            )
    try:
        return text.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"is not UTF-8 text (line {line})",
            got=text[error.start : error.start + 1],
            expected="UTF-8",
            hint="save the file as UTF-8",
        ) from None


def _check(document: Mapping[str, Any]) -> ScenarioTable:
    try:
        return ScenarioTable.model_validate(document)
    except ValidationError as error:
        raise explain(error, ScenarioTable) from None


def _build(file: Path, text: bytes, table: ScenarioTable) -> Scenario:
    accelerator, network_spec = _cluster(table, file.parent)
    training = _training(table, accelerator)
    software = table.software
    zero_stages = ZERO_STAGES.get(software.preset, ALL_ZERO_STAGES)
    plan = _plan(table)
    return Scenario(
        path=file,
        text=text,
        name=table.name,
        spec=_model(table, file.parent),
        training=training,
        accelerator=accelerator,
        network_spec=network_spec,
        degradation=_degradation(table),
        software_preset=software.preset,
        software=software.build(),
        profile=_profile(table, training, file.parent),
        search=table.search.build(table.cluster.memory_reserve, zero_stages),
        simulation=table.simulation.build(software.defaults.replay),
        plan=plan,
        planner=table.search.planner,
        planner_settings=_planner_settings(table, plan),
        sweep=table.sweep.build(),
        stress=_stress(table),
        assertions=table.assertions.build(),
    )


def _planner_settings(table: ScenarioTable, plan: PlanSpec | None) -> PlannerSettings:
    try:
        return table.search.settings(plan)
    except InputError as error:
        raise error.at("search") from None


def _stress(table: ScenarioTable) -> StressSpec:
    try:
        return table.stress.build()
    except InputError as error:
        raise error.at("stress") from None


def _model(table: ScenarioTable, folder: Path) -> TransformerSpec:
    try:
        return table.model.build(folder)
    except InputError as error:
        raise error.at("model") from None


def _plan(table: ScenarioTable) -> PlanSpec | None:
    if table.plan is None:
        return None
    try:
        return table.plan.build(table.software.defaults)
    except InputError as error:
        raise error.at("plan") from None


def _cluster(table: ScenarioTable, folder: Path) -> tuple[Accelerator, NetworkSpec]:
    try:
        network_spec = table.cluster.build_network(folder)
        table.cluster.check_num_devices(_num_devices(network_spec))
        return table.cluster.build_accelerator(), network_spec
    except InputError as error:
        raise error.at("cluster") from None


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
    try:
        training = table.training.build(table.software.defaults)
        wide, narrow = ("bf16", "fp16", "fp32"), ("fp8", "fp4")
        _check_rate("precision", training.precision, wide, accelerator)
        if training.matmul_precision:
            what = "matmul_precision"
            _check_rate(what, training.matmul_precision, narrow, accelerator)
    except InputError as error:
        raise error.at("training") from None
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
