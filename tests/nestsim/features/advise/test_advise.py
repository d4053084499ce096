"""Advice: each gain is the replay of the user's own file with the diff applied."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import nestsim
from nestsim.cli import main
from nestsim.features.advise.job import (
    LEAST_GAIN,
    AdviceResult,
    Trials,
    advise_job,
    levers,
)
from nestsim.scenario.load import Scenario
from nestsim.scenario.schema import scenario_schema
from topologies import InputError

SCRIPT = Path(__file__).parents[2] / "launch/megatron/scripts/gpt3_175b.sh"

JOB = """
name = "job"

[model]
name = "llama3-8b"
num_layers = 8
sequence_length = 4096

[training]
global_batch_size = 64

[software]
preset = "megatron-core"
overlap_grad_reduce = false

[cluster]
system = "hgx-h100-1x100gbe"
num_devices = 16

[plan]
tensor_model_parallel_size = 8
pipeline_model_parallel_size = 1
micro_batch_size = 1
recompute = "full"
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario.from_toml(JOB)


@pytest.fixture(scope="module")
def result(scenario: Scenario) -> AdviceResult:
    return advise_job(scenario, search=False)


def simulated(scenario):
    return nestsim.simulate(scenario).best.simulated.iteration_time


def test_each_gain_is_the_replay_of_the_job_with_its_settings(scenario, result):
    assert result.time == simulated(scenario)
    assert len(result.advice) > 5
    for advice in result.advice:
        values = {}
        for change in advice.changes:
            values |= change.values()
        assert advice.time == simulated(advice.scenario)
        document = advice.scenario.document()
        for path, value in values.items():
            table, _, name = path.partition(".")
            assert document[table][name] == value
    times = [advice.time for advice in result.advice]
    assert times == sorted(times)
    assert times[-1] < result.time * (1.0 - LEAST_GAIN)


def test_the_best_single_change_is_the_best_of_all_that_can_be_set(scenario, result):
    """Against every value of every lever, set by hand and replayed."""
    single = next(advice for advice in result.advice if len(advice.changes) == 1)
    settings = list(Trials(scenario, None).settings())
    assert len({setting.lever.name for setting in settings}) > 10
    for setting in settings:
        document = scenario.document()
        for path in setting.lever.drops:
            table, _, name = path.partition(".")
            document[table].pop(name, None)
        try:
            changed = Scenario.from_dict(document).replace(setting.values())
            candidate = nestsim.simulate(changed).result.candidates[0]
        except InputError:
            continue
        runs = candidate.verdict.kind == "confirmed" and not candidate.broken_rules
        if runs and candidate.simulated.iteration_time < single.time:
            # Faster, but nothing that Megatron-LM can be told by itself.
            gaps = nestsim.export(changed, "megatron").launch.gaps
            assert gaps, setting


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
def test_the_diff_makes_of_the_users_script_what_was_replayed(tmp_path):
    script = tmp_path / "train.sh"
    shutil.copy(SCRIPT, script)
    before = script.read_bytes()
    report = nestsim.advise(script, search=False)
    assert script.read_bytes() == before
    assert report.result.advice
    for number, advice in enumerate(report.result.advice[:3]):
        changed = tmp_path / f"{number}.sh"
        shutil.copy(SCRIPT, changed)
        subprocess.run(
            ["patch", "--quiet", str(changed)],
            input=advice.diff,
            text=True,
            check=True,
        )
        read = nestsim.import_launch(changed).scenario
        assert simulated(read) == advice.time, advice.changes


def test_changes_together_gain_more_than_the_best_by_itself(result):
    groups = [
        advice
        for advice in result.advice
        if len(advice.changes) > 1 and advice.time < result.time
    ]
    assert groups
    singles = [advice for advice in result.advice if len(advice.changes) == 1]
    assert groups[0].time < singles[0].time


def test_the_search_is_no_slower_than_the_advice(scenario):
    result = advise_job(scenario)
    best = result.best.candidates[result.best.chosen].simulated.iteration_time
    in_space = [
        advice
        for advice in result.advice
        if not any(change.lever.setting[:8] == "software" for change in advice.changes)
    ]
    assert best <= min(advice.time for advice in in_space) * 1.01


def test_levers_name_settings_that_there_are():
    names = [lever.name for lever in levers()]
    assert len(names) == len({*names})
    schema = json.dumps(scenario_schema())
    for lever in levers():
        for path in (lever.setting, *lever.beside, *lever.drops):
            assert f'"{path.partition(".")[2]}"' in schema, path


def test_advice_on_the_command_line(tmp_path, capsys):
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    folder = tmp_path / "advice"
    command = ["advise", str(file), "--no-search", "-q", "-o", str(folder)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "LESS TIME" in shown
    assert "+++ job.toml" in shown
    record = json.loads((folder / "advice.json").read_text())
    assert record["advice"][0]["diff"] == (folder / "01.diff").read_text()
    assert main([*command[:-2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == record


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (JOB.partition("[plan]")[0], "there is no plan"),
        ("x = [", "job.toml"),
        ("y = 1", "job.toml"),
    ],
)
def test_no_job_ends_in_a_sentence(tmp_path, capsys, text, words):
    file = tmp_path / "job.toml"
    file.write_text(text)
    assert main(["advise", str(file), "-q"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
