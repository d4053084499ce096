"""Settings of trainers, as options of Megatron-LM: one way for all of them.

A configuration of such a trainer is a tree of settings, most of them fields of
Megatron's classes, each on or off: ``add_bias_linear: False`` is
``--disable-bias-linear``. What a trainer calls otherwise is in ``names.toml``, with
sources. What is off or empty was not asked for.

Configurations are trees: values that name others, files that build on others, the model
that a name stands for.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import resources
from typing import Any

import tomli

from estimators.models.library import model_names
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.composed import Launched
from nestsim.launch.formats.megatron.options import GivenOptions
from nestsim.launch.formats.megatron.reading import enough_devices, options_job
from nestsim.launch.read import ImportedJob, LaunchSource, OptionEffects
from nestsim.launch.shell import marks
from topologies.errors import InputError
from topologies.input_file import Value, parse_yaml

MOST_BYTES = 1_000_000
"""Longest file that another one builds on [byte]."""

_DEEPEST = 8
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_ALIKE: tuple[tuple[str, str], ...] = (
    *(("llama31", "llama3"), ("llama33", "llama3"), ("gpt1", "gpt31")),
    *((f"qwen2{size}b", f"qwen25{size}b") for size in ("05", "15", "7", "72")),
    *(("glmz1", "glm4"), ("deepseekmath", "deepseekllm")),
)
"""Beginnings of names of models -> those of models of the same architecture."""
_PLAIN = {"true": True, "false": False, "null": None, "none": None}
_LETTERS = re.compile(r"[^a-z0-9]")
_VARIANTS = re.compile(
    r"meta-|-instruct|-chat|-base$|-hf$|-it$|-v0\.\d|-\d{4}$|-fp8|-bf16|-pretrain|"
    r"config|modelprovider|provider|\.yaml$"
)


def parsed_table(text: str, expected: str) -> dict[str, Any]:
    """Return the table that a YAML text is.

    Raises
    ------
    InputError
        If it is none.
    """
    document = Value(parse_yaml(text, expected=expected))
    return {str(name): value for name, value in document.table().items()}


def inner(tree: Any, path: str) -> Any:
    """Return a part of a tree by its dotted path; None if it is not there."""
    for name in path.split(".") if path else ():
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def with_references(root: Mapping[str, Any], given: Mapping[str, str]) -> Any:
    """Return a tree whose values that name others are those.

    ``${a.b}`` is a value from the top, ``${.b}`` one beside, ``${multiply:x, y}`` a
    product (NeMo; ``mul`` of NeMo RL), ``${oc.select:a.b, x}`` a value or another one;
    ``${NAME:value}`` a variable and its value where nothing sets it (Primus).
    """

    def walk(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {key: walk(part, (*path, str(key))) for key, part in value.items()}
        for _ in range(_DEEPEST):
            reference = _REFERENCE.search(value) if isinstance(value, str) else None
            named = reference and _named(root, given, reference[1], path)
            if reference is None or named is None or isinstance(named, dict):
                break
            if len(str(named)) * len(value) > MOST_BYTES:
                raise InputError("has too long values", got=reference[0])
            whole = reference[0] == value
            value = named if whole else value.replace(reference[0], str(named))
        return value

    return walk(root, ())


def _named(
    root: Any, given: Mapping[str, str], words: str, path: tuple[str, ...]
) -> Any:
    """Return the value that a reference at some path names, if it is there."""
    name, colon, rest = words.partition(":")
    if name == "oc.select":
        place, _, other = rest.partition(",")
        selected = inner(root, place.strip())
        return plain_value(other) if selected is None else selected
    if name in ("multiply", "mul"):
        parts = [plain_value(part) for part in rest.split(",")]
        return math.prod(parts) if all(isinstance(p, int) for p in parts) else None
    if colon:
        return plain_value(given.get(name, rest))
    beside = ".".join((*path[:-1], words[1:])) if words.startswith(".") else words
    return inner(root, beside) or inner(root, words.partition(".")[2] or words)


def plain_value(word: Any) -> Any:
    """Return what a word is: a number, yes or no, nothing, or a text."""
    if not isinstance(word, str):
        return word
    plain = word.strip()
    if re.fullmatch(r"-?\d{1,15}", plain):
        return int(plain)
    return _PLAIN.get(plain.lower(), plain)


def needed_model(name: str) -> str:
    """Return the model of the library that a name stands for.

    Parameters
    ----------
    name
        Of a repository of the Hugging Face hub, a class or a file.

    Raises
    ------
    InputError
        If there is none.
    """
    last = name.rstrip("/").rpartition("/")[2].lower()
    models = {_LETTERS.sub("", model): model for model in model_names()}
    for plain in (_LETTERS.sub("", last), _LETTERS.sub("", _VARIANTS.sub("", last))):
        for old, new in (("", ""), *_ALIKE):
            alike = new + plain.removeprefix(old)
            if plain.startswith(old) and alike in models:
                return models[alike]
    raise Value(name or None, "--model").error(
        "nothing says what the model is",
        "a name that `nestsim models` lists, or a config.json",
    )


CORE = "megatron-args"
"""Name of the attributes of Megatron-LM themselves."""

_ATTRIBUTES = {name.replace("-", "_") for name in (*known.BY_NAME, *known.COMPOSED)}
_OPTION = re.compile(r"--([\w-]+)(?=:|$)")
_CONSTANT = re.compile(r"(?:torch|[A-Z]\w*)\.(?=\w+$)")
_CLOSE = 0.9
_FORMATS = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class Unread(str):
    """A value that only a run would tell: its expression. It does not hold."""

    def __bool__(self) -> bool:
        """Return no."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Renaming:
    """What a trainer calls the settings of Megatron-LM: a table of ``names.toml``."""

    title: str
    """What is read, in sentences."""
    marks: tuple[str, ...]
    """Patterns that all such files have."""
    preset: str = ""
    """Preset of the framework; empty for the one that the options tell."""
    parts: tuple[str, ...] = ("",)
    """Tables that hold settings, later ones over earlier."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Name there -> attribute of Megatron-LM."""
    words: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Attribute -> value -> the attributes that it sets."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Attribute -> the one without which it says nothing."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Attribute -> its value where nothing is said."""
    assumed: Mapping[str, str] = field(default_factory=dict)
    """Name there -> what is taken in its place."""
    functions: Mapping[str, Any] = field(default_factory=dict)
    """Function of another file -> what it returns."""
    off: Mapping[str, str] = field(default_factory=dict)
    """Attribute -> the option that turns it off."""
    listed: Sequence[str] = ()
    """Attributes whose values are one list, not several words."""
    silent: str = ""
    """Names that make no difference; ``*`` is any ending."""
    rl: Mapping[str, Any] = field(default_factory=dict)
    """What it says of a step of reinforcement learning, for `rl`."""

    def recognizes(self, source: LaunchSource) -> bool:
        """Whether a file looks like one of the trainer."""
        return all(re.search(mark, source.text, re.MULTILINE) for mark in self.marks)

    def leaves_out(self, name: str, option: str) -> bool:
        """Whether a name, an option if it were one, makes no difference."""
        pattern = "|".join(map(re.escape, self.silent.split())).replace(r"\*", r"\w*")
        silent = name in self.assumed or known.TABLE.is_harmless(option)
        return silent or name in self.of_rl or re.fullmatch(pattern, name) is not None

    @property
    def of_rl(self) -> frozenset[str]:
        """Names of what is said of a step, without their tables."""
        paths = (*self.rl.get("names", {}), *self.rl.get("assumed", {}))
        return frozenset(path.rpartition(".")[2] for path in paths)


def _renamings() -> dict[str, Renaming]:
    path = resources.files(__package__) / "names.toml"
    tables = tomli.loads(path.read_text("utf-8"))
    for option in known.BY_NAME.values():
        if option.attribute:
            is_off = option.is_flag and not option.words[""]
            table = "off" if is_off else "names"
            tables[CORE][table][option.attribute] = option.name
    return {name: Renaming(**table) for name, table in tables.items()}


RENAMINGS: Mapping[str, Renaming] = _renamings()
"""Name of a trainer -> its names."""

Values = dict[str, Any]
"""Attribute of Megatron-LM -> its value."""


def tree_job(
    source: LaunchSource,
    tree: Any,
    trainer: str,
    *,
    notes: Sequence[str] = (),
    complete: Callable[[LaunchSource, Values, list[str]], None] = lambda *_: None,
) -> ImportedJob:
    """Return the job that a tree of settings makes.

    Parameters
    ----------
    source
        What is read.
    tree
        Its settings.
    trainer
        Whose they are, a name of `RENAMINGS`.
    notes
        What was assumed on the way.
    complete
        Adds what follows from several settings, and notes.

    Raises
    ------
    InputError
        If a setting is not understood where that matters to the plan.
    """
    renaming, assumed = RENAMINGS[trainer], list(notes)
    values, names = _attributes(tree, renaming, assumed)
    for name, text in source.variables.items():
        attribute = renaming.names.get(name, name)
        if attribute in values or name in renaming.names:
            values[attribute] = plain_value(text)
    complete(source, values, assumed)
    preset = str(values.pop("preset", renaming.preset))
    count, node, nodes = (
        size if isinstance(size := values.pop(name, None), int) else 0
        for name in ("num_devices", "devices_per_node", "num_nodes")
    )
    count = source.num_devices or count or node * nodes
    if source.model is None and not values.get("num_layers"):
        source = replace(source, model=needed_model(str(values.get("model_path", ""))))
    options, words, unknown = _options(values, names, renaming)
    if unknown:
        listed = ", ".join(sorted(unknown))
        assumed.append(f"Nothing here stands for {listed}: taken to change nothing.")
    notes = list(dict.fromkeys(assumed))
    given = GivenOptions(values=options, assumptions=notes, called=words)
    try:
        if count and not source.num_devices:
            count = enough_devices(given, count, "configuration")
        launched = Launched(
            num_devices=count or None,
            preset=preset,
            model={"parallel_residual": True} if values.get("gpt_j_residual") else {},
        )
        fits = node and count % node == 0
        job = options_job(source, given, launched, node if fits else None)
    except InputError as error:
        error.where = _in_its_words(error.where, words)
        raise

    if preset != renaming.preset:
        # Megatron's options are no options of another framework.
        tables = {name: job.tables[name] for name in job.tables if name != "launch"}
        job = replace(job, tables={**tables, "software": {"preset": preset}})
    effects = OptionEffects(assumed=(*unknown, *filter(values.get, renaming.assumed)))
    sentences = tuple(_in_its_words(sentence, words) for sentence in job.assumptions)
    return replace(job, options=job.options + effects, assumptions=sentences)


def _in_its_words(sentence: str, names: Mapping[str, str]) -> str:
    """Return a sentence, or where something stands, by the names of the file."""
    option = _OPTION.match(sentence)
    if option is None or option[1] not in names:
        return sentence
    return names[option[1]] + sentence[option.end() :]


def _attributes(
    tree: Any, renaming: Renaming, notes: list[str]
) -> tuple[Values, dict[str, str]]:
    """Return the attributes that a tree sets, and what they are called there."""
    values, names = dict(renaming.usual), {}
    for part in renaming.parts:
        path = part.lstrip("?")
        last = path.rpartition(".")[2]
        for name, value in _leaves(inner(tree, path), last):
            attribute = _attribute(renaming, part, name)
            if attribute is None:
                continue
            if name in renaming.assumed and value not in (False, None):
                notes.append(f"{name}: {renaming.assumed[name]}")
            words = renaming.words.get(attribute, {})
            word = str(value).rpartition(".")[2].lower().strip("()")
            for key, setting in words.get(word, {attribute: value}).items():
                values[key], names[key] = setting, name
    for name, needed in renaming.needs.items():
        if not values.get(needed):
            values.pop(name, None)
    return values, names


def _attribute(renaming: Renaming, part: str, name: str) -> str | None:
    """Return the attribute of a name of a part; None if the part only may say it."""
    path = part.lstrip("?")
    last = path.rpartition(".")[2]
    full = f"{last}.{name}" if f"{last}.{name}" in renaming.names else name
    attribute = renaming.names.get(full, name)
    says = path == part or not full == name == attribute
    return attribute if says or name in _matters(renaming) else None


def _matters(renaming: Renaming) -> set[str]:
    """Return the names that count wherever they stand."""
    return _ATTRIBUTES | {*renaming.assumed, *renaming.usual}


def attribute_of(renaming: Renaming, path: str) -> str | None:
    """Return the attribute of a setting by its dotted path; None if it is none."""
    for part in renaming.parts:
        table, _, name = path.rpartition(".")
        if table == part.lstrip("?"):
            attribute = _attribute(renaming, part, name)
            if attribute is not None:
                return attribute
    return None


def _leaves(table: Any, last: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a table that are no tables, and of the tables of a list."""
    for name, value in table.items() if isinstance(table, dict) else ((last, table),):
        if isinstance(value, list) and (table is value or name.startswith("_")):
            for row in value:
                yield from _leaves(row, name)
        elif not isinstance(value, dict):
            yield str(name).replace("-", "_"), value


