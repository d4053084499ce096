"""Put a plan into a launch file that somebody has, with the fewest changes.

The plan is written as if there were no such file, with the options of the file that no
plan depends on. What the two say differently could change; of that only what the
importer needs to read the plan does. Where an option takes a variable of the script,
the variable is changed if the file is read the same with it.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from estimators.models.spec import TransformerSpec
from estimators.software import Software
from estimators.training import TrainingSpec
from nestsim.document.dumps import dump_json
from nestsim.launch.formats.megatron.options import TOKENS
from nestsim.launch.job import RANK_MAP, LaunchFiles, LaunchGap, LaunchJob
from nestsim.launch.onto.mapping_text import (
    OptionText,
    TomlText,
    TreeText,
    first_like,
    is_toml,
    is_tree,
    number_of,
    tree_options,
    unified,
    values_of,
    word_of,
)
from nestsim.launch.onto.script_text import (
    LAUNCHER,
    NODES,
    PER_NODE,
    ScriptText,
    hyphenated,
)
from nestsim.launch.read import ImportedJob, LaunchSource, imported_scenario
from nestsim.launch.readers import READERS, LaunchReader, find_reader
from nestsim.launch.registry import WRITERS
from nestsim.launch.shell.follow import follow_script
from nestsim.scenario.load import Scenario
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.plans.written import plan_settings
from planner.step.execution import Execution, Workload
from planner.step.plan import Plan
from topologies.errors import InputError
from topologies.input_file import carried_files, decode, read_file
from topologies.network import Network

MAX_FILE = 4_000_000
"""Longest launch file that is changed [byte]."""

_TOGETHER = re.compile(
    r"recompute|activations?.checkpoint|checkpoint-(?:activations|num)|remat|fp[48]-"
    r"|cuda.graph|pipeline.*(?:layers|stages)|layers.*pipeline|decoder-(?:first|last)"
)
"""Options that a framework takes together or not at all: with one, all change."""

_CONNECTIONS = re.compile(r"\b(?:unset )?CUDA_DEVICE_MAX_CONNECTIONS(?:=(\d+))?")
_HERE_DOCUMENT = re.compile(
    r"<<-?[ ]*[\'\"]?(\w+)[\'\"]?[^\n]*\n(\s*\{.*?\})\s*\n\s*\1[ \t]*$",
    re.DOTALL | re.MULTILINE,
)

_TABLES = ("model", "training", "software", "plan")

Changes = dict[tuple[str, str], Any]
"""A file, and an option of it -> its value there, None where it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLaunch:
    """A launch file with a plan put into it, and what had to change for that."""

    format: str
    """Name of the format that it is of."""

    files: Mapping[str, bytes]
    """Each file that is changed by its name; the one that was given always."""

    diff: str
    """All changes, as ``diff -u`` shows them; empty if there are none."""

    beside: LaunchFiles
    """What the plan is launched with otherwise, and what the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReading:
    """What files are read as, alike for all ways to say the same."""

    model: TransformerSpec
    """Architecture of the model."""

    training: TrainingSpec
    """Batch, precision and optimizer."""

    software: tuple[Software, Execution]
    """What the framework has, and how it executes a step."""

    plan: Plan | PlanSpec | None
    """The plan; its settings where it cannot be built, None where there is none."""

    world: int
    """Devices of the job."""

    is_counted: bool
    """Whether the files say how many devices there are."""

    tables: Mapping[str, Mapping[str, Any]]
    """Tables of the scenario that was read."""

    @property
    def said(self) -> tuple[object, ...]:
        """What counts of it: the job and its plan, however they are said."""
        return self.model, self.training, self.software, self.plan, self.world


Aim = tuple[object, ...] | None
"""What files should be read as; None if nothing can be read."""


def changed_launch(
    job: LaunchJob,
    path: Path,
    *,
    format_name: str | None = None,
    given: Mapping[str, Any] | None = None,
) -> ChangedLaunch:
    """Return a launch file with the plan of a job put into it.

    Parameters
    ----------
    job
        The job.
    path
        The file.
    format_name
        Name of its format; None to tell it by the file.
    given
        What stands beside it, as `nestsim.launch.read.LaunchSource` has it.

    Raises
    ------
    InputError
        If it cannot be read, or is no launch file, or one of a format that is not
        written.
    """
    try:
        content = read_file(path, expected="a launch file", most_bytes=MAX_FILE)
        source = LaunchSource(
            path=path, text=decode(content), **_surroundings(job, given or {})
        )
        reader = find_reader(source, format_name, "--to")
        name = next(name for name, known in READERS.items() if known is reader)
        if name not in WRITERS:
            raise InputError(
                f"is {reader.title}, which launches nothing",
                expected="a file that starts a job",
            )
        return _Merge.of(job, name, source, reader).result(content)
    except InputError as error:
        raise error.at(str(path), separator=": ") from None


def _surroundings(job: LaunchJob, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands beside a launch file: what was given, else the job's model."""
    model = job.scenario.document()["model"]
    named = model.get("name")
    if named is None and isinstance(model.get("config"), str):
        named = str(job.scenario.path.parent / model["config"])
    size = {"VOCAB_SIZE": str(job.model.vocab_size)}
    variables = size | dict(given.get("variables") or {})
    return {"model": named, **given, "variables": variables}


