"""Steps of reinforcement learning that trainers are configured for, as the table [rl].

Where a trainer says what of a step is in ``names.toml``, under ``rl``: its paths are
settings here, of which the table follows. How long responses are no configuration
says, only how long they may be: that is taken, unless ``--set`` gives what a run had.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from estimators.generation.engine import FORMATS
from estimators.generation.lengths import DISTRIBUTIONS
from estimators.models.limits import MAX_SEQUENCE
from nestsim.launch.formats.trainers.renaming import (
    RENAMINGS,
    Renaming,
    Values,
    attribute_of,
    needed_model,
    plain_value,
    tree_job,
)
from nestsim.launch.read import ImportedJob, LaunchSource, OptionEffects, Settings
from nestsim.launch.shell.marks import known_word
from nestsim.scenario.rl import MOST_STALENESS, EngineSpec, RlSpec
from topologies.errors import InputError
from topologies.input_file import Value

ASSUMED_PROMPT = 128
"""Tokens of a prompt that are assumed where nothing says how many."""

_MOST = 10**9
_POOL = frozenset({"rollout_devices", "rollout_node"})
_WITH_CRITIC = frozenset({"gae", "ppo"})
_FORMATS: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_OF_STEP = frozenset(known.name for known in fields(RlSpec)) - {"engine"}
_OF_ENGINE = frozenset(known.name for known in fields(EngineSpec))
_SPLIT_EXPERTS = "The engine's experts are split as its other layers are."

Tree = Mapping[str, Any]
"""Settings of a trainer, table in table."""

Complete = Callable[[LaunchSource, Values, list[str]], None]


@dataclass(slots=True, kw_only=True)
class StepSettings:
    """What a configuration says of a step, by the names of ``names.toml``."""

    values: Settings
    """Settings that are said, and those of the trainer where nothing is."""

    paths: Mapping[str, str]
    """Setting -> what the file calls it."""

    names: Mapping[str, str]
    """What files call a setting -> the setting."""

    given: Tree = field(default_factory=dict)
    """Settings of [rl] and [rl.engine] that the user gave beside the file."""

    notes: list[str] = field(default_factory=list)
    """What is assumed, a sentence each."""

    @classmethod
    def of(cls, source: LaunchSource, tree: Tree, renaming: Renaming) -> "StepSettings":
        """Return what a tree says."""
        names = renaming.rl.get("names", {})
        values, paths = dict(renaming.rl.get("usual", {})), {}
        for path, value in leaves(tree):
            if path in names and value is not None:
                values[names[path]] = value
                paths[names[path]] = path
        known = _OF_STEP | _OF_ENGINE
        given = {
            name: _plain(text)
            for name, text in source.variables.items()
            if name in known
        }
        return cls(values=values, paths=paths, names=names, given=given)

    def whole(self, name: str, default: int = 0, *, least: int = 1) -> int:
        """Return a whole number that is said.

        Raises
        ------
        InputError
            If it is none, or only a run would tell it.
        """
        value = self._known(name)
        if value is None:
            return default
        return Value(value, self._where(name)).whole(least=least, most=_MOST)

    def number(self, name: str) -> float | None:
        """Return a number that is said; None if nothing says it."""
        value = self._known(name)
        if isinstance(value, str):
            value = _plain(value)
        return None if value is None else Value(value, self._where(name)).number()

    def holds(self, *names: str) -> bool:
        """Whether one of some settings is on, or is not zero."""
        return any(_is_on(self._known(name)) for name in names)

    def word(self, name: str) -> str:
        """Return a word that is said in small letters; empty if nothing says it."""
        value = self._known(name)
        return "" if value is None else str(value).lower().strip("\"'")

    def _known(self, name: str) -> object:
        value = self.values.get(name)
        if isinstance(value, str):
            known_word(value, self._where(name))
        return value

    def _where(self, name: str) -> str:
        return self.paths.get(name, name)

    def table(self) -> Settings:
        """Return the table [rl], without what a scenario has where it is silent."""
        prompts, samples = self.whole("prompts"), self.whole("samples", 1)
        table: Settings = {"prompts": prompts, "samples": samples}
        table |= self._lengths()
        if self.word("estimator") in _WITH_CRITIC and self.values.get("has_critic", 1):
            table |= self._critic()
        elif self.word("estimator") == "remax":
            self.notes.append("The response without sampling of ReMax is left out.")
        table["reference"] = self.holds("kl_loss", "kl_reward")
        skips = self.holds("engine_log_probs") and not self.holds("trainer_log_probs")
        table["old_log_probs"] = not skips
        table["mini_batches"] = self._updates(prompts, prompts * samples)
        table |= self._pools()
        table |= {name: self.given[name] for name in self.given if name in _OF_STEP}
        engine = self._engine()
        engine |= {name: self.given[name] for name in self.given if name in _OF_ENGINE}
        return {**_changed(table, RlSpec), "engine": _changed(engine, EngineSpec)}

    @property
    def sequence_length(self) -> int:
        """Tokens of the longest prompt with its response."""
        named = self.whole("sequence_length")
        if named:
            return named
        longest = self.whole("longest_response")
        return self.prompt_length + longest if longest else 0

    @property
    def prompt_length(self) -> int:
        """Tokens of a prompt."""
        given = self.given.get("prompt_length") or self.whole("prompt_length")
        if given:
            return Value(given, "prompt_length").whole(least=1, most=MAX_SEQUENCE)
        room = self.whole("sequence_length", 2 * ASSUMED_PROMPT)
        return min(ASSUMED_PROMPT, max(room // 2, 1))

    @property
    def rollout_devices(self) -> int:
        """Devices of the rollout alone; 0 where it shares the trainer's."""
        if self._is_colocated:
            return 0
        if "rollout_devices" in self.values:
            return self.whole("rollout_devices")
        node = self.whole("rollout_node", self.whole("node"))
        if not node:
            raise InputError(
                "nothing says how many devices the rollout has",
                where=next(
                    (path for path, name in self.names.items() if name in _POOL), ""
                ),
                expected="a number of devices, or phases that share all of them",
            )
        return node * self.whole("rollout_nodes", 1)

    @property
    def _is_colocated(self) -> bool:
        return self.holds("colocated")

    def _lengths(self) -> Settings:
        """Return how long prompts and responses are, and note what is assumed of it."""
        prompt, sequence = self.prompt_length, self.sequence_length
        room = max(sequence - prompt, 1)
        cap = min(self.whole("longest_response", room), room)
        table: Settings = {"prompt_length": prompt}
        open_words = []
        if "prompt_length" not in self.given:
            longest = (
                "the longest that is kept"
                if self.paths.get("prompt_length")
                else "assumed"
            )
            open_words.append(f"Prompts have {prompt:,} tokens, {longest}")
        if not {"response_length", "response_length_file"} & self.given.keys():
            table["response_length"] = cap
            open_words.append(f"all responses {cap:,}, as many as they may have")
        if "response_length_sigma" in self.given:
            table["response_lengths"] = DISTRIBUTIONS[1]
        if cap < room:
            table["response_length_cap"] = cap
        if open_words:
            sentence = ", ".join(open_words)
            self.notes.append(
                f"{sentence[0].upper()}{sentence[1:]} (--set prompt_length=.., "
                "response_length=.., response_length_sigma=..)."
            )
        return table

    def set_microbatch(self, values: Values, table: Tree | None) -> None:
        """Set the rows of a microbatch that is given in tokens or in responses.

        A row is as long as a sequence may be; responses are packed into rows. Tokens
        are those of each rank of context parallelism.
        """
        row, ranks, responses = (
            Value(values.get(name) or 1, name).whole(least=1, most=_MOST)
            for name in ("seq_length", "context_parallel_size", "micro_batch_size")
        )
        if self.holds("dynamic_batch"):
            tokens = self.whole("batch_tokens", row) * ranks
            values["micro_batch_size"] = max(tokens // row, 1)
        elif self.holds("batch_of_responses") and table is not None:
            room = row - self.prompt_length
            usual = table.get("response_length", row)
            response = Value(usual, "response_length").number()
            length = self.prompt_length + min(response, max(room, 0))
            values["micro_batch_size"] = max(math.ceil(responses * length / row), 1)

    def _critic(self) -> Settings:
        table: Settings = {"algorithm": "ppo"}
        path = str(self.values.get("critic") or "")
        actor = str(self.values.get("model_path") or "")
        if path and actor and path != actor:
            table["critic"] = needed_model(path)
        return table

    def _updates(self, prompts: int, responses: int) -> int:
        """Return the optimizer steps that a batch is divided into."""
        if self.whole("epochs", 1) > 1:
            self.notes.append(
                f"A batch is trained on once, not {self.whole('epochs')} times."
            )
        if "updates" in self.values:
            return self.whole("updates")
        of_prompts = self.whole("update_prompts", prompts)
        of_responses = self.whole("update_responses", responses)
        if "update_prompts" in self.values:
            return max(math.ceil(prompts / of_prompts), 1)
        return max(math.ceil(responses / of_responses), 1)

    def _pools(self) -> Settings:
        """Return which devices do what, and when."""
        if self._is_colocated:
            leaves_devices = self.holds("offload", "offload_all")
            if "keeps_states" in self.values and not leaves_devices:
                return {"offload": "never"}
            return {"offload": "always"}
        table: Settings = {
            "placement": "split",
            "rollout_devices": self.rollout_devices,
        }
        lag = self.number("lag") or 0.0
        if "runs_ahead" in self.values and not self.holds("runs_ahead"):
            lag = 0.0
        if 0.0 < lag <= 1.0 and self.values.get("is_asynchronous") is None:
            table["schedule"] = "one-step-off"
        elif lag > 0.0:
            staleness = min(max(math.ceil(lag), 1), MOST_STALENESS)
            table |= {"schedule": "asynchronous", "staleness": staleness}
            if staleness != lag:
                self.notes.append(f"The rollout is up to {staleness} batches ahead.")
        return table

    def _engine(self) -> Settings:
        """Return how an engine is set up."""
        table = self._engine_sizes()
        if memory := self.number("memory_utilisation"):
            table["memory_utilisation"] = memory
        if "max_sequences" in self.values:
            table["max_sequences"] = self.whole("max_sequences")
        word = self.word("precision")
        precision = _FORMATS.get(word, word)
        if precision in FORMATS:
            table["precision"] = precision
        elif precision not in {"", "auto", "none"}:
            self.notes.append(f"The engine has weights in bf16, not in {word}.")
        return table

    def _engine_sizes(self) -> Settings:
        devices, data = self.whole("engine_devices", 1), self.whole("engine_data", 1)
        experts = self.whole("engine_experts", 1)
        if self.holds("attention_data") and devices % data == 0:
            # Of an engine's devices, so many groups have responses of their own.
            ranks, devices = data, devices // data
        else:
            is_wider = experts > devices and experts % devices == 0
            ranks = experts // devices if is_wider else 1
            if experts > 1 and not is_wider:
                self.notes.append(_SPLIT_EXPERTS)
        return {"tensor_parallel_size": devices, "expert_parallel_size": ranks}


def rl_job(
    source: LaunchSource,
    tree: Tree,
    trainer: str,
    *,
    notes: Sequence[str] = (),
    program: Tree | None = None,
    complete: Complete = lambda *_: None,
) -> ImportedJob:
    """Return the job that a tree of settings makes, with its table [rl].

    Parameters
    ----------
    source
        What is read. Variables of names of [rl] and [rl.engine] are these settings.
    tree
        Its settings.
    trainer
        Whose they are, a name of `RENAMINGS`.
    notes
        What was assumed on the way.
    program
        Settings of the step that follow from what is started.
    complete
        As `renaming.tree_job` takes it.

    Returns
    -------
    ImportedJob
        Without [rl] where nothing says how many prompts a step has.

    Raises
    ------
    InputError
        If a setting is not understood where that matters.
    """
    renaming = RENAMINGS[trainer]
    step = StepSettings.of(source, tree, renaming)
    step.values |= program or {}
    table = step.table() if step.values.get("prompts") else None
    rollout = 0 if table is None else step.rollout_devices
    if source.num_devices is not None:
        source = replace(source, num_devices=max(source.num_devices - rollout, 1))

    def with_batch(given: LaunchSource, values: Values, words: list[str]) -> None:
        if table is not None:
            prompts, samples, updates = (
                Value(table.get(name, 1), name).whole(least=1, most=_MOST)
                for name in ("prompts", "samples", "mini_batches")
            )
            values["global_batch_size"] = max(prompts * samples // updates, 1)
            values["seq_length"] = step.sequence_length or values.get("seq_length")
        complete(given, values, words)
        step.set_microbatch(values, table)

    if table is None:
        return tree_job(source, tree, trainer, notes=notes, complete=with_batch)
    noted = _noted(tree, renaming)
    sentences = (*notes, *step.notes, *dict.fromkeys(noted.values()))
    job = tree_job(source, tree, trainer, notes=sentences, complete=with_batch)
    job = _with_unknown(job, tree, renaming, [*step.paths.values()], [*noted])
    tables = {**job.tables, "rl": table}
    rank = step.whole("lora_rank", least=0)
    is_dtensor = tables["software"]["preset"] == "torchtitan"
    if rank and is_dtensor and step.values.get("has_lora"):
        sentences = (*job.assumptions, "LoRA: All weights are trained.")
        job = replace(job, assumptions=sentences)
    elif rank and step.values.get("has_lora") is not False:
        adapter = {"adapter": "lora", "adapter_rank": rank}
        tables["training"] = {**tables["training"], **adapter}
    total = None if job.num_devices is None else job.num_devices + rollout
    node = job.devices_per_node
    fits = total is not None and node is not None and total % node == 0
    return replace(
        job, tables=tables, num_devices=total, devices_per_node=node if fits else None
    )


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of a tree of tables by their dotted paths."""
    for name, value in tree.items():
        here = f"{path}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{here}.")
        else:
            yield here, value


def _noted(tree: Tree, renaming: Renaming) -> dict[str, str]:
    """Return what is taken in place of settings that matter, by their paths."""
    assumed = renaming.rl.get("assumed", {})
    return {
        path: f"{path}: {assumed[path]}"
        for path, value in leaves(tree)
        if path in assumed and _is_on(value) and (value is True or value != 1)
    }


def _with_unknown(
    job: ImportedJob,
    tree: Tree,
    renaming: Renaming,
    read: Sequence[str],
    noted: Sequence[str],
) -> ImportedJob:
    """Return a job that names the settings that nothing is known of."""
    silent = renaming.rl.get("silent", "").split()
    known = {*read, *renaming.rl.get("assumed", {}), *renaming.rl.get("names", {})}
    unknown = [
        path
        for path, value in leaves(tree)
        if value not in (None, "")
        and path not in known
        and attribute_of(renaming, path) is None
        and not any(fnmatchcase(path, pattern) for pattern in silent)
    ]
    sentences = job.assumptions
    if unknown:
        listed = ", ".join(unknown)
        sentences += (f"Nothing here stands for {listed}: taken to change nothing.",)
    options = job.options
    there = {*options.read, *options.assumed, *options.without_effect}

    def new(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            path
            for path in dict.fromkeys(paths)
            if path not in there and path.rpartition(".")[2] not in there
        )

    effects = OptionEffects(read=new(read), assumed=(*new(noted), *unknown))
    return replace(job, assumptions=sentences, options=options + effects)


def _changed(table: Tree, form: type) -> Settings:
    """Return the settings of a table that are not those of a silent scenario."""
    usual = {known.name: known.default for known in fields(form)}
    return {name: value for name, value in table.items() if usual[name] != value}


def _is_on(value: object) -> bool:
    if isinstance(value, str):
        value = _plain(value)
    return bool(value) and value != "disabled"


def _plain(text: object) -> object:
    """Return a number that a word is, where it is one."""
    value = plain_value(text)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
