"""Read a scenario file and hand out its parts, or say what is wrong with it.

The outermost table of a scenario stands here, and the JSON Schema of the whole file.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from estimators.collectives.transports import Scope
from estimators.models.spec import TransformerSpec
from estimators.number_formats import NARROW_FORMATS
from estimators.operators.profile import Profile
from estimators.software import IDEAL, Software
from estimators.tracing.user_module import TracedModule
from estimators.training import TrainingSpec
from estimators.user_files.constants import UserConstants
from estimators.user_files.links import UserLinks, measured_efficiencies
from nestsim.notebook import html_of
from nestsim.scenario.assertions import AssertTable
from nestsim.scenario.base import Table, Text
from nestsim.scenario.editing import toml_text, with_values
from nestsim.scenario.errors import explain, one_of
from nestsim.scenario.formats.mist_yaml import SUFFIXES, mist_document
from nestsim.scenario.hardware.cluster import ClusterTable
from nestsim.scenario.hardware.cost import CostSpec, CostTable
from nestsim.scenario.hardware.described import NETWORK_FILES
from nestsim.scenario.hardware.network import link_names
from nestsim.scenario.model import (
    IN_ONE_WAY,
    WHICH_MODEL,
    AnyModel,
    ModuleModel,
    module_file,
)
from nestsim.scenario.plan import PlanTable
from nestsim.scenario.search import SearchTable, TrainingTable
from nestsim.scenario.settings import (
    Assertion,
    SimulationSpec,
    SimulationTable,
    StressSpec,
    SweepSpec,
)
from nestsim.scenario.software import SoftwareTable
from nestsim.scenario.stress import StressTable, SweepTable
from planner.planners.protocol import PlannerSettings
from planner.plans.spec import PlanSpec
from planner.search.launch_rules import LAUNCH_RULES
from planner.search.space import SearchSpec
from planner.step.execution import NOTHING_HIDDEN, Execution
from topologies.accelerators import Accelerator, Host
from topologies.degrade import Degradation
from topologies.errors import InputError, Problems
from topologies.input_file import parse_toml, read_file
from topologies.notices import NOTICES
from topologies.specs import NetworkSpec


class ScenarioTable(Table):
    """One training job on one cluster, and what to find out about it.

    Quantities are strings with a unit, such as "450 GB/s", "400 Gbit/s", "80 GiB" or
    "2 us". GB is 1e9 bytes and GiB 2**30; bandwidths are per direction.
    """

    name: Text = Field(examples=["Llama 2 7B on 64 H100"])
    """Name of the scenario, by which reports call it."""

    model: Annotated[AnyModel, IN_ONE_WAY] = Field(
        discriminator=WHICH_MODEL,
        examples=[{"name": "llama2-7b", "sequence_length": 4096}],
    )
    """The model: a name of the library, a Hugging Face config.json, a module of your
    own, or an architecture spelled out in Megatron's names."""

    training: TrainingTable = Field(examples=[{"global_batch_size": 512}])
    """What is trained at once, and in which precision."""

    cluster: ClusterTable
    """The devices that the job runs on, and the network that joins them."""

    software: SoftwareTable = Field(
        SoftwareTable.model_validate({}),
        json_schema_extra={"default": {}},
        examples=[{"preset": "megatron-core"}],
    )
    """The framework that runs the job. Left out, none that takes any time."""

    search: SearchTable = Field(
        SearchTable.model_validate({}), json_schema_extra={"default": {}}
    )
    """What the planner may try, and how long it may take."""

    plan: PlanTable | None = Field(None, examples=[{"micro_batch_size": 1}])
    """One plan, under Megatron's names, for `nestsim simulate` and the planner
    "fixed"; others do not read it."""

    simulation: SimulationTable = Field(
        SimulationTable.model_validate({}), json_schema_extra={"default": {}}
    )
    """How plans are replayed and judged."""

    sweep: SweepTable = Field(
        SweepTable.model_validate({}), json_schema_extra={"default": {}}
    )
    """Which settings `nestsim sweep` varies; other commands do not read it."""

    stress: StressTable = Field(
        StressTable.model_validate({}), json_schema_extra={"default": {}}
    )
    """What `nestsim stress` does to the cluster; other commands do not read it."""

    cost: CostTable | None = Field(None, examples=[{"device_hour": "2.50 USD/h"}])
    """What the cluster costs and draws: tokens for a dollar, the cost of a run. Left
    out, reports say nothing of money and energy."""

    assertions: AssertTable = Field(
        AssertTable.model_validate({}),
        alias="assert",
        json_schema_extra={"default": {}},
        examples=[{"verdict": "confirmed", "throughput": ">= 1.2e6 tokens/s"}],
    )
    """What must come out; if it does not, the exit status is 1."""