@dataclass(slots=True, kw_only=True)
class _Merge:
    """One file, or a script and the JSON that it names, on the way to a plan."""

    job: LaunchJob
    format: str
    reader: LaunchReader
    source: LaunchSource
    launch: LaunchFiles = field(default_factory=lambda: LaunchFiles(files={}))
    """What is written for the plan."""
    asked: Changes = field(default_factory=dict)
    """All that it says."""
    trained: frozenset[str] = frozenset()
    """Options of the script that are not those of a launcher."""
    must: set[tuple[str, str]] = field(default_factory=set)
    """Options that the plan changes, whatever is read of them."""
    editors: dict[str, OptionText] = field(default_factory=dict)
    """Each file, by its path or, of one inside of the script, its text."""
    wanted: Changes = field(default_factory=dict)
    by_variable: set[str] = field(default_factory=set)
    readings: dict[str, LaunchReading] = field(default_factory=dict)

    @classmethod
    def of(
        cls, job: LaunchJob, name: str, source: LaunchSource, reader: LaunchReader
    ) -> "_Merge":
        """Compare a file with what is written for a plan."""
        world = job.plan.parallel.num_devices
        try:
            before = reader.read(source)
        except InputError:  # nothing says how many devices there are
            source = replace(source, num_devices=world)
            before = reader.read(source)
        document = job.scenario.document()
        document.pop("launch", None)
        if "launch" in before.tables:
            document["launch"] = dict(before.tables["launch"])
        scenario = Scenario.from_dict(document, job.scenario.path)
        merge = cls(job=job, format=name, reader=reader, source=source)
        merge.launch = WRITERS[name](replace(job, scenario=scenario))
        merge.compare(before)
        earlier = cls(job=job, format=name, reader=reader, source=source)
        with suppress(InputError):  # a plan of another cluster
            was = earlier.planned(scenario, earlier.settled(before))
            earlier.launch = WRITERS[name](was)
            earlier.compare(before)
        merge.must_change(earlier)
        merge.count_devices()
        return merge

    def planned(self, scenario: Scenario, reading: LaunchReading) -> LaunchJob:
        """Return the job with the plan that was read.

        Raises
        ------
        InputError
            If none was.
        """
        plan, job = reading.plan, self.job
        if not isinstance(plan, Plan):
            raise InputError("has no plan of this cluster")
        workload = replace(job.workload, training=reading.training)
        settings = plan_settings(
            plan,
            workload.table(plan.degrees).is_block,
            workload.training.global_batch_size,
        )
        return replace(
            job, scenario=scenario, workload=workload, plan=plan, settings=settings
        )

    @property
    def main(self) -> str:
        """Name of the file that was given."""
        return str(self.source.path)

    def compare(self, before: ImportedJob) -> None:
        """Note what the file, and that which it names, could say otherwise."""
        texts = {
            name: content
            for name, content in self.launch.files.items()
            if isinstance(content, str)
        }
        text, effects = self.source.text, before.options
        names = (*effects.read, *effects.assumed, *effects.without_effect)
        self.trained = frozenset(hyphenated(name.lstrip("-")) for name in names)
        if text.lstrip().startswith("{"):
            self._add(self.main, TreeText(text=text), tree_options(texts, ".json"))
        elif self.format == "torchtitan" and is_toml(text):
            options = TomlText(text=texts["torchtitan.toml"]).options()
            self._add(self.main, TomlText(text=text), options)
        elif self.format == "maxtext":
            options = tree_options(texts, ".yml")
            options.pop("base_config")
            if is_tree(text):
                editor = TreeText(text=text, order=[*options])
                self._add(self.main, editor, options)
            else:
                words = {name: (word_of(value),) for name, value in options.items()}
                self._add_script(words, pairs=True)
        else:
            script = next(texts[name] for name in texts if name.endswith(".sh"))
            options = ScriptText(text=script).spelt()
            is_ours = any(
                name.startswith("trainer.")
                for name in before.tables.get("launch", {}).get("options", {})
            )
            self._add_script({} if is_ours else options)
            if self.format == "deepspeed":
                self._add_config(tree_options(texts, ".json"))

    def _add(self, file: str, editor: OptionText, options: Mapping[str, Any]) -> None:
        self.editors[file] = editor
        if not options:
            return
        script = isinstance(editor, ScriptText)
        now = editor.options()
        new = {hyphenated(k) if script else k: v for k, v in options.items()}
        # Made-up tokens stand for those of users, which stay.
        skipped = TOKENS | LAUNCHER if script else frozenset[str]()
        changes = {k: v for k, v in new.items() if k not in now or now[k] != v}
        changes |= {
            k: None for k in now if k not in new and (not script or k in self.trained)
        }
        self.asked |= {(file, k): v for k, v in new.items()}
        self.wanted |= {(file, k): v for k, v in changes.items() if k not in skipped}

    def _add_script(
        self, options: Mapping[str, Sequence[str]], *, pairs: bool = False
    ) -> None:
        editor = ScriptText(
            text=self.source.text,
            pairs=pairs,
            variables=self.source.variables,
            order=[*options],
        )
        self._add(self.main, editor, options)

    def _add_config(self, options: Mapping[str, Any]) -> None:
        """Note the JSON that a script of DeepSpeed writes, or names beside it."""
        run = follow_script(self.source.text, self.source.variables)
        inside = [match[2] for match in _HERE_DOCUMENT.finditer(self.source.text)]
        for text in inside if run.files else ():
            self._add(text, TreeText(text=text), options)
            return
        names = {
            word.rpartition("=")[2]
            for command in run.commands
            for word in command.words
            if word.endswith(".json")
        }
        for name in names:
            for path in (self.source.path.parent / name, Path(name)):
                here = self.source.path.parent / PurePosixPath(name).name
                place = path if path.is_file() else here
                if place.is_file():
                    text = decode(
                        read_file(place, expected="a JSON", most_bytes=MAX_FILE)
                    )
                    self._add(str(place), TreeText(text=text), options)
                    return

    def count_devices(self) -> None:
        """Note nodes and processes that the script starts, where the plan has others.

        What it takes from outside stays; then the plan's number of devices is taken.
        """
        editor, world = self.editors[self.main], self.job.plan.parallel.num_devices
        reading = self.reading(self.wanted)
        if reading is not None and reading.world == world and reading.is_counted:
            return
        per_node = min(world, self.job.devices_per_node)
        counts = dict.fromkeys(NODES, -(-world // per_node))
        counts |= dict.fromkeys(PER_NODE, per_node)
        if isinstance(editor, ScriptText):
            more = {
                (self.main, name): (str(count),)
                for name, count in counts.items()
                if editor.is_settable(name)
            }
            self.wanted |= more
            reading = self.reading(self.wanted)
            if more and reading is not None and reading.world == world:
                return
            for name in more:
                del self.wanted[name]
        self.source = replace(self.source, num_devices=world)

    def must_change(self, earlier: "_Merge") -> None:
        """Note options with a number that the plan of the file had otherwise.

        A file may say a thing twice, and the importer reads but one of the two.
        """
        now_by_file = {file: values_of(editor) for file, editor in self.editors.items()}
        for (file, name), value in self.wanted.items():
            now = number_of(now_by_file[file].get(name))
            asked = number_of(value)
            was = earlier.asked.get((file, name))
            if now is None or asked is None or now < 0:  # -1: what is left
                continue
            if now != asked and was != value:
                self.must.add((file, name))

    def texts(self, changes: Changes) -> dict[str, str]:
        """Return all files with some changes."""
        texts: dict[str, str] = {}
        for file, editor in self.editors.items():
            asked = {name: v for (place, name), v in changes.items() if place == file}
            if isinstance(editor, ScriptText):
                texts[file] = editor.edited(asked, self.by_variable)
            else:
                texts[file] = editor.edited(asked)
        for file in [file for file in texts if "\n" in file]:
            texts[self.main] = texts[self.main].replace(file, texts.pop(file), 1)
        return texts

    def reading(self, changes: Changes) -> LaunchReading | None:
        """Return what the files are read as with some changes; None if not at all."""
        texts = self.texts(changes)
        source = replace(self.source, text=texts[self.main])
        try:
            with carried_files({file: text.encode() for file, text in texts.items()}):
                return self.settled(self.reader.read(source))
        except InputError:
            return None

    def aim(self, changes: Changes) -> Aim:
        """Return what counts of what the files are read as with some changes."""
        reading = self.reading(changes)
        return None if reading is None else reading.said

    def target(self) -> LaunchReading:
        """Return what the files of the plan are read as."""
        world = self.job.plan.parallel.num_devices
        with tempfile.TemporaryDirectory() as folder:
            for name, content in self.launch.files.items():
                data = content.encode() if isinstance(content, str) else content
                Path(folder, name).write_bytes(data)
            first = first_like(self.launch.files, self.source, self.format)
            path = Path(folder, first)
            source = replace(
                self.source, path=path, text=path.read_text(), num_devices=world
            )
            return self.settled(self.reader.read(source))

    def settled(self, job: ImportedJob) -> LaunchReading:
        """Return what was read, alike for all ways to say the same."""
        tables = {name: job.tables.get(name, {}) for name in _TABLES}
        key = dump_json({**tables, "world": job.num_devices})
        if key not in self.readings:
            world = self.job.plan.parallel.num_devices
            read = imported_scenario(
                replace(job, assumptions=()),
                self.source.path,
                origin=self.source.path.name,
                cluster=self.job.scenario,
            )
            scenario = read.scenario
            plan = scenario.plan
            workload = replace(self.job.workload, training=scenario.training)
            self.readings[key] = LaunchReading(
                model=scenario.spec,
                training=scenario.training,
                software=(scenario.software, scenario.execution),
                plan=plan and _built(self.job.network, workload, plan),
                world=job.num_devices or world,
                is_counted=job.num_devices is not None,
                tables=tables,
            )
        return self.readings[key]

    def result(self, content: bytes) -> ChangedLaunch:
        """Return the files with the fewest changes."""
        target = self.target()
        full = dict(self.wanted)
        aim = self.aim(full)
        if aim is None or aim != target.said:
            full = self._readable(full)
            aim = self.aim(full)
        changes = self._fewest(full, aim)
        changes = self._fewest(self._by_variables(changes, aim), aim)
        reached = self.reading(changes)
        texts = self.texts(changes)
        files: dict[str, bytes] = {}
        diffs: list[str] = []
        for name, text in texts.items():
            before = content if name == self.main else Path(name).read_bytes()
            mark = b"\xef\xbb\xbf" if before.startswith(b"\xef\xbb\xbf") else b""
            files[PurePosixPath(name).name] = mark + text.encode()
            diffs += unified(name, decode(before), text)
        return ChangedLaunch(
            format=self.format,
            files=files,
            diff="".join(diffs),
            beside=self._beside(target, reached),
        )

    def _readable(self, changes: Changes) -> Changes:
        """Return those changes with which the files are still read, one by one."""
        kept: Changes = {}
        for name, value in changes.items():
            if self.reading({**kept, name: value}) is not None:
                kept[name] = value
        return kept

    def _fewest(self, changes: Changes, aim: Aim) -> Changes:
        """Return changes of which none can be left out: all are read as ``aim``."""
        units: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for file, name in changes:
            match = _TOGETHER.search(name)
            unit = file, match[0][:5] if match else f"--{name}"
            units.setdefault(unit, []).append((file, name))
        kept = dict(changes)

        def leave_out(some: Sequence[list[tuple[str, str]]]) -> None:
            nonlocal kept
            less = {key for unit in some for key in unit}
            rest = {key: value for key, value in kept.items() if key not in less}
            if self.aim(rest) == aim:
                kept = rest
            elif len(some) > 1:
                leave_out(some[: len(some) // 2])
                leave_out(some[len(some) // 2 :])

        free = [unit for unit in units.values() if not self.must & set(unit)]
        if free:
            leave_out(free)
        return kept

    def _by_variables(self, changes: Changes, aim: Aim) -> Changes:
        """Note options whose variable can be changed, and nothing else with it."""
        editor = self.editors[self.main]
        if not isinstance(editor, ScriptText):
            return changes
        names = [
            name
            for (file, name), words in changes.items()
            if file == self.main and words and len(words) == 1
            if editor.variable_of(name)
        ]
        self.by_variable = set(names)
        if self.aim(changes) != aim:
            self.by_variable = set()
            for name in names:
                self.by_variable.add(name)
                if self.aim(changes) != aim:
                    self.by_variable.remove(name)
        return changes

    def _beside(
        self, target: LaunchReading, reached: LaunchReading | None
    ) -> LaunchFiles:
        """Return what no change of the file says."""
        asked = {name for _, name in self.wanted} | {"launch.options"}
        gaps = [
            gap
            for gap in self.launch.gaps
            if not gap.setting.startswith("--") and gap.setting not in asked
        ]
        mapped = RANK_MAP in self.launch.files
        if reached and self.is_the_job(reached):
            gaps = []
        if mapped:
            where = f"{RANK_MAP} says on which node and device each must run."
            reason = f"{self.source.path.name} starts ranks in their order; {where}"
            gaps.append(LaunchGap("placement", self.job.plan.placement, reason))
        gaps += self._left(target, reached, mapped=mapped)
        notes = [*self._environment()]
        if (start := self.source.num_devices) and not mapped:
            nodes = -(-start // self.job.devices_per_node)
            on = f"{start:,} devices, {nodes:,} node{'s' * (nodes > 1)}"
            notes.append(
                f"Start it on {on}: the file does not say how many, or takes that from "
                "outside."
            )
        return LaunchFiles(
            files={
                name: content
                for name, content in self.launch.files.items()
                if mapped and name in (RANK_MAP, "worker.sh", "hostfile")
            },
            gaps=tuple(gaps),
            notes=tuple(notes),
        )

    def _environment(self) -> Iterator[str]:
        """Yield what a variable must be that Megatron-LM checks, if it differs."""
        script = self.launch.files.get("launch.sh", "")
        asked = _CONNECTIONS.search(str(script))
        for now in _CONNECTIONS.finditer(self.source.text):
            if asked is not None and now[1] not in (None, asked[1]):
                value = asked[1] or "left unset"
                yield (
                    f"CUDA_DEVICE_MAX_CONNECTIONS must be {value} for this plan; "
                    f"{self.source.path.name} sets it to {now[1]}."
                )

    def is_the_job(self, reached: LaunchReading) -> bool:
        """Whether what was read is the job itself, not only what a file can say."""
        scenario = self.job.scenario
        software = scenario.software, scenario.execution
        asked = scenario.spec, scenario.training, software, self.job.plan
        return reached.said[:-1] == asked

    def _left(
        self, target: LaunchReading, reached: LaunchReading | None, *, mapped: bool
    ) -> Iterator[LaunchGap]:
        """Yield the settings that the changed file does not say."""
        for table in _TABLES:
            if reached and getattr(target, table) == getattr(reached, table):
                continue
            asked = target.tables[table]
            now = reached.tables[table] if reached else {}
            for name in {**asked, **now}:
                value = asked.get(name)
                if value != now.get(name) and not (mapped and name == "placement"):
                    setting = name if table == "plan" else f"{table}.{name}"
                    yield LaunchGap(
                        setting,
                        value,
                        f"{self.source.path.name} says {now.get(name)}, and no option "
                        "of it was found that changes that.",
                    )


def _built(network: Network, workload: Workload, plan: PlanSpec) -> Plan | PlanSpec:
    """Return the plan of some settings; the settings where it cannot be built."""
    try:
        return build_plan(network, workload, plan)
    except InputError:
        return plan