def _options(
    values: Values, names: Mapping[str, str], renaming: Renaming
) -> tuple[dict[str, tuple[str, ...]], dict[str, str], list[str]]:
    """Return the options that attributes are, their names there, and unknown ones."""
    core, listed = RENAMINGS[CORE], known.TABLE.names | known.TABLE.silent
    options: dict[str, tuple[str, ...]] = {}
    words: dict[str, str] = {}
    unknown = []
    if values.get("num_query_groups"):
        values.setdefault("group_query_attention", True)
    for name, value in values.items():
        option, setting = _option(name, value, listed)
        there = names.get(name, name)
        words |= {option: there} if name in names else {}
        if setting is None or setting is False or setting in ([], ""):
            continue
        if option in listed:
            if value == core.usual.get(name):
                continue
            several = isinstance(setting, list) and name not in core.listed
            parts = setting if several else [setting]
            options[option] = tuple(_word(part) for part in parts if part is not True)
        elif not any(
            table.leaves_out(called, option)
            for table in (renaming, core)
            for called in (name, there)
        ):
            close = [text.replace("-", "_") for text in (*listed, *renaming.names)]
            if renaming.preset and (hint := get_close_matches(there, close, 1, _CLOSE)):
                raise InputError(
                    "is no setting that is known, and may change the plan",
                    where=there,
                    got=value,
                    hint=f'did you mean "{hint[0]}"?',
                )
            unknown.append(there)
    return options, words, unknown


def _option(name: str, value: Any, listed: Collection[str]) -> tuple[str, Any]:
    """Return the option of an attribute, on or off where it has no value."""
    core = RENAMINGS[CORE]
    option = core.names.get(name, name).replace("_", "-")
    offs = (core.off.get(name, ""), f"no-{option}", f"disable-{option}")
    off = next((text for text in offs if text in listed), "")
    if name in core.off or (off and option not in listed):
        return off, value is False or value == 0
    flag = known.BY_NAME.get(option)
    is_flag = flag is not None and flag.is_flag and flag.words[""]
    return option, bool(value) if is_flag and value in (0, 1) else value


def _word(value: Any) -> str:
    """Return a word of an option; what only a run would tell as a script's unknowns."""
    if isinstance(value, Unread) and not _CONSTANT.match(value):
        return marks.unknown(value)
    plain = _CONSTANT.sub("", str(value))
    return _FORMATS.get(plain, plain)
