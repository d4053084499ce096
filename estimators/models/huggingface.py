"""Read an architecture from a local Hugging Face ``config.json``, by ``model_type``.

``model_types.toml`` has a table for each type:

``like``
    Another type, or a base, whose map holds but for what the table says.
``inside``
    Key of the object that holds all others: it is read as the type that it names, or
    as this one. A file without such an object holds them itself. A type without a table
    whose ``text_config`` names one that has is read like that one.
``fields``
    Word of `estimators.models.library` -> the key that says it, keys of which the first
    that a file has says it, or a `Lookup`.
``require``
    Key -> the values that it may have, if a file has it, or a `Requirement`. Others
    change the model in a way that is not modelled.
``computed``
    Functions of `estimators.models.config_keys` and `config_mixers` that find more
    words, with their parameters.
``nearest``, ``missing``, ``traced``
    Types that are not read: the type that is within 1 % of them, what they have that no
    model here has, and those of them that can be traced all the same.

Nothing is downloaded and nothing of the transformers library is needed. Keys that do
not change sizes or work (initialisation, token ids, rotary scaling) are ignored; keys
that would, and that the modules here cannot express, are refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from estimators.models.changed import (
    with_picture,
    with_sequence_length,
)
from estimators.models.config_file import ConfigFile, read_config
from estimators.models.config_keys import COMPUTED
from estimators.models.config_mixers import COMPUTED_MIXERS
from estimators.models.config_vision import read_tower
from estimators.models.library import build_spec, read_tables, resolve_table
from estimators.models.limits import MAX_LAYERS
from estimators.models.spec import (
    TransformerSpec,
)
from topologies.errors import InputError, has_packages, located
from topologies.input_file import file_in
from topologies.notices import notices

_KINDS: Mapping[str, Any] = MappingProxyType(get_type_hints(TransformerSpec))
_COMPUTED = {**COMPUTED, **COMPUTED_MIXERS}
_TRUTHS = frozenset({"true", "false"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Where a configuration says a word, and how."""

    key: str | Sequence[str] = ()
    """The key, or names of it of which the first that a file has counts."""

    value: Any = None
    """What the word always is, instead of a key."""

    default: Any = None
    """What the word is where the file has no key, or null. Without a default, numbers
    are 0 and truth values false; whole numbers must be there."""

    may_be_zero: bool = False
    """Whether 0 is a value, and null stands for it."""

    repeated: bool = False
    """Whether a list of values that are all alike stands for one of them."""

    words: Mapping[str, Any] | None = None
    """Value of the key -> the word, where they differ."""

    times: str = ""
    """Key of a size that the value is multiplied by."""

    plus: int = 0
    """What is added to the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Values that a key may have."""

    key: str | Sequence[str]
    """The key, or names of it of which the first that a file has counts."""

    allowed: Sequence[Any]
    """The values."""

    or_null: bool = False
    """Whether null is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMap:
    """How files of one type are read."""

    inside: str
    """Key of the object that holds all others; empty for the file itself."""

    fields: Mapping[str, Lookup]
    """Word -> where it stands."""

    require: Sequence[Requirement]
    """What files must not differ in."""

    computed: Mapping[str, Mapping[str, Any]]
    """Name of a function -> its parameters."""


def read_types() -> Mapping[str, Any]:
    """Return what ``model_types.toml`` holds."""
    return read_tables("model_types.toml")


_types = cache(read_types)


def model_types() -> tuple[str, ...]:
    """Return the types that are read."""
    return tuple(_types()["types"])


def nearest_type(model_type: str) -> str:
    """Return the type that is nearly another, or an empty text if none is.

    By its modules, or if its name is written otherwise. Names that are alike say
    nothing: a falcon_h1 with the modules of a falcon lacks a third of its parameters.
    """
    near: str = _types()["nearest"].get(model_type, "")
    alike = (name for name in model_types() if _plain(name) == _plain(model_type))
    return near or next(alike, "")


def missing_operator(model_type: str) -> str:
    """Return what a type has that no model here has, or an empty text if unknown."""
    operator: str = _types()["missing"].get(model_type, "")
    return operator


def may_be_traced(config: ConfigFile) -> bool:
    """Return whether no table reads a file, nor knows what keeps it from being traced.

    Its type's, or that of its language model.
    """
    kept = {
        name
        for name in (config.find("model_type"), config.find(_HELD))
        if isinstance(name, str) and missing_operator(name)
    }
    return not is_read(config) and kept <= set(_types()["traced"]["types"])


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


@cache
def key_map(model_type: str) -> KeyMap:
    """Return how a type of `model_types` is read."""
    return parse_key_map(_types(), model_type)


def parse_key_map(file: Mapping[str, Any], model_type: str) -> KeyMap:
    """Return how a type is read, from what `read_types` returns."""
    table = resolve_table({**file["bases"], **file["types"]}, model_type)

    def options(given: Any, main: str) -> dict[str, Any]:
        """Return a table of options; without one, the value is that of the main one."""
        table = dict(given) if isinstance(given, dict) else {main: given}
        for name in ("words", "allowed"):
            if isinstance(table.get(name), str):
                table[name] = file["words"][table[name]]
        return table

    return KeyMap(
        inside=table.get("inside", ""),
        fields={
            word: Lookup(**options(given, "key"))
            for word, given in table["fields"].items()
        },
        require=[
            Requirement(**{"key": key, **options(given, "allowed")})
            for key, given in table.get("require", {}).items()
        ],
        computed=table.get("computed", {}),
    )


def read_spec(config: ConfigFile, keys: KeyMap) -> TransformerSpec:
    """Return the architecture of a configuration.

    Raises
    ------
    InputError
        If a key is missing or has an unexpected value.
    """

    def read(values: ConfigFile) -> TransformerSpec:
        return build_spec(_words(values, keys))

    if keys.inside not in config.values:
        return config.read(read)
    return config.inside(keys.inside, read)


def is_read(config: ConfigFile) -> bool:
    """Return whether the type of a file has a table, or that of its language model."""
    return config.find("model_type") in model_types() or bool(_held_type(config))


def _held_type(config: ConfigFile) -> str:
    """Return the type of a file's language model, if it has a table; else ""."""
    held, outer = config.find(_HELD), config.find("model_type")
    is_of_several = isinstance(outer, str) and not missing_operator(outer)
    return str(held) if is_of_several and held in model_types() else ""


