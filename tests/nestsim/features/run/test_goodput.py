"""What a run says of its plan through failures: `nestsim goodput`, in short."""

from pathlib import Path

import nestsim
from nestsim.document.parts import FigureBlock, Sentences
from nestsim.features.goodput.document import goodput_section
from nestsim.features.goodput.job import goodput_job
from nestsim.features.goodput.record import goodput_json
from nestsim.features.run.document import run_goodput
from nestsim.scenario.load import load_scenario

SMALL = Path("scenarios/gpt3_1.3b_8_a100.toml")


def test_a_run_says_what_its_plan_trains_through_failures() -> None:
    scenario = load_scenario(SMALL).replace(
        {"goodput.failures": "llama3", "goodput.duration": "30 d"}
    )
    report = nestsim.run(scenario)
    section = run_goodput(scenario, report.result)
    alone = goodput_json(goodput_job(scenario))
    assert section == goodput_section(alone)
    assert isinstance(section.blocks[0], Sentences)
    assert isinstance(section.blocks[1], FigureBlock)
    assert section.title in str(report)
    assert alone["headline"] in str(report)


def test_a_run_without_failures_is_silent_about_them() -> None:
    scenario = load_scenario(SMALL)
    result = nestsim.run(scenario).result
    assert not run_goodput(scenario, result).blocks


def test_failures_that_do_not_go_with_the_job_leave_its_plan() -> None:
    scenario = load_scenario(SMALL)
    failing = scenario.replace(
        {"goodput.failures": "llama3", "goodput.duration": "1 s"}
    )
    (sentences,) = run_goodput(failing, nestsim.run(scenario).result).blocks
    assert isinstance(sentences, Sentences)
    assert "goodput.duration" in sentences.sentences[0]