MAX_FILE = 1_000_000
"""Scenarios are written by hand; a longer file is not one [byte]."""

UNSAVED = "scenario.toml"
"""What a scenario is called that was made in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
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
    """The user's own module; None for other models, which are traced when their layers
    are needed."""

    training: TrainingSpec
    """What is trained at once, and in which precision."""

    accelerator: Accelerator
    """The devices."""

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

    software: Software = IDEAL
    """What drives the devices."""

    execution: Execution = NOTHING_HIDDEN
    """What it hides behind compute."""

    profile: Profile | None = None
    """Operator times that were measured, which are taken instead of the device's rates;
    None if there are none."""

    constants: UserConstants | None = None
    """Constants of the user in place of those that are shipped; None if there are
    none."""

    links: UserLinks | None = None
    """What the user measured of links; None if nothing."""

    degradation: Degradation | None = None
    """What of the network and of the devices is slow or gone; None if nothing is."""

    plan: PlanSpec | None = None
    """A plan that is given, beside what the planner may try; None if none is."""

    planner: str = "nest"
    """A name of `planner.planners.PLANNERS`."""

    planner_settings: PlannerSettings = field(default_factory=PlannerSettings)
    """What planners are told beside `search`."""

    sweep: SweepSpec = field(default_factory=SweepSpec)
    """What `nestsim sweep` varies."""

    stress: StressSpec = field(default_factory=StressSpec)
    """What `nestsim stress` does to the cluster."""

    assertions: tuple[Assertion, ...] = ()
    """What must come out."""

    cost: CostSpec | None = None
    """What the cluster costs and draws; None if nothing is said."""

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
        try:
            text = toml_text(document)
        except InputError as error:
            raise error.at(str(path), separator=": ") from None
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
        try:
            document = with_values(self.document(), values)
        except InputError as error:
            raise error.at(str(self.path), separator=": ") from None
        return Scenario.from_dict(document, self.path)

    def document(self) -> dict[str, Any]:
        """Return the scenario as tables inside each other, as it is written."""
        return parse_toml(self.text)

    def files(self) -> tuple[Path, ...]:
        """Return the files that the scenario is read from; its own comes first."""
        document = self.document()
        module = document["model"].get("module")
        named = (
            document["model"].get("config"),
            *([] if module is None else [module_file(module)]),
            document["cluster"].get("profile"),
            *(document["cluster"].get("network", {}).get(one) for one in NETWORK_FILES),
            document.get("software", {}).get("constants"),
            document.get("software", {}).get("links"),
        )
        folder = self.path.parent
        return self.path, *(folder / one for one in named if isinstance(one, str))

    def module_facts(self) -> dict[str, str]:
        """Return what manifests say of the user's own module, if there is one."""
        if self.module is None:
            return {}
        setting = self.document()["model"]["module"]
        return {"module": setting, "module_sha256": self.module.sha256}

    def content(self) -> str:
        """Return all that it says, defaults and files resolved, to be told apart by.

        Where it lies and how it is written does not matter, nor do prices: plans and
        replays do not depend on them.
        """
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        parts |= {"path": Path(), "text": b"", "cost": None}
        said = ", ".join(f"{name}={value!r}" for name, value in parts.items())
        return f"Scenario({said})"

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
            "accelerator": self.accelerator.name,
            "global_batch_size": self.training.global_batch_size,
        }


