"""A folder that somebody sent runs no code, whatever command it is given to."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import nestsim
from nestsim.cli import main
from nestsim.cli.app import app
from tests.nestsim.features.compare.small import write
from topologies.errors import InputError

WRONG_INPUT = 2
FOREIGN = (
    "from pathlib import Path\n"
    "Path(__file__).with_name('marker').touch()\n"
    "def build(): raise SystemExit(3)\n"
)
"""Writes a file when it is run, and builds nothing, so that no trace of it is kept."""


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of results whose scenario was made to name a Python file."""
    place = tmp_path_factory.mktemp("sent")
    job = write(place, plan=True)
    folder = place / "results"
    arguments = ["--no-figures", "--quiet", "--output", str(folder)]
    assert main(["simulate", str(job), *arguments]) == 0
    text = (folder / "scenario.toml").read_text("utf-8")
    start, end = text.index("[model]"), text.index("[training]")
    foreign = '[model]\nmodule = "foreign.py:build"\nsequence_length = 2048\n\n'
    changed = (text[:start] + foreign + text[end:]).encode()
    (folder / "scenario.toml").write_bytes(changed)
    (folder / "foreign.py").write_text(FOREIGN, encoding="utf-8")
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    manifest["scenario_sha256"] = hashlib.sha256(changed).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def words_for(command: Any, sent: Path) -> Iterator[list[str]]:
    """Yield command lines that hand a folder, or a file of it, to a command."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    for given in (sent, sent / "plan.json", sent / "result.json"):
        if arguments:
            yield [str(given)] * len(arguments)


def test_no_command_runs_code_of_a_folder(sent: Path) -> None:
    own = str(write(sent.parent, "own", plan=True))
    plan, scenario = str(sent / "plan.json"), str(sent / "scenario.toml")
    marker, fast = sent / "marker", ["--no-figures", "--quiet"]
    points = ["--set", "training.global_batch_size=16"]
    group: Any = typer.main.get_command(app)
    lines = [
        ["simulate", own, *fast, "--plan", plan, "--output", str(sent)],
        ["sweep", own, *fast, *points, "--workers=1", "--output", str(sent)],
        ["export", plan, "--scenario", own],
        ["compare", own, *fast, "--planners=fixed", "--networks", own, scenario],
        ["plan", "--nest-instance", plan],
        *(
            [name, *words]
            for name, command in group.commands.items()
            for words in words_for(command, sent)
        ),
    ]
    content = {file.name: file.read_bytes() for file in sent.iterdir()}
    ran = []
    for words in lines:
        main(words)
        if marker.exists():
            ran.append(words)
            marker.unlink()
        for name, one in content.items():
            (sent / name).write_bytes(one)
    assert ran == []
    assert len(lines) >= 50


def test_the_refusal_names_the_file_and_the_way_out(
    sent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["report", str(sent)], ["export", str(sent / "plan.json")]):
        assert main(words) == WRONG_INPUT
        said = capsys.readouterr().err
        assert "scenario.toml: model.module" in said
        assert "foreign.py:build" in said
        assert "--trust-code" in said


def test_code_that_is_trusted_or_named_by_the_user_is_run(sent: Path) -> None:
    marker, scenario = sent / "marker", str(sent / "scenario.toml")
    for words in (
        ["report", str(sent), "--trust-code"],
        ["export", str(sent), "--trust-code"],
        ["export", str(sent / "plan.json"), "--trust-code"],
        ["report", str(sent), "--scenario", scenario],
        ["simulate", scenario],
    ):
        assert main([*words, "--quiet"]) == WRONG_INPUT  # what it builds is no module
        assert marker.exists(), words
        marker.unlink()


def test_python_asks_for_trust_as_the_command_line_does(sent: Path) -> None:
    for call in (nestsim.report_page, nestsim.export):
        with pytest.raises(InputError, match="trust_code=True"):
            call(sent)
        assert not (sent / "marker").exists()
        with pytest.raises(InputError, match="SystemExit: 3"):
            call(sent, trust_code=True)
        (sent / "marker").unlink()
