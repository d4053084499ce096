"""Blocks of code on the pages: settings exist, commands are understood, files are."""

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import tomli
import typer.main
import yaml
from pydantic import TypeAdapter, ValidationError

from nestsim.cli.app import app
from nestsim.features.compare.networks_job import read_network_file
from nestsim.features.jobs.scenario import JobsScenario
from nestsim.scenario.load import load_scenario
from nestsim.scenario.table import ScenarioTable
from tests import failures
from tests.docs.pages import ROOT, Block, blocks, commands, read

CONSTANTS = "format"
"""The key by which a file of constants is known."""

JOB = load_scenario(ROOT / "scenarios" / "llama2_7b_64_h100.toml")
"""The job that is taken to networks."""

MISSING = {"missing", "union_tag_not_found", "union_tag_invalid"}
"""Errors of a table of which only a part is shown."""


@failures.over("block", blocks("toml"), ids=str)
def test_settings_on_a_page_exist_and_have_values_that_they_may_have(
    block: Block,
) -> None:
    document = tomli.loads(block.text)
    assert CONSTANTS not in document
    try:
        TypeAdapter(ScenarioTable).validate_python(document)
    except ValidationError as error:
        wrong = [one for one in error.errors() if one["type"] not in MISSING]
        assert wrong == []


def test_a_wrong_setting_on_a_page_would_be_found() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(ScenarioTable).validate_python({"search": {"micro_batch": [1]}})
    kinds = {one["type"] for one in caught.value.errors()}
    assert kinds - MISSING == {"unexpected_keyword_argument"}


def words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)


NESTSIM = [pair for pair in commands() if "nestsim" in words_of(pair[1])]


@failures.over(("page", "line"), NESTSIM)
def test_a_command_on_a_page_is_understood(page: str, line: str) -> None:
    words = words_of(line)
    words = words[words.index("nestsim") + 1 :]
    name, *arguments = words[: words.index(">")] if ">" in words else words
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    context: Any = command.make_context(
        name, [one for one in arguments if one != "SCENARIO"], resilient_parsing=True
    )
    assert context.args == []


@failures.over(("page", "line"), commands())
def test_a_target_of_make_on_a_page_exists(page: str, line: str) -> None:
    words = words_of(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:.*##", read(ROOT / "Makefile"), re.MULTILINE)


@failures.over(("page", "line"), NESTSIM)
def test_scenarios_that_a_command_names_are_there(page: str, line: str) -> None:
    for word in words_of(line):
        if word.startswith("scenarios/"):
            files = list(ROOT.glob(word))
            assert files
            for file in files:
                if file.parent.name == "networks":
                    read_network_file(file, JOB)
                elif file.parent.name == "jobs":
                    JobsScenario.from_file(file)
                elif file.suffix == ".toml" and not file.stem.endswith("_links"):
                    load_scenario(file)


def test_the_guide_shows_the_main_scenario_as_it_is() -> None:
    scenario = read(ROOT / "scenarios" / "llama2_7b_64_h100.toml").strip()
    assert scenario in read(ROOT / "docs" / "guide.md")


def test_blocks_in_json_yaml_and_python_can_be_read() -> None:
    for block in blocks("json"):
        json.loads(block.text)
    for block in blocks("yaml"):
        assert yaml.safe_load(block.text)
    for block in blocks("python"):
        ast.parse(block.text)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_two_commands_to_set_up_are_told_first(page: str) -> None:
    first = re.search(r"```console\n(.*?)```", read(Path(ROOT / page)), re.DOTALL)
    assert first is not None
    lines = [line.split("#")[0].strip() for line in first[1].strip().split("\n")]
    assert lines == ["$ make demo", "$ make test"]
