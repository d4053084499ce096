"""Read a scenario file and hand out its parts, or say what is wrong with it."""

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from estimators.collectives.transports import Scope
from estimators.models.spec import TransformerSpec
from estimators.operators.profile import Profile
from estimators.software import IDEAL, Software
from estimators.tracing.user_module import TracedModule
from estimators.training import NARROW_FORMATS, TrainingSpec
from estimators.user_files import UserConstants, UserLinks, measured_efficiencies
from nestsim.running.progress import html_of
from nestsim.scenario.defaults import settled_training, with_defaults
from nestsim.scenario.editing import toml_text, with_values
from nestsim.scenario.errors import checked, one_of
from nestsim.scenario.hardware.accelerator import DeviceGroup
from nestsim.scenario.hardware.cost import CostSpec
from nestsim.scenario.hardware.described import NETWORK_FILES
from nestsim.scenario.hardware.kinds import link_names
from nestsim.scenario.mist_yaml import SUFFIXES, mist_document
from nestsim.scenario.model import (
    HuggingFaceModel,
    ModuleModel,
    module_file,
)
from nestsim.scenario.simulation import SimulationSpec
from nestsim.scenario.table import HandedOn, ScenarioTable
from planner.frameworks.framework import FRAMEWORKS
from planner.plans.spec import PlanSpec
from planner.rivals.protocol import PlannerSettings
from planner.search.space import SearchSpec
from planner.step.execution import NOTHING_HIDDEN, Execution
from topologies.accelerators import Accelerator, Host
from topologies.circuits import OpticalSpec
from topologies.degrade import Degradation
from topologies.errors import InputError, Problems, located
from topologies.input_file import parse_toml, read_file
from topologies.joined_specs import NetworkSpec
from topologies.link_events import LinkEvent
from topologies.notices import gathered_notices, notices

MAX_FILE = 1_000_000
"""Scenarios are written by hand; a longer file is not one [byte]."""

UNSAVED = "scenario.toml"
"""What a scenario is called that was made in Python."""

_NAMES_OF_FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "model": (
            "config",
            "module",
            "moe_routing_file",
            "document_lengths",
            "image_counts",
        ),
        "cluster": ("profile",),
        "cluster.network": NETWORK_FILES,
        "software": ("constants", "links"),
        "goodput": ("trace",),
        "rl": ("response_length_file",),
    }
)
"""Table -> its settings that name a file."""


@dataclass(frozen=True, kw_only=True)
class JobBasis:
    """What times of a job rest on beside its model and plan."""

    training: TrainingSpec
    """What is trained at once, and in which precision."""

    accelerator: Accelerator
    """The devices; of several kinds that which the network and the hosts are for."""

    groups: tuple[DeviceGroup, ...] = ()
    """Devices of several accelerators, in the order of their numbers; empty if all are
    the same."""

    software: Software = IDEAL
    """What drives the devices."""

    execution: Execution = NOTHING_HIDDEN
    """What the software hides behind compute."""

    profile: Profile | None = None
    """Operator times that were measured, which are taken instead of the device's rates;
    None if there are none."""

    constants: UserConstants | None = None
    """Constants of the user in place of those that are shipped; None if there are
    none."""

    links: UserLinks | None = None
    """What the user measured of links; None for published figures."""