def _opened(config: ConfigFile) -> tuple[ConfigFile, KeyMap]:
    """Return a file, and how it is read, or the object in it that holds all others.

    Whether embeddings are tied stands beside the object, or in it.
    """
    held = _held_type(config)
    if held and config.find("model_type") not in model_types():
        keys = replace(key_map(held), inside=_TEXT)
    else:
        keys = key_map(_known_type(config))
    inner = config.values.get(keys.inside)
    if not isinstance(inner, dict):
        return config, keys
    tied = "tie_word_embeddings"
    if isinstance(config.values.get(tied), bool):
        inner = {**inner, tied: config.values[tied]}
        config = ConfigFile({**config.values, keys.inside: inner})
    if "model_type" not in inner:
        return config, keys
    with located(keys.inside):
        like = key_map(_known_type(ConfigFile(inner)))
    return config, replace(like, inside=keys.inside)


def _known_type(config: ConfigFile) -> str:
    """Return the type of a file.

    Raises
    ------
    InputError
        If it has none, or one that is not read.
    """
    model_type: str = config.value(str, "model_type")
    config.problems.refuse()
    if model_type not in model_types():
        raise InputError(
            "model type is not supported",
            where="model_type",
            got=model_type,
            expected="one of " + ", ".join(model_types()),
            hint=_hint(model_type, config.find(_HELD)),
        )
    return model_type


def _words(config: ConfigFile, keys: KeyMap) -> dict[str, Any]:
    """Return what a file says, in words."""
    for requirement in keys.require:
        null = (None,) if requirement.or_null else ()
        key = _spelled(config, requirement.key)
        config.require(key, (*null, *requirement.allowed))
    words = {word: _word(config, word, keys.fields[word]) for word in keys.fields}
    if words.get("num_layers", 0) <= MAX_LAYERS:  # more are refused anyway
        for name, parameters in keys.computed.items():
            words |= _COMPUTED[name](config, words, **parameters)
    return words


def _word(config: ConfigFile, word: str, lookup: Lookup) -> Any:
    """Return what a file has for a word."""
    if lookup.value is not None:
        return lookup.value
    key, default = _spelled(config, lookup.key), lookup.default
    if lookup.words is not None:
        return _translated(config, key, default, lookup.words)
    kind = _KINDS.get(word, int)
    value = config.value(
        kind, key, default, may_be_zero=lookup.may_be_zero, repeated=lookup.repeated
    )
    if lookup.times:
        value *= config.value(int, lookup.times)
    return value + lookup.plus if lookup.plus else value


def _translated(
    config: ConfigFile, key: str, default: Any, words: Mapping[str, Any]
) -> Any:
    """Return what stands for the value of a key in a table of words."""
    if words.keys() == _TRUTHS:
        return words[json.dumps(config.value(bool, key, default))]
    if default is not None and config.find(key) is None:
        return words[default]
    known = config.require(key, tuple(words))
    return words[config.find(key, default) if known else next(iter(words))]


def _spelled(config: ConfigFile, key: str | Sequence[str]) -> str:
    return key if isinstance(key, str) else config.spelled(*key)