def load_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Read and check a scenario file.

    Parameters
    ----------
    path
        The file: a scenario in TOML, or a configuration of Mist, which ends in
        ``.yaml`` or ``.yml``. Files that it names are looked for in its folder.

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
        if file.suffix.lower() in SUFFIXES:
            text = toml_text(mist_document(text, file.stem)).encode()
    except InputError as error:
        raise error.at(str(file), separator=": ") from None
    return _loaded(file, text)


def _loaded(file: Path, text: bytes) -> Scenario:
    """Check a scenario, and say in messages which file it is."""
    try:
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
        spec, module = table.model.build(folder), None
        if isinstance(table.model, ModuleModel):
            module = table.model.trace(folder)
    constants = links = None
    with problems.noted("software"):
        constants = software.read_constants(folder)
    with problems.noted("software"):
        links = software.read_links(folder)
    with problems.noted("cluster"):
        cluster, assumed = table.cluster.described(folder)
        table = table.model_copy(update={"cluster": cluster})
        reached = measured_efficiencies(links, constants)
        accelerator, network_spec = _cluster(table, folder, reached)
        # What else needs the accelerator is looked at if there is one.
        with problems.noted("training"):
            training = _training(table, accelerator)
            with problems.noted():
                profile = _profile(table, training, folder)
        with problems.noted("cost"):
            cost = None if table.cost is None else table.cost.build(accelerator)
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
    _check_host_update(training, execution, search, plan)
    for name in table.simulation.moved:
        NOTICES.setting_moved(f"{file}: simulation.{name}", f"software.{name}")
    return Scenario(
        path=file,
        text=text,
        name=table.name,
        spec=spec,
        module=module,
        training=training,
        accelerator=accelerator,
        network_spec=network_spec,
        network_assumed=assumed,
        host=table.cluster.host.build(accelerator.like or accelerator.name),
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
        cost=cost,
    )


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


def _software(table: ScenarioTable) -> Software:
    """Return the software, told what the links are that its library uses."""
    node, fabric = link_names(table.cluster.joined)
    return replace(
        table.software.build(), node_transports=node, fabric_transport=fabric
    )


def _cluster(
    table: ScenarioTable, folder: Path, reached: Mapping[Scope, float]
) -> tuple[Accelerator, NetworkSpec]:
    problems = Problems()
    with problems.noted():
        network_spec = table.cluster.build_network(folder, reached)
        try:
            num_devices = network_spec.num_devices
        except InputError as error:
            raise network_spec.located(error, "network") from None
        table.cluster.check_num_devices(num_devices)
    with problems.noted():
        accelerator = table.cluster.build_accelerator()
    problems.refuse()
    return accelerator, network_spec


def _degradation(table: ScenarioTable) -> Degradation | None:
    if table.cluster.degraded is None:
        return None
    return table.cluster.degraded.build()


def _training(table: ScenarioTable, accelerator: Accelerator) -> TrainingSpec:
    training = table.training.build(table.software.defaults)
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


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def scenario_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that editors check scenarios with."""
    schema = _for_editors(ScenarioTable.model_json_schema(mode="validation"))
    return {"$schema": DIALECT, **schema, "title": "nestsim scenario"}


def _for_editors(schema: Any) -> Any:
    """Undo the line breaks of docstrings, and leave out null, which TOML has not."""
    if isinstance(schema, list):
        return [_for_editors(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _for_editors(one) for key, one in schema.items()}
    if isinstance(plain.get("description"), str):
        plain["description"] = " ".join(plain["description"].split())
    if "default" in plain and plain["default"] is None:
        del plain["default"]
    variants = [one for one in plain.get("anyOf", []) if one != {"type": "null"}]
    if len(variants) == 1:
        del plain["anyOf"]
        plain = {**variants[0], **plain}
    return plain
