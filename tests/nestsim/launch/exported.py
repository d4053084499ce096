"""``python -m tests.nestsim.launch.exported``: do reported plans lose anything?

Searches random scenarios as `run` does, writes every reported plan in the format of its
preset's framework and lists what the files cannot say of the plan.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path

from estimators.models.spec import TransformerSpec
from nestsim.evaluate.cluster import build_job
from nestsim.evaluate.evaluator import Evaluator
from nestsim.launch.job import LaunchGap, LaunchJob
from nestsim.launch.registry import PRESET_FORMATS, WRITERS
from nestsim.scenario.load import scenario_of
from tests.regret.scenarios import Drawn, draw
from topologies.input_file import parse_toml

OF_THE_JOB = {"model", "training", "software", "cluster", "launch"}
OF_THE_MODEL = {field.name for field in fields(TransformerSpec)}


@dataclass(frozen=True, slots=True)
class Exported:
    """What the files of one scenario's plans cannot say."""

    drawn: Drawn
    gaps: tuple[tuple[LaunchGap, ...], ...]
    """Of each reported plan, the answer first."""
    seconds: float
    of_the_job: int
    """Plans whose files cannot say something of the scenario."""

    def lines(self) -> Iterator[str]:
        """Yield it in words."""
        clean = sum(not gaps for gaps in self.gaps)
        yield (
            f"{self.drawn.seed:4} {self.drawn.preset:14} {clean} of {len(self.gaps)} "
            f"plans, {self.of_the_job} with a gap in the job; {self.seconds:.0f} s"
        )
        for place, gaps in enumerate(self.gaps):
            for gap in gaps:
                yield f"       plan {place}: {gap}"


def export_all(drawn: Drawn) -> Exported:
    """Search a scenario and write every plan that a report of it has."""
    begun = time.monotonic()
    text = drawn.text.encode()
    scenario = scenario_of(parse_toml(text), Path("scenario.toml"), text)
    network, workload = build_job(scenario, None)
    outcome = Evaluator.on(scenario, network, workload).find(
        "nest", scenario.planner_settings
    )
    write = WRITERS[PRESET_FORMATS[drawn.preset]]
    gaps = [
        write(LaunchJob.of(scenario, proposal.plan)).gaps for proposal in outcome.plans
    ]
    return Exported(
        drawn,
        tuple(tuple(filter(is_of_plan, listed)) for listed in gaps),
        time.monotonic() - begun,
        sum(not all(map(is_of_plan, listed)) for listed in gaps),
    )


def is_of_plan(gap: LaunchGap) -> bool:
    """Whether a gap is in what the planner chose, not in what the scenario asks for."""
    table = gap.setting.partition(".")[0]
    return table not in OF_THE_JOB and table not in OF_THE_MODEL


def main() -> int:
    """Export the plans of random scenarios, and return 1 if a framework's has a gap."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.nestsim.launch.exported",
        description="Search random realistic scenarios, write every reported plan for "
        "its framework, and list what the files cannot say.",
    )
    parser.add_argument("--scenarios", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    request = parser.parse_args()
    plans, clean = Counter[str](), Counter[str]()
    draws = [draw(request.seed + number) for number in range(request.scenarios)]
    with ProcessPoolExecutor(request.workers, get_context("spawn")) as pool:
        for exported in pool.map(export_all, draws):
            plans[exported.drawn.preset] += len(exported.gaps)
            clean[exported.drawn.preset] += sum(not gaps for gaps in exported.gaps)
            sys.stdout.writelines(f"{line}\n" for line in exported.lines())
            sys.stdout.flush()
    for preset, number in sorted(plans.items()):
        sys.stdout.write(f"{preset}: {clean[preset]} of {number} plans without a gap\n")
    sys.stdout.write(
        f"all: {clean.total()} of {plans.total()} plans of {len(draws)} scenarios\n"
    )
    # Ideal software is no framework: its devices stand in any order.
    return int(
        any(clean[preset] < plans[preset] for preset in plans if preset != "ideal")
    )


if __name__ == "__main__":
    sys.exit(main())
