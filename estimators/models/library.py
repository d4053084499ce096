"""Published models by name, and Megatron's words in which architectures are written.

An architecture in Megatron's words, some of which stand for many blocks at once.

A scenario's ``[model]``, the library and configurations of the Hugging Face hub all end
in these words. They are fields of `TransformerSpec`, and:

``encoder_num_layers``, ``decoder_num_layers``
    Blocks of an encoder, and of a decoder that reads it; by default as many.
``hybrid_override_pattern``
    One letter of `HYBRID_KINDS` for each block of a hybrid of Mamba-2.
``moe_layer_freq``
    Which blocks have experts: see `pattern_by_frequency`.
``window_attn_skip_freq``
    Which blocks have no window, N for every Nth; or a 1 for each block with a window
    and a 0 for each without.
``linear_attention_freq``
    Which blocks have linear attention: all but every ``N``th for a number N, Megatron's
    meaning; or a 1 for each such block and a 0 for each other. It is a delta net, or
    what ``linear_attention`` names: a key of `estimators.models.families.MIXERS`.
``dsa_indexer_layers``
    A 1 for each block whose indexer chooses keys, and a 0 for each that attends to what
    the one before it chose; left out, all blocks have one.
``no_rope_freq``
    Which blocks have no positions, N for every Nth; or a 1 for each such block and a 0
    for each other. The others attend within chunks, if there is an
    ``attention_chunk_size``.

What a description leaves out, its family decides (``families.toml``).

Named models, each with the place where its architecture was published.

The library is TOML beside this module, a file for related families. A table is a model,
or, with ``models`` inside, a series of models with words in common. It holds

``source``
    Publication of the model, and what was chosen where it is silent.
``note``
    What is to be added to that for this model.
``like``
    Name of a model or series, of any file, whose words hold where the table has none.
    A model of a series is like the series unless it says otherwise.
``columns``, ``sizes``
    Names of words, and their values in that order: the columns and rows of a paper's
    table. A model that is nothing but ``sizes`` is their list.

and Megatron's words below. ``position`` is that of a file among the others.

Parameter counts that follow from these entries are tested against the published
ones to the unit, where one was published to the unit.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, NamedTuple

import tomli

from estimators.models.changed import (
    with_sequence_length,
    with_windows,
)
from estimators.models.diffusion import DIFFUSION_FAMILY, diffusion_words
from estimators.models.limits import MAX_LAYERS
from estimators.models.spec import (
    DENSE_BLOCK,
    EXPERT_BLOCK,
    TransformerSpec,
    encoder_decoder_pattern,
)
from topologies.errors import InputError

_FOLDER = resources.files("estimators") / "models"
_SUFFIX = ".toml"


def read_tables(*place: str) -> dict[str, Any]:
    """Return the tables of a file, whose place is relative to this module's folder."""
    return tomli.loads(_FOLDER.joinpath(*place).read_text(encoding="utf-8"))


def table_files(folder: str) -> list[str]:
    """Return the names of a folder's files of tables."""
    names = (file.name for file in (_FOLDER / folder).iterdir())
    return [name for name in names if name.endswith(_SUFFIX)]


def resolve_table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table with what it leaves out taken from the one that it is ``like``.

    Tables inside it are taken entry by entry.
    """
    table = dict(tables[name])
    if "like" not in table:
        return table
    base = resolve_table(tables, table.pop("like"))
    for key, value in table.items():
        inner = isinstance(value, dict) and key in base
        base[key] = base[key] | value if inner else value
    return base


HYBRID_KINDS: Mapping[str, str] = MappingProxyType(
    {"M": "mamba", "*": "attention", "-": "dense", "E": "experts"}
)
"""Letter of ``hybrid_override_pattern`` -> kind of block."""

_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")
_EXAMPLES = 'a number, a list, or "[0]*3+[1]*58"'


@cache
def family_words() -> Mapping[str, Mapping[str, Any]]:
    """Return what published models of each family have."""
    tables = read_tables("families.toml")
    return {family: resolve_table(tables, family) for family in tables}


def build_spec(words: Mapping[str, Any]) -> TransformerSpec:
    """Return the architecture that words describe.

    Parameters
    ----------
    words
        The family, and any other words. A vision transformer's sequence is, by default,
        an image's patches and its class token.

    Raises
    ------
    InputError
        If a value is not possible, or words do not go together. The message names the
        word.
    """
    given = {**family_words()[words["family"]], **words}
    if given["family"] == DIFFUSION_FAMILY:
        return TransformerSpec(**diffusion_words(given))
    if given["family"] == "vit":
        patches = given["image_size"] // given["patch_size"]
        given.setdefault("sequence_length", patches**2 + 1)
    window = given.pop("window_size", 0)
    skip = given.pop("window_attn_skip_freq", 0)
    heads = given.pop("window_num_attention_heads", 0)
    given = _with_mixers(_with_blocks(given))
    spec = TransformerSpec(**given)
    if not window and skip:
        raise InputError(
            "belongs to sliding windows",
            where="window_attn_skip_freq",
            got=skip,
            expected="0, or window_size beside it",
        )
    spec = with_windows(spec, window, skip) if window else spec
    return replace(spec, window_num_attention_heads=heads) if heads else spec


def _with_blocks(given: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a specification in place of words for many blocks.

    More blocks than there may be have no pattern: the specification refuses them.
    """
    letters = given.pop("hybrid_override_pattern", None)
    freq, bare = given.pop("moe_layer_freq", None), given.pop("no_rope_freq", 0)
    encoder = given.pop("encoder_num_layers", 0)
    decoder = given.pop("decoder_num_layers", 0) or encoder
    if encoder:
        given["num_layers"] = encoder + decoder
    elif letters is not None:
        given["num_layers"] = given.get("num_layers") or len(letters)
    num_layers = given["num_layers"]
    if num_layers > MAX_LAYERS:
        return given
    if encoder:
        pattern = encoder_decoder_pattern(encoder, decoder)
    elif given["family"] == "mamba" or letters is not None:
        pattern = _hybrid_pattern(given["family"], letters, num_layers)
    else:
        pattern = pattern_by_frequency(freq, num_layers)
        if bare:
            mixer = "chunked" if given.get("attention_chunk_size") else "attention"
            kind = EXPERT_BLOCK if given.get("num_moe_experts") else DENSE_BLOCK
            pattern = _unturned(pattern or (kind,) * num_layers, bare, mixer)
            pattern = () if set(pattern) == {kind} else pattern
    return {**given, "block_pattern": pattern} if pattern else given


