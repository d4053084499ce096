"""What is read of a launch configuration, and the scenario that it makes.

A configuration says nothing of the cluster's network, and some say nothing of the
model: what is missing is taken from what the user gives beside it or is assumed, and
each assumption is listed in the scenario's first lines.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import Any

from estimators.models.huggingface import load_huggingface, parts_left_out
from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec
from nestsim.scenario.editing import toml_text
from nestsim.scenario.hardware.described import with_whole_paths
from nestsim.scenario.hardware.systems import (
    level,
    load_system,
    server_network,
    usual_system,
)
from nestsim.scenario.load import Scenario
from topologies.accelerators import accelerator_names, load_accelerator
from topologies.errors import InputError
from topologies.input_file import Value

Settings = dict[str, Any]
"""Settings of a table of a scenario, or options of a framework, by name."""

DEFAULT_ACCELERATOR = "h100-sxm"
"""The device that is assumed where nothing says which."""

DEFAULT_NODE = 8
"""Devices of a node that are assumed where nothing says how many."""

MOST_DEVICES = 16_000_000
"""Most devices that a job may be started on."""

_WIDTH = 86
"""Letters of a line of the heading, less its mark."""

ADAPTER = 50e9
"""Bandwidth of each device to other servers that is assumed where no system has such
devices: NDR InfiniBand, 400 Gbit/s (NVIDIA, data sheet of ConnectX-7) [byte/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionEffects:
    """The options of a configuration, each in one of three lists."""

    read: tuple[str, ...] = ()
    """Those that the scenario says, by their names there."""

    assumed: tuple[str, ...] = ()
    """Those with an effect that is not modelled: an assumption says what is taken."""

    without_effect: tuple[str, ...] = ()
    """Those that make no difference to the answer: paths, seeds, learning rates, and
    what belongs to a part that the job does not have."""

    @classmethod
    def of(
        cls, given: Sequence[str], *, read: Collection[str], assumed: Collection[str]
    ) -> "OptionEffects":
        """Return where each of some options stands.

        Parameters
        ----------
        given
            All of them.
        read
            Those that somebody read.
        assumed
            Those in whose place something else was taken, read or not.
        """
        names = tuple(dict.fromkeys(given))
        return cls(
            read=tuple(name for name in names if name in read and name not in assumed),
            assumed=tuple(name for name in names if name in assumed),
            without_effect=tuple(
                name for name in names if name not in read and name not in assumed
            ),
        )

    def __add__(self, other: "OptionEffects") -> "OptionEffects":
        """Return the lists of two parts of a configuration as one."""
        return OptionEffects(
            read=self.read + other.read,
            assumed=self.assumed + other.assumed,
            without_effect=self.without_effect + other.without_effect,
        )

    def to_json(self) -> dict[str, list[str]]:
        """Return the three lists."""
        return {name: list(names) for name, names in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSource:
    """A launch configuration, and what the user says beside it."""

    path: Path
    """The file."""

    text: str
    """Its content."""

    model: str | None = None
    """A name of the model library or the path of a ``config.json``, for configurations
    that do not spell the model out; None if not given."""

    num_devices: int | None = None
    """Devices of the job; None for what the configuration says."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of variables that a shell script takes from its surroundings."""

    def model_table(self) -> dict[str, Any] | None:
        """Return the table [model] that `model` stands for; None if not given."""
        if self.model is None:
            return None
        if self.model.endswith(".json"):
            return {"config": str(Path(self.model).resolve())}
        return {"name": self.model}

    def model_spec(self, sequence_length: int) -> TransformerSpec | None:
        """Return the architecture that `model` stands for; None if not given.

        Parameters
        ----------
        sequence_length
            What it is trained with.

        Raises
        ------
        InputError
            If there is no such model.
        """
        table = self.model_table()
        if table is None:
            return None
        try:
            if "config" in table:
                path = Path(table["config"])
                return load_huggingface(path, sequence_length=sequence_length)
            return load_model(table["name"], sequence_length=sequence_length)
        except InputError as error:
            raise error.at("--model", ": ") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJob:
    """What a launch configuration says, as tables of a scenario but for the cluster."""

    name: str
    """What the scenario is called."""

    tables: Mapping[str, Mapping[str, Any]]
    """``model``, ``training``, ``software`` and ``plan``, ``rl`` and ``sites`` if there
    are any, and ``launch`` (what none of these holds), each as the scenario has it."""

    num_devices: int | None = None
    """Devices of the job; None if nothing says how many."""

    devices_per_node: int | None = None
    """Devices of a node; None if nothing says how many."""

    assumptions: tuple[str, ...] = ()
    """What was assumed where the configuration is silent, a sentence each."""

    options: OptionEffects = field(default_factory=OptionEffects)
    """Every option that was given, and what became of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedScenario:
    """A scenario that was read of a launch configuration."""

    scenario: Scenario
    """The scenario, checked."""

    assumptions: tuple[str, ...]
    """What was assumed, a sentence each."""

    options: OptionEffects
    """Every option of the configuration, and what became of it."""


def imported_scenario(
    job: ImportedJob,
    path: Path,
    *,
    origin: str,
    cluster: Scenario | str | None = None,
    accelerator: str | None = None,
) -> ImportedScenario:
    """Return the scenario of a job that was read, on a given or an assumed cluster.

    Parameters
    ----------
    job
        What was read.
    path
        The file that the scenario will be, in whose folder files are looked for.
    origin
        What it was read of, in words.
    cluster
        A scenario whose table [cluster] is taken, or the name of a system; None for one
        that is assumed.
    accelerator
        Name in the catalogue, where no cluster is given; None for
        `DEFAULT_ACCELERATOR`.

    Raises
    ------
    InputError
        If what was read makes no scenario.
    """
    assumed: list[str] = list(job.assumptions)
    config = job.tables["model"].get("config")
    if isinstance(config, str) and (sentence := parts_left_out(Path(config))):
        assumed.append(sentence)
    if isinstance(cluster, str):
        table = {"system": cluster, "num_devices": _num_devices(job)}
    elif cluster is None:
        table = _assumed_cluster(job, accelerator, assumed)
    else:
        table = _cluster_table(cluster)
    tables = {**job.tables, "cluster": table}
    order = (
        "model",
        "training",
        "software",
        "cluster",
        "plan",
        "rl",
        "sites",
        "launch",
    )
    document = {name: dict(tables[name]) for name in order if name in tables}
    text = _heading(origin, assumed, job.options) + toml_text(
        {"name": job.name, **document}
    )
    return ImportedScenario(
        scenario=Scenario.from_toml(text, path),
        assumptions=tuple(assumed),
        options=job.options,
    )


def _cluster_table(cluster: Scenario) -> dict[str, Any]:
    """Return the table [cluster] of a scenario; its files are found from anywhere."""
    table: dict[str, Any] = cluster.document()["cluster"]
    folder = cluster.path.parent
    if "network" in table:  # without one there are answers about memory alone
        table["network"] = with_whole_paths(table["network"], folder)
    if isinstance(table.get("profile"), str):
        table["profile"] = str(folder.resolve() / table["profile"])
    return table


def _assumed_cluster(
    job: ImportedJob, accelerator: str | None, assumed: list[str]
) -> dict[str, Any]:
    """Return a cluster of enough devices, and list what of it is assumed."""
    if accelerator is None:
        accelerator = DEFAULT_ACCELERATOR
        assumed.append(f"The devices are {accelerator}.")
    elif accelerator not in accelerator_names():
        raise Value(accelerator, "--accelerator").error(
            "no such accelerator", "a name that `nestsim accelerators` lists"
        )
    count, node = _num_devices(job), job.devices_per_node
    name = usual_system(accelerator, count, node)
    if name is not None:
        assumed.append(
            f'The machines are of system "{name}": {load_system(name).words}.'
        )
        return {"system": name, "num_devices": count}
    if node is None:
        node = min(DEFAULT_NODE, count)
        assumed.append(f"A node has {node} devices.")
    if count % node:
        raise Value(f"{count} devices, {node} in a node").error(
            "the devices do not fill whole nodes", "a multiple"
        )
    device = load_accelerator(accelerator)
    assumed.append(
        "The network is a fabric that does not block, with 400 Gbit/s for each device, "
        "of servers with the links of the device's data sheet."
    )
    network = server_network(
        level("node", node, device.interconnect_bandwidth),
        ("device", ADAPTER),
        count,
        device.constants_name,
    )
    return {"accelerator": accelerator, "num_devices": count, "network": network}


def _num_devices(job: ImportedJob) -> int:
    """Return how many devices a job runs on, as its configuration says."""
    if job.num_devices is None:
        raise InputError(
            "nothing says how many devices the job runs on",
            expected="--num-devices N, or --cluster SCENARIO",
        )
    return job.num_devices


def _heading(origin: str, assumed: Sequence[str], options: OptionEffects) -> str:
    """Return the first lines of a scenario: where it comes from, what was assumed."""
    lines = [f"Read of {origin}.", ""]
    if assumed:
        lines += ["Assumed:"]
        for line in assumed:
            lines += wrap(line, _WIDTH, initial_indent="- ", subsequent_indent="  ")
        lines += [""]
    for title, names in (
        ("Options that were read:", options.read),
        ("Options in whose place something was assumed:", options.assumed),
        ("Options without effect on the answer:", options.without_effect),
    ):
        if names:
            lines += [title]
            lines += wrap(
                ", ".join(names),
                _WIDTH,
                initial_indent="  ",
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
            lines += [""]
    printable = ("".join(c if c.isprintable() else "?" for c in line) for line in lines)
    return "".join(f"# {line}".rstrip() + "\n" for line in printable) + "\n"
