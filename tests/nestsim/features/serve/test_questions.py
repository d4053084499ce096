"""Questions: what they are known by, and which files may come with them."""

from typing import Any

import pytest
from pydantic import ValidationError

from nestsim.features.serve.questions import (
    KINDS,
    JitterQuestion,
    Question,
    SimulateQuestion,
    key_of,
)
from tests import failures
from topologies.errors import InputError

TEXT = 'name = "one"\n'


def key(kind: str = "run", *, trust_code: bool = False, **says: Any) -> str:
    question = KINDS[kind].model_validate({"scenario": TEXT, **says})
    return key_of(kind, question, trust_code=trust_code)


def test_the_same_question_has_the_same_key() -> None:
    assert key() == key()
    assert key(scenario={"name": "one"}) == key()
    assert len({key(), key("stress"), key(scenario=f"{TEXT}#"), key(page=True)}) == 4
    assert key(trust_code=True) != key()
    assert key(files={"a": "b"}) != key(files={"a": "c"})
    assert key("jitter", runs=3) != key("jitter", runs=4)


def test_another_software_has_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(
        "nestsim.features.serve.questions.software", lambda: {"nestsim": "other"}
    )
    assert key() != before


@failures.over("name", ["/etc/passwd", "../a", "a/../../b", "", "a\0b"])
def test_files_lie_beside_the_scenario(name: str) -> None:
    question = Question(scenario=TEXT, files={name: ""})
    with pytest.raises(InputError, match="files: is no name of a file"):
        question.check_files()
    Question(scenario=TEXT, files={"models/config.json": ""}).check_files()


@failures.over(
    "says",
    [
        {},
        {"scenario": 3},
        {"scenario": TEXT, "other": 1},
        {"scenario": TEXT, "files": {str(n): "" for n in range(33)}},
        {"scenario": TEXT, "files": {"a": 1}},
    ],
)
def test_what_is_no_question_is_refused(says: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Question.model_validate(says)


def test_what_is_no_toml_names_the_scenario() -> None:
    with pytest.raises(InputError, match=r"^scenario.toml: not TOML"):
        Question(scenario="[").toml()
    with pytest.raises(InputError, match=r"^scenario.toml: "):
        Question(scenario={"a": None}).toml()


def test_arguments_are_those_of_the_function() -> None:
    assert Question(scenario=TEXT).arguments() == {}
    assert JitterQuestion(scenario=TEXT, runs=3).arguments() == {
        "runs": 3,
        "seed": None,
    }
    assert SimulateQuestion(scenario=TEXT).arguments() == {"plan": None}