def hybrid_pattern(letters: str) -> tuple[str, ...]:
    """Return the kind of each block; letters must be those of `HYBRID_KINDS`."""
    return tuple(HYBRID_KINDS[letter] for letter in letters)


def _hybrid_pattern(
    family: str, letters: str | None, num_layers: int
) -> tuple[str, ...]:
    """Return the kind of each block of a hybrid; without letters, all are Mamba-2."""
    if family != "mamba":
        raise InputError(
            "belongs to hybrids of Mamba-2",
            where="hybrid_override_pattern",
            got=letters,
            expected='family = "mamba" beside it, or to be left out',
        )
    if letters is None:
        return ("mamba",) * num_layers
    if len(letters) != num_layers or set(letters) - set(HYBRID_KINDS):
        raise InputError(
            "is not one letter for each block",
            where="hybrid_override_pattern",
            got=letters,
            expected=f"num_layers = {num_layers} letters of "
            + ", ".join(f'"{letter}"' for letter in HYBRID_KINDS),
        )
    return hybrid_pattern(letters)


def _unturned(
    kinds: Sequence[str], bare: int | Sequence[int], mixer: str
) -> tuple[str, ...]:
    """Return kinds of blocks of which some attend without positions.

    Parameters
    ----------
    kinds
        Kind of each block, all with attention.
    bare
        The word ``no_rope_freq``.
    mixer
        How all others attend.
    """
    if isinstance(bare, int):
        bare = [int((index + 1) % bare == 0) for index in range(len(kinds))]
    mixers = [("unturned" if mark else mixer) for mark in bare]
    return tuple(
        kind.replace("attention", mixer)
        for kind, mixer in zip(kinds, mixers, strict=True)
    )