@dataclass(frozen=True, kw_only=True)
class Scenario(JobBasis, HandedOn):
    """One scenario, read and checked: the frozen parts that jobs take.

    Made of a file (`from_file`), of text in TOML (`from_toml`) or of a dictionary
    (`from_dict`); `replace` gives another one.

    Examples
    --------
    >>> first = Scenario.from_file("scenarios/gpt3_1.3b_8_a100.toml")
    >>> second = first.replace({"training.global_batch_size": 256})
    >>> first.training.global_batch_size, second.training.global_batch_size
    (512, 256)
    """

    path: Path
    """The file. Files that the scenario names are looked for in its folder."""

    text: bytes
    """The scenario in TOML, as it is on disk where it is such a file."""

    name: str
    """What the user calls it."""

    spec: TransformerSpec
    """The model."""

    module: TracedModule | None = None
    """The user's own module, or one of transformers; None for other models, which are
    traced when their layers are needed."""

    network_spec: NetworkSpec
    """What the network is built from."""

    network_assumed: tuple[str, ...]
    """Sentences on what the file of another program does not say of the network."""

    host: Host
    """What stands behind each device."""

    search: SearchSpec
    """What the planner may try."""

    simulation: SimulationSpec
    """How its plans are replayed."""

    software_preset: str = "ideal"
    """Name of the framework whose defaults hold where the file is silent."""

    release: str = ""
    """Release of that framework; empty if it has none."""

    degradation: Degradation | None = None
    """What of the network and of the devices is slow or gone; None if nothing is."""

    link_events: tuple[LinkEvent, ...] = ()
    """What happens to links in the middle of the step."""

    optical: OpticalSpec | None = None
    """Switches that are optical circuit switches; None if all pass on packets."""

    planner: str = "nest"
    """A name of `planner.rivals.PLANNERS`."""

    planner_settings: PlannerSettings = field(default_factory=PlannerSettings)
    """What planners are told beside `search`."""

    notes: tuple[str, ...] = field(default=(), compare=False)
    """What users should know of how it was read; every call with it says so."""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Scenario":
        """Read and check a scenario file: `load_scenario`."""
        return load_scenario(path)

    @classmethod
    def from_toml(cls, text: str, path: str | os.PathLike[str] = UNSAVED) -> "Scenario":
        """Read and check a scenario that is given as text in TOML.

        Parameters
        ----------
        text
            What a scenario file would hold.
        path
            The file that it stands for: messages call it so, and files that the
            scenario names are looked for in its folder. It need not be there.

        Raises
        ------
        InputError
            If something in it is wrong. The message starts with the path.
        """
        return _loaded(Path(path), text.encode(errors="surrogatepass"))

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], path: str | os.PathLike[str] = UNSAVED
    ) -> "Scenario":
        """Check a scenario that is given as tables inside each other.

        Parameters
        ----------
        document
            What TOML would make of a scenario file.
        path
            As `from_toml` takes it.

        Raises
        ------
        InputError
            If something in it is wrong. The message starts with the path.
        """
        with located(str(path), ": "):
            text = toml_text(document)
        return _loaded(Path(path), text.encode())

    def replace(self, values: Mapping[str, Any]) -> "Scenario":
        """Return the scenario with other values for some settings, checked again.

        Parameters
        ----------
        values
            Dotted path of a setting, such as ``cluster.network.oversubscription`` or
            ``cluster.network.levels[1].bandwidth`` -> its value as in TOML.

        Raises
        ------
        InputError
            If a path leads nowhere, or the scenario would be wrong. The message is
            that of a file with these values.
        """
        with located(str(self.path), ": "):
            document = with_values(self.document(), values)
        return Scenario.from_dict(document, self.path)

    def document(self) -> dict[str, Any]:
        """Return the scenario as tables inside each other, as it is written."""
        return parse_toml(self.text)

    @property
    def device_names(self) -> str:
        """Names of the devices: of the accelerator, or of those of all groups."""
        named = [group.accelerator.name for group in self.groups]
        return " and ".join(dict.fromkeys(named or [self.accelerator.name]))

    def files(self) -> tuple[Path, ...]:
        """Return the files that the scenario is read from; its own comes first."""
        folder = self.path.parent
        return self.path, *(folder / file for file in self.named_files().values())

    def named_files(self) -> dict[str, str]:
        """Return the files that settings name, as they are written, by the setting."""
        document = self.document()
        tables = {
            "model": document["model"],
            "cluster": document["cluster"],
            "cluster.network": document["cluster"].get("network", {}),
            "software": document.get("software", {}),
            "goodput": document.get("goodput", {}),
            "rl": document.get("rl", {}),
        }
        files = {
            f"{table}.{name}": tables[table].get(name)
            for table, names in _NAMES_OF_FILES.items()
            for name in names
        }
        named = {name: file for name, file in files.items() if isinstance(file, str)}
        if "model.module" in named:
            named["model.module"] = module_file(named["model.module"])
        return named

    def module_facts(self) -> dict[str, str]:
        """Return what manifests say of the user's own module, if there is one."""
        setting = self.document()["model"].get("module")
        if self.module is None or setting is None:
            return {}
        return {"module": setting, "module_sha256": self.module.sha256}

    def content(self) -> str:
        """Return all that it says, defaults and files resolved, to be told apart by.

        Where it lies and how it is written does not matter, nor do prices, failures,
        what differs from step to step, reinforcement learning, other sites and options
        of a launch: plans and replays do not depend on them.
        """
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        parts |= {"path": Path(), "text": b"", "cost": None}
        for name in ("goodput", "jitter", "rl", "sites", "notes", "launch"):
            del parts[name]
        texts = ", ".join(f"{name}={value!r}" for name, value in parts.items())
        return f"Scenario({texts})"

    def __repr__(self) -> str:
        """Say which one it is, in one line."""
        facts = ", ".join(f"{name}={fact!r}" for name, fact in self._facts().items())
        return f"Scenario({facts})"

    def _repr_html_(self) -> str:
        """Show which one it is, and its text, in a notebook."""
        return html_of("Scenario", self._facts(), self.text.decode("utf-8-sig"))

    def _facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": str(self.path),
            "model": f"{self.spec.family}, {self.spec.num_layers} layers",
            "network": self.network_spec.kind,
            "accelerator": self.device_names,
            "global_batch_size": self.training.global_batch_size,
        }


