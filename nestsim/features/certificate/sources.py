"""What a certificate rests on: the scenario with its files, and shipped constants."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from nestsim.document.dumps import Record
from nestsim.scenario.editing import toml_text, with_values
from nestsim.scenario.load import Scenario, load_scenario
from topologies.errors import InputError
from topologies.input_file import read_file

_PACKAGES = ("topologies", "estimators", "planner")
"""Packages whose data prices plans."""

_DATA = (".toml", ".csv", ".json")
"""Ends of names of files of data."""

_MOST_BYTES = 50_000_000
"""Longest file of a scenario that is copied [byte]."""


class ScenarioCopyRecord(Record):
    """A scenario with all files that it names."""

    name: str
    """What the user calls it."""
    file: str
    """Name of the scenario's file, without its folder."""
    text_sha256: str
    """Hash of the scenario's file, as ``manifest.json`` of a run has it."""
    text: str
    """The scenario in TOML; files that it names are those of `files`."""
    files: Mapping[str, str]
    """Content of each file that the text names."""
    files_sha256: Mapping[str, str]
    """Hash of each of them."""


@cache
def data_digest() -> str:
    """Return a hash of the constants and catalogues that nestsim ships."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        (folder,) = map(Path, import_module(package).__path__)
        for file in sorted(folder.rglob("*")):
            if file.suffix in _DATA:
                content = file.read_bytes()
                name = f"{package}/{file.relative_to(folder).as_posix()}"
                digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def scenario_copy(scenario: Scenario) -> dict[str, object]:
    """Return a scenario and its files, as `ScenarioCopyRecord` has them."""
    document, contents = scenario.document(), {}
    for number, (setting, named) in enumerate(scenario.named_files().items()):
        file = scenario.path.parent / named
        content = read_file(
            file, expected="a file that the scenario names", most_bytes=_MOST_BYTES
        )
        # Names need not differ, nor be without folders.
        name = f"file{number}_{file.name}"
        table, _, key = setting.rpartition(".")
        written = _inner(document, table)[key]
        assert isinstance(written, str)
        document = with_values(document, {setting: name + written.removeprefix(named)})
        contents[name] = content
    text = toml_text(document) if contents else scenario.text.decode()
    return {
        "name": scenario.name,
        "file": scenario.path.name,
        "text_sha256": hashlib.sha256(scenario.text).hexdigest(),
        "text": text,
        "files": {
            name: content.decode("utf-8", "surrogateescape")
            for name, content in contents.items()
        },
        "files_sha256": {
            name: hashlib.sha256(content).hexdigest()
            for name, content in contents.items()
        },
    }


def _inner(document: Mapping[str, object], path: str) -> Mapping[str, object]:
    table: object = document
    for part in path.split("."):
        assert isinstance(table, Mapping)
        table = table[part]
    assert isinstance(table, Mapping)
    return table


@contextmanager
def restored_scenario(
    copied: ScenarioCopyRecord, *, trust_code: bool
) -> Iterator[Scenario]:
    """Load a scenario from its copy, its files in a folder that is gone afterwards.

    Raises
    ------
    InputError
        If it is not one, or runs code that nobody trusts.
    """
    with TemporaryDirectory() as made:
        folder = Path(made)
        for name, text in {**copied.files, "scenario.toml": copied.text}.items():
            if Path(name).name != name:
                raise InputError(
                    "is no name of a file", where="scenario.files", got=name
                )
            content = text.encode("utf-8", "surrogateescape")
            (folder / name).write_bytes(content)
        try:
            scenario = load_scenario(folder / "scenario.toml", trust_code=trust_code)
        except InputError as error:
            error.where = error.where.removeprefix(f"{folder}/")
            raise
        yield scenario


def source_failures(copied: ScenarioCopyRecord) -> list[str]:
    """Return what of a copy does not have the hash that it should have."""
    failures = [
        f"The scenario's file {name} is not the one that was copied: its hash differs."
        for name, text in copied.files.items()
        if copied.files_sha256.get(name)
        != hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    ]
    is_same = hashlib.sha256(copied.text.encode()).hexdigest() == copied.text_sha256
    if not copied.files and not is_same:
        failures.append("The scenario's text is not the one that was run.")
    return failures
