"""What can be asked: the functions of `nestsim`, each with its arguments, as JSON.

A question is known by its content: the same bytes, asked of the same software, have the
same key and the same answer. Where a class here is asked, ``KINDS`` says what answers.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nestsim.features.sweep.executors.dask import software
from nestsim.scenario.editing import toml_text
from topologies.errors import InputError
from topologies.input_file import parse_toml

SCENARIO = "scenario.toml"
"""What messages call the scenario."""

MOST_FILES = 32
"""Files that may come with a scenario."""

FORMAT = 1
"""Of answers; it rises when a key changes its meaning or goes."""

Count = Annotated[int, Field(ge=1, le=100_000)]


class Question(BaseModel):
    """A scenario, and what is asked about it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scenario: str | dict[str, Any]
    """The scenario: text in TOML, or the same as tables of JSON."""

    files: Annotated[dict[str, str], Field(max_length=MOST_FILES)] = {}
    """Text of each file that the scenario names, by its name there. A server reads no
    others, unless it was started with --trust-code."""

    page: bool = False
    """Make the page, too, and the files of the folder of results."""

    def toml(self) -> str:
        """Return the scenario as text.

        Raises
        ------
        InputError
            If it is no TOML.
        """
        try:
            if isinstance(self.scenario, str):
                parse_toml(self.scenario.encode(errors="surrogatepass"))
                return self.scenario
            return toml_text(self.scenario)
        except InputError as error:
            raise error.at(SCENARIO, ": ") from None

    def check_files(self) -> None:
        """Refuse names of files that are not in the scenario's folder."""
        for name in self.files:
            path = PurePosixPath(name)
            parts = path.parts
            if not parts or path.is_absolute() or ".." in parts or "\0" in name:
                raise InputError(
                    "is no name of a file beside the scenario",
                    where="files",
                    got=name,
                    expected="a relative path without ..",
                )

    def arguments(self) -> dict[str, Any]:
        """Return what the function takes beside the scenario."""
        return self.model_dump(exclude={"scenario", "files", "page"})


class PlanQuestion(Question):
    """The k best plans; or why a configuration is not the best."""

    explain: str | None = None
    """A configuration, such as "tp=4,pp=2"; null for the plans."""


class SimulateQuestion(Question):
    """The replay of a plan."""

    plan: dict[str, Any] | None = None
    """A plan, as in `plan.json`; null for the scenario's table [plan]."""


class MemoryQuestion(Question):
    """What a job holds in memory, and what would fit."""

    sizes: str = ""
    """Sizes in place of the plan's, such as "tp=4,b=1"."""

    explain: bool = False
    """List the tensors that layers keep."""


class JitterQuestion(Question):
    """Steps that differ at random."""

    runs: Count | None = None
    """Steps; null for what the scenario says."""

    seed: int | None = None
    """Seed; null for what the scenario says."""


class SweepQuestion(Question):
    """Settings against each other."""

    settings: dict[str, list[Any]] = {}
    """Dotted path of a setting -> its values, over those of [sweep.set]."""

    what: Literal["simulate", "plan", "run"] | None = None
    """What is done at each point; null for what the scenario says."""


class CompareQuestion(Question):
    """Planners against each other."""

    planners: list[
        Literal[
            "nest", "manual", "mcmc", "phaze", "alpa", "mist", "exhaustive", "fixed"
        ]
    ] = []
    """Names; empty for all but exhaustive, fixed with a table [plan]."""

    base: str = ""
    """Whose throughput is 1; empty for nest."""


KINDS: Mapping[str, type[Question]] = MappingProxyType(
    {
        "run": Question,
        "plan": PlanQuestion,
        "simulate": SimulateQuestion,
        "memory": MemoryQuestion,
        "sweep": SweepQuestion,
        "stress": Question,
        "goodput": Question,
        "jitter": JitterQuestion,
        "collectives": Question,
        "compare": CompareQuestion,
    }
)
"""Function of `nestsim` -> what it is asked."""


def key_of(kind: str, question: Question, *, trust_code: bool) -> str:
    """Return what a question and its answer are known by.

    With trusted code, files of the server are read, whose content is in no key: such
    answers have keys of their own.
    """
    says = {
        "format": FORMAT,
        "kind": kind,
        "software": dict(software()),
        "trust_code": trust_code,
        "question": {**question.model_dump(), "scenario": question.toml()},
    }
    text = json.dumps(says, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:40]