def load_scenario(path: str | os.PathLike[str], *, trust_code: bool = True) -> Scenario:
    """Read and check a scenario file.

    Parameters
    ----------
    path
        The file: a scenario in TOML, or a configuration of Mist, which ends in
        ``.yaml`` or ``.yml``. Files that it names are looked for in its folder.
    trust_code
        Whether the Python file that ``module`` of [model] names may be run; without,
        such a scenario is refused before anything of it runs.

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
    with located(str(file), ": "):
        expected = "a scenario file in TOML"
        text = read_file(file, expected=expected, most_bytes=MAX_FILE)
        if file.suffix.lower() in SUFFIXES:
            text = toml_text(mist_document(text, file.stem)).encode()
    return _loaded(file, text, trust_code=trust_code)


def _loaded(file: Path, text: bytes, *, trust_code: bool = True) -> Scenario:
    """Check a scenario, and say in messages which file it is."""
    with located(str(file), ": "):
        return scenario_of(parse_toml(text), file, text, trust_code=trust_code)


def scenario_of(
    document: Mapping[str, Any], file: Path, text: bytes, *, trust_code: bool = True
) -> Scenario:
    """Check what a scenario file says, or would say with other values.

    Parameters
    ----------
    document
        The file's content, as TOML has it.
    file
        The file. Files that it names are looked for in its folder.
    text
        The file as it is on disk.
    trust_code
        As `load_scenario` takes it.

    Raises
    ------
    InputError
        If something in it is wrong. The message starts with the setting.
    """
    with gathered_notices() as gathered:
        table = _check(document)
        if not trust_code:
            _refuse_code(table)
        scenario = _build(file, text, table, document.get("software", {}))
    notes = gathered.sentences(least=math.inf)
    return replace(scenario, notes=tuple(notes))


def _refuse_code(table: ScenarioTable) -> None:
    """Refuse a scenario that runs code when it is read."""
    if isinstance(table.model, ModuleModel):
        raise InputError(
            "would run a Python file that a folder of results names",
            where="model.module",
            got=table.model.module,
            expected="--trust-code (trust_code=True in Python), if you know what the "
            "file does",
            hint="--scenario FILE names a scenario of your own, which needs no such "
            "trust",
        )


def _check(document: Mapping[str, Any]) -> ScenarioTable:
    if document.get("jobs"):
        raise InputError(
            "this file has several jobs that share a cluster",
            where="jobs",
            expected="a scenario of one job, without tables [[jobs]]",
            hint="nestsim jobs FILE replays them together",
        )
    return checked(ScenarioTable, with_defaults(document))


def _build(
    file: Path, text: bytes, table: ScenarioTable, written: Collection[str]
) -> Scenario:
    """Return the scenario of a table; ``written`` are settings of its [software]."""
    software, folder, problems = table.software, file.parent, Problems()
    with problems.noted("model"):
        spec, module = table.model.build(folder), None
        if isinstance(table.model, ModuleModel | HuggingFaceModel):
            module = table.model.trace(folder)
    constants = links = None
    with problems.noted("software"):
        constants = software.read_constants(folder)
    with problems.noted("software"):
        links = software.read_links(folder)
    with problems.noted("cluster"):
        cluster, assumed = table.cluster.described(folder)
        table = replace(table, cluster=cluster)
        reached = measured_efficiencies(links, constants)
        accelerator, groups, network_spec = _cluster(table, folder, reached)
        # What else needs the accelerator is looked at if there is one.
        with problems.noted("training"):
            training = _training(table, accelerator)
            for group in groups:
                _training(table, group.accelerator)
            with problems.noted():
                profile = _profile(table, training, folder)
        with problems.noted("cost"):
            cost = None if table.cost is None else table.cost.settled(accelerator)
            _check_one_price(cost, groups)
    with problems.noted():
        execution = _execution(table, written)
    with problems.noted("software"):
        rules = FRAMEWORKS[software.preset].rules_of(software.release)
        with problems.noted("search"):
            search = table.search.build(table.cluster.memory_reserve, rules)
    with problems.noted("search"):
        planner_settings = table.search.settings(table.plan)
    problems.refuse()
    _check_host_update(training, execution, search, table.plan)
    _check_expert_skew(execution, spec)
    if "preset" not in written:
        notices().remark(
            f"software.preset is left out: {software.preset} is taken to run the job"
        )
    for name in table.simulation.moved:
        notices().setting_moved(f"{file}: simulation.{name}", f"software.{name}")
    handed_on = {part.name: getattr(table, part.name) for part in fields(HandedOn)}
    return Scenario(
        path=file,
        text=text,
        name=table.name,
        spec=spec,
        module=module,
        training=training,
        accelerator=accelerator,
        groups=groups,
        network_spec=network_spec,
        network_assumed=assumed,
        host=table.cluster.host.build(accelerator.like or accelerator.name),
        degradation=table.cluster.degraded,
        link_events=table.cluster.link_events,
        optical=table.cluster.optical,
        software_preset=software.preset,
        release=software.release or FRAMEWORKS[software.preset].release,
        software=_software(table),
        execution=execution,
        profile=profile,
        constants=constants,
        links=links,
        search=replace(
            search,
            rules=search.rules
            and search.rules.on(accelerator.like or accelerator.name),
        ),
        simulation=table.simulation.build(),
        planner=table.search.planner,
        planner_settings=planner_settings,
        **handed_on | {"cost": cost},
    )


def _execution(table: ScenarioTable, written: Collection[str]) -> Execution:
    """Return how a step is executed, by [software] or where it was set before.

    Raises
    ------
    InputError
        If a setting stands in both places.
    """
    for name, value in table.simulation.moved.items():
        if name in written:
            raise InputError(
                "is set in [software], too, where it has moved to",
                where=f"simulation.{name}",
                got=value,
                expected=f"left out, as software.{name} is set",
            )
    return replace(table.software.execution, **table.simulation.moved)


def _check_host_update(
    training: TrainingSpec,
    execution: Execution,
    search: SearchSpec,
    plan: PlanSpec | None,
) -> None:
    """Refuse to have hosts orthogonalise matrices: they are measured with Adam."""
    kept = any(one.optimizer > 0.0 for one in search.offload)
    if plan is not None:
        kept = kept or any(one.optimizer > 0.0 for one in plan.offload_by_stage())
    if training.optimizer == "muon" and execution.cpu_adam and kept:
        raise InputError(
            "does not go with states that hosts keep and update",
            where="training.optimizer",
            got=training.optimizer,
            expected='"adam" or "sgd"',
            hint="software.cpu_adam = false brings the states to the device for its "
            "update",
        )


def _check_expert_skew(execution: Execution, spec: TransformerSpec) -> None:
    """Refuse a load of the busiest rank where it follows from the model."""
    follows = spec.moe_routing != "balanced" or spec.moe_expert_capacity_factor
    if execution.expert_skew > 1.0 and follows:
        raise InputError(
            "is the load of the busiest rank, which follows from model.moe_routing and "
            "model.moe_expert_capacity_factor",
            where="software.expert_skew",
            got=execution.expert_skew,
            expected='1, or model.moe_routing = "balanced" without a capacity',
        )


def _software(table: ScenarioTable) -> Software:
    """Return the software, told what the links are that its library uses."""
    node, fabric = link_names(table.cluster.joined)
    return replace(
        table.software.build(), node_transports=node, fabric_transport=fabric
    )


def _cluster(
    table: ScenarioTable, folder: Path, reached: Mapping[Scope, float]
) -> tuple[Accelerator, tuple[DeviceGroup, ...], NetworkSpec]:
    problems = Problems()
    with problems.noted():
        network_spec = table.cluster.build_network(folder, reached)
        try:
            num_devices = network_spec.num_devices
        except InputError as error:
            raise network_spec.located(error, "network") from None
        table.cluster.check_num_devices(num_devices)
    with problems.noted():
        accelerator = table.cluster.checked_accelerator()
    problems.refuse()
    groups = table.cluster.checked_groups(accelerator, num_devices)
    return accelerator, groups, network_spec


def _check_one_price(cost: CostSpec | None, groups: tuple[DeviceGroup, ...]) -> None:
    """Refuse one price and one power for devices of several accelerators."""
    if cost is not None and groups:
        raise InputError(
            "knows one price and one power of a device",
            expected="no table [cost] where cluster.groups has several accelerators",
        )


def _training(table: ScenarioTable, accelerator: Accelerator) -> TrainingSpec:
    training = settled_training(table.training, table.software.defaults)
    wide = {name: name for name in ("bf16", "fp16", "fp32")}
    narrow = {name: known.rate for name, known in NARROW_FORMATS.items()}
    _check_rate("precision", training.precision, wide, accelerator)
    if training.matmul_precision:
        _check_rate("matmul_precision", training.matmul_precision, narrow, accelerator)
    return training


def _check_rate(
    where: str, precision: str, rates: Mapping[str, str], accelerator: Accelerator
) -> None:
    """Refuse a number format in which the device has no matrix rate.

    Parameters
    ----------
    where, precision
        The setting, and what it is.
    rates
        Name of a format -> that of its rate.
    accelerator
        The device.
    """
    known = [name for name, rate in rates.items() if rate in accelerator.peak_flops]
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
    with located("cluster"):
        profile = table.cluster.read_profile(folder)
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
    known = {
        measurement.precision
        for measurement in profile.measurements
        if measurement.operation != "adam"
    }
    if training.precision not in known:
        raise InputError(
            "the profile has no measurement in the job's number format",
            where="cluster.profile",
            got=training.precision,
            expected=one_of(sorted(known)),
            hint="write training.precision as it was measured, or measure again",
        )