def _with_mixers(given: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a specification in place of words for what attention is."""
    freq = given.pop("linear_attention_freq", None)
    mixer = given.pop("linear_attention", "gated_delta")
    indexed = given.pop("dsa_indexer_layers", None)
    depth = given["num_layers"]
    if depth > MAX_LAYERS:
        return given
    if isinstance(freq, int):
        if freq < 1:
            raise InputError(
                "is no number of blocks",
                where="linear_attention_freq",
                got=freq,
                expected="1, 2, ..., or a 0 or 1 for each block",
            )
        freq = [int((index + 1) % freq > 0) for index in range(depth)]
    if freq is not None:
        given = _with_mixer(given, mixer, "linear_attention_freq", freq)
    if given.get("dsa_indexer_topk"):
        if indexed is not None:
            reuses = [1 - mark for mark in indexed]
            given = _with_mixer(given, "reusing", "dsa_indexer_layers", reuses)
        given = _with_mixer(given, "sparse", "dsa_indexer_layers", [1] * depth)
    return given


def _with_mixer(
    given: dict[str, Any], mixer: str, word: str, marks: Sequence[int]
) -> dict[str, Any]:
    """Return fields in which another mixer stands for attention in some blocks.

    Parameters
    ----------
    given
        The architecture with a pattern of blocks, or without one where they are alike.
    mixer
        What stands for attention.
    word, marks
        What says so, and a 1 for each such block.
    """
    kind = EXPERT_BLOCK if given.get("num_moe_experts") else DENSE_BLOCK
    kinds = given.get("block_pattern") or (kind,) * given["num_layers"]
    if len(marks) != len(kinds) or set(marks) - {0, 1}:
        raise InputError(
            "is not a 0 or 1 for each block",
            where=word,
            got=marks,
            expected=f"num_layers = {len(kinds)} of 0 and 1",
        )
    pattern = tuple(
        kind.replace("attention", mixer) if mark else kind
        for kind, mark in zip(kinds, marks, strict=True)
    )
    return {**given, "block_pattern": pattern}


def pattern_by_frequency(
    freq: int | list[int] | str | None, num_layers: int
) -> tuple[str, ...]:
    """Return the kind of each block; empty where all have experts.

    Parameters
    ----------
    freq
        ``N`` for experts in the first of each ``N`` blocks; a 0 or 1 for each block,
        1 for experts; such a list written as sums of repeated lists; None for all.
    num_layers
        Blocks.

    Raises
    ------
    InputError
        If a list is not one of 0 and 1 for each block.
    """
    if freq is None or freq == 1:
        return ()
    if isinstance(freq, int):
        if freq < 1:
            raise InputError(
                "is no number of blocks",
                where="moe_layer_freq",
                got=freq,
                expected=_EXAMPLES,
            )
        marks = [int(index % freq == 0) for index in range(num_layers)]
    else:
        marks = _marks(freq) if isinstance(freq, str) else freq
    if len(marks) != num_layers or set(marks) - {0, 1}:
        raise InputError(
            "is not a 0 or 1 for each block",
            where="moe_layer_freq",
            got=freq,
            expected=f"{_EXAMPLES}, with num_layers = {num_layers} entries",
        )
    if all(marks):
        return ()
    return tuple(EXPERT_BLOCK if mark else DENSE_BLOCK for mark in marks)


def _marks(text: str) -> list[int]:
    """Return the list that a text of repeated lists stands for."""
    marks: list[int] = []
    for term in text.replace(" ", "").strip("()").split("+"):
        match = _TERM.fullmatch(term)
        if match is None or len(marks) > MAX_LAYERS:
            raise InputError(
                "is no sum of repeated lists of 0 and 1",
                where="moe_layer_freq",
                got=text,
                expected=_EXAMPLES,
            )
        times = min(int(match[2] or 1), MAX_LAYERS)
        marks += [int(mark) for mark in match[1].split(",")] * times
    return marks


class LibraryEntry(NamedTuple):
    """An entry of the library."""

    spec: TransformerSpec
    """Architecture of the model, at the sequence length that it was mainly trained
    with."""

    source: str
    """Publication of the model, and what was chosen where it is silent."""


class _Tables(NamedTuple):
    """The library's files."""

    words: dict[str, dict[str, Any]]
    """Name of a model or a series -> what is written there, sizes under their names."""

    models: tuple[str, ...]
    """Names of the models, in the order of files."""


@cache
def _tables() -> _Tables:
    files = [read_tables("library", name) for name in table_files("library")]
    tables: dict[str, dict[str, Any]] = {}
    models: list[str] = []
    for file in sorted(files, key=lambda file: file.pop("position")):
        for name, table in file.items():
            rows = table.pop("models", None)
            tables[name] = table
            models += [name] if rows is None else rows
            for model, row in (rows or {}).items():
                given = {"sizes": row} if isinstance(row, list) else row
                tables[model] = {"like": name} | given
    for name, table in tables.items():
        if "sizes" in table:
            columns = resolve_table(tables, name)["columns"]
            table.update(zip(columns, table.pop("sizes"), strict=True))
    return _Tables(tables, tuple(models))


def model_names() -> tuple[str, ...]:
    """Return the names that `load_model` knows, families together, small to large."""
    return _tables().models


def model_words(name: str) -> dict[str, Any]:
    """Return what the library writes of a model: words, source and note."""
    words = resolve_table(_tables().words, name)
    words.pop("columns", None)
    return words


@cache
def published_model(name: str) -> LibraryEntry:
    """Return an entry of the library, of a name that is one of `model_names`."""
    words = model_words(name)
    source, note = words.pop("source"), words.pop("note", "")
    return LibraryEntry(build_spec(words), f"{source}; {note}" if note else source)


def load_model(
    name: str,
    *,
    sequence_length: int | None = None,
    attention_implementation: str | None = None,
) -> TransformerSpec:
    """Return a model of the library.

    Parameters
    ----------
    name
        One of `model_names`; upper case and underscores are forgiven.
    sequence_length
        Instead of the library's. A learned position embedding has as many rows as
        published, or as many as are needed if that is more.
    attention_implementation
        ``"flash"`` or ``"plain"`` instead of the library's ``"flash"``.

    Raises
    ------
    InputError
        If there is no such model, or a value is not possible.
    """
    key = name.lower().replace("_", "-")
    if key not in model_names():
        near = difflib.get_close_matches(key, model_names(), n=1, cutoff=0.5)
        raise InputError(
            "no such model",
            where="name",
            got=name,
            expected="one of " + ", ".join(model_names()),
            hint=f'did you mean "{near[0]}"?' if near else "",
        )
    spec = published_model(key).spec
    if attention_implementation is not None:
        spec = replace(spec, attention_implementation=attention_implementation)
    if sequence_length is not None:
        spec = with_sequence_length(spec, sequence_length)
    return spec
