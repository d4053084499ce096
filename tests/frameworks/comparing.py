"""Drawn plans, our verdict and the framework's: where they differ.

A framework accepts a plan if it takes what nestsim would launch and makes of it what
was priced: the same groups of ranks, blocks, microbatches. We accept one if it breaks
no rule of the preset's release. Ranks stand on devices in their order: a rank map could
launch more, but no rule counts on it.
"""

import json
import os
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestsim.launch.job import LaunchJob
from nestsim.launch.registry import WRITERS
from nestsim.scenario.load import Scenario
from planner.search.launchable import BrokenRule, broken_rules
from planner.search.launchable_sizes import LaunchFacts
from tests.frameworks.drawing import Draw, Tables
from tests.frameworks.environments import Environment
from tests.frameworks.priced import priced_facts
from topologies.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPlan:
    """A scenario with a plan, and what we say of it."""

    tables: Tables
    job: LaunchJob
    refusals: tuple[BrokenRule, ...]
    """What we refuse; none if we accept the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Both verdicts on a plan."""

    drawn: DrawnPlan
    reason: str
    """Why the framework refuses the plan, empty if it accepts it."""
    not_asked: bool = False
    """Whether the driver cannot know of what we refuse."""

    @property
    def kind(self) -> str:
        """Return where this is counted."""
        ours, theirs = not self.drawn.refusals, not self.reason
        if ours == theirs:
            return "accepted by both" if ours else "refused by both"
        if self.not_asked:
            return "not asked"
        return "only we accept" if ours else "only the framework accepts"

    @property
    def differs(self) -> bool:
        """Return whether somebody must look at it."""
        return self.kind.startswith("only")


def draw_plans(
    environment: Environment, number: int, seed: int, unbuilt: Counter[str]
) -> Iterator[DrawnPlan]:
    """Draw plans for an environment's framework, with our verdict on each.

    Parameters
    ----------
    environment
        The framework, and the release of our rules.
    number, seed
        How many, and which.
    unbuilt
        Takes why draws make no plan, whatever is launched.
    """
    # Names the draw, so that other users of the same numbers draw something else.
    rng = random.Random(f"frameworks {environment.name} {seed}")
    draw = Draw(rng, environment.draws)
    while number:
        tables = draw.scenario()
        software = {"preset": environment.preset, "release": environment.release}
        tables["software"] = software
        try:
            job = LaunchJob.of(Scenario.from_dict(tables))
        except InputError as error:
            unbuilt[f"{error.where}: {error.problem}"] += 1
            continue
        yield DrawnPlan(tables=tables, job=job, refusals=refusals(job))
        number -= 1


def refusals(job: LaunchJob) -> tuple[BrokenRule, ...]:
    """Return the rules of the job's release that its plan breaks."""
    rules = job.scenario.search.rules
    assert rules is not None
    facts = LaunchFacts.of(job.workload, job.network)
    return broken_rules(job.plan, rules, facts)


def compare(
    environment: Environment,
    python: Path,
    plans: Sequence[DrawnPlan],
    checkout: str,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Compared]:
    """Ask a framework about plans, by one process, and return both verdicts on each.

    Parameters
    ----------
    environment, python
        What is asked, and where it runs.
    plans
        Drawn plans.
    checkout
        Folder of the framework's repository, empty if the driver takes none.
    progress
        Told how many plans are answered.
    """
    write = WRITERS[environment.format]
    compared: list[Compared] = []
    with tempfile.TemporaryFile("w+") as requests, tempfile.TemporaryFile("w+") as log:
        for drawn in plans:
            files = {name: str(text) for name, text in write(drawn.job).files.items()}
            files["scenario.json"] = json.dumps(drawn.tables)
            request = {"world": drawn.job.network.num_devices, "files": files}
            requests.write(f"{json.dumps(request)}\n")
        requests.seek(0)
        with subprocess.Popen(
            [str(python), str(environment.script), *([checkout] if checkout else [])],
            stdin=requests,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):  # what is imported may print, too
                    drawn = plans[len(compared)]
                    compared.append(_compared(environment, drawn, json.loads(line)))
                    progress(len(compared))
        log.seek(0)
        if process.returncode or len(compared) < len(plans):
            raise RuntimeError(
                f"{environment.script.name} ended with {process.returncode} after "
                f"{len(compared)} of {len(plans)} plans\n{log.read()[-3000:]}"
            )
    return compared


def _compared(environment: Environment, drawn: DrawnPlan, answer: Any) -> Compared:
    """Return both verdicts: what is launched otherwise than priced is refused."""
    priced, launched = priced_facts(drawn.job), answer["facts"]
    differing = [
        f"{name} {value} launched, {priced[name]} priced"
        for name, value in launched.items()
        if name in priced and priced[name] != value
    ]
    broken = {refusal.rule for refusal in drawn.refusals}
    return Compared(
        drawn=drawn,
        reason=answer["reason"] or "; ".join(differing),
        not_asked=bool(broken) and broken <= set(environment.not_asked),
    )