_TEXT = "text_config"
"""Key of the language model in a file of several models."""

_HELD = f"{_TEXT}.model_type"

_TOWER = "vision_config"
"""Key of the tower that sees pictures."""

EXTRA = "nestsim[transformers]"
"""What installs transformers beside nestsim."""

_MOST = 10**6
"""Largest size of a tower that is counted."""


def load_huggingface(
    path: Path,
    *,
    sequence_length: int | None = None,
    images: int = 0,
    image_pixels: Sequence[int] = (),
    frames: int = 0,
) -> TransformerSpec:
    """Read a ``config.json``.

    Parameters
    ----------
    path
        The file, or the folder that holds it.
    sequence_length
        Tokens per training sequence; by default the longest that the configuration
        allows.
    images, image_pixels
        Pictures, or tiles of them, of each sequence, whose tokens are among its own,
        and their height and width [pixel]; without pictures the vision tower is left
        out. Without `images`, the size of what a diffusion transformer makes.
    frames
        Pictures of a film that a diffusion transformer makes.

    Raises
    ------
    InputError
        If the file cannot be read or is not JSON, the ``model_type`` is not known, or
        a key is missing or has an unexpected value. The message names file and key.
    """
    file = file_in(path, "config.json")
    with located(str(file), ": "):
        config = read_config(file)
        spec = read_spec(*_opened(config))
        if sentence := _left_out(config, seen=images > 0):
            notices().remark(f"note: {file.name}: {sentence}")
        if sequence_length is not None:
            spec = with_sequence_length(spec, sequence_length)
        if spec.diffusion is not None or frames:
            return with_picture(spec, image_pixels, frames)
        if image_pixels and not images:
            raise InputError(
                "belongs to pictures",
                where="image_pixels",
                got=list(image_pixels),
                expected="images beside it, or to be left out",
            )
        if images:
            tower = read_tower(config, _towers(), spec, images, image_pixels)
            spec = replace(spec, vision=tower)
    return spec


@cache
def _towers() -> Mapping[str, Any]:
    """Return what is said of vision towers, by type."""
    tables = _types()["vision"]
    return {name: resolve_table(tables, name) for name in tables}


def parts_left_out(path: Path) -> str:
    """Return what of a ``config.json`` is left out, as a sentence; else nothing.

    Raises
    ------
    InputError
        If the file cannot be read or is not JSON.
    """
    return _left_out(read_config(file_in(path, "config.json")))


def _hint(model_type: str, held: Any) -> str:
    """Say what comes nearest to a type that is not read, and holds another, or None."""
    near, operator = nearest_type(model_type), missing_operator(model_type)
    if not operator and isinstance(held, str):
        operator = missing_operator(held)
    start = f"it has {operator}, which no model here has" if operator else ""
    if operator and not near:
        return f"{start}, and no type that is read comes within 1 % of it"
    start += "; " if start else ""
    start += f'the nearest that is read is "{near}": ' if near else ""
    start += "spell the architecture out under [model], with its family and sizes"
    if not has_packages("transformers", "torch"):
        start += f", or install {EXTRA}, of whose modules dense types are traced"
    return start


def _left_out(config: ConfigFile, *, seen: bool = False) -> str:
    """Return what of a configuration no model here has, as a sentence; else nothing.

    Of a file of several models the language model alone is read, and the tower that
    sees if there are pictures.
    """
    others = [
        key
        for key, part in config.values.items()
        if key.endswith("_config") and isinstance(part, dict) and "model_type" in part
    ]
    others = [key for key in others if key not in {_TEXT, _TOWER}]
    sentences = ["" if seen else _tower_left_out(config.values.get(_TOWER))]
    if others and _TEXT in config.values:
        verb = "is" if len(others) == 1 else "are"
        sentences.append(f"{', '.join(others)} {verb} left out.")
    return " ".join(filter(None, sentences))


def _tower_left_out(tower: Any) -> str:
    """Say what of a vision tower is left out; nothing if there is none.

    Its blocks are those of a ViT: ``4 h^2 + 2 h f`` weights, ``9 h + f`` biases and
    norms.
    """
    if not isinstance(tower, dict):
        return ""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size")
    sizes = [tower.get(name) for name in names]
    if not all(isinstance(size, int) and 0 < size < _MOST for size in sizes):
        return f"The vision tower ({_TOWER}) is left out, and what pictures cost."
    layers, h, f = (int(size or 0) for size in sizes)
    weights = layers * (4 * h * h + 2 * h * f + 9 * h + f)
    return (
        f"The vision tower ({_TOWER}: {layers} blocks, {weights / 1e6:,.0f} "
        "million parameters in them) is left out, and what pictures cost."
    )
